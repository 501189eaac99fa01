"""Where all randomness of a run comes from: one 256-bit key, and streams derived from it.

The key is taken from the operating system unless a seed is given; a seed is for studies, because a party that knows it
can draw the same noise again. Every use has a stream of its own, named by its purpose (and round, silo, …), so that no
two uses share numbers, and a resumed run draws what the uninterrupted one would have drawn. Streams are ChaCha20 key
streams (RFC 8439, through the ``cryptography`` package).

What is drawn *for a subject* comes from the subject's key alone (:meth:`Randomness.lots`): parties that share a root
key agree on it without a common list of subjects, and no subject's presence changes what is drawn for another.
"""

from __future__ import annotations

import hashlib
import os

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES, ChaCha20
from cryptography.hazmat.primitives.ciphers.modes import ECB

from tacit.privacy.invalid import require

_KEY_BYTES = 32
# one ChaCha20 stream under one nonce has a 32-bit block counter: 256 GiB, far beyond any single use here
_COUNTER_AND_NONCE = bytes(16)


class Randomness:
    """A run's root key. ``stream(…)`` names a use: equal names give equal numbers, others independent ones."""

    def __init__(self, key: bytes | None = None) -> None:
        self._key = os.urandom(_KEY_BYTES) if key is None else key
        require("wrong-length", "key", len(self._key) == _KEY_BYTES, f"a key must have {_KEY_BYTES} bytes")

    @classmethod
    def from_seed(cls, seed: int | None) -> Randomness:
        """Reproducible from ``seed``; fresh from the operating system where it is None."""
        if seed is None:
            return cls()
        return cls(hashlib.blake2b(str(seed).encode(), digest_size=_KEY_BYTES, person=b"tacit-seed").digest())

    def stream(self, purpose: str, *place: int) -> Stream:
        """The stream of one use, for example ``stream("batches", round, silo)``."""
        return Stream(self._derive(purpose, *place))

    def lots(
        self, keys: npt.NDArray[np.integer], purpose: str, *place: int, nth: npt.NDArray[np.integer] | None = None
    ) -> npt.NDArray[np.uint64]:
        """64 pseudorandom bits for each of ``keys`` (64 bits), or for the ``nth`` record of each: AES-256 of (key, nth)
        under a key for this use. Equal keys have equal lots, wherever they stand and whichever other keys there are."""
        blocks = np.zeros((len(keys), 2), np.uint64)
        blocks[:, 0] = keys.astype(np.uint64)
        if nth is not None:
            blocks[:, 1] = nth
        cipher = Cipher(AES(self._derive(purpose, *place)), ECB()).encryptor()
        return np.frombuffer(cipher.update(blocks.tobytes()), "<u8").reshape(-1, 2)[:, 0]

    def integer(self, purpose: str, *place: int) -> int:
        """A 63-bit number for libraries that want a seed."""
        return int.from_bytes(self._derive(purpose, *place)[:8], "little") >> 1

    def _derive(self, purpose: str, *place: int) -> bytes:
        # a length before the purpose, so that no purpose can look like another one with its places
        name = purpose.encode()
        where = "/".join(map(str, place)).encode()
        return hashlib.blake2b(b"%d:%b/%b" % (len(name), name, where), key=self._key, digest_size=_KEY_BYTES).digest()

    def __repr__(self) -> str:
        return "Randomness(…)"


def chosen(lots: npt.NDArray[np.uint64], rate: float) -> npt.NDArray[np.bool_]:
    """Of uniform 64-bit ``lots`` those that are in with probability ``rate`` (to 2^-53)."""
    return (lots >> np.uint64(11)).astype(np.float64) * 2.0**-53 < rate


def shares(lots: npt.NDArray[np.integer], parts: int) -> npt.NDArray[np.int64]:
    """Which of ``parts`` equal parts each of uniform 64-bit ``lots`` falls into (uneven by less than parts / 2^64)."""
    return (lots.astype(np.uint64) % np.uint64(parts)).astype(np.int64)


class Stream:
    """Numbers from one ChaCha20 key stream, in order."""

    def __init__(self, key: bytes) -> None:
        self._cipher = Cipher(ChaCha20(key, _COUNTER_AND_NONCE), mode=None).encryptor()

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """``count`` uniform 64-bit words."""
        return np.frombuffer(self._cipher.update(bytes(8 * count)), dtype="<u8")

    def uniform(self, count: int) -> npt.NDArray[np.float64]:
        """``count`` uniform multiples of 2^-53 in [0, 1)."""
        return (self.words(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def coins(self, rate: float, count: int) -> npt.NDArray[np.bool_]:
        """``count`` independent coins that show True with probability ``rate`` (to 2^-53)."""
        return self.uniform(count) < rate

    def integers(self, bound: int, count: int) -> npt.NDArray[np.int64]:
        """``count`` uniform integers in ``0 .. bound-1``: words beyond the last multiple of it are drawn again."""
        require("out-of-range", "bound", 1 <= bound <= 2**63, f"must be between 1 and 2^63 (got {bound})")
        drawn = self.words(count)
        largest = np.uint64(2**64 - 1 - 2**64 % bound)
        while (refused := np.flatnonzero(drawn > largest)).size:
            drawn = drawn.copy()
            drawn[refused] = self.words(refused.size)
        return (drawn % np.uint64(bound)).astype(np.int64)

    def permutation(self, count: int) -> npt.NDArray[np.int64]:
        """A uniform order of ``0 .. count-1`` (a tie of two 64-bit keys has probability below count^2 / 2^65)."""
        return np.argsort(self.words(count), kind="stable")

    def __repr__(self) -> str:
        return "Stream(…)"
