"""What an event costs: the smallest epsilon, or delta, that one of several valid accountants proves; and the noise or
number of rounds for a given epsilon.

The printed value is max(0, min over the accountants that apply); each is an upper bound on its own and none is always
the smallest (specification 0.5):

gaussian  exact, for compositions of Gaussians (``gaussian``)
pld       privacy loss distributions, pessimistic, the grid halved until what is left to gain is below 0.2 % (``pld``)
rdp       Renyi divergences (``rdp``)
simple    the sum of pure epsilons, where every part has one (Dwork et al. 2006)
blanket   a single set of shuffled reports by the privacy blanket of its randomiser (``shuffle_bounds``)
selection a single choice of the best of several runs, from the trade-off of one run (``selection_bounds``)
absent    0, where the unit is sampled at all with probability at most delta (:func:`_taking_part`)
unsampled batches without replacement counted as if the unit were in each, then one of the above
split     some parts by pld at delta / 2 and the others by rdp at delta / 2, added, where neither knows all of them

Infinity means that nothing is proved. Nothing here is ever NaN or negative.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tacit.privacy.accounting.canonical_form import Flat, canonical, zero_out
from tacit.privacy.accounting.event_losses import Parts, by_pld, refined_deltas, refined_epsilon
from tacit.privacy.accounting.events import (
    Composed,
    Event,
    Gaussian,
    GaussianMixture,
    Laplace,
    Largest,
    PoissonSampled,
    RandomizedResponse,
    Repeated,
    SampledWithoutReplacement,
    Selected,
    ShuffledReports,
    bounds_of,
    composition,
)
from tacit.privacy.accounting.gaussian import bisect, gaussian_delta, gaussian_epsilon, smallest_integer
from tacit.privacy.accounting.rdp import ORDERS, composed_rdp, rdp_delta, rdp_epsilon
from tacit.privacy.invalid import InvalidArgument, not_negative, require

Array = npt.NDArray[np.float64]

# the epsilons at which a trade-off is asked for its delta: dense where attacks on few runs are, up to what none reaches
CURVE: Array = np.concatenate([np.linspace(0.0, 1.0, 41), np.geomspace(1.05, 60.0, 80)])
# the range in which noise is searched for
_LARGEST_NOISE = 1e9
_SMALLEST_NOISE = 1e-6


@dataclass(frozen=True)
class Bound:
    """(epsilon, delta), the accountant that proved it, and what each of them proves (``parts``)."""

    epsilon: float
    delta: float
    accountant: str
    parts: Mapping[str, float]


@dataclass(frozen=True)
class AttackLimits:
    """What no attacker on one unit's presence can exceed.

    advantage   true-positive rate minus false-positive rate, at the best threshold
    tpr_at_fpr  the largest true-positive rate at given false-positive rates
    """

    advantage: float
    tpr_at_fpr: Mapping[float, float]


def account(event: Event, delta: float) -> Bound:
    """The smallest epsilon proved for ``event`` at ``delta``; infinity where there is none."""
    not_negative("delta", delta)
    event = _outermost(event)
    if isinstance(event, Largest):
        # one of them took place: the worst bounds it. (Largest within a composition: see ``canonical_form``.)
        bounds = [account(member, delta) for member in event.events]
        return max(bounds, key=lambda bound: bound.epsilon, default=_bound({"simple": 0.0}, delta))
    return _account(canonical(event), float(delta))


@lru_cache(maxsize=4096)
def _account(flat: Flat, delta: float) -> Bound:
    if delta >= 1 or flat.empty:
        return _bound({"simple": 0.0}, delta)
    if not flat.protected or flat.failure > delta:
        return _bound({"simple": math.inf}, delta)
    if flat.failure:
        # (epsilon, delta - failure) where nothing fails
        return replace(_account(replace(flat, failure=0.0), delta - flat.failure), delta=delta)
    if _taking_part(flat) <= delta:
        return _bound({"absent": 0.0}, delta)
    parts = {"simple": _pure(flat.parts)}
    only = _only(flat)
    if isinstance(only, Gaussian):
        parts["gaussian"] = gaussian_epsilon(1 / only.noise_multiplier, delta)
    if delta > 0:
        parts["rdp"] = rdp_epsilon(ORDERS, composed_rdp(flat.parts), delta)
        known, unknown = ((), ()) if isinstance(only, Gaussian) else by_pld(flat.parts)
        if known and not unknown:
            parts["pld"] = refined_epsilon(flat.parts, delta)
        elif known:
            rest = rdp_epsilon(ORDERS, composed_rdp(unknown), delta / 2)
            parts["split"] = _account(Flat(known), delta / 2).epsilon + rest
        if isinstance(only, ShuffledReports) and _has_blanket(only):
            parts["blanket"] = bounds_of(only).blanket_epsilon(only, delta)
        if isinstance(only, Selected):
            parts["selection"] = bounds_of(only).selection_epsilon(only, delta)
        if any(isinstance(simple, SampledWithoutReplacement) for simple, _ in flat.parts):
            parts["unsampled"] = account(_unsampled(flat), delta).epsilon
    return _bound(parts, delta)


def delta_of(event: Event, epsilon: float) -> float:
    """The smallest delta proved for ``event`` at ``epsilon``; 1 where nothing is."""
    not_negative("epsilon", epsilon)
    return float(delta_profile(event, np.array([epsilon], dtype=np.float64))[0])


def delta_profile(event: Event, epsilons: Array) -> Array:
    """delta at many epsilons (ascending or not), each the smallest that an accountant proves."""
    event = _outermost(event)
    if isinstance(event, Largest):
        members = [delta_profile(member, epsilons) for member in event.events]
        return np.max(np.stack(members), axis=0) if members else np.zeros(len(epsilons))
    flat = canonical(event)
    if flat.empty:
        return np.zeros(len(epsilons))
    if not flat.protected:
        return np.ones(len(epsilons))
    if flat.failure:
        without = delta_profile(replace(flat, failure=0.0).as_event(), epsilons)
        return np.minimum(without + flat.failure, 1.0)
    only = _only(flat)
    if isinstance(only, Gaussian):
        return np.array([gaussian_delta(1 / only.noise_multiplier, epsilon) for epsilon in epsilons.tolist()])
    pure = _pure(flat.parts)
    rho = composed_rdp(flat.parts)
    values = np.array([0.0 if epsilon >= pure else rdp_delta(ORDERS, rho, epsilon) for epsilon in epsilons.tolist()])
    values = np.minimum(values, _taking_part(flat))
    if not by_pld(flat.parts)[1]:
        values = np.minimum(values, refined_deltas(flat.parts, epsilons))
    if isinstance(only, ShuffledReports) and _has_blanket(only):
        blanket_delta = bounds_of(only).blanket_delta
        values = np.minimum(values, [blanket_delta(only, epsilon) for epsilon in epsilons.tolist()])
    if isinstance(only, Selected):
        values = np.minimum(values, bounds_of(only).selection_deltas(only, epsilons))
    if any(isinstance(simple, SampledWithoutReplacement) for simple, _ in flat.parts):
        values = np.minimum(values, delta_profile(_unsampled(flat), epsilons))
    return np.asarray(np.clip(values, 0.0, 1.0), dtype=np.float64)


def attack_limits(
    event: Event | None,
    false_positive_rates: Sequence[float] = (0.001, 0.01),
    pair: tuple[float, float] | None = None,
) -> AttackLimits:
    """Limits on telling the unit's presence from its absence, from the whole trade-off of epsilon and delta, from one
    ``pair`` of them, or from both.

    A test with false-positive rate f and true-positive rate t satisfies, for every epsilon >= 0 and its delta, t <=
    e^epsilon f + delta and 1 - f <= e^epsilon (1 - t) + delta (Wasserman and Zhou 2010; Kairouz, Oh, Viswanath 2015,
    Theorem 2.1). So t <= min over epsilon of min(e^epsilon f + delta, 1 - e^-epsilon (1 - f - delta)). The advantage
    t - f is at most the total variation delta(0), and at most (e^epsilon - 1 + 2 delta) / (e^epsilon + 1) for every
    epsilon.
    """
    epsilons = np.zeros(0) if event is None else CURVE
    deltas = np.zeros(0) if event is None else delta_profile(event, epsilons)
    if pair is not None:
        epsilons, deltas = np.append(epsilons, pair[0]), np.append(deltas, pair[1])
    growth = np.exp(np.minimum(epsilons, 700.0))  # what a float holds
    advantage = np.min((growth - 1 + 2 * deltas) / (growth + 1))
    return AttackLimits(
        float(min(1.0, advantage)), {fpr: most_hits(fpr, growth, deltas) for fpr in false_positive_rates}
    )


def most_hits(false_alarms: float, growth: Array, deltas: Array) -> float:
    """The largest true-positive rate at a false-positive rate, by all e^epsilon (``growth``) with their ``deltas``."""
    below = np.minimum(growth * false_alarms + deltas, 1 - (1 - false_alarms - deltas) / growth)
    return float(min(1.0, max(false_alarms, below.min())))


def pure_epsilon(event: Event) -> float:
    """The epsilon that holds with delta 0 for one canonical event; infinity for Gaussian noise."""
    match event:
        case RandomizedResponse(epsilon):
            return epsilon
        case Laplace(noise_multiplier):
            return 1 / noise_multiplier
        case ShuffledReports(epsilon, _, pair):
            return epsilon if pair is None else max(epsilon, pair)
        case PoissonSampled(rate, inner):
            whole = _pure(canonical(inner).parts)
            if whole == math.inf or not zero_out(canonical(inner).parts):
                return whole
            # ln(1 + rate (e^epsilon - 1)), without overflow
            return float(np.logaddexp(math.log1p(-rate), math.log(rate) + whole))
        case Selected():
            return float(bounds_of(event).selection_pure_epsilon(event))
        case Largest(members):
            return max(_pure(canonical(member).parts) for member in members)
        case _:
            return math.inf


def _pure(parts: Parts) -> float:
    return math.fsum(count * pure_epsilon(simple) for simple, count in parts)


# -- noise and rounds for a given epsilon: what is returned was itself found within the budget -------------------------


def calibrate_noise(
    make_event: Callable[[float], Event], epsilon: float, delta: float, tolerance: float = 1e-3
) -> float:
    """The smallest noise multiplier, to a relative ``tolerance``, with ``account(make_event(noise), delta) <=
    epsilon``.

    ``make_event`` must cost no more the larger the noise is. Renyi accounting, which is quick and at most a little
    larger, gives an upper end; from there the exact accountants are asked. ValueError where no noise suffices.
    """
    not_negative("epsilon", epsilon)
    not_negative("delta", delta)
    if delta >= 1 or epsilon == math.inf:
        return 0.0

    def cost(noise: float) -> float:
        return account(make_event(noise), delta).epsilon

    high = _bracket(lambda noise: _quick(make_event(noise), delta), epsilon)
    if high is None or cost(high) > epsilon:
        high = _bracket(cost, epsilon)
    if high is None:
        problem = f"no noise reaches epsilon {epsilon} at delta {delta}: part of the event does not depend on it"
        raise InvalidArgument("unreachable", "epsilon", problem)
    # walk down from the valid end until the cost is too high, then close in
    high_cost, low = cost(high), high
    step = 0.85
    while True:
        low *= step
        if low < _SMALLEST_NOISE:
            return high
        low_cost = cost(low)
        if low_cost > epsilon:
            break
        high, high_cost, step = low, low_cost, step * step
    return _close_in(cost, epsilon, (low, low_cost), (high, high_cost), tolerance)


def calibrate_cost(cost: Callable[[float], float], target: float, tolerance: float = 1e-3) -> float:
    """The smallest noise, to a relative ``tolerance``, whose ``cost`` (any number that falls with noise, such as a
    paper's own epsilon) is at most ``target``. ValueError where no noise suffices."""
    high = _bracket(cost, target)
    if high is None:
        raise InvalidArgument("unreachable", "target", f"no noise brings the cost to {target}")
    low = high / 4
    return _close_in(cost, target, (low, cost(low)), (high, cost(high)), tolerance) if cost(low) > target else low


def calibrate_rounds(make_event: Callable[[int], Event], epsilon: float, delta: float, most: int = 10**9) -> int:
    """The largest number of rounds, at most ``most``, whose ``account(make_event(rounds), delta)`` is within
    ``epsilon``. ValueError where it is exceeded before the first one."""
    not_negative("epsilon", epsilon)
    not_negative("delta", delta)

    def cost(rounds: int) -> float:
        return account(make_event(rounds), delta).epsilon

    low, high = 0, most + 1
    # Renyi accounting allows at most a little less: begin with what it allows
    guess = smallest_integer(lambda rounds: _quick(make_event(rounds), delta) > epsilon, 1, high) - 1
    step = max(1, guess // 8)
    while low < high - 1:
        trial = min(max(guess, low + 1), high - 1)
        if cost(trial) <= epsilon:
            low, guess, step = trial, trial + step, 2 * step
        else:
            high = trial
            break
    found = smallest_integer(lambda rounds: cost(rounds) > epsilon, low + 1, high) - 1
    problem = f"epsilon {epsilon} at delta {delta} is exceeded without any round"
    require("unreachable", "epsilon", found > 0 or cost(0) <= epsilon, problem)
    return found


def _quick(event: Event, delta: float) -> float:
    """Renyi accounting alone: an upper bound on what ``account`` proves."""
    flat = canonical(event)
    if not flat.protected or flat.failure > delta:
        return math.inf
    return rdp_epsilon(ORDERS, composed_rdp(flat.parts), delta - flat.failure)


def _bracket(cost: Callable[[float], float], epsilon: float) -> float | None:
    """A noise within the budget, at most 10 % above the smallest such one; None where none is found."""
    noise = 1.0
    while cost(noise) > epsilon:
        noise *= 4
        if noise > _LARGEST_NOISE:
            return None
    low, high = noise / 4, noise
    while cost(low) <= epsilon:
        low, high = low / 4, low
        if low < _SMALLEST_NOISE:
            return high
    return bisect(lambda noise: cost(noise) <= epsilon, low, high, relative=1 - 1 / 1.1, geometric=True)[1]


def _close_in(
    cost: Callable[[float], float],
    epsilon: float,
    low: tuple[float, float],
    high: tuple[float, float],
    tolerance: float,
) -> float:
    """Between a noise that is too small and one that suffices: interpolate ln epsilon in ln noise, a little to the safe
    side, and bisect where that does not help. Returns the sufficient end."""
    for attempt in range(60):
        if high[0] <= low[0] * (1 + tolerance):
            break
        middle = math.sqrt(low[0] * high[0])
        if attempt % 3 < 2 and math.isfinite(low[1]) and low[1] > high[1] > 0 and epsilon > 0:
            share = math.log(low[1] / epsilon) / math.log(low[1] / high[1])
            guess = low[0] * (high[0] / low[0]) ** share * (1 + tolerance / 3 * (1 if attempt % 2 == 0 else -1))
            middle = min(max(guess, low[0] * (1 + tolerance / 4)), high[0] / (1 + tolerance / 4))
        value = cost(middle)
        if value <= epsilon:
            high = (middle, value)
        else:
            low = (middle, value)
    return high[0]


# -- small things ------------------------------------------------------------------------------------------------------


def _outermost(event: Event) -> Event:
    """The event without compositions of it alone: a ``Largest`` that took place once, and nothing else."""
    match event:
        case Repeated(inner, 1) | Composed((inner,)):
            return _outermost(inner)
        case _:
            return event


def _taking_part(flat: Flat) -> float:
    """A bound of delta at every epsilon >= 0: the probability that the unit takes part in anything.

    A sampled release is (1 - q) Q + q P with the unit and Q without it, so the two differ by at most q in total
    variation, whatever P is and whatever came before. Coupled release by release, all of them together differ with
    probability at most 1 - prod (1 - q_i), and delta(epsilon) <= delta(0), the total variation. For a mixture q is the
    probability of a sensitivity above 0. What is known under replacement only is taken to be always there.
    """
    rates = [(_rate(simple), count) for simple, count in flat.parts]
    if any(rate >= 1 for rate, _ in rates):
        return 1.0
    return -math.expm1(math.fsum(count * math.log1p(-rate) for rate, count in rates)) * (1 + 1e-12)


def _rate(event: Event) -> float:
    match event:
        case GaussianMixture(_, sensitivities, probabilities):
            return math.fsum(p for c, p in zip(sensitivities, probabilities, strict=True) if c > 0)
        case PoissonSampled(rate, inner) if zero_out(canonical(inner).parts):
            return rate
        case _:
            return 1.0


def _only(flat: Flat) -> Event | None:
    """The one event that took place, once, and nothing else."""
    return flat.parts[0][0] if len(flat.parts) == 1 and flat.parts[0][1] == 1 else None


def _has_blanket(reports: ShuffledReports) -> bool:
    """Whether the randomiser, and so its privacy blanket, is known."""
    return reports.randomizer != "any" and reports.pair in (None, reports.epsilon)


def _unsampled(flat: Flat) -> Event:
    """Batches without replacement as if the unit were in each of them: the divergence of the mixture over batches is at
    most that of the worst (joint convexity)."""
    return composition(
        (simple.event if isinstance(simple, SampledWithoutReplacement) else simple, count)
        for simple, count in flat.parts
    )


def _bound(parts: dict[str, float], delta: float) -> Bound:
    best = min(parts, key=lambda name: parts[name])
    return Bound(max(0.0, parts[best]), delta, best, parts)
