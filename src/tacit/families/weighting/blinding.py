"""Fresh encryption randomness, quickly and without an assumption: random n-th powers modulo n^2 from a pool.

Encrypting, and re-randomising so that not even the owner of the key learns how a ciphertext was computed, multiplies by
rho^n mod n^2 for a uniform rho in G = Z_n^*. One such power costs a full exponentiation. The usual shortcut, powers of
one public h^n with short exponents (Damgård, Jurik, Nielsen 2010), hides only from those who cannot factor n, and only
up to the subgroup that h generates. In the private weighting protocol it is the server, who knows the factors, from
which silos must hide. So the pool here gives what is *statistically* uniform in all of G:

    X = h_1^a_1 ... h_k^a_k,   h_j = x_j^n for uniform x_j in G (drawn once),   a_j uniform in 2^t consecutive integers

With tables of each base's powers a draw takes k t / w entries of them, for windows of w bits, and half as many
multiplications (:mod:`tacit.families.weighting.modular_powers`).

How close to uniform. Let chi run over the characters of G, o be the order of chi and E the mean over a_1 .. a_k. The
distance of X from uniform, for a given pool, is at most 1/2 sqrt(S), S = sum over chi != 1 of |E chi(X)|^2.

1. Over the choice of the pool, |E chi(X)|^2 has mean Pr[a = b mod o]^k for two independent exponents a, b; that is at
   most (1/o + 2^-t)^k, and exactly 2^(-t k) for o > 2^t. As |G| < n, all chi with o > 2^t together contribute less than
   n 2^(-t k) <= 2^-256 to the mean of S, by the choice of k t >= log2(n) + 256.
2. For n = p q, G is a product of two cyclic groups and has at most o^2 characters of order o. So those with
   2^8 <= o <= 2^t contribute less than the sum of o^2 (1/o + 2^-t)^k, below 2^-400 for k >= 64.
3. For o < 2^8, chi may be 1 on all of the pool. This happens for some such chi with probability at most the sum of
   o^2 o^-k < 2^(3 - k): once, when the pool is made. Otherwise some factor is the mean of a root of unity z != 1
   over 2^t consecutive powers, at most 2^-t / sin(pi/o) < 2^(7 - t) in size (and 0 for o = 2); weighed with the
   probability of so few factors, all of these contribute less than k 2^(14 - 2 t) 2^(3 - (k - 1)) to the mean of S.

With k >= 64 and t >= 32 that is: D draws are within 2^-61 + D 2^-50 of D independent uniform elements of G (2^-61 + D
2^-66 with the t = 48 of a 3072-bit key). Nothing is assumed about n but that it has two prime factors, and no other
party takes part in making the pool.
"""

from __future__ import annotations

import functools
import math
import os
import secrets
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from gmpy2 import gcd, mpz

from tacit.crypto.crypto_errors import Misused
from tacit.families.weighting.modular_powers import WIDEST, power_tables, powers, product, quotients

WINDOW = 8
_LEAST_BASES = 64
_EXTRA_BITS = 256


class Blinding:
    """Draws random n-th powers modulo n^2 for one public modulus n.

    At 3072 bits, making it takes 70 full exponentiations and 50 MB, a draw 210 multiplications modulo n^2 (an
    exponentiation takes 3,700). Each bit more of window takes twice the memory and draws a little faster.
    """

    def __init__(self, n: int, window: int = WINDOW, workers: int = 1) -> None:
        if not 2 <= window <= WIDEST:
            raise Misused("out-of-range", "window", f"windows have 2 to {WIDEST} bits, not {window}")
        self._n, self._modulus = mpz(n), mpz(n) ** 2
        self._window = window
        bits = int(n).bit_length() + _EXTRA_BITS
        digits = math.ceil(min(48, max(32, bits / _LEAST_BASES)) / window)  # t = digits * window
        bases = max(_LEAST_BASES, math.ceil(bits / (digits * window)))
        pool = powers(random_units(n, bases), [self._n] * bases, self._modulus, workers)
        self._tables = [table for base in pool for table in power_tables(base, window, range(digits), self._n)]

    def draw(self, count: int) -> list[mpz]:
        """``count`` independent n-th powers, for one use each."""
        above, below = [], []
        for row in self._digits(count).tolist():
            tilt, positive, negative = mpz(0), [], []
            for (parts, tilts), digit in zip(self._tables, row, strict=True):
                if digit >= 0:
                    positive.append(parts[digit])
                    tilt += tilts[digit]
                else:
                    negative.append(parts[-digit])
                    tilt -= tilts[-digit]
            above.append(self._product(positive) * (1 + tilt % self._n * self._n) % self._modulus)
            below.append(self._product(negative))
        return quotients(above, below, self._modulus)

    def _product(self, parts: list[mpz]) -> mpz:
        """Parts are below n: the product of two needs no reduction."""
        pairs = [one * other for one, other in zip(parts[::2], parts[1::2], strict=False)]
        return product([*pairs, *parts[2 * len(pairs) :]], self._modulus)

    def _digits(self, count: int) -> npt.NDArray[np.int16]:
        """Uniform in -2^(w-1) .. 2^(w-1) - 1 [draws, tables]: the digits of uniform a_j, each from 2^t consecutive."""
        words = np.frombuffer(os.urandom(2 * count * len(self._tables)), dtype="<u2") >> np.uint16(16 - self._window)
        digits = words.astype(np.int16) - np.int16(1 << (self._window - 1))
        return digits.reshape(count, len(self._tables))

    def __repr__(self) -> str:
        return "Blinding(…)"


@functools.lru_cache(maxsize=2)
def blinding_for(n: int, workers: int = 1) -> Blinding:
    """The pool of this process for a modulus. Draws are uniform given the pool, so all who run here may use one."""
    return Blinding(n, workers=workers)


def random_units(n: int, count: int) -> Sequence[mpz]:
    """``count`` uniform elements of Z_n^* from the operating system."""
    units: list[mpz] = []
    while len(units) < count:
        unit = mpz(secrets.randbelow(int(n)))
        if gcd(unit, n) == 1:
            units.append(unit)
    return units
