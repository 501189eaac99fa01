"""Ed25519 identities, and messages that are signed for one context.

Key agreement through a relaying server is only safe if the server cannot put its own keys in the middle. So every key
message is signed (Ed25519, RFC 8032) by the identity of its sender over the context *and* the content, and a party that
receives it verifies it against a roster of identities that was agreed beforehand, outside of the protocol (compare
:func:`fingerprint` over the telephone, or let an administrator install the roster). What is signed is

    "tacit-signed-1" || context || content

with the injective encoding of :class:`Context`. A message that was signed in another run, round or protocol, for
another recipient or purpose, does not verify here; a second message for the same place is refused as a replay by the
roster that accepted the first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tacit.crypto.crypto_errors import BadSignature, Misused, Refused, Replayed
from tacit.crypto.secret import Secret, key_bytes

EVERYONE = "*"
_VERSION = b"tacit-context-1"


@dataclass(frozen=True)
class Context:
    """Where a message or a key belongs, in one run. ``recipient`` may be ``EVERYONE``; ``round`` counts from 0.

    Every signature, derived key, mask stream and sealed message is bound to a context and worthless in any other. The
    encoding is injective: every field is preceded by its length, and their number is fixed.
    """

    protocol: str
    run: str
    round: int
    sender: str
    recipient: str
    purpose: str = ""

    def __post_init__(self) -> None:
        if not (self.protocol and self.run and self.sender and self.recipient):
            raise Misused("missing", "context", "a context needs protocol, run, sender and recipient")
        if self.round < 0:
            raise Misused("out-of-range", "round", f"rounds count from 0, not {self.round}")

    def encode(self) -> bytes:
        """The bytes that are signed, or from which keys are derived; nothing that follows can be taken for a field."""
        values = (self.protocol, self.run, self.round, self.sender, self.recipient, self.purpose)
        fields = [str(value).encode() for value in values]
        return _VERSION + b"".join(len(field).to_bytes(4, "big") + field for field in fields)

    def pair(self) -> Context:
        """The same place seen from both ends: sender and recipient in the order of their names."""
        first, second = sorted((self.sender, self.recipient))
        return replace(self, sender=first, recipient=second)


_DOMAIN = b"tacit-signed-1"
_SIGNATURE_BYTES = 64
IDENTITY_BYTES = 32


class Identity:
    """A long-lived signing key. ``public`` is what the others put into their rosters."""

    def __init__(self, secret: Secret | None = None) -> None:
        """A new identity, or the one whose 32 secret bytes are given."""
        self._key = (
            Ed25519PrivateKey.generate() if secret is None else Ed25519PrivateKey.from_private_bytes(key_bytes(secret))
        )
        self.public = self._key.public_key().public_bytes_raw()

    def secret(self) -> Secret:
        """The 32 bytes from which this identity can be made again: for its owner's key store only."""
        return Secret(self._key.private_bytes_raw())

    def sign(self, context: Context, content: bytes) -> bytes:
        """``content`` with a signature in front, good for this context only."""
        return self._key.sign(_signed(context, content)) + content

    def __repr__(self) -> str:
        return f"Identity({fingerprint(self.public)})"


def verify(public: bytes, context: Context, message: bytes) -> bytes:
    """The content of a message that ``public`` signed for ``context``; :class:`BadSignature` if it did not."""
    if len(message) < _SIGNATURE_BYTES:
        raise BadSignature("a message without a signature", context.sender)
    signature, content = message[:_SIGNATURE_BYTES], message[_SIGNATURE_BYTES:]
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, _signed(context, content))
    except InvalidSignature:
        raise BadSignature(
            f"the message is not signed by {context.sender} for {context.recipient} in round {context.round}"
            f" ({context.protocol} {context.purpose})".rstrip(),
            context.sender,
        ) from None
    return content


def fingerprint(public: bytes) -> str:
    """A short name of a public key, to be compared by people: 80 bits of SHA-256 in groups of four digits."""
    digits = hashlib.sha256(public).hexdigest()[:20]
    return "-".join(digits[i : i + 4] for i in range(0, 20, 4))


class Roster:
    """The identities that take part, by name. Each place (context) is filled once."""

    def __init__(self, identities: Mapping[str, bytes]) -> None:
        for name, public in identities.items():
            if len(public) != IDENTITY_BYTES:
                raise Refused("bad-key", f"a public identity has {IDENTITY_BYTES} bytes, not {len(public)}", name)
        if len(set(identities.values())) != len(identities):
            raise Misused("duplicate", "identities", "two names with the same identity")
        self._identities = dict(identities)
        self._filled: set[bytes] = set()

    def open(self, context: Context, message: bytes) -> bytes:
        """The content of ``context.sender``'s message for this context, once."""
        if context.sender not in self._identities:
            raise BadSignature("this name is not on the roster", context.sender)
        content = verify(self._identities[context.sender], context, message)
        place = hashlib.sha256(context.encode()).digest()
        if place in self._filled:
            raise Replayed(f"a second message for the same place in round {context.round}", context.sender)
        self._filled.add(place)
        return content

    def __repr__(self) -> str:
        return f"Roster({', '.join(sorted(self._identities))})"


def _signed(context: Context, content: bytes) -> bytes:
    return _DOMAIN + context.encode() + content
