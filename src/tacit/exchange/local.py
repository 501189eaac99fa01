"""Protocols that a server leads, whoever carries the messages; and all parties of one in this process, where messages
are bytes, as on a network."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from tacit.crypto import Identity, Refused
from tacit.exchange.grid import Grid, Integers
from tacit.exchange.post import SERVER
from tacit.privacy import Stream

# (phase, sender, recipient, message) -> the message as it arrives, None where it is lost
Carrier = Callable[[str, str, str, bytes], bytes | None]


class Answering(Protocol):
    """A silo's side of a protocol."""

    def receive(self, message: bytes) -> bytes: ...


class Adding(Answering, Protocol):
    """A silo's side of a sum."""

    def begin(self, number: int, vector: Integers, noise: Stream) -> bytes: ...


class Leading(Protocol):
    """The server's side of a protocol."""

    @property
    def phase(self) -> str | None: ...

    def receive(self, sender: str, message: bytes) -> None: ...

    def advance(self) -> dict[str, bytes]: ...


class Summing(Leading, Protocol):
    """The server's side of a sum, which has ``numbers`` after a round."""

    def begin(self, number: int) -> None: ...

    def numbers(self, grid: Grid) -> npt.NDArray[np.float64]: ...


def delivered(phase: str, sender: str, recipient: str, message: bytes) -> bytes | None:
    """Everything arrives as it was sent."""
    return message


def raised(silo: str, refused: Refused) -> NoReturn:
    """A message that is refused ends the round."""
    raise refused


def led(
    server: Leading, first: Mapping[str, bytes | None], refuse: Callable[[str, Refused], None] = raised
) -> Generator[dict[str, bytes], Mapping[str, bytes | None], None]:
    """The server's way through a protocol that silos have begun with ``first``: yields what to tell whom, and is sent
    the answers, until there is no more to say. Who answers nothing (None), or something that is refused, is missing."""
    answers = first
    while server.phase is not None:
        for silo, message in answers.items():
            try:
                if message is not None:
                    server.receive(silo, message)
            except Refused as refused:
                refuse(silo, refused)
        told = server.advance()
        answers = (yield told) if told else {}


def converse(
    server: Leading, silos: Mapping[str, Answering], first: Mapping[str, bytes], carry: Carrier = delivered
) -> None:
    """Carry messages between the silos, who have begun with ``first``, and the server until it has no more to say."""

    def carried(messages: Mapping[str, bytes]) -> dict[str, bytes | None]:
        return {silo: carry(server.phase or "", silo, SERVER, message) for silo, message in messages.items()}

    conversation = led(server, carried(first))
    told = next(conversation, None)
    while told is not None:
        arrived = {silo: carry(server.phase or "", SERVER, silo, message) for silo, message in told.items()}
        answers = {silo: silos[silo].receive(message) for silo, message in arrived.items() if message is not None}
        try:
            told = conversation.send(carried(answers))
        except StopIteration:
            told = None


class SumSession:
    """The parties of a sum in one process, each with its own keys; messages between them are bytes."""

    server: Summing
    silos: Mapping[str, Adding]

    def __init__(self, precision: float) -> None:
        self.grid = Grid(precision)

    def sum(
        self, number: int, vectors: Integers, noise: Sequence[Stream], carry: Carrier = delivered
    ) -> npt.NDArray[np.float64]:
        """The sum of ``vectors [silos, numbers]`` (in steps of the grid) and of everybody's noise, as numbers."""
        self.server.begin(number)
        parties = zip(self.silos.items(), vectors, noise, strict=True)
        first = {name: silo.begin(number, vector, stream) for (name, silo), vector, stream in parties}
        converse(self.server, self.silos, first, carry)
        return self.server.numbers(self.grid)


def introduced(names: Sequence[str]) -> tuple[dict[str, Identity], dict[str, bytes]]:
    """New identities for the server and all silos, and the roster on which all of them are."""
    identities = {name: Identity() for name in (SERVER, *names)}
    return identities, {name: identity.public for name, identity in identities.items()}


def silo_names(names: Sequence[str]) -> tuple[str, ...]:
    """Names of silos as parties: none is the server, no two are alike."""
    return tuple(f"silo {number} ({name})" for number, name in enumerate(names, start=1))
