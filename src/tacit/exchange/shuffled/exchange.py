"""The shuffled exchange: people send reports to a shuffler, which mixes them for an analyzer that adds them up."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from tacit.crypto import Identity
from tacit.errors import UserError
from tacit.exchange.plain import FLOATS
from tacit.exchange.shuffled.analyzer import Analyzer
from tacit.exchange.shuffled.encoder import Collected, Encoders
from tacit.exchange.shuffled.mixing import places
from tacit.exchange.shuffled.shuffler import Shuffler
from tacit.exchange.shuffled.terms import ANALYZER, SHUFFLER, Indices, ShuffledTerms, Values
from tacit.exchange.sums import SumFacts
from tacit.privacy import Index, Reveals, View
from tacit.privacy.invalid import InvalidArgument
from tacit.privacy.randomness import Stream

# fillings that are drawn at once where nothing is sealed
_AT_ONCE = 1 << 21


@dataclass(frozen=True)
class Shuffled:
    """FLAME's framework with messages that cannot be linked (specification 5.2).

    sealed  with real cryptography; False: the same sums, drawn without making any message, for large studies
    linked  all numbers of one person in one message, as the paper prints it: these hide in no crowd

    Formal guarantee, for a shuffler that follows the protocol and does not collude with the analyzer: the analyzer
    learns, for every dimension, ``padding`` reports in random order, and nothing of who sent which, or how many.
    """

    name: ClassVar[str] = "shuffled"
    about: ClassVar[str] = "people send single reports to a shuffler, which fills up, mixes and passes them on"
    index: ClassVar[Index | None] = None

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
            return (FLOATS,)
        honest = "the shuffler follows the protocol and does not collude with the analyzer"
        if view.kind == "shuffler":  # which knows its own fillings: those hide nobody from it
            return (honest, "everybody else's messages reach the shuffler", FLOATS)
        return (honest, "everybody else's messages reach the shuffler, or fillings take their places", FLOATS)

    def check(self, facts: SumFacts) -> None:
        """Refuse (UserError) lists of random length in one message."""
        if self.linked and facts.reports is not None and facts.reports.listed is None:
            problem = "true needs lists of one length, and the method draws how many numbers a person reports"
            fix = 'use method.index_sampling = "fixed", or linked = false'
            raise UserError("conflict", "exchange.linked", problem, fix)

    def session(self, facts: SumFacts) -> ShuffledSession:
        """All parties in this process."""
        terms = self.terms(secrets.token_hex(16), facts)
        if self.sealed:
            return SealedSession(terms, os.cpu_count() or 1)
        assert facts.reports is not None
        return OpenSession(terms, facts.reports.crowd)

    def terms(self, run: str, facts: SumFacts) -> ShuffledTerms:
        """What the parties agree on."""
        reports = facts.reports
        if reports is None:
            raise InvalidArgument("not-supported", "messages", "only single reports can be shuffled")
        law = reports.randomizer
        return ShuffledTerms(run, facts.people, reports.dimensions, reports.padded, law, reports.listed, self.linked)


class AddedUp(Collected):
    """The same where nothing will be cut: sums and numbers of reports are all that is kept."""

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.total, self.count = np.zeros(dimensions), np.zeros(dimensions, np.int64)

    def add(self, person: Indices, index: Indices, value: Values) -> None:
        self.total += np.bincount(index, value - 0.5, self.total.size)
        self.count += np.bincount(index, minlength=self.total.size)


class ShuffledSession(Protocol):
    """A run's shuffled rounds."""

    def collect(self) -> Collected:
        """Where reports of a round are put; one for each thread."""

    def sum(self, number: int, collected: Sequence[Collected], stream: Stream) -> Values:
        """The sum of ``report - 1/2`` for every dimension, as the analyzer finds it. ``stream`` is the shuffler's."""


class OpenSession:
    """Nothing is sealed: the analyzer's sums, from the same law, without its messages."""

    def __init__(self, terms: ShuffledTerms, crowd: int) -> None:
        self.terms = terms
        self._cuts = crowd > terms.padded and not terms.linked

    def collect(self) -> Collected:
        return Collected() if self._cuts else AddedUp(self.terms.dimensions)

    def sum(self, number: int, collected: Sequence[Collected], stream: Stream) -> Values:
        terms, whole = self.terms, AddedUp(self.terms.dimensions)
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


class SealedSession:
    """Encoders, shuffler and analyzer in one process, each with its own keys; messages between them are bytes."""

    def __init__(self, terms: ShuffledTerms, workers: int = 1) -> None:
        self.terms, self.workers = terms, workers
        identities = {name: Identity() for name in (ANALYZER, SHUFFLER)}
        servers = {name: identity.public for name, identity in identities.items()}
        self.encoders = Encoders(terms, range(terms.people), servers, workers)
        self.analyzer = Analyzer(terms, identities[ANALYZER], servers)
        self.shuffler = Shuffler(terms, identities[SHUFFLER], servers | self.encoders.roster)

    def collect(self) -> Collected:
        return Collected()

    def sum(self, number: int, collected: Sequence[Collected], stream: Stream) -> Values:
        key = self.analyzer.begin(number)
        self.shuffler.begin(number, key)
        for name, message in self.encoders.submitted(number, key, collected):
            self.shuffler.receive(name, message)
        self.analyzer.receive(self.shuffler.mix(stream, self.workers), self.workers)
        assert self.analyzer.total is not None
        return self.analyzer.total
