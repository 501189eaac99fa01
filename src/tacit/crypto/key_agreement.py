"""Keys that two silos share and the server that carried their messages does not: X25519 and HKDF.

X25519 (RFC 7748) gives both ends the same 32 bytes; HKDF-SHA256 (RFC 5869) turns them into a key for one context. The
context and both public keys enter the derivation, so that keys of different runs, rounds and purposes are independent
and both ends must agree about who the two are. Public keys must come in signed messages
(:mod:`tacit.crypto.identities`): otherwise the server that carries them can replace them.
"""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tacit.crypto.context import Context
from tacit.crypto.crypto_errors import Misused, Refused
from tacit.crypto.secret import Secret

KEY_BYTES = 32
_SALT = b"tacit-agreement-1"


class KeyPair:
    """An X25519 key pair, for one run or one round."""

    def __init__(self, secret: Secret | None = None) -> None:
        """A new pair, or the one whose 32 secret bytes are given (for example put together again from shares)."""
        if secret is None:
            self._key = X25519PrivateKey.generate()
        elif len(secret) != KEY_BYTES:
            raise Misused("wrong-length", "secret", f"a secret key has {KEY_BYTES} bytes, not {len(secret)}")
        else:
            self._key = X25519PrivateKey.from_private_bytes(secret.expose())
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

    def __repr__(self) -> str:
        return "KeyPair(…)"


def derive(secret: Secret, context: Context, more: bytes = b"") -> Secret:
    """A 256-bit key for one context from a secret with enough entropy (HKDF-SHA256)."""
    information = context.encode() + more
    return Secret(HKDF(SHA256(), KEY_BYTES, _SALT, information).derive(secret.expose()))
