"""The silo's side of a masked sum: a handler of messages with five phases."""

from __future__ import annotations

import hashlib
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from tacit.crypto import (
    KeyPair,
    MaskStream,
    Refused,
    SealingKey,
    Secret,
    Share,
    masked,
    seal,
    split,
)
from tacit.crypto.key_agreement import KEY_BYTES
from tacit.exchange.base import Keys, SiloRole
from tacit.exchange.grid import Grid, Integers, check_vector
from tacit.exchange.masked.terms import KEYS, PROTOCOL, SHARES, SURVIVORS, UNMASKING, VECTORS, MaskedTerms
from tacit.exchange.post import SERVER, TooFew, join, join_named, named_parts
from tacit.privacy.mechanisms.discrete_gaussian import discrete_gaussian
from tacit.privacy.randomness import Stream

# which of a peer's two secrets a share is of
OF_PAIRS, OF_OWN = b"p", b"o"


class _Secrets(NamedTuple):
    """What a silo keeps to itself in a round: the key to which shares are sealed, the key of its pairwise masks, and
    the secret of its own mask."""

    sealing: SealingKey
    pairs: KeyPair
    own: Secret


class MaskedSilo(SiloRole):
    """One silo.

    phase        answers                               with
    keys         (begins)                              two public keys
    shares       the keys of all silos                 its secrets in shares, each sealed for one peer
    vectors      the peers' shares                     its vector with noise, under all masks
    survivors    whose vectors have arrived            a signature on that list
    unmasking    the signatures of the others          of each peer one share: of its own mask if it has survived,
                                                       of its pairwise masks if not, never both
    """

    releases = (VECTORS,)
    to_everyone = (KEYS, SURVIVORS)

    terms: MaskedTerms

    def __init__(self, terms: MaskedTerms, keys: Keys, grid: Grid) -> None:
        super().__init__(PROTOCOL, terms, keys, grid)
        self._handlers = {
            SHARES: self._share,
            VECTORS: self._mask,
            SURVIVORS: self._agree,
            UNMASKING: self._unmask,
        }
        self._secrets: _Secrets | None = None
        self._shares: dict[str, Share] = {}
        self._survivors: list[str] = []
        self._forget()

    def begin(self, number: int, contribution: Integers, noise: Stream, preface: bytes = b"") -> bytes:
        """Start a round with this silo's vector ``[numbers]``."""
        terms = self.terms
        check_vector(contribution, terms.numbers, terms.largest)
        self._post.begin(number)
        self._forget()
        drawn = discrete_gaussian(Fraction(terms.share), terms.numbers, noise)
        self._vector = (contribution + drawn).view(np.uint64)
        self._secrets = _Secrets(SealingKey(), KeyPair(), Secret.random())
        self._phase = SHARES
        return self._written(KEYS, self._secrets.sealing.public + self._secrets.pairs.public)

    def _share(self, content: bytes) -> bytes:
        """Both secrets in shares for all silos that have sent keys, and a fingerprint of one of them."""
        signed = self._listed(content)
        if self.name not in signed:
            raise Refused("wrong-parties", "left us out of the list of keys", SERVER)
        for peer, message in signed.items():
            keys = self._post.read(peer, KEYS, message, to_everyone=True)
            if len(keys) != 2 * KEY_BYTES:
                raise Refused("malformed", "a message without two keys", peer)
            self._keys[peer] = keys[:KEY_BYTES], keys[KEY_BYTES:]
        ours = self._secrets
        assert ours is not None
        if self._keys[self.name] != (ours.sealing.public, ours.pairs.public):
            raise Refused("mismatch", "sent us other keys than our own", SERVER)
        with ours.pairs.secret() as pairs:
            holders = [self.terms.index(peer) for peer in self._keys]
            shares = dict(zip(self._keys, split([pairs, ours.own], self.terms.threshold, holders), strict=True))
        self._shares = {self.name: shares.pop(self.name)}
        sealed = {}
        for peer, share in shares.items():
            place = self._post.place(self.name, peer, "share")
            sealed[peer] = self._post.write(peer, "share", seal(share.to_bytes(), self._keys[peer][0], place))
        self._phase = VECTORS
        return join([fingerprint_of(ours.own), join_named(sealed)])

    def _mask(self, content: bytes) -> bytes:
        """The vector under our own mask and one with every peer who has sent shares; our secrets have done their work,
        and only shares of them are left."""
        sealed, ours = self._listed(content, but_us=True), self._secrets
        assert ours is not None
        for peer, message in sealed.items():
            if peer not in self._keys:
                raise Refused("unknown-party", f"shares of {peer}, who has sent no keys", SERVER)
            opened = ours.sealing.open(
                self._post.read(peer, "share", message), self._post.place(peer, self.name, "share")
            )
            share = Share.from_bytes(opened, peer)
            if share.index != self.terms.index(self.name) or len(share.values) != 2:
                raise Refused("mismatch", "a share that is not for us", peer)
            self._shares[peer] = share
        plus = [MaskStream(ours.own, self._post.place(self.name, self.name, "own mask"))]
        minus: list[MaskStream] = []
        for peer in sealed:
            place = self._post.place(self.name, peer, "pair mask")
            with ours.pairs.agree(self._keys[peer][1], place) as agreed:
                (plus if self.name < peer else minus).append(MaskStream(agreed, place))
        hidden = masked(self._vector, plus, minus, self.terms.bits)
        self._forget_secrets()
        self._phase = SURVIVORS
        return to_bytes(hidden, self.terms.bits)

    def _agree(self, content: bytes) -> bytes:
        """Sign who has survived; from here on the list is fixed."""
        survivors = list(self._listed(content))
        if not set(survivors) <= set(self._shares) or self.name not in survivors:
            raise Refused("wrong-parties", "a list of survivors with strangers, or without us", SERVER)
        self._survivors = survivors
        self._phase = UNMASKING
        return join_named(dict.fromkeys(survivors, b""))

    def _unmask(self, content: bytes) -> bytes:
        """One share of every peer: if enough others have signed the same list of survivors."""
        signed = self._listed(content)
        ours = join_named(dict.fromkeys(self._survivors, b""))
        for peer, message in signed.items():
            if peer not in self._survivors:
                raise Refused("unknown-party", f"a signature of {peer}, who has not survived", SERVER)
            if self._post.read(peer, SURVIVORS, message, to_everyone=True) != ours:
                raise Refused("equivocation", "was told of other survivors than we: the server tells two stories", peer)
        shown = {}
        for peer, share in self._shares.items():
            kind, value = (OF_OWN, share.values[1]) if peer in self._survivors else (OF_PAIRS, share.values[0])
            shown[peer] = kind + Share(share.index, (value,)).to_bytes()
        self._forget()
        return join_named(shown)

    def _listed(self, content: bytes, *, but_us: bool = False) -> dict[str, bytes]:
        """A list of the server's, which must have enough names on it."""
        parts = named_parts(content, SERVER, self.terms.silos)
        if but_us and self.name in parts:
            raise Refused("wrong-parties", "our own shares among those of the others", SERVER)
        if len(parts) + but_us < self.terms.threshold:
            raise TooFew(f"{len(parts) + but_us} silos are left where {self.terms.threshold} are needed", SERVER)
        return parts

    def _forget_secrets(self) -> None:
        if self._secrets is not None:
            self._secrets.own.wipe()
        self._secrets, self._vector = None, np.zeros(0, np.uint64)

    def _forget(self) -> None:
        self._forget_secrets()
        self._keys: dict[str, tuple[bytes, bytes]] = {}
        self._shares, self._survivors = {}, []


def fingerprint_of(secret: Secret) -> bytes:
    """By which the server knows that it has put an own mask's secret together rightly; says nothing about it."""
    return hashlib.sha256(b"tacit-masked-own" + bytes(secret.expose())).digest()


def to_bytes(vector: np.ndarray, bits: int) -> bytes:
    """Elements of Z_2^bits, little endian, in bits / 8 bytes each."""
    wide = vector.astype("<u8", copy=False).view(np.uint8).reshape(-1, 8)
    return np.ascontiguousarray(wide[:, : bits // 8]).tobytes()


def from_bytes(data: bytes, bits: int) -> np.ndarray:
    size = bits // 8
    wide = np.zeros((len(data) // size, 8), np.uint8)
    wide[:, :size] = np.frombuffer(data, np.uint8).reshape(-1, size)
    return wide.view("<u8").reshape(-1).astype(np.uint64, copy=False)
