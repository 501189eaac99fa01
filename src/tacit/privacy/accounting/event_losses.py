"""Privacy loss distributions of events, and what their composition costs on a grid that is fine enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from tacit.privacy.accounting.canonical_form import FAINTEST, canonical, zero_out
from tacit.privacy.accounting.discrete_losses import (
    LARGEST_DISCRETE_SHIFT,
    LARGEST_DISCRETE_SIGMA,
    discrete_gaussian_losses,
    laplace_losses,
    response_losses,
    sampled_losses,
)
from tacit.privacy.accounting.events import (
    DiscreteGaussian,
    Event,
    Gaussian,
    GaussianMixture,
    Laplace,
    PoissonSampled,
    RandomizedResponse,
    SampledWithoutReplacement,
    ShuffledReports,
    bounds_of,
)
from tacit.privacy.accounting.gaussian_mixture import loss_deviation, loss_range, mixture_losses
from tacit.privacy.accounting.pld import (
    Losses,
    Pld,
    composed,
    composed_delta,
    composed_epsilon,
    delta_curve,
)
from tacit.privacy.invalid import InvalidArgument

Array = npt.NDArray[np.float64]
Parts = tuple[tuple[Event, int], ...]
PldParts = Sequence[tuple[Pld, int]]

# the grid is fine enough when halving it on and on would change epsilon by less than this
_REFINED = 2e-3
# how much coarser than the scale of the losses the first grid may be, and how often it is halved at most
_COARSEST, _MOST_HALVINGS = 64.0, 13
_LARGEST_TABLE = 1 << 18
_SMALL_TABLE = 1 << 11
# repetitions beyond this are left to the closed forms
_MOST_RELEASES = 10**9


def losses_of(event: Event, grid: float, sampled: float = 1.0) -> Losses:
    """Both loss distributions of one canonical event on ``grid``; ValueError where none is known. Of ``_OUTCOMES`` also
    ``sampled`` with a rate."""
    match event:
        case Gaussian(noise_multiplier):
            return mixture_losses(GaussianMixture(noise_multiplier, (1.0,), (1.0,)), grid)
        case GaussianMixture():
            return mixture_losses(event, grid)
        case Laplace(noise_multiplier):
            return laplace_losses(noise_multiplier, grid, sampled)
        case RandomizedResponse(epsilon, levels):
            return response_losses(epsilon, levels, grid, sampled)
        case DiscreteGaussian(sigma, sensitivity):
            return discrete_gaussian_losses(sigma, sensitivity, grid, sampled)
        case ShuffledReports():
            shuffled: Losses = bounds_of(event).shuffled_losses(event, grid)
            return shuffled
        case SampledWithoutReplacement():
            return _either_way(mixture_losses(_drawn(event), grid).remove)
        case PoissonSampled(rate, inner):
            return _poisson_sampled(rate, canonical(inner).parts, grid)
        case _:
            raise InvalidArgument("not-supported", "event", f"no privacy loss distribution is known for {event!r}")


# events that are sampled outcome by outcome
_OUTCOMES = (Laplace, RandomizedResponse, DiscreteGaussian)


def _poisson_sampled(rate: float, parts: Parts, grid: float) -> Losses:
    """Sampling of known events; one alone is sampled outcome by outcome where that can be done."""
    sampled = zero_out(parts)
    if sampled and len(parts) == 1 and parts[0][1] == 1 and isinstance(parts[0][0], _OUTCOMES):
        return losses_of(_absent(parts[0][0]), grid, rate)
    # a loss l becomes about rate (e^l - 1): on a grid coarser by that factor it is known as well
    own = grid / rate if sampled else grid
    tables = [(losses_of(_absent(simple), own), count) for simple, count in parts]
    remove = composed([(table.remove, count) for table, count in tables])
    add = composed([(table.add, count) for table, count in tables])
    if remove is None or add is None:
        raise MemoryError("the sampled composition is too large for this grid")
    whole = Losses(remove, add)
    return sampled_losses(whole, rate, grid) if sampled else whole


def _drawn(event: SampledWithoutReplacement) -> GaussianMixture:
    """The unit is drawn with probability size / population."""
    rate = event.size / event.population
    return GaussianMixture(event.event.noise_multiplier, (0.0, 1.0), (1.0 - rate, rate))


def _either_way(remove: Pld) -> Losses:
    """The pair of a place that is drawn with probability q, in which one unit takes the place of another.

    With the Gaussian pair (P, Q) of the replacement, delta(epsilon) = q delta_G(ln(1 + (e^epsilon - 1) / q)) for
    epsilon >= 0 (Balle, Barthe, Gaboardi 2018, Theorem 2, where any two of the three distributions, without the place
    and with either unit in it, are within that Gaussian), and delta(-epsilon) = 1 - e^-epsilon + e^-epsilon
    delta(epsilon), because the relation is symmetric. A pair with such a profile dominates, and may be composed (Zhu,
    Dong, Wang 2022). With rho = dP/dQ and x = e^epsilon >= 1 it is E_Q[(1 - q + q rho - x)+], that of ((1 - q) Q + q P,
    Q): its losses above 0 are those of Poisson sampling, ``remove``. Below 0 they are mirrored, with the probability
    that Q has there, and the rest is at 0. What is pessimistic above 0 is so below.
    """
    above = np.maximum(np.arange(remove.low, remove.low + len(remove.mass)), 0)
    mass = np.where(above > 0, remove.mass, 0.0)[above > 0]
    steps = above[above > 0]
    if not len(steps):
        steps, mass = np.array([1]), np.zeros(1)
    top = int(steps[-1])
    whole = np.zeros(2 * top + 1)
    whole[top + steps] = mass
    whole[top - steps] = mass * np.exp(-steps * remove.grid)
    whole[top] = max(0.0, 1.0 - remove.infinite - math.fsum(whole))
    one_way = Pld(remove.grid, -top, whole, remove.infinite)
    return Losses(one_way, one_way)


def by_pld(parts: Parts) -> tuple[Parts, Parts]:
    """Parts of which a useful loss distribution is known, and the others."""
    known = tuple(part for part in parts if _has_pld(part[0]))
    return known, tuple(part for part in parts if not _has_pld(part[0]))


def _has_pld(event: Event) -> bool:
    match event:
        case Gaussian() | GaussianMixture() | Laplace() | RandomizedResponse() | ShuffledReports():
            return True
        case SampledWithoutReplacement(size, population, gaussian):
            # rounding exceeds fainter losses
            return size / population * min(1.0, 1 / gaussian.noise_multiplier) >= FAINTEST
        case DiscreteGaussian(sigma, sensitivity):
            return sensitivity / LARGEST_DISCRETE_SHIFT <= sigma <= LARGEST_DISCRETE_SIGMA
        case PoissonSampled(_, inner):
            return all(_has_pld(simple) for simple, _ in canonical(inner).parts)
        case _:
            return False


def _absent(event: Event) -> Event:
    """An event whose pair is the unit's presence against its absence. Responses on k levels are described by two values
    of the unit; against its absence all that is known is their epsilon."""
    return RandomizedResponse(event.epsilon) if isinstance(event, RandomizedResponse) else event


def _scales(event: Event) -> tuple[float, float]:
    """About the standard deviation of the loss of one release, and about the largest loss that is tabulated."""
    match event:
        case Gaussian(noise):
            return 1 / noise, (12 + 0.5 / noise) / noise
        case GaussianMixture():
            return loss_deviation(event), loss_range(event)
        case SampledWithoutReplacement():
            return _scales(_drawn(event))
        case Laplace(noise):
            return min(1 / noise, 1 / math.sqrt(noise)), 1 / noise
        case RandomizedResponse(epsilon):
            return epsilon, epsilon
        case DiscreteGaussian(sigma, sensitivity):
            return sensitivity / sigma, (12 + sensitivity / sigma) * sensitivity / sigma
        case ShuffledReports(epsilon, reports, pair):
            clones, changed = max(1.0, (reports - 1) * math.exp(-epsilon)), epsilon if pair is None else pair
            return 2 * math.tanh(changed / 2) / math.sqrt(clones), changed
        case PoissonSampled(rate, inner):
            parts = canonical(inner).parts
            each = [(*_scales(part), count) for part, count in parts]
            deviation = math.sqrt(math.fsum(count * one**2 for one, _, count in each))
            # what the sum of many is hardly ever above: their means are at most reach^2 / 2
            square = math.fsum(count * reach**2 for _, reach, count in each)
            largest = min(math.fsum(count * reach for _, reach, count in each), square / 2 + 12 * math.sqrt(square))
            if not zero_out(parts):
                return deviation, largest
            return rate * deviation, float(np.logaddexp(math.log1p(-rate), math.log(rate) + largest)) - math.log1p(
                -rate
            )
        case _:
            return math.inf, 0.0


def _grids(parts: Parts) -> tuple[float, float]:
    """A grid to begin with, and the finest one. The first is an eighth of the root-mean-square loss for many releases,
    finer for few; where that makes for long tables, up to 64 times coarser.

    Splitting losses between grid points adds at most grid^2 / 4 to the variance of each; against the total variance
    that is harmless when the grid is well below the root-mean-square deviation of one release. But often what matters
    are rare, large losses, for which that is much too fine; and halving the grid doubles the work, so that all the
    coarser ones together cost no more than the last.
    """
    scales = [(*_scales(event), count) for event, count in parts]
    releases = sum(count for _, count in parts)
    variance = math.fsum(count * deviation**2 for deviation, _, count in scales)
    fine = math.sqrt(variance / releases) / (8 * max(1.0, 16 / math.sqrt(releases)))
    reach = max(largest for _, largest, _ in scales)
    first = max(min(_COARSEST * fine, max(fine, reach / _SMALL_TABLE)), reach / _LARGEST_TABLE)
    return first, reach / (2 * _LARGEST_TABLE)


def _refine(
    parts: Parts, evaluate: Callable[[PldParts, Array | None], Array], relative: float, absolute: float = 1e-12
) -> Array:
    """The larger ``evaluate`` of both directions on ever finer grids, until what halving would still change is less
    than the tolerance; infinity is an answer. ``evaluate`` gets its answer on the grid before.

    The smallest answer of each direction is kept: each is an upper bound. One that is no larger on a coarse grid than
    the other on a finer one is not asked again. Errors fall by a factor of 2 to 4 with each halving: with the change c
    of the last one, and r the ratio of the last two changes, about c r / (1 - r) remains.
    """
    grid, smallest = _grids(parts)
    remove: Array | None = None
    add: Array | None = None
    best: Array | None = None
    before: Array | None = None
    for _ in range(_MOST_HALVINGS):
        try:
            tables = [(losses_of(event, grid), count) for event, count in parts]
        except MemoryError:
            break
        remove = _smaller(remove, evaluate([(table.remove, count) for table, count in tables], remove))
        if all(table.remove is table.add for table, _ in tables):
            add = remove
        elif add is None or not np.all(add <= remove):
            add = _smaller(add, evaluate([(table.add, count) for table, count in tables], add))
        value: Array = np.maximum(remove, add)
        if best is not None:
            change = np.where(best == value, 0.0, best - value)
            ratio = np.full(len(change), 0.5)
            if before is not None:
                with np.errstate(divide="ignore", invalid="ignore"):
                    ratio = np.where(before > 0, np.clip(change / before, 0.25, 0.75), 0.5)
            remaining = change * ratio / (1 - ratio)
            if np.all((remaining <= relative * np.abs(value)) | (change <= absolute)):
                return value
            before = change
        best = value
        grid /= 2
        if grid < smallest:
            break
    return np.array([math.inf]) if best is None else best


def _smaller(one: Array | None, other: Array) -> Array:
    return other if one is None else np.minimum(one, other)


def refined_epsilon(parts: Parts, delta: float) -> float:
    """The epsilon of a composition at ``delta``, both directions, to 0.2 %."""
    if sum(count for _, count in parts) > _MOST_RELEASES:
        return math.inf

    def evaluate(way: PldParts, before: Array | None) -> Array:
        return np.array([composed_epsilon(way, delta, None if before is None else float(before[0]))])

    with np.errstate(invalid="ignore"):
        return float(_refine(parts, evaluate, _REFINED)[0])


def refined_deltas(parts: Parts, epsilons: Array) -> Array:
    """The deltas of a composition at ``epsilons``, both directions: one to 1 %, a curve to 1 % or 1e-5."""
    if sum(count for _, count in parts) > _MOST_RELEASES:
        return np.ones(len(epsilons))
    # one epsilon: its own tilt, accurate however small; a whole curve: one composition, accurate to 1e-10
    single = len(epsilons) == 1

    def evaluate(way: PldParts, _: Array | None) -> Array:
        if single:
            return np.array([composed_delta(way, float(epsilons[0]))])
        return delta_curve(way, epsilons)

    return np.minimum(1.0, _refine(parts, evaluate, 5 * _REFINED, 1e-12 if single else 1e-5))
