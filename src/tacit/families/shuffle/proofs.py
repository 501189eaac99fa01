"""The protocols of FLAME, repaired, and what the paper prints for them (specification 5; [FLAME]).

The rows of the table in specification 5.2 are :func:`ss_fixed` (SS-Simple, and SS-Double with a fixed number),
:func:`ss_double_bernoulli` and :func:`ss_topk`: events of shuffled reports, whose cost ``shuffle_bounds`` proves. What
the paper prints is under ``as_published_``; nothing there is a guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
from scipy import special

from tacit.families.shuffle.shuffle_bounds import (
    LARGEST,
    binomial_bulk,
    binomial_pmf,
    dominates,
    shuffled_deviation,
    shuffled_pld,
)
from tacit.privacy.accounting.events import Composed, Event, Failure, Largest, Repeated, ShuffledReports
from tacit.privacy.invalid import InvalidArgument

Randomizer = Literal["any", "laplace", "response"]

# by how much a pair that is taken for dominated may exceed the other, per composition
_SLACK = 1e-13


# --- the protocols of FLAME, repaired --------------------------------------------------------------------------------


class ShuffledProtocol(NamedTuple):
    """What one participation in a shuffled protocol costs (specification 5.2; a subject is replaced), against the
    analyzer and all who see its results; the shuffler is honest.

    extra_delta     to be added to the delta at which the event is accounted
    """

    event: Event
    extra_delta: float = 0.0

    @property
    def released(self) -> Event:
        """The event with what it adds to delta."""
        return Composed((self.event, Failure(self.extra_delta))) if self.extra_delta else self.event


def ss_fixed(
    sent: int, messages: int, epsilon: float, randomizer: Randomizer = "laplace", levels: int = 2
) -> ShuffledProtocol:
    """SS-Simple, and SS-Double with exactly ``sent`` dimensions per subject, each with ``messages`` messages: one of
    each subject, or padded or cut to that number. Each is ``epsilon``-locally private.

    Given the index sets, ``sent`` messages depend on the subject: no gain from their being a sample.
    """
    return ShuffledProtocol(Repeated(ShuffledReports(epsilon, messages, None, randomizer, levels), sent))


def ss_double_bernoulli(
    dimensions: int,
    subjects: int,
    padded: int,
    epsilon: float,
    rate: float,
    randomizer: Randomizer = "laplace",
    levels: int = 2,
) -> ShuffledProtocol:
    """SS-Double in which every dimension is sent with probability ``rate``, independently.

    A subject's message in a dimension is then a mixture of its report and the blanket, as long as the messages of the
    others leave it a place: with probability Pr[Bin(subjects - 1, rate) >= padded] per dimension they do not.
    """
    pair = double_bernoulli_pair(epsilon, rate, randomizer, levels)
    event = ShuffledReports(epsilon, padded, pair, randomizer, levels)
    overflow = _exceeds(padded, subjects - 1, rate)
    return ShuffledProtocol(Repeated(event, dimensions), min(1.0, dimensions * overflow))


@lru_cache(maxsize=256)
def ss_topk(
    sent: int,
    subjects: int,
    padded: int,
    epsilon: float,
    randomizer: Randomizer = "laplace",
    levels: int = 2,
    once: bool = False,
    hidden: bool = False,
) -> ShuffledProtocol:
    """SS-Topk: the ``sent`` largest dimensions of each subject, unlinked messages, ``padded`` messages per dimension.

    Replacing a subject changes, for some i, sent - i dimensions from one value to another (full pairs), and 2 i between
    a value and none.

    With room for all, none is the blanket: half pairs. If one full pair dominates two half pairs (checked numerically,
    up to a slack that is charged to delta), ``sent`` full pairs are the worst, in every epoch. It need not (with
    many clones two half pairs are worse from epsilon = 3.06 on): then every i is listed for who takes part ``once``;
    but over several epochs i may change with what was seen before, and 2 sent full pairs are charged.

    With less room than subjects, none may be the value of another subject whose message is cut in its favour: 2 sent
    full pairs. Where the largest are ``hidden`` among others, a lot in one order for both the subject and its
    replacement decides which. Of the i largest of either alone, a and b are then among the other's others (half pairs:
    a value and the blanket), and |a - b| more dimensions have one of these others or none, that is, the blanket or a
    message that is cut in its favour (at most half a pair). Full pairs: sent + i - a - b, half pairs: 2 max(a, b); that
    is at most 2 sent full ones if two half pairs are dominated by a full one, and 3 sent if not.
    """
    full = ShuffledReports(epsilon, padded, None, randomizer, levels)
    half = ShuffledReports(epsilon, padded, half_pair(epsilon, randomizer, levels))
    cut = padded < subjects
    dominated = (hidden or not cut) and _dominates_twice(full, half)
    if cut:
        full_pairs = 3 * sent if hidden and not dominated else 2 * sent
        return ShuffledProtocol(Repeated(full, full_pairs), sent * _SLACK if hidden and dominated else 0.0)
    if dominated:
        return ShuffledProtocol(Repeated(full, sent), sent * _SLACK)
    if not once:
        return ShuffledProtocol(Repeated(full, 2 * sent))
    mixed = (Composed((Repeated(full, i), Repeated(half, 2 * (sent - i)))) for i in range(sent + 1))
    return ShuffledProtocol(Largest(tuple(mixed)))


def _dominates_twice(full: ShuffledReports, half: ShuffledReports) -> bool:
    """Whether one ``full`` pair is known to dominate two ``half`` ones, but for the slack."""
    if full.epsilon > LARGEST:
        return False  # not looked into: no crowd hides such reports
    grid = min(shuffled_deviation(full), shuffled_deviation(half)) / 50
    return dominates(shuffled_pld(full, grid), shuffled_pld(half, grid).self_compose(2), grid, _SLACK)


def _exceeds(least: int, trials: int, rate: float) -> float:
    """Pr[Bin(trials, rate) >= least]."""
    if least > trials:
        return 0.0
    return 1.0 if least <= 0 else float(special.bdtrc(least - 1, trials, rate))


def double_bernoulli_pair(epsilon: float, rate: float, randomizer: Randomizer = "laplace", levels: int = 2) -> float:
    """Local epsilon of "a report with probability ``rate``, the blanket otherwise".

    Laplace: reports and blanket differ by at most e^(±eps/2), hence
    ln((1 - rate + rate e^(eps/2)) / (1 - rate + rate e^(-eps/2))). Response: by its two probabilities. Any other: the
    blanket is a mixture of reports, hence ln(1 - rate + rate e^eps).
    """
    if not 0 <= rate <= 1:
        raise InvalidArgument("out-of-range", "rate", f"a rate is between 0 and 1, not {rate}")
    if randomizer == "laplace":
        return _mixed(rate, epsilon / 2) - _mixed(rate, -epsilon / 2)
    if randomizer == "response":
        low, high = _response_range(epsilon, levels)
        return _mixed(rate, high) - _mixed(rate, low)
    return _mixed(rate, epsilon)


def half_pair(epsilon: float, randomizer: Randomizer = "laplace", levels: int = 2) -> float:
    """Local epsilon between a report and the blanket."""
    if randomizer == "laplace":
        return epsilon / 2
    if randomizer == "response":
        low, high = _response_range(epsilon, levels)
        return max(high, -low)
    return epsilon


def _response_range(epsilon: float, levels: int) -> tuple[float, float]:
    """ln of the smallest and the largest ratio of a level's probability to that in the blanket, 1 / levels."""
    high = math.log(levels) - math.log1p((levels - 1) * math.exp(-epsilon))
    return high - epsilon, high


def _mixed(rate: float, loss: float) -> float:
    """ln(1 - rate + rate e^loss), also where that is too large for a float."""
    if loss > 500 and rate > 0:
        return loss + math.log(rate + (1 - rate) * math.exp(-loss))
    return math.log1p(rate * math.expm1(loss)) if rate < 1 else loss


# --- as published [FLAME] ---------------------------------------------------------------------------------------------


def as_published_blanket(epsilon: float, reports: int, delta: float) -> float:
    """Central epsilon of ``reports`` Laplace reports by the Bennett bound of FLAME's code (B_old of specification 5.2).

    Solves (1/(gamma n)) E[b e^(-m (c/b^2) phi(a b/c)) / (m a ln(1 + a b/c)); m >= 1] = delta, m ~ Bin(n, gamma). Not an
    upper bound: the factor 1/(m a) does not belong there. Where hardly any report is drawn from the blanket it has no
    solution below ``epsilon``, which is given then.
    """
    if epsilon > LARGEST:
        return epsilon
    gamma = math.exp(-epsilon / 2)
    m = binomial_bulk(reports, gamma)
    m = m[m >= 1]
    weights = binomial_pmf(m, reports, gamma)

    def excess(central: float) -> float:
        a = math.expm1(central)
        b = math.exp(epsilon / 2) * -math.expm1(central - epsilon)
        c = (math.exp(2 * central) + 1) / 3 * (2 * math.exp(epsilon / 2) + math.exp(-epsilon))
        c -= 2 * math.exp(central) * (2 * math.exp(-epsilon / 2) - math.exp(-epsilon))
        u = a * b / c
        phi = (1 + u) * math.log1p(u) - u
        terms = b * np.exp(-m * (c / b**2) * phi) / math.log1p(u) / (m * a)
        return math.log(max(float(weights @ terms) / (gamma * reports), 1e-300)) - math.log(delta)

    return _root(excess, epsilon)


def as_published_flame_simple(dimensions: int, reports: int, local_epsilon: float, delta: float | None = None) -> float:
    """FLAME's epsilon of SS-Simple: theorem 1 over :func:`as_published_blanket`; delta = 0.01 / n^1.1 by default."""
    share = _flame_delta(reports, delta) / (dimensions + 1)
    single = as_published_blanket(local_epsilon / dimensions, reports, share)
    return _as_published_composition(single, dimensions, share)


def as_published_flame_double(
    dimensions: int, reports: int, local_epsilon: float, rate: float, padded: int, delta: float | None = None
) -> float:
    """FLAME's epsilon of SS-Double and SS-Topk, k = int(rate d) numbers: theorems 3 and 4, which count the subsampling
    twice."""
    sent = int(rate * dimensions)
    share = _flame_delta(reports, delta) / (2 * sent + 1)
    kept = as_published_blanket(local_epsilon / sent, padded, share / rate)
    return _as_published_composition(_mixed(rate, kept), 2 * sent, share)


def as_published_flame_levels(
    dimensions: int,
    reports: int,
    levels: int,
    epsilon: float,
    delta: float | None = None,
    rate: float = 1.0,
    padded: int | None = None,
) -> float:
    """FLAME's epsilon of reports on b = ``levels``: lemma 1 with theorem 1 (rate 1) or theorems 3 and 4.

    ``epsilon`` is the local one of each dimension sent. Lemma 1 is about central epsilons up to 1.
    """
    folds = dimensions if rate == 1 else 2 * rate * dimensions
    share = _flame_delta(reports, delta) / (folds + 1)
    messages = reports if padded is None else padded
    if messages < 2:
        return math.inf
    single = math.exp(min(epsilon, 700.0)) + levels - 1  # all that a float holds
    kept = math.sqrt(14 * math.log(2 * rate / share) * single / (messages - 1))
    return _as_published_composition(_mixed(rate, kept), folds, share)


def as_published_index_privacy(reports: int, padded: int, rate: float) -> tuple[float, int]:
    """(nu, l) of FLAME's theorem 5: how much likelier an index sent is to be a top one, and the factor of dummies.

    Where there are fewer places than reports even without dummies, l = 1: no index privacy.
    """
    dummies = max(1, math.floor(padded / (reports * rate)))
    return max(1.0, 1 / (dummies * rate)), dummies


def _flame_delta(reports: int, delta: float | None) -> float:
    return 0.01 / reports**1.1 if delta is None else delta


def _as_published_composition(epsilon: float, folds: float, delta: float) -> float:
    """The smaller of simple and advanced composition; the first from epsilon = ln 2 on."""
    if epsilon > 1:
        return folds * epsilon
    return min(
        folds * epsilon, epsilon * math.sqrt(2 * folds * math.log(1 / delta)) + folds * epsilon * math.expm1(epsilon)
    )


def _root(excess: Callable[[float], float], high: float) -> float:
    """Where the falling ``excess`` is zero between 0 and ``high``; ``high`` where it never is."""
    low, top = high * 1e-9, high * (1 - 1e-9)
    if excess(top) > 0:
        return high
    if excess(low) <= 0:
        return 0.0
    from scipy import optimize

    return float(optimize.brentq(excess, low, top, xtol=1e-14, rtol=1e-13))
