"""The program ``tacit``: all commands, exit codes and errors.

Exit code 0 on success, 2 for an error that the user can correct (one line: field, value, fix), 3 if a budget or policy
forbids the work, 130 after Ctrl-C (the run folder is usable).
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from tacit.errors import Deprecated, TacitError, UserError
from tacit.names import COMMANDS as FAMILY_COMMANDS
from tacit.names import load
from tacit.ui import experiment_commands, federation_commands, ledger_commands, report_commands
from tacit.ui.console import show, show_error, warn

COMMANDS = (
    experiment_commands.demo,
    experiment_commands.run,
    experiment_commands.plan,
    experiment_commands.methods,
    experiment_commands.data,
    report_commands.report,
    report_commands.compare,
    report_commands.audit,
    *map(load, FAMILY_COMMANDS),
    federation_commands.server,
    federation_commands.silo,
    federation_commands.analyzer,
    federation_commands.submit,
)

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Differentially private federated learning for data about people.",
)
for command in COMMANDS:
    app.command()(command)
app.add_typer(federation_commands.app, name="federation")
app.add_typer(ledger_commands.app, name="ledger")


def main() -> None:
    """Entry point: errors that Tacit raises on purpose become one line and their exit code."""
    _keep_compilations()
    warnings.showwarning = _show_warning
    try:
        app()
    except TacitError as error:
        _end(error)
    except OSError as error:
        fix = "correct it, then continue with --resume if a run folder was made"
        _end(UserError("file-access", "system", str(error), fix))
    except (MemoryError, RuntimeError) as error:
        # JAX says that memory is short by a word in a RuntimeError
        if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        problem, fix = "the experiment needs more than is available", "lower counts, epochs, batch_size or the model"
        _end(UserError("out-of-memory", "memory", problem, fix))


def _end(error: TacitError) -> None:
    show_error(str(error))
    sys.exit(error.exit_code)


def _show_warning(message: Warning | str, category: type[Warning], *where: Any, **options: Any) -> None:
    """Names that are deprecated are the user's to change: one line, without the place in Tacit's code."""
    if issubclass(category, Deprecated):
        warn(str(message))
    else:
        _python_warning(message, category, *where, **options)


_python_warning = warnings.showwarning


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # slow to import

        show(f"tacit {version('tacit')}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version.")]


@app.callback()
def _program(version: Version = False) -> None:
    """Differentially private federated learning for data about people."""


def _keep_compilations() -> None:
    """Keep compiled kernels between commands, unless the environment sets another place or forbids it."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tacit" / "compiled"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
