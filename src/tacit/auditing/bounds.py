"""Lower bounds on epsilon from the success of an attacker, each with its confidence and its theorem.

An attacker who guesses from a release whether a unit was there has a rate of false alarms x (the guess is "there" and
it was not) and a rate of hits y. A guarantee bounds y by a concave function of x, its trade-off curve; Dong, Roth, Su
2022 write f(x) = 1 - y. A curve says more than one pair (epsilon, delta): a mechanism with half of its noise may need
millions of runs to show a larger epsilon at delta 1e-5, and a few hundred to leave the curve near its middle.

many runs   the mechanism ran often with the unit and often without it, independently: rates of hits and false alarms
            have Clopper-Pearson bounds, and a point above the curve of a guarantee refutes it
one run     many canaries were there or not, each by its own fair coin, in a single run (Steinke, Nasr, Jagielski
            2023; Mahloujifar, Melis, Chaudhuri 2024): the number of right guesses is bounded by the guarantee
estimate_…  a value under a model of the scores; no bound

A lower bound at 99.9 % confidence that exceeds a proved epsilon means that proof or code is wrong, except once in a
thousand such bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import bdtrc, betaincinv, expit, ndtr, ndtri
from scipy.stats import binom

from tacit.privacy import Event
from tacit.privacy.accounting.account import CURVE, delta_profile, most_hits
from tacit.privacy.accounting.gaussian import bisect, doubled, gaussian_epsilon

Array = npt.NDArray[np.float64]

# Bisections end here: far below what chance does to a bound.
PRECISION = 1e-4
# Thresholds, or numbers of guesses, among which the best one is chosen.
CANDIDATES = 200
GUESS_CANDIDATES = 12


class TradeOff(Protocol):
    """What a guarantee allows an attacker."""

    def most_hits(self, false_alarms: float) -> float:
        """The largest rate of hits at a rate of false alarms."""

    def fewest_false_alarms(self, hits: float) -> float:
        """The smallest rate of false alarms at a rate of hits: the inverse."""


@dataclass(frozen=True)
class GaussianTradeOff:
    """Telling N(0, 1) from N(mu, 1), the curve of every Gaussian mechanism: y = Phi(Phi^-1(x) + mu)."""

    mu: float

    def most_hits(self, false_alarms: float) -> float:
        return float(ndtr(ndtri(false_alarms) + self.mu))

    def fewest_false_alarms(self, hits: float) -> float:
        return float(ndtr(ndtri(hits) - self.mu))


@dataclass(frozen=True)
class ProvedTradeOff:
    """The curve of pairs (epsilon, delta) that hold together (Wasserman and Zhou 2010; Kairouz, Oh, Viswanath 2015):

    y <= e^epsilon x + delta   and   1 - x <= e^epsilon (1 - y) + delta   for each of them.
    """

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]

    def most_hits(self, false_alarms: float) -> float:
        return most_hits(false_alarms, np.exp(self.epsilons), np.array(self.deltas))

    def fewest_false_alarms(self, hits: float) -> float:
        growth, deltas = np.exp(self.epsilons), np.array(self.deltas)
        above = np.maximum((hits - deltas) / growth, 1 - deltas - growth * (1 - hits))
        return float(min(hits, max(0.0, above.max())))


@lru_cache(maxsize=256)
def proved_curve(event: Event) -> ProvedTradeOff:
    """From everything that is proved about an event."""
    return ProvedTradeOff(tuple(CURVE.tolist()), tuple(delta_profile(event, CURVE).tolist()))


# -- many runs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rates:
    """How often an attack said "there": in ``hits`` of ``runs_in`` runs with the unit, ``false_alarms`` of
    ``runs_out`` without it. All runs are independent, and the attack was fixed before them."""

    hits: int
    runs_in: int
    false_alarms: int
    runs_out: int

    def surely(self, confidence: float) -> tuple[float, float]:
        """(lower bound of the rate of hits, upper bound of the rate of false alarms), both at once."""
        error = (1 - confidence) / 2
        return (
            float(rate_at_least(self.hits, self.runs_in, error)),
            float(rate_at_most(self.false_alarms, self.runs_out, error)),
        )


def rate_at_least(hits: npt.ArrayLike, trials: int, error: float) -> Array:
    """The rate above which the truth lies, but for probability ``error`` (Clopper and Pearson 1934)."""
    k = np.asarray(hits, np.float64)
    return np.where(k == 0, 0.0, betaincinv(np.maximum(k, 1), trials - np.maximum(k, 1) + 1, error))


def rate_at_most(hits: npt.ArrayLike, trials: int, error: float) -> Array:
    """The rate below which the truth lies, but for probability ``error``."""
    return 1 - rate_at_least(trials - np.asarray(hits, np.float64), trials, error)


def hockey_stick_epsilon(rates: Rates, delta: float, confidence: float) -> float:
    """Lower bound on epsilon at ``delta``: y - e^epsilon x <= delta, the hockey-stick divergence, for any attack."""
    hits, false_alarms = rates.surely(confidence)
    return max(0.0, math.log((hits - delta) / false_alarms)) if hits > delta else 0.0


def gaussian_mu(rates: Rates, confidence: float) -> float:
    """Lower bound on the mu of a *Gaussian* mechanism; other mechanisms are not covered by a smaller mu."""
    hits, false_alarms = rates.surely(confidence)
    return max(0.0, float(ndtri(hits) - ndtri(false_alarms))) if hits > 0 and false_alarms < 1 else 0.0


def refutes(rates: Rates, curve: TradeOff, confidence: float) -> bool:
    """Whether the attack did better than ``curve`` allows."""
    hits, false_alarms = rates.surely(confidence)
    return hits > curve.most_hits(false_alarms)


def best_attack(score_in: Array, score_out: Array, gain: Callable[[float, float], float], confidence: float) -> float:
    """The threshold from which on scores say "there", chosen on runs that are then not used again.

    ``gain`` of (hits at least, false alarms at most) is what is made as large as possible.
    """
    pooled = np.unique(np.concatenate([score_in, score_out]))
    # a threshold lies between scores; the most extreme ones matter most, where false alarms are rare
    ranks = np.unique(np.concatenate([np.linspace(0, 1, CANDIDATES), 1 - np.geomspace(1 / len(pooled), 1, CANDIDATES)]))
    thresholds = np.unique(np.quantile(pooled, ranks, method="lower"))
    hits = len(score_in) - np.searchsorted(np.sort(score_in), thresholds, side="left")
    false_alarms = len(score_out) - np.searchsorted(np.sort(score_out), thresholds, side="left")
    error = (1 - confidence) / 2
    surely = zip(
        rate_at_least(hits, len(score_in), error), rate_at_most(false_alarms, len(score_out), error), strict=True
    )
    gains = [gain(float(y), float(x)) for y, x in surely]
    return float(thresholds[int(np.argmax(gains))])


def rates_at(threshold: float, score_in: Array, score_out: Array) -> Rates:
    """The rates of an attack that says "there" from ``threshold`` on."""
    return Rates(int((score_in >= threshold).sum()), len(score_in), int((score_out >= threshold).sum()), len(score_out))


# -- one run -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Guesses:
    """Of ``canaries``, each there or not by a fair coin, ``made`` were guessed (their number was fixed before), and
    ``right`` of these guesses were right."""

    canaries: int
    made: int
    right: int


def guess(scores: Array, coins: npt.NDArray[np.bool_], made: int) -> Guesses:
    """Guess "there" for the ``made`` / 2 highest scores and "not there" for as many of the lowest."""
    order = np.argsort(scores, kind="stable")
    low, high = made // 2, made - made // 2
    right = int((~coins[order[:low]]).sum()) + int(coins[order[len(order) - high :]].sum())
    return Guesses(len(scores), made, right)


def one_run_epsilon(guesses: Guesses, delta: float, confidence: float) -> float:
    """Steinke, Nasr, Jagielski 2023, Theorem 5.2: the smallest epsilon at which this number of right guesses has a
    probability of at least 1 - ``confidence``."""
    return _largest_refuted(lambda epsilon: one_run_p_value(guesses, epsilon, delta) < 1 - confidence)


def one_run_p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """An upper bound on the probability of at least ``right`` right guesses under (epsilon, delta).

    With W ~ Binomial(made, e^epsilon / (1 + e^epsilon)):  P[W >= v] + 2 m delta max_i P[v - i <= W < v] / i.
    """
    made, right = guesses.made, guesses.right
    if right == 0:
        return 1.0
    chance = float(expit(epsilon))
    beta = float(bdtrc(right - 1, made, chance))
    near = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), made, chance))
    alpha = float(np.max(near / np.arange(1, right + 1)))
    return min(1.0, beta + 2 * guesses.canaries * delta * alpha)


def one_run_refutes(guesses: Guesses, curve: TradeOff, confidence: float) -> bool:
    """Whether this number of right guesses has a probability below 1 - ``confidence`` under ``curve``.

    Mahloujifar, Melis, Chaudhuri 2024, Theorem 9 and Algorithm 3. Let p_j be the probability of exactly j right
    guesses of c, m the canaries, r_i = sum over j >= i of p_j j / m, and h_i the same with c - j. Flipping one coin
    turns a right guess about it into a wrong one, so the curve gives r_i <= most_hits(h_{i-1}) for every i. If the
    tail of p from ``right`` on were 1 - ``confidence``, then from right down to 0

        h_{i-1} >= fewest_false_alarms(r_i),     r_{i-1} = r_i + (i - 1) / (c - i + 1) (h_{i-1} - h_i),

    and the least that r_0 + h_0 can be may not exceed c / m, which it is.
    """
    m, c, v = guesses.canaries, guesses.made, guesses.right
    if v == 0:
        return False
    tail = 1 - confidence
    r, h = tail * v / m, tail * (c - v) / m
    for i in range(v - 1, -1, -1):
        before, h = h, max(h, curve.fewest_false_alarms(min(r, 1.0)))
        r += i / (c - i) * (h - before)
        if r + h > c / m:  # it only grows
            return True
    return False


def one_run_fdp_epsilon(guesses: Guesses, delta: float, confidence: float) -> float:
    """Epsilon at ``delta`` of the largest refuted Gaussian curve, of which no smaller one covers the mechanism: a bound
    for mechanisms on such a curve."""
    mu = _largest_refuted(lambda mu: one_run_refutes(guesses, GaussianTradeOff(mu), confidence))
    return gaussian_epsilon(mu, delta)


@lru_cache(maxsize=64)
def guesses_to_make(canaries: int, mu: float, delta: float, confidence: float, fdp: bool = False) -> int:
    """The number of guesses to make if a canary is expected to shift its score by ``mu`` standard deviations.

    From public numbers, before anything is scored: the number at which the *expected* right guesses give the largest
    bound. Few sure guesses, or many unsure ones; the curve's bound makes better use of many.
    """
    bound = one_run_fdp_epsilon if fdp else one_run_epsilon
    made = np.unique(np.geomspace(min(20, canaries), canaries, GUESS_CANDIDATES).round().astype(int) // 2 * 2)
    expected = [Guesses(canaries, int(n), math.floor(n * _right_share(int(n) / canaries, mu))) for n in made if n]
    best = max(expected, key=lambda guesses: bound(guesses, delta, confidence), default=Guesses(canaries, canaries, 0))
    return best.made


def _right_share(share: float, mu: float) -> float:
    """How many of the ``share`` most extreme scores N(-mu/2, 1) and N(mu/2, 1) are on the side they seem to be."""
    low, _ = bisect(lambda t: bool(ndtr(mu / 2 - t) + ndtr(-mu / 2 - t) <= share), 0.0, 10.0 + mu, steps=60)
    right, wrong = ndtr(mu / 2 - low), ndtr(-mu / 2 - low)
    return float(right / (right + wrong))


# -- estimates ---------------------------------------------------------------------------------------------------------


def estimate_gaussian_epsilon(score_in: Array, score_out: Array, delta: float) -> float:
    """Epsilon at ``delta``, *if* scores were two normal distributions of one width: mu is the distance of the means
    over that width. No bound: for orientation only."""
    spread = math.sqrt((np.var(score_in, ddof=1) + np.var(score_out, ddof=1)) / 2)
    distance = float(np.mean(score_in) - np.mean(score_out))
    mu = max(0.0, distance / spread) if spread > 0 else (math.inf if distance > 0 else 0.0)
    return gaussian_epsilon(mu, delta)


def _largest_refuted(refuted: Callable[[float], bool]) -> float:
    """The largest number that is refuted, to PRECISION from below; 0 where none is. ``refuted`` falls once."""
    if not refuted(0.0):
        return 0.0
    ends = doubled(lambda value: not refuted(value), 1.0, 1e4)
    return math.inf if ends is None else bisect(lambda value: not refuted(value), *ends, absolute=PRECISION)[0]
