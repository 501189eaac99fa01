"""The encoder's side of a shuffled round: one person, who has made reports and sends them sealed; and people in one
place, of whom each is one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from tacit.crypto import Identity, seal_rows
from tacit.exchange.post import Post
from tacit.families.shuffle.shuffled.terms import (
    ANALYZER,
    KEY,
    PROTOCOL,
    REPORTS,
    SHUFFLER,
    Indices,
    Messages,
    Rows,
    ShuffledTerms,
    Values,
)


class ShuffledEncoder:
    """One encoder. ``begin`` takes the analyzer's key of a round, ``submit`` gives the message to the shuffler.

    Every report is sealed for the analyzer with an ephemeral key of its own: no two can be linked by their bytes. The
    whole is signed, so that the shuffler takes one set of reports from each person; the shuffler strips that off.
    """

    def __init__(self, terms: ShuffledTerms, name: str, identity: Identity, identities: Mapping[str, bytes]) -> None:
        self.terms, self.name = terms, name
        self._post = Post(PROTOCOL, terms.place, name, identity, identities)
        self._number = -1
        self.key = b""  # the analyzer's, of this round

    def begin(self, number: int, key: bytes) -> None:
        """The next round, in which the analyzer has sent ``key`` to everyone."""
        self._post.begin(number)
        self._number, self.key = number, self._post.read(ANALYZER, KEY, key, to_everyone=True)

    def submit(self, index: Indices, value: Values) -> bytes:
        """The message to the shuffler: a report ``value [numbers]`` about each dimension of ``index [numbers]``."""
        indices, contents = self.terms.contents(index, value)
        return self.signed(indices, seal_rows(contents, self.key, self.terms.sealing(self._number)))

    def signed(self, index: Indices, sealed: Rows) -> bytes:
        """The message to the shuffler, of reports that are sealed already."""
        return self._post.write(SHUFFLER, REPORTS, self.terms.write(Messages(index, sealed)))


class Collected:
    """Reports of some people of a round, as they come."""

    def __init__(self) -> None:
        self._parts: list[tuple[Indices, Indices, Values]] = []

    def add(self, person: Indices, index: Indices, value: Values) -> None:
        """Reports ``value [messages]`` of ``person [messages]`` about ``index [messages]``; those of one person
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
    """People in one place: each an encoder with keys of its own, who would seal its own reports; here the processes of
    one machine seal for all of them.

    each    the encoder of each person, by number
    roster  the public identity of each person, by name: what the shuffler has to know
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
        """(name, message to the shuffler) of each person who reports in round ``number``."""
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
    """The name of a person, by number, among the parties of a run."""
    return f"person {person}"
