"""1-out-of-M oblivious transfer: the receiver gets one of M messages, the sender does not learn which.

Chou and Orlandi, "The simplest protocol for oblivious transfer" (LATINCRYPT 2015), in the subgroup of prime order l of
edwards25519 (RFC 8032) with the group operations of libsodium (PyNaCl). B is the base point, slots count from 1 here:

    sender      a uniform in Z_l, A = a B                                                    offer A
    receiver    for each transfer x uniform in Z_l, R = c A + x B for its choice c           request R
    sender      k_j = H(context, transfer, A, R, j, a R - j a A), seals message j with k_j   reply
    receiver    k_c = H(context, transfer, A, R, c, x A), opens message c

- The receiver's choice is hidden perfectly: R is uniform in the group whatever c is. This needs A in the subgroup,
  which is checked, and holds against any sender.
- The other messages are hidden computationally: a R - j a A = x A + (c - j) a^2 B, so two keys of one transfer give a^2
  B. Computing that from a B is as hard as computational Diffie-Hellman; H (BLAKE2b) is taken as a random oracle.

This holds for a sender and a receiver who follow the protocol. (The original's claim of universally composable
security against those who do not has a gap: Genç, Iovino, Rial, "The simplest protocol for oblivious transfer
revisited", 2020.) One offer serves all transfers of a context; make a new sender for every round. Messages of one
transfer have equal length. Requests must reach the sender unaltered: sign them.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

import nacl.bindings as sodium
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from nacl.exceptions import CryptoError

from tacit.crypto.crypto_errors import Misused, Refused, Tampered
from tacit.crypto.identities import Context

POINT_BYTES = 32
TAG_BYTES = 16
# every key seals one message
_NONCE = bytes(12)


class TransferSender:
    """Offers M messages in each transfer."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._scalar = _random_scalar()
        self.offer = sodium.crypto_scalarmult_ed25519_base_noclamp(self._scalar)
        self._step = sodium.crypto_scalarmult_ed25519_noclamp(self._scalar, self.offer)  # a A

    def reply(self, requests: bytes, messages: Sequence[Sequence[bytes]]) -> list[bytes]:
        """For each request, all of its transfer's messages, sealed so that the receiver can open the one it chose.

        ``messages[i]`` are the M messages of transfer i, equally long; the reply to it has M (length + 16) bytes.
        """
        if len(requests) != POINT_BYTES * len(messages):
            reason = f"{len(requests)} bytes are not {len(messages)} requests"
            raise Refused("wrong-length", reason, self._context.recipient)
        common = _common(self._context, self.offer)
        replies = []
        for transfer, slots in enumerate(messages):
            if len({len(message) for message in slots}) != 1:
                raise Misused("mismatch", "messages", "the messages of a transfer must have one length")
            request = requests[POINT_BYTES * transfer : POINT_BYTES * (transfer + 1)]
            try:
                # refuses what is not in the subgroup of prime order
                point = sodium.crypto_scalarmult_ed25519_noclamp(self._scalar, request)
            except (CryptoError, RuntimeError):
                raise Refused("malformed", "a request that is no point of the group", self._context.recipient) from None
            sealed = []
            for slot, message in enumerate(slots, start=1):
                point = sodium.crypto_core_ed25519_sub(point, self._step)
                key = _key(common, transfer, request, slot, point)
                sealed.append(ChaCha20Poly1305(key).encrypt(_NONCE, message, None))
            replies.append(b"".join(sealed))
        return replies

    def __repr__(self) -> str:
        return "TransferSender(…)"


class TransferReceiver:
    """Chooses one of ``slots`` messages in each transfer; choices count from 0."""

    def __init__(self, context: Context, offer: bytes, choices: Sequence[int], slots: int) -> None:
        if slots < 2:
            raise Misused("out-of-range", "slots", f"a choice needs at least two messages, not {slots}")
        if any(not 0 <= choice < slots for choice in choices):
            raise Misused("out-of-range", "choices", f"choices are numbers from 0 to {slots - 1}")
        if len(offer) != POINT_BYTES or not sodium.crypto_core_ed25519_is_valid_point(offer):
            raise Refused("malformed", "an offer that is no point of the group", context.sender)
        self._context, self._offer, self._choices, self._slots = context, offer, list(choices), slots
        self._scalars = [_random_scalar() for _ in choices]
        multiples = [offer]
        for _ in range(slots - 1):
            multiples.append(sodium.crypto_core_ed25519_add(multiples[-1], offer))
        self._requests = [
            sodium.crypto_core_ed25519_add(multiples[choice], sodium.crypto_scalarmult_ed25519_base_noclamp(scalar))
            for choice, scalar in zip(self._choices, self._scalars, strict=True)
        ]

    @property
    def requests(self) -> bytes:
        """What the sender needs: 32 bytes for each transfer, uniform whatever the choices are."""
        return b"".join(self._requests)

    def receive(self, replies: Sequence[bytes]) -> list[bytes]:
        """The chosen messages; :class:`Tampered` if a reply does not fit its request."""
        if len(replies) != len(self._choices):
            reason = f"{len(replies)} replies to {len(self._choices)} requests"
            raise Refused("wrong-length", reason, self._context.sender)
        common = _common(self._context, self._offer)
        received = []
        for transfer, reply in enumerate(replies):
            size, rest = divmod(len(reply), self._slots)
            if rest or size < TAG_BYTES:
                raise Tampered(f"a reply that does not hold {self._slots} messages", self._context.sender)
            choice = self._choices[transfer]
            point = sodium.crypto_scalarmult_ed25519_noclamp(self._scalars[transfer], self._offer)
            key = _key(common, transfer, self._requests[transfer], choice + 1, point)
            try:
                message = ChaCha20Poly1305(key).decrypt(_NONCE, reply[choice * size : (choice + 1) * size], None)
            except InvalidTag:
                raise Tampered("a reply that does not open", self._context.sender) from None
            received.append(message)
        return received

    def __repr__(self) -> str:
        return "TransferReceiver(…)"


def _common(context: Context, offer: bytes) -> bytes:
    return hashlib.blake2b(context.encode() + offer, digest_size=32, person=b"tacit-transfer").digest()


def _key(common: bytes, transfer: int, request: bytes, slot: int, point: bytes) -> bytes:
    place = transfer.to_bytes(8, "big") + slot.to_bytes(8, "big")
    return hashlib.blake2b(common + place + request + point, digest_size=32, person=b"tacit-transfer-k").digest()


def _random_scalar() -> bytes:
    """Uniform in Z_l: 512 bits reduced."""
    return sodium.crypto_core_ed25519_scalar_reduce(os.urandom(64))
