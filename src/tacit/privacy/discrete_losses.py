"""Privacy losses of mechanisms other than Gaussian sums, as distributions on a grid.

Laplace. A vector of l1 sensitivity S with independent Laplace noise of scale b S is dominated by the scalar pair
Lap(0, b) against Lap(1, b), whose delta(epsilon) = 1 - e^{(epsilon - 1/b) / 2} for |epsilon| <= 1/b. Proof for two
coordinates with shifts a <= c (in units of b), a + c = 1/b; more follow by induction: the loss of the first is at
most a in absolute value, so for epsilon >= 0 the second is asked at epsilon - L_1 >= -c, where its delta is max(0, 1
- e^{(epsilon - L_1 - c) / 2}), and with L_1 <= a each such term is at most 1 - e^{(epsilon - a - c) / 2}. Negative
epsilons follow because both pairs are symmetric.

Randomised response on k levels: loss +eps with probability p = e^eps / (e^eps + k - 1), -eps with r = p e^-eps, else 0.
Every epsilon-private mechanism is dominated by k = 2 (Kairouz, Oh, Viswanath 2015, Theorem 2.1).

Discrete Gaussian: the loss at z is s (2 z - s) / (2 sigma^2) for z drawn around the shift s (Canonne, Kamath, Steinke
2020).

Poisson sampling of any event. If (P, Q) dominates the event with and without the unit, then ((1-q) Q + q P, Q)
dominates its sampled form, and the reverse for the other direction (Zhu, Dong, Wang 2022, Theorem 11): a loss l
becomes ln(1 - q + q e^l). This is for zero-out; an event that is only known under replacement is not amplified.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tacit.privacy.pld import LARGEST_TABLE, Losses, Pld, from_atoms, spread

Array = npt.NDArray[np.float64]

# beyond this many integers, or standard deviations of shift, the discrete Gaussian is left to Renyi accounting
LARGEST_DISCRETE_SIGMA = 1e5
LARGEST_DISCRETE_SHIFT = 1e3
_REACH = 11.5


def response_losses(epsilon: float, levels: int, grid: float) -> Losses:
    """k-ary randomised response."""
    low = math.exp(-float(np.logaddexp(epsilon, math.log(levels - 1))))
    losses = np.array([-epsilon, 0.0, epsilon])
    mass = np.array([low, (levels - 2) * low, 1.0 - (levels - 1) * low])
    one_way = from_atoms(losses, mass, grid).remove
    return Losses(one_way, one_way)


def laplace_losses(noise_multiplier: float, grid: float) -> Losses:
    """Lap(0, b) against Lap(1, b): atoms 1/2 at 1/b and e^{-1/b}/2 at -1/b, density e^{(l - 1/b)/2}/4 between them.

    Integrals of the density from l to m: under P (e^{(m - 1/b)/2} - e^{(l - 1/b)/2}) / 2, under Q with e^{-x} in its
    place.
    """
    top = 1.0 / noise_multiplier
    if 2 * top > grid * LARGEST_TABLE:
        raise MemoryError(f"losses up to {top} at grid {grid}: choose a coarser one")
    inner = np.arange(math.floor(-top / grid) + 1, math.ceil(top / grid)) * grid
    ends = np.concatenate([[-top], inner, [top]])
    cells = np.floor(-top / grid).astype(np.int64) + np.arange(len(ends) - 1)
    mass = np.diff(np.exp((ends - top) / 2)) / 2
    mass_q = -np.diff(np.exp((-ends - top) / 2)) / 2
    with np.errstate(divide="ignore"):
        density = spread(mass, np.log(mass_q), cells, grid)
    atoms = from_atoms(np.array([-top, top]), np.array([math.exp(-top) / 2, 0.5]), grid).remove
    both = plus(density, atoms)
    return Losses(both, both)


def discrete_gaussian_losses(sigma: float, sensitivity: int, grid: float) -> Losses:
    """N_Z(s, sigma^2) against N_Z(0, sigma^2); the pair is symmetric."""
    reach = math.ceil(_REACH * sigma) + 1
    z = np.arange(sensitivity - reach, sensitivity + reach + 1).astype(np.float64)
    weights = np.exp(-((z - sensitivity) ** 2) / (2 * sigma**2))
    total = float(weights.sum())
    losses = sensitivity * (2 * z - sensitivity) / (2 * sigma**2)
    # beyond the reach: at most 2 sum_{j > reach} e^{-j^2/(2 sigma^2)} <= 2 (1 + sigma^2 / reach) e^{-reach^2/(2
    # sigma^2)}
    beyond = 2 * (1 + sigma**2 / reach) * math.exp(-(reach**2) / (2 * sigma**2)) / total
    remove = from_atoms(losses, weights / total, grid).remove
    one_way = Pld(grid, remove.low, remove.mass, beyond)
    return Losses(one_way, one_way)


def sampled_losses(inner: Losses, rate: float) -> Losses:
    """Poisson sampling with ``rate`` of an event with the given losses.

    The remove direction's table is itself a pair of distributions that dominates (P, Q), the add direction's one that
    dominates (Q, P); both are transformed as atoms and spread again.
    """
    grid = inner.remove.grid
    losses, mass = inner.remove.losses, inner.remove.mass
    with np.errstate(divide="ignore"):
        log_mass = np.log(mass)
    log_q = log_mass - losses
    remove_losses = _sampled(losses, rate)
    remove_mass = np.exp(log_q + remove_losses)
    remove = spread(remove_mass, log_q, _floor(remove_losses, grid), grid)
    # Q without a counterpart in P (what the table's Q lacks) has the smallest loss ln(1 - rate): raised to 0 here
    missing = max(0.0, 1.0 - float(remove_mass.sum()) - rate * inner.remove.infinite)
    remove = plus(remove, Pld(grid, 0, np.array([missing])))
    reverse, mass_q = inner.add.losses, inner.add.mass
    add_losses = -_sampled(-reverse, rate)
    with np.errstate(divide="ignore"):
        add = spread(mass_q, np.log(mass_q) - add_losses, _floor(add_losses, grid), grid)
    # an infinite loss of (Q, P) becomes the largest finite one, -ln(1 - rate), or stays where that is off the table
    ceiling = math.ceil(-math.log1p(-rate) / grid)
    if ceiling - add.low < LARGEST_TABLE:
        add = plus(add, Pld(grid, ceiling, np.array([inner.add.infinite])))
    else:
        add = Pld(grid, add.low, add.mass, inner.add.infinite)
    return Losses(Pld(grid, remove.low, remove.mass, rate * inner.remove.infinite), add)


def _sampled(losses: Array, rate: float) -> Array:
    """ln(1 - rate + rate e^loss), accurate also for losses far below the spacing of floats around 1."""
    near = np.log1p(rate * np.expm1(np.clip(losses, -1.0, 1.0)))
    return np.where(np.abs(losses) < 1, near, np.logaddexp(math.log1p(-rate), math.log(rate) + losses))


def plus(one: Pld, other: Pld) -> Pld:
    """The sum of two sub-distributions on the same grid."""
    low = min(one.low, other.low)
    mass = np.zeros(max(one.low + len(one.mass), other.low + len(other.mass)) - low)
    mass[one.low - low : one.low - low + len(one.mass)] += one.mass
    mass[other.low - low : other.low - low + len(other.mass)] += other.mass
    return Pld(one.grid, low, mass, one.infinite + other.infinite)


def _floor(losses: Array, grid: float) -> npt.NDArray[np.int64]:
    return np.floor(losses / grid).astype(np.int64)
