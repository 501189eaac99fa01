"""Metrics of a model on held-out records: overall, per silo, and by how much a person contributed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.data import Records
from tacit.models import Task

Numbers = dict[str, float | None]

# No metric is computed for fewer held-out records: of one or two, it would show their labels.
FEWEST_RECORDS = 5
RANKING = {"auc", "average_precision", "c_index"}


@dataclass(frozen=True)
class Scores:
    """Metrics by name: over all held-out records, and for each silo's own ones. None where a metric is undefined.

    ``errors``: the standard errors that noise added, where the metrics are paid for.
    """

    overall: Numbers
    silos: dict[str, Numbers]
    errors: Numbers | None = None

    def as_dict(self) -> dict[str, Any]:
        errors = {} if self.errors is None else {"standard_errors": self.errors}
        return {"metrics": self.overall, "silos": self.silos, **errors}


def score(task: Task, outputs: np.ndarray, records: Records, silo_names: tuple[str, ...], per_silo: bool) -> Scores:
    """``outputs [records, k]`` against the labels."""
    silos = {}
    if per_silo:
        for k, name in enumerate(silo_names):
            silos[name] = _metrics(task, outputs, records.labels, records.silo == k)
    return Scores(_metrics(task, outputs, records.labels, np.ones(len(records), bool)), silos)


def by_decile(task: Task, outputs: np.ndarray, records: Records) -> list[dict[str, Any]]:
    """Metrics for people with few to many held-out records, in (up to) ten groups of people of equal size."""
    subjects, inverse, counts = np.unique(records.subject, return_inverse=True, return_counts=True)
    if counts.size == 0 or counts.max() == 1:
        return []
    groups = min(10, len(subjects))
    rank = np.argsort(np.argsort(counts, kind="stable"), kind="stable")
    group_of_row = (rank * groups // len(subjects))[inverse]
    return [
        {
            "decile": g + 1,
            "subjects": int((rank * groups // len(subjects) == g).sum()),
            "records": int((group_of_row == g).sum()),
            "metrics": _metrics(task, outputs, records.labels, group_of_row == g),
        }
        for g in range(groups)
    ]


def over_silos(scores: Scores, records: Records) -> Scores:
    """Where every silo has a model of its own, ranking metrics over all records compare scores of different models:
    replaced by the silos' own, weighted by their records."""
    counts = np.bincount(records.silo, minlength=len(scores.silos))
    overall = dict(scores.overall)
    for metric in RANKING & overall.keys():
        found = [(n, silo[metric]) for n, silo in zip(counts, scores.silos.values(), strict=True)]
        known = [(n, value) for n, value in found if value is not None]
        total = sum(n for n, _ in known)
        overall[metric] = sum(n * value for n, value in known) / total if total else None
    return Scores(overall, scores.silos)


def _metrics(task: Task, outputs: np.ndarray, labels: np.ndarray, rows: np.ndarray) -> Numbers:
    if rows.sum() < FEWEST_RECORDS:
        return dict.fromkeys(task.metrics)
    return {name: _finite(metric(outputs[rows], labels[rows])) for name, metric in task.metrics.items()}


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def shown(numbers: Mapping[str, float | None]) -> str:
    """The first two metrics in a few characters, for progress displays."""
    found = [f"{name} {value:.3f}" for name, value in numbers.items() if value is not None]
    return "  ".join(found[:2])
