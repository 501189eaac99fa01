"""Write the catalogue of error codes from the tables in the source: ``python -m tools.errors_page``."""

from __future__ import annotations

from pathlib import Path

from tacit.crypto.crypto_errors import MISUSES, REFUSALS
from tacit.errors import CODES
from tacit.federation.site.policy import RULES
from tacit.privacy.invalid import ARGUMENTS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "errors.md"
INTRODUCTION = """# Error codes

After reading this page you can look up the code at the end of an error line, and write a script that depends on it.

Every error is one line: `field: problem; fix [code]`. The field is a key of the experiment file, an option, an
argument or a kind of file. The code and the field stay the same between versions; the sentences may change. In
Python the parts are `error.code`, `error.field`, `error.problem`, `error.fix` and, where a command reads several files,
`error.file`.

`python -m tools.errors_page` writes this page from the tables in the source.
"""


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def page() -> str:
    """The text of the catalogue."""
    errors = [(f"`{code}`", text.meaning, text.recovery, str(text.exit_code)) for code, text in sorted(CODES.items())]

    def short(codes: dict[str, str]) -> str:
        return table(("code", "meaning"), [(f"`{code}`", meaning) for code, meaning in sorted(codes.items())])

    parts = [
        INTRODUCTION,
        "## Errors of commands and of the Python interface\n",
        "`tacit.UserError` ends a command with exit code 2, `tacit.Forbidden` with exit code 3.\n",
        table(("code", "meaning", "recovery", "exit code"), errors),
        "## Refused messages of a federation\n",
        "`tacit.crypto.Refused` appears in the logs of server and silos. It names the party that sent the message.",
        "The receiver ignores the message; the round goes on where enough parties are left.\n",
        short(dict(REFUSALS)),
        "## Rules by which a silo refuses a run\n",
        "The requester sees the name of the rule in the error `policy-forbids`; the silo's own log has the reason.\n",
        short(dict(RULES)),
        "## Invalid arguments\n",
        "`tacit.privacy.invalid.InvalidArgument` is a `ValueError` of the accountants, mechanisms and kernels.\n",
        short(dict(ARGUMENTS)),
        "`tacit.crypto.crypto_errors.Misused` is a `ValueError` of the cryptographic primitives.\n",
        short(dict(MISUSES)),
    ]
    return "\n".join(parts)


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()
