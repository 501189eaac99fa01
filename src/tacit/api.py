"""The Python interface: plan, run, audit, compare, and a Run that predicts."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from tacit import notebook, report
from tacit.engine import Progress, Run
from tacit.engine import run as train
from tacit.engine.folder import free_folder, write_json
from tacit.engine.supervisor import MachinePlace
from tacit.errors import DivergedWarning, NotLoggedWarning, UserError
from tacit.planning.experiment import located
from tacit.planning.plan import Plan, plan

if TYPE_CHECKING:
    from tacit.auditing import Audit

# What is called with every run that :func:`run` has finished, by name.
LOGGERS: dict[str, Callable[[Run], object]] = {}

__all__ = ["Plan", "Run", "audit", "compare", "plan", "run"]


def run(
    plan_or_source: Plan | str | Path | Mapping[str, Any],
    frame: Any = None,
    *,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    baselines: bool | tuple[str, ...] = False,
    progress: Progress | None = None,
) -> Run:
    """Train as planned, write the run folder and its report, and return the run.

    ``frame`` is the table, in place of the file at ``data.path``: of pandas, polars, Arrow or another library.
    ``baselines`` also trains each silo alone and all records together, with the same settings; a tuple names the
    methods to train instead. ``resume`` continues an interrupted run of the same experiment. In a notebook, a bar shows
    the progress unless ``progress`` is given.
    """
    result = trained(
        plan(plan_or_source),
        frame,
        out=None if out is None else Path(out),
        resume=None if resume is None else Path(resume),
        baselines=baselines,
        progress=progress or notebook.bars(),
    )
    if result.result["status"] == "diverged":
        problem = "training diverged: the model is not finite; lower the learning rate"
        warnings.warn(problem, DivergedWarning, stacklevel=2)
    for name, logger in LOGGERS.items():
        try:
            logger(result)
        except UserError as error:  # the run is done, and must not be lost
            warnings.warn(f"{result.path} was not logged to {name}: {error}", NotLoggedWarning, stacklevel=2)
    return result


def trained(
    experiment: Plan,
    frame: Any = None,
    *,
    out: Path | None,
    resume: Path | None,
    baselines: bool | tuple[str, ...],
    progress: Progress | None,
    coordinator: MachinePlace | None = None,
) -> Run:
    """Train and write the report; ``result["status"]`` says how the run ended."""
    result = train(
        experiment,
        frame=frame,
        out=out,
        resume=resume,
        baselines=baselines,
        progress=progress,
        coordinator=coordinator,
    )
    report.write(result.path)
    return result


def audit(
    plan_or_source: Plan | str | Path | Mapping[str, Any],
    frame: Any = None,
    *,
    out: str | Path | None = None,
    of: str | Path | None = None,
    progress: Progress | None = None,
    **numbers: Any,
) -> Audit:
    """Attack an experiment and write ``audit.json`` and ``audit.html``; ``page`` of the audit is the latter's path.

    ``of`` is a finished run of the same experiment: its report gets the audit as a section. ``numbers`` are those of
    :func:`tacit.auditing.audit`: canaries, input_canaries, runs, confidence.
    """
    from tacit.auditing import audit as attack

    experiment = plan(plan_or_source)
    folder = _audit_folder(experiment, None if out is None else Path(out), None if of is None else Path(of))
    found = attack(experiment, frame=frame, progress=progress or notebook.bars(), **numbers)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "audit.json", found.as_dict())
    page = report.write_audit(folder)
    if of is not None:
        report.write(folder)
    return replace(found, page=page)


def _audit_folder(experiment: Plan, out: Path | None, of: Path | None) -> Path:
    if of is not None:
        if out is not None:
            raise UserError("conflict", "--out", "is given together with --of", "keep one of the two")
        before = Run.load(of).experiment
        if before.spelled_out() != located(experiment.experiment, experiment.folder).spelled_out():
            problem = f"'{of}' is a run of another experiment"
            raise UserError("wrong-file", "--of", problem, "name the file that it was run from")
        return of
    if out is not None and out.exists():
        raise UserError("exists-already", "--out", f"'{out}' exists", "name a new folder")
    return out or free_folder(f"{experiment.title} audit")


def compare(runs: Sequence[Run | str | Path]) -> pd.DataFrame:
    """Final metrics, guarantees and cost of several runs, one row each."""
    return report.comparison_table([run.path if isinstance(run, Run) else Path(run) for run in runs])
