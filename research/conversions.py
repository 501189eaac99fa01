"""Classical composition and group privacy: sound, for teaching and for as-published numbers; ``account`` is
tighter."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from tacit.privacy.accounting.as_published import OPACUS_ORDERS, rdp_to_epsilon, sampled_rdp
from tacit.privacy.accounting.rdp import rdp_epsilon

Array = npt.NDArray[np.float64]


def simple_composition(guarantees: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Epsilons and deltas add (Dwork et al. 2006)."""
    return math.fsum(epsilon for epsilon, _ in guarantees), min(1.0, math.fsum(delta for _, delta in guarantees))


def advanced_composition(epsilon: float, delta: float, times: int, slack: float) -> tuple[float, float]:
    """k-fold composition: epsilon sqrt(2 k ln(1/slack)) + k epsilon (e^epsilon - 1), with delta k delta + slack
    (Dwork, Rothblum, Vadhan 2010, Theorem III.3)."""
    if times == 0 or epsilon == 0:
        return 0.0, min(1.0, times * delta)
    if slack <= 0 or epsilon == math.inf:
        return math.inf, min(1.0, times * delta)
    drift = times * epsilon * math.expm1(epsilon) if epsilon < 700 else math.inf
    return epsilon * math.sqrt(2 * times * max(0.0, -math.log(slack))) + drift, min(1.0, times * delta + slack)


def group_privacy(epsilon: float, delta: float, size: int) -> tuple[float, float]:
    """(epsilon, delta) for one record gives (g epsilon, delta (e^{g epsilon} - 1) / (e^epsilon - 1)) for ``size`` =
    g: the sum of e^{i epsilon} delta over the g steps; at most the g e^{(g-1) epsilon} delta of [ULDP-FL, L5]."""
    if size == 0:
        return 0.0, 0.0
    if delta == 0:
        return size * epsilon, 0.0
    if epsilon == 0:
        return 0.0, min(1.0, size * delta)
    log_sum = (size - 1) * epsilon + math.log(math.expm1(-size * epsilon) / math.expm1(-epsilon))
    return size * epsilon, min(1.0, math.exp(min(0.0, math.log(delta) + log_sum)))


def group_rdp(rho: Callable[[Array], Array], size: int, orders: Array) -> Array:
    """Renyi divergence of a group at ``orders`` from that of one record, any group size.

    Mironov 2017, Proposition 2: a 2^c-stable transformation of an (a, rho)-RDP mechanism with a >= 2^{c+1} is
    (a / 2^c, 3^c rho)-RDP. ([ULDP-FL, L6] prints 2^k-stability as k-stability.) A size that is no power of two is
    rounded up: fewer records are a special case. Orders below 2 are left infinite.
    """
    c = max(0, math.ceil(math.log2(size))) if size > 0 else 0
    values = np.full(len(orders), np.inf)
    usable = orders >= 2 if c > 0 else orders > 1
    values[usable] = 3.0**c * rho(orders[usable] * 2.0**c)
    return values if size > 0 else np.zeros(len(orders))


def group_rdp_epsilon(rho: Callable[[Array], Array], size: int, delta: float, orders: Array) -> float:
    """The epsilon of a group of ``size`` by :func:`group_rdp`."""
    return rdp_epsilon(orders, group_rdp(rho, size, orders), delta)


def as_published_group_dp(group: int, rate: float, noise_multiplier: float, steps: int, delta: float) -> float:
    """The "normal DP" curve of Figure 2 in [ULDP-FL]: Renyi accounting to (epsilon, delta'), Lemma 5 to
    (k epsilon, k e^{(k-1) epsilon} delta'), with delta' bisected until the result is within 0.1 % of ``delta``.

    Sound as a conversion. Infinite where no delta' suffices: from k = 63 on the largest order, 63, is too small.
    """
    rho = steps * sampled_rdp(rate, noise_multiplier, OPACUS_ORDERS)
    if group == 1:
        return rdp_to_epsilon(OPACUS_ORDERS, rho, math.log(delta))
    low, high = -1e20, math.log(delta)
    for _ in range(400):  # the published search, which ends at the first delta' that is close enough
        middle = (low + high) / 2
        epsilon = rdp_to_epsilon(OPACUS_ORDERS, rho, middle)
        excess = math.log(group) + (group - 1) * epsilon + middle - math.log(delta)
        if abs(math.expm1(min(excess, 1.0))) <= 1e-3:
            return group * epsilon
        low, high = (low, middle) if excess > 0 else (middle, high)
    return math.inf
