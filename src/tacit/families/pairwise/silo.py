"""The silo's side of a sum with pairwise noise: a handler of messages with three phases."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from tacit.crypto import KeyPair, Refused, Secret
from tacit.crypto.mask_streams import KEY_BYTES
from tacit.exchange.base import Keys, SiloRole
from tacit.exchange.post import SERVER, join_named, named_parts
from tacit.exchange.sums import Grid, Integers, check_vector
from tacit.families.pairwise.terms import KEYS, PROTOCOL, SEEDS, VECTORS, PairwiseTerms
from tacit.privacy.mechanisms.discrete_gaussian import discrete_gaussian
from tacit.privacy.randomness import Stream


class PairwiseSilo(SiloRole):
    """One silo.

    phase     answers                       with
    keys      (begins)                      a public key
    vectors   the keys of its peers         its vector, with its own noise and that of its pairs
    seeds     who of its peers has vanished what it shared with them
    """

    releases = (VECTORS,)
    to_everyone = (KEYS,)
    terms: PairwiseTerms

    def __init__(self, terms: PairwiseTerms, keys: Keys, grid: Grid) -> None:
        super().__init__(PROTOCOL, terms, keys, grid)
        self._handlers = {VECTORS: self._add_noise, SEEDS: self._show}
        self._seeds: dict[str, Secret] = {}
        self._vector = np.zeros(0, np.int64)

    def begin(self, number: int, contribution: Integers, noise: Stream, preface: bytes = b"") -> bytes:
        """Start a round with this silo's vector ``[numbers]``."""
        terms = self.terms
        check_vector(contribution, terms.numbers, terms.largest)
        self._post.begin(number)
        self._forget()
        self._vector = contribution + discrete_gaussian(Fraction(terms.independent), terms.numbers, noise)
        self._keys = KeyPair()
        self._phase = VECTORS
        return self._written(KEYS, self._keys.public)

    def _add_noise(self, content: bytes) -> bytes:
        """The vector with the noise of every pair whose other silo has sent a key."""
        peers = self.terms.peers[self.name]
        signed = named_parts(content, SERVER, peers)
        if len(signed) < len(peers) - self.terms.drop_outs:
            reason = f"{len(signed)} of our {len(peers)} peers are left: more have vanished than may"
            raise Refused("too-few", reason, SERVER)
        total = self._vector
        for peer, message in signed.items():
            key = self._post.read(peer, KEYS, message, to_everyone=True)
            if len(key) != KEY_BYTES:
                raise Refused("malformed", "a message without a key", peer)
            self._seeds[peer] = self._keys.agree(key, self._post.place(self.name, peer, "pair noise"))
            total = total + self.terms.noise(self._seeds[peer], self.name, peer)
        self._vector = np.zeros(0, np.int64)
        self._phase = SEEDS
        return total.astype("<i8").tobytes()

    def _show(self, content: bytes) -> bytes:
        """The seeds of the pairs whose other silo has vanished: at most so many as may, over the whole round."""
        peers = self.terms.peers[self.name]
        vanished = named_parts(content, SERVER, peers)
        gone_before = len(peers) - len(self._seeds)
        if not set(vanished) <= set(self._seeds):
            raise Refused("unknown-party", "asks for what we share with a silo that has sent no key", SERVER)
        if gone_before + len(vanished) > self.terms.drop_outs:
            raise Refused("too-few", f"{gone_before + len(vanished)} of our peers have vanished, more than may", SERVER)
        shown = {peer: bytes(self._seeds[peer].expose()) for peer in vanished}
        self._forget()
        return join_named(shown)

    def _forget(self) -> None:
        for seed in self._seeds.values():
            seed.wipe()
        self._seeds = {}
        self._vector = np.zeros(0, np.int64)
