"""Guarantees for a subject with two unlinked pseudonyms: every mechanism takes them for two subjects.

**Formal guarantee.** Data sets with and without both differ in two units. A release that is described by an event for
one unit is described by :func:`of_two` for two. A sum moves by twice as much. Where a coin of its own decides about
each unit, the amounts that are drawn are independent, and vectors of norm at most c_i and c_j move the sum by at most
c_i + c_j: a mixture (``gaussian_mixture``). To count a unit as always drawn is an upper bound, too (joint convexity).
Releases add up as before.

Where no such event is known, (epsilon, delta) for one unit gives (2 epsilon, (1 + e^epsilon) delta) for two, because
Pr[M(D)] <= e^epsilon Pr[M(D')] + delta holds twice.
"""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import combinations, product

from tacit.privacy.accounting.account import account
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
from tacit.privacy.bisection import bisect

PSEUDONYMS = 2
# halvings in the search for the delta of one unit; amounts of a mixture, and members, of which all pairs are taken
_STEPS, _MOST_AMOUNTS, _MOST_MEMBERS = 12, 1000, 8


def linked_epsilon(event: Event, delta: float) -> float:
    """The epsilon at ``delta`` for two units at once, each of which releases ``event`` describes."""
    both = of_two(event)
    return _converted(event, delta) if both is None else account(both, delta).epsilon


def of_two(event: Event) -> Event | None:
    """What ``event`` is for two units at once; None where only the conversion is known."""
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
