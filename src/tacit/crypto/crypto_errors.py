"""Refused messages, keys and shares, and the peer that sent them. Texts name peers, rounds and counts, never keys or
contents.

The code of a refusal stays the same between versions; the sentence may change.
"""

from __future__ import annotations

from collections.abc import Mapping

REFUSALS: Mapping[str, str] = {
    "bad-signature": "The message has no valid signature of its sender for this place in the protocol.",
    "replayed": "A second message arrived for a place that is already filled.",
    "tampered": "A sealed message does not open: wrong key, wrong context, or altered.",
    "bad-shares": "The shares do not determine a secret.",
    "duplicate": "Two shares have the same holder.",
    "out-of-turn": "The message or call does not belong to the current phase.",
    "too-few": "Fewer parties are left than the protocol needs.",
    "malformed": "The message does not have the form of its kind.",
    "wrong-length": "The message has another length than the protocol sets.",
    "too-large": "The message is larger than the limit.",
    "bad-key": "A public key is invalid or too short.",
    "out-of-range": "A number is not finite or outside of its range.",
    "unknown-party": "The message names a party that does not take part.",
    "wrong-parties": "The message does not name exactly the parties that it must name.",
    "mismatch": "The message contradicts what the parties agreed on.",
    "plan-mismatch": "The plan hash differs from ours.",
    "wrong-run": "The message belongs to another run or to another start of it.",
    "incomplete": "The message covers only some of the parties.",
    "equivocation": "The server sent contradicting messages to two parties.",
    "not-planned": "The message asks for something that the plan does not have.",
    "bad-terms": "The numbers of the protocol do not fit each other.",
    "no-answer": "The party did not answer in time.",
    "rejected": "The party refused our message.",
}
MISUSES: Mapping[str, str] = {
    "missing": "A required argument is empty.",
    "wrong-length": "An argument has the wrong length or shape.",
    "out-of-range": "A number is outside of its range.",
    "duplicate": "Two arguments are equal that must differ.",
    "mismatch": "Two arguments do not belong together.",
    "wiped": "The secret was wiped and cannot be used any more.",
}


class Refused(ValueError):
    """A message, key or share that must not be used. ``peer`` is the name of who sent it, where that is known."""

    code: str

    def __init__(self, code: str, reason: str, peer: str | None = None) -> None:
        assert code in REFUSALS, f"{code} is not a code of refusals"
        super().__init__(code, reason, peer)
        self.code, self.reason, self.peer = code, reason, peer

    def __str__(self) -> str:
        return f"{self.reason if self.peer is None else f'{self.peer}: {self.reason}'} [{self.code}]"


class CodedRefusal(Refused):
    """A refusal whose class fixes the code."""

    def __init__(self, reason: str, peer: str | None = None) -> None:
        super().__init__(self.code, reason, peer)
        self.args = (reason, peer)  # by which another process makes it again


class BadSignature(CodedRefusal):
    """Not signed, signed by another party, altered on the way, or signed for another place than this one."""

    code = "bad-signature"


class Replayed(CodedRefusal):
    """A second message for a place that has already been filled."""

    code = "replayed"


class Tampered(CodedRefusal):
    """A sealed message that does not open: another key, another context, or altered on the way."""

    code = "tampered"


class BadShares(Refused):
    """Shares that do not determine a secret: too few, twice the same holder, or not of one polynomial."""


class Misused(ValueError):
    """An argument that the caller must not give. ``field`` names it; the message holds no secret."""

    def __init__(self, code: str, field: str, problem: str) -> None:
        assert code in MISUSES, f"{code} is not a code of misuses"
        super().__init__(code, field, problem)
        self.code, self.field, self.problem = code, field, problem

    def __str__(self) -> str:
        return f"{self.field}: {self.problem} [{self.code}]"
