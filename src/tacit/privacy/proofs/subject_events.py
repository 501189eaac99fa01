"""Events of one subject, and of one with two pseudonyms: pure functions of public numbers (specification 1.1, 1.2, 2).

Throughout, ``noise_multiplier`` is the standard deviation of the noise on a *sum* divided by the clip C, ``rate`` the
public probability with which each record enters a batch, ``records`` the public and enforced largest number of
records per subject and silo, and the relation is zero-out unless said otherwise.
"""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import combinations, product

import numpy as np
import numpy.typing as npt

from tacit.privacy.accounting.events import (
    Composed,
    DiscreteGaussian,
    Event,
    Failure,
    Gaussian,
    GaussianMixture,
    Laplace,
    Largest,
    Nothing,
    PoissonSampled,
    Pure,
    RandomizedResponse,
    Repeated,
    SampledWithoutReplacement,
    Unprotected,
)

Array = npt.NDArray[np.float64]

# A rate is written as a share of this population, rounded up.
_POPULATION = 10**9


def sampled_place(rate: float, replaced: Gaussian) -> Event:
    """A unit takes part with probability ``rate``; the change puts another unit in its place.

    With P0 for a place that is left out, P1 and P1' for one that is in, the pair is (1 - rate) P0 + rate P1 against
    (1 - rate) P0 + rate P1'. Where any two of the three are no further apart than ``replaced`` says, advanced joint
    convexity gives what sampling without replacement gives (Balle, Barthe, Gaboardi 2018; specification 9.8).
    """
    if rate >= 1:
        return replaced
    return SampledWithoutReplacement(math.ceil(rate * _POPULATION), _POPULATION, replaced)


def subject_rate(rate: float, records: int) -> float:
    """1 - (1 - rate)^records: the probability that a batch holds at least one of the subject's records."""
    return -math.expm1(records * math.log1p(-rate)) if rate < 1 else float(records > 0)


def averaged_per_subject(rate: float, records: int, noise_multiplier: float, batches: int) -> Event:
    """HiGradAvgDP: whatever the number of sampled records, the subject moves the sum by at most C."""
    return Repeated(PoissonSampled(subject_rate(rate, records), Gaussian(noise_multiplier)), batches)


def summed_records(rate: float, records: int, noise_multiplier: float, batches: int, cap: int | None = None) -> Event:
    """LocalGroupDP, LocalSubDP and ULDP-GROUP-k with constant noise: j sampled records move the sum by up to j C, by
    min(j, cap) C where the excess is dropped at random."""
    return Repeated(binomial_mixture(records, rate, noise_multiplier, cap), batches)


def binomial_mixture(
    parts: int, rate: float, noise_multiplier: float, cap: int | None = None, step: float = 1.0
) -> GaussianMixture:
    """A unit in ``parts`` parts, each sampled with ``rate`` by a coin of its own and moving the sum by ``step``; what
    is beyond ``cap`` parts is dropped."""
    moved = step * np.minimum(np.arange(parts + 1), parts if cap is None else cap)
    return GaussianMixture(noise_multiplier, tuple(moved.tolist()), tuple(binomial(parts, rate).tolist()))


def binomial(trials: int, rate: float) -> Array:
    """Pr[Binom(trials, rate) = 0..trials], summing to 1."""
    j = np.arange(trials + 1)
    if rate <= 0 or rate >= 1:
        return np.asarray(j == (trials if rate >= 1 else 0), dtype=np.float64)
    # of few numbers, and without SciPy, which takes a second to import
    factorials = np.array([math.lgamma(i + 1) for i in range(trials + 1)])
    logs = factorials[trials] - factorials - factorials[::-1] + j * math.log(rate) + (trials - j) * math.log1p(-rate)
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / math.fsum(weights), dtype=np.float64)


def naive_silos(noise_multiplier: float, rounds: int) -> Event:
    """ULDP-NAIVE, noise relative to C |S|: a silo's clipped update depends on all its users and may flip, 2 C."""
    return Repeated(Gaussian(noise_multiplier / 2), rounds)


def colluding_factor(silos: int, colluding: int = 1) -> float:
    """Silos that subtract their own noise multiply the Renyi divergence by |S| / (|S| - c), for any weights."""
    others = silos - colluding
    return silos / others if others > 0 else math.inf  # no silo is left to protect


# -- a subject with two unlinked pseudonyms ----------------------------------------------------------------------------

PSEUDONYMS = 2
# halvings in the search for the delta of one unit; amounts of a mixture, and members, of which all pairs are taken
_STEPS, _MOST_AMOUNTS, _MOST_MEMBERS = 12, 1000, 8


def linked_epsilon(event: Event, delta: float) -> float:
    """The epsilon at ``delta`` for a subject with two unlinked pseudonyms: every mechanism takes them for two subjects,
    each of which releases ``event`` describes.

    Where :func:`of_two` knows no event, (epsilon, delta) for one unit gives (2 epsilon, (1 + e^epsilon) delta) for two,
    because Pr[M(D)] <= e^epsilon Pr[M(D')] + delta holds twice.
    """
    from tacit.privacy.accounting.account import account  # slow to import

    both = of_two(event)
    return _converted(event, delta) if both is None else account(both, delta).epsilon


def of_two(event: Event) -> Event | None:
    """What ``event`` is for two units at once; None where only the conversion is known.

    **Formal guarantee.** Data sets with and without both differ in two units. A sum moves by twice as much. Where a
    coin of its own decides about each unit, the amounts that are drawn are independent, and vectors of norm at most c_i
    and c_j move the sum by at most c_i + c_j. A mixture (``gaussian_mixture``). To count a unit as always drawn is an
    upper bound, too (joint convexity). Releases add up as before.
    """
    match event:
        case Nothing() | Unprotected():
            return event
        case Gaussian(noise):
            return Gaussian(noise / 2)
        case Laplace(noise):
            return Laplace(noise / 2)
        case DiscreteGaussian(sigma, sensitivity):
            return DiscreteGaussian(sigma, 2 * sensitivity)
        case Pure(epsilon) | RandomizedResponse(epsilon):
            return Pure(2 * epsilon)
        case GaussianMixture():
            return _twice(event)
        case PoissonSampled(rate, Gaussian(noise)):
            return _twice(GaussianMixture(noise, (0.0, 1.0), (1.0 - rate, rate)))
        case PoissonSampled(_, inner) | SampledWithoutReplacement(_, _, inner):
            return of_two(inner)
        case Failure(probability):
            return Failure(min(1.0, 2 * probability))
        case Repeated(inner, count):
            both = of_two(inner)
            return None if both is None else Repeated(both, count)
        case Composed(events):
            found = _each(events)
            return None if found is None else Composed(found)
        case Largest(events):  # the two may be in different ones
            found = _each(events) if len(events) <= _MOST_MEMBERS else None
            return None if found is None else Largest((*found, *map(Composed, combinations(events, 2))))
        case _:
            return None


def _each(events: tuple[Event, ...]) -> tuple[Event, ...] | None:
    found = [both for inner in events if (both := of_two(inner)) is not None]
    return tuple(found) if len(found) == len(events) else None


def _twice(event: GaussianMixture) -> Event:
    """The sum of two independent amounts; of very many amounts, the largest is counted as certain."""
    if len(event.sensitivities) > _MOST_AMOUNTS:
        return Gaussian(event.noise_multiplier / (2 * max(event.sensitivities)))
    one = list(zip(event.sensitivities, event.probabilities, strict=True))
    sums: defaultdict[float, list[float]] = defaultdict(list)
    for (first, p), (second, q) in product(one, one):
        sums[first + second].append(p * q)
    return GaussianMixture(event.noise_multiplier, tuple(sums), tuple(math.fsum(parts) for parts in sums.values()))


def _converted(event: Event, delta: float) -> float:
    """The smallest 2 epsilon found with (1 + e^epsilon) delta' <= delta, (epsilon, delta') proved for one unit."""
    from tacit.privacy.accounting.account import account
    from tacit.privacy.accounting.gaussian import bisect

    if delta <= 0:
        return 2 * account(event, 0.0).epsilon
    high = math.log(delta / 2)  # too large a delta', unless epsilon is 0
    low, best = high - 1.0, math.inf
    for _ in range(_STEPS):  # downwards until one is small enough
        best = account(event, math.exp(low)).epsilon
        if math.isinf(best) or low + _log_one_plus(best) <= math.log(delta):
            break
        high, low = low, math.log(delta) - _log_one_plus(best) - 1.0
    else:
        return math.inf
    proved = [best]

    def too_large(log_delta: float) -> bool:
        epsilon = account(event, math.exp(log_delta)).epsilon
        if log_delta + _log_one_plus(epsilon) > math.log(delta):
            return True
        proved.append(epsilon)
        return False

    bisect(too_large, low, high, steps=_STEPS)
    return 2 * min(proved)


def _log_one_plus(epsilon: float) -> float:
    """ln(1 + e^epsilon)."""
    return max(0.0, epsilon) + math.log1p(math.exp(-abs(epsilon)))
