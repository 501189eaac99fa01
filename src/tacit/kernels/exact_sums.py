"""Bounded contributions and their exact sum: clipping, and integers of 64 bits as two words of 32.

All clipping of Tacit is here, in two forms. :func:`bounded` scales one vector that is in memory. :func:`clip_factors`
gives the factors for many vectors of which only the norms are known (``clipped_sum`` never computes a dense layer's
gradients). They round in different ways, so that they are not built on each other; both stay MARGIN below the clip.

What is added up is a whole number of steps of a public grid. Sums are then exact: they do not depend on the order, on
the number of lanes or on the device, and what one contribution adds is what it adds alone. Rounded sums in single
precision have none of this: one record less can move them by several clips (Casacuberta et al. 2022).

Noise is added in whole steps too, before the sum becomes a floating-point number. For an integer S and any X,
``S + round(X) = round(S + X)``: rounded noise is the Gaussian mechanism and a post-processing. A normal in single
precision has 24 digits, so that it reaches every step of the grid only if its largest value has fewer than 2^24 steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from tacit.kernels.noise import LARGEST_NORMAL

# A norm is a norm of norms of FAN numbers each. A level rounds by at most 11 units of 2^-24 (a sum of 16 squares 8, the
# root, the largest number divided out and back 3): 6 levels, 16 million numbers, have an error below 4e-6, whatever the
# numbers are. A running sum has no such bound: squares below half a unit of its last digit are lost. So far below the
# bound is clipped, and no rounding lifts a clipped vector above it.
FAN = 16
MARGIN = 4.5e-6
#: The finest step of a sum, over the largest entry of a contribution: 16 contributions have 2^24 steps, up to which
#: single precision adds integers exactly, and 1,024 have 2^30. Rounded noise hides as much on any grid (see above); a
#: finer one only rounds less.
FINEST = 2.0**-20
#: Noise reaches every step of a grid if no draw is larger than this.
REACHED = 2.0**24


def norms(numbers: jax.Array, careful: bool) -> jax.Array:
    """l2 norm of each row's numbers: ``[rows, numbers] -> [rows]``.

    ``careful``: the largest number is divided out before squaring, so that no square overflows or vanishes; otherwise a
    norm beyond 1e19 is infinite. Not finite where a number is not.
    """
    fan = min(numbers.shape[1], FAN)
    width = -(-numbers.shape[1] // fan)
    padded = jnp.pad(numbers, ((0, 0), (0, fan * width - numbers.shape[1])))
    # slices that are added up in pairs: a reduction over an axis takes two to three times as long
    parts = [padded[:, i * width : (i + 1) * width] for i in range(fan)]
    if careful:
        # not beyond 1e36: a compiler may multiply by the inverse, and those of larger numbers are flushed to zero
        largest = jnp.clip(_in_pairs(jnp.maximum, [jnp.abs(part) for part in parts]), 1e-36, 1e36)
        found = largest * jnp.sqrt(_in_pairs(jnp.add, [jnp.square(part / largest) for part in parts]))
    else:
        found = jnp.sqrt(_in_pairs(jnp.add, [jnp.square(part) for part in parts]))
    return found[:, 0] if width == 1 else norms(found, careful=True)


def _in_pairs(combine: Callable[[jax.Array, jax.Array], jax.Array], parts: list[jax.Array]) -> jax.Array:
    """All ``parts`` combined, in as few levels as it takes."""
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [*map(combine, parts[:half], parts[half : 2 * half]), *parts[2 * half :]]
    return parts[0]


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


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Steps:
    """Signed integers of 64 bits: ``low [...]`` and ``high [...]``, both uint32, in two's complement."""

    low: jax.Array
    high: jax.Array

    @classmethod
    def zeros(cls, shape: tuple[int, ...]) -> Steps:
        return cls(jnp.zeros(shape, jnp.uint32), jnp.zeros(shape, jnp.uint32))

    @classmethod
    def of(cls, integers: npt.NDArray[np.int64]) -> Steps:
        words = np.asarray(integers, np.int64).view(np.uint64)
        low, high = words.astype(np.uint32), (words >> np.uint64(32)).astype(np.uint32)
        return cls(jnp.asarray(low), jnp.asarray(high))

    @property
    def size(self) -> int:
        return self.low.size

    def added(self, steps: jax.Array) -> Steps:
        """These and ``steps``, int32 of the same shape."""
        low = self.low + steps.astype(jnp.uint32)
        return Steps(low, self.high + (steps >> 31).astype(jnp.uint32) + (low < self.low).astype(jnp.uint32))

    def plus(self, other: Steps) -> Steps:
        low = self.low + other.low
        return Steps(low, self.high + other.high + (low < self.low).astype(jnp.uint32))

    def followed_by(self, other: Steps) -> Steps:
        """Those ``[n]``, and then ``other [m]``: ``[n + m]``."""
        return Steps(jnp.append(self.low, other.low), jnp.append(self.high, other.high))

    def coarser(self, doublings: jax.Array | int) -> Steps:
        """The same on a grid whose step is 2^doublings (0 to 31) as large, rounded toward zero."""
        negative = self._negative
        size = self._negated(negative)
        more = jnp.asarray(doublings, jnp.uint32)
        low = (size.low >> more) | jnp.where(more > 0, size.high << ((32 - more) & 31), 0)
        return Steps(low, size.high >> more)._negated(negative)

    def numbers(self, step: jax.Array | float) -> jax.Array:
        """As numbers in single precision, for steps of that size."""
        negative = self._negative
        size = self._negated(negative)
        whole = size.high.astype(jnp.float32) * 2.0**32 + size.low.astype(jnp.float32)
        return jnp.where(negative, -whole, whole) * step

    def integers(self) -> npt.NDArray[np.int64]:
        """On the host."""
        low, high = (np.asarray(word).astype(np.uint64) for word in (self.low, self.high))
        return np.asarray((high << np.uint64(32) | low).view(np.int64))

    @property
    def _negative(self) -> jax.Array:
        return self.high >> 31 > 0

    def _negated(self, where: jax.Array) -> Steps:
        low = jnp.where(where, ~self.low + 1, self.low)
        return Steps(low, jnp.where(where, ~self.high + (self.low == 0), self.high))


class Counts(NamedTuple):
    """What something of weight 1 adds to a count, in steps: ``below`` if the norm is within the clip, or ``above``."""

    below: float | jax.Array
    above: float | jax.Array


# What is counted is so far below its public bound that the roundings of weight, scale and product (at most 8) do not
# lift it above.
COUNT_MARGIN = 5e-7


def toward_zero(numbers: jax.Array, scale: jax.Array | float = 1.0) -> jax.Array:
    """``numbers * scale`` as int32, rounded toward zero (as the cast does), so that no norm grows. The cast ends at
    2^31 without a sign: the scale must be chosen so that numbers are smaller."""
    return (numbers * scale).astype(jnp.int32)


def doublings(noise: float, finest: float) -> int:
    """How often the step ``finest`` must be doubled so that normals of standard deviation ``noise`` reach every one."""
    steps = LARGEST_NORMAL * noise / finest
    return max(0, math.ceil(math.log2(steps / REACHED))) if steps > 0 else 0


def noise_steps(normals: jax.Array, std: jax.Array | float, step: jax.Array | float) -> jax.Array:
    """Noise of standard deviation ``std`` in whole steps, int32: the nearest to each of ``std * normals``."""
    return jnp.round(normals * (std / step)).astype(jnp.int32)
