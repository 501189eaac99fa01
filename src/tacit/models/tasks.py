"""Tasks: what is minimised and what is reported, for each kind of label.

binary      one logit, sigmoid cross-entropy; labels ``[b]`` 0 or 1
multiclass  one logit per class, softmax cross-entropy; labels ``[b]`` 0 .. classes-1
multilabel  one logit per label, mean of their sigmoid cross-entropies; labels ``[b, labels]`` 0 or 1
real        one number, squared error; labels ``[b]``
survival    one risk score, Cox partial likelihood of the batch; labels ``[b, 2]`` (time, event)

Losses: batches come padded to fixed shapes, with a mask. A masked row never influences a loss or a gradient, whatever
it holds; an empty batch has loss 0 and gradient 0.

Metrics, in plain numpy, take a model's raw outputs (scores, logits: ``[records]`` or ``[records, outputs]``) and the
labels of a whole test set. NaN means that the number is not defined on these records: no record, only one class, no
comparable pair, or a model that has diverged to NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, wraps
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np

from tacit.errors import UserError, nearest
from tacit.models.own_code import invalid, load_own, said

Losses = Callable[[jax.Array, jax.Array], jax.Array]
Loss = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
Metric = Callable[[np.ndarray, np.ndarray], float]


@dataclass(frozen=True, eq=False)
class Task:
    """A loss on batches and metrics on whole test sets.

    name       binary, multiclass, multilabel, real or survival
    outputs    how many numbers the model gives per record
    losses     ``(outputs [b, k], labels [b, ...]) -> [b]``: loss of each record, or None where a record alone has no
               loss (Cox). Methods that clip per record need it.
    loss       ``(outputs [b, k], labels [b, ...], mask [b]) -> scalar``: mean loss of the rows whose mask is 1; 0 for
               an empty mask; never NaN. Cox: mean over the batch's events, see :func:`cox_loss`
    metrics    by name
    headline   the metric that people read first, unless an experiment names another. AUC and balanced accuracy mean the
               same whatever the shares of classes are, so that the choice need not look at them
    """

    name: str
    outputs: int
    losses: Losses | None
    loss: Loss
    metrics: Mapping[str, Metric]
    headline: str


def check_kind(kind: str) -> None:
    """Refuse an unknown kind of label."""
    if kind not in KINDS:
        raise UserError("unknown-name", "data.task", f"unknown kind of label '{kind}'", nearest(kind, KINDS))


@lru_cache(maxsize=64)  # the same task is the same object, so that functions compiled for it are found again
def task_for(
    kind: str, classes: int = 0, class_weights: tuple[float, ...] | None = None, loss: str | None = None
) -> Task:
    """The task for a kind of label; ``classes`` counts for ``multiclass`` and ``multilabel`` only. ``class_weights``:
    what the loss of a record is multiplied with, by its class; metrics know no weights. ``loss``: the name of a loss of
    the user's own, ``(outputs [k], label) -> number``."""
    check_kind(kind)
    if kind in SEVERAL and classes < 2:
        problem = f"a {kind} task with {classes} classes"
        raise UserError("out-of-range", "data.classes", problem, "declare two or more")
    losses, metrics = KINDS[kind]
    outputs = classes if kind in SEVERAL else 1
    if loss is not None:
        losses = _own_losses(kind, outputs, loss)
    if class_weights is not None:
        _check_class_weights(kind, classes, class_weights)
        assert losses is not None
        losses = _weighted(losses, class_weights)
    return Task(
        name=kind,
        outputs=outputs,
        losses=losses,
        loss=cox_loss if losses is None else mean_over_mask(losses),
        metrics=MappingProxyType({metric.__name__: where_defined(metric) for metric in metrics}),
        headline=metrics[0].__name__,
    )


def _own_losses(kind: str, outputs: int, name: str) -> Losses:
    """A loss of the user's own, of one record: it cannot couple records. Traced once, so that a wrong one is found
    before any record is read."""
    if kind == "survival":
        problem = "a record alone has no loss in a survival task"
        raise UserError("not-supported", "model.loss", problem, "leave it out")
    of_one = load_own(name, "model.loss")
    label = {"multilabel": jnp.zeros(outputs, jnp.float32), "real": jnp.float32(0)}.get(kind, jnp.int32(0))
    try:
        found = jax.eval_shape(of_one, jnp.zeros(outputs, jnp.float32), label)
        form = (found.shape, str(found.dtype))
    except Exception as error:
        problem = f"on {outputs} outputs and one label, it raised {said(error)}"
        raise invalid(name, problem, "take the outputs and the label of one record", "model.loss") from error
    if form != ((), "float32"):
        raise invalid(name, f"gave {form[1]} of shape {list(form[0])}", "return one float32 number", "model.loss")
    return jax.vmap(of_one)


def _check_class_weights(kind: str, classes: int, weights: tuple[float, ...]) -> None:
    expected = {"binary": 2, "multiclass": classes}.get(kind)
    if expected is None:
        problem = f"{kind} labels have no classes"
        raise UserError("not-supported", "model.class_weights", problem, "leave it out")
    if len(weights) != expected:
        problem = f"has {len(weights)} numbers for {expected} classes"
        raise UserError(
            "mismatch", "model.class_weights", problem, "give one number per class, in the order of classes"
        )


def _weighted(losses: Losses, weights: tuple[float, ...]) -> Losses:
    """``losses`` times the weight of each record's class."""

    def weighted(outputs: jax.Array, labels: jax.Array) -> jax.Array:
        found = losses(outputs, labels)
        own = labels[:, None].astype(jnp.int32) == jnp.arange(len(weights))
        return found * jnp.sum(jnp.where(own, jnp.asarray(weights, found.dtype), 0.0), axis=1)

    return weighted


def metric_names(kind: str) -> tuple[str, ...]:
    """The metrics of a kind of label; the first is the headline unless an experiment names another."""
    check_kind(kind)
    return tuple(metric.__name__ for metric in KINDS[kind][1])


def higher_is_better(metric: str) -> bool:
    """Whether a larger value of this metric means a better model."""
    known = {known.__name__ for _, metrics in KINDS.values() for known in metrics}
    if metric not in known:
        raise UserError("unknown-name", "metric", f"unknown metric '{metric}'", nearest(metric, sorted(known)))
    return metric not in ("log_loss", "mean_log_loss", "rmse")


def sigmoid_cross_entropy(outputs: jax.Array, labels: jax.Array) -> jax.Array:
    """``log(1 + e^z) - y z`` of each record: ``outputs [b, 1]``, ``labels [b]`` in {0, 1} -> ``[b]``."""
    logits = outputs[:, 0]
    return jax.nn.softplus(logits) - labels.astype(logits.dtype) * logits


def softmax_cross_entropy(outputs: jax.Array, labels: jax.Array) -> jax.Array:
    """``log sum_k e^(z_k) - z_y`` of each record: ``outputs [b, classes]``, ``labels [b]`` -> ``[b]``."""
    # comparing instead of indexing: the gradient of an index is a scatter, which is slow under vmap
    own = labels[:, None] == jnp.arange(outputs.shape[1])
    return jax.nn.logsumexp(outputs, axis=1) - jnp.sum(jnp.where(own, outputs, 0.0), axis=1)


def mean_cross_entropy(outputs: jax.Array, labels: jax.Array) -> jax.Array:
    """The mean over labels of ``log(1 + e^z) - y z``: ``outputs [b, k]``, ``labels [b, k]`` in {0, 1} -> ``[b]``."""
    return jnp.mean(jax.nn.softplus(outputs) - labels.astype(outputs.dtype) * outputs, axis=1)


def squared_error(outputs: jax.Array, labels: jax.Array) -> jax.Array:
    """``(z - y)^2`` of each record: ``outputs [b, 1]``, ``labels [b]`` -> ``[b]``."""
    return (outputs[:, 0] - labels.astype(outputs.dtype)) ** 2


def cox_loss(outputs: jax.Array, labels: jax.Array, mask: jax.Array) -> jax.Array:
    """Negative log partial likelihood of a batch, per event (Cox, ties as in Breslow).

    ``-1/E sum_{i: event} (f_i - log sum_{j: t_j >= t_i} e^(f_j))`` over unmasked rows, ``E`` their number of events:
    the mean over what carries information, so that a step does not shrink with the share of censored records. 0, with
    gradient 0, without an event; a single row is its own risk set and gives 0 as well.

    ``outputs [b, 1]`` risk scores, ``labels [b, 2]`` (time, event), ``mask [b]`` -> scalar.
    """
    keep = mask > 0
    risk = jnp.where(keep, outputs[:, 0], 0.0)
    # before all other times, a masked row is in no other row's risk set
    times = jnp.where(keep, labels[:, 0], -jnp.inf)
    events = jnp.where(keep & (labels[:, 1] > 0), 1.0, 0.0).astype(risk.dtype)
    return jnp.sum(events * (_log_risk_sums(risk, times) - risk)) / jnp.maximum(jnp.sum(events), 1.0)


def _log_risk_sums(risk: jax.Array, times: jax.Array) -> jax.Array:
    """``log sum_{j: t_j >= t_i} e^(f_j)`` for each i: ``[b], [b] -> [b]``.

    A running log-sum-exp from the longest time down, O(b) in memory. A plain loop: as fast as a parallel scan on the
    sizes of batches (1.4 ms for 4,096 rows with gradient, all pairs 74 ms) and quick to compile.
    """

    def add(log_sum: jax.Array, f: jax.Array) -> tuple[jax.Array, jax.Array]:
        log_sum = jnp.logaddexp(log_sum, f)
        return log_sum, log_sum

    order = jnp.argsort(-times)
    # a large negative number instead of minus infinity keeps the gradient finite
    _, running = jax.lax.scan(add, jnp.asarray(-1e30, risk.dtype), risk[order])
    last_at_risk = jnp.searchsorted(-times[order], -times, side="right") - 1
    return running[last_at_risk]


def mean_over_mask(losses: Losses) -> Loss:
    """The mean of ``losses`` over the rows whose mask is 1."""

    def loss(outputs: jax.Array, labels: jax.Array, mask: jax.Array) -> jax.Array:
        keep = mask > 0
        # masked rows become harmless before the loss: 0 times the gradient of an overflow would still be NaN
        outputs = jnp.where(keep[:, None], outputs, 0.0)
        labels = jnp.where(keep.reshape(-1, *(1,) * (labels.ndim - 1)), labels, jnp.zeros_like(labels))
        total = jnp.sum(jnp.where(keep, losses(outputs, labels), 0.0))
        return total / jnp.maximum(jnp.sum(keep), 1).astype(total.dtype)

    return loss


# --- metrics ---


def where_defined(metric: Metric) -> Metric:
    """``metric`` with NaN instead of a number (or an exception) on no records and on outputs that hold a NaN."""

    @wraps(metric)
    def guarded(outputs: np.ndarray, labels: np.ndarray) -> float:
        outputs, labels = np.asarray(outputs, dtype=np.float64), np.asarray(labels)
        if len(labels) == 0 or np.isnan(outputs).any():
            return math.nan
        return float(metric(outputs, labels))

    return guarded


def accuracy(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Share of records whose predicted class is their label; one output means a logit, cut at 0."""
    return float(np.mean(_classes(outputs) == labels))


def balanced_accuracy(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Share of right answers in each class that occurs as a label, averaged over these classes: a model that always
    predicts the same one has 1 / classes, however rare the others are."""
    labels = labels.astype(np.int64)
    right, records = (np.bincount(found) for found in (labels[_classes(outputs) == labels], labels))
    present = records > 0
    return float(np.mean(np.pad(right, (0, len(records) - len(right)))[present] / records[present]))


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


def macro_auc(outputs: np.ndarray, labels: np.ndarray) -> float:
    """The mean of the AUC of each label, over the labels with positive and negative records."""
    found = [auc(outputs[:, k], labels[:, k]) for k in range(labels.shape[1])]
    defined = [one for one in found if not math.isnan(one)]
    return float(np.mean(defined)) if defined else math.nan


def label_accuracy(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Share of right answers over all records and labels; a logit is cut at 0."""
    return float(np.mean((outputs > 0) == (labels > 0)))


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
    # 2TP + FP + FN: all that are labelled plus all that are predicted
    touched = (np.bincount(labels, minlength=size) + np.bincount(predicted, minlength=size))[classes]
    if not touched.all():
        return math.nan
    return float(np.mean(2 * true_positives / touched))


def log_loss(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Mean negative log-likelihood of the labels: sigmoid of one logit, softmax of several."""
    if _width(outputs) == 1:
        logits = outputs.reshape(-1)
        return float(np.mean(np.logaddexp(0.0, logits) - (labels > 0) * logits))
    shifted = outputs - outputs.max(axis=1, keepdims=True)
    own = np.take_along_axis(shifted, labels.astype(np.int64)[:, None], axis=1)[:, 0]
    return float(np.mean(np.log(np.exp(shifted).sum(axis=1)) - own))


def mean_log_loss(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Mean negative log-likelihood of all labels of all records."""
    return float(np.mean(np.logaddexp(0.0, outputs) - (labels > 0) * outputs))


def rmse(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Root of the mean squared error."""
    return float(np.sqrt(np.mean((outputs.reshape(-1) - labels.reshape(-1)) ** 2)))


def r2(outputs: np.ndarray, labels: np.ndarray) -> float:
    """Share of the labels' variance that the model explains; NaN where the labels do not vary."""
    labels = labels.reshape(-1).astype(np.float64)
    variation = np.sum((labels - labels.mean()) ** 2)
    if variation == 0:
        return math.nan
    return 1.0 - float(np.sum((outputs.reshape(-1) - labels) ** 2) / variation)


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


SEVERAL = ("multiclass", "multilabel")  # one output per class
# kind of label -> losses of single records (None: there are none), metrics (the headline first)
KINDS: Mapping[str, tuple[Losses | None, tuple[Metric, ...]]] = MappingProxyType(
    {
        "binary": (sigmoid_cross_entropy, (auc, accuracy, balanced_accuracy, average_precision, f1, log_loss)),
        "multiclass": (softmax_cross_entropy, (balanced_accuracy, accuracy, f1, log_loss)),
        "multilabel": (mean_cross_entropy, (macro_auc, label_accuracy, mean_log_loss)),
        "real": (squared_error, (rmse, r2)),
        "survival": (None, (c_index,)),
    }
)
