"""Cryptographic primitives of the exchanges that hide single silos, built from maintained libraries.

    identities      contexts (where a message or key belongs); Ed25519 signatures, a roster, protection from replays
    secret          bytes that are wiped and never printed; shares from which any t holders reconstruct them
    mask_streams    X25519 and HKDF: keys of two silos; masks over Z_2^k from such a key (ChaCha20)
    sealed          messages that only one key opens (HPKE)
    worker_process  the same work in several processes

This package imports nothing else of Tacit and no JAX. Whatever must not be used raises :class:`Refused`, which names
the peer and holds no secret.
"""

from tacit.crypto.crypto_errors import BadShares, BadSignature, Refused, Replayed, Tampered
from tacit.crypto.identities import EVERYONE, IDENTITY_BYTES, Context, Identity, Roster, fingerprint, verify
from tacit.crypto.mask_streams import KeyPair, MaskStream, derive, masked
from tacit.crypto.sealed import SealingKey, seal, seal_many, seal_rows
from tacit.crypto.secret import Secret, Share, combine, split

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
