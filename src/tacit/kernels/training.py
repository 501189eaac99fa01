"""Training without privacy: what is minimised, a silo's steps of gradient descent, and the server's step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from tacit.models import Params, Task

if TYPE_CHECKING:
    from tacit.kernels.batches import Batches

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
        self, params: Params, frozen: Params, arrays: Arrays, index: jax.Array, taken: jax.Array
    ) -> Params:
        """Gradient of the mean loss over the first ``taken`` of ``index [capacity]``; zero for an empty batch.

        A batch of more than PASS_ROWS rows is summed up in passes, as many as it really has (a loop bound, not a
        shape), unless the task has no loss per record (Cox), where the whole batch must be seen at once.
        """

        def gradient(index: jax.Array, mask: jax.Array) -> Params:
            weights = mask.astype(jnp.float32)
            return jax.grad(self.loss)(params, frozen, rows(arrays.features, index), arrays.labels[index], weights)

        if self.task.losses is None:
            return gradient(index, jnp.arange(len(index)) < taken)
        return mean_in_passes(gradient, index, taken)


def mean_in_passes(mean: Callable[[jax.Array, jax.Array], Any], index: jax.Array, taken: jax.Array) -> Any:
    """``mean(index, mask)``, a tree of means over the rows whose mask is 1, for the first ``taken`` of ``index
    [capacity]``: at once, or in passes of PASS_ROWS rows whose means are weighted by their rows."""
    if len(index) <= PASS_ROWS:
        return mean(index, jnp.arange(len(index)) < taken)

    def one_pass(i: jax.Array | int) -> tuple[Any, jax.Array]:
        places = i * PASS_ROWS + jnp.arange(PASS_ROWS)
        mask = places < taken
        return mean(index[jnp.minimum(places, len(index) - 1)], mask), mask.sum() / jnp.maximum(taken, 1)

    def add_pass(i: jax.Array, total: Any) -> Any:
        part, share = one_pass(i)
        return jax.tree.map(lambda t, p: t + share * p, total, part)

    passes = (taken + PASS_ROWS - 1) // PASS_ROWS
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


def power_of_two(number: int) -> int:
    """The smallest power of two that is not below ``number``."""
    return 1 << max(0, number - 1).bit_length()


def split_frozen(params: Params, freeze: tuple[str, ...]) -> tuple[Params, Params]:
    """``params`` as (trainable layers, frozen layers)."""
    trainable = {name: layer for name, layer in params.items() if name not in freeze}
    return trainable, {name: params[name] for name in freeze}


def tree_zeros(tree: Any) -> Any:
    """A tree of zeros of the same shapes."""
    return jax.tree.map(jnp.zeros_like, tree)


# --- a silo's steps ---


class Work(NamedTuple):
    """One silo's work in one round.

    objective  what is minimised
    frozen     the layers that stay as they are
    arrays     the record arrays
    batches    which records, step by step: what the method's schedule drew
    records    ``[]`` float, how many records the silo holds; 0 for padding, which must contribute zeros
    step       the step of the grid on which contributions are added up; None where they are not on a grid
    """

    objective: Objective
    frozen: Params
    arrays: Arrays
    batches: Any
    records: jax.Array
    step: jax.Array | float | None = None

    def batch(self, t: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """Batch ``t`` as positions ``[capacity]`` of records and how many of them are real; behind the last batch comes
        the first again.

        Padding repeats the batch's first record, never one of another silo: a masked record cannot move a mean, but an
        overflow in it can still turn a product with 0 into NaN.
        """
        batches: Batches = self.batches
        place = t % jnp.minimum(len(batches.sizes), jnp.maximum(batches.steps, 1))
        index, size = jnp.asarray(batches.records)[place], jnp.asarray(batches.sizes)[place]
        return jnp.where(jnp.arange(len(index)) < size, index, index[0]), size

    def gradient(self, params: Params, t: jax.Array | int) -> Params:
        """Gradient of the mean loss over batch ``t``."""
        return self.objective.batch_gradient(params, self.frozen, self.arrays, *self.batch(t))


Direction = Callable[[Params, Params], Params]


def plain(params: Params, gradient: Params) -> Params:
    """The direction of ordinary gradient descent."""
    return gradient


def descend(work: Work, params: Params, rate: float, direction: Direction = plain) -> Params:
    """``params`` after ``work.batches.steps`` steps ``params -= rate * direction(params, gradient)``."""
    return walk(work, params, rate, lambda own, t: direction(own, work.gradient(own, t)))


def walk(work: Work, params: Params, rate: float, gradient: Callable[[Params, jax.Array], Params]) -> Params:
    """``params`` after ``work.batches.steps`` steps ``params -= rate * gradient(params, t)``.

    The number of steps is data of the loop, not its shape: silos of different sizes share one compilation.
    """
    return jax.lax.fori_loop(0, work.batches.steps, lambda t, own: stepped(own, gradient(own, t), rate), params)


def stepped(params: Params, direction: Params, rate: float | jax.Array) -> Params:
    """``params - rate * direction``."""
    return jax.tree.map(lambda p, d: p - rate * d, params, direction)


# --- the server's step ---

ServerOptimizer = Literal["sgd", "momentum", "adam", "yogi", "adagrad"]

BETA1, BETA2, TAU = 0.9, 0.99, 1e-3  # Reddi et al. 2021, section 5 and appendix D


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ServerStep:
    """How the server turns a mean update into the next model: an optimiser by name, and its rate, which may be traced.

    ``sgd`` with rate 1 is FedAvg; the others treat the negated update as a gradient (Reddi et al. 2021, "Adaptive
    Federated Optimization", algorithm 2). With update d, memory m and v (from 0 and tau^2):

        m = beta1 m + (1 - beta1) d
        v = v + d^2                                     adagrad
        v = v - (1 - beta2) d^2 sign(v - d^2)           yogi
        v = beta2 v + (1 - beta2) d^2                   adam
        params += rate m / (sqrt(v) + tau)

    ``momentum`` is ``m = beta1 m + d; params += rate m``.
    """

    optimizer: ServerOptimizer = field(default="sgd", metadata={"static": True})
    rate: float = 1.0

    def init(self, params: Params) -> Any:
        """The optimiser's memory before the first step: nothing, m, or (m, v)."""
        if self.optimizer == "sgd":
            return ()
        first = tree_zeros(params)
        if self.optimizer == "momentum":
            return first
        return first, jax.tree.map(lambda leaf: jnp.full_like(leaf, TAU**2), params)

    def apply(self, params: Params, memory: Any, update: Params) -> tuple[Params, Any]:
        """The next parameters and memory; ``update`` points where the silos want to go."""
        direction = update
        if self.optimizer == "momentum":
            memory = direction = jax.tree.map(lambda m, d: BETA1 * m + d, memory, update)
        elif self.optimizer != "sgd":
            m = jax.tree.map(lambda m, d: BETA1 * m + (1 - BETA1) * d, memory[0], update)
            v = jax.tree.map(self._second, memory[1], update)
            memory, direction = (m, v), jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + TAU), m, v)
        return jax.tree.map(lambda p, d: p + self.rate * d, params, direction), memory

    def _second(self, v: jax.Array, d: jax.Array) -> jax.Array:
        square = jnp.square(d)
        if self.optimizer == "adagrad":
            return v + square
        if self.optimizer == "yogi":
            return v - (1 - BETA2) * square * jnp.sign(v - square)
        return BETA2 * v + (1 - BETA2) * square
