"""The Gaussian mechanism, exactly; and bisection, the one search of its kind in Tacit.

Releasing a vector of l2 sensitivity S with noise N(0, (nm S)^2 I) is exactly as private as telling N(0, 1) from
N(mu, 1) with mu = 1 / nm: for every epsilon >= 0

    delta(epsilon) = Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu)

(Balle and Wang 2018, Theorem 8; Dong, Roth, Su 2022, Corollary 2.13). Composition, adaptive or not, adds mu^2, so any
number of Gaussian releases is one Gaussian release with mu^2 = sum of 1 / nm_i^2.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

# the smallest step by which a computed root is moved to the safe side, relative and absolute
_SAFE = 1e-12


def log_delta(mu: float, epsilon: float) -> float:
    """ln delta(epsilon); minus infinity where it is smaller than any float."""
    from scipy.special import log_ndtr  # slow to import

    upper = float(log_ndtr(mu / 2 - epsilon / mu))
    lower = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    return upper + math.log(-math.expm1(lower - upper)) if lower < upper else -math.inf


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The smallest delta at ``epsilon``; mu = 0 is no release, mu = infinity no noise."""
    if mu == 0 or epsilon == math.inf:
        return 0.0
    if mu == math.inf:
        return 1.0
    return min(1.0, math.exp(log_delta(mu, epsilon)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon at ``delta``, on the safe side of rounding."""
    if mu == 0 or delta >= 1:
        return 0.0
    if mu == math.inf or delta <= 0:
        return math.inf
    target = math.log(delta)
    if log_delta(mu, 0.0) <= target:
        return 0.0

    def suffices(epsilon: float) -> bool:
        return log_delta(mu, epsilon) <= target

    ends = doubled(suffices, mu * mu / 2 + mu, sys.float_info.max)
    return math.inf if ends is None else bisect(suffices, *ends, relative=_SAFE)[1]


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest mu = 1 / noise_multiplier for which ``delta`` suffices at ``epsilon``: calibration, solved
    exactly."""
    if delta >= 1 or epsilon == math.inf:
        return math.inf
    if delta <= 0:
        return 0.0
    target = math.log(delta)

    def exceeds(mu: float) -> bool:
        return log_delta(mu, epsilon) > target

    ends = doubled(exceeds, 1.0, sys.float_info.max)
    return math.inf if ends is None else bisect(exceeds, *ends, relative=_SAFE)[0]


# -- where a condition that changes once begins to hold ----------------------------------------------------------------


def bisect(
    holds: Callable[[float], bool],
    low: float,
    high: float,
    *,
    relative: float = 0.0,
    absolute: float = 0.0,
    steps: int = 2000,
    geometric: bool = False,
) -> tuple[float, float]:
    """``(low, high)`` around the point from which on ``holds``, which is false at ``low`` and true at ``high``: both
    were evaluated themselves, so that rounding of the search never puts an answer on the wrong side.

    It ends after ``steps`` halvings, or when the ends differ by at most ``relative`` times ``high`` or by ``absolute``.
    ``geometric`` halves the logarithm, for positive ends of different magnitudes.
    """
    for _ in range(steps):
        if high - low <= max(relative * high, absolute):
            break
        middle = math.sqrt(low * high) if geometric else (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low, high


def doubled(holds: Callable[[float], bool], high: float, most: float, low: float = 0.0) -> tuple[float, float] | None:
    """Ends for :func:`bisect`: ``high`` is doubled until it ``holds``. None where it does not hold up to ``most``."""
    while not holds(high):
        low, high = high, 2 * high
        if high > most:
            return None
    return low, high


def smallest_integer(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The smallest integer from ``low`` to ``high`` for which ``holds``; it is taken to hold for ``high``.

    Trials are near ``low`` first where ``high`` is much larger: a trial often costs more the larger it is.
    """
    low -= 1  # from here on: does not hold at low, holds at high
    while high - low > 1:
        near = max(low, 1)
        middle = math.isqrt(near * high) if high > 4 * near else (low + high) // 2
        middle = min(max(middle, low + 1), high - 1)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
