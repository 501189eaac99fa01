"""What travels between the coordinator and a silo: a header that says where a message belongs, and its content.

A message is ``"tacit-federation-1", run, round, phase, content``, each part with its length before it. Contents are
signed by their sender, for one run, round, recipient and phase: those of an exchange by the exchange's own protocol,
all others here (:class:`Desk`). So a header that was changed on the way leads to a content that is refused.
Nothing is ever unpickled: contents are JSON, trees of arrays (safetensors) or plain numbers.

    phase      the coordinator says                     a silo answers
    hello      who takes part, the mark of the plan     the shape of its records, a number drawn for this run, the
                                                        mark of its own plan
    begin      what all silos have answered, what is    that it is ready; where the plan discloses them, everybody's
               frozen in the model, rounds done         numbers of records
    totals     the numbers of records that each silo    that it is ready
               has told, signed by that silo
    statistics (nothing)                                its part of the sums that constants come from which the plan
                                                        pays for, with noise; or the first message of a masked sum
    constants  means and scales of columns              that it is ready
    open       (nothing)                                its first message of the exchange's own setup; in a shuffled
                                                        exchange the public identities of its people
    work       the model, and in a shuffled exchange    its update; in a masked or weighted exchange its first message,
               the analyzer's key                       in a shuffled one its people's sealed reports
    exchange   a message of the exchange                a message of the exchange
    metrics    the model, after the last round          its part of metrics that are paid for, with noise; in a masked
                                                        exchange the first message of another masked sum
    unpaid     the model, at its start or after a       (a reply, no message) metrics that nobody pays for, where the
               round                                    silo lets them leave
    refused    -                                        that it will not answer, and why

The analyzer of a shuffled exchange is greeted as silos are, asked for its key (``work``), and given what was mixed
(``exchange``): it answers with the sums.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.crypto import Identity, Refused
from tacit.exchange.post import OutOfTurn, Post, join, parted

PROTOCOL = "tacit-federation-1"
PHASES = HELLO, BEGIN, TOTALS, STATISTICS, CONSTANTS, OPEN, WORK, EXCHANGE, METRICS, UNPAID, REFUSED = (
    "hello",
    "begin",
    "totals",
    "statistics",
    "constants",
    "open",
    "work",
    "exchange",
    "metrics",
    "unpaid",
    "refused",
)
# Room for a header, a signature and what is said in words.
AROUND = 1 << 16


@dataclass(frozen=True)
class Message:
    """One message: where it belongs, and what it holds."""

    run: str
    round: int
    phase: str
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

    def check(self, run: str, number: int, phase: str, peer: str) -> bytes:
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
        """The desk of a later round, for what is not known yet to be signed: until it is, this one stays in use."""
        if number <= self.number:
            raise OutOfTurn(f"round {number} after round {self.number}", self._post.name)
        return Desk(self.run, *self._who, number)

    def write(self, recipient: str, phase: str, content: bytes) -> bytes:
        """A whole message with signed content."""
        return self.framed(phase, self._post.write(recipient, phase, content))

    def framed(self, phase: str, content: bytes) -> bytes:
        """A whole message whose content needs no signature of ours."""
        return Message(self.run, self.number, phase, content).to_bytes()

    def read(self, sender: str, phase: str, content: bytes, *, to_everyone: bool = False) -> bytes:
        """What ``sender`` has signed."""
        return self._post.read(sender, phase, content, to_everyone=to_everyone)


def write_json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def read_json(data: bytes, peer: str, keys: Mapping[str, type]) -> dict[str, Any]:
    """A JSON object with exactly these keys, each of its type."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):  # no JSON, or too deep
        raise Refused("malformed", "a content that is not readable", peer) from None
    if not isinstance(value, dict) or set(value) != set(keys):
        raise Refused("malformed", "a content with other parts than those that are due", peer)
    for key, kind in keys.items():
        if type(value[key]) is not kind:
            raise Refused("malformed", f"a content whose '{key}' is not as it should be", peer)
    return value


def write_counts(names: np.ndarray, counts: np.ndarray) -> bytes:
    """How many records people have, by names of 64 bits."""
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
