"""A guarantee: one epsilon with everything that it depends on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tacit.privacy.terms import Relation, Unit, View

# the assumption of every guarantee whose noise is not drawn in steps of a grid
FLOATING_POINT = "noise is drawn in floating point; its least significant bits are not covered"


@dataclass(frozen=True)
class AsPublished:
    """What a paper's own accounting gives for the same run, and whether that number holds."""

    epsilon: float
    valid: Literal["yes", "only-if", "no"]
    reason: str


@dataclass(frozen=True)
class Linkage:
    """The same for a subject with several unlinked pseudonyms (``unlinked_subjects``)."""

    pseudonyms: int
    epsilon: float


@dataclass(frozen=True)
class Guarantee:
    """An upper bound that is proved for this unit, relation, view and sampling scheme; infinity where there is none."""

    unit: Unit
    relation: Relation
    view: View
    sampling: str
    epsilon: float
    delta: float
    accountant: str
    assumptions: tuple[str, ...] = ()
    as_published: AsPublished | None = None
    linkage: Linkage | None = None

    @property
    def finite(self) -> bool:
        return math.isfinite(self.epsilon)

    def as_dict(self) -> dict[str, Any]:
        """The form of ``--json``: infinity is the string "inf"."""
        published = self.as_published
        return {
            "unit": self.unit,
            "relation": self.relation,
            "view": str(self.view),
            "sampling": self.sampling,
            "epsilon": _number(self.epsilon),
            "delta": self.delta,
            "accountant": self.accountant,
            "assumptions": list(self.assumptions),
            "as_published": None
            if published is None
            else {"epsilon": _number(published.epsilon), "valid": published.valid, "reason": published.reason},
            "linkage": None
            if self.linkage is None
            else {"pseudonyms": self.linkage.pseudonyms, "epsilon": _number(self.linkage.epsilon)},
        }


def unprotected(unit: Unit, views: Sequence[View], delta: float, reason: str) -> tuple[Guarantee, ...]:
    """The guarantee of anything without calibrated noise: infinity for every view, with the reason."""
    return tuple(
        Guarantee(unit, "zero-out", view, "none", math.inf, delta, accountant="none", assumptions=(reason,))
        for view in views
    )


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else "inf"
