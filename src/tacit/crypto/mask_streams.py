"""Mask streams: the same uniform numbers at both ends of a shared key, over Z_2^k and over Z_n.

A stream is the ChaCha20 key stream (RFC 8439, through ``cryptography``) of a key that HKDF derives from a 256-bit
secret and a context. Streams of different contexts are independent, so a mask is fresh wherever its context (round,
pair, purpose) is new; reusing a context means reusing masks, which breaks them. Both ends must draw the same amounts in
the same order.

Over Z_2^k the numbers are the low bits of 64-bit words: exactly uniform for a uniform key stream. Over Z_n each number
takes 128 bits more than n has and is reduced: for a uniform key stream it is within 2^-128 of uniform, in constant
consumption.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from gmpy2 import gcd, mpz

from tacit.crypto.context import Context
from tacit.crypto.crypto_errors import Misused
from tacit.crypto.key_agreement import KEY_BYTES, derive
from tacit.crypto.secret import Secret

# the 32-bit block counter and the nonce of RFC 8439; one stream per derived key, 256 GiB long
_COUNTER_AND_NONCE = bytes(16)
_EXTRA_BYTES = 16
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
        words = np.frombuffer(self._bytes(8 * count), dtype="<u8").astype(np.uint64, copy=False)
        return words & _low(bits)

    def residues(self, modulus: int, count: int) -> list[mpz]:
        """``count`` elements of Z_modulus, each within 2^-128 of uniform."""
        if modulus < 2:
            raise Misused("out-of-range", "modulus", "a modulus of at least 2 is needed")
        modulus, size = mpz(modulus), (int(modulus).bit_length() + 7) // 8 + _EXTRA_BYTES
        drawn = self._bytes(size * count)
        return [mpz.from_bytes(drawn[i : i + size], "little") % modulus for i in range(0, size * count, size)]

    def units(self, modulus: int, count: int) -> list[mpz]:
        """``count`` elements of Z_modulus that have an inverse: others are drawn again.

        For a product of two large primes all other numbers are practically impossible; both ends skip the same ones in
        any case.
        """
        units: list[mpz] = []
        while len(units) < count:
            units += [unit for unit in self.residues(modulus, count - len(units)) if gcd(unit, modulus) == 1]
        return units

    def _bytes(self, size: int) -> bytes:
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
