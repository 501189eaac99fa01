"""What encoders, shuffler and analyzer agree on before anything is sent, and the form of messages; all of it public."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tacit.crypto import EVERYONE, Context, Refused
from tacit.crypto.sealed import OVERHEAD
from tacit.exchange.post import SERVER, join, parted
from tacit.exchange.sums import people_of
from tacit.privacy.mechanisms.noise_mechanisms import Randomizer

PROTOCOL = "tacit-shuffled-1"
SHUFFLER, ANALYZER = "shuffler", "analyzer"
# who sends what: the analyzer its key, encoders their reports, the shuffler what it has mixed; silos, in setup, the
# identities of their people
KEY, REPORTS, MIXED, PEOPLE = "key", "reports", "mixed", "people"

Indices = npt.NDArray[np.int64]
Rows = npt.NDArray[np.uint8]
Values = npt.NDArray[np.float64]

# More than a name, a signature and lengths take.
_PER_PERSON = 256
_ENTRY = np.dtype([("index", "<u4"), ("value", "<f8")])


class Messages(NamedTuple):
    """``dimension [messages, width]``, which the shuffler sees, and ``sealed [messages, bytes]``, which it does not."""

    dimension: Indices
    sealed: Rows


@dataclass(frozen=True)
class ShuffledTerms:
    """The terms of a shuffled round.

    run         a name that no other run has
    people      how many encoders there are, over all rounds
    dimensions  how many numbers an update has
    padded      so many messages the analyzer gets for every dimension
    randomizer  by which reports are made, and fillings drawn
    listed      how many numbers one encoder reports; None where that is random
    linked      all numbers of one encoder in one message, as the paper prints it; otherwise each is one
    silos       who hands over the reports of their people
    complete    whether none of them may be missing in a round
    """

    run: str
    people: int
    dimensions: int
    padded: int
    randomizer: Randomizer
    listed: int | None = None
    linked: bool = False
    silos: tuple[str, ...] = field(default=("all",), repr=False)
    complete: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        if self.linked and self.listed is None:
            raise Refused("bad-terms", "messages of many numbers need lists of one length")

    @property
    def place(self) -> str:
        """The run, with a hash of the terms: who goes by other terms signs, and seals, for another place."""
        return f"{self.run}/{hashlib.sha256(repr(self).encode()).hexdigest()[:32]}"

    @property
    def width(self) -> int:
        """Numbers in one message."""
        return self.listed if self.linked and self.listed is not None else 1

    @property
    def sealed_bytes(self) -> int:
        return self.width * _ENTRY.itemsize + OVERHEAD

    def longest(self, people: int) -> int:
        """Neither what so many people send nor what the shuffler passes on has more bytes."""
        sent = people * -(-self.dimensions // self.width)
        mixed = -(-self.dimensions * self.padded // self.width) + self.padded + self.people
        return max(sent, mixed) * (self.sealed_bytes + 4 * self.width) + people * _PER_PERSON

    def people_of(self, silo: str) -> list[int]:
        """The people whose reports a silo hands over, by number."""
        return people_of(self.silos.index(silo), self.people, len(self.silos)).tolist()

    def sealing(self, number: int) -> Context:
        """Where sealed reports of a round belong; nothing in it says who sent one."""
        return Context(PROTOCOL, self.place, number, EVERYONE, ANALYZER, "report")

    # -- the form of messages: the same for reports and fillings

    def contents(self, index: Indices, value: Values) -> tuple[Indices, Rows]:
        """Messages about ``index [numbers]`` and ``value [numbers]``, in order: indices, and what is to be sealed. The
        index is sealed, too, so that no report can be passed off as one about another dimension."""
        entries = np.empty(index.size, _ENTRY)
        entries["index"], entries["value"] = index, value
        return index.reshape(-1, self.width), entries.view(np.uint8).reshape(-1, self.width * _ENTRY.itemsize)

    def read(self, contents: Rows) -> tuple[Indices, Values]:
        """(index ``[messages, width]``, value ``[messages, width]``) of what was sealed."""
        entries = np.ascontiguousarray(contents).view(_ENTRY).reshape(-1, self.width)
        return entries["index"].astype(np.int64), entries["value"].astype(np.float64)

    def write(self, messages: Messages) -> bytes:
        """Messages as bytes; indices of all of them, then what is sealed in all of them."""
        return join([messages.dimension.astype("<u4").tobytes(), messages.sealed.tobytes()])

    def parse(self, data: bytes, peer: str) -> Messages:
        """The messages that :meth:`write` wrote; refused if they have another form."""
        index, sealed = parted(data, peer, count=2)
        count, rest = divmod(len(sealed), self.sealed_bytes)
        if rest or len(index) != 4 * count * self.width:
            raise Refused("wrong-length", "messages of another length", peer)
        indices = np.frombuffer(index, "<u4").astype(np.int64).reshape(count, self.width)
        return Messages(indices, np.frombuffer(sealed, np.uint8).reshape(count, self.sealed_bytes))


def servers_of(roster: Mapping[str, bytes]) -> dict[str, bytes]:
    """Of the roster of a run, the server as the shuffler, and the analyzer."""
    if ANALYZER not in roster:
        raise Refused("bad-terms", "the roster has no analyzer")
    return {SHUFFLER: roster[SERVER], ANALYZER: roster[ANALYZER]}
