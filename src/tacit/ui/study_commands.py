"""``tacit study``: compare methods over epsilons, seeds and settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from tacit.ui.arguments import Json
from tacit.ui.console import Bars, console, errors, show, show_json, show_line, show_rows

if TYPE_CHECKING:
    from tacit.studies.study import Study


class _RunByDefault(TyperGroup):
    """``tacit study FILE`` is ``tacit study run FILE``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] != "--help":
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_RunByDefault,
    no_args_is_help=True,
    help="Compare methods over epsilons, seeds and settings: `tacit study STUDY.toml` runs a study.",
)
StudyFile = Annotated[Path, typer.Argument(metavar="STUDY.toml", help="The study file.")]
Folder = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Folder of the study; default: in runs/.")]
Jobs = Annotated[int | None, typer.Option("--jobs", metavar="N", help="Number of processes; default: all cores.")]


@app.command()
def run(
    study: StudyFile,
    out: Folder = None,
    jobs: Jobs = None,
    scheduler: Annotated[
        str | None, typer.Option("--scheduler", metavar="ADDRESS", help="Train on the workers of this Dask scheduler.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Train what is not finished yet, and write page, CSV and JSON. Run it again after an interruption."""
    found = _planned(study, out)
    if not as_json:
        _show_plan(found, jobs)
    try:
        found.run(jobs, scheduler, None if as_json else Bars(console))
    except KeyboardInterrupt:
        if not as_json:
            show_line(f"stopped with {found.finished} finished trainings; run the same command to continue", "yellow")
        raise typer.Exit(130) from None
    page = str(found.path / "study.html")
    if as_json:
        show_json({**found.as_dict(), "trained": found.trained, "report": page})
        return
    _show_results(found)
    show_line(f"report  {page}")


@app.command()
def plan(study: StudyFile, out: Folder = None, jobs: Jobs = None, as_json: Json = False) -> None:
    """Show the trainings of a study, an estimate of their time, every epsilon, and what is refused. Reads no data."""
    found = _planned(study, out)
    show_json(_status(found, jobs)) if as_json else _show_plan(found, jobs)


@app.command()
def status(study: StudyFile, out: Folder = None, jobs: Jobs = None, as_json: Json = False) -> None:
    """Show how many trainings are finished, an estimate of the time left, and the results so far."""
    found = _planned(study, out)
    if as_json:
        show_json(_status(found, jobs))
        return
    _show_plan(found, jobs)
    _show_results(found)


def _planned(study: Path, out: Path | None) -> Study:
    from tacit.studies.study import Study

    with errors.status("planning") as shown:
        return Study(study, out, report=lambda done, total: shown.update(f"planned {done} of {total}"))


def _status(study: Study, jobs: int | None) -> dict[str, Any]:
    from tacit.engine.folder import plain_values

    found: dict[str, Any] = plain_values(study.status(jobs))
    return found


def _show_plan(study: Study, jobs: int | None) -> None:
    from tacit.privacy.terms import epsilon_text
    from tacit.studies.study_page import tuning_words

    found = study.status(jobs)
    show(found["title"], "bold")
    rows = [
        {
            "contender": cell["contender"],
            **{name: str(value) for name, value in cell["point"].items()},
            "settings": str(cell["settings"]),
            "proved epsilon": epsilon_text(cell["proved epsilon"]),
        }
        for cell in found["cells"]
    ]
    show_rows([(row, False) for row in rows])
    for refused in found["refused"]:
        show(f"not trained: {refused['contender']} {refused['point'] or ''} {refused['reason']}", "yellow")
    left = f"about {found['minutes_left']:g} minutes left (rough estimate)"
    show_line(f"{found['trainings']} trainings, {found['finished']} finished; {left}")
    show(f"tuning: {found['tuning']}. {tuning_words(found['tuning'])}", "yellow", highlight=False)


def _show_results(study: Study) -> None:
    rows = [
        {
            "contender": one.cell.contender,
            **{name: str(value) for name, value in one.cell.point.items()},
            study.metric: "not finite" if one.mean is None else f"{one.mean:.4f}",
            "deviation": "" if one.deviation is None else f"{one.deviation:.4f}",
            "chosen": ", ".join(f"{key} {value}" for key, value in one.settings.items()),
        }
        for one in study.outcomes()
    ]
    show_rows([(row, False) for row in rows])
