"""Tasks: what is minimised and what is reported, for each kind of label.

binary      one logit, sigmoid cross-entropy; labels ``[b]`` 0 or 1
multiclass  one logit per class, softmax cross-entropy; labels ``[b]`` 0 .. classes-1
real        one number, squared error; labels ``[b]``
survival    one risk score, Cox partial likelihood of the batch; labels ``[b, 2]`` (time, event)

Batches come padded to fixed shapes, with a mask. A masked row never influences a loss or a gradient, whatever it holds;
an empty batch has loss 0 and gradient 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np

from tacit.errors import UserError, nearest
from tacit.models import metrics

Losses = Callable[[jax.Array, jax.Array], jax.Array]
Loss = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


@dataclass(frozen=True, eq=False)
class Task:
    """A loss on batches and metrics on whole test sets.

    name       binary, multiclass, real or survival
    outputs    how many numbers the model gives per record
    losses     ``(outputs [b, k], labels [b, ...]) -> [b]``: loss of each record, or None where a record alone has no
               loss (Cox). Methods that clip per record need it.
    loss       ``(outputs [b, k], labels [b, ...], mask [b]) -> scalar``: mean loss of the rows whose mask is 1; 0 for
               an empty mask; never NaN. Cox: mean over the batch's events, see :func:`cox_loss`
    metrics    ``name -> (outputs, labels) -> float`` on numpy arrays; NaN where undefined (one class only, no event)
    headline   the metric that people read first
    """

    name: str
    outputs: int
    losses: Losses | None
    loss: Loss
    metrics: Mapping[str, Callable[[np.ndarray, np.ndarray], float]]
    headline: str


@lru_cache(maxsize=64)  # the same task is the same object, so that functions compiled for it are found again
def task_for(kind: str, classes: int = 0) -> Task:
    """The task for a kind of label; ``classes`` counts for ``multiclass`` only."""
    if kind not in KINDS:
        raise UserError("unknown-name", "data.task", f"unknown kind of label '{kind}'", nearest(kind, KINDS))
    if kind == "multiclass" and classes < 2:
        problem = f"a multiclass task with {classes} classes"
        raise UserError("out-of-range", "data.classes", problem, "declare two or more")
    losses, names, headline = KINDS[kind]
    return Task(
        name=kind,
        outputs=classes if kind == "multiclass" else 1,
        losses=losses,
        loss=cox_loss if losses is None else mean_over_mask(losses),
        metrics=MappingProxyType({name: getattr(metrics, name) for name in names}),
        headline=headline,
    )


def sigmoid_cross_entropy(outputs: jax.Array, labels: jax.Array) -> jax.Array:
    """``log(1 + e^z) - y z`` of each record: ``outputs [b, 1]``, ``labels [b]`` in {0, 1} -> ``[b]``."""
    logits = outputs[:, 0]
    return jax.nn.softplus(logits) - labels.astype(logits.dtype) * logits


def softmax_cross_entropy(outputs: jax.Array, labels: jax.Array) -> jax.Array:
    """``log sum_k e^(z_k) - z_y`` of each record: ``outputs [b, classes]``, ``labels [b]`` -> ``[b]``."""
    # comparing instead of indexing: the gradient of an index is a scatter, which is slow under vmap
    own = labels[:, None] == jnp.arange(outputs.shape[1])
    return jax.nn.logsumexp(outputs, axis=1) - jnp.sum(jnp.where(own, outputs, 0.0), axis=1)


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
        labels = jnp.where(keep, labels, jnp.zeros_like(labels))
        total = jnp.sum(jnp.where(keep, losses(outputs, labels), 0.0))
        return total / jnp.maximum(jnp.sum(keep), 1).astype(total.dtype)

    return loss


# kind of label -> losses of single records (None: there are none), metrics, headline
KINDS: Mapping[str, tuple[Losses | None, tuple[str, ...], str]] = MappingProxyType(
    {
        "binary": (
            sigmoid_cross_entropy,
            ("accuracy", "auc", "average_precision", "f1", "log_loss"),
            "accuracy",
        ),
        "multiclass": (softmax_cross_entropy, ("accuracy", "f1", "log_loss"), "accuracy"),
        "real": (squared_error, ("rmse", "r2"), "rmse"),
        "survival": (None, ("c_index",), "c_index"),
    }
)
