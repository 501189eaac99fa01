"""Privacy losses of mechanisms other than Gaussian sums, as distributions on a grid.

Laplace. A vector of l1 sensitivity S with independent Laplace noise of scale b S is dominated by the scalar pair
Lap(0, b) against Lap(1, b), whose delta(epsilon) = 1 - e^{(epsilon - 1/b) / 2} for |epsilon| <= 1/b. Proof for two
coordinates with shifts a <= c (in units of b), a + c = 1/b; more follow by induction. The loss of the first is at
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
At small rates these losses are tiny and the event's own are not, so a table of the latter on a grid fine enough for the
former would be enormous. Responses, Laplace and discrete Gaussian noise are sampled outcome by outcome, and of other
events a table on a coarser grid is sampled.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tacit.privacy.accounting.pld import LARGEST_TABLE, Losses, Pld, from_atoms, spread

Array = npt.NDArray[np.float64]

# beyond this many integers, or standard deviations of shift, the discrete Gaussian is left to Renyi accounting
LARGEST_DISCRETE_SIGMA = 1e5
LARGEST_DISCRETE_SHIFT = 1e3
_REACH = 11.5


def response_losses(epsilon: float, levels: int, grid: float, rate: float = 1.0) -> Losses:
    """k-ary randomised response, sampled with ``rate``."""
    low = math.exp(-float(np.logaddexp(epsilon, math.log(levels - 1))))
    losses = np.array([-epsilon, 0.0, epsilon])
    mass = np.array([low, (levels - 2) * low, 1.0 - (levels - 1) * low])
    if rate < 1:
        return _sampled_atoms(losses, mass, mass[::-1], rate, grid)
    one_way = from_atoms(losses, mass, grid).remove
    return Losses(one_way, one_way)


def laplace_losses(noise_multiplier: float, grid: float, rate: float = 1.0) -> Losses:
    """Lap(0, b) against Lap(1, b): atoms 1/2 at 1/b and e^{-1/b}/2 at -1/b, density e^{(l - 1/b)/2}/4 between them.

    Integrals of the density from l to m: under P (e^{(m - 1/b)/2} - e^{(l - 1/b)/2}) / 2, under Q with e^{-x} in its
    place. Sampled with ``rate``: P becomes (1 - rate) Q + rate P, and the cells are those of its losses.
    """
    top = 1.0 / noise_multiplier
    low, high = _sampled(np.array([-top, top]), rate).tolist() if rate < 1 else (-top, top)
    if high - low > grid * LARGEST_TABLE:
        raise MemoryError(f"losses up to {high} at grid {grid}: choose a coarser one")
    first = math.floor(low / grid)
    inner = np.arange(first + 1, math.ceil(high / grid)) * grid
    if rate < 1:
        inner = np.clip(_unsampled(inner, rate), -top, top)
    ends = np.concatenate([[-top], inner, [top]])
    cells = first + np.arange(len(ends) - 1)
    # 1 - e^-x by expm1: cells are narrow
    half = np.diff(ends) / 2
    mass = np.exp((ends[1:] - top) / 2) * -np.expm1(-half) / 2
    mass_q = np.exp((-ends[:-1] - top) / 2) * -np.expm1(-half) / 2
    ends_p, ends_q = np.array([math.exp(-top) / 2, 0.5]), np.array([0.5, math.exp(-top) / 2])
    if rate == 1:
        with np.errstate(divide="ignore"):
            density = spread(mass, np.log(mass_q), cells, grid)
        both = plus(density, from_atoms(np.array([-top, top]), ends_p, grid).remove)
        return Losses(both, both)
    mixed = (1 - rate) * mass_q + rate * mass
    with np.errstate(divide="ignore"):
        remove = spread(mixed, np.log(mass_q), cells, grid)
        add = spread(mass_q, np.log(mixed), -cells - 1, grid)
    atoms = _sampled_atoms(np.array([-top, top]), ends_p, ends_q, rate, grid)
    return Losses(plus(remove, atoms.remove), plus(add, atoms.add))


def discrete_gaussian_losses(sigma: float, sensitivity: int, grid: float, rate: float = 1.0) -> Losses:
    """N_Z(s, sigma^2) against N_Z(0, sigma^2), sampled with ``rate``; unsampled the pair is symmetric."""
    reach = math.ceil(_REACH * sigma) + 1
    z = np.arange(sensitivity - reach, sensitivity + reach + 1).astype(np.float64)
    weights = np.exp(-((z - sensitivity) ** 2) / (2 * sigma**2))
    total = float(weights.sum())
    losses = sensitivity * (2 * z - sensitivity) / (2 * sigma**2)
    # beyond the reach: at most 2 sum_{j > reach} e^{-j^2/(2 sigma^2)} <= 2 (1 + sigma^2 / reach) e^{-reach^2/(2
    # sigma^2)}
    beyond = 2 * (1 + sigma**2 / reach) * math.exp(-(reach**2) / (2 * sigma**2)) / total
    if rate < 1:
        with np.errstate(under="ignore"):
            mass_q = np.exp(-(z**2) / (2 * sigma**2)) / total
        sampled = _sampled_atoms(losses, weights / total, mass_q, rate, grid)
        # outcomes that are not listed: P has at most ``beyond`` there, and so has Q on its own side of the list; those
        # of the other side are raised to loss 0 here, and counted as infinite in the other direction
        lacking = max(0.0, 1.0 - math.fsum(mass_q))
        remove = plus(sampled.remove, Pld(grid, 0, np.array([(1 - rate) * lacking]), rate * beyond))
        return Losses(remove, _with_most(sampled.add, rate, lacking))
    remove = from_atoms(losses, weights / total, grid).remove
    one_way = Pld(grid, remove.low, remove.mass, beyond)
    return Losses(one_way, one_way)


def _sampled_atoms(losses: Array, mass: Array, mass_q: Array, rate: float, grid: float) -> Losses:
    """Both directions of outcomes with probabilities ``mass`` under P and ``mass_q`` = mass e^-loss under Q, sampled
    with ``rate``."""
    moved = _sampled(losses, rate)
    mixed = (1 - rate) * mass_q + rate * mass
    with np.errstate(divide="ignore"):
        log_q = np.log(mass_q)
        remove = spread(mixed, np.where(mass_q > 0, log_q, -np.inf), _floor(moved, grid), grid)
        add = spread(mass_q, np.log(mixed), _floor(-moved, grid), grid)
    return Losses(remove, add)


def sampled_losses(inner: Losses, rate: float, grid: float) -> Losses:
    """Poisson sampling with ``rate`` of an event with the given losses, which may be on another grid.

    The remove direction's table is itself a pair of distributions that dominates (P, Q), the add direction's one that
    dominates (Q, P); both are transformed as atoms and spread again.
    """
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
    return Losses(
        Pld(grid, remove.low, remove.mass, rate * inner.remove.infinite), _with_most(add, rate, inner.add.infinite)
    )


def _with_most(add: Pld, rate: float, mass: float) -> Pld:
    """``add`` and what was an infinite loss of (Q, P): sampled it is the largest finite one, -ln(1 - rate), or stays
    where that is off the table."""
    if mass == 0:
        return add
    ceiling = math.ceil(-math.log1p(-rate) / add.grid)
    if ceiling - add.low < LARGEST_TABLE:
        return plus(add, Pld(add.grid, ceiling, np.array([mass])))
    return Pld(add.grid, add.low, add.mass, add.infinite + mass)


def _sampled(losses: Array, rate: float) -> Array:
    """ln(1 - rate + rate e^loss), accurate also for losses far below the spacing of floats around 1."""
    near = np.log1p(rate * np.expm1(np.clip(losses, -1.0, 1.0)))
    return np.where(np.abs(losses) < 1, near, np.logaddexp(math.log1p(-rate), math.log(rate) + losses))


def _unsampled(losses: Array, rate: float) -> Array:
    """The inverse of :func:`_sampled`, for losses above ln(1 - rate): ln(1 + (e^loss - 1) / rate)."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        near = np.log1p(np.maximum(np.expm1(np.minimum(losses, 1.0)) / rate, -1.0))
        far = losses + np.log(-np.expm1(math.log1p(-rate) - losses)) - math.log(rate)
    return np.where(losses < 1, near, far)


def plus(one: Pld, other: Pld) -> Pld:
    """The sum of two sub-distributions on the same grid."""
    low = min(one.low, other.low)
    mass = np.zeros(max(one.low + len(one.mass), other.low + len(other.mass)) - low)
    mass[one.low - low : one.low - low + len(one.mass)] += one.mass
    mass[other.low - low : other.low - low + len(other.mass)] += other.mass
    return Pld(one.grid, low, mass, one.infinite + other.infinite)


def _floor(losses: Array, grid: float) -> npt.NDArray[np.int64]:
    return np.floor(losses / grid).astype(np.int64)
