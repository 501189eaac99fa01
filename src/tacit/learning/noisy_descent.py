"""Private local training: steps along clipped, noised gradients of Poisson batches, as one compiled loop.

The noise of step t has standard deviation ``noise_t * clip`` on every number of what the batch gave, whatever it holds,
also if it is empty. What is divided by is public. Where a clip follows a quantile, every batch also gives a noisy count
of what was below it; only the sum of these noisy counts is kept.
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
COUNT_NOISE = 2
# Rows per pass where a whole batch is clipped at once and no record alone matters.
PASS_ROWS = 256


class Tally(NamedTuple):
    """What local training counted.

    not_finite  ``[]`` int32, contributions that were left out as zeros
    excess      ``[]`` float32, over all batches: how many more than the quantile were below the clip, with noise
    """

    not_finite: jax.Array
    excess: jax.Array


class Counting(NamedTuple):
    """How batches count what is below the clip: each entry as ``1 - quantile`` below it and ``-quantile`` above, with
    Gaussian noise of standard deviation ``noise`` on the count of a batch."""

    quantile: float
    noise: float


class BatchVector(NamedTuple):
    """What a batch gave, before noise.

    vector      ``[parameters]``
    divisor     public number by which vector and noise are divided to make a step
    not_finite  ``[]`` int32, contributions that were left out
    entries     ``[]`` how many were clipped
    below       ``[]`` how many of them had a norm within the clip already
    """

    vector: jax.Array
    divisor: jax.Array | float
    not_finite: jax.Array
    entries: jax.Array
    below: jax.Array


BatchRule = Callable[[Work, Params, jax.Array, jax.Array, jax.Array], BatchVector]


def clipped_records(work: Work, params: Params, start: jax.Array, stop: jax.Array, clip: jax.Array) -> BatchVector:
    """The sum of a batch's clipped record gradients, each times its weight."""
    batches: Sampled = work.batches
    found = clipped_gradient_sum(
        work.objective, params, work.frozen, work.arrays, batches.records, batches.weights, start, stop, clip
    )
    return BatchVector(found.total, batches.divisor, found.not_finite, stop - start, found.below)


def clipped_batch(work: Work, params: Params, start: jax.Array, stop: jax.Array, clip: jax.Array) -> BatchVector:
    """The gradient of a batch (a sum over a public divisor), clipped as a whole (UserLDP).

    Records are clipped only together: a single one that is not finite takes the whole batch with it, to zero.
    """
    batches: Sampled = work.batches
    index, arrays = batches.records, work.arrays

    def add_pass(i: jax.Array, total: jax.Array) -> jax.Array:
        places = start + i * PASS_ROWS + jnp.arange(PASS_ROWS)
        real = (places < stop).astype(jnp.float32)
        # padding repeats the batch's own: an overflow in a record of the next batch would spoil this one
        taken = index[jnp.minimum(places, stop - 1)]
        gradient = jax.grad(work.objective.loss)(
            params, work.frozen, rows(arrays.features, taken), arrays.labels[taken], real
        )
        return total + real.sum() * ravel_pytree(gradient)[0]

    passes = (stop - start + PASS_ROWS - 1) // PASS_ROWS
    mean = jax.lax.fori_loop(0, passes, add_pass, jnp.zeros_like(ravel_pytree(params)[0])) / batches.divisor
    lost = ~jnp.isfinite(mean).all()
    within = jnp.linalg.norm(mean) <= clip
    return BatchVector(clipped(mean, clip), 1.0, lost.astype(jnp.int32), jnp.int32(1), within.astype(jnp.int32))


def noisy_descend(
    work: Work,
    params: Params,
    rate: float,
    clip: jax.Array,
    rule: BatchRule,
    radius: float | None = None,
    counting: Counting | None = None,
) -> tuple[Params, Tally]:
    """``params`` after a step ``params -= rate * (vector + noise) / divisor`` for every batch.

    ``radius``: after every step, back into the ball of this l2 norm around zero (projected descent). ``counting``:
    count in every batch what is below the clip.
    """
    batches: Sampled = work.batches
    flat, restore = ravel_pytree(params)

    def counted(t: jax.Array, found: BatchVector) -> jax.Array:
        if counting is None:
            return jnp.float32(0)
        noise = counting.noise * gaussian(batches.key, nonce_words(COUNT_NOISE, t), ())
        return found.below - counting.quantile * found.entries + noise

    def step(t: jax.Array, so_far: tuple[jax.Array, Tally]) -> tuple[jax.Array, Tally]:
        flat, tally = so_far
        found = rule(work, restore(flat), batches.offsets[t], batches.offsets[t + 1], clip)
        noise = batches.noise[t] * clip * gaussian(batches.key, nonce_words(BATCH_NOISE, t), flat.shape)
        flat = flat - rate * (found.vector + noise) / found.divisor
        tally = Tally(tally.not_finite + found.not_finite, tally.excess + counted(t, found))
        return (flat if radius is None else clipped(flat, radius)), tally

    flat, tally = jax.lax.fori_loop(0, batches.steps, step, (flat, Tally(jnp.int32(0), jnp.float32(0))))
    return restore(flat), tally
