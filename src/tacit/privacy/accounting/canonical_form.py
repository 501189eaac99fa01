"""Events brought into one form, so that what is the same is counted together and order does not matter.

Every event is a multiset of simple releases under adaptive composition. Here it is flattened: nested compositions are
unfolded, Gaussian releases are merged into one (their mu^2 add, ``gaussian``), Poisson-sampled Gaussians become
mixtures in units of their standard deviation, equal events are counted, and what costs nothing or everything is
recognised. Probabilities of failure add up (a union bound) and stand apart: they are not a matter of epsilon.

**Largest inside a composition.** ``Largest`` says that one member took place and not which. Outermost it is the
largest bound of its members. Inside a composition every occurrence may be a different member, also one chosen after
looking at earlier outputs, so a bound must hold for all choices. If one member dominates another (its hockey-stick
divergences are all at least as large), every composition with the other is dominated by the one with it (Zhu, Dong,
Wang 2022, Theorem 10), and the other can be dropped: so it is for Gaussian mixtures whose sensitivities, over the
noise, are stochastically larger, also if they are repeated more often. (The loss of P = sum w_j N(c_j, 1) against Q =
N(0, 1) increases with x, so sup_S P(S) - g Q(S) is attained by half-lines x > t, and P(x > t) = sum w_j Phi(c_j - t)
grows with c; in the other direction by x < t, and P(x < t) falls.) What remains is kept together; Renyi accounting
takes its worst member at every order, which adaptive composition of RDP permits because the bound at an order holds
for every member.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

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
    RandomWalk,
    Repeated,
    SampledWithoutReplacement,
    Selected,
    ShuffledReports,
    Unprotected,
    composition,
)
from tacit.privacy.invalid import InvalidArgument, not_negative, require

Array = npt.NDArray[np.float64]

# multipliers beyond these are treated as the nearer, worse one: no noise at all, or as much as squares can hold
_LEAST_NOISE, _MOST_NOISE = 1e-70, 1e100
# mixtures are made no fainter than this (expected shift in standard deviations): below, rounding exceeds the losses
FAINTEST = 1e-10
# by how much the probabilities of a mixture may fall short of 1: rounding, a few units of the last place
_ROUNDING = 2e-15
# local epsilons beyond this are not amplified by shuffling: e^-40 of the reports are clones
_LARGEST_LOCAL = 40.0


@dataclass(frozen=True)
class Flat:
    """``parts``: distinct simple events and how often; Gaussian ones are merged into one. Not ``protected``:
    infinite. ``failure``: the probability that any of them is not what it seems, to be taken from delta."""

    parts: tuple[tuple[Event, int], ...]
    protected: bool = True
    failure: float = 0.0

    @property
    def empty(self) -> bool:
        return self.protected and not self.parts and self.failure == 0

    def as_event(self) -> Event:
        """One event with the same content."""
        if not self.protected:
            return Unprotected()
        return composition((*self.parts, (Failure(self.failure), 1)) if self.failure else self.parts)


@lru_cache(maxsize=4096)
def canonical(event: Event) -> Flat:
    """The flattened form; ValueError for numbers that no mechanism can have."""
    precisions: list[float] = []
    failures: list[float] = []
    counts: Counter[Event] = Counter()
    for simple, count in _simple(event, 1):
        if isinstance(simple, Unprotected):
            return Flat((), protected=False)
        if isinstance(simple, Gaussian):
            precisions.append(_precision(simple.noise_multiplier, count))
        elif isinstance(simple, Failure):
            failures.append(count * simple.probability)
        else:
            counts[simple] += count
    # an exactly rounded sum, so that order cannot matter
    precision = math.fsum(precisions)
    parts = sorted(counts.items(), key=lambda part: repr(part[0]))
    if precision == math.inf:
        return Flat((), protected=False)
    if precision > 0:
        parts.append((Gaussian(1 / math.sqrt(precision)), 1))
    return Flat(tuple(parts), failure=min(1.0, math.fsum(failures)))


def _simple(event: Event, count: int) -> Iterator[tuple[Event, int]]:
    """The simple events within ``event``, ``count`` times each; Unprotected() for what has no bound."""
    match event:
        case Nothing():
            return
        case Repeated(inner, times):
            if _whole("count", times) > 0:
                yield from _simple(inner, count * times)
        case Composed(events):
            for inner in events:
                yield from _simple(inner, count)
        case Pure(epsilon):
            yield from _scaled(RandomizedResponse(epsilon), not_negative("epsilon", epsilon), count)
        case RandomizedResponse(epsilon, levels):
            if _whole("levels", levels) > 1:
                yield from _scaled(event, not_negative("epsilon", epsilon), count)
        case Gaussian(noise) | Laplace(noise):
            yield from _noisy(event, not_negative("noise_multiplier", noise), count)
        case DiscreteGaussian(sigma, sensitivity):
            if _whole("sensitivity", sensitivity) > 0:
                yield from _noisy(event, not_negative("sigma", sigma), count, "sigma")
        case GaussianMixture():
            yield from _mixture(event, count)
        case PoissonSampled():
            yield from _sampled(event, count)
        case SampledWithoutReplacement(size, population, gaussian):
            require("out-of-range", "size", 0 <= size <= population, f"must be at most {population} (got {size})")
            noise = not_negative("noise_multiplier", gaussian.noise_multiplier)
            if size == population > 0:
                yield from _noisy(gaussian, noise, count)
            elif size > 0 and noise != math.inf:
                kept = replace(event, event=Gaussian(min(noise, _MOST_NOISE)))
                yield from _noisy(kept, noise, count, None)
        case ShuffledReports(epsilon, reports, pair):
            pair = not_negative("pair", epsilon if pair is None else pair)
            if not_negative("epsilon", epsilon) == 0 or pair == 0:
                return
            # so few clones that no crowd hides anything
            alone = _whole("reports", reports) <= 1 or epsilon > _LARGEST_LOCAL
            local = max(pair, epsilon)
            yield from _scaled(RandomizedResponse(local) if alone else event, local, count)
        case RandomWalk(nodes, steps, noise):
            require("out-of-range", "nodes", _whole("nodes", nodes) >= 2, "a walk needs at least two nodes")
            if _whole("steps", steps) > 0:
                yield from _noisy(event, not_negative("noise_multiplier", noise), count)
        case Selected():
            yield from _selected(event, count)
        case Largest(events):
            yield from _largest(events, count)
        case Failure(probability):
            if _share("probability", probability) > 0:
                yield event, count
        case Unprotected():
            yield event, count
        case _:
            raise InvalidArgument("not-supported", "event", f"no accountant covers {event!r}")


def _noisy(
    event: Event, noise: float, count: int, field: str | None = "noise_multiplier"
) -> Iterator[tuple[Event, int]]:
    """No noise: no protection; infinite noise: nothing is released; more noise than squares can hold: that much."""
    if noise < _LEAST_NOISE:
        yield Unprotected("no noise"), count
    elif noise != math.inf:
        yield (replace(event, **{field: _MOST_NOISE}) if field and noise > _MOST_NOISE else event), count


def _scaled(event: Event, epsilon: float, count: int) -> Iterator[tuple[Event, int]]:
    if epsilon > 1 / _LEAST_NOISE:
        yield Unprotected("an infinite epsilon"), count
    elif epsilon > 0:
        yield event, count


def _mixture(event: GaussianMixture, count: int) -> Iterator[tuple[Event, int]]:
    """Sensitivities in units of the standard deviation, ascending and distinct, of probabilities that sum to 1."""
    noise = not_negative("noise_multiplier", event.noise_multiplier)
    weights = _weights(event)
    if not any(weights):
        return
    shifts = sorted(weights)
    if noise < _LEAST_NOISE * shifts[-1] or math.inf in weights:
        yield Unprotected("no noise"), count
    elif noise != math.inf:
        largest = shifts[-1] / noise
        if len(shifts) == 1 or largest < 10 * FAINTEST:
            yield from _noisy(Gaussian(1 / largest), 1 / largest, count)
        else:
            _raise_to_faintest(weights, noise)
            shifts = sorted(weights)
            yield GaussianMixture(1.0, tuple(c / noise for c in shifts), tuple(weights[c] for c in shifts)), count


def _weights(event: GaussianMixture) -> dict[float, float]:
    """Sensitivities and their probabilities, which sum to 1.

    What is missing from 1 by more than rounding (a number of units that does not depend on how many there are) goes to
    the largest sensitivity, also if that has probability 0 so far. What exceeds 1 is taken from the smallest ones: then
    Pr[c >= t] = min(1, sum of those from t on) is at least that of any probabilities which are no larger than those
    given, and larger sensitivities are worse (see the module).
    """
    same = len(event.sensitivities) == len(event.probabilities)
    require("wrong-length", "probabilities", same, "a mixture needs one probability per sensitivity")
    grouped: defaultdict[float, list[float]] = defaultdict(list)
    for sensitivity, probability in zip(event.sensitivities, event.probabilities, strict=True):
        shift = float(not_negative("sensitivity", sensitivity))
        if not_negative("probability", probability) > 0:
            grouped[shift].append(float(probability))
    weights = {shift: math.fsum(parts) for shift, parts in grouped.items()}
    total = math.fsum(probability for parts in grouped.values() for probability in parts)
    require("out-of-range", "probabilities", total <= 1 + 1e-9, f"the probabilities of a mixture sum to {total}")
    if total < 1 - _ROUNDING and event.sensitivities:
        largest = float(max(event.sensitivities))
        weights[largest] = weights.get(largest, 0.0) + (1 - total)
    elif 0 < total < 1:
        weights = {shift: weight / total for shift, weight in weights.items()}
    excess = max(0.0, total - 1)
    for shift in sorted(weights):
        if excess <= 0 or len(weights) == 1:
            break
        taken = min(excess, weights[shift])
        excess -= taken
        weights[shift] -= taken
        if weights[shift] == 0:
            del weights[shift]
    return weights


def _raise_to_faintest(weights: dict[float, float], noise: float) -> None:
    """Move probability from no shift to the largest one until the expected shift is worth computing: more is worse."""
    largest = min(1.0, max(weights) / noise)
    lacking = FAINTEST - math.fsum(weight * min(1.0, shift / noise) for shift, weight in weights.items())
    if lacking > 0 and weights.get(0.0, 0.0) > lacking / largest:
        weights[0.0] -= lacking / largest
        weights[max(weights)] += lacking / largest


def _sampled(event: PoissonSampled, count: int) -> Iterator[tuple[Event, int]]:
    """Sampling with probability 1 is none; of Gaussians it is a mixture; twice is once with the product."""
    rate = _share("rate", event.rate)
    inner = canonical(event.event)
    if inner.failure:  # a unit that is not sampled may fail, too
        yield Failure(inner.failure), count
        inner = replace(inner, failure=0.0)
    if rate == 0 or inner.empty:
        return
    if rate == 1 or not inner.protected:
        yield from _simple(inner.as_event(), count)
        return
    only = inner.parts[0][0] if len(inner.parts) == 1 and inner.parts[0][1] == 1 else None
    match only:
        case Gaussian(noise):
            yield from _mixture(GaussianMixture(noise, (0.0, 1.0), (1 - rate, rate)), count)
        case GaussianMixture(noise, shifts, weights):
            thinned = tuple(rate * weight for weight in weights)
            yield from _mixture(GaussianMixture(noise, (0.0, *shifts), (1 - rate, *thinned)), count)
        case PoissonSampled(other, deeper):
            yield PoissonSampled(rate * other, deeper), count
        case _:
            yield PoissonSampled(rate, inner.as_event()), count


def _selected(event: Selected, count: int) -> Iterator[tuple[Event, int]]:
    """Exactly one run is that run; runs that say nothing say nothing about which is the best."""
    certain = event.law == "negative-binomial"
    usual = not certain or -1 < event.shape < math.inf
    require("out-of-range", "shape", usual, f"must be above -1 and finite (got {event.shape})")
    problem = f"must be finite, and at least 1 unless Poisson (got {event.mean})"
    require("out-of-range", "mean", (1 if certain else 0) <= event.mean < math.inf, problem)
    inner = canonical(event.event)
    if inner.empty or event.mean == 0:
        return
    if not inner.protected or (certain and event.mean == 1):
        yield from _simple(inner.as_event(), count)
    elif inner.failure:
        yield Unprotected("how often the best of several runs fails is not known"), count
    else:
        yield Selected(inner.as_event(), event.mean, event.law, event.shape if certain else 1.0), count


def _largest(events: tuple[Event, ...], count: int) -> Iterator[tuple[Event, int]]:
    """Members that another one dominates are dropped; a single one left stands for all."""
    flats = [canonical(event) for event in events]
    if any(not flat.protected for flat in flats):
        yield Unprotected("one of the alternatives has no bound"), count
        return
    failure = max((flat.failure for flat in flats), default=0.0)
    if failure:
        yield Failure(failure), count
        flats = [replace(flat, failure=0.0) for flat in flats]
    kept: list[Flat] = []
    for flat in sorted((flat for flat in flats if not flat.empty), key=repr):
        if not any(_dominates(other, flat) for other in kept):
            kept = [other for other in kept if not _dominates(flat, other)] + [flat]
    if len(kept) == 1:
        yield from _simple(kept[0].as_event(), count)
    elif kept:
        yield Largest(tuple(flat.as_event() for flat in kept)), count


def _dominates(one: Flat, other: Flat) -> bool:
    """Whether ``one`` is provably at least as revealing: the same events at least as often, or one Gaussian mixture
    with stochastically larger sensitivities, at least as often."""
    counts = dict(one.parts)
    if all(counts.get(event, 0) >= count for event, count in other.parts if not isinstance(event, Gaussian)):
        mine = next((event.noise_multiplier for event in counts if isinstance(event, Gaussian)), math.inf)
        theirs = next((event.noise_multiplier for event, _ in other.parts if isinstance(event, Gaussian)), math.inf)
        if mine <= theirs:
            return True
    if len(one.parts) != 1 or len(other.parts) != 1 or one.parts[0][1] < other.parts[0][1]:
        return False
    larger, smaller = _as_mixture(one.parts[0][0]), _as_mixture(other.parts[0][0])
    if larger is None or smaller is None:
        return False
    points = np.union1d(larger[0], smaller[0])
    return bool(np.all(_survival(larger, points) >= _survival(smaller, points)))


def _as_mixture(event: Event) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    match event:
        case Gaussian(noise):
            return (1 / noise,), (1.0,)
        case GaussianMixture(_, shifts, weights):
            return shifts, weights
        case _:
            return None


def _survival(mixture: tuple[tuple[float, ...], tuple[float, ...]], points: Array) -> Array:
    """Pr[c >= point]."""
    shifts, weights = np.array(mixture[0]), np.array(mixture[1])
    return np.array([weights[shifts >= point].sum() for point in points])


def zero_out(parts: tuple[tuple[Event, int], ...]) -> bool:
    """Whether canonical events hold for a unit that may be absent: then sampling amplifies them. Shuffled reports,
    batches of a fixed size and a walk are known under replacement only: the unit is always there."""
    return all(_may_be_absent(event) for event, _ in parts)


def _may_be_absent(event: Event) -> bool:
    match event:
        case ShuffledReports() | SampledWithoutReplacement() | RandomWalk():
            return False
        case PoissonSampled(_, inner) | Selected(inner):
            return zero_out(canonical(inner).parts)
        case Largest(events):
            return all(zero_out(canonical(inner).parts) for inner in events)
        case _:
            return True


def _precision(noise: float, count: int) -> float:
    """count / noise^2, infinite instead of an overflow."""
    square = noise * noise
    return count / square if count < square * 1e300 else math.inf


def _share(name: str, value: float) -> float:
    require("out-of-range", name, not_negative(name, value) <= 1, f"must be at most 1 (got {value})")
    return value


def _whole(name: str, value: int) -> int:
    require("out-of-range", name, value == int(value) >= 0, f"must be a whole number from 0 on (got {value})")
    return int(value)
