"""What travels between the coordinator and a silo: a header that says where a message belongs, and its content.

A message is ``"tacit-federation-1", run, round, phase, content``, each part with its length before it. Contents are
signed by their sender, for one run, round, recipient and phase: those of an exchange by the exchange's own protocol,
all others here (:class:`Desk`). So a header that was changed on the way leads to a content that is refused.
Nothing is ever unpickled: contents are JSON (:class:`Told`), trees of arrays (safetensors) or plain numbers.

    phase      the coordinator sends                    a silo answers
    hello      who takes part, the hash of the plan     the shape of its records, a number drawn for this run, the
                                                        hash of its own plan
    begin      all answers to hello, the frozen part    empty; where the plan discloses them, the number of records of
               of the model, rounds done                each subject
    totals     the numbers of records that each silo    empty
               has sent, signed by that silo
    statistics (nothing)                                its part of the sums for constants in the plan, with noise; or
                                                        the first message of a masked sum
    constants  means and scales of columns              empty
    open       (nothing)                                its first message of the exchange's own setup; in a shuffled
                                                        exchange the public identities of its people
    work       the model, and in a shuffled exchange    its update; in a masked or weighted exchange its first message,
               the analyzer's key                       in a shuffled one its people's sealed reports
    exchange   a message of the exchange                a message of the exchange
    metrics    the model, after the last round          its part of the metrics in the plan, with noise; in a masked
                                                        exchange the first message of another masked sum
    unpaid     the model, at its start or after a       (a reply, no message) metrics without noise, if the silo's
               round                                    policy allows them
    refused    -                                        that it will not answer, and why

The analyzer of a shuffled exchange gets hello and begin as silos do, is asked for its key (``work``), and gets what was
mixed (``exchange``): it answers with the sums.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Self, TypeVar, get_args

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from tacit.crypto import Identity, Refused
from tacit.exchange.post import OutOfTurn, Post, join, parted

Read = TypeVar("Read")

PROTOCOL = "tacit-federation-1"
Phase = Literal[
    "hello", "begin", "totals", "statistics", "constants", "open", "work", "exchange", "metrics", "unpaid", "refused"
]
PHASES: tuple[Phase, ...] = get_args(Phase)
AROUND = 1 << 16  # bytes for a header, a signature and short texts


@dataclass(frozen=True)
class Message:
    """One message: where it belongs, and what it holds."""

    run: str
    round: int
    phase: Phase
    content: bytes

    def to_bytes(self) -> bytes:
        header = (PROTOCOL, self.run, str(self.round), self.phase)
        return join([*(part.encode() for part in header), self.content])

    @classmethod
    def from_bytes(cls, data: bytes, peer: str, most: int) -> Message:
        """The message of ``peer``; refused if it is longer than ``most`` bytes, or none of this protocol."""
        if len(data) > most:
            raise Refused("too-large", f"a message of {len(data)} bytes where at most {most} are due", peer)
        *header, content = parted(data, peer, 5)
        try:
            protocol, run, number, phase = (part.decode("ascii") for part in header)
        except UnicodeDecodeError:
            raise Refused("malformed", "a message without a header", peer) from None
        if protocol != PROTOCOL:
            raise Refused("malformed", f"a message that is not of {PROTOCOL}", peer)
        if phase not in PHASES or not number.isdigit() or len(number) > 9 or not 0 < len(run) <= 128:
            raise Refused("malformed", "a message of no known phase, round or run", peer)
        return cls(run, int(number), phase, content)

    def check(self, run: str, number: int, phase: Phase, peer: str) -> bytes:
        """The content, if the message belongs where it is due."""
        if (self.run, self.round, self.phase) != (run, number, phase):
            due = f"{phase} of round {number}"
            raise Refused("mismatch", f"a message for {self.phase} of round {self.round} where {due} is due", peer)
        return self.content


class Desk:
    """Where one party writes and reads the messages of one run that no exchange signs."""

    def __init__(self, run: str, name: str, identity: Identity, roster: Mapping[str, bytes], number: int = 0) -> None:
        self.run, self.number = run, number
        self._who = name, identity, roster
        self._post = Post(PROTOCOL, run, *self._who)
        self._post.begin(number)

    def begin(self, number: int) -> None:
        """The next round; numbers only rise."""
        self._post.begin(number)
        self.number = number

    def later(self, number: int) -> Desk:
        """The desk of a later round, for a message whose signature is not checked yet: until it is, this one stays."""
        if number <= self.number:
            raise OutOfTurn(f"round {number} after round {self.number}", self._post.name)
        return Desk(self.run, *self._who, number)

    def write(self, recipient: str, phase: Phase, content: bytes) -> bytes:
        """A whole message with signed content."""
        return self.framed(phase, self._post.write(recipient, phase, content))

    def framed(self, phase: Phase, content: bytes) -> bytes:
        """A whole message whose content needs no signature of ours."""
        return Message(self.run, self.number, phase, content).to_bytes()

    def read(self, sender: str, phase: Phase, content: bytes, *, to_everyone: bool = False) -> bytes:
        """What ``sender`` has signed."""
        return self._post.read(sender, phase, content, to_everyone=to_everyone)


class Told(BaseModel):
    """A content in JSON: exactly the fields of a subclass, each of its type and within its bounds."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    def to_bytes(self) -> bytes:
        return json.dumps(self.model_dump(mode="json"), sort_keys=True).encode()

    @classmethod
    def read(cls, data: bytes, peer: str) -> Self:
        """The content that ``peer`` has sent; refused if it is another one."""
        return checked(cls.model_validate_json, data, peer)


def checked(validate: Callable[[bytes], Read], data: bytes, peer: str) -> Read:
    """JSON of ``peer`` as ``validate`` (of pydantic) reads it; refused if it is invalid. The error names no value."""
    try:
        return validate(data)
    except ValidationError as error:
        first = error.errors(include_input=False, include_context=False, include_url=False)[0]
        raise Refused("malformed", f"malformed content ({first['type']})", peer) from None


def write_counts(names: np.ndarray, counts: np.ndarray) -> bytes:
    return np.stack([names.astype("<i8"), counts.astype("<i8")], axis=1).tobytes()


def read_counts(data: bytes, peer: str) -> tuple[np.ndarray, np.ndarray]:
    """Names, each once and in rising order, and their counts: none below 1 and none so large that a sum over silos
    could wrap around."""
    if len(data) % 16:
        raise Refused("wrong-length", f"{len(data)} bytes are no list of names and counts", peer)
    names, counts = np.frombuffer(data, "<i8").reshape(-1, 2).T
    if (np.diff(names) <= 0).any() or not 1 <= int(counts.min(initial=1)) <= int(counts.max(initial=1)) < 1 << 40:
        raise Refused("malformed", "malformed counts", peer)
    return names, counts
