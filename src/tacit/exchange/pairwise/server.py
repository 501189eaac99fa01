"""The server's side of a sum with pairwise noise: it carries keys, adds up messages, and takes away what is left of
silos that have vanished."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tacit.crypto import Identity, Refused, Replayed, Secret
from tacit.crypto.key_agreement import KEY_BYTES
from tacit.exchange.grid import Grid, Integers
from tacit.exchange.pairwise.terms import KEYS, PHASES, PROTOCOL, VECTORS, PairwiseTerms
from tacit.exchange.post import SERVER, OutOfTurn, Post, TooFew, join_named, named_parts


class PairwiseServer:
    """Collects one message of every silo in each phase; ``advance`` closes a phase with those who have answered.

    After the last phase ``total`` is the sum over ``survivors``. A message that is refused, or too few of them, ends
    the round: ``total`` stays None. (To go on without its sender, as masked sums do, would take the noise of its pairs
    from a vector that the server has seen.) What comes after its phase is refused unread, for the same reason.
    """

    def __init__(self, terms: PairwiseTerms, identity: Identity, identities: Mapping[str, bytes]) -> None:
        self.terms = terms
        self._post = Post(PROTOCOL, terms.place, SERVER, identity, identities)
        self._phase: str | None = None
        self.total: Integers | None = None
        self.survivors: tuple[str, ...] = ()
        self._there: tuple[str, ...] = ()
        self._inbox: dict[str, bytes] = {}
        self._gone: dict[str, bytes] = {}
        self._vectors: dict[str, Integers] = {}
        self._seeds: dict[str, dict[str, Secret]] = {}

    def begin(self, number: int) -> None:
        self._post.begin(number)
        self._forget()
        self.total, self.survivors, self._there = None, (), tuple(sorted(self.terms.silos))
        self._phase = KEYS

    @property
    def phase(self) -> str | None:
        """What silos are to send now; None outside of a round."""
        return self._phase

    @property
    def messages(self) -> dict[str, Integers]:
        """The vectors as they came, by silo: what the server sees of a round."""
        return dict(self._vectors)

    def receive(self, sender: str, message: bytes) -> None:
        """Take ``sender``'s message of this phase."""
        phase = self._phase
        if phase is None:
            raise OutOfTurn("a message outside of a round", sender)
        try:
            if sender in self._inbox:
                raise Replayed(f"a second message in the phase of {phase}", sender)
            if sender not in self._there:
                raise OutOfTurn("a message of somebody who is no longer part of the round", sender)
            self._read(phase, sender, self._post.read(sender, phase, message, to_everyone=phase == KEYS))
        except BaseException:
            self._phase = None
            raise
        self._inbox[sender] = message

    def advance(self) -> dict[str, bytes]:
        """Close the phase; messages for everybody who is still there."""
        phase = self._phase
        if phase is None:
            raise OutOfTurn("there is no phase to close", SERVER)
        self._phase = None
        if len(self._inbox) < self.terms.least:
            missing = ", ".join(silo for silo in self.terms.silos if silo not in self._inbox)
            left = f"{len(self._inbox)} silos are left where {self.terms.least} are needed"
            raise TooFew(f"{left} (phase of {phase}); missing: {missing}")
        there = self._there
        self._there = tuple(sorted(self._inbox))
        if phase == KEYS:
            told = {silo: self._of_peers(silo, self._inbox) for silo in self._there}
        elif phase == VECTORS:
            self.survivors = self._there
            self._gone = dict.fromkeys(set(there) - set(self._there), b"")
            told = {silo: self._of_peers(silo, self._gone) for silo in self._there}
        else:
            self.total = self._sum()
            return {}
        self._inbox = {}
        self._phase = PHASES[PHASES.index(phase) + 1]
        return {silo: self._post.write(silo, self._phase, content) for silo, content in told.items()}

    def numbers(self, grid: Grid) -> npt.NDArray[np.float64]:
        """The sum as numbers, after a round."""
        if self.total is None:
            raise OutOfTurn("there is no sum", SERVER)
        return grid.numbers(self.total)

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
        self._there, self._inbox, self._gone, self._vectors, self._seeds = (), {}, {}, {}, {}
