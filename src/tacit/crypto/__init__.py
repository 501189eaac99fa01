"""Primitives for the exchanges that hide single silos: from maintained libraries, put together in standard ways.

    context      where a message or key belongs; everything below is bound to one
    secret       bytes that are wiped and never printed
    identities   Ed25519 signatures on every key message, a roster, replays refused
    agreement    X25519 and HKDF: keys of two silos
    streams      masks over Z_2^k and Z_n from such a key (ChaCha20)
    shamir       secrets that any t of their holders can put together
    sealed       messages that only one key opens (HPKE)
    paillier     integers that are added and multiplied while encrypted
    blinding     encryption randomness from precomputed tables, uniform also for the owner of the key
    powers       products of many powers
    transfer     1-out-of-M oblivious transfer
    worker       the same work in several processes

This room imports nothing else of Tacit and no JAX. What must not be used is refused with :class:`Refused`, which names
the peer and holds no secret.
"""

from tacit.crypto.agreement import KeyPair, derive
from tacit.crypto.blinding import Blinding
from tacit.crypto.context import EVERYONE, Context
from tacit.crypto.errors import BadShares, BadSignature, Refused, Replayed, Tampered
from tacit.crypto.identities import IDENTITY_BYTES, Identity, Roster, fingerprint, verify
from tacit.crypto.paillier import Ciphertexts, PublicKey, SecretKey, WeakKeyWarning
from tacit.crypto.sealed import SealingKey, seal, seal_many, seal_rows
from tacit.crypto.secret import Secret
from tacit.crypto.shamir import Share, combine, split
from tacit.crypto.streams import MaskStream, masked
from tacit.crypto.transfer import TransferReceiver, TransferSender

__all__ = [
    "EVERYONE",
    "IDENTITY_BYTES",
    "BadShares",
    "BadSignature",
    "Blinding",
    "Ciphertexts",
    "Context",
    "Identity",
    "KeyPair",
    "MaskStream",
    "PublicKey",
    "Refused",
    "Replayed",
    "Roster",
    "SealingKey",
    "Secret",
    "SecretKey",
    "Share",
    "Tampered",
    "TransferReceiver",
    "TransferSender",
    "WeakKeyWarning",
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
