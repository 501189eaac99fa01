"""Secret sharing: any ``threshold`` holders can reconstruct a secret, and fewer learn nothing about it.

Shamir, "How to share a secret" (1979): the secret is the value at 0 of a uniform polynomial of degree threshold - 1
over a prime field, the share of holder i its value at i. Fewer than ``threshold`` shares are independent of the secret.
The field has p = 2^256 + 297 elements, the smallest prime above 2^256, so that every 256-bit secret is an element;
shares take 33 bytes for each secret. Several secrets are shared with one call, and a holder's :class:`Share` has one
value for each of them.

Shares beyond the threshold are checked against the others, so that a wrong one is noticed where there are enough; with
exactly ``threshold`` shares, a wrong one gives a wrong secret, which must be recognised where it is used (a public key
that does not match). Shares are as secret as what they share: send them sealed.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field

from tacit.crypto.crypto_errors import BadShares, Misused
from tacit.crypto.secret import Secret

PRIME = 2**256 + 297
SECRET_BYTES = 32
VALUE_BYTES = 33


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
