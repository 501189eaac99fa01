"""A sum with pairwise noise: the terms that all parties agree on, a silo's side, and the server's.

phase     a silo gets                   and answers with
keys      (begins)                      a public key
vectors   the keys of its peers         its vector, with its own noise and that of its pairs
seeds     the names of vanished peers   what it shared with them
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from tacit.crypto import KeyPair, Refused, Secret
from tacit.crypto.mask_streams import KEY_BYTES
from tacit.exchange.base import Keys, ServerRole, SiloRole
from tacit.exchange.post import SERVER, Terms, TooFew, join_named, named_parts
from tacit.exchange.sums import Grid, Integers, check_vector
from tacit.privacy.mechanisms.discrete_gaussian import discrete_gaussian
from tacit.privacy.randomness import Stream

PROTOCOL = "tacit-pairwise-1"
# the phases of a round, named after what silos send in them
KEYS, VECTORS, SEEDS = PHASES = ("keys", "vectors", "seeds")

# of a list of all silos, more than a key, or a seed, and a signature take for each
_PER_SILO = 1024


@dataclass(frozen=True)
class PairwiseTerms(Terms):
    """The terms of a sum.

    run          a name that no other run has
    silos        who takes part, by names of the roster
    pairs        who shares noise with whom, each pair once, the earlier of the silos first
    numbers      how many numbers every vector has
    largest      no entry of a silo's vector is larger, in steps of the grid
    independent  standard deviation of each silo's own noise, in steps of the grid
    shared       standard deviation of each pair's noise, in steps of the grid
    drop_outs    most silos that may vanish; no silo shows more keys than that
    """

    pairs: tuple[tuple[str, str], ...]
    numbers: int
    largest: int
    independent: float
    shared: float
    drop_outs: int = 0

    def __post_init__(self) -> None:
        self.check_names()
        if any(first >= second for first, second in self.pairs) or len(set(self.pairs)) != len(self.pairs):
            raise Refused("bad-terms", "every pair is listed once, in order")
        if not {name for pair in self.pairs for name in pair} <= set(self.silos):
            raise Refused("bad-terms", "pairs are pairs of silos")

    @property
    def vector_bytes(self) -> int:
        return 8 * self.numbers

    @property
    def longest(self) -> int:
        """No message of a round has more bytes: a vector, or what is said of or to each silo."""
        return self.vector_bytes + self.of_each_silo(_PER_SILO)

    @property
    def least(self) -> int:
        """Silos that must stay to the end."""
        return len(self.silos) - self.drop_outs

    @cached_property
    def peers(self) -> dict[str, tuple[str, ...]]:
        """By silo, with whom it shares noise."""
        found: dict[str, list[str]] = {silo: [] for silo in self.silos}
        for first, second in self.pairs:
            found[first].append(second)
            found[second].append(first)
        return {silo: tuple(peers) for silo, peers in found.items()}

    def noise(self, seed: Secret, silo: str, peer: str) -> Integers:
        """What ``silo`` adds for its pair with ``peer``: the pair's numbers, with the sign of the earlier name's."""
        drawn = discrete_gaussian(Fraction(self.shared), self.numbers, Stream(bytes(seed.expose())))
        return drawn if silo < peer else -drawn


class PairwiseSilo(SiloRole):
    """One silo: adds its own noise and that of its pairs to a vector before it leaves."""

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
        """The seeds of the pairs whose other silo has vanished: at most ``drop_outs`` over the whole round."""
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

    def _next(self, phase: str) -> tuple[str | None, dict[str, bytes]]:
        before, self._there = self._there, tuple(sorted(self._inbox))
        if phase == SEEDS:
            self.total = self._sum()
            return None, {}
        parts = self._inbox
        if phase == VECTORS:
            self.survivors = self._there
            parts = self._gone = dict.fromkeys(set(before) - set(self._there), b"")
        following = PHASES[PHASES.index(phase) + 1]
        return following, {silo: self._of_peers(silo, parts) for silo in self._there}

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
        self._vectors: dict[str, Integers] = {}  # as they came, by silo: what the server sees of a round
        self._seeds: dict[str, dict[str, Secret]] = {}
