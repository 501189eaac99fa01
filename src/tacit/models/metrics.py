"""Metrics on whole test sets, in plain numpy.

Every function takes a model's raw ``outputs`` (scores, logits: ``[records]`` or ``[records, outputs]``) and the labels
in the shape in which records carry them, and gives one float. NaN means that the number is not defined on these
records: no record, only one class, no comparable pair, or a model that has diverged to NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import wraps
from types import MappingProxyType

import numpy as np

from tacit.errors import UserError, nearest

Metric = Callable[[np.ndarray, np.ndarray], float]

# Every metric that a task reports, and whether more of it is better.
DIRECTIONS: Mapping[str, bool] = MappingProxyType(
    {
        "accuracy": True,
        "auc": True,
        "average_precision": True,
        "f1": True,
        "log_loss": False,
        "rmse": False,
        "r2": True,
        "c_index": True,
    }
)


def higher_is_better(metric: str) -> bool:
    """Whether a larger value of this metric means a better model."""
    if metric not in DIRECTIONS:
        raise UserError("unknown-name", "metric", f"unknown metric '{metric}'", nearest(metric, DIRECTIONS))
    return DIRECTIONS[metric]


def _where_defined(metric: Metric) -> Metric:
    """NaN instead of a number (or an exception) on no records and on outputs that hold a NaN."""

    @wraps(metric)
    def guarded(outputs: np.ndarray, labels: np.ndarray) -> float:
        outputs, labels = np.asarray(outputs, dtype=np.float64), np.asarray(labels)
        if len(labels) == 0 or np.isnan(outputs).any():
            return math.nan
        return float(metric(outputs, labels))

    return guarded


@_where_defined
def accuracy(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Share of records whose predicted class is their label; one output means a logit, cut at 0."""
    return float(np.mean(_classes(outputs) == labels))


@_where_defined
def auc(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Area under the ROC curve: the chance that a positive record scores above a negative one, ties counted half."""
    positive = labels > 0
    positives, negatives = positive.sum(), (~positive).sum()
    if positives == 0 or negatives == 0:
        return math.nan
    # Mann-Whitney: sum of the positives' average ranks
    _, group, sizes = np.unique(outputs.reshape(-1), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(sizes) - (sizes - 1) / 2)[group]
    return float((ranks[positive].sum() - positives * (positives + 1) / 2) / (positives * negatives))


@_where_defined
def average_precision(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Precision averaged over the recall gained at each distinct score, not interpolated; NaN without positives."""
    scores, positive = outputs.reshape(-1), labels > 0
    if not positive.any():
        return math.nan
    order = np.argsort(-scores, kind="stable")
    last_of_score = np.append(np.diff(scores[order]) != 0, True)
    hits = np.cumsum(positive[order])[last_of_score]
    picked = np.flatnonzero(last_of_score) + 1
    recall_gained = np.diff(hits, prepend=0) / positive.sum()
    return float(np.sum(recall_gained * hits / picked))


@_where_defined
def f1(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Harmonic mean of precision and recall of the positive class (one output), or its mean over classes (several).

    The mean runs over the classes that occur as a label or as a prediction. For one output NaN where no record is
    positive and none is predicted to be.
    """
    predicted = _classes(outputs)
    labels = labels.astype(np.int64)
    binary = _width(outputs) == 1
    classes = np.array([1]) if binary else np.union1d(labels, predicted)
    size = max(int(labels.max()), int(predicted.max()), 1) + 1
    true_positives = np.bincount(labels[labels == predicted], minlength=size)[classes]
    # 2TP + FP + FN: everyone labelled plus everyone predicted
    touched = (np.bincount(labels, minlength=size) + np.bincount(predicted, minlength=size))[classes]
    if not touched.all():
        return math.nan
    return float(np.mean(2 * true_positives / touched))


@_where_defined
def log_loss(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Mean negative log-likelihood of the labels: sigmoid of one logit, softmax of several."""
    if _width(outputs) == 1:
        logits = outputs.reshape(-1)
        return float(np.mean(np.logaddexp(0.0, logits) - (labels > 0) * logits))
    shifted = outputs - outputs.max(axis=1, keepdims=True)
    own = np.take_along_axis(shifted, labels.astype(np.int64)[:, None], axis=1)[:, 0]
    return float(np.mean(np.log(np.exp(shifted).sum(axis=1)) - own))


@_where_defined
def rmse(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Root of the mean squared error."""
    return float(np.sqrt(np.mean((outputs.reshape(-1) - labels.reshape(-1)) ** 2)))


@_where_defined
def r2(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Share of the labels' variance that the model explains; NaN where the labels do not vary."""
    labels = labels.reshape(-1).astype(np.float64)
    variation = np.sum((labels - labels.mean()) ** 2)
    if variation == 0:
        return math.nan
    return 1.0 - float(np.sum((outputs.reshape(-1) - labels) ** 2) / variation)


@_where_defined
def c_index(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Harrell's concordance: how often the one who dies first had the higher risk score; equal scores count half.

    A pair is comparable when the earlier of the two times is an event; at equal times, when exactly one of them is.
    ``outputs`` are risks (more means sooner), ``labels [records, 2]`` are (time, event). O(n log n).
    """
    risk, times, event = outputs.reshape(-1), labels[:, 0], labels[:, 1] > 0
    # longest survivor first; at equal times the censored (who outlive the dead) first
    order = np.lexsort((event, -times))
    times, event = times[order], event[order]
    rank = np.unique(risk[order], return_inverse=True)[1]
    # records before position `outlived[i]` outlive i: ends before i's first companion in (time, event)
    starts = np.append(True, (times[1:] != times[:-1]) | (event[1:] != event[:-1]))
    outlived = np.maximum.accumulate(np.where(starts, np.arange(len(times)), 0))[event]
    pairs = outlived.sum()
    if pairs == 0:
        return math.nan
    lower = _count_below(rank, outlived, rank[event]).sum()
    not_higher = _count_below(rank, outlived, rank[event] + 1).sum()
    return float((lower + not_higher) / (2 * pairs))


def _count_below(values: np.ndarray, prefix: np.ndarray, bound: np.ndarray) -> np.ndarray:
    """For each query q: how many of ``values[:prefix[q]]`` are below ``bound[q]`` (non-negative integers).

    A wavelet matrix, one pass per bit: at each bit the values are split stably into zeros and ones, and each query
    follows the side of its own bit; on a one it has passed all zeros of its range, which are below its bound.
    """
    counts = np.zeros(len(prefix), dtype=np.int64)
    start, stop = np.zeros_like(prefix), prefix.copy()
    bits = max(int(values.max(initial=0)), int(bound.max(initial=0))).bit_length()
    for bit in reversed(range(bits)):
        ones = (values >> bit) & 1 == 1
        zeros_before = np.concatenate(([0], np.cumsum(~ones)))
        zero_start, zero_stop = zeros_before[start], zeros_before[stop]
        is_one = (bound >> bit) & 1 == 1
        counts += np.where(is_one, zero_stop - zero_start, 0)
        start = np.where(is_one, zeros_before[-1] + start - zero_start, zero_start)
        stop = np.where(is_one, zeros_before[-1] + stop - zero_stop, zero_stop)
        values = np.concatenate((values[~ones], values[ones]))
    return counts


def _width(outputs: np.ndarray) -> int:
    return 1 if outputs.ndim == 1 else outputs.shape[1]


def _classes(outputs: np.ndarray) -> np.ndarray:
    """The predicted class of each record, ``[records]``."""
    classes: np.ndarray = outputs.reshape(-1) > 0 if _width(outputs) == 1 else np.argmax(outputs, axis=1)
    return classes.astype(np.int64)
