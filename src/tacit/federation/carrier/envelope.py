"""What the server's process and a silo's put around the messages of a run.

A silo gets, once, a signed :class:`Call` to take part, with what the server remembers of the silo's ledgers; then
messages as they are. It sends a :class:`Reply`: an answer with the state of its ledger, or the names of the rules that
forbid it, or that it failed. A reply has no room for the text of an exception, a path or a value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter

from tacit.exchange.post import SERVER, Post, join, parted
from tacit.federation.kits import Kit
from tacit.federation.protocol.messages import Told, checked
from tacit.federation.request import Request, Sealed
from tacit.federation.site.policy import RULES, Head

FAILED = "failed"  # instead of a rule: an error that the silo's own log describes
CALL, MESSAGE, EVALUATE = "call", "message", "evaluate"  # what is sent to a silo
ONE = {CALL: "a call", MESSAGE: "a message", EVALUATE: "an evaluation"}
_MOST_RECOUNTS = 8  # data sets that a reply names in addition to its own
_Rule = Annotated[str, Field(pattern=f"^({'|'.join((*RULES, FAILED))})$")]
_Dataset = Annotated[str, Field(pattern="^([0-9a-f]{16})?$")]
_HEADS = TypeAdapter(dict[_Dataset, Head], config=ConfigDict(strict=True))


@dataclass(frozen=True)
class Call:
    """The server calls a silo to a run. ``seen``: by data set, the state of the silo's ledger that the server knows."""

    seen: Mapping[str, Head] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        return json.dumps(dict(self.seen)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Call:
        return cls(checked(_HEADS.validate_json, data, SERVER))


def calls(kit: Kit, name: str, request: Request | Sealed) -> Post:
    """Signs and reads calls to one attempt at a run: only the server can make a silo begin."""
    post = Post("tacit-call-1", f"{request.run}/{request.attempt}", name, kit.identity(), kit.roster())
    post.begin(0)
    return post


class SiloMetrics(Told):
    """Metrics of a silo without noise, and its number of held-out records."""

    records: Annotated[int, Field(ge=0, le=1 << 40)]
    metrics: dict[str, Annotated[float, Field(allow_inf_nan=False)] | None]


class _Facts(Told):
    """The part of a reply that is no answer; see :class:`Reply`."""

    rules: Annotated[tuple[_Rule, ...], Field(max_length=len(RULES) + 1)]
    dataset: _Dataset
    head: Head | None
    left: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None
    recounts: Annotated[tuple[Annotated[_Dataset, Field(min_length=1)], ...], Field(max_length=_MOST_RECOUNTS)]


@dataclass(frozen=True)
class Reply:
    """What a silo sends.

    content  its answer; None where it refuses or failed
    rules    the rules that forbid it, or ``failed``
    dataset  the id of the ledger of its data set
    head     the state of that ledger
    left     what is left of its budget, if its policy shows that
    recounts data sets whose ledgers had counted the same table when this one's began (``--same-table``)
    """

    content: bytes | None
    rules: tuple[str, ...] = ()
    dataset: str = ""
    head: Head | None = None
    left: float | None = None
    recounts: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        left = None if self.left is None or math.isinf(self.left) else self.left
        facts = {**vars(self), "left": left, "recounts": self.recounts[:_MOST_RECOUNTS]}
        del facts["content"]
        return join([json.dumps(facts).encode(), self.content or b""])

    @classmethod
    def from_bytes(cls, data: bytes, peer: str) -> Reply:
        head, content = parted(data, peer, 2)
        facts = _Facts.read(head, peer)
        return cls(None if facts.rules else content, **dict(facts))
