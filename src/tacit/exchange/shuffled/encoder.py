"""The encoder's side of a shuffled round: one person, who has made reports and sends them sealed."""

from __future__ import annotations

from collections.abc import Mapping

from tacit.crypto import Identity, seal_rows
from tacit.exchange.post import Post
from tacit.exchange.shuffled.terms import (
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
    whole is signed, so that the shuffler takes one set of reports from everybody; the shuffler strips that off.
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
