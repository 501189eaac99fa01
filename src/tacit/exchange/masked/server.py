"""The server's side of a masked sum: it carries the silos' messages and learns the sum, nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tacit.crypto import BadShares, KeyPair, MaskStream, Refused, Secret, Share, combine, masked
from tacit.crypto.key_agreement import KEY_BYTES
from tacit.exchange.base import Keys, ServerRole
from tacit.exchange.grid import Grid, Integers
from tacit.exchange.masked.silo import OF_OWN, OF_PAIRS, fingerprint_of, from_bytes
from tacit.exchange.masked.terms import KEYS, PHASES, PROTOCOL, SHARES, SURVIVORS, UNMASKING, VECTORS, MaskedTerms
from tacit.exchange.post import join_named, named_parts, parted
from tacit.privacy.randomness import Stream


class MaskedServer(ServerRole):
    """After the last phase ``total`` is the sum over ``survivors``; after a round that failed it is None."""

    to_everyone = (KEYS, SURVIVORS)

    terms: MaskedTerms

    def __init__(self, terms: MaskedTerms, keys: Keys, grid: Grid) -> None:
        super().__init__(PROTOCOL, terms, keys, grid)
        self.survivors: tuple[str, ...] = ()
        self._sharers: tuple[str, ...] = ()
        self._forget()

    @property
    def least(self) -> int:
        return self.terms.threshold

    def begin(self, number: int, stream: Stream | None = None, preface: bytes = b"") -> None:
        self._begin(number, KEYS)
        self._forget()
        self.survivors = ()

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
            raise BadShares("wrong-parties", "not the shares of all silos", sender)
        return shown

    def _next(self, phase: str) -> tuple[str | None, dict[str, bytes]]:
        self._there = tuple(sorted(self._inbox))
        if phase == UNMASKING:
            self.total = self._sum()
            return None, {}
        following = PHASES[PHASES.index(phase) + 1]
        if phase == SHARES:
            self._sharers = self._there
            return following, {
                silo: join_named({peer: self._sealed[peer][silo] for peer in self._there if peer != silo})
                for silo in self._there
            }
        told = self._inbox
        if phase == VECTORS:
            self.survivors, told = self._there, dict.fromkeys(self._there, b"")
        return following, dict.fromkeys(self._there, join_named(told))

    def _sum(self) -> Integers:
        """The survivors' vectors, less their own masks and what the others have left of their pairwise masks."""
        bits = self.terms.bits
        total = np.zeros(self.terms.numbers, np.uint64)
        for silo in self.survivors:
            total += from_bytes(self._vectors[silo], bits)
        plus: list[MaskStream] = []
        minus: list[MaskStream] = []
        for silo in self.survivors:
            with self._secret_of(silo) as own:
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
        with self._secret_of(silo) as secret:
            pairs = KeyPair(secret)
        if pairs.public != self._keys[silo][KEY_BYTES:]:
            raise BadShares("bad-shares", f"the shares do not give the key of {silo}")
        for name in self.survivors:
            place = self._post.place(silo, name, "pair mask")
            with pairs.agree(self._keys[name][KEY_BYTES:], place) as agreed:
                yield name, MaskStream(agreed, place)

    def _secret_of(self, silo: str) -> Secret:
        """The secret that the shares of one silo give."""
        return combine([shares[silo] for shares in self._shown.values()], self.terms.threshold)[0]

    def _end(self) -> None:
        super()._end()
        self._forget()

    def _forget(self) -> None:
        self._sharers = ()
        self._keys: dict[str, bytes] = {}
        self._fingerprints: dict[str, bytes] = {}
        self._sealed: dict[str, dict[str, bytes]] = {}
        self._vectors: dict[str, bytes] = {}
        self._shown: dict[str, dict[str, Share]] = {}
