"""Bytes that are overwritten when they are no longer needed and that nothing prints; and how holders share them.

How far this goes: a :class:`Secret` holds its bytes in one place and zeroes that place in :meth:`Secret.wipe`, at the
end of a ``with`` block and when it is no longer referenced. Python and the libraries below it make copies that cannot
be reached from here (``bytes`` objects on the way in and out, the key objects of OpenSSL, which cleans them itself,
integers of gmpy2, which does not). So this shortens the life of keys in memory; it is no defence against an attacker
who can read the memory of the process while it runs.

Sharing (Shamir, "How to share a secret", 1979): the secret is the value at 0 of a uniform polynomial of degree
threshold - 1 over a prime field, the share of holder i its value at i. Fewer than ``threshold`` shares are independent
of the secret. The field has p = 2^256 + 297 elements, the smallest prime above 2^256, so that every 256-bit secret is
an element. Shares beyond the threshold are checked against the others. With exactly ``threshold`` shares, a wrong one
gives a wrong secret, which must be recognised where it is used (a public key that does not match). Shares are as secret
as what they share: send them sealed.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from tacit.crypto.crypto_errors import BadShares, Misused

PRIME = 2**256 + 297
SECRET_BYTES = 32
VALUE_BYTES = 33


class SelfWiping(bytearray):
    """Bytes that are zeroed before their memory is given back, which is after the last view of them is gone."""

    def wipe(self) -> None:
        self[:] = bytes(len(self))

    def __del__(self) -> None:
        self.wipe()


class Secret:
    """A few secret bytes. A ``bytearray`` that is handed in is copied and then zeroed."""

    __slots__ = ("_bytes", "_wiped")

    def __init__(self, value: bytes | bytearray | memoryview) -> None:
        self._wiped = False
        self._bytes = SelfWiping(value)
        if isinstance(value, bytearray):
            value[:] = bytes(len(value))

    @classmethod
    def random(cls, size: int = 32) -> Secret:
        """``size`` bytes from the operating system."""
        return cls(os.urandom(size))

    def expose(self) -> memoryview:
        """The bytes themselves, read-only, valid until they are wiped."""
        if self._wiped:
            raise Misused("wiped", "secret", "this secret has been wiped")
        return memoryview(self._bytes).toreadonly()

    def wipe(self) -> None:
        """Overwrite the bytes; the secret cannot be used any more."""
        self._bytes.wipe()
        self._wiped = True

    def __len__(self) -> int:
        return len(self._bytes)

    def __enter__(self) -> Secret:
        return self

    def __exit__(self, *_: object) -> None:
        self.wipe()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self.expose(), other.expose())

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return "Secret(…)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled or copied")


def key_bytes(secret: Secret) -> memoryview:
    """The bytes of a private key, which must be 32."""
    if len(secret) != SECRET_BYTES:
        raise Misused("wrong-length", "secret", f"a private key has {SECRET_BYTES} bytes, not {len(secret)}")
    return secret.expose()


@dataclass(frozen=True)
class Share:
    """What one holder keeps: its index (from 1) and its value for each of the shared secrets."""

    index: int
    values: tuple[int, ...] = field(repr=False)

    def to_bytes(self) -> bytes:
        return self.index.to_bytes(4, "big") + b"".join(value.to_bytes(VALUE_BYTES, "big") for value in self.values)

    @classmethod
    def from_bytes(cls, data: bytes, peer: str | None = None) -> Share:
        """The share that :meth:`to_bytes` wrote; ``peer`` is named where it is refused."""
        if len(data) <= 4 or (len(data) - 4) % VALUE_BYTES:
            raise BadShares("wrong-length", f"a share does not have {len(data)} bytes", peer)
        index = int.from_bytes(data[:4], "big")
        values = [int.from_bytes(data[i : i + VALUE_BYTES], "big") for i in range(4, len(data), VALUE_BYTES)]
        if index < 1 or max(values) >= PRIME:
            raise BadShares("out-of-range", "a share outside of the field", peer)
        return cls(index, tuple(values))


def split(shared: Sequence[Secret], threshold: int, holders: Sequence[int]) -> list[Share]:
    """One share for each holder (indices from 1), of all the secrets, such that any ``threshold`` of them suffice."""
    if not 1 <= threshold <= len(holders):
        raise BadShares("bad-terms", f"a threshold between 1 and the {len(holders)} holders is needed, not {threshold}")
    _check_indices(holders)
    if not shared:
        raise Misused("missing", "secrets", "no secret to share")
    polynomials = []
    for secret in shared:
        if len(secret) != SECRET_BYTES:
            raise Misused("wrong-length", "secrets", f"a shared secret has {SECRET_BYTES} bytes, not {len(secret)}")
        free = int.from_bytes(secret.expose(), "big")
        polynomials.append([free, *(secrets.randbelow(PRIME) for _ in range(threshold - 1))])
    return [Share(index, tuple(_evaluate(polynomial, index) for polynomial in polynomials)) for index in holders]


def combine(shares: Sequence[Share], threshold: int) -> list[Secret]:
    """The secrets, in their order; :class:`BadShares` if there are too few shares or they do not fit together."""
    if threshold < 1:
        raise BadShares("bad-terms", f"a threshold of at least 1 is needed, not {threshold}")
    if len(shares) < threshold:
        raise BadShares("too-few", f"{len(shares)} shares where {threshold} are needed")
    _check_indices([share.index for share in shares])
    counts = {len(share.values) for share in shares}
    if len(counts) != 1:
        raise BadShares("mismatch", "shares of different numbers of secrets")
    used, spare = shares[:threshold], shares[threshold:]
    for share in spare:
        weights = _lagrange([other.index for other in used], share.index)
        if any(_weighted(weights, used, place) != value for place, value in enumerate(share.values)):
            raise BadShares("bad-shares", "shares that are not of one polynomial")
    weights = _lagrange([share.index for share in used], 0)
    combined = []
    for place in range(counts.pop()):
        value = _weighted(weights, used, place)
        if value >> (8 * SECRET_BYTES):
            raise BadShares("bad-shares", "shares that do not give a secret of 256 bits")
        combined.append(Secret(bytearray(value.to_bytes(SECRET_BYTES, "big"))))
    return combined


def _evaluate(polynomial: list[int], index: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * index + coefficient) % PRIME
    return value


def _lagrange(indices: Sequence[int], at: int) -> list[int]:
    """Weights w with f(at) = sum_i w_i f(indices[i]) for every polynomial of degree below ``len(indices)``."""
    weights = []
    for i in indices:
        numerator = denominator = 1
        for j in indices:
            if j != i:
                numerator = numerator * (at - j) % PRIME
                denominator = denominator * (i - j) % PRIME
        weights.append(numerator * pow(denominator, -1, PRIME) % PRIME)
    return weights


def _weighted(weights: Sequence[int], shares: Sequence[Share], place: int) -> int:
    return sum(weight * share.values[place] for weight, share in zip(weights, shares, strict=True)) % PRIME


def _check_indices(indices: Sequence[int]) -> None:
    if any(not 1 <= index < 2**32 for index in indices):
        raise BadShares("out-of-range", "holders are numbered from 1 (0 is where the secret is) to 2^32 - 1")
    if len(set(indices)) != len(indices):
        raise BadShares("duplicate", "two shares of the same holder")
