"""What silos of all exchanges that have messages of their own do alike: they answer when it is their turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import numpy as np

from tacit.crypto import EVERYONE, Identity
from tacit.exchange.grid import Integers, beyond
from tacit.exchange.post import SERVER, OutOfTurn, Post
from tacit.privacy.invalid import InvalidArgument


class Answering:
    """One silo of an exchange, which knows what it will answer the server's next message with.

    handlers     by phase, what makes the answer out of the server's content; it says which phase comes next
    to_everyone  the phases whose answers are signed for everybody, because the server passes them on
    """

    to_everyone: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self, protocol: str, place: str, name: str, identity: Identity, identities: Mapping[str, bytes]
    ) -> None:
        self.name = name
        self._post = Post(protocol, place, name, identity, identities)
        self._phase: str | None = None
        self._handlers: dict[str, Callable[[bytes], bytes]] = {}

    @property
    def phase(self) -> str | None:
        """What it will answer the next message with; None where none is due."""
        return self._phase

    def receive(self, message: bytes) -> bytes:
        """The answer to the server's next message. Whatever is wrong with it ends the round for this silo: secrets are
        wiped, and it answers nothing more. What the server has not signed for this phase is refused and no more, or
        anybody could end the round."""
        if self._phase is None:
            raise OutOfTurn("a message outside of a round", SERVER)
        content = self._post.read(SERVER, self._phase, message)
        phase, self._phase = self._phase, None  # whoever does not come to the end of its phase has no other
        try:
            reply = self._handlers[phase](content)
        except BaseException:
            self._forget()
            raise
        return self._post.write(EVERYONE if phase in self.to_everyone else SERVER, phase, reply)

    def _forget(self) -> None:
        """Wipe what belongs to this round alone."""


def check_vector(vector: Integers, numbers: int, largest: int) -> None:
    """A programming error where a vector is not what was agreed on: so many integers, none beyond the bound."""
    if vector.shape != (numbers,) or vector.dtype != np.int64:
        problem = f"{numbers} integers are due, not {vector.dtype} {vector.shape}"
        raise InvalidArgument("wrong-length", "vector", problem)
    if beyond(vector, largest):
        raise InvalidArgument("out-of-range", "vector", "a vector beyond the agreed bound")
