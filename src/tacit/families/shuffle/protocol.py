"""The protocol of shuffled reports ([FLAME], specification 5.2): terms, encoders, shuffler and analyzer.

An encoder is one subject; it seals reports for the analyzer, one by one. The shuffler takes them from all subjects,
removes whose they are, fills up, cuts and mixes. The analyzer opens and adds up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tacit.crypto import EVERYONE, Context, Identity, Refused, SealingKey, seal_rows
from tacit.crypto.sealed import OVERHEAD
from tacit.exchange.post import OutOfTurn, Post, join, parted, write_sums
from tacit.exchange.sums import people_of
from tacit.privacy.mechanisms.noise_mechanisms import Randomizer
from tacit.privacy.randomness import Stream

PROTOCOL = "tacit-shuffled-1"
SHUFFLER, ANALYZER = "shuffler", "analyzer"
# who sends what: the analyzer its key, encoders their reports, the shuffler the mixed reports; in setup, silos send the
# identities of their subjects
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
    """What all parties agree on before a round, all of it public.

    run         a name that no other run has
    people      number of encoders, over all rounds
    dimensions  how many numbers an update has
    padded      messages per dimension that the analyzer gets
    randomizer  by which reports are made, and fillings drawn
    listed      how many numbers one encoder reports; None where that is random
    linked      all numbers of one encoder in one message, as the paper prints it; otherwise each is one
    silos       who sends the reports of their subjects
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
        """The run, with a hash of the terms: a party with other terms signs, and seals, for another place."""
        return f"{self.run}/{hashlib.sha256(repr(self).encode()).hexdigest()[:32]}"

    @property
    def width(self) -> int:
        """Numbers in one message."""
        return self.listed if self.linked and self.listed is not None else 1

    @property
    def sealed_bytes(self) -> int:
        return self.width * _ENTRY.itemsize + OVERHEAD

    def longest(self, people: int) -> int:
        """Upper bound on the bytes that this many subjects send, and that the shuffler passes on."""
        sent = people * -(-self.dimensions // self.width)
        mixed = -(-self.dimensions * self.padded // self.width) + self.padded + self.people
        return max(sent, mixed) * (self.sealed_bytes + 4 * self.width) + people * _PER_PERSON

    def people_of(self, silo: str) -> list[int]:
        """The subjects whose reports a silo sends, by number."""
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


# -- encoders ----------------------------------------------------------------------------------------------------------


class ShuffledEncoder:
    """One encoder. ``begin`` takes the analyzer's key of a round, ``signed`` gives the message to the shuffler.

    Every report is sealed for the analyzer with an ephemeral key of its own: no two can be linked by their bytes. The
    whole is signed, so that the shuffler takes one set of reports from each subject; the shuffler removes the
    signature.
    """

    def __init__(self, terms: ShuffledTerms, name: str, identity: Identity, identities: Mapping[str, bytes]) -> None:
        self.terms, self.name = terms, name
        self._post = Post(PROTOCOL, terms.place, name, identity, identities)
        self.key = b""  # the analyzer's, of this round

    def begin(self, number: int, key: bytes) -> None:
        """The next round, in which the analyzer has sent ``key`` to all parties."""
        self._post.begin(number)
        self.key = self._post.read(ANALYZER, KEY, key, to_everyone=True)

    def signed(self, index: Indices, sealed: Rows) -> bytes:
        """The message to the shuffler, of sealed reports."""
        return self._post.write(SHUFFLER, REPORTS, self.terms.write(Messages(index, sealed)))


class Collected:
    """Reports of some subjects of a round, as they come."""

    def __init__(self) -> None:
        self._parts: list[tuple[Indices, Indices, Values]] = []

    def add(self, person: Indices, index: Indices, value: Values) -> None:
        """Reports ``value [messages]`` of ``person [messages]`` about ``index [messages]``; those of one subject
        together."""
        self._parts.append((person, index, value))

    @staticmethod
    def together(collected: Sequence[Collected]) -> tuple[Indices, Indices, Values]:
        """(person, index, value) of all of them, by person: what is cut does not depend on who worked when."""
        nothing = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
        parts = [nothing, *(part for some in collected for part in some._parts)]
        person, index, value = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.argsort(person, kind="stable")
        return person[order], index[order], value[order]


class Encoders:
    """Subjects in one place, each an encoder with keys of its own; the processes of one machine seal for all of them.

    each    the encoder of each subject, by number
    roster  the public identity of each subject, by name, for the shuffler
    """

    def __init__(
        self, terms: ShuffledTerms, people: Iterable[int], servers: Mapping[str, bytes], workers: int = 1
    ) -> None:
        self.terms, self._workers = terms, workers
        identities = {person: Identity() for person in people}
        self.each = {
            person: ShuffledEncoder(terms, encoder_name(person), identity, servers)
            for person, identity in identities.items()
        }
        self.roster = {encoder_name(person): identity.public for person, identity in identities.items()}

    def submitted(self, number: int, key: bytes, collected: Sequence[Collected]) -> Iterator[tuple[str, bytes]]:
        """(name, message to the shuffler) of each subject that reports in round ``number``."""
        person, index, value = Collected.together(collected)
        if not person.size:
            return
        indices, contents = self.terms.contents(index, value)
        owner = person[:: self.terms.width]
        ends = np.flatnonzero(np.diff(owner, append=-1)) + 1
        for last in ends:
            self.each[int(owner[last - 1])].begin(number, key)
        public = self.each[int(owner[0])].key
        sealed = seal_rows(contents, public, self.terms.sealing(number), self._workers)
        for first, last in pairwise([0, *ends]):
            encoder = self.each[int(owner[first])]
            yield encoder.name, encoder.signed(indices[first:last], sealed[first:last])


def encoder_name(person: int) -> str:
    """The name of a subject, by number, among the parties of a run."""
    return f"person {person}"


# -- shuffler ----------------------------------------------------------------------------------------------------------


class Shuffler:
    """The shuffler of one run. ``receive`` takes one message from each encoder; ``mix`` gives the one to the analyzer.

    The analyzer gets ``padded`` messages about every dimension: reports and fillings from the blanket, of one length
    and form, in one uniformly random order. It does not learn which encoders have sent nothing: fillings take their
    places. (``linked``, as printed: fillings are whole lists, and lists are never cut.)
    """

    def __init__(self, terms: ShuffledTerms, identity: Identity, identities: Mapping[str, bytes]) -> None:
        self.terms = terms
        self._post = Post(PROTOCOL, terms.place, SHUFFLER, identity, identities)
        self._number = -1
        self._key: bytes | None = None
        self._received: list[Messages] = []

    def begin(self, number: int, key: bytes) -> None:
        """The next round, in which the analyzer has sent ``key`` to all parties."""
        self._post.begin(number)
        nothing = Messages(np.zeros((0, self.terms.width), np.int64), np.zeros((0, self.terms.sealed_bytes), np.uint8))
        self._number, self._received = number, [nothing]
        self._key = self._post.read(ANALYZER, KEY, key, to_everyone=True)

    def receive(self, sender: str, message: bytes) -> None:
        """An encoder's reports: each dimension at most once, as many as the terms say."""
        if self._key is None:
            raise OutOfTurn("reports outside of a round", sender)
        messages = self.terms.parse(self._post.read(sender, REPORTS, message), sender)
        index = messages.dimension.ravel()
        if index.size and (index.max() >= self.terms.dimensions or np.unique(index).size < index.size):
            reason = "reports about dimensions that do not exist, or about one more than once"
            raise Refused("out-of-range", reason, sender)
        if self.terms.listed not in (None, index.size):
            raise Refused("wrong-length", f"{index.size} reports, expected {self.terms.listed}", sender)
        self._received.append(messages)

    def mix(self, stream: Stream, workers: int = 1) -> bytes:
        """The message to the analyzer. ``stream`` decides what is cut, the fillings, and the order."""
        if self._key is None:
            raise OutOfTurn("mixing outside of a round", SHUFFLER)
        terms = self.terms
        index, sealed = (np.concatenate(column) for column in zip(*self._received, strict=True))
        if not terms.linked:
            kept = places(index.ravel(), terms.dimensions, terms.padded, stream)
            index, sealed = index[kept], sealed[kept]
        # reports of no subject, made and sealed as those of encoders are
        filling = dealt(missing(index.ravel(), terms.dimensions, terms.padded), terms.width).ravel()
        filling, contents = terms.contents(filling, terms.randomizer.blanket(filling.size, stream))
        index = np.concatenate([index, filling])
        sealed = np.concatenate([sealed, seal_rows(contents, self._key, terms.sealing(self._number), workers)])
        order = stream.permutation(len(index))
        self._key, self._received = None, []
        return self._post.write(ANALYZER, MIXED, terms.write(Messages(index[order], sealed[order])))


def places(index: Indices, dimensions: int, most: int, stream: Stream) -> Indices:
    """Which of the messages about ``index [messages]`` go on: all, or ``most`` of a dimension, uniformly chosen."""
    crowded = np.flatnonzero((np.bincount(index, minlength=dimensions) > most)[index])
    lot = crowded[np.lexsort((stream.words(crowded.size), index[crowded]))]
    dimension = index[lot]
    rank = np.arange(lot.size) - np.searchsorted(dimension, dimension)
    kept = np.ones(index.size, bool)
    kept[lot[rank >= most]] = False
    return np.flatnonzero(kept)


def missing(index: Indices, dimensions: int, padded: int) -> Indices:
    """How many messages every dimension lacks, ``[dimensions]``; those with more lack none."""
    return np.maximum(padded - np.bincount(index, minlength=dimensions), 0)


def dealt(lacking: Indices, width: int) -> Indices:
    """``lacking [dimensions]`` messages in lists of ``width``, none of which names a dimension twice: ``[lists,
    width]``. Where a list has room left it names the dimension after the last, which stands for none."""
    total = int(lacking.sum())
    lists = max(-(-total // width), int(lacking.max(initial=0)))
    filled = np.full((lists, width), lacking.size)
    order = np.arange(total)
    filled[order % max(lists, 1), order // max(lists, 1)] = np.repeat(np.arange(lacking.size), lacking)
    return filled


# -- analyzer ----------------------------------------------------------------------------------------------------------


class Analyzer:
    """The analyzer of one run. ``begin`` gives the key of a round for all parties, ``receive`` takes what was mixed.

    total   the sum of ``report - 1/2`` for every dimension, after ``receive``
    """

    def __init__(
        self, terms: ShuffledTerms, identity: Identity, identities: Mapping[str, bytes], workers: int = 1
    ) -> None:
        self.terms, self._workers = terms, workers
        self._post = Post(PROTOCOL, terms.place, ANALYZER, identity, identities)
        self._number = -1
        self._key: SealingKey | None = None
        self.total: Values | None = None

    def begin(self, number: int) -> bytes:
        """The next round: a new key, so that what is opened later tells nothing about earlier rounds."""
        self._post.begin(number)
        self._number, self._key, self.total = number, SealingKey(), None
        return self._post.write(EVERYONE, KEY, self._key.public)

    @property
    def longest(self) -> int:
        return self.terms.longest(self.terms.people)

    def receive(self, message: bytes) -> bytes:
        """The sums of what the shuffler's message holds; refused unless every dimension has as many reports as the
        terms say."""
        if self._key is None:
            raise OutOfTurn("a message outside of a round", SHUFFLER)
        key, self._key = self._key, None
        terms = self.terms
        messages = terms.parse(self._post.read(SHUFFLER, MIXED, message), SHUFFLER)
        index, value = terms.read(key.open_rows(messages.sealed, terms.sealing(self._number), self._workers))
        if not np.array_equal(index, messages.dimension):
            raise Refused("mismatch", "a report that is about another dimension than it says", SHUFFLER)
        real = index < terms.dimensions  # one more stands for none
        counts = np.bincount(index[real], minlength=terms.dimensions)
        if not terms.linked and (counts != terms.padded).any():
            raise Refused("mismatch", f"a dimension with another number of reports than {terms.padded}", SHUFFLER)
        # a report that is no number says nothing
        centred = np.where(np.isfinite(value), value, 0.5)[real] - 0.5
        self.total = np.bincount(index[real], centred, terms.dimensions).astype(np.float64)
        return write_sums(self.total)
