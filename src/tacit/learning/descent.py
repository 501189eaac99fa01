"""Local training: steps of gradient descent on one silo's batches, as one compiled loop."""

from __future__ import annotations

from collections.abc import Callable

import jax

from tacit.learning.batches import Batches
from tacit.learning.objective import Arrays, Objective
from tacit.models import Params

Direction = Callable[[Params, Params], Params]


def plain(params: Params, gradient: Params) -> Params:
    """The direction of ordinary gradient descent."""
    return gradient


def descend(
    objective: Objective,
    params: Params,
    frozen: Params,
    arrays: Arrays,
    batches: Batches,
    rate: float,
    direction: Direction = plain,
) -> Params:
    """``params`` after ``batches.steps`` steps ``params -= rate * direction(params, gradient)``.

    The number of steps is data of the loop, not its shape: silos of different sizes share one compilation.
    """

    def step(t: jax.Array, params: Params) -> Params:
        batch = t % len(batches.sizes)
        gradient = objective.batch_gradient(params, frozen, arrays, batches.records[batch], batches.sizes[batch])
        return jax.tree.map(lambda p, d: p - rate * d, params, direction(params, gradient))

    return jax.lax.fori_loop(0, batches.steps, step, params)
