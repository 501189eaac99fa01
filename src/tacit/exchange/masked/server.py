"""The server's side of a masked sum: it carries the silos' messages and learns the sum, nothing else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from tacit.crypto import BadShares, Identity, KeyPair, MaskStream, Refused, Replayed, Secret, Share, combine, masked
from tacit.crypto.key_agreement import KEY_BYTES
from tacit.exchange.grid import Grid, Integers
from tacit.exchange.masked.silo import OF_OWN, OF_PAIRS, fingerprint_of, from_bytes
from tacit.exchange.masked.terms import KEYS, PHASES, PROTOCOL, SHARES, SURVIVORS, UNMASKING, VECTORS, MaskedTerms
from tacit.exchange.post import SERVER, OutOfTurn, Post, TooFew, join_named, named_parts, parted


class MaskedServer:
    """Collects one message of every silo in each phase; ``advance`` closes a phase with those who have answered.

    ``begin``, then in each phase ``receive`` for every message that comes and ``advance``, whose result are the
    messages to the silos that are still there. After the last phase there are none, and ``total`` is the sum over
    ``survivors``. A message that is refused counts as none. Too few of them end the round: ``total`` stays None.
    """

    def __init__(self, terms: MaskedTerms, identity: Identity, identities: Mapping[str, bytes]) -> None:
        self.terms = terms
        self._post = Post(PROTOCOL, terms.place, SERVER, identity, identities)
        self._phase: str | None = None
        self.total: Integers | None = None
        self.survivors: tuple[str, ...] = ()
        self._there: tuple[str, ...] = ()
        self._inbox: dict[str, bytes] = {}
        self._sharers: tuple[str, ...] = ()
        self._forget()

    def begin(self, number: int) -> None:
        self._post.begin(number)
        self._forget()
        self.total, self.survivors, self._there = None, (), tuple(sorted(self.terms.silos))
        self._phase = KEYS

    @property
    def phase(self) -> str | None:
        """What silos are to send now; None outside of a round."""
        return self._phase

    def receive(self, sender: str, message: bytes) -> None:
        """Take ``sender``'s message of this phase, or refuse it."""
        phase = self._phase
        if phase is None:
            raise OutOfTurn("a message outside of a round", sender)
        if sender in self._inbox:
            raise Replayed(f"a second message in the phase of {phase}", sender)
        if sender not in self._there:
            raise OutOfTurn("a message of somebody who is no longer part of the round", sender)
        content = self._post.read(sender, phase, message, to_everyone=phase in (KEYS, SURVIVORS))
        self._read(phase, sender, content)
        self._inbox[sender] = message

    def advance(self) -> dict[str, bytes]:
        """Close the phase; messages for everybody who is still there."""
        phase = self._phase
        if phase is None:
            raise OutOfTurn("there is no phase to close", SERVER)
        try:
            if len(self._inbox) < self.terms.threshold:
                left = f"{len(self._inbox)} silos are left where {self.terms.threshold} are needed"
                raise TooFew(f"{left} (phase of {phase}); missing: {', '.join(self._missing()) or 'nobody'}")
            self._there = tuple(sorted(self._inbox))
            contents = self._contents(phase)
        except BaseException:
            self._end()
            raise
        self._inbox = {}
        following = PHASES.index(phase) + 1
        if following == len(PHASES):
            self._end()
            return {}
        self._phase = PHASES[following]
        return {silo: self._post.write(silo, self._phase, contents[silo]) for silo in self._there}

    def numbers(self, grid: Grid) -> npt.NDArray[np.float64]:
        """The sum as numbers, after a round."""
        if self.total is None:
            raise OutOfTurn("there is no sum", SERVER)
        return grid.numbers(self.total)

    def _missing(self) -> list[str]:
        return [silo for silo in self.terms.silos if silo not in self._inbox]

    def _read(self, phase: str, sender: str, content: bytes) -> None:
        """Check and keep what a message holds."""
        if phase == SHARES:
            fingerprint, shares = parted(content, sender, 2)
            sealed = named_parts(shares, sender, self._there)
            if set(sealed) != set(self._there) - {sender} or len(fingerprint) != 32:
                raise Refused("wrong-parties", "shares for others than those who are there", sender)
            self._fingerprints[sender], self._sealed[sender] = fingerprint, sealed
        elif phase == KEYS:
            if len(content) != 2 * KEY_BYTES:
                raise Refused("malformed", "a message without two keys", sender)
            self._keys[sender] = content
        elif phase == VECTORS:
            if len(content) != self.terms.vector_bytes:
                reason = f"a vector of {len(content)} bytes where {self.terms.vector_bytes} are due"
                raise Refused("wrong-length", reason, sender)
            self._vectors[sender] = content
        elif phase == UNMASKING:
            self._shown[sender] = self._read_shares(sender, content)

    def _read_shares(self, sender: str, content: bytes) -> dict[str, Share]:
        shown = {}
        for peer, data in named_parts(content, sender, self._sharers).items():
            kind = OF_OWN if peer in self.survivors else OF_PAIRS
            share = Share.from_bytes(data[1:], sender)
            if data[:1] != kind or share.index != self.terms.index(sender) or len(share.values) != 1:
                raise BadShares("bad-shares", f"a share of {peer} that is not the one due", sender)
            shown[peer] = share
        if set(shown) != set(self._sharers):
            raise BadShares("wrong-parties", "not the shares of everybody", sender)
        return shown

    def _contents(self, phase: str) -> dict[str, bytes]:
        """What everybody who is still there is told next."""
        if phase == SHARES:
            self._sharers = self._there
            return {
                silo: join_named({peer: self._sealed[peer][silo] for peer in self._there if peer != silo})
                for silo in self._there
            }
        if phase == VECTORS:
            self.survivors = self._there
            return dict.fromkeys(self._there, join_named(dict.fromkeys(self.survivors, b"")))
        if phase == UNMASKING:
            self.total = self._sum()
            return {}
        return dict.fromkeys(self._there, join_named(self._inbox))

    def _sum(self) -> Integers:
        """The survivors' vectors, less their own masks and what the others have left of their pairwise masks."""
        bits = self.terms.bits
        total = np.zeros(self.terms.numbers, np.uint64)
        for silo in self.survivors:
            total += from_bytes(self._vectors[silo], bits)
        plus: list[MaskStream] = []
        minus: list[MaskStream] = []
        for silo in self.survivors:
            with self._opened(silo) as own:
                if fingerprint_of(own) != self._fingerprints[silo]:
                    raise BadShares("bad-shares", f"the shares do not give the secret of {silo}")
                minus.append(MaskStream(own, self._post.place(silo, silo, "own mask")))
        for silo in self._sharers:
            if silo not in self.survivors:
                for name, stream in self._left_behind(silo):
                    (minus if name < silo else plus).append(stream)
        unmasked = masked(total, plus, minus, bits)
        shift = np.int64(64 - bits)
        return np.asarray((unmasked << np.uint64(shift)).view(np.int64) >> shift)  # the sign of Z_2^bits

    def _left_behind(self, silo: str) -> Iterator[tuple[str, MaskStream]]:
        """The masks that survivors have in common with one who has sent shares, but no vector."""
        with self._opened(silo) as secret:
            pairs = KeyPair(secret)
        if pairs.public != self._keys[silo][KEY_BYTES:]:
            raise BadShares("bad-shares", f"the shares do not give the key of {silo}")
        for name in self.survivors:
            place = self._post.place(silo, name, "pair mask")
            with pairs.agree(self._keys[name][KEY_BYTES:], place) as agreed:
                yield name, MaskStream(agreed, place)

    def _opened(self, silo: str) -> Secret:
        """The secret that the shares of one silo give."""
        return combine([shares[silo] for shares in self._shown.values()], self.terms.threshold)[0]

    def _end(self) -> None:
        self._phase = None
        self._forget()

    def _forget(self) -> None:
        self._inbox, self._sharers = {}, ()
        self._keys: dict[str, bytes] = {}
        self._fingerprints: dict[str, bytes] = {}
        self._sealed: dict[str, dict[str, bytes]] = {}
        self._vectors: dict[str, bytes] = {}
        self._shown: dict[str, dict[str, Share]] = {}
