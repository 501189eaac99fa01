"""The commands. Each prints for people, or one JSON object with ``--json``.

Exit 0 on success, 2 for a mistake that the user can mend (one line: field, value, fix), 3 where a budget or a policy
forbids the work, 130 after Ctrl-C (the run folder is usable). Heavy imports happen inside the commands, so that
``--help`` answers at once.
"""

from __future__ import annotations

import json
import math
import os
import sys
from importlib.metadata import version as installed_version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tacit.errors import Forbidden, TacitError, UserError

if TYPE_CHECKING:
    from tacit.config import Plan
    from tacit.engine import Run

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Differentially private federated learning for data about people.",
)
# Names and values come from people: square brackets in them are text, never markup.
console = Console(markup=False)
errors = Console(stderr=True, soft_wrap=True, markup=False)

Experiment = Annotated[Path, typer.Argument(metavar="EXPERIMENT.toml", help="The experiment file.")]
Changes = Annotated[list[str], typer.Option("--set", metavar="a.b=value", help="Replace one setting; may be repeated.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object for machines.")]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="The run folder to make.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]


def main() -> None:
    """Entry point: errors that Tacit raises on purpose become one line and their exit code."""
    _keep_compilations()
    try:
        app()
    except TacitError as error:
        _complain(str(error))
        sys.exit(error.exit_code)
    except OSError as error:
        _complain(f"system: {error}; mend it, then go on with --resume if a run folder was made")
        sys.exit(2)
    except MemoryError:
        _complain("memory: the experiment needs more than there is; lower counts, epochs, batch_size or the model")
        sys.exit(2)


def _show_version(wanted: bool) -> None:
    if wanted:
        console.print(f"tacit {installed_version('tacit')}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Print the version.")]


@app.callback()
def _program(version: Version = False) -> None:
    """Differentially private federated learning for data about people."""


@app.command()
def demo(out: Out = None, as_json: Json = False) -> None:
    """The built-in experiment, from records to report, in under a minute."""
    from tacit.config import plan

    experiment = plan(Path(str(files("tacit") / "demo.toml")))
    _run(experiment, out=out, baselines=True, as_json=as_json)


@app.command()
def run(
    experiment: Experiment,
    changes: Changes = [],  # noqa: B006 - typer reads the default, nobody changes it
    out: Out = None,
    resume: Annotated[Path | None, typer.Option("--resume", metavar="RUN", help="Go on with this run.")] = None,
    baselines: Annotated[bool, typer.Option("--baselines", help="Also train silo-only and pooled.")] = False,
    as_json: Json = False,
) -> None:
    """Train as the experiment says; leaves a run folder with model, metrics and report."""
    from tacit.config import plan

    _run(plan(experiment, changes), out=out, resume=resume, baselines=baselines, as_json=as_json)


@app.command()
def plan(experiment: Experiment, changes: Changes = [], as_json: Json = False) -> None:  # noqa: B006
    """What would be promised, to whom, at what noise: no data is read."""
    from tacit.config import plan as make

    made = make(experiment, changes)
    guarantees = [guarantee.as_dict() for guarantee in made.guarantees()]
    if as_json:
        facts = {"title": made.title, "method": made.method.name, "noise_multiplier": made.noise_multiplier}
        _print_json({**facts, "guarantees": guarantees})
        return
    console.print(made.title, style="bold")
    console.print(f"{made.label}: {made.method.about}; {made.rounds} rounds")
    _print_guarantees(guarantees)


@app.command()
def methods(as_json: Json = False) -> None:
    """Every method: what it clips, its noise, whom it can protect, the exchanges it uses, its paper."""
    from tacit.methods import METHODS

    rows: list[dict[str, Any]] = [
        {
            "name": method.name,
            "about": method.about,
            "unit": list(method.units) if method.noise_place != "none" else [],
            "clip": method.clips,
            "noise": method.noise_place,
            "exchanges": list(method.exchanges),
            "paper": method.paper,
        }
        for method in METHODS.values()
    ]
    if as_json:
        _print_json({"methods": rows})
        return
    table = _table("method", "protects", "noise", "exchange", "what it does", "source")
    for row in rows:
        protects = ", ".join(row["unit"]) or "nobody"
        table.add_row(row["name"], protects, row["noise"], ", ".join(row["exchanges"]), row["about"], row["paper"])
    console.print(table)


@app.command()
def data(experiment: Experiment, changes: Changes = [], as_json: Json = False) -> None:  # noqa: B006
    """What the data looks like, exactly: for those who hold it. Records per subject, subjects per silo, overlaps."""
    from tacit.config import plan
    from tacit.data import describe
    from tacit.engine import load_federation

    picture = describe(load_federation(plan(experiment, changes)))
    if as_json:
        _print_json(picture)
    else:
        _print_data(picture)


@app.command()
def report(run: RunFolder, as_json: Json = False) -> None:
    """Write the page of a run anew and say where it is."""
    from tacit.report import write

    page = write(run)
    _print_json({"report": str(page)}) if as_json else console.print(f"report  {page}", soft_wrap=True)


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN…", help="Run folders.")],
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="The page to write.")] = None,
    as_json: Json = False,
) -> None:
    """Runs side by side: a table here, a page with curves beside the first run."""
    from tacit import report as pages

    table = pages.comparison_table(runs)
    page = pages.compare(runs, out)
    if as_json:
        records = table.reset_index().to_dict("records")
        rows = [{name: _json_value(value) for name, value in record.items()} for record in records]
        _print_json({"runs": rows, "report": str(page)})
        return
    shown = _table("", *map(str, table.index))  # a run is a column: two or three fit any terminal
    for name in table.columns:
        shown.add_row(str(name), *map(_cell, table[name]))
    console.print(shown)
    console.print(f"report  {page}", soft_wrap=True)


def _run(
    experiment: Plan, *, out: Path | None, resume: Path | None = None, baselines: bool = False, as_json: bool = False
) -> None:
    from tacit import api
    from tacit.progress import Bars

    progress = None if as_json else Bars(console)
    finished = api.run(experiment, out=out, resume=resume, baselines=baselines, progress=progress)
    if as_json:
        keys = ("title", "run", "status", "rounds", "guarantees", "noise_multiplier", "metrics", "baselines", "seconds")
        _print_json({**{key: finished.result[key] for key in keys}, "report": str(finished.report)})
    else:
        _print_run(finished)
    if finished.result["status"] == "stopped":
        raise typer.Exit(130)
    if finished.result["status"] == "budget":
        done = finished.result["rounds"]
        raise Forbidden(
            "privacy.budget",
            f"round {done + 1} of {finished.result['rounds_planned']} would exceed it",
            f"the model of round {done} is kept in {finished.path}; plan fewer rounds or more noise",
        )
    if finished.result["status"] == "diverged":
        problem = f"the model was no longer finite by round {finished.result['rounds']}"
        raise UserError("train", problem, "lower method.local_learning_rate or train.server_learning_rate")


def _print_run(finished: Run) -> None:
    """The outcome in a few lines: metrics beside the references, what is promised, where the page is."""
    result = finished.result
    if result["status"] == "stopped":
        text = f"stopped after round {result['rounds']}; go on with --resume {finished.path}"
        console.print(text, style="yellow", soft_wrap=True)
    columns = {result["method"]["label"]: result["metrics"]}
    columns.update({name: entry["metrics"] for name, entry in result["baselines"].items()})
    table = _table("held-out", *columns)
    for metric in result["metrics"]:
        values = [numbers.get(metric) for numbers in columns.values()]
        table.add_row(metric, *("–" if value is None else f"{value:.4f}" for value in values))
    console.print(table)
    _print_guarantees(result["guarantees"])
    console.print(f"run     {finished.path}", soft_wrap=True)
    console.print(f"report  {finished.report}", soft_wrap=True)


def _print_guarantees(guarantees: list[dict[str, Any]]) -> None:
    if all(guarantee["epsilon"] == "inf" for guarantee in guarantees):
        views = ", ".join(guarantee["view"] for guarantee in guarantees)
        reason = guarantees[0]["assumptions"][0] if guarantees else ""
        console.print(f"No privacy guarantee: epsilon = infinity for {views} ({reason})", style="red")
        return
    table = _table("protects", "from", "epsilon", "delta", "relation", "sampling")
    for guarantee in guarantees:
        table.add_row(*(str(guarantee[key]) for key in ("unit", "view", "epsilon", "delta", "relation", "sampling")))
    console.print(table)


def _print_data(picture: dict[str, Any]) -> None:
    console.print("Exact numbers about private data: they stay with the data holder.", style="yellow")
    console.print(
        f"{picture['records']:,} training records, {picture['test_records']:,} held out, "
        f"{picture['subjects']:,} subjects, {len(picture['silos'])} silos"
    )
    table = _table("silo", "records", "subjects", "held out", "label")
    for silo in picture["silos"]:
        counts = (f"{silo[key]:,}" for key in ("records", "subjects", "test_records"))
        table.add_row(silo["name"], *counts, _label(silo["label"], picture.get("classes") or []))
    console.print(table)
    _print_histogram("records per subject", picture["records_per_subject"])
    _print_histogram("silos per subject", picture["silos_per_subject"])


def _label(label: Any, classes: list[str]) -> str:
    """A mean, or records per class (the first few)."""
    if not isinstance(label, list):
        return "" if label is None else f"{label:.3f}"
    shown = [f"{name}: {count:,}" for name, count in zip(classes, label, strict=True)][:5]
    return ", ".join(shown) + (", …" if len(label) > 5 else "")


def _print_histogram(title: str, histogram: dict[str, list[int]]) -> None:
    """A few lines of bars: at most a dozen rows, values grouped where there are more."""
    values, counts = histogram[next(key for key in histogram if key != "subjects")], histogram["subjects"]
    step = -(-len(values) // 12)
    ends = [(i, min(i + step, len(values))) for i in range(0, len(values), step)]
    groups = [(values[i], values[j - 1], sum(counts[i:j])) for i, j in ends]
    most = max((count for *_, count in groups), default=1)
    console.print(f"\n{title}", style="bold")
    for low, high, count in groups:
        name = f"{low:,}" if low == high else f"{low:,}–{high:,}"
        console.print(f"{name:>15}  {'█' * max(1, round(40 * count / most))} {count:,}", highlight=False)


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for i, column in enumerate(columns):
        table.add_column(column, no_wrap=i == 0)
    return table


def _json_value(value: Any) -> Any:
    """Infinity as the word "inf", an unknown number as null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "inf"
    return value


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4g}"
    return str(value)


def _print_json(content: Any) -> None:
    print(json.dumps(content, indent=1))


def _complain(line: str) -> None:
    errors.print(f"error  {' '.join(line.split())}", style="red", highlight=False)


def _keep_compilations() -> None:
    """Compiled kernels are kept between commands, unless the environment says where (or that) they are."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tacit" / "compiled"
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(cache))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")


if __name__ == "__main__":
    main()
