"""Sums on a grid: integers of 64 bits as two words of 32, which a compiled function adds without rounding.

What is added up is a whole number of steps of a public grid. Sums are then exact: they do not depend on the order, on
the number of lanes or on the device, and what one contribution adds is what it adds alone. Rounded sums in single
precision have none of this: one record less can move them by several clips (Casacuberta et al. 2022).

Noise is added in whole steps too, before the sum becomes a floating-point number. For an integer S and any X,
``S + round(X) = round(S + X)``: rounded noise is the Gaussian mechanism and a post-processing. A normal in single
precision has 24 digits, so that it reaches every step of the grid only if its largest value has fewer than 2^24 steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from tacit.kernels.noise import LARGEST_NORMAL

#: The finest step of a sum, over the largest entry of a contribution: 16 contributions have 2^24 steps, up to which
#: single precision adds integers exactly, and 1,024 have 2^30. Rounded noise hides as much on any grid (see above); a
#: finer one only rounds less.
FINEST = 2.0**-20
#: Noise reaches every step of a grid if no draw is larger than this.
REACHED = 2.0**24


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
