"""Paillier's cryptosystem: integers modulo n that can be added, and multiplied by known numbers, while encrypted.

Paillier, "Public-key cryptosystems based on composite degree residuosity classes" (EUROCRYPT 1999), with g = n + 1:

    encrypt     c = (1 + m n) rho^n mod n^2          rho uniform in Z_n^*
    add         Enc(a) Enc(b) = Enc(a + b)           Enc(a) (1 + b n) = Enc(a + b)
    multiply    Enc(a)^b = Enc(a b)
    decrypt     m = L(c^(p-1) mod p^2) / L((1 + n)^(p-1) mod p^2) mod p with L(x) = (x - 1) / p, likewise mod q, joined

Encryptions hide their content from any party without the factors p, q of n under the decisional composite residuosity
assumption. They do *not* hide how a ciphertext was computed: the owner of the key reads the randomness of a product of
powers as well as its content. What leaves a silo must be re-randomised (:meth:`Ciphertexts.rerandomised`) or masked
(:meth:`Ciphertexts.masked`).

Content is signed: integers from -(n-1)/2 to (n-1)/2; sums and products beyond wrap around modulo n, as in any ring.
Keys have 3072 bits (128-bit security, NIST SP 800-57); 2048 is allowed with a warning (112 bits), less is refused.
Integers of gmpy2 cannot be overwritten. Nothing here runs in constant time: an attacker who can measure the owner's
machine closely is outside of what this protects against.
"""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn

import numpy as np
import numpy.typing as npt
from gmpy2 import gcd, invert, is_power, is_prime, mpz, powmod, primorial

from tacit.crypto.crypto_errors import Misused, Refused
from tacit.crypto.mask_streams import MaskStream
from tacit.families.weighting.blinding import Blinding, random_units
from tacit.families.weighting.modular_powers import powers, product, quotients, shared_products

DEFAULT_BITS = 3072
LEAST_BITS = 2048
_PUBLIC = b"tacit-paillier-1"
_PRIME_ROUNDS = 40
_EXTRA_BYTES = 16


class WeakKeyWarning(UserWarning):
    """A key that is allowed, but shorter than recommended."""


class PublicKey:
    """The modulus n, checked: long enough, odd, composite, no power, no small factor."""

    def __init__(self, n: int, *, insecure_for_tests: bool = False, peer: str | None = None) -> None:
        self.n = mpz(n)
        self.bits = int(n).bit_length()
        self.modulus = self.n**2
        self.largest = (self.n - 1) // 2
        self.ciphertext_bytes = (self.modulus.bit_length() + 7) // 8
        if not insecure_for_tests:
            _check_length(self.bits, peer)
        if self.n < 2 or gcd(self.n, primorial(1000)) != 1:
            raise Refused("bad-key", "a Paillier modulus with a small factor", peer)
        if is_prime(self.n) or is_power(self.n):
            raise Refused("bad-key", "a Paillier modulus that is a prime or a power", peer)

    def encode(self, value: int) -> mpz:
        """The residue of a signed integer; ValueError where it has none of its own."""
        if not -self.largest <= value <= self.largest:
            problem = f"an integer of {int(value).bit_length()} bits does not fit a modulus of {self.bits} bits"
            raise Misused("out-of-range", "value", problem)
        return mpz(value) % self.n

    def decode(self, residue: int) -> int:
        """The signed integer of a residue."""
        residue = mpz(residue) % self.n
        return int(residue if residue <= self.largest else residue - self.n)

    def encrypt(self, values: Iterable[int]) -> Ciphertexts:
        """Each value encrypted with fresh randomness, a full exponentiation."""
        encoded = [1 + self.encode(value) * self.n for value in values]
        drawn = powers(random_units(self.n, len(encoded)), [self.n] * len(encoded), self.modulus)
        return Ciphertexts(self, [m * r % self.modulus for m, r in zip(encoded, drawn, strict=True)])

    def ciphertexts(self, data: bytes, peer: str | None = None) -> Ciphertexts:
        """The ciphertexts that :meth:`Ciphertexts.to_bytes` wrote; each must be a unit modulo n^2."""
        size = self.ciphertext_bytes
        if len(data) % size:
            raise Refused("wrong-length", f"{len(data)} bytes are not a number of ciphertexts of {size} bytes", peer)
        values = [mpz.from_bytes(data[i : i + size], "big") for i in range(0, len(data), size)]
        if any(not 0 < value < self.modulus for value in values):
            raise Refused("out-of-range", "a ciphertext outside of its range", peer)
        # a product has a factor in common with n if and only if one of its factors has
        if gcd(product([value % self.n for value in values], self.n), self.n) != 1:
            raise Refused("out-of-range", "a ciphertext that is no unit", peer)
        return Ciphertexts(self, values)

    def to_bytes(self) -> bytes:
        return _PUBLIC + int(self.n).to_bytes((self.bits + 7) // 8, "big")

    @classmethod
    def from_bytes(cls, data: bytes, *, insecure_for_tests: bool = False, peer: str | None = None) -> PublicKey:
        if not data.startswith(_PUBLIC):
            raise Refused("malformed", "not a Paillier public key", peer)
        n = int.from_bytes(data[len(_PUBLIC) :], "big")
        key = cls(n, insecure_for_tests=insecure_for_tests, peer=peer)
        if key.to_bytes() != data:
            raise Refused("malformed", "a Paillier public key that is not in its shortest form", peer)
        return key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PublicKey) and self.n == other.n

    def __hash__(self) -> int:
        return hash(self.n)

    def __repr__(self) -> str:
        return f"PublicKey({self.bits} bits)"


class Ciphertexts:
    """A vector of ciphertexts under one key. Operations return new ones and leave these as they are."""

    def __init__(self, key: PublicKey, values: Iterable[mpz]) -> None:
        self.key = key
        self.values = list(values)

    def add(self, other: Ciphertexts) -> Ciphertexts:
        """The sums, element by element."""
        self._check(other.key, len(other))
        modulus = self.key.modulus
        return Ciphertexts(self.key, [a * b % modulus for a, b in zip(self.values, other.values, strict=True)])

    def add_plain(self, numbers: Sequence[int]) -> Ciphertexts:
        """The sums with known integers, of any size (modulo n); randomness stays as it is."""
        self._check(self.key, len(numbers))
        n, modulus = self.key.n, self.key.modulus
        added = [1 + mpz(number) % n * n for number in numbers]
        return Ciphertexts(self.key, [a * b % modulus for a, b in zip(self.values, added, strict=True)])

    def multiply(self, numbers: Sequence[int], workers: int = 1) -> Ciphertexts:
        """The products with known integers, of any size (modulo n), element by element: an exponentiation each."""
        self._check(self.key, len(numbers))
        shortest = [mpz(self.key.decode(number)) for number in numbers]  # n - 1 costs what -1 does
        return Ciphertexts(self.key, powers(self.values, shortest, self.key.modulus, workers))

    def packed_sums(self, numbers: npt.NDArray[np.int64], slots: int, width: int, workers: int = 1) -> Ciphertexts:
        """For ``numbers`` [outputs * slots, len(self)], ``slots`` weighted sums of all elements in each output, the
        k-th of them times 2^(width k). ``workers`` processes share the elements between them.

        This is the step of the private weighting protocol that takes the time: people times parameters. The result is
        computed from the inputs alone: re-randomise it before it leaves.
        """
        return Ciphertexts(self.key, shared_products(self.values, numbers, slots, width, self.key.n, workers))

    def rerandomised(self, blinding: Blinding) -> Ciphertexts:
        """The same content under fresh randomness, also for the owner of the key."""
        modulus, drawn = self.key.modulus, blinding.draw(len(self))
        return Ciphertexts(self.key, [a * r % modulus for a, r in zip(self.values, drawn, strict=True)])

    def masked(self, plus: Iterable[MaskStream] = (), minus: Iterable[MaskStream] = ()) -> Ciphertexts:
        """Multiplied by elements of Z_{n^2} from some streams, divided by those from others (non-units: never seen).

        A ciphertext with one mask that its reader does not know is uniform in Z_{n^2}^*: neither content nor randomness
        can be read, not even by the owner of the key. When all of a group of silos do this pairwise, one
        multiplying and the other dividing, only the product of all their ciphertexts says anything: the sum of their
        contents, and the product of their randomness, which is why they must re-randomise as well.
        """
        modulus = self.key.modulus
        values, below = list(self.values), [mpz(1)] * len(self)
        for target, streams in ((values, plus), (below, minus)):
            for stream in streams:
                for place, mask in enumerate(residues(stream, modulus, len(self))):
                    target[place] = target[place] * mask % modulus
        return Ciphertexts(self.key, quotients(values, below, modulus))

    def to_bytes(self) -> bytes:
        """All ciphertexts, each in ``key.ciphertext_bytes`` bytes; :meth:`PublicKey.ciphertexts` reads them."""
        return b"".join(value.to_bytes(self.key.ciphertext_bytes, "big") for value in self.values)

    def __iter__(self) -> Iterator[mpz]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"Ciphertexts({len(self)} of {self.key.bits} bits)"

    def _check(self, key: PublicKey, count: int) -> None:
        if key != self.key:
            raise Misused("mismatch", "key", "ciphertexts of different keys")
        if count != len(self):
            raise Misused("wrong-length", "numbers", f"{count} numbers for {len(self)} ciphertexts")


class SecretKey:
    """The factors of a modulus."""

    def __init__(self, p: int, q: int, *, insecure_for_tests: bool = False) -> None:
        if p == q or not (is_prime(p, _PRIME_ROUNDS) and is_prime(q, _PRIME_ROUNDS)):
            raise Misused("duplicate", "primes", "two different primes are needed")
        if gcd(p * q, (p - 1) * (q - 1)) != 1:
            raise Misused("mismatch", "primes", "one prime divides the other less one: Paillier needs other primes")
        self.public = PublicKey(p * q, insecure_for_tests=insecure_for_tests)
        self.factors = (_Half(mpz(p), self.public.n), _Half(mpz(q), self.public.n))

    @classmethod
    def generate(cls, bits: int = DEFAULT_BITS) -> SecretKey:
        """A new key from randomness of the operating system: about a second at 3072 bits."""
        _check_length(bits, None)
        return cls(*_random_primes(bits))

    def decrypt(self, ciphertexts: Ciphertexts, workers: int = 1) -> list[int]:
        """The contents, as signed integers. ``workers`` threads share the exponentiations."""
        if ciphertexts.key != self.public:
            raise Misused("mismatch", "key", "ciphertexts of another key")
        one, two = self.factors
        residues = one.decrypt(ciphertexts.values, workers), two.decrypt(ciphertexts.values, workers)
        inverse = invert(one.prime, two.prime)
        return [
            self.public.decode(a + one.prime * ((b - a) * inverse % two.prime)) for a, b in zip(*residues, strict=True)
        ]

    def encrypt(self, values: Iterable[int], workers: int = 1) -> Ciphertexts:
        """As :meth:`PublicKey.encrypt` does, with exactly the same distribution, five times faster.

        The n-th powers modulo p^2 are the p - 1 elements x^p, x in Z_p^*: half the exponent, modulo a quarter.
        """
        n, modulus = self.public.n, self.public.modulus
        encoded = [1 + self.public.encode(value) * n for value in values]
        one, two = self.factors
        drawn = one.random_powers(len(encoded), workers), two.random_powers(len(encoded), workers)
        inverse = invert(one.square, two.square)
        return Ciphertexts(
            self.public,
            [
                m * (a + one.square * ((b - a) * inverse % two.square)) % modulus
                for m, a, b in zip(encoded, *drawn, strict=True)
            ],
        )

    def __repr__(self) -> str:
        return f"SecretKey({self.public.bits} bits, …)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret key is not pickled or copied")


def insecure_key_for_tests(bits: int = 256) -> SecretKey:
    """A key so short that tests are quick and the factors can be found: for tests only."""
    return SecretKey(*_random_primes(bits), insecure_for_tests=True)


def residues(stream: MaskStream, modulus: int, count: int) -> list[mpz]:
    """``count`` elements of Z_modulus, each within 2^-128 of uniform for a uniform stream: each takes 128 bits more
    than the modulus has."""
    if modulus < 2:
        raise Misused("out-of-range", "modulus", "a modulus of at least 2 is needed")
    modulus, size = mpz(modulus), (int(modulus).bit_length() + 7) // 8 + _EXTRA_BYTES
    drawn = stream.take(size * count)
    return [mpz.from_bytes(drawn[i : i + size], "little") % modulus for i in range(0, size * count, size)]


def units(stream: MaskStream, modulus: int, count: int) -> list[mpz]:
    """``count`` elements of Z_modulus that have an inverse: others are drawn again, by both ends of a stream alike."""
    found: list[mpz] = []
    while len(found) < count:
        found += [unit for unit in residues(stream, modulus, count - len(found)) if gcd(unit, modulus) == 1]
    return found


class _Half:
    """What happens modulo the square of one of the two primes."""

    def __init__(self, prime: mpz, n: mpz) -> None:
        self.prime, self.square = prime, prime**2
        self._scale = invert(self._log(powmod(1 + n, prime - 1, self.square)), prime)

    def decrypt(self, values: Sequence[mpz], workers: int) -> list[mpz]:
        """The contents modulo this prime."""
        reduced, exponents = [value % self.square for value in values], [self.prime - 1] * len(values)
        found = powers(reduced, exponents, self.square, workers)
        return [self._log(power) * self._scale % self.prime for power in found]

    def random_powers(self, count: int, workers: int) -> list[mpz]:
        """Uniform n-th powers modulo the square."""
        roots = [mpz(1 + secrets.randbelow(int(self.prime) - 1)) for _ in range(count)]
        return powers(roots, [self.prime] * count, self.square, workers)

    def _log(self, power: mpz) -> mpz:
        return (power - 1) // self.prime

    def __repr__(self) -> str:
        return "_Half(…)"


def _random_primes(bits: int) -> tuple[mpz, mpz]:
    """Two random primes of half the length whose product has exactly ``bits`` bits."""
    if bits < 64 or bits % 2:
        raise Misused("out-of-range", "bits", f"an even number of bits, at least 64, is needed, not {bits}")
    while True:
        p, q = _random_prime(bits // 2), _random_prime(bits // 2)
        # FIPS 186-5, A.1.3: primes that are close together are easy to find
        if abs(p - q) >> max(0, bits // 2 - 100) and gcd(p * q, (p - 1) * (q - 1)) == 1:
            return p, q


def _random_prime(bits: int) -> mpz:
    while True:
        # the two highest bits are set, so that a product of two has the full length
        candidate = mpz(secrets.randbits(bits)) | (mpz(3) << (bits - 2)) | 1
        if is_prime(candidate, _PRIME_ROUNDS):
            return candidate


def _check_length(bits: int, peer: str | None) -> None:
    if bits < LEAST_BITS:
        reason = f"a Paillier key of {bits} bits; {LEAST_BITS} are the least, {DEFAULT_BITS} recommended"
        raise Refused("bad-key", reason, peer)
    if bits < DEFAULT_BITS:
        warnings.warn(f"a Paillier key of {bits} bits; {DEFAULT_BITS} are recommended", WeakKeyWarning, stacklevel=3)
