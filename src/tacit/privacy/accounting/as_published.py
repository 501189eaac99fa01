"""The papers' own accounting, for the comparison that Tacit prints next to what it proves.

Nothing here is a guarantee, hence the names. What each formula would need in order to hold is in its docstring, and
the specification says why. Renyi divergences of the Poisson-sampled Gaussian are those of Mironov, Talwar, Zhang 2019,
as the authors' programs take them from Opacus.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tacit.privacy.accounting.canonical_form import canonical
from tacit.privacy.accounting.events import Gaussian, PoissonSampled
from tacit.privacy.accounting.rdp import ORDERS, composed_rdp

Array = npt.NDArray[np.float64]

OPACUS_ORDERS: Array = np.array([1 + x / 10 for x in range(1, 100)] + list(range(12, 64)), dtype=np.float64)


def as_published_rdp(
    rate: float, noise_multiplier: float, steps: int, delta: float, orders: Array = OPACUS_ORDERS
) -> float:
    """Renyi accounting with the orders of Opacus ([ULDP-FL]: ULDP-NAIVE, -AVG, -SGD; specification 4.4)."""
    return rdp_to_epsilon(orders, steps * sampled_rdp(rate, noise_multiplier, orders), math.log(delta))


def as_published_higrad(rate: float, noise_multiplier: float, batches: int, delta: float) -> float:
    """[SubjectDP-2, T3.8] (HiGradAvgDP) and [SubjectDP-2, T3.3] (UserLDP): the *record's* rate. For a subject it
    would need 1 - (1 - q)^n."""
    return as_published_rdp(rate, noise_multiplier, batches, delta, ORDERS)


def as_published_uldp_group(group: int, rate: float, noise_multiplier: float, steps: int, delta: float) -> float:
    """ULDP-GROUP-k ([ULDP-FL, T2], Figure 2): 3^{log2 k} rho(a) at order a / k over the authors' orders.

    Sound if k is a public power of two. Other sizes are rounded *down*, as the paper says; that is no bound
    (``group_rdp`` in research rounds up).
    """
    group = 1 << (group.bit_length() - 1)
    orders = np.array([2 * group + x / 10 for x in range(100)] + np.linspace(group + 10, 64 * group, 20).tolist())
    rho = 3.0 ** math.log2(group) * steps * sampled_rdp(rate, noise_multiplier, orders)
    return rdp_to_epsilon(orders / group, rho, math.log(delta))


def sampled_rdp(rate: float, noise_multiplier: float, orders: Array) -> Array:
    """Renyi divergences of one Poisson-sampled Gaussian sum."""
    return composed_rdp(canonical(PoissonSampled(rate, Gaussian(noise_multiplier))).parts, orders)


def rdp_to_epsilon(orders: Array, rho: Array, log_delta: float) -> float:
    """The conversion of ``rdp`` at ln delta, not clipped at 0 before the minimum; orders of 1 and below are skipped."""
    with np.errstate(divide="ignore", invalid="ignore"):
        values = rho + np.log1p(-1 / orders) - (log_delta + np.log(orders)) / (orders - 1)
    values = values[(orders > 1) & ~np.isnan(values)]
    return max(0.0, float(values.min(initial=math.inf)))
