"""Conversations that a server leads, over any carrier; and all parties of an exchange in one process."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from tacit.crypto import Identity, Refused
from tacit.exchange.base import Exchange, Keys, ServerRole, SiloRole, ThirdRole
from tacit.exchange.post import SERVER
from tacit.privacy.randomness import Stream

# (phase, sender, recipient, message) -> the message as it arrives, None where it is lost
Carrier = Callable[[str, str, str, bytes], bytes | None]


class Summing(Protocol):
    """The rounds of an exchange in this process.

    ``form`` is what a worker puts contributions into: the grid of integers, or what makes a place for reports.
    """

    @property
    def form(self) -> Any: ...

    def sum(
        self, number: int, contributions: Iterable[Any], noise: Sequence[Stream], *, stream: Stream | None = None
    ) -> npt.NDArray[np.float64]:
        """The sum over silos, as numbers. ``noise``: the stream of each silo. ``stream``: that of the server."""


def delivered(phase: str, sender: str, recipient: str, message: bytes) -> bytes | None:
    """Every message arrives as it was sent."""
    return message


def raised(party: str, refused: Refused) -> NoReturn:
    """A message that is refused ends the round."""
    raise refused


def led(
    server: ServerRole, first: Mapping[str, bytes], refuse: Callable[[str, Refused], None] = raised
) -> Generator[dict[str, bytes], Mapping[str, bytes], None]:
    """The server's way through a conversation that silos have begun with ``first``: yields what to send to whom, and is
    sent the answers that came. An answer that is missing or refused counts as none."""
    answers = first
    while server.phase is not None:
        for party, message in answers.items():
            try:
                server.receive(party, message)
            except Refused as refused:
                refuse(party, refused)
        told = server.advance()
        answers = (yield told) if told else {}


def converse(
    server: ServerRole,
    others: Mapping[str, SiloRole | ThirdRole],
    first: Mapping[str, bytes],
    carry: Carrier = delivered,
) -> None:
    """Carry messages between the server and the others, of whom silos have begun with ``first``, to the end."""

    def carried(messages: Mapping[str, bytes]) -> dict[str, bytes]:
        arrived = {party: carry(server.phase or "", party, SERVER, message) for party, message in messages.items()}
        return {party: message for party, message in arrived.items() if message is not None}

    conversation = led(server, carried(first))
    told = next(conversation, None)
    while told is not None:
        arrived = {party: carry(server.phase or "", SERVER, party, message) for party, message in told.items()}
        answers = {party: others[party].receive(message) for party, message in arrived.items() if message is not None}
        try:
            told = conversation.send(carried(answers))
        except StopIteration:
            told = None


class Session:
    """All parties of an exchange in one process, each with its own keys; messages between them are bytes."""

    def __init__(
        self, exchange: Exchange, terms: Any, members: Sequence[Any] = (), *, carry: Carrier = delivered
    ) -> None:
        silos, third = terms.silos, exchange.third_party
        identities, roster = introduced((*silos, *(() if third is None else (third,))))
        keys = {name: Keys(name, identity, roster) for name, identity in identities.items()}
        members = members or [None] * len(silos)
        self.terms = terms
        self.server = exchange.server(terms, keys[SERVER])
        self.silos: dict[str, Any] = {
            name: exchange.silo(terms, keys[name], own) for name, own in zip(silos, members, strict=True)
        }
        self.third = None if third is None else exchange.third(terms, keys[third])
        self._others = self.silos if third is None else {**self.silos, third: self.third}
        if exchange.opens:
            first = {name: silo.open() for name, silo in self.silos.items()}
            self.server.open()
            converse(self.server, self._others, first, carry)

    @property
    def form(self) -> Any:
        return next(iter(self.silos.values())).form

    def sum(
        self,
        number: int,
        contributions: Iterable[Any],
        noise: Sequence[Stream],
        carry: Carrier = delivered,
        *,
        stream: Stream | None = None,
    ) -> npt.NDArray[np.float64]:
        preface = b"" if self.third is None else self.third.begin(number)
        self.server.begin(number, stream, preface)
        parties = zip(self.silos.items(), contributions, noise, strict=True)
        first = {name: silo.begin(number, own, drawn, preface) for (name, silo), own, drawn in parties}
        converse(self.server, self._others, first, carry)
        found: npt.NDArray[np.float64] = self.server.numbers()
        return found


def introduced(names: Sequence[str]) -> tuple[dict[str, Identity], dict[str, bytes]]:
    """New identities for the server and all others, and the roster on which all of them are."""
    identities = {name: Identity() for name in (SERVER, *names)}
    return identities, {name: identity.public for name, identity in identities.items()}


def silo_names(names: Sequence[str]) -> tuple[str, ...]:
    """Names of silos as parties: none is the server, no two are alike."""
    return tuple(f"silo {number} ({name})" for number, name in enumerate(names, start=1))
