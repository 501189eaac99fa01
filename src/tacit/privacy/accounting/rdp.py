"""Renyi differential privacy: a second, independent accountant.

rho(a) bounds the Renyi divergence of order a > 1 between the outputs with and without the unit, in both directions. It
adds under adaptive composition (Mironov 2017, Proposition 1), and (a, rho)-RDP implies (epsilon, delta) with

    epsilon = rho + ln((a - 1) / a) - (ln delta + ln a) / (a - 1)

(Canonne, Kamath, Steinke 2020, Proposition 12; Balle et al. 2020, Theorem 21), minimised over the orders.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln

from tacit.privacy.accounting.canonical_form import canonical
from tacit.privacy.accounting.events import (
    DiscreteGaussian,
    Event,
    Gaussian,
    GaussianMixture,
    Laplace,
    Largest,
    Nothing,
    PoissonSampled,
    RandomizedResponse,
    RandomWalk,
    SampledWithoutReplacement,
    Selected,
    ShuffledReports,
    bounds_of,
)
from tacit.privacy.accounting.gaussian_mixture import loss_and_slope

Array = npt.NDArray[np.float64]

ORDERS: Array = np.array([1 + x / 10 for x in range(1, 100)] + list(range(12, 256)), dtype=np.float64)
# evaluations of the integrand that one mixture may cost
_LARGEST_WORK = 4e6


def rdp_epsilon(orders: Array, rho: Array, delta: float) -> float:
    """The smallest epsilon over the orders; infinity at delta 0 unless nothing was released."""
    if delta >= 1 or not np.any(rho):
        return 0.0
    if delta <= 0:
        return math.inf
    values = rho + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return max(0.0, float(np.min(values)))


def rdp_delta(orders: Array, rho: Array, epsilon: float) -> float:
    """The smallest delta over the orders: the same conversion solved for delta."""
    if epsilon == math.inf or not np.any(rho):
        return 0.0
    values = (orders - 1) * (rho - epsilon + np.log1p(-1 / orders)) - np.log(orders)
    return min(1.0, math.exp(min(0.0, float(np.min(values)))))


def composed_rdp(parts: Sequence[tuple[Event, int]], orders: Array = ORDERS) -> Array:
    """Sum of count times rho over canonical events (see ``canonical_form``)."""
    total = np.zeros(len(orders))
    for event, count in parts:
        total = total + count * event_rdp(event, orders)
    return total


def event_rdp(event: Event, orders: Array = ORDERS) -> Array:
    """rho at every order; infinite where no bound is known here."""
    return _event_rdp(event, tuple(orders.tolist())).copy()


@lru_cache(maxsize=512)
def _event_rdp(event: Event, order_values: tuple[float, ...]) -> Array:
    orders = np.array(order_values)
    match event:
        case Nothing():
            return np.zeros(len(orders))
        case Gaussian(noise_multiplier):
            return orders / (2 * noise_multiplier**2)
        case DiscreteGaussian(sigma, sensitivity):
            # no larger than for the continuous Gaussian: Canonne, Kamath, Steinke 2020, Proposition 5
            return orders * (sensitivity / sigma) ** 2 / 2
        case Laplace(noise_multiplier):
            return _laplace(noise_multiplier, orders)
        case RandomizedResponse(epsilon, levels):
            return _response(epsilon, levels, orders)
        case GaussianMixture():
            return _mixture(event, orders)
        case SampledWithoutReplacement(size, population, gaussian):
            return np.minimum(
                without_replacement(size / population, gaussian.noise_multiplier, orders),
                orders / (2 * gaussian.noise_multiplier**2),
            )
        case PoissonSampled(_, inner):
            # D_a((1-q) Q + q P || Q) <= D_a(P || Q): the divergence is jointly quasi-convex
            return composed_rdp(canonical(inner).parts, orders)
        case RandomWalk():
            return np.asarray(bounds_of(event).walk_rdp(event, orders), np.float64)
        case Selected():
            return np.asarray(bounds_of(event).selection_rdp(event, orders), np.float64)
        case Largest(members):
            flats = [canonical(member) for member in members]
            worst: Array = np.max(np.stack([composed_rdp(flat.parts, orders) for flat in flats]), axis=0)
            return worst
        case ShuffledReports(epsilon, _, pair):
            # shuffling is post-processing of the reports: the local guarantee of the changed one
            return _response(epsilon if pair is None else max(pair, epsilon), 2, orders)
        case _:
            return np.full(len(orders), np.inf)


def _laplace(scale: float, orders: Array) -> Array:
    """Mironov 2017, Proposition 6, in logarithms."""
    one = np.log(orders / (2 * orders - 1)) + (orders - 1) / scale
    two = np.log((orders - 1) / (2 * orders - 1)) - orders / scale
    return np.logaddexp(one, two) / (orders - 1)


def _response(epsilon: float, levels: int, orders: Array) -> Array:
    """ln(p^a r^{1-a} + r^a p^{1-a} + (k - 2) r) / (a - 1), p the probability of the truth and r = p e^-epsilon."""
    log_r = -float(np.logaddexp(epsilon, math.log(levels - 1)))
    log_p = epsilon + log_r
    terms = [orders * log_p + (1 - orders) * log_r, orders * log_r + (1 - orders) * log_p]
    if levels > 2:
        terms.append(np.full(len(orders), math.log(levels - 2) + log_r))
    values: Array = np.maximum(0.0, np.logaddexp.reduce(np.stack(terms), axis=0) / (orders - 1))
    return values


def _mixture(event: GaussianMixture, orders: Array) -> Array:
    """Both divergences of P = sum w_j N(c_j, 1) and Q = N(0, 1), by quadrature:

        D_a(P || Q) = ln E_Q[e^{a L}] / (a - 1),   D_a(Q || P) = ln E_Q[e^{-(a - 1) L}] / (a - 1),

    with the loss L of ``gaussian_mixture``. The trapezoidal rule converges like e^{-2 pi d / step} for integrands
    analytic within d of the real axis; e^{a L} is analytic up to the zeros of P / Q, at a distance of at least about
    pi / (2 c_max), and the step keeps that error below e^-37. Orders whose integrals would need too many points are
    left infinite: no bound.
    """
    shifts = np.asarray(event.sensitivities, dtype=np.float64) / event.noise_multiplier
    weights = np.asarray(event.probabilities, dtype=np.float64)
    shifts, weights = shifts[weights > 0], weights[weights > 0]
    largest, smallest = float(shifts.max()), float(shifts.min())
    step = min(0.25, math.pi / (12 * largest))
    result = np.full(len(orders), np.inf)
    used = _affordable(orders, largest + smallest, step, len(shifts))
    if len(used) == 0:
        return result
    # e^{a L} phi lives between -13 and a c_max + 13, e^{-(a-1) L} phi between -(a-1) c_min - 13 and 13
    start = -(used.max() - 1) * smallest - 13
    points = np.arange(start, used.max() * largest + 13 + step, step)
    loss, _ = loss_and_slope(points, shifts, weights)
    base = -(points**2) / 2 + math.log(step / math.sqrt(2 * math.pi))
    left, middle = int((-13 - start) / step), int((26 - start - 13) / step) + 1
    for index in np.flatnonzero(np.isin(orders, used)).tolist():
        order = float(orders[index])
        end = int((order * largest + 13 - start) / step) + 1
        present = _log_sum(order * loss[left:end] + base[left:end])
        absent = _log_sum((1 - order) * loss[:middle] + base[:middle])
        result[index] = max(0.0, present, absent) / (order - 1)
    return result


def _affordable(orders: Array, largest: float, step: float, components: int) -> Array:
    """The lowest orders, as many as can be integrated within a fixed amount of work."""
    ascending = np.sort(orders)
    points = (ascending * largest + 26) / step
    return ascending[points * (np.arange(1, len(orders) + 1) / 2 + components) <= _LARGEST_WORK]


def _log_sum(exponents: Array) -> float:
    top = float(exponents.max())
    return top + math.log(float(np.exp(exponents - top).sum()))


def without_replacement(rate: float, noise_multiplier: float, orders: Array) -> Array:
    """Gaussian sum over a batch drawn without replacement, relation replace (Wang, Balle, Kasiviswanathan 2019,
    Theorem 27, with Corollary 10 between integers). For integer a and r = P / Q the likelihood ratio of N(1/nm, 1),
    N(0, 1),

        (a - 1) rho(a) <= ln(1 + sum_{l=2}^a C(a, l) rate^l m_l),   m_2 = min(4 (e^{1/nm^2} - 1), 2 e^{1/nm^2}),
        m_l = min(4 sqrt(B(2 floor(l/2)) B(2 ceil(l/2))), 2 E_Q[r^l]),   B(l) = E_Q[(r - 1)^l].

    B of even order is an integral of a positive entire function: the trapezoidal rule is exact to rounding, and what it
    leaves out is added.
    """
    mu = 1 / noise_multiplier
    top = math.ceil(orders.max())
    even = np.arange(0, top + 2, 2)
    power = np.arange(top + 1)
    log_moment = power * (power - 1) * mu**2 / 2
    log_b = _log_central_moments(mu, even) if top * mu < 2000 else np.full(len(even), np.inf)
    m = np.minimum(math.log(4) + (log_b[power // 2] + log_b[(power + 1) // 2]) / 2, math.log(2) + log_moment)
    m[0] = 0.0
    m[1] = -np.inf
    binomials = gammaln(power + 1)[:, None] - gammaln(power + 1)[None, :]
    with np.errstate(invalid="ignore"):
        binomials -= gammaln(np.maximum(power[:, None] - power[None, :], 0) + 1)
    terms = np.where(
        power[None, :] <= power[:, None], binomials + m[None, :] + power[None, :] * math.log(rate), -np.inf
    )
    log_a = np.logaddexp.reduce(terms, axis=1)
    lower = np.floor(orders).astype(np.int64)
    share = orders - lower
    values: Array = ((1 - share) * log_a[lower] + share * log_a[np.minimum(lower + 1, top)]) / (orders - 1)
    return values


def _log_central_moments(mu: float, powers: npt.NDArray[np.int64]) -> Array:
    """ln E_Q[(r - 1)^l] for even l, by the trapezoidal rule between -13 and l mu + 13.

    What is cut off: left of -13 the integrand is at most phi, since |r - 1| <= 1 where r <= 1: below 6.2e-39 in all.
    Right of l mu + 13, (r - 1)^l phi <= r^l phi = e^{l (l - 1) mu^2 / 2} phi(x - l mu): less than 6.2e-39 of E_Q[r^l].
    Both are added, so that nothing is understated however small the moment is.
    """
    step = 0.2
    points = np.arange(-13.0, powers.max() * mu + 13, step)
    exponent = mu * points - mu**2 / 2
    with np.errstate(divide="ignore"):
        log_size = np.maximum(exponent, 0.0) + np.log(-np.expm1(-np.abs(exponent)))
    base = -(points**2) / 2 + math.log(step / math.sqrt(2 * math.pi))
    cut = math.log(6.2e-39)
    with np.errstate(invalid="ignore"):
        return np.array(
            [
                np.logaddexp.reduce([_log_sum(power * log_size + base), cut, cut + power * (power - 1) * mu**2 / 2])
                if power
                else 0.0
                for power in powers.tolist()
            ]
        )
