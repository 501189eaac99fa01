"""``tacit report``, ``compare`` and ``audit``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tacit.ui.arguments import Changes, Experiment, Json, RunFolder
from tacit.ui.console import Bars, console, show, show_json, show_line, show_rows, table_of

if TYPE_CHECKING:
    from tacit.auditing import Audit


def report(run: RunFolder, as_json: Json = False) -> None:
    """Regenerate the report of a run and print its path."""
    from tacit import report as pages

    page = pages.write(run)
    show_json({"report": str(page)}) if as_json else show_line(f"report  {page}")


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN RUN…", help="Run folders.")],
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="The page to write.")] = None,
    as_json: Json = False,
) -> None:
    """Compare runs: print a table and write a page with curves."""
    from tacit import report as pages
    from tacit.engine.folder import plain_values

    table = pages.comparison_table(runs)
    page = pages.compare(runs, out)
    if as_json:
        rows = plain_values(table.reset_index().to_dict("records"))
        show_json({"runs": rows, "verdict": pages.verdict(runs), "report": str(page)})
        return
    shown = table_of("", *map(str, table.index))  # a run is a column: two or three fit any terminal
    for name in table.columns:
        shown.add_row(str(name), *map(_cell, table[name]))
    show(shown)
    show(pages.verdict(runs), highlight=False)
    show_line(f"report  {page}")


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4g}"
    return str(value)


def audit(
    experiment: Experiment,
    changes: Changes = [],  # noqa: B006
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="The new folder.")] = None,
    of: Annotated[
        Path | None, typer.Option("--of", metavar="RUN", help="A run of this experiment; its report gets a section.")
    ] = None,
    canaries: Annotated[int, typer.Option("--canaries", help="Artificial units, each included with odds 1:1.")] = 1000,
    runs: Annotated[int, typer.Option("--runs", help="Runs of the method alone, with the unit and without.")] = 1500,
    confidence: Annotated[float, typer.Option("--confidence", help="Confidence of bounds from canaries.")] = 0.95,
    as_json: Json = False,
) -> None:
    """Attack an experiment: compare empirical lower bounds on epsilon with the proved upper bound."""
    from tacit import api
    from tacit.planning.plan import plan

    planned, progress = plan(experiment, changes), None if as_json else Bars(console)
    found = api.audit(planned, out=out, of=of, progress=progress, canaries=canaries, runs=runs, confidence=confidence)
    show_json({**found.as_dict(), "report": str(found.page)}) if as_json else show_audit(found)


def show_audit(found: Audit) -> None:
    """What was tried, what was found, and what is claimed; red if a lower bound exceeds a claim."""
    from tacit.report.audit_page import VERDICTS, canary_rows, mechanism_rows

    show(f"{found.method}: epsilon at delta {found.delta:g} for one {found.unit}", "bold")
    show_rows(canary_rows(found.as_dict()))
    show_rows(mechanism_rows(found.as_dict()))
    show(VERDICTS[found.verdict][1], "red" if found.verdict in ("refuted", "doubtful") else None)
    for view in found.refuted_as_published:
        show(f"{view}: a lower bound exceeds the published epsilon.", "red")
    show(f"{found.seconds:.0f} s", "dim")
    show_line(f"report  {found.page}")
