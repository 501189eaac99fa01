"""Give any two of epsilon, delta and noise and get the third; never on the wrong side of the budget.

epsilon: ``account``; delta: ``delta_of``; noise and the number of rounds: searched for here. What is returned has
itself been accounted for and found within the budget, so errors of a search can cost accuracy and never privacy.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tacit.privacy.accounting.account import account
from tacit.privacy.accounting.canonical_form import canonical
from tacit.privacy.accounting.events import Event
from tacit.privacy.accounting.rdp import ORDERS, composed_rdp, rdp_epsilon
from tacit.privacy.bisection import bisect, smallest_integer
from tacit.privacy.invalid import InvalidArgument

_LARGEST_NOISE = 1e9
_SMALLEST_NOISE = 1e-6


def calibrate_noise(
    make_event: Callable[[float], Event], epsilon: float, delta: float, tolerance: float = 1e-3
) -> float:
    """The smallest noise multiplier, to a relative ``tolerance``, with ``account(make_event(noise), delta) <=
    epsilon``.

    ``make_event`` must cost no more the larger the noise is. Renyi accounting, which is quick and at most a little
    larger, gives an upper end; from there the exact accountants are asked. ValueError where no noise suffices.
    """
    _check(epsilon, delta)
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
    _check(epsilon, delta)

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
    if found == 0 and cost(0) > epsilon:
        problem = f"epsilon {epsilon} at delta {delta} is exceeded without any round"
        raise InvalidArgument("unreachable", "epsilon", problem)
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


def _check(epsilon: float, delta: float) -> None:
    if math.isnan(epsilon) or epsilon < 0 or math.isnan(delta) or delta < 0:
        problem = f"epsilon and delta are numbers from 0 on, not {epsilon} and {delta}"
        raise InvalidArgument("out-of-range", "epsilon", problem)
