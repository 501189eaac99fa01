"""What a run says about a model that is of no use: from held-out records, and outside the guarantee as metrics are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tacit.data import Records
from tacit.engine.evaluate import FEWEST_RECORDS
from tacit.models import Task

# Encoded values are of the size of 1 where columns are declared well.
LARGEST_FEATURE = 10.0


def problems(task: Task, outputs: np.ndarray, records: Records, losses: Sequence[float | None]) -> list[str]:
    """What makes a model useless, as far as the held-out records show it.

    losses  the log loss or the error of the model before training, and after each evaluation
    """
    if len(records) < FEWEST_RECORDS:
        return []
    found, labels = [], records.labels
    if task.name in ("binary", "multiclass"):
        counts = np.bincount(labels.astype(np.int64))
        predicted = outputs[:, 0] > 0 if outputs.shape[1] == 1 else outputs.argmax(axis=1)
        if np.count_nonzero(counts) > 1 and len(np.unique(predicted)) == 1:
            found.append("The model predicts the same class for every held-out record.")
    chance = _chance(task, outputs, labels)
    if chance is not None:
        found.append(chance)
    known = [loss for loss in losses if loss is not None]
    if len(known) > 1 and known[-1] > 1.05 * known[0]:
        grew = f"from {known[0]:.4g} to {known[-1]:.4g}"
        found.append(f"The loss grew during training, {grew}: lower the learning rates.")
    largest = float(np.abs(records.features).max(initial=0.0)) if records.features.ndim == 2 else 0.0
    if largest > LARGEST_FEATURE:
        found.append(
            f"An encoded value is above {LARGEST_FEATURE:g}, far from what learning rates are made for: check mean and"
            " scale of the columns in [data.numeric]."
        )
    return found


RANKED = {"binary": "auc", "multilabel": "macro_auc", "survival": "c_index"}  # metrics with 1/2 for a guess


def _chance(task: Task, outputs: np.ndarray, labels: np.ndarray) -> str | None:
    """Whether a model is no better than a guess without a look at the record."""
    metrics = task.metrics
    if task.name in RANKED:
        name = RANKED[task.name]
        value, guess = metrics[name](outputs, labels), 0.5
    elif task.name == "multiclass":
        name, value = "accuracy", metrics["accuracy"](outputs, labels)
        guess = float(np.bincount(labels.astype(np.int64)).max() / len(labels))
    else:
        name, value, guess = "r2", metrics["r2"](outputs, labels), 0.0
    if not math.isfinite(value) or value > guess + 0.02:
        return None
    return f"The model is no better than a guess: {name} {value:.3f}, and {guess:.3f} without a look at the record."
