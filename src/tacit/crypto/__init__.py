"""Cryptographic primitives of the exchanges that hide single silos, built from maintained libraries.

    context              where a message or key belongs; everything below is bound to one
    secret               bytes that are wiped and never printed
    identities           Ed25519 signatures on every key message, a roster, protection from replays
    key_agreement        X25519 and HKDF: keys of two silos
    mask_streams         masks over Z_2^k from such a key (ChaCha20)
    shamir               secrets that any t of their holders can reconstruct
    sealed               messages that only one key opens (HPKE)
    worker_process       the same work in several processes

This package imports nothing else of Tacit and no JAX. Whatever must not be used raises :class:`Refused`, which names
the peer and holds no secret.
"""

from tacit.crypto.context import EVERYONE, Context
from tacit.crypto.crypto_errors import BadShares, BadSignature, Refused, Replayed, Tampered
from tacit.crypto.identities import IDENTITY_BYTES, Identity, Roster, fingerprint, verify
from tacit.crypto.key_agreement import KeyPair, derive
from tacit.crypto.mask_streams import MaskStream, masked
from tacit.crypto.sealed import SealingKey, seal, seal_many, seal_rows
from tacit.crypto.secret import Secret
from tacit.crypto.shamir import Share, combine, split

__all__ = [
    "EVERYONE",
    "IDENTITY_BYTES",
    "BadShares",
    "BadSignature",
    "Context",
    "Identity",
    "KeyPair",
    "MaskStream",
    "Refused",
    "Replayed",
    "Roster",
    "SealingKey",
    "Secret",
    "Share",
    "Tampered",
    "combine",
    "derive",
    "fingerprint",
    "masked",
    "seal",
    "seal_many",
    "seal_rows",
    "split",
    "verify",
]
