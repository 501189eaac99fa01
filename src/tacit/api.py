"""The same from Python as from the command line: plan, run, compare, and a Run that predicts."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from tacit import report
from tacit.config import Plan, plan
from tacit.engine import Progress, Run
from tacit.engine import run as train
from tacit.errors import UserError

__all__ = ["Plan", "Run", "compare", "plan", "run"]


def run(
    plan_or_source: Plan | str | Path | Mapping[str, Any],
    frame: pd.DataFrame | None = None,
    *,
    out: str | Path | None = None,
    resume: str | Path | None = None,
    baselines: bool | tuple[str, ...] = False,
    progress: Progress | None = None,
) -> Run:
    """Train as planned, write the run folder and its report, and return the run.

    ``frame`` is the table, in place of the file at ``data.path``. ``baselines`` also trains each silo alone and all
    records together, with the same settings; names of other methods are trained beside it instead. ``resume`` goes on
    with an interrupted run of the same experiment.
    """
    if frame is not None and not isinstance(frame, pd.DataFrame):
        raise UserError("frame", f"a {type(frame).__name__} is no table", "pass a pandas DataFrame, or set data.path")
    result = trained(
        plan(plan_or_source),
        frame,
        out=None if out is None else Path(out),
        resume=None if resume is None else Path(resume),
        baselines=baselines,
        progress=progress,
    )
    if result.result["status"] == "diverged":
        warnings.warn("training diverged: the model is not finite; lower the learning rate", stacklevel=2)
    return result


def trained(
    experiment: Plan,
    frame: pd.DataFrame | None = None,
    *,
    out: Path | None,
    resume: Path | None,
    baselines: bool | tuple[str, ...],
    progress: Progress | None,
) -> Run:
    """Train and write the report; how it ended, the result says."""
    result = train(experiment, frame=frame, out=out, resume=resume, baselines=baselines, progress=progress)
    report.write(result.path)
    return result


def compare(runs: Sequence[Run | str | Path]) -> pd.DataFrame:
    """Final metrics, guarantees and cost of several runs, one row each."""
    return report.comparison_table([run.path if isinstance(run, Run) else Path(run) for run in runs])
