"""What the RFCs say, written out once more: independent of the libraries that Tacit uses, slow, for tests only."""

from __future__ import annotations

import hashlib
import hmac
import struct

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305


def hkdf_extract(salt: bytes, key: bytes) -> bytes:
    return hmac.digest(salt or bytes(32), key, hashlib.sha256)


def hkdf_expand(key: bytes, information: bytes, size: int) -> bytes:
    """RFC 5869, section 2.3."""
    output, block = b"", b""
    while len(output) < size:
        block = hmac.digest(key, block + information + bytes([len(output) // 32 + 1]), hashlib.sha256)
        output += block
    return output[:size]


def chacha20_block(key: bytes, counter: int, nonce: bytes) -> bytes:
    """RFC 8439, section 2.3."""
    start = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key), counter]
    start += struct.unpack("<3I", nonce)
    state = list(start)

    def rotate(value: int, by: int) -> int:
        return ((value << by) | (value >> (32 - by))) & 0xFFFFFFFF

    def quarter(a: int, b: int, c: int, d: int) -> None:
        for x, y, z, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            state[x] = (state[x] + state[y]) & 0xFFFFFFFF
            state[z] = rotate(state[z] ^ state[x], by)

    for _ in range(10):
        for column in range(4):
            quarter(column, column + 4, column + 8, column + 12)
        for diagonal in range(4):
            quarter(diagonal, 4 + (diagonal + 1) % 4, 8 + (diagonal + 2) % 4, 12 + (diagonal + 3) % 4)
    return struct.pack("<16I", *((a + b) & 0xFFFFFFFF for a, b in zip(state, start, strict=True)))


def hpke_open(secret: bytes, encapsulated: bytes, information: bytes, associated: bytes, sealed: bytes) -> bytes:
    """RFC 9180, base mode, DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20-Poly1305, first message."""

    def extract(suite: bytes, salt: bytes, label: bytes, key: bytes) -> bytes:
        return hkdf_extract(salt, b"HPKE-v1" + suite + label + key)

    def expand(suite: bytes, key: bytes, label: bytes, rest: bytes, size: int) -> bytes:
        return hkdf_expand(key, size.to_bytes(2, "big") + b"HPKE-v1" + suite + label + rest, size)

    private = X25519PrivateKey.from_private_bytes(secret)
    shared = private.exchange(X25519PublicKey.from_public_bytes(encapsulated))
    kem, suite = b"KEM\x00\x20", b"HPKE\x00\x20\x00\x01\x00\x03"
    pair = encapsulated + private.public_key().public_bytes_raw()
    agreed = expand(kem, extract(kem, b"", b"eae_prk", shared), b"shared_secret", pair, 32)
    schedule = b"\x00" + extract(suite, b"", b"psk_id_hash", b"") + extract(suite, b"", b"info_hash", information)
    root = extract(suite, agreed, b"secret", b"")
    key, nonce = expand(suite, root, b"key", schedule, 32), expand(suite, root, b"base_nonce", schedule, 12)
    return ChaCha20Poly1305(key).decrypt(nonce, sealed, associated)
