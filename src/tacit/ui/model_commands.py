"""``tacit model``: models of one's own for a federation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tacit.ui.arguments import Json
from tacit.ui.console import show_json, show_line

app = typer.Typer(no_args_is_help=True, help="Models of one's own for a federation.")


@app.command()
def pack(
    source: Annotated[str, typer.Argument(metavar="EXPERIMENT|FACTORY", help="An experiment, or module:factory.")],
    out: Annotated[Path, typer.Option(help="The new file.")] = Path("model.tacit"),
    shape: Annotated[str, typer.Option(help="Of one record, such as 28,28; for a factory.")] = "",
    outputs: Annotated[int, typer.Option(help="Of the model; for a factory.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the initial parameters.")] = 0,
    as_json: Json = False,
) -> None:
    """Write a model as data that silos can check and run without its code: model.tacit."""
    from tacit.errors import UserError
    from tacit.models import build
    from tacit.models.packing import pack as packed
    from tacit.planning.plan import model_and_form, plan

    if out.exists():
        raise UserError("exists-already", "--out", f"'{out}' exists", "name a new file")
    if ":" in source and not Path(source).exists():
        try:
            form = tuple(int(side) for side in shape.split(","))
        except ValueError:
            raise UserError("malformed", "--shape", f"'{shape}' is no shape", "write --shape 13 or 28,28") from None
        model, count = build(source, form, outputs), outputs
    else:
        model, form, count = model_and_form(plan(source))
    found = packed(model, form, count, seed)
    out.write_bytes(found.content)
    facts = {"file": str(out), "sha256": found.sha256, "bytes": len(found.content)}
    needs = {"equations": len(found.equations), "operations": found.operations, "memory": found.memory}
    if as_json:
        show_json({**facts, **needs})
        return
    show_line(f"packed  {out}: {len(found.content):,} bytes, {len(found.equations)} equations")
    show_line(f"a record needs {found.operations:,} operations and {found.memory:,} bytes")
    show_line(f"sha256  {found.sha256}")


@app.command()
def fingerprint(
    name: Annotated[str, typer.Argument(metavar="NAME", help="An installed distribution.")], as_json: Json = False
) -> None:
    """Print the hash of the files of a distribution, for `installed` in POLICY.toml."""
    from tacit.federation.site.models import fingerprint as hashed

    found = hashed(name)
    if as_json:
        show_json({"name": name, "sha256": found})
    else:
        show_line(found)
