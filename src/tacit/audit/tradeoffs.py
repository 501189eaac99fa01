"""The trade-off between hits and false alarms that a guarantee allows, as one curve.

Whoever guesses from a release whether a unit was there has a rate of false alarms x (it says "there" and it was not)
and a rate of hits y. A guarantee bounds y by a concave function of x, the same in both directions; Dong, Roth, Su 2022
write f(x) = 1 - y. Auditing compares what an attacker achieved with that curve, which says more than any one pair
(epsilon, delta): a mechanism with half of its noise may need millions of runs to show a larger epsilon at delta 1e-5,
and a few hundred to leave the curve near its middle.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from tacit.privacy import Event

Array = npt.NDArray[np.float64]

# epsilons of the pairs (epsilon, delta) of a curve: dense where attacks on few runs are, up to what none reaches
EPSILONS: Array = np.concatenate([np.linspace(0.0, 1.0, 41), np.geomspace(1.05, 60.0, 80)])


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

    @classmethod
    def of(cls, event: Event) -> ProvedTradeOff:
        """From everything that is proved about an event."""
        return _proved(event)

    def most_hits(self, false_alarms: float) -> float:
        growth, deltas = np.exp(self.epsilons), np.array(self.deltas)
        below = np.minimum(growth * false_alarms + deltas, 1 - (1 - false_alarms - deltas) / growth)
        return float(min(1.0, max(false_alarms, below.min())))

    def fewest_false_alarms(self, hits: float) -> float:
        growth, deltas = np.exp(self.epsilons), np.array(self.deltas)
        above = np.maximum((hits - deltas) / growth, 1 - deltas - growth * (1 - hits))
        return float(min(hits, max(0.0, above.max())))


@lru_cache(maxsize=256)
def _proved(event: Event) -> ProvedTradeOff:
    from tacit.privacy.accounting.account import delta_profile

    return ProvedTradeOff(tuple(EPSILONS.tolist()), tuple(delta_profile(event, EPSILONS).tolist()))


def claimed(epsilon: float, delta: float) -> ProvedTradeOff:
    """The curve of one pair (epsilon, delta)."""
    return ProvedTradeOff((epsilon,), (delta,)) if math.isfinite(epsilon) else ProvedTradeOff((0.0,), (1.0,))
