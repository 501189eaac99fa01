"""The terms of every guarantee, and the guarantee itself: who is protected (unit), against what change (relation), from
which view, with which epsilon."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from tacit.privacy.invalid import InvalidArgument

Unit = Literal["record", "subject", "silo"]
Relation = Literal["zero-out", "replace"]
Reveals = Literal["nothing", "sum", "each", "messages"]
# a subject's slot: a keyed hash modulo their number, which subjects may share, or a list that the silos share
Index = Literal["slots", "list"]

UNITS: tuple[Unit, ...] = get_args(Unit)
RELATIONS: tuple[Relation, ...] = get_args(Relation)

# kind -> the view in a sentence; kinds with a number or a list of members carry it after a colon
_KINDS = {
    "public": "anyone who sees the released models",
    "server": "the server",
    "silo": "one curious silo",
    "silos": "colluding silos",
    "server+silos": "the server together with colluding silos",
    "shuffler": "the shuffler",
    "analyzer": "the analyzer behind the shuffler",
    "shuffler+analyzer": "the shuffler and the analyzer together",
    "neighbour": "a neighbour in the network",
    "coalition": "a declared coalition",
}
_COUNTED = ("silos", "server+silos")
_FAR = "neighbour"  # may carry a number: this many steps away, or more
_FORM = re.compile(r"([a-z+]+)(?::(\d+|\[[^\]]*\]))?")


@dataclass(frozen=True)
class View:
    """Who looks: ``View.parse("silos:2")`` are two colluding silos, ``"neighbour:3"`` a node at least three steps away;
    ``str(view)`` gives the same text back."""

    kind: str
    count: int = 1
    members: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> View:
        """Read a view as it is written in an experiment file; ValueError with the accepted forms otherwise."""
        match = _FORM.fullmatch(text.replace(" ", ""))
        kind, argument = match.groups() if match else (text, None)
        if kind not in _KINDS:
            raise InvalidArgument("unknown-name", "view", f"'{text}' is not a view; known: {', '.join(_forms())}")
        if kind in _COUNTED or (kind == _FAR and argument is not None):
            if argument is None or not argument.isdigit() or int(argument) < 1:
                noun = "steps" if kind == _FAR else "silos"
                raise InvalidArgument("malformed", "view", f"'{text}' needs a number of {noun}, for example '{kind}:2'")
            return cls(kind, count=int(argument))
        if kind == "coalition":
            members = tuple(name for name in (argument or "").strip("[]").split(",") if name)
            if not members:
                raise InvalidArgument("malformed", "view", f"'{text}' needs its members, for example 'coalition:[a,b]'")
            return cls(kind, count=len(members), members=members)
        if argument is not None:
            raise InvalidArgument("malformed", "view", f"'{text}' takes no number; write '{kind}'")
        return cls(kind)

    def __str__(self) -> str:
        if self.kind in _COUNTED or (self.kind == _FAR and self.count > 1):
            return f"{self.kind}:{self.count}"
        return f"coalition:[{','.join(self.members)}]" if self.members else self.kind

    @property
    def holds_records(self) -> bool:
        """Whether silos belong to the view: what it is promised is about what the others hold."""
        return self.kind in ("silo", "silos", "server+silos", "coalition")

    @property
    def who(self) -> str:
        """The view in words, for sentences."""
        words = _KINDS[self.kind]
        if self.kind in _COUNTED:
            several = f"{self.count} colluding silos" if self.count > 1 else "one curious silo"
            return words.replace("colluding silos", several)
        if self.kind == _FAR and self.count > 1:
            return f"a node of the network that is at least {self.count} steps away"
        return words


def _forms() -> list[str]:
    return [f"{kind}:c" if kind in _COUNTED else "coalition:[…]" if kind == "coalition" else kind for kind in _KINDS]


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
    """The same for a subject with several unlinked pseudonyms (``subject_events``)."""

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
        values = asdict(self)
        for part in (values, values["as_published"], values["linkage"]):
            if part is not None:
                part["epsilon"] = part["epsilon"] if math.isfinite(part["epsilon"]) else "inf"
        return values | {"view": str(self.view), "assumptions": list(self.assumptions)}
