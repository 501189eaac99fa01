"""The Gaussian mechanism, exactly.

Releasing a vector of l2 sensitivity S with noise N(0, (nm S)^2 I) is exactly as private as telling N(0, 1) from
N(mu, 1) with mu = 1 / nm: for every epsilon >= 0

    delta(epsilon) = Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu)

(Balle and Wang 2018, Theorem 8; Dong, Roth, Su 2022, Corollary 2.13). Composition, adaptive or not, adds mu^2, so any
number of Gaussian releases is one Gaussian release with mu^2 = sum of 1 / nm_i^2.
"""

from __future__ import annotations

import math
import sys

from scipy.special import log_ndtr

from tacit.privacy.accounting.events import Event, Gaussian, Nothing, Unprotected
from tacit.privacy.bisection import bisect, doubled

# the smallest step by which a computed root is moved to the safe side, relative and absolute
_SAFE = 1e-12


def log_delta(mu: float, epsilon: float) -> float:
    """ln delta(epsilon); minus infinity where it is smaller than any float."""
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


def gaussian_event(mu: float) -> Event:
    """The event of a Gaussian view that moves by ``mu`` standard deviations."""
    if mu == 0:
        return Nothing()
    return Unprotected("no noise hides this change from the view") if math.isinf(mu) else Gaussian(1 / mu)
