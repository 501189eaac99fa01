"""The program ``tacit``: its commands, exit codes and errors.

``demo``, ``run``, ``plan``, ``methods`` and ``data`` are here, all other groups of commands in modules of their own.

Exit code 0 on success, 2 for an error that the user can correct (one line: field, value, fix), 3 if a budget or policy
forbids the work, 130 after Ctrl-C (the run folder is usable).
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.errors import Deprecated, Note, TacitError, UserError
from tacit.names import COMMANDS as FAMILY_COMMANDS
from tacit.names import load
from tacit.ui import (
    federation_commands,
    init_command,
    ledger_commands,
    model_commands,
    report_commands,
    sheet_commands,
    study_commands,
)
from tacit.ui.arguments import Changes, Experiment, Json, Out
from tacit.ui.console import (
    Bars,
    console,
    errors,
    show,
    show_error,
    show_finished,
    show_json,
    show_line,
    show_outlook,
    show_sweep,
    table_of,
    warn,
)

if TYPE_CHECKING:
    from tacit.engine.supervisor import MachinePlace
    from tacit.planning.experiment import Experiment as Sections
    from tacit.planning.plan import Plan

# references of the demo: no privacy, records protected instead of subjects, each silo alone, all records pooled
DEMO_REFERENCES = ("fedavg", "local-record", "silo-only", "pooled")
SWEEP_HELP = (
    "Solve for several values: rounds=10,100,1000 or rounds=10:1000 (1-2-5 steps). Known: rounds, delta, epsilon, "
    "every key of the method (clip, sample_rate, noise_multiplier, …), or a.b. May be repeated, or joined by commas."
)


def demo(out: Out = None, as_json: Json = False) -> None:
    """Run the built-in experiment, from records to report, in under a minute."""
    from importlib.resources import files

    from tacit.planning.plan import plan

    train(plan(Path(str(files("tacit") / "demo.toml"))), out=out, baselines=DEMO_REFERENCES, as_json=as_json)


def run(
    experiment: Experiment,
    changes: Changes = [],  # noqa: B006 - typer reads the default
    out: Out = None,
    resume: Annotated[Path | None, typer.Option("--resume", metavar="RUN", help="Continue this run.")] = None,
    baselines: Annotated[bool, typer.Option("--baselines", help="Also train silo-only and pooled.")] = False,
    mlflow: Annotated[str | None, typer.Option("--mlflow", metavar="URI", help="Log to this MLflow server.")] = None,
    coordinator: Annotated[
        str | None,
        typer.Option("--coordinator", metavar="HOST:PORT", help="The processes run on several machines, one on each."),
    ] = None,
    process_id: Annotated[int, typer.Option("--process-id", help="The number of this process; 0 coordinates.")] = 0,
    as_json: Json = False,
) -> None:
    """Train as the experiment file says. Writes a run folder with model, metrics and report."""
    from tacit.engine.supervisor import MachinePlace, run_shared
    from tacit.planning.plan import plan

    planned = plan(experiment, changes)
    machine = None if coordinator is None else MachinePlace(coordinator, process_id)
    if machine is None or process_id == 0:
        train(planned, out=out, resume=resume, baselines=baselines, mlflow=mlflow, as_json=as_json, machine=machine)
    else:
        run_shared(planned, {}, Bars(console), machine)
        show_line(f"process {process_id} has ended; process 0 has the run folder")


def train(
    experiment: Plan,
    *,
    out: Path | None,
    resume: Path | None = None,
    baselines: bool | tuple[str, ...] = False,
    mlflow: str | None = None,
    as_json: bool = False,
    machine: MachinePlace | None = None,
) -> None:
    from tacit import api

    if mlflow is not None:
        from tacit.engine.portable import optional
        from tacit.mlflow import log

        optional("mlflow", "mlflow")  # missing packages are reported before training
    progress = None if as_json else Bars(console)
    finished = api.trained(
        experiment, out=out, resume=resume, baselines=baselines, progress=progress, coordinator=machine
    )
    if mlflow is not None:
        log(finished, mlflow)
    show_finished(finished, as_json)


def plan(
    experiment: Experiment,
    changes: Changes = [],  # noqa: B006
    epsilon: Annotated[
        float | None, typer.Option("--epsilon", help="Solve for the noise of this epsilon, whatever the file says.")
    ] = None,
    sweeps: Annotated[list[str], typer.Option("--sweep", metavar="name=values", help=SWEEP_HELP)] = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="The page of a sweep.")] = None,
    as_json: Json = False,
) -> None:
    """Show the guarantees and the noise of an experiment. Reads no data."""
    from tacit.planning.experiment import read_experiment
    from tacit.planning.plan import plan as make
    from tacit.planning.preview import outlook

    found, folder = read_experiment(experiment, changes, epsilon), experiment.resolve().parent
    if sweeps:
        _sweep(found, sweeps, folder, out or Path(f"{experiment.stem}-sweep.html"), as_json)
        return
    shown = outlook(make(found, folder=folder))
    show_json(shown.as_dict()) if as_json else show_outlook(shown)


def _sweep(experiment: Sections, sweeps: list[str], folder: Path, file: Path, as_json: bool) -> None:
    from tacit.planning.sweep import sweep
    from tacit.report import sweep_page

    with errors.status("planning") as status:
        found = sweep(experiment, sweeps, folder, report=lambda done, total: status.update(f"{done} of {total} points"))
    page = sweep_page(found, file)
    if as_json:
        show_json({**found.as_dict(), "report": str(page)})
        return
    show_sweep(found)
    show_line(f"report  {page}")


def methods(as_json: Json = False) -> None:
    """List all methods: protected unit, views, clip, noise, exchanges, paper."""
    from tacit.exchange import EXCHANGES
    from tacit.methods import METHODS, Info
    from tacit.planning.claims import exchanges_for
    from tacit.privacy import View

    def views(info: Info) -> list[str]:
        """Views of its exchanges that the method does not trust."""
        if not info.private:
            return []
        known = dict.fromkeys(view for name in exchanges_for(info) for view in EXCHANGES[name]().reveals)
        return [view for view in known if View.parse(view).kind not in info.trusts]

    rows: list[dict[str, Any]] = [
        {
            "name": info.name,
            "about": info.summary,
            "unit": list(info.units) if info.private else [],
            "views": views(info),
            "clip": info.clips,
            "noise": info.adds,
            "exchanges": list(exchanges_for(info)),
            "paper": info.reference,
        }
        for info in (options.info for options in METHODS.values())
    ]
    if as_json:
        show_json({"methods": rows})
        return
    table = table_of("method", "what it does, whom it protects from whom, who adds noise, exchanges, source")
    for row in rows:
        protects = "no privacy guarantee"
        if row["unit"]:
            protects = f"protects a {' or '.join(row['unit'])} from {', '.join(row['views'])}; noise: {row['noise']}"
        source = f"exchange {', '.join(row['exchanges'])}; {row['paper']}"
        table.add_row(row["name"], f"{row['about']}\n{protects}\n{source}")
    show(table)


def data(
    experiment: Annotated[
        Path, typer.Argument(metavar="EXPERIMENT.toml|TABLE", help="An experiment file, or a table.")
    ],
    changes: Changes = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Describe the data exactly, for the data holder: records per subject, subjects per silo, overlaps; or the columns
    of a table."""
    if experiment.suffix != ".toml":
        from tacit.data.look import look, open_table

        columns = look(open_table(experiment)[0])
        listed = {"columns": [column.as_dict() for column in columns]}
        show_json(listed) if as_json else init_command.show_columns(columns)
        return
    from tacit.data import describe
    from tacit.engine import load_federation
    from tacit.planning.plan import plan

    found = describe(load_federation(plan(experiment, changes)))
    show_json(found) if as_json else show_data(found)


def show_data(found: dict[str, Any]) -> None:
    show("Exact numbers about private data: they stay with the data holder.", "yellow")
    show(
        f"{found['records']:,} training records, {found['test_records']:,} held out, "
        f"{found['subjects']:,} subjects, {len(found['silos'])} silos"
    )
    table = table_of("silo", "records", "subjects", "held out", "label")
    for silo in found["silos"]:
        counts = (f"{silo[key]:,}" for key in ("records", "subjects", "test_records"))
        table.add_row(silo["name"], *counts, _label(silo["label"], found.get("classes") or []))
    show(table)
    _show_histogram("records per subject", found["records_per_subject"])
    _show_histogram("silos per subject", found["silos_per_subject"])


def _label(label: Any, classes: list[str]) -> str:
    """A mean, or records per class (the first few)."""
    if not isinstance(label, list):
        return "" if label is None else f"{label:.3f}"
    shown = [f"{name}: {count:,}" for name, count in zip(classes, label, strict=True)][:5]
    return ", ".join(shown) + (", …" if len(label) > 5 else "")


def _show_histogram(title: str, histogram: dict[str, list[int]]) -> None:
    from tacit.report.local_page import binned

    sizes = histogram[next(key for key in histogram if key != "subjects")]
    labels, counts = binned(sizes, histogram["subjects"])
    most = max(counts, default=0) or 1
    show(f"\n{title}", "bold")
    for name, count in zip(labels, counts, strict=True):
        show(f"{name:>15}  {'█' * round(40 * count / most)} {count:,}", highlight=False)


# ---- the program


COMMANDS = (
    demo,
    init_command.init,
    run,
    plan,
    methods,
    data,
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
    pretty_exceptions_enable=False,
    help="Differentially private federated learning for data about people.",
)
for command in COMMANDS:
    app.command()(command)
app.add_typer(federation_commands.app, name="federation")
app.add_typer(ledger_commands.app, name="ledger")
app.add_typer(model_commands.app, name="model")
app.add_typer(sheet_commands.app, name="sheet")
app.add_typer(study_commands.app, name="study")


def main() -> None:
    """Entry point: errors that Tacit raises on purpose become one line and their exit code."""
    _keep_compilations()
    warnings.showwarning = _show_warning
    try:
        app(prog_name="tacit")  # also as python -m tacit: completion is set up by this name
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
    if issubclass(category, Deprecated | Note):
        warn(str(message))
    else:
        _python_warning(message, category, *where, **options)


_python_warning = warnings.showwarning


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

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
