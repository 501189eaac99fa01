"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def _passphrase(help_text: str, *, prompt: str | bool = "Passphrase", confirm: bool = False) -> typer.models.OptionInfo:
    """The option ``--passphrase``, from the environment or a prompt."""
    option: typer.models.OptionInfo = typer.Option(
        "--passphrase",
        envvar="TACIT_PASSPHRASE",
        prompt=prompt,
        confirmation_prompt=confirm,
        hide_input=True,
        show_default=False,
        help=help_text,
    )
    return option


Experiment = Annotated[Path, typer.Argument(metavar="EXPERIMENT.toml", help="The experiment file.")]
Changes = Annotated[list[str], typer.Option("--set", metavar="a.b=value", help="Replace one setting; may be repeated.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="The new run folder.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
KitFolder = Annotated[Path, typer.Argument(metavar="KIT", help="A folder that `tacit federation init` made.")]
RequesterKit = Annotated[Path, typer.Option("--kit", metavar="KIT", help="The kit of a requester.")]
SiloTable = Annotated[Path, typer.Option("--data", metavar="DATA.toml", help="Where the table of this silo is.")]
Background = Annotated[bool, typer.Option("--background", help="Continue without this terminal.")]
LedgerOrKit = Annotated[Path, typer.Argument(metavar="KIT|LEDGER", help="A ledger, or the kit of its silo.")]
Passphrase = Annotated[str, _passphrase("Passphrase of the backup.")]
NewPassphrase = Annotated[str, _passphrase("Encrypts the backup.", confirm=True)]
KeyPassphrase = Annotated[str, _passphrase("Passphrase of the private key, if it has one.", prompt=False)]
CaPassphrase = Annotated[
    str,
    _passphrase(
        "Encrypts the CA key. If omitted, the CA key is discarded and no party can be added later.", prompt=False
    ),
]
