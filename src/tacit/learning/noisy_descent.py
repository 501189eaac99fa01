"""Private local training: steps along clipped, noised gradients of Poisson batches, as one compiled loop.

The noise of step t has standard deviation ``noise_t * clip`` on every number of what the batch gave, whatever it holds,
also if it is empty. What is divided by is public.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from tacit.learning.clipped_sum import clipped_gradient_sum
from tacit.learning.clipping import clipped
from tacit.learning.descent import Work
from tacit.learning.noise import gaussian, nonce_words
from tacit.learning.objective import rows
from tacit.learning.sampling import Sampled
from tacit.models import Params

# The use of a round's key for the noise on batches; noise on sums over silos uses another number.
BATCH_NOISE = 1
# Rows per pass where a whole batch is clipped at once and no record alone matters.
PASS_ROWS = 256


class Tally(NamedTuple):
    """What local training counted: ``not_finite`` contributions that were left out as zeros."""

    not_finite: jax.Array


class BatchVector(NamedTuple):
    """What a batch gave, before noise.

    vector      ``[parameters]``
    divisor     public number by which vector and noise are divided to make a step
    not_finite  ``[]`` int32, contributions that were left out
    """

    vector: jax.Array
    divisor: jax.Array | float
    not_finite: jax.Array


BatchRule = Callable[[Work, Params, jax.Array, jax.Array, float], BatchVector]


def clipped_records(work: Work, params: Params, start: jax.Array, stop: jax.Array, clip: float) -> BatchVector:
    """The sum of a batch's clipped record gradients, each times its weight."""
    batches: Sampled = work.batches
    found = clipped_gradient_sum(
        work.objective, params, work.frozen, work.arrays, batches.records, batches.weights, start, stop, clip
    )
    return BatchVector(found.total, batches.divisor, found.not_finite)


def clipped_batch(work: Work, params: Params, start: jax.Array, stop: jax.Array, clip: float) -> BatchVector:
    """The gradient of a batch (a sum over a public divisor), clipped as a whole (UserLDP).

    Records are clipped only together: a single one that is not finite takes the whole batch with it, to zero.
    """
    batches: Sampled = work.batches
    index, arrays = batches.records, work.arrays

    def add_pass(i: jax.Array, total: jax.Array) -> jax.Array:
        places = start + i * PASS_ROWS + jnp.arange(PASS_ROWS)
        real = (places < stop).astype(jnp.float32)
        taken = index[jnp.minimum(places, len(index) - 1)]
        gradient = jax.grad(work.objective.loss)(
            params, work.frozen, rows(arrays.features, taken), arrays.labels[taken], real
        )
        return total + real.sum() * ravel_pytree(gradient)[0]

    passes = (stop - start + PASS_ROWS - 1) // PASS_ROWS
    mean = jax.lax.fori_loop(0, passes, add_pass, jnp.zeros_like(ravel_pytree(params)[0])) / batches.divisor
    return BatchVector(clipped(mean, clip), 1.0, (~jnp.isfinite(mean).all()).astype(jnp.int32))


def noisy_descend(
    work: Work, params: Params, rate: float, clip: float, rule: BatchRule, radius: float | None = None
) -> tuple[Params, Tally]:
    """``params`` after a step ``params -= rate * (vector + noise) / divisor`` for every batch.

    ``radius``: after every step, back into the ball of this l2 norm around zero (projected descent).
    """
    batches: Sampled = work.batches
    flat, restore = ravel_pytree(params)

    def step(t: jax.Array, so_far: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        flat, lost = so_far
        found = rule(work, restore(flat), batches.offsets[t], batches.offsets[t + 1], clip)
        noise = batches.noise[t] * clip * gaussian(batches.key, nonce_words(BATCH_NOISE, t), flat.shape)
        flat = flat - rate * (found.vector + noise) / found.divisor
        return (flat if radius is None else clipped(flat, radius)), lost + found.not_finite

    flat, lost = jax.lax.fori_loop(0, batches.steps, step, (flat, jnp.int32(0)))
    return restore(flat), Tally(lost)
