"""Apply the code of the pages for contributors to a copy of the repository: ``python tools/contributing.py FOLDER``.

A block whose first line is ``# path`` is that file (``python``), or a change of it (``diff``): lines with a space or a
minus must stand in the file one after the other, exactly once; those with a minus go, those with a plus come.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("CONTRIBUTING.md", "docs/new-exchange.md")
BLOCK = re.compile(r"^```(python|diff)\n# (\S+)\n(.*?)^```$", re.M | re.S)


def blocks(page: str) -> list[tuple[str, str, str]]:
    """Kind, path and text of every block that names a file."""
    return [(kind, path, text) for kind, path, text in BLOCK.findall(page)]


def pages() -> str:
    """All pages with code, one after the other."""
    return "\n".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)


def changed(text: str, diff: str) -> str:
    """The text of a file after a change of the page."""
    lines = diff.splitlines()
    before = "".join(line[1:] + "\n" for line in lines if not line.startswith("+"))
    after = "".join(line[1:] + "\n" for line in lines if not line.startswith("-"))
    if text.count(before) != 1:
        raise ValueError(f"stands {text.count(before)} times in the file, not once:\n{before}")
    return text.replace(before, after)


def apply(page: str, folder: Path) -> list[str]:
    """Apply all blocks below ``folder``; the files that were made or changed."""
    found = blocks(page)
    for kind, path, text in found:
        file = folder / path
        if kind == "python":
            if file.exists():
                raise ValueError(f"{path} exists already")
            file.write_text(text, encoding="utf-8")
        else:
            file.write_text(changed(file.read_text(encoding="utf-8"), text), encoding="utf-8")
    return sorted({path for _, path, _ in found})


def copied(folder: Path) -> None:
    """The files of the repository, as they are, in ``folder``."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())


def main() -> None:
    folder = Path(sys.argv[1])
    copied(folder)
    for path in apply(pages(), folder):
        print(path)


if __name__ == "__main__":
    main()
