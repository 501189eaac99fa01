"""The terms of every guarantee, as closed sets: who is protected (unit), against what change (relation), from which
view."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

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
            raise InvalidArgument("unknown-name", "view", f"'{text}' is no view; known: {', '.join(_forms())}")
        if kind in _COUNTED:
            if argument is None or not argument.isdigit() or int(argument) < 1:
                raise InvalidArgument("malformed", "view", f"'{text}' needs a number of silos, for example '{kind}:2'")
            return cls(kind, count=int(argument))
        if kind == "coalition":
            members = tuple(name for name in (argument or "").strip("[]").split(",") if name)
            if not members:
                raise InvalidArgument("malformed", "view", f"'{text}' needs its members, for example 'coalition:[a,b]'")
            return cls(kind, count=len(members), members=members)
        if kind == _FAR and argument is not None:
            if not argument.isdigit() or int(argument) < 1:
                raise InvalidArgument("malformed", "view", f"'{text}' needs a number of steps, for example '{kind}:2'")
            return cls(kind, count=int(argument))
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
