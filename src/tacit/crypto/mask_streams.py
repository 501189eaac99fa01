"""Keys that two silos share and the server does not, and masks from them: uniform numbers over Z_2^k at both ends.

X25519 (RFC 7748) gives both ends the same 32 bytes; HKDF-SHA256 (RFC 5869) turns them into a key for one context. The
context and both public keys enter the derivation: keys of different runs, rounds and purposes are independent, and both
ends must agree about who the two are. Public keys must come in signed messages (:mod:`tacit.crypto.identities`):
otherwise the server that carries them can replace them.

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
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tacit.crypto.crypto_errors import Misused, Refused
from tacit.crypto.identities import Context
from tacit.crypto.secret import Secret, key_bytes

KEY_BYTES = 32
_SALT = b"tacit-agreement-1"


class KeyPair:
    """An X25519 key pair, for one run or one round."""

    def __init__(self, secret: Secret | None = None) -> None:
        """A new pair, or the one whose 32 secret bytes are given (for example put together again from shares)."""
        self._key = (
            X25519PrivateKey.generate() if secret is None else X25519PrivateKey.from_private_bytes(key_bytes(secret))
        )
        self.public = self._key.public_key().public_bytes_raw()

    def secret(self) -> Secret:
        """The 32 secret bytes: to be shared out for drop-outs, never to be sent."""
        return Secret(self._key.private_bytes_raw())

    def agree(self, peer: bytes, context: Context) -> Secret:
        """The 256-bit key of this pair and ``context.recipient``, whose public key is ``peer``.

        Both ends get the same key: sender and recipient of the context may be exchanged, all else must be equal.
        A public key of low order (which would make the key predictable) and one's own are refused.
        """
        if len(peer) != KEY_BYTES:
            raise Refused("bad-key", f"a public key has {KEY_BYTES} bytes, not {len(peer)}", context.recipient)
        if peer == self.public:
            raise Refused("bad-key", "sent our own public key back", context.recipient)
        try:
            shared = bytearray(self._key.exchange(X25519PublicKey.from_public_bytes(peer)))
        except ValueError:
            raise Refused("bad-key", "a public key of low order", context.recipient) from None
        with Secret(shared) as agreed:
            first, second = sorted((self.public, peer))
            return derive(agreed, context.pair(), first + second)

    def mask(self, peer: bytes, context: Context) -> MaskStream:
        """The stream that this pair and ``context.recipient`` have in common."""
        with self.agree(peer, context) as agreed:
            return MaskStream(agreed, context)

    def __repr__(self) -> str:
        return "KeyPair(…)"


def derive(secret: Secret, context: Context, more: bytes = b"") -> Secret:
    """A 256-bit key for one context from a secret with enough entropy (HKDF-SHA256)."""
    information = context.encode() + more
    return Secret(HKDF(SHA256(), KEY_BYTES, _SALT, information).derive(secret.expose()))


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
