"""Mask streams: the same uniform numbers at both ends of a shared key, over Z_2^k.

A stream is the ChaCha20 key stream (RFC 8439, through ``cryptography``) of a key that HKDF derives from a 256-bit
secret and a context. Streams of different contexts are independent, so a mask is fresh wherever its context (round,
pair, purpose) is new; reusing a context means reusing masks, which breaks them. Both ends must draw the same amounts in
the same order.

The numbers are the low bits of 64-bit words: exactly uniform for a uniform key stream.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from tacit.crypto.context import Context
from tacit.crypto.crypto_errors import Misused
from tacit.crypto.key_agreement import KEY_BYTES, derive
from tacit.crypto.secret import Secret

# the 32-bit block counter and the nonce of RFC 8439; one stream per derived key, 256 GiB long
_COUNTER_AND_NONCE = bytes(16)
# masks are added in pieces that stay in the cache
_PIECE = 1 << 14
_ZEROS = bytes(8 * _PIECE)


class MaskStream:
    """The numbers of one secret and one context, in order."""

    def __init__(self, secret: Secret, context: Context) -> None:
        if len(secret) != KEY_BYTES:
            raise Misused("wrong-length", "secret", f"a stream needs a secret of {KEY_BYTES} bytes, not {len(secret)}")
        with derive(secret, context.pair()) as key:
            self._cipher = Cipher(ChaCha20(bytes(key.expose()), _COUNTER_AND_NONCE), mode=None).encryptor()

    def ring(self, count: int, bits: int = 64) -> npt.NDArray[np.uint64]:
        """``count`` uniform elements of Z_2^bits."""
        words = np.frombuffer(self.take(8 * count), dtype="<u8").astype(np.uint64, copy=False)
        return words & _low(bits)

    def take(self, size: int) -> bytes:
        """The next ``size`` bytes of the key stream."""
        return self._cipher.update(bytes(size))

    def _fill(self, buffer: npt.NDArray[np.uint64]) -> None:
        self._cipher.update_into(_ZEROS[: buffer.nbytes], buffer.data.cast("B"))

    def __repr__(self) -> str:
        return "MaskStream(…)"


def masked(
    vector: npt.NDArray[np.uint64],
    plus: Iterable[MaskStream] = (),
    minus: Iterable[MaskStream] = (),
    bits: int = 64,
) -> npt.NDArray[np.uint64]:
    """``vector`` plus the masks of some streams, minus those of others, in Z_2^bits; each gives a number per element.

    Masks cancel when one end adds and the other subtracts. Nothing longer than a piece of a mask is ever in memory.
    """
    if vector.ndim != 1:
        raise Misused("wrong-length", "vector", f"a vector has one axis, not {vector.ndim}")
    total = np.array(vector, dtype=np.uint64)
    piece = np.empty(min(_PIECE, max(1, total.size)), dtype="<u8")
    for operation, streams in ((np.add, plus), (np.subtract, minus)):
        for stream in streams:
            for start in range(0, total.size, _PIECE):
                part = total[start : start + _PIECE]
                mask = piece[: part.size]
                stream._fill(mask)
                operation(part, mask, out=part)
    return np.bitwise_and(total, _low(bits), out=total)


def _low(bits: int) -> np.uint64:
    if not 1 <= bits <= 64:
        raise Misused("out-of-range", "bits", f"between 1 and 64 bits, not {bits}")
    return np.uint64(2**bits - 1)
