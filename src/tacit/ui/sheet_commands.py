"""``tacit sheet``: write, sign and verify the privacy sheet of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tacit.ui.arguments import Json, KeyPassphrase, RunFolder
from tacit.ui.console import show_json, show_line

DEFAULT = "write"


class _RunOrCommand(TyperGroup):
    """``tacit sheet RUN`` means ``tacit sheet write RUN``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "--help"):
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_RunOrCommand,
    no_args_is_help=True,
    help="The privacy sheet of a run: `tacit sheet RUN` writes it, `tacit sheet RUN --sign KEY` signs it.",
)


@app.command(DEFAULT)
def write(
    run: RunFolder,
    sign: Annotated[Path | None, typer.Option("--sign", metavar="KEY", help="Sign with this private key.")] = None,
    others: Annotated[
        list[Path],
        typer.Option("--with", metavar="RUN", help="Another run on the same data: it counts in the total."),
    ] = [],  # noqa: B006 - typer reads the default
    accept: Annotated[
        list[str],
        typer.Option(
            "--accept", metavar="VIEW|seed", help="Sign although this view has no guarantee, or a seed is set."
        ),
    ] = [],  # noqa: B006
    secret: KeyPassphrase = "",
    as_json: Json = False,
) -> None:
    """Write the privacy sheet and the folder share/ of files that may leave; sign them with --sign."""
    from tacit.engine.folder import read_json
    from tacit.errors import UserError
    from tacit.report import signing, write_sheet
    from tacit.report.disclosure import SIGNATURE, STATEMENT

    if accept and sign is None:
        raise UserError("no-effect", "--accept", "is given without --sign", "add --sign KEY")
    key = None if sign is None else signing.read_private_key(sign, secret)
    page = write_sheet(run, others=others, key=key, accepted=accept)
    if as_json:
        signed = (run / SIGNATURE).is_file()
        show_json({**read_json(run / STATEMENT, "run"), "signed": signed, "sheet": str(page)})
        return
    show_line(f"sheet   {page}")
    show_line(f"share   {run / 'share'}")
    signer = read_json(run / STATEMENT, "run").get("signer")
    show_line(f"signed  {f'by key {signer}' if signer else 'no'}")


@app.command()
def verify(
    run: Annotated[Path, typer.Argument(metavar="RUN|SHARE", help="A run folder, or its folder share/.")],
    key: Annotated[Path, typer.Option("--key", metavar="KEY.pub", help="The signer's public key, from the signer.")],
    data: Annotated[bool, typer.Option("--data", help="Also read the table and compare its fingerprint.")] = False,
    as_json: Json = False,
) -> None:
    """Check the signature of a sheet, and that every file is as it was signed."""
    from tacit.report import signing

    public = signing.read_public_key(key)
    stated = signing.verify(run, public)
    if data:
        signing.verify_data(run, stated)
    if as_json:
        found = {"verified": True, "key": signing.key_name(public), "data": data, "sheet_date": stated["sheet_date"]}
        show_json(found)
        return
    show_line(f"verified  signed by key {signing.key_name(public)} on {stated['sheet_date']}")
    if data:
        show_line("verified  the table is the one that the run used")


@app.command("key")
def make_key(
    file: Annotated[Path, typer.Argument(metavar="KEY", help="The new private key; KEY.pub is the public one.")],
    secret: KeyPassphrase = "",
    as_json: Json = False,
) -> None:
    """Make a key pair (Ed25519, PEM) to sign sheets with."""
    from tacit.report import signing

    public = signing.new_key(file, secret)
    name = signing.key_name(signing.read_public_key(public))
    if as_json:
        show_json({"private": str(file), "public": str(public), "key": name})
        return
    show_line(f"private  {file}")
    show_line(f"public   {public}")
    show_line(f"key      {name}")
