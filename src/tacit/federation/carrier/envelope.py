"""What the server's process and a silo's put around the messages of a run.

To a silo goes, once, a :class:`Call` to take part, signed, with what the server remembers of the silo's ledgers; then
messages as they are. From a silo comes a :class:`Reply`: an answer with the state of its ledger, or a refusal that
names a rule, or the word that it failed. There is no room in it for anything else: no text of an exception, no path, no
value.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from tacit.exchange.post import Post, join
from tacit.federation.kits import Kit
from tacit.federation.request import Request, Sealed
from tacit.federation.site.policy import RULES, Head, Rule

FAILED: Literal["failed"] = "failed"  # instead of a rule: something went wrong, and the silo's own log says what
CALL, MESSAGE, EVALUATE = "call", "message", "evaluate"  # what is sent to a silo
ONE = {CALL: "a call", MESSAGE: "a message", EVALUATE: "an evaluation"}
_LENGTH_BYTES = 8
_MOST_RECOUNTS = 8  # data sets that a reply names beside its own
_DATASET, _HASH, _MOST_LINES = re.compile("[0-9a-f]{16}"), re.compile("[0-9a-f]{64}"), 1 << 40


class Malformed(Exception):
    """Bytes that are no envelope."""


@dataclass(frozen=True)
class Call:
    """The server calls a silo to a run. ``seen``: by data set, how far the server has seen the silo's ledger come."""

    seen: Mapping[str, Head] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        return json.dumps({name: [head.lines, head.hash] for name, head in self.seen.items()}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Call:
        values = _json(data)
        if not all(map(_is_dataset, values)):
            raise Malformed("with a data set's name that is none")
        return cls({name: _head(value) for name, value in values.items()})


def calls(kit: Kit, name: str, request: Request | Sealed) -> Post:
    """Where calls to one attempt at a run are signed and read: nobody but the server can make a silo begin."""
    post = Post("tacit-call-1", f"{request.run}/{request.attempt}", name, kit.identity(), kit.roster())
    post.begin(0)
    return post


@dataclass(frozen=True)
class Reply:
    """What a silo sends.

    content  its answer; None where it refuses or failed
    rules    the rules that forbid it, or ``failed``
    dataset  a name of the data set that says nothing to others
    head     how far its ledger has come
    left     what is left of its budget, where it lets that be known
    recounts data sets whose ledgers had counted the same table when this one's began (``--same-table``)
    """

    content: bytes | None
    rules: tuple[Rule | Literal["failed"], ...] = ()
    dataset: str = ""
    head: Head | None = None
    left: float | None = None
    recounts: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        head = None if self.head is None else [self.head.lines, self.head.hash]
        left = None if self.left is None or math.isinf(self.left) else self.left
        more = {"head": head, "left": left, "recounts": list(self.recounts[:_MOST_RECOUNTS])}
        facts = {"rules": list(self.rules), "dataset": self.dataset, **more}
        return join([json.dumps(facts).encode(), b"" if self.content is None else self.content])

    @classmethod
    def from_bytes(cls, data: bytes) -> Reply:
        size = int.from_bytes(data[:_LENGTH_BYTES], "big")
        facts = _json(data[_LENGTH_BYTES : _LENGTH_BYTES + size])
        rest = data[_LENGTH_BYTES + size :]
        content = rest[_LENGTH_BYTES:]
        if len(rest) < _LENGTH_BYTES or int.from_bytes(rest[:_LENGTH_BYTES], "big") != len(content):
            raise Malformed("of another length than it says")
        if set(facts) != {"rules", "dataset", "head", "left", "recounts"} or not _is_dataset(facts["dataset"]):
            raise Malformed("without what must be in it")
        rules, left = facts["rules"], facts["left"]
        known = (*RULES, FAILED)
        if not isinstance(rules, list) or len(rules) > len(known) or any(rule not in known for rule in rules):
            raise Malformed("with a rule that is none")
        if left is not None and not (isinstance(left, float) and 0 <= left < math.inf):
            raise Malformed("with a budget that is none")
        recounts = facts["recounts"]
        if not isinstance(recounts, list) or len(recounts) > _MOST_RECOUNTS:
            raise Malformed("with too many data sets")
        if not all(name and _is_dataset(name) for name in recounts):
            raise Malformed("with a data set's name that is none")
        head = None if facts["head"] is None else _head(facts["head"])
        return cls(None if rules else content, tuple(rules), facts["dataset"], head, left, tuple(recounts))


def _json(data: bytes) -> dict[str, Any]:
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):  # no JSON, or too deep
        raise Malformed("unreadable") from None
    if not isinstance(values, dict):
        raise Malformed("without what must be in it")
    return values


def _is_dataset(name: Any) -> bool:
    return isinstance(name, str) and (name == "" or _DATASET.fullmatch(name) is not None)


def _head(value: Any) -> Head:
    match value:
        case [lines, str() as text] if type(lines) is int and 0 <= lines <= _MOST_LINES and _HASH.fullmatch(text):
            return Head(lines, text)
    raise Malformed("with a ledger's state that is none")
