"""What is refused, and because of whom. Messages name peers, rounds and counts, never keys or contents."""

from __future__ import annotations


class Refused(ValueError):
    """A message, key or share that must not be used. ``peer`` is the name of who sent it, where that is known."""

    def __init__(self, reason: str, peer: str | None = None) -> None:
        super().__init__(reason if peer is None else f"{peer}: {reason}")
        self.peer = peer


class BadSignature(Refused):
    """Not signed, signed by somebody else, altered on the way, or signed for another place than this one."""


class Replayed(Refused):
    """A second message for a place that has already been filled."""


class Tampered(Refused):
    """A sealed message that does not open: another key, another context, or altered on the way."""


class BadShares(Refused):
    """Shares that do not determine a secret: too few, twice the same holder, or not of one polynomial."""
