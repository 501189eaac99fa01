"""``tacit audit``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tacit.ui.arguments import Changes, Experiment, Json
from tacit.ui.console import console, show, show_json, show_line, table_of

if TYPE_CHECKING:
    from tacit.audit import Audit


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
    from tacit.ui.progress import Bars

    progress = None if as_json else Bars(console)
    planned = plan(experiment, changes)
    found, page = api.audit(
        planned, out=out, of=of, progress=progress, canaries=canaries, runs=runs, confidence=confidence
    )
    show_json({**found.as_dict(), "report": str(page)}) if as_json else show_audit(found, page)


def show_audit(found: Audit, page: Path) -> None:
    """What was tried, what was found, and what is claimed; red if a lower bound exceeds a claim."""
    from tacit.privacy.statement import epsilon_text
    from tacit.report.audit_page import VERDICTS, lower

    published = {str(line.view): line.as_published for line in found.guarantees}
    show(f"{found.method}: epsilon at delta {found.delta:g} for one {found.unit}", "bold")
    table = table_of(
        "canaries", "seen", "view", "right", "at least", "on a Gaussian curve", "estimate", "proved", "as published"
    )
    for line in found.canaries:
        claim = published.get(line.view)
        beaten = claim is not None and line.epsilon > claim.epsilon
        table.add_row(
            line.kind,
            line.seen,
            line.view,
            f"{line.right}/{line.guesses}",
            lower(line.epsilon),
            lower(line.fdp_epsilon),
            lower(line.estimate),
            epsilon_text(line.proved),
            "–" if claim is None else epsilon_text(claim.epsilon),
            style="red" if line.refuted or line.epsilon > line.proved or beaten else None,
        )
    if found.canaries:
        show(table)
    alone = table_of("method alone", "runs", "at least", "Gaussian", "proved", "hits", "allowed")
    for one in found.mechanism:
        alone.add_row(
            one.view,
            f"{one.found.runs:,}",
            lower(one.found.epsilon),
            lower(one.found.gaussian_epsilon),
            epsilon_text(one.proved),
            f"{one.found.hits:.3f}",
            f"{one.found.most_hits:.3f}",
            style="red" if one.found.refuted else None,
        )
    show(alone)
    show(VERDICTS[found.verdict][1], "red" if found.verdict in ("refuted", "doubtful") else None)
    for view in found.refuted_as_published:
        show(f"{view}: a lower bound exceeds the published epsilon.", "red")
    show(f"{found.seconds:.0f} s", "dim")
    show_line(f"report  {page}")
