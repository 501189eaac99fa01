"""Privacy loss distributions of events, and what their composition costs on a grid that is fine enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tacit.privacy.composition import canonical, zero_out
from tacit.privacy.discrete_losses import (
    LARGEST_DISCRETE_SHIFT,
    LARGEST_DISCRETE_SIGMA,
    discrete_gaussian_losses,
    laplace_losses,
    response_losses,
    sampled_losses,
)
from tacit.privacy.events import (
    DiscreteGaussian,
    Event,
    Gaussian,
    GaussianMixture,
    Laplace,
    PoissonSampled,
    RandomizedResponse,
    ShuffledReports,
)
from tacit.privacy.mixture import loss_deviation, loss_range, mixture_losses
from tacit.privacy.pld import Losses, Pld, composed, composed_delta, composed_epsilon, delta_curve

Array = npt.NDArray[np.float64]
Parts = Sequence[tuple[Event, int]]

# the grid is fine enough when halving it changes epsilon by less than this
_REFINED = 2e-3
_LARGEST_TABLE = 1 << 18
# repetitions beyond this are left to the closed forms
_MOST_RELEASES = 10**9


def losses_of(event: Event, grid: float) -> Losses:
    """Both loss distributions of one canonical event on ``grid``; ValueError where none is known."""
    match event:
        case Gaussian(noise_multiplier):
            return mixture_losses(GaussianMixture(noise_multiplier, (1.0,), (1.0,)), grid)
        case GaussianMixture():
            return mixture_losses(event, grid)
        case Laplace(noise_multiplier):
            return laplace_losses(noise_multiplier, grid)
        case RandomizedResponse(epsilon, levels):
            return response_losses(epsilon, levels, grid)
        case DiscreteGaussian(sigma, sensitivity):
            return discrete_gaussian_losses(sigma, sensitivity, grid)
        case ShuffledReports():
            return _shuffled(event, grid)
        case PoissonSampled(rate, inner):
            parts = canonical(inner).parts
            tables = [(losses_of(_absent(simple), grid), count) for simple, count in parts]
            remove = composed([(table.remove, count) for table, count in tables])
            add = composed([(table.add, count) for table, count in tables])
            if remove is None or add is None:
                raise MemoryError("the sampled composition is too large for this grid")
            whole = Losses(remove, add)
            return sampled_losses(whole, rate) if zero_out(parts) else whole
        case _:
            raise ValueError(f"no privacy loss distribution is known for {event!r}")


@lru_cache(maxsize=32)
def _shuffled(event: ShuffledReports, grid: float) -> Losses:
    from tacit.privacy.shuffle_bounds import shuffled_pld

    return from_dp_accounting(shuffled_pld(event, grid))


def from_dp_accounting(distribution: object) -> Losses:
    """A pessimistic distribution of dp-accounting as one of ours."""

    def table(pmf: object) -> Pld:
        dense = pmf.to_dense_pmf()  # type: ignore[attr-defined]
        mass = np.asarray(dense._probs, dtype=np.float64)
        return Pld(dense._discretization, int(dense._lower_loss), mass, float(dense._infinity_mass))

    remove = table(distribution._pmf_remove)  # type: ignore[attr-defined]
    return Losses(remove, remove if distribution._symmetric else table(distribution._pmf_add))  # type: ignore[attr-defined]


def by_pld(parts: Parts) -> tuple[tuple[tuple[Event, int], ...], tuple[tuple[Event, int], ...]]:
    """Parts of which a useful loss distribution is known, and the others."""
    known = tuple(part for part in parts if _has_pld(part[0]))
    return known, tuple(part for part in parts if not _has_pld(part[0]))


def _has_pld(event: Event) -> bool:
    match event:
        case Gaussian() | GaussianMixture() | Laplace() | RandomizedResponse() | ShuffledReports():
            return True
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


def _deviation(event: Event) -> float:
    """About the standard deviation of the loss of one release."""
    match event:
        case Gaussian(noise_multiplier):
            return 1 / noise_multiplier
        case GaussianMixture():
            return loss_deviation(event)
        case Laplace(noise_multiplier):
            return min(1 / noise_multiplier, 1 / math.sqrt(noise_multiplier))
        case RandomizedResponse(epsilon):
            return epsilon
        case DiscreteGaussian(sigma, sensitivity):
            return sensitivity / sigma
        case ShuffledReports(epsilon, reports, pair):
            clones = max(1.0, (reports - 1) * math.exp(-epsilon))
            return 2 * math.tanh((epsilon if pair is None else pair) / 2) / math.sqrt(clones)
        case PoissonSampled(rate, inner):
            inside = math.sqrt(math.fsum(count * _deviation(part) ** 2 for part, count in canonical(inner).parts))
            return rate * inside
        case _:
            return math.inf


def _range(event: Event) -> float:
    """Length of the interval of losses to tabulate, where it can be much longer than the deviation."""
    match event:
        case GaussianMixture():
            return loss_range(event)
        case PoissonSampled(_, inner):
            return math.fsum(_range(part) for part, _ in canonical(inner).parts)
        case _:
            return 0.0


def _first_grid(parts: Parts) -> float:
    """A grid to begin with: an eighth of the root-mean-square loss for many releases, finer for few.

    Splitting losses between grid points adds at most grid^2 / 4 to the variance of each; against the total variance
    that is harmless when the grid is well below the root-mean-square deviation of one release.
    """
    releases = sum(count for _, count in parts)
    variance = math.fsum(count * _deviation(event) ** 2 for event, count in parts)
    fine = math.sqrt(variance / releases) / (8 * max(1.0, 16 / math.sqrt(releases)))
    return max(fine, max(_range(event) for event, _ in parts) / _LARGEST_TABLE)


def _refine(
    parts: Parts, evaluate: Callable[[list[tuple[Losses, int]]], Array], relative: float, absolute: float = 1e-12
) -> Array:
    """``evaluate`` on ever finer grids until halving changes its answer by less than the tolerance; infinity is an
    answer.

    The smallest answer is kept: each is an upper bound.
    """
    grid, smallest = _first_grid(parts), max(_range(event) for event, _ in parts) / (2 * _LARGEST_TABLE)
    best: Array | None = None
    for _ in range(7):
        try:
            value = evaluate([(losses_of(event, grid), count) for event, count in parts])
        except MemoryError:
            break
        if best is not None:
            change = np.abs(best - value)
            done = bool(np.all((change <= relative * np.abs(value)) | np.isnan(change) | (change <= absolute)))
            best = np.minimum(best, value)
            if done:
                return best
        else:
            best = value
        grid /= 2
        if grid < smallest:
            break
    return np.array([math.inf]) if best is None else best


def refined_epsilon(parts: Parts, delta: float) -> float:
    """The epsilon of a composition at ``delta``, both directions, to 0.2 %."""
    if sum(count for _, count in parts) > _MOST_RELEASES:
        return math.inf

    def evaluate(tables: list[tuple[Losses, int]]) -> Array:
        ways = ([(table.remove, count) for table, count in tables], [(table.add, count) for table, count in tables])
        return np.array([max(composed_epsilon(way, delta) for way in ways)])

    with np.errstate(invalid="ignore"):
        return float(_refine(parts, evaluate, _REFINED)[0])


def refined_deltas(parts: Parts, epsilons: Array) -> Array:
    """The deltas of a composition at ``epsilons``, both directions: one to 1 %, a curve to 1 % or 1e-5."""
    if sum(count for _, count in parts) > _MOST_RELEASES:
        return np.ones(len(epsilons))
    # one epsilon: its own tilt, accurate however small; a whole curve: one composition, accurate to 1e-10
    single = len(epsilons) == 1

    def evaluate(tables: list[tuple[Losses, int]]) -> Array:
        ways = ([(table.remove, count) for table, count in tables], [(table.add, count) for table, count in tables])
        if single:
            return np.array([max(composed_delta(way, float(epsilons[0])) for way in ways)])
        return np.maximum(*(delta_curve(way, epsilons) for way in ways))

    return np.minimum(1.0, _refine(parts, evaluate, 5 * _REFINED, 1e-12 if single else 1e-5))
