"""What a view sees of a unit's data, and which party adds the noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from tacit.privacy.terms import Index, Relation, Reveals, Unit, View


@dataclass(frozen=True)
class Exposure:
    """One row of a promise before it is costed.

    unit, relation   who is protected, against what change
    view             who looks
    reveals          what the exchange shows to that view: ``nothing``, the ``sum`` over silos, ``each`` silo's part
    index            how silos name a subject's slot where contributions are weighted by records in all silos and no
                     party learns those; None where there are no such weights
    pairwise         where silos add the noise, and more that cancels in pairs: what the view learns of one silo, over
                     what it would learn of a sum with the planned noise; None where there is no such noise
    """

    unit: Unit
    relation: Relation
    view: View
    reveals: Reveals
    index: Index | None = None
    pairwise: float | None = None

    @property
    def colluding(self) -> int:
        """How many silos belong to the view: they know their own records, their own noise and the sampling coins."""
        return self.view.count if self.view.kind in ("silo", "silos", "server+silos") else 0

    @property
    def replaces(self) -> bool:
        return self.relation == "replace"


@dataclass(frozen=True)
class Noise:
    """Gaussian noise of standard deviation ``std`` on every number of a sum over silos, and who adds it.

    shares      every silo adds an equal part of the variance before anything leaves it
    once        a trusted server adds all of it to the sum
    inside      the local work adds it, where the exchange has nothing to do

    Noise that is correlated over rounds is a weighted sum of normals of standard deviation ``std``, drawn in this
    round, in the one before, and so on: ``weights`` has one number for each of them (``correlated_noise``).
    """

    std: float
    place: Literal["inside", "shares", "once"]
    weights: tuple[float, ...] = (1.0,)

    @property
    def in_a_round(self) -> float:
        """The standard deviation of the noise on one round's sum."""
        return self.std * math.hypot(*self.weights)
