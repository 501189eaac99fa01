"""Clipping: the bound on one unit's influence that all noise is measured against.

All clipping of Tacit is here, in two forms. :func:`bounded` scales one vector that is in memory. :func:`clip_factors`
gives the factors for many vectors of which only the norms are known (``clipped_sum`` never computes a dense layer's
gradients). They round in different ways, so that they are not built on each other; both stay MARGIN below the clip.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

# A norm is a norm of norms of FAN numbers each. A level rounds by at most 11 units of 2^-24 (a sum of 16 squares 8, the
# root, the largest number divided out and back 3): 6 levels, 16 million numbers, have an error below 4e-6, whatever the
# numbers are. A running sum has no such bound: squares below half a unit of its last digit are lost. So far below the
# bound is clipped, and no rounding lifts a clipped vector above it.
FAN = 16
MARGIN = 4.5e-6


def norms(numbers: jax.Array, careful: bool) -> jax.Array:
    """l2 norm of each row's numbers: ``[rows, numbers] -> [rows]``.

    ``careful``: the largest number is divided out before squaring, so that no square overflows or vanishes; otherwise a
    norm beyond 1e19 is infinite. Not finite where a number is not.
    """
    count = numbers.shape[1]
    if count > FAN:
        numbers = jnp.pad(numbers, ((0, 0), (0, -count % FAN)))
    rows = numbers.reshape(len(numbers), min(count, FAN), -1)  # summing over the middle axis is what is fast
    if careful:
        # not beyond 1e36: a compiler may multiply by the inverse, and those of larger numbers are flushed to zero
        largest = jnp.clip(jnp.abs(rows).max(axis=1), 1e-36, 1e36)
        found = largest * jnp.sqrt(jnp.square(rows / largest[:, None]).sum(axis=1))
    else:
        found = jnp.sqrt(jnp.square(rows).sum(axis=1))
    return found[:, 0] if found.shape[1] == 1 else norms(found, careful=True)


def bounded(vector: jax.Array, clip: float | jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """``vector [numbers]`` with an l2 norm of at most ``clip`` (zero where it is not finite), whether it is finite, and
    whether it was within the clip before (to MARGIN).

    A unit whose local training blew up contributes nothing, so that the sensitivity holds for every data set. The
    largest entry is divided out before squaring, for good: norms beyond the square root of float32's range are clipped,
    not lost.
    """
    most = jnp.abs(vector).max(initial=0.0)
    # at most 1e36: the inverse of more is flushed to zero, and a vector would pass for nothing
    largest = jnp.clip(most, 1e-30, 1e36)
    inverse = 1 / largest
    squares = jnp.square(vector * inverse)
    # sums of FAN: 6 levels round by at most 6 * 15 / 2 units of 2^-24, the root included, and all the rest by at most 8
    while squares.size > 1:
        squares = jnp.pad(squares, (0, -squares.size % FAN)).reshape(FAN, -1).sum(axis=0)
    norm = jnp.sqrt(squares.sum())
    finite = jnp.isfinite(most) & jnp.isfinite(norm)  # a maximum may pass over NaN, a sum does not
    limit = clip * (1 - MARGIN)
    within = largest * norm <= limit
    # one after the other: the product of both may be below float32's range
    first, second = (jnp.where(within, 1.0, factor) for factor in (inverse, limit / norm))
    return jnp.where(finite, vector * first * second, 0.0), finite, finite & within


def clip_factors(lengths: jax.Array, clip: float | jax.Array) -> jax.Array:
    """What vectors of l2 norms ``lengths [rows]`` are multiplied by, so that none exceeds ``clip``: ``[rows]``.

    Zero where a norm is not finite, and where the factor is below float32's normal range: it has too few digits left to
    keep the bound.
    """
    scale = jnp.minimum(1.0, (1 - MARGIN) * clip / jnp.maximum(lengths, 1e-30))
    return jnp.where(jnp.isfinite(lengths) & (scale > 1e-37), scale, 0.0)


def clipped(vector: jax.Array, bound: float | jax.Array) -> jax.Array:
    """``vector [numbers]`` scaled down to an l2 norm of at most ``bound``; zero where it is not finite."""
    return bounded(vector, bound)[0]
