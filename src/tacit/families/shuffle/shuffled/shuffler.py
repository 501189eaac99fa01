"""The shuffler's side: takes reports that it cannot open, forgets whose they are, fills up, cuts, and mixes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tacit.crypto import Identity, Refused, seal_rows
from tacit.exchange.post import OutOfTurn, Post
from tacit.families.shuffle.shuffled.mixing import dealt, missing, places
from tacit.families.shuffle.shuffled.terms import (
    ANALYZER,
    KEY,
    MIXED,
    PROTOCOL,
    REPORTS,
    SHUFFLER,
    Indices,
    Messages,
    ShuffledTerms,
)
from tacit.privacy.randomness import Stream


class Shuffler:
    """The shuffler of one run. ``receive`` takes one message from each encoder; ``mix`` gives the one to the analyzer.

    The analyzer gets ``padded`` messages about every dimension: reports and fillings from the blanket, of one length
    and form, in one uniformly random order. Which encoders have sent nothing, it does not learn: fillings take their
    places. (``linked``, as printed: fillings are whole lists, and nothing is cut, because lists cannot be.)
    """

    def __init__(self, terms: ShuffledTerms, identity: Identity, identities: Mapping[str, bytes]) -> None:
        self.terms = terms
        self._post = Post(PROTOCOL, terms.place, SHUFFLER, identity, identities)
        self._number = -1
        self._key: bytes | None = None
        self._received: list[Messages] = []

    def begin(self, number: int, key: bytes) -> None:
        """The next round, in which the analyzer has sent ``key`` to everyone."""
        self._post.begin(number)
        self._number, self._received = number, []
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
            raise Refused("wrong-length", f"{index.size} reports where {self.terms.listed} are due", sender)
        self._received.append(messages)

    def mix(self, stream: Stream, workers: int = 1) -> bytes:
        """The message to the analyzer. ``stream`` decides what is cut, the fillings, and the order."""
        if self._key is None:
            raise OutOfTurn("mixing outside of a round", SHUFFLER)
        terms = self.terms
        received = self._received or [Messages(np.zeros((0, terms.width), np.int64), self._nothing)]
        index = np.concatenate([messages.dimension for messages in received])
        sealed = np.concatenate([messages.sealed for messages in received])
        if not terms.linked:
            kept = places(index.ravel(), terms.dimensions, terms.padded, stream)
            index, sealed = index[kept], sealed[kept]
        fillings = self._fillings(missing(index.ravel(), terms.dimensions, terms.padded), stream, workers)
        index, sealed = np.concatenate([index, fillings.dimension]), np.concatenate([sealed, fillings.sealed])
        order = stream.permutation(len(index))
        self._key, self._received = None, []
        return self._post.write(ANALYZER, MIXED, terms.write(Messages(index[order], sealed[order])))

    def _fillings(self, lacking: Indices, stream: Stream, workers: int) -> Messages:
        """Reports of no person, made and sealed as those of encoders are."""
        assert self._key is not None
        index = dealt(lacking, self.terms.width).ravel()
        index, contents = self.terms.contents(index, self.terms.randomizer.blanket(index.size, stream))
        return Messages(index, seal_rows(contents, self._key, self.terms.sealing(self._number), workers))

    @property
    def _nothing(self) -> np.ndarray:
        return np.zeros((0, self.terms.sealed_bytes), np.uint8)
