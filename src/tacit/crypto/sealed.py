"""Messages that only the holder of one X25519 key can open, and that hold nothing about their sender.

HPKE in base mode (RFC 9180), through ``cryptography``: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20-Poly1305.
Every message has an ephemeral key of its own, so two messages cannot be linked by their bytes and all of the same
length look alike; the context is the ``info`` of HPKE, so a message opens in its own context only. Nothing says who
sealed it: where that matters, sign the sealed message; where it must stay hidden, let the context's sender be EVERYONE.

A sealed message is 48 bytes longer than its content: 32 for the ephemeral key, 16 for the tag.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from tacit.crypto.crypto_errors import Misused, Refused, Tampered
from tacit.crypto.identities import Context
from tacit.crypto.mask_streams import KEY_BYTES
from tacit.crypto.secret import Secret, key_bytes
from tacit.crypto.worker_process import shared

OVERHEAD = 48
# below this count, starting a process takes longer than sealing or opening messages
_WORTH_A_PROCESS = 5_000

Rows = npt.NDArray[np.uint8]
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)


class SealingKey:
    """The key pair of a recipient of sealed messages. ``public`` goes to those who seal."""

    def __init__(self, secret: Secret | None = None) -> None:
        """A new pair, or the one whose 32 secret bytes are given."""
        self._key = (
            X25519PrivateKey.generate() if secret is None else X25519PrivateKey.from_private_bytes(key_bytes(secret))
        )
        self.public = self._key.public_key().public_bytes_raw()

    def open(self, message: bytes, context: Context) -> bytes:
        """The content of one sealed message; :class:`Tampered` if it was sealed for another key or context."""
        return self.open_many([message], context)[0]

    def open_many(self, messages: Iterable[bytes], context: Context) -> list[bytes]:
        """The contents of many messages, in order; one that does not open refuses them all."""
        key, information = self._key, context.encode()
        try:
            return [_SUITE.decrypt(message, key, information) for message in messages]
        except (InvalidTag, ValueError):
            raise Tampered(
                f"a message that is not sealed for {context.recipient} in round {context.round}", context.sender
            ) from None

    def open_rows(self, messages: Rows, context: Context, workers: int = 1) -> Rows:
        """The contents of ``messages [messages, bytes]``, by this process and ``workers - 1`` others of its owner."""
        secret = self._key.private_bytes_raw()
        return _in_pieces(_open_piece, messages, messages.shape[1] - OVERHEAD, (secret, context), workers)

    def __repr__(self) -> str:
        return "SealingKey(…)"


def seal(content: bytes, public: bytes, context: Context) -> bytes:
    """``content``, for the holder of ``public`` and this context only."""
    return seal_many([content], public, context)[0]


def seal_many(contents: Sequence[bytes], public: bytes, context: Context) -> list[bytes]:
    """Each of many contents of equal length, sealed with an ephemeral key of its own."""
    if len({len(content) for content in contents}) > 1:
        raise Misused("mismatch", "messages", "messages have different lengths: pad them")
    if len(public) != KEY_BYTES:
        raise Refused("bad-key", f"a public key has {KEY_BYTES} bytes, not {len(public)}", context.recipient)
    key, information = X25519PublicKey.from_public_bytes(public), context.encode()
    try:
        return [_SUITE.encrypt(content, key, information) for content in contents]
    except ValueError:
        raise Refused("bad-key", "a public key of low order", context.recipient) from None


def seal_rows(contents: Rows, public: bytes, context: Context, workers: int = 1) -> Rows:
    """Each row of ``contents [messages, bytes]`` sealed, by this process and ``workers - 1`` others."""
    return _in_pieces(_seal_piece, contents, contents.shape[1] + OVERHEAD, (public, context), workers)


def _in_pieces(work: Callable[..., bytes], rows: Rows, size: int, how: tuple[bytes, Context], workers: int) -> Rows:
    pieces = np.array_split(rows, max(1, min(workers, len(rows) // _WORTH_A_PROCESS)))
    done = shared(work, [(piece.tobytes(), rows.shape[1], *how) for piece in pieces])
    return np.frombuffer(b"".join(done), np.uint8).reshape(-1, size)


def _seal_piece(rows: bytes, size: int, public: bytes, context: Context) -> bytes:
    return b"".join(seal_many(_cut(rows, size), public, context))


def _open_piece(rows: bytes, size: int, secret: bytes, context: Context) -> bytes:
    return b"".join(SealingKey(Secret(secret)).open_many(_cut(rows, size), context))


def _cut(rows: bytes, size: int) -> list[bytes]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]
