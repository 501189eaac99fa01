"""The analyzer's side: opens what the shuffler has mixed, and adds up every dimension."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tacit.crypto import EVERYONE, Identity, Refused, SealingKey
from tacit.exchange.post import OutOfTurn, Post, write_sums
from tacit.families.shuffle.shuffled.terms import ANALYZER, KEY, MIXED, PROTOCOL, SHUFFLER, ShuffledTerms, Values


class Analyzer:
    """The analyzer of one run. ``begin`` gives the key of a round for everyone, ``receive`` takes what was mixed.

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
        opened = key.open_rows(messages.sealed, terms.sealing(self._number), self._workers)
        index, value = terms.read(opened)
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
