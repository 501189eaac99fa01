"""Local training: steps of gradient descent on one silo's batches, as one compiled loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tacit.kernels.batches import Batches
from tacit.kernels.objective import Arrays, Objective
from tacit.models import Params

Direction = Callable[[Params, Params], Params]


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
