"""Private local training: steps along clipped, noised gradients of Poisson batches, as one compiled loop.

What a batch gives is a sum of whole steps of a grid, and the noise is rounded to whole steps before it is added
(``exact_sums.py``): the step that follows is computed from the noisy integers alone.

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

from tacit.kernels.batches import Sampled
from tacit.kernels.clipped_sum import clipped_gradient_sum
from tacit.kernels.exact_sums import (
    COUNT_MARGIN,
    FINEST,
    REACHED,
    Counts,
    Steps,
    bounded,
    clipped,
    noise_steps,
    toward_zero,
)
from tacit.kernels.noise import LARGEST_NORMAL, PIECE, gaussian, nonce_words
from tacit.kernels.training import Work, rows
from tacit.models import Params

# The use of a round's key for the noise on batches; noise on sums over silos uses another number.
BATCH_NOISE = 1
COUNT_NOISE = 2
# The finest step of a count: one entry is below 2^26 of them.
FINEST_COUNT = 2.0**-25
# Rows per pass where a whole batch is clipped at once and no record alone matters.
PASS_ROWS = 256


class StepTally(NamedTuple):
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

    vector      ``[parameters]`` steps of FINEST clips
    divisor     public number by which vector and noise are divided to make a step
    not_finite  ``[]`` int32, contributions that were left out
    counted     ``[1]`` steps, what those below and above the clip count for
    """

    vector: Steps
    divisor: jax.Array | float
    not_finite: jax.Array
    counted: Steps


# (work, model, number of the batch, clip, what is counted) -> what the batch gives
BatchRule = Callable[[Work, Params, jax.Array | int, jax.Array, Counts | None], BatchVector]


def clipped_records(
    work: Work, params: Params, t: jax.Array | int, clip: jax.Array, counts: Counts | None = None
) -> BatchVector:
    """The sum of a batch's clipped record gradients, each times its weight: block by block (``Sampled.blocks``)."""
    batches: Sampled = work.batches
    found = clipped_gradient_sum(
        work.objective,
        params,
        work.frozen,
        work.arrays,
        batches.records,
        batches.weights,
        batches.blocks[t],
        clip,
        counts,
    )
    return BatchVector(found.total, batches.divisor, found.not_finite, found.counted)


def clipped_batch(
    work: Work, params: Params, t: jax.Array | int, clip: jax.Array, counts: Counts | None = None
) -> BatchVector:
    """The gradient of a batch (a sum over a public divisor), clipped as a whole (UserLDP).

    Records are clipped only together: a single one that is not finite takes the whole batch with it, to zero.
    """
    batches: Sampled = work.batches
    index, arrays = batches.records, work.arrays
    start, stop = batches.blocks[t][0], batches.blocks[t][-1]

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
    vector, finite, within = bounded(mean, clip)
    return BatchVector(
        Steps.zeros(vector.shape).added(toward_zero(vector, 1 / (FINEST * clip))),
        1.0,
        (~finite).astype(jnp.int32),
        Steps.zeros((1,)) if counts is None else Steps.zeros((1,)).added(toward_zero(jnp.where(within, *counts))[None]),
    )


def noisy_descend(
    work: Work,
    params: Params,
    rate: float,
    clip: jax.Array,
    rule: BatchRule,
    radius: float | None = None,
    counting: Counting | None = None,
) -> tuple[Params, StepTally]:
    """``params`` after a step ``params -= rate * (vector + noise) / divisor`` for every batch.

    ``radius``: after every step, back into the ball of this l2 norm around zero (projected descent). ``counting``:
    count in every batch what is below the clip.
    """
    batches: Sampled = work.batches
    start, restore = ravel_pytree(params)
    padding = -start.size % PIECE  # holds noise that is not used

    unit = FINEST_COUNT if counting is None else jnp.maximum(FINEST_COUNT, counting.noise * LARGEST_NORMAL / REACHED)
    counts = None if counting is None else _counts(counting.quantile, 1 / unit)

    def counted(t: jax.Array, found: BatchVector) -> jax.Array:
        if counting is None:
            return jnp.float32(0)
        noise = noise_steps(gaussian(batches.key, nonce_words(COUNT_NOISE, t), (1,)), counting.noise, unit)
        return found.counted.added(noise).numbers(unit)[0]

    def step(t: jax.Array, so_far: tuple[jax.Array, StepTally]) -> tuple[jax.Array, StepTally]:
        flat, tally = so_far
        found = rule(work, restore(flat[: start.size]), t, clip, counts)
        more = _doublings(batches.noise[t])
        step = jnp.ldexp(FINEST * clip, more)
        normals = gaussian(batches.key, nonce_words(BATCH_NOISE, t), flat.shape)
        noise = noise_steps(normals, batches.noise[t] * clip, step)
        vector = found.vector.followed_by(Steps.zeros((padding,))).coarser(more).added(noise).numbers(step)
        flat = flat - rate * vector / found.divisor
        tally = StepTally(tally.not_finite + found.not_finite, tally.excess + counted(t, found))
        if radius is not None:
            flat = jnp.pad(clipped(flat[: start.size], radius), (0, padding))
        return flat, tally

    nothing = StepTally(jnp.int32(0), jnp.float32(0))
    flat, tally = jax.lax.fori_loop(0, batches.steps, step, (jnp.pad(start, (0, padding)), nothing))
    return restore(flat[: start.size]), tally


def _counts(quantile: float | jax.Array, scale: float | jax.Array) -> Counts:
    """What is below a clip and what is above count for, in steps of which ``scale`` make 1."""
    return Counts((1 - COUNT_MARGIN) * (1 - quantile) * scale, -(1 - COUNT_MARGIN) * quantile * scale)


def _doublings(noise: jax.Array) -> jax.Array:
    """``exact_sums.doublings`` of a traced noise multiplier: the step in which noise reaches every step of the grid."""
    steps = jnp.maximum(noise, 1e-30) * (LARGEST_NORMAL / FINEST / REACHED)
    return jnp.maximum(jnp.ceil(jnp.log2(steps)), 0.0).astype(jnp.int32)
