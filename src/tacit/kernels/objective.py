"""What is minimised: a model, a task and the layers that stay as they are, as functions of the trainable parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tacit.models import Params, Task

# Rows per pass where a batch is summed up in pieces: large enough for full speed, small enough for the cache.
PASS_ROWS = 1024
# Records with at least this many numbers are copied row by row.
WIDE_ROW = 128


class Arrays(NamedTuple):
    """The record arrays that kernels index into: ``features [records, ...]`` and ``labels [records, ...]``."""

    features: jax.Array
    labels: jax.Array


@dataclass(frozen=True)
class Objective:
    """The loss of a model on a task. ``frozen`` layers are passed next to the trainable ones and are never
    differentiated.

    apply    ``(params, x) -> outputs``, over the trainable and the frozen layers together
    prepare  what the model computes of records once, before training; None: nothing
    """

    apply: Callable[[Params, jax.Array], jax.Array]
    task: Task
    prepare: Callable[[jax.Array], jax.Array] | None = None

    def loss(
        self, params: Params, frozen: Params, features: jax.Array, labels: jax.Array, mask: jax.Array
    ) -> jax.Array:
        """Mean loss over the rows whose ``mask [rows]`` is 1."""
        return self.task.loss(self.apply({**params, **frozen}, features), labels, mask)

    def batch_gradient(
        self, params: Params, frozen: Params, arrays: Arrays, index: jax.Array, rows: jax.Array
    ) -> Params:
        """Gradient of the mean loss over the first ``rows`` of ``index [capacity]``; zero for an empty batch.

        A batch of more than PASS_ROWS rows is summed up in passes, as many as it really has (a loop bound, not a
        shape), unless the task has no loss per record (Cox), where the whole batch must be seen at once.
        """

        def gradient(index: jax.Array, mask: jax.Array) -> Params:
            return self._gradient(params, frozen, arrays, index, mask)

        if self.task.losses is None:
            return gradient(index, jnp.arange(len(index)) < rows)
        return mean_in_passes(gradient, index, rows)

    def _gradient(self, params: Params, frozen: Params, arrays: Arrays, index: jax.Array, mask: jax.Array) -> Params:
        weights = mask.astype(jnp.float32)
        return jax.grad(self.loss)(params, frozen, rows(arrays.features, index), arrays.labels[index], weights)


def mean_in_passes(mean: Callable[[jax.Array, jax.Array], Any], index: jax.Array, rows: jax.Array) -> Any:
    """``mean(index, mask)``, a tree of means over the rows whose mask is 1, for the first ``rows`` of ``index
    [capacity]``: at once, or in passes of PASS_ROWS rows whose means are weighted by their rows."""
    if len(index) <= PASS_ROWS:
        return mean(index, jnp.arange(len(index)) < rows)

    def one_pass(i: jax.Array | int) -> tuple[Any, jax.Array]:
        places = i * PASS_ROWS + jnp.arange(PASS_ROWS)
        mask = places < rows
        return mean(index[jnp.minimum(places, len(index) - 1)], mask), mask.sum() / jnp.maximum(rows, 1)

    def add_pass(i: jax.Array, total: Any) -> Any:
        part, share = one_pass(i)
        return jax.tree.map(lambda t, p: t + share * p, total, part)

    passes = (rows + PASS_ROWS - 1) // PASS_ROWS
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(one_pass, 0)[0])
    return jax.lax.fori_loop(0, passes, add_pass, nothing)


def rows(array: jax.Array, index: jax.Array) -> jax.Array:
    """``array[index]``: ``[records, ...], [n] -> [n, ...]``, for positions that are within bounds.

    On a CPU the compiler gathers number by number, about 2 ns each; a loop that copies whole rows costs about 0.2 us a
    row. A step on ten images of 28 x 28 takes 18 us instead of 32.
    """
    if math.prod(array.shape[1:]) < WIDE_ROW:
        return array[index]
    rest = (0,) * (array.ndim - 1)

    def copy(i: jax.Array, taken: jax.Array) -> jax.Array:
        row = jax.lax.dynamic_slice(array, (index[i], *rest), (1, *array.shape[1:]))
        return jax.lax.dynamic_update_slice(taken, row, (i, *rest))

    return jax.lax.fori_loop(0, len(index), copy, jnp.zeros((len(index), *array.shape[1:]), array.dtype))


def split_frozen(params: Params, freeze: tuple[str, ...]) -> tuple[Params, Params]:
    """``params`` as (trainable layers, frozen layers)."""
    trainable = {name: layer for name, layer in params.items() if name not in freeze}
    return trainable, {name: params[name] for name in freeze}


def tree_zeros(tree: Any) -> Any:
    """A tree of zeros of the same shapes."""
    return jax.tree.map(jnp.zeros_like, tree)
