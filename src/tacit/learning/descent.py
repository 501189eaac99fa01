"""Local training: steps of gradient descent on one silo's batches, as one compiled loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from tacit.learning.batches import Batches
from tacit.learning.objective import Arrays, Objective
from tacit.models import Params

Direction = Callable[[Params, Params], Params]


class Work(NamedTuple):
    """One silo's work in one round.

    objective  what is minimised
    frozen     the layers that stay as they are
    arrays     the record arrays
    batches    which records, step by step: what the method's schedule drew
    records    ``[]`` float, how many records the silo holds; 0 for padding, which must contribute zeros
    """

    objective: Objective
    frozen: Params
    arrays: Arrays
    batches: Any
    records: jax.Array


def plain(params: Params, gradient: Params) -> Params:
    """The direction of ordinary gradient descent."""
    return gradient


def descend(work: Work, params: Params, rate: float, direction: Direction = plain) -> Params:
    """``params`` after ``work.batches.steps`` steps ``params -= rate * direction(params, gradient)``.

    The number of steps is data of the loop, not its shape: silos of different sizes share one compilation.
    """
    batches: Batches = work.batches

    def step(t: jax.Array, params: Params) -> Params:
        batch = t % len(batches.sizes)
        gradient = work.objective.batch_gradient(
            params, work.frozen, work.arrays, batches.records[batch], batches.sizes[batch]
        )
        return jax.tree.map(lambda p, d: p - rate * d, params, direction(params, gradient))

    return jax.lax.fori_loop(0, batches.steps, step, params)
