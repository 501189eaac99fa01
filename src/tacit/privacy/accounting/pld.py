"""Privacy loss distributions on a grid: what a release says about a unit, as numbers that can be added up.

Of a pair of distributions (P with the unit, Q without) the privacy loss is ln P(o)/Q(o) for an outcome o drawn from P.
Its distribution determines every trade-off between epsilon and delta,

    delta(epsilon) = Pr[loss = infinity] + sum over losses l > epsilon of Pr[l] (1 - e^{epsilon - l}),

and the loss of an adaptive composition is dominated by the sum of independent losses (Dwork and Rothblum 2016;
Sommer, Meiser, Mohammadi 2019; Zhu, Dong, Wang 2022, Theorem 10).

**Rounding is pessimistic.** Losses between two grid points are split between them so that the probabilities under P
*and* under Q stay what they are (:func:`spread`). In the plane of (e^epsilon, delta) that replaces the curve by its
chords, and the curve is convex, so the result is an upper bound that is exact at the grid points (Doroshenko, Ghazi,
Kamath, Kumar, Manurangsi 2022, "Connect the dots"). Its error per release is of second order in the grid.

**Composition is tilted.** The n-fold convolution is taken by FFT of the exponentially tilted losses Pr[l] e^{t l} /
M(t), with t near the saddle point of the delta or epsilon asked for, and tilted back. Rounding errors of the FFT are
then relative to that delta and not to 1 (delta = 1e-20 is as accurate as 1e-2). A window of about 14 tilted standard
deviations is computed; what the cyclic transform wraps into it only adds mass, what lies above it is bounded by
Chernoff and counted as infinite loss, and an allowance for rounding is added to every grid point: each of these can
only raise delta.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import fft

Array = npt.NDArray[np.float64]

# tilted probability that may fall outside the window on either side, as a logarithm: e^-23 = 1e-10
_LOG_TAIL = 23.0
_UNIT_ROUNDOFF = 2.0**-53
# windows larger than this are not computed: the accountant answers infinity and another one takes over
_LARGEST_WINDOW = 1 << 22
LARGEST_TABLE = 1 << 23


@dataclass(frozen=True)
class Pld:
    """Losses (low + i) grid with probability ``mass[i]``, and an infinite loss with probability ``infinite``."""

    grid: float
    low: int
    mass: Array
    infinite: float = 0.0

    @property
    def losses(self) -> Array:
        return np.arange(self.low, self.low + len(self.mass), dtype=np.float64) * self.grid


@dataclass(frozen=True)
class Losses:
    """Both directions of one event: ``remove`` is (P, Q), the unit's presence against its absence; ``add`` is (Q,
    P)."""

    remove: Pld
    add: Pld


Parts = Sequence[tuple[Pld, int]]


def spread(mass: Array, other: Array, low: npt.NDArray[np.int64], grid: float) -> Pld:
    """The loss distribution of cells: cell i has probability ``mass[i]`` under P, ``e^other[i]`` under Q, and only
    losses between grid points low[i] and low[i] + 1.

    The upper share b and the lower share a solve a + b = mass and a e^{-l} + b e^{-(l + grid)} = e^other with
    l = low grid, hence b = (mass - e^{other + l}) / (1 - e^{-grid}); clipping b to [0, mass] absorbs rounding.
    """
    start = int(low.min())
    size = int(low.max()) - start + 2
    if size > LARGEST_TABLE:
        raise MemoryError(f"{size} losses at grid {grid}: choose a coarser one")
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        upper = (mass - np.exp(other + low * grid)) / -math.expm1(-grid)
    upper = np.where(np.isfinite(upper), np.clip(upper, 0.0, mass), mass)
    total = np.zeros(size)
    total += np.bincount(low - start, weights=mass - upper, minlength=size)
    total += np.bincount(low - start + 1, weights=upper, minlength=size)
    return Pld(grid, start, total)


def from_atoms(losses: Array, mass: Array, grid: float, infinite: float = 0.0) -> Losses:
    """Both directions of a pair with finitely many outcomes: ``mass`` under P, ``mass e^{-loss}`` under Q; ``infinite``
    is what P has and Q has not. What Q has and P has not is counted as infinite in the other direction."""
    down = np.floor(losses / grid).astype(np.int64)
    with np.errstate(divide="ignore"):
        log_mass = np.log(mass)
    remove = spread(mass, log_mass - losses, down, grid)
    mass_q = np.exp(log_mass - losses)
    add = spread(mass_q, log_mass, np.floor(-losses / grid).astype(np.int64), grid)
    missing = max(0.0, 1.0 - math.fsum(mass_q))
    return Losses(
        Pld(grid, remove.low, remove.mass, infinite),
        Pld(grid, add.low, add.mass, missing if missing > len(mass) * _UNIT_ROUNDOFF else 0.0),
    )


# -- what a composition costs ------------------------------------------------------------------------------------------


def composed_epsilon(parts: Parts, delta: float, near: float | None = None) -> float:
    """An epsilon at which the composition of ``parts`` (distribution, number of times) needs no more than ``delta``.

    ``near``, a guess of it, gives a better tilt than Chernoff's bound alone, and with it a smaller window.
    """
    room = delta - infinite_mass(parts)
    if delta >= 1:
        return 0.0
    if room <= 0:
        return math.inf
    rough = [(_pooled(part), count) for part, count in parts]
    scale = _scale(rough)
    if near is not None and 0 < near < math.inf:
        guess = near
        tilt = _minimise(lambda t: _log_mgf(rough, t) - t * guess, scale)
        epsilon = _epsilon_within(parts, room, _narrowest(parts, rough, tilt, guess, room))
        if epsilon < math.inf:
            return epsilon
    return _epsilon_within(parts, room, _minimise(lambda t: (_log_mgf(rough, t) - math.log(room)) / t, scale))


def _narrowest(parts: Parts, rough: _RoughParts, tilt: float, epsilon: float, room: float) -> float:
    """``tilt``, or a smaller one whose window is much narrower and where rounding still matters little.

    Rare, large losses can outweigh all others under a large tilt and widen its window. Rounding is about u (ln size +
    number of releases) of e^{K(tilt) - tilt epsilon}, which shall stay below 1e-4 of delta.
    """
    releases = sum(count for _, count in parts)
    slack = math.log(room) + math.log(1e-4 / (16 * _UNIT_ROUNDOFF * (20 + releases)))
    chosen, smallest = tilt, math.inf
    for _ in range(8):
        cumulant = _log_mgf(rough, tilt)
        if smallest < math.inf and cumulant - tilt * epsilon > slack:
            break
        variance = math.fsum(count * _tilted(part, tilt)[3] for part, count in rough)
        low, high = _ends(rough, tilt, cumulant, max(math.sqrt(variance), parts[0][0].grid))
        if high - low < smallest / 1.5:
            chosen, smallest = tilt, high - low
        tilt /= 2
    return chosen


def _epsilon_within(parts: Parts, room: float, tilt: float) -> float:
    """The epsilon found in the window of ``tilt``, or of smaller ones where it lies below."""
    epsilon = math.inf
    for _ in range(20):
        profile = _profile(parts, tilt)
        if profile is None:  # rare, large losses may make the window of a smaller tilt the smaller one
            tilt /= 4
            continue
        epsilon = _first_within(profile, parts[0][0].grid, room)
        if epsilon > profile.low * parts[0][0].grid or profile.low <= 0 or not profile.cut_below:
            return max(0.0, epsilon)
        tilt /= 2  # the answer lies below the window: look further down
    return max(0.0, epsilon)


def composed_delta(parts: Parts, epsilon: float) -> float:
    """A delta that covers the composition of ``parts`` at ``epsilon``."""
    if epsilon == math.inf:
        return infinite_mass(parts)
    rough = [(_pooled(part), count) for part, count in parts]
    tilt = _minimise(lambda t: _log_mgf(rough, t) - t * epsilon, _scale(rough))
    return float(delta_curve(parts, np.array([epsilon]), tilt)[0])


def delta_curve(parts: Parts, epsilons: Array, tilt: float = 0.0) -> Array:
    """Deltas at many epsilons from one composition; ``tilt`` = 0 is accurate to about 1e-10 absolutely."""
    profile = _profile(parts, tilt)
    if profile is None:
        return np.ones(len(epsilons))
    grid = parts[0][0].grid
    size = len(profile.deltas)
    # beyond the window all is the same: no number too large to be a place, infinity among them
    place = np.clip(epsilons / grid - profile.low, -2.0, size + 1.0)
    lower = np.floor(place).astype(np.int64)
    inside = (lower >= 0) & (lower < size - 1)
    at = np.where(inside, lower, 0)
    # linear in e^epsilon between grid points: the chord
    share = np.expm1((np.where(inside, place, at) - at) * grid) / math.expm1(grid) if grid < 700 else np.zeros(len(at))
    chord = profile.deltas[at] + share * (profile.deltas[np.minimum(at + 1, size - 1)] - profile.deltas[at])
    # below the window nothing better is known than 1, or than delta at its lowest point plus the full mass below
    below = np.ones(len(at)) if profile.cut_below else _below(profile, epsilons, grid)
    values = np.where(lower < 0, below, np.where(inside, chord, profile.deltas[-1]))
    values[np.isposinf(epsilons)] = 0.0
    return np.minimum(1.0, values + infinite_mass(parts))


def composed(parts: Parts) -> Pld | None:
    """The distribution of the whole composition, to be used as one event; None where it is too large to compute."""
    profile = _profile(parts, 0.0)
    if profile is None:
        return None
    kept = profile.mass.copy()
    # what fell below the window, or was lost to rounding, is raised to loss 0 or what is nearest to it: at a very
    # negative loss it would be a probability above 1 without the unit. Mass beyond 1 only adds
    kept[min(max(0, -profile.low), len(kept) - 1)] += max(0.0, 1.0 - infinite_mass(parts) - float(kept.sum()))
    return Pld(parts[0][0].grid, profile.low, kept, min(1.0, infinite_mass(parts) + profile.above))


def infinite_mass(parts: Parts) -> float:
    """1 - prod (1 - infinite_i)^count_i."""
    if any(part.infinite >= 1 for part, _ in parts):
        return 1.0
    return -math.expm1(math.fsum(count * math.log1p(-part.infinite) for part, count in parts))


# -- the tilted composition --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Profile:
    """``mass`` and ``deltas`` at the grid points low, low + 1, …; ``above``: probability beyond them; ``cut_below``:
    whether losses below the window exist."""

    low: int
    mass: Array
    deltas: Array
    above: float
    cut_below: bool


def _profile(parts: Parts, tilt: float) -> _Profile | None:
    """The composed losses in a window around their tilted mean; None where the window would be too large."""
    grid = parts[0][0].grid
    if len(parts) == 1 and parts[0][1] == 1:
        only = parts[0][0]
        return _Profile(only.low, only.mass, _deltas(only.mass, grid, 0.0), 0.0, cut_below=False)
    tilted = [_tilted(part, tilt) for part, _ in parts]
    counts = [count for _, count in parts]
    cumulant = math.fsum(count * log for (_, log, _, _), count in zip(tilted, counts, strict=True))
    deviation = math.sqrt(math.fsum(count * var for (_, _, _, var), count in zip(tilted, counts, strict=True)))
    lowest = sum(count * part.low for part, count in parts)
    highest = sum(count * (part.low + len(part.mass) - 1) for part, count in parts)
    start, end = _ends(parts, tilt, cumulant, max(deviation, grid))
    low, high = max(lowest, math.floor(start / grid) - 1), min(highest, math.ceil(end / grid) + 1)
    size = fft.next_fast_len(high - low + 1, real=True)
    if size > _LARGEST_WINDOW:
        return None
    spectrum = np.ones(size // 2 + 1, dtype=np.complex128)
    workers = 2 if size > 1 << 18 else 1
    offset = 0
    for (mass, _, mean, _), (part, count) in zip(tilted, parts, strict=True):
        centre = round(mean / grid)
        places = (np.arange(part.low - centre, part.low - centre + len(mass))) % size
        _multiply_power(spectrum, fft.rfft(np.bincount(places, weights=mass, minlength=size), workers=workers), count)
        offset += count * centre
    whole = fft.irfft(spectrum, size, workers=workers)
    # rounding of the transforms: one unit per stage and per factor, spread evenly over the grid points (Higham 2002,
    # 24.1)
    allowance = 8 * _UNIT_ROUNDOFF * (math.log2(size) + sum(counts)) * float(np.abs(spectrum).sum()) * 2 / size
    whole = np.roll(np.maximum(whole, 0.0) + allowance, -((low - offset) % size))
    losses = (low + np.arange(size)) * grid
    # no probability exceeds 1; far below the epsilon in question, where the allowance is tilted up, that is the
    # better bound
    mass = np.minimum(whole * np.exp(np.minimum(cumulant - tilt * losses, 700.0)), 1.0) if tilt else whole
    beyond = high < highest
    above = min(1.0, math.exp(min(0.0, cumulant - tilt * high * grid - _LOG_TAIL))) if beyond else 0.0
    return _Profile(low, mass, _deltas(mass, grid, above), above, cut_below=low > lowest)


def _multiply_power(spectrum: npt.NDArray[np.complex128], factor: npt.NDArray[np.complex128], count: int) -> None:
    """spectrum *= factor^count in place, with powers only where they are not 0 as floats: for many releases that is
    nearly everywhere."""
    if count == 1:
        spectrum *= factor
        return
    size = factor.real**2 + factor.imag**2
    kept = np.flatnonzero(size > math.exp(-1490.0 / count))
    if len(kept) > len(factor) // 2:
        spectrum *= factor**count
        return
    powers = spectrum[kept] * factor[kept] ** count
    spectrum[:] = 0.0
    spectrum[kept] = powers


def _deltas(mass: Array, grid: float, above: float) -> Array:
    """delta at every grid point: D_i = sum over j > i of mass_j (1 - r^{j-i}) with r = e^{-grid}, plus ``above``.

    With C_i = mass_i + r C_{i+1} it is D_i = D_{i+1} + (1 - r) C_{i+1}: sums of non-negative terms, without
    cancellation. C is computed in blocks in which powers of r neither overflow nor vanish.
    """
    ratio = math.exp(-grid)
    backwards = mass[::-1]
    discounted = backwards.copy()
    block = max(1, min(len(mass), int(300 / grid)))
    if ratio > 0 and block > 1:
        powers = ratio ** np.arange(block)
        carry = 0.0
        for start in range(0, len(mass), block):
            piece = backwards[start : start + block]
            power = powers[: len(piece)]
            discounted[start : start + block] = power * (np.cumsum(piece / power) + ratio * carry)
            carry = discounted[start + len(piece) - 1]
    elif ratio > 0:
        discounted[1:] += ratio * backwards[:-1]
    steps = np.concatenate([[above], -math.expm1(-grid) * discounted[:-1]])
    sums: Array = np.cumsum(steps)[::-1]
    return sums


def _below(profile: _Profile, epsilons: Array, grid: float) -> Array:
    """Below all losses delta is linear in e^epsilon: 1 - e^epsilon sum mass_i e^{-l_i} (the infinite mass is added
    later)."""
    start = profile.low * grid
    total = float(profile.mass.sum()) + profile.above
    step = np.exp(np.minimum(epsilons - start, 0.0))
    values: Array = np.maximum(0.0, total - (total - profile.deltas[0]) * step)
    return values


def _first_within(profile: _Profile, grid: float, room: float) -> float:
    """The smallest epsilon in the window whose delta is at most ``room``; infinity where there is none."""
    fits = profile.deltas <= room
    if not fits.any():
        return math.inf
    first = int(np.argmax(fits))
    if first == 0:
        return profile.low * grid
    upper, lower = profile.deltas[first - 1], profile.deltas[first]
    share = (room - lower) / (upper - lower) * -math.expm1(-grid)
    if share >= 1:  # a grid so coarse that e^-grid vanishes
        return (profile.low + first - 1) * grid
    return (profile.low + first) * grid + math.log1p(-share)


def _tilted(part: Pld | _Rough, tilt: float) -> tuple[Array, float, float, float]:
    """Tilted masses, ln M(tilt), tilted mean and variance of the finite losses."""
    losses = part.losses
    weights, log_total = _weights(part.mass, tilt * losses)
    mean = float(weights @ losses)
    return weights, log_total, mean, float(weights @ (losses - mean) ** 2)


def _weights(mass: Array, exponents: Array) -> tuple[Array, float]:
    """mass e^exponents as probabilities, and the logarithm of their sum, also where the largest exponents have no
    mass."""
    top = float(max(exponents[0], exponents[-1]))
    weights = mass * np.exp(exponents - top)
    total = float(weights.sum())
    if total < 1e-200:
        with np.errstate(divide="ignore"):
            logs = exponents + np.log(mass)
        top = float(logs.max())
        if top == -math.inf:
            return np.full(len(mass), 1.0 / len(mass)), -math.inf
        weights = np.exp(logs - top)
        total = float(weights.sum())
    return weights / total, top + math.log(total)


def _ends(parts: Parts | _RoughParts, tilt: float, cumulant: float, deviation: float) -> tuple[float, float]:
    """The window, in losses: outside, on either side, the tilted losses have probability at most e^-23.

    Chernoff under the tilted law: Pr[sum > w] <= exp(K(tilt + s) - K(tilt) - s w) for s > 0, likewise below.
    """
    # rare losses may be far larger than the deviation
    largest = max(float(part.losses[-1]) for part, _ in parts)
    rare = 2 * _LOG_TAIL / largest if largest > 0 else math.inf
    steps = [s / deviation for s in (6.5, 4.0, 2.0, 0.7, 0.2)]
    if rare < 0.1 / deviation:
        steps.append(rare)
    above = [(_log_mgf(parts, tilt + s) - cumulant + _LOG_TAIL) / s for s in steps]
    below = [(cumulant - _log_mgf(parts, tilt - s) - _LOG_TAIL) / s for s in steps[:4]]
    return max(below), min(above)


def _log_mgf(parts: Parts | _RoughParts, tilt: float) -> float:
    """K(tilt) = sum of count ln E[e^{tilt loss}; loss finite]."""
    total = 0.0
    for part, count in parts:
        total += count * _weights(part.mass, tilt * part.losses)[1]
    return total


def _scale(parts: _RoughParts) -> float:
    """Standard deviation of the composed losses."""
    return max(math.sqrt(math.fsum(count * _tilted(part, 0.0)[3] for part, count in parts)), parts[0][0].grid)


@dataclass(frozen=True)
class _Rough:
    """A distribution in few, unevenly spaced losses: good enough to choose a tilt by."""

    grid: float
    mass: Array
    losses: Array


_RoughParts = Sequence[tuple[_Rough, int]]


def _pooled(part: Pld, size: int = 4096) -> _Rough:
    """Neighbouring losses taken together, at their mean."""
    width = -(-len(part.mass) // size)
    if width == 1:
        return _Rough(part.grid, part.mass, part.losses)
    padded = np.zeros((2, -(-len(part.mass) // width) * width))
    padded[0, : len(part.mass)] = part.mass
    padded[1, : len(part.mass)] = part.mass * np.arange(len(part.mass))
    mass, sums = padded.reshape(2, -1, width).sum(axis=2)
    middle = np.arange(len(mass)) * width + (width - 1) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        places = np.where(mass > 0, sums / mass, middle)
    return _Rough(part.grid, mass, (part.low + places) * part.grid)


def _minimise(function: Callable[[float], float], scale: float) -> float:
    """Where a quasi-convex function of a positive tilt is smallest: golden section on the logarithm, in units of 1 /
    scale.

    The tilt only steers accuracy, so two digits suffice.
    """
    golden = (math.sqrt(5) - 1) / 2
    low, high = math.log(1e-3 / scale), math.log(1e3 / scale)
    inner = [high - golden * (high - low), low + golden * (high - low)]
    values = [function(math.exp(point)) for point in inner]
    while high - low > 0.05:
        if values[0] <= values[1]:
            high, inner[1], values[1] = inner[1], inner[0], values[0]
            inner[0] = high - golden * (high - low)
            values[0] = function(math.exp(inner[0]))
        else:
            low, inner[0], values[0] = inner[0], inner[1], values[1]
            inner[1] = low + golden * (high - low)
            values[1] = function(math.exp(inner[1]))
    return math.exp((low + high) / 2)
