"""LocalGroupDP's own accounting ([SubjectDP-2]), as published. Nothing here is a guarantee."""

from __future__ import annotations

import math

import numpy as np

from tacit.privacy.accounting.as_published import OPACUS_ORDERS, Array, rdp_to_epsilon, sampled_rdp
from tacit.privacy.accounting.gaussian import bisect, doubled


def as_published_local_group_noise(
    group: int, epsilon: float, delta: float, rate: float, batches: int, orders: Array = OPACUS_ORDERS
) -> float:
    """LocalGroupDP's sigma_Z for a batch whose largest group has Z records: Renyi accounting to epsilon / Z at delta
    / (Z e^{(Z-1) epsilon / Z}). No guarantee follows: the scale depends on the private batch (specification 1.3).
    Infinite where no noise suffices: with orders up to 63, the conversion itself costs more than a small epsilon / Z.
    """
    log_delta = math.log(delta) - math.log(group) - (group - 1) * epsilon / group

    def suffices(sigma: float) -> bool:
        return rdp_to_epsilon(orders, batches * sampled_rdp(rate, sigma, orders), log_delta) <= epsilon / group

    ends = doubled(suffices, 1.0, 1e9, low=1e-2)
    return math.inf if ends is None else bisect(suffices, *ends, relative=1e-6)[1]


def as_published_local_group(
    group: int, noise_multiplier: float, delta: float, rate: float, batches: int, orders: Array = OPACUS_ORDERS
) -> float:
    """The epsilon for which ``noise_multiplier`` is LocalGroupDP's sigma_Z, Z = ``group``: the smallest E with Renyi
    accounting at delta / (Z e^{(Z-1) E / Z}) within E / Z. Infinite where there is none."""
    if noise_multiplier == 0:
        return math.inf
    rho = batches * sampled_rdp(rate, noise_multiplier, orders)

    def suffices(epsilon: float) -> bool:
        log_delta = math.log(delta) - math.log(group) - (group - 1) * epsilon / group
        return rdp_to_epsilon(orders, rho, log_delta) - epsilon / group <= 0

    below = 0.0
    for epsilon in np.geomspace(1e-4, 1e6, 400).tolist():
        if suffices(epsilon):
            return bisect(suffices, below, epsilon, relative=1e-9)[1]
        below = epsilon
    return math.inf
