"""The shuffled exchange: subjects send reports to a shuffler, which mixes them for an analyzer that adds them up.

The server is the shuffler; a silo holds the encoders of its subjects.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tacit.crypto import IDENTITY_BYTES, Refused
from tacit.errors import UserError
from tacit.exchange.base import Exchange, Keys, ServerRole, SiloRole
from tacit.exchange.post import SERVER, join_named, named_parts, read_sums
from tacit.exchange.session import Summing
from tacit.exchange.sums import SumFacts
from tacit.families.shuffle.protocol import (
    ANALYZER,
    MIXED,
    PEOPLE,
    PROTOCOL,
    REPORTS,
    SHUFFLER,
    Analyzer,
    Collected,
    Encoders,
    Indices,
    ShuffledTerms,
    Shuffler,
    Values,
    encoder_name,
    places,
)
from tacit.privacy import Reveals, View
from tacit.privacy.invalid import InvalidArgument
from tacit.privacy.randomness import Stream
from tacit.privacy.terms import FLOATING_POINT

# fillings that are drawn at once where nothing is sealed
_AT_ONCE = 1 << 21


@dataclass(frozen=True)
class Shuffled(Exchange):
    """FLAME's framework with messages that are not linkable (specification 5.2).

    sealed  with real cryptography; False: the same sums, drawn without making any message, for large studies
    linked  all numbers of one person in one message, as the paper prints it: these hide in no crowd

    Formal guarantee, for a shuffler that follows the protocol and does not collude with the analyzer: the analyzer
    learns, for every dimension, ``padding`` reports in random order, and nothing of who sent which, or how many.
    """

    name: ClassVar[str] = "shuffled"
    about: ClassVar[str] = "people send single reports to a shuffler, which fills up, mixes and passes them on"
    carries = "reports"
    adds = frozenset()
    opens = True
    third_party = ANALYZER

    sealed: bool = True
    linked: bool = False

    @property
    def reveals(self) -> Mapping[str, Reveals]:
        mixed: Reveals = "each" if self.linked else "messages"
        return {"public": mixed, "analyzer": mixed, "shuffler": "sum", "shuffler+analyzer": "each"}

    def reveals_to(self, view: View) -> Reveals | None:
        return self.reveals.get(str(view))

    def assumptions(self, view: View, silos: int) -> tuple[str, ...]:
        if view.kind == "shuffler+analyzer":
            return (FLOATING_POINT,)
        honest = "the shuffler follows the protocol and does not collude with the analyzer"
        if view.kind == "shuffler":  # which knows its own fillings: those hide no report from it
            return (honest, "the messages of all other people reach the shuffler", FLOATING_POINT)
        return (
            honest,
            "the messages of all other people reach the shuffler, or fillings take their places",
            FLOATING_POINT,
        )

    def check(self, facts: SumFacts) -> None:
        """Refuse (UserError) lists of random length in one message."""
        if self.linked and facts.reports is not None and facts.reports.listed is None:
            problem = "true needs lists of one length, and the method draws how many numbers a person reports"
            fix = 'use method.index_sampling = "fixed", or linked = false'
            raise UserError("conflict", "exchange.linked", problem, fix)

    def check_federated(self) -> None:
        if not self.sealed:
            problem = "false is for the simulator: messages that travel are sealed"
            raise UserError("simulator-only", "exchange.sealed", problem, "leave it out")

    def session(self, silos: Sequence[str], numbers: int, facts: SumFacts, members: Sequence[Any] = ()) -> Summing:
        if self.sealed:
            return super().session(silos, numbers, facts, members)
        assert facts.reports is not None
        return OpenSession(self.terms("", silos, numbers, facts), facts.reports.crowd)

    def terms(self, run: str, silos: Sequence[str], numbers: int, facts: SumFacts) -> ShuffledTerms:
        reports = facts.reports
        if reports is None:
            raise InvalidArgument("not-supported", "messages", "only single reports can be shuffled")
        law, parties = reports.randomizer, (tuple(silos), facts.complete)
        return ShuffledTerms(
            run, facts.people, reports.dimensions, reports.padded, law, reports.listed, self.linked, *parties
        )

    def server(self, terms: ShuffledTerms, keys: Keys) -> ShuffledServer:
        return ShuffledServer(terms, keys)

    def silo(self, terms: ShuffledTerms, keys: Keys, members: Sequence[int]) -> ShuffledSilo:
        """``members``: the numbers of its people."""
        return ShuffledSilo(terms, keys, members)

    def third(self, terms: ShuffledTerms, keys: Keys) -> Analyzer:
        return Analyzer(terms, keys.identity, servers_of(keys.roster), os.cpu_count() or 1)


def servers_of(roster: Mapping[str, bytes]) -> dict[str, bytes]:
    """Of the roster of a run, the server as the shuffler, and the analyzer."""
    if ANALYZER not in roster:
        raise Refused("bad-terms", "the roster has no analyzer")
    return {SHUFFLER: roster[SERVER], ANALYZER: roster[ANALYZER]}


class ShuffledSilo(SiloRole):
    """Hands over the sealed reports of its people. In setup, their public identities."""

    releases = (REPORTS,)
    signs_opening = False
    terms: ShuffledTerms

    def __init__(self, terms: ShuffledTerms, keys: Keys, people: Sequence[int]) -> None:
        super().__init__(PROTOCOL, terms, keys, Collected)
        self.encoders = Encoders(terms, people, servers_of(keys.roster), os.cpu_count() or 1)

    @property
    def longest(self) -> int:
        return 0

    def open(self) -> bytes:
        return join_named(self.encoders.roster)

    def begin(self, number: int, contribution: Sequence[Collected], noise: Stream, preface: bytes = b"") -> bytes:
        """``preface`` is the analyzer's key of the round."""
        self._made = REPORTS
        return join_named(dict(self.encoders.submitted(number, preface, contribution)))


class ShuffledServer(ServerRole):
    """Mixes what silos hand over, and asks the analyzer for the sums. Fillings take the places of missing reports."""

    signs_opening = False
    terms: ShuffledTerms
    shuffler: Shuffler

    def __init__(self, terms: ShuffledTerms, keys: Keys) -> None:
        super().__init__(PROTOCOL, terms, keys)
        self._identity, self._roster = keys.identity, servers_of(keys.roster)
        self._people = {silo: [encoder_name(person) for person in terms.people_of(silo)] for silo in terms.silos}

    @property
    def longest(self) -> int:
        return self.terms.longest(-(-self.terms.people // len(self.terms.silos)))

    @property
    def least(self) -> int:
        return 0 if self._phase == REPORTS and not self.terms.complete else len(self._there)

    def open(self) -> None:
        self._begin(0, PEOPLE)

    def begin(self, number: int, stream: Stream | None = None, preface: bytes = b"") -> None:
        """``preface``: the analyzer's key of the round. ``stream`` decides what is cut, the fillings, and the order."""
        self._begin(number, REPORTS)
        self._stream = stream
        self.shuffler.begin(number, preface)

    def _opened(self, phase: str, sender: str, message: bytes) -> bytes:
        return message  # reports are signed by people one by one, all else by the carrier

    def _written(self, recipient: str, phase: str, content: bytes) -> bytes:
        return content

    def _read(self, phase: str, sender: str, content: bytes) -> None:
        if phase == MIXED:
            self.total = read_sums(content, self.terms.dimensions, ANALYZER)
            return
        parts = named_parts(content, sender, self._people[sender])
        if phase == PEOPLE:
            if len(parts) < len(self._people[sender]) or any(len(key) != IDENTITY_BYTES for key in parts.values()):
                raise Refused("wrong-parties", "not the identities of all of its people", sender)
            self._roster |= parts
            return
        refusals = []
        for person in self._people[sender]:
            try:
                if person in parts:
                    self.shuffler.receive(person, parts[person])
            except Refused as refused:  # the other people of the silo are not to blame
                refusals.append(refused)
        if refusals:
            raise refusals[0]

    def _next(self, phase: str) -> tuple[str | None, dict[str, bytes]]:
        if phase == PEOPLE:
            self.shuffler = Shuffler(self.terms, self._identity, self._roster)
        if phase != REPORTS:
            return None, {}
        assert self._stream is not None
        self._there = (ANALYZER,)
        return MIXED, {ANALYZER: self.shuffler.mix(self._stream, os.cpu_count() or 1)}


class AddedUp(Collected):
    """The same where nothing will be cut: sums and numbers of reports are all that is kept."""

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.total, self.count = np.zeros(dimensions), np.zeros(dimensions, np.int64)

    def add(self, person: Indices, index: Indices, value: Values) -> None:
        self.total += np.bincount(index, value - 0.5, self.total.size)
        self.count += np.bincount(index, minlength=self.total.size)


class OpenSession:
    """Nothing is sealed: the analyzer's sums, from the same law, without its messages."""

    def __init__(self, terms: ShuffledTerms, crowd: int) -> None:
        self.terms = terms
        self._cuts = crowd > terms.padded and not terms.linked

    def form(self) -> Collected:
        """Where reports of a round are put; one for each thread."""
        return Collected() if self._cuts else AddedUp(self.terms.dimensions)

    def sum(
        self,
        number: int,
        contributions: Iterable[Sequence[Collected]],
        noise: Sequence[Stream],
        *,
        stream: Stream | None = None,
    ) -> Values:
        assert stream is not None
        terms, whole = self.terms, AddedUp(self.terms.dimensions)
        collected = [part for own in contributions for part in own]
        if self._cuts:
            person, index, value = Collected.together(collected)
            kept = places(index, terms.dimensions, terms.padded, stream)
            whole.add(person[kept], index[kept], value[kept])
        for part in collected:
            if isinstance(part, AddedUp):
                whole.total += part.total
                whole.count += part.count
        self._fill(whole.total, np.maximum(terms.padded - whole.count, 0), stream)
        return whole.total

    def _fill(self, total: Values, lacking: Indices, stream: Stream) -> None:
        """Add ``lacking [dimensions]`` fillings, some dimensions at a time."""
        step = max(1, _AT_ONCE // self.terms.padded)
        for first in range(0, lacking.size, step):
            own = lacking[first : first + step]
            drawn = self.terms.randomizer.blanket(int(own.sum()), stream) - 0.5
            total[first : first + step] += np.bincount(np.repeat(np.arange(own.size), own), drawn, own.size)
