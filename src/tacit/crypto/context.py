"""Where a message or a key belongs: protocol, run, round, sender, recipient, purpose.

Every signature, derived key, mask stream and sealed message of Tacit is bound to a context, so that something made for
one place is worthless in any other. The encoding is injective: every field is preceded by its length, and their number
is fixed. Two contexts with the same bytes are the same context.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tacit.crypto.crypto_errors import Misused

EVERYONE = "*"
_VERSION = b"tacit-context-1"


@dataclass(frozen=True)
class Context:
    """One place in one run. ``recipient`` may be ``EVERYONE``; ``round`` counts from 0."""

    protocol: str
    run: str
    round: int
    sender: str
    recipient: str
    purpose: str = ""

    def __post_init__(self) -> None:
        if not (self.protocol and self.run and self.sender and self.recipient):
            raise Misused("missing", "context", "a context needs protocol, run, sender and recipient")
        if self.round < 0:
            raise Misused("out-of-range", "round", f"rounds count from 0, not {self.round}")

    def encode(self) -> bytes:
        """The bytes that are signed, or from which keys are derived; nothing that follows can be taken for a field."""
        values = (self.protocol, self.run, self.round, self.sender, self.recipient, self.purpose)
        fields = [str(value).encode() for value in values]
        return _VERSION + b"".join(len(field).to_bytes(4, "big") + field for field in fields)

    def pair(self) -> Context:
        """The same place seen from both ends: sender and recipient in the order of their names."""
        first, second = sorted((self.sender, self.recipient))
        return replace(self, sender=first, recipient=second)

    def at(self, purpose: str) -> Context:
        """The same place, for another purpose."""
        return replace(self, purpose=purpose)
