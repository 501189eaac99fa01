"""Metrics of a model on held-out records: overall, per silo, and by how much a person contributed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
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

    ``errors``: the standard errors that noise added, where the metrics are paid for. ``over_silos``: ranking metrics
    averaged over silos, each weighted by its held-out records: what models of one silo each can be compared by.
    ``shared``: where silos have models of their own, the scores of the shared model on the same records.
    """

    overall: Numbers
    silos: dict[str, Numbers]
    errors: Numbers | None = None
    over_silos: Numbers | None = None
    shared: Scores | None = None

    def as_dict(self) -> dict[str, Any]:
        others = {"standard_errors": self.errors, "over_silos": self.over_silos}
        known = {name: numbers for name, numbers in others.items() if numbers is not None}
        shared = {} if self.shared is None else {"shared": self.shared.as_dict()}
        return {"metrics": self.overall, "silos": self.silos, **known, **shared}


def score(task: Task, outputs: np.ndarray, records: Records, silo_names: tuple[str, ...], per_silo: bool) -> Scores:
    """``outputs [records, k]`` against the labels."""
    overall = _metrics(task, outputs, records.labels, np.ones(len(records), bool))
    if not per_silo:
        return Scores(overall, {})
    silos = {name: _metrics(task, outputs, records.labels, records.silo == k) for k, name in enumerate(silo_names)}
    return Scores(overall, silos, over_silos=_over_silos(silos, records))


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


def of_own_models(scores: Scores) -> Scores:
    """Where every silo has a model of its own, ranking metrics over all records compare scores of different models:
    replaced by the silos' own, weighted by their records."""
    return replace(scores, overall={**scores.overall, **(scores.over_silos or {})})


def _over_silos(silos: Mapping[str, Numbers], records: Records) -> Numbers:
    counts = np.bincount(records.silo, minlength=len(silos))
    averages: Numbers = {}
    for metric in sorted(RANKING & next(iter(silos.values()), {}).keys()):
        found = [(int(n), silo[metric]) for n, silo in zip(counts, silos.values(), strict=True)]
        known = [(n, value) for n, value in found if value is not None]
        total = sum(n for n, _ in known)
        averages[metric] = sum(n * value for n, value in known) / total if total else None
    return averages


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
