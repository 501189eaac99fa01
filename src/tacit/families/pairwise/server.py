"""The server's side of a sum with pairwise noise: it carries keys, adds up messages, and takes away what is left of
silos that have vanished."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tacit.crypto import Refused, Secret
from tacit.crypto.mask_streams import KEY_BYTES
from tacit.exchange.base import Keys, ServerRole
from tacit.exchange.post import TooFew, join_named, named_parts
from tacit.exchange.sums import Grid, Integers
from tacit.families.pairwise.terms import KEYS, PHASES, PROTOCOL, SEEDS, VECTORS, PairwiseTerms
from tacit.privacy.randomness import Stream


class PairwiseServer(ServerRole):
    """After the last phase ``total`` is the sum over ``survivors``.

    A message that is refused ends the round. (To go on without its sender, as masked sums do, would take the noise of
    its pairs from a vector that the server has seen.) A message after its phase is refused unread, for the same reason.
    """

    strict = True
    to_everyone = (KEYS,)
    terms: PairwiseTerms

    def __init__(self, terms: PairwiseTerms, keys: Keys, grid: Grid) -> None:
        super().__init__(PROTOCOL, terms, keys, grid)
        self.survivors: tuple[str, ...] = ()
        self._gone: dict[str, bytes] = {}
        self._forget()

    @property
    def least(self) -> int:
        return self.terms.least

    def begin(self, number: int, stream: Stream | None = None, preface: bytes = b"") -> None:
        self._begin(number, KEYS)
        self._forget()
        self.survivors = ()

    @property
    def messages(self) -> dict[str, Integers]:
        """The vectors as they came, by silo: what the server sees of a round."""
        return dict(self._vectors)

    def _next(self, phase: str) -> tuple[str | None, dict[str, bytes]]:
        before, self._there = self._there, tuple(sorted(self._inbox))
        if phase == SEEDS:
            self.total = self._sum()
            return None, {}
        told = self._inbox
        if phase == VECTORS:
            self.survivors = self._there
            told = self._gone = dict.fromkeys(set(before) - set(self._there), b"")
        following = PHASES[PHASES.index(phase) + 1]
        return following, {silo: self._of_peers(silo, told) for silo in self._there}

    def _of_peers(self, silo: str, parts: Mapping[str, bytes]) -> bytes:
        """Of ``parts`` by silo, those of one silo's peers."""
        return join_named({peer: parts[peer] for peer in self.terms.peers[silo] if peer in parts})

    def _read(self, phase: str, sender: str, content: bytes) -> None:
        """Check and keep what a message holds."""
        if phase == KEYS:
            if len(content) != KEY_BYTES:
                raise Refused("malformed", "a message without a key", sender)
        elif phase == VECTORS:
            if len(content) != self.terms.vector_bytes:
                reason = f"a vector of {len(content)} bytes where {self.terms.vector_bytes} are due"
                raise Refused("wrong-length", reason, sender)
            self._vectors[sender] = np.frombuffer(content, "<i8").astype(np.int64)
        else:
            seeds = named_parts(content, sender, self.terms.peers[sender])
            if set(seeds) != self._owed(sender) or any(len(seed) != KEY_BYTES for seed in seeds.values()):
                raise Refused("wrong-parties", "not the seeds of those of its peers who have vanished", sender)
            self._seeds[sender] = {peer: Secret(bytearray(seed)) for peer, seed in seeds.items()}

    def _owed(self, silo: str) -> set[str]:
        """The peers of a silo that have sent a key, and no vector."""
        return set(self._gone) & set(self.terms.peers[silo])

    def _sum(self) -> Integers:
        """The survivors' vectors, less the noise that they share with those who have vanished."""
        total = np.zeros(self.terms.numbers, np.int64)
        for silo in self.survivors:
            if silo not in self._seeds and self._owed(silo):
                raise TooFew(f"{silo} has sent a vector, and not what it shares with those who have vanished")
            total += self._vectors[silo]
            for peer, seed in self._seeds.get(silo, {}).items():
                total -= self.terms.noise(seed, silo, peer)
        return total

    def _forget(self) -> None:
        self._gone = {}
        self._vectors: dict[str, Integers] = {}
        self._seeds: dict[str, dict[str, Secret]] = {}
