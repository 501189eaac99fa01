"""The server as the shuffler, and a silo as the place of its people's encoders."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tacit.crypto import IDENTITY_BYTES, Refused
from tacit.exchange.base import Keys, ServerRole, SiloRole
from tacit.exchange.post import join_named, named_parts, read_sums
from tacit.families.shuffle.shuffled.encoder import Collected, Encoders, encoder_name
from tacit.families.shuffle.shuffled.shuffler import Shuffler
from tacit.families.shuffle.shuffled.terms import ANALYZER, MIXED, PEOPLE, PROTOCOL, REPORTS, ShuffledTerms, servers_of
from tacit.privacy.randomness import Stream


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
        told = named_parts(content, sender, self._people[sender])
        if phase == PEOPLE:
            if len(told) < len(self._people[sender]) or any(len(public) != IDENTITY_BYTES for public in told.values()):
                raise Refused("wrong-parties", "not the identities of all of its people", sender)
            self._roster |= told
            return
        refusals = []
        for person in self._people[sender]:
            try:
                if person in told:
                    self.shuffler.receive(person, told[person])
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
