"""All parties of a protocol in this process: their messages are carried as bytes, as a network would carry them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from tacit.crypto import Identity
from tacit.exchange.post import SERVER

# (phase, sender, recipient, message) -> the message as it arrives, None where it is lost
Carrier = Callable[[str, str, str, bytes], bytes | None]


class Answering(Protocol):
    """A silo's side of a protocol."""

    def receive(self, message: bytes) -> bytes: ...


class Leading(Protocol):
    """The server's side of a protocol."""

    @property
    def phase(self) -> str | None: ...

    def receive(self, sender: str, message: bytes) -> None: ...

    def advance(self) -> dict[str, bytes]: ...


def delivered(phase: str, sender: str, recipient: str, message: bytes) -> bytes | None:
    """Everything arrives as it was sent."""
    return message


def converse(
    server: Leading, silos: Mapping[str, Answering], first: Mapping[str, bytes], carry: Carrier = delivered
) -> None:
    """Carry messages between the silos, who have begun with ``first``, and the server until it has no more to say."""
    outgoing = dict(first)
    while (phase := server.phase) is not None:
        for silo, message in outgoing.items():
            arrived = carry(phase, silo, SERVER, message)
            if arrived is not None:
                server.receive(silo, arrived)
        told, outgoing = server.advance(), {}
        for silo, message in told.items():
            arrived = carry(server.phase or "", SERVER, silo, message)
            if arrived is not None:
                outgoing[silo] = silos[silo].receive(arrived)


def introduced(names: Sequence[str]) -> tuple[dict[str, Identity], dict[str, bytes]]:
    """New identities for the server and all silos, and the roster on which all of them are."""
    identities = {name: Identity() for name in (SERVER, *names)}
    return identities, {name: identity.public for name, identity in identities.items()}


def silo_names(names: Sequence[str]) -> tuple[str, ...]:
    """Names of silos as parties: none is the server, no two are alike."""
    return tuple(f"silo {number} ({name})" for number, name in enumerate(names, start=1))
