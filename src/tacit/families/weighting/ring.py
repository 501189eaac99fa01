"""Exact products in R = Z_q[X] / (X^N + 1), N = 8192, q a product of primes below 2^24, by floating-point transforms.

A polynomial modulo q is an array of residues ``[..., primes, N]``, each in 0 .. p - 1. It is multiplied by polynomials
of small integers ``[..., N]``: a ternary secret, or the clipped contribution of a subject.

A residue is cut into two digits of 12 bits, with sign. The values of a real polynomial at the roots of X^N + 1 are one
complex FFT of N / 2 points (:func:`spectra`). Products are taken point by point and added up over subjects as matrix
products (:class:`SumOfProducts`). The sums are rounded to the integers that they are.

*Is that exact?* With a ternary polynomial, yes: the error of a product is below 2^-20 (``times``). Sums of products
with contributions have no useful bound for the worst case. Their error is a random walk, usually below 0.01, where 0.5
would matter; :func:`parts_for` cuts long contributions in two so that it stays there. Two checks find an error. Every
number must be within ``FARTHEST`` of an integer. Every block is compared with integer arithmetic: its value at one
random root of X^N + 1, modulo one random prime, is computed a second time from the factors (:class:`RootValues`). One
wrong number modulo this prime always changes this value; wrong numbers modulo other primes alone do not. So this check
is for what spoils all primes: a matrix product of low precision, or spectra of other ciphertexts. A sum that fails is
not sent (:class:`Inexact`).
"""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.fft

Residues = npt.NDArray[np.uint32]
Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Spectra = npt.NDArray[np.complex128]

DEGREE = 8192
HALF = DEGREE // 2
# the largest primes below 2^24 that are 1 modulo 2 DEGREE
PRIMES = (16760833, 16580609, 16515073, 16465921, 16384001, 16269313, 16121857, 15974401, 15941633)
# digits of residues: -2048 .. 2048
_DIGIT_BITS = 12
# a sum that is farther from an integer than that is refused
FARTHEST = 0.25
# contributions of this norm, times the square root of their number, still have errors below 0.01 (measured)
_ONE_PART = 2.0**32
# blocks whose spectra are in memory at once, points whose products are, and ciphertexts that are transformed at once
_BLOCKS, _POINTS, _TOGETHER = 16, 512, 4
_PADDING = 20

_TWIST = np.exp(1j * np.pi * np.arange(HALF) / DEGREE)


class Inexact(Exception):
    """A sum of products is too far from an integer, or differs from integer arithmetic."""


def spectra(polynomials: Floats | npt.NDArray[np.integer], out: Spectra | None = None) -> Spectra:
    """Values ``[..., HALF]`` of real polynomials ``[..., DEGREE]`` at half of the roots of X^N + 1; they are the
    complex conjugates at the other half."""
    folded = _room(*polynomials.shape[:-1]) if out is None else out
    folded.real, folded.imag = polynomials[..., :HALF], polynomials[..., HALF:]
    folded *= _TWIST
    return np.asarray(scipy.fft.fft(folded, overwrite_x=True))


def _room(*shape: int) -> Spectra:
    """Room for spectra ``[*shape, HALF]``. Rows are not a power of two apart, which would make caches collide."""
    return np.empty((*shape, HALF + _PADDING), np.complex128)[..., :HALF]


def polynomials(values: Spectra) -> Integers:
    """The integer polynomials ``[..., DEGREE]`` with these values; :class:`Inexact` where one is not integer."""
    folded = np.asarray(scipy.fft.ifft(values, overwrite_x=True))
    folded *= _TWIST.conj()
    found = np.concatenate([folded.real, folded.imag], axis=-1)
    rounded = np.rint(found)
    np.abs(np.subtract(found, rounded, out=found), out=found)
    if not found.max(initial=0.0) <= FARTHEST:
        raise Inexact(f"a sum of products is {found.max():.2g} away from an integer")
    return rounded.astype(np.int64)


def digits(residues: Residues) -> npt.NDArray[np.int32]:
    """``[..., primes, DEGREE]`` to ``[..., primes, 2, DEGREE]``: low digit and high digit, both with sign."""
    primes = _column(residues.shape[-2]).astype(np.int32)
    signed = residues.view(np.int32) - primes * (residues > primes // 2)
    found = np.empty((*residues.shape[:-1], 2, DEGREE), np.int32)
    np.right_shift(signed + (1 << (_DIGIT_BITS - 1)), _DIGIT_BITS, out=found[..., 1, :])
    np.subtract(signed, found[..., 1, :] << _DIGIT_BITS, out=found[..., 0, :])
    return found


def joined(digit_sums: Integers) -> Residues:
    """``[..., primes, 2, DEGREE]`` sums of digits to residues ``[..., primes, DEGREE]``."""
    primes = _column(digit_sums.shape[-3])
    return np.asarray(((((digit_sums[..., 1, :] % primes) << _DIGIT_BITS) + digit_sums[..., 0, :]) % primes), np.uint32)


def prepared(residues: Residues) -> Spectra:
    """The spectra of the digits of a polynomial, for :func:`times`: ``[..., primes, 2, HALF]``."""
    return spectra(digits(residues))


def times(spectrum: Spectra, small: Integers) -> Residues:
    """``[..., primes, DEGREE]``: the polynomial with this spectrum of digits ``[primes, 2, HALF]`` times polynomials
    ``small [..., DEGREE]`` of norm at most sqrt(DEGREE), such as ternary ones.

    Exact: digits have norm 2^11 sqrt(DEGREE) at most. The error of a product by FFTs of 2^12 points is at most 2^7.3
    times both norms times 2^-53 (Brent, Percival, Zimmermann 2007, theorem 3): 2^(7.3 + 24 - 53).
    """
    values = spectra(small)[..., np.newaxis, np.newaxis, :] * spectrum
    return joined(polynomials(values))


def product(left: Spectra, right: Spectra) -> Residues:
    """``[..., primes, DEGREE]``: the product of two polynomials modulo q, from the spectra of their digits. Exact: both
    have norm 2^17.5 at most, and the error is below 2^-9 (as for :func:`times`)."""
    (left_low, left_high), (right_low, right_high) = (np.moveaxis(digit, -2, 0) for digit in (left, right))
    middle = left_low * right_high + left_high * right_low
    low, middle, high = polynomials(np.stack([left_low * right_low, middle, left_high * right_high]))
    primes = _column(low.shape[-2])
    upper = ((high % primes << _DIGIT_BITS) + middle) % primes
    return np.asarray(((upper << _DIGIT_BITS) + low) % primes, np.uint32)


def _column(primes: int) -> Integers:
    return np.array(PRIMES[:primes], np.int64)[:, np.newaxis]


def parts_for(entry: float, squares: int) -> int:
    """Into how many parts the numbers of contributions of norm ``entry`` are cut, so that their sums are exact: one, or
    two of half the length.

    squares  the sum over ciphertexts of the square of the number of contributions with which each is multiplied. The
             errors of different ciphertexts are independent, those of one may all point the same way
    """
    return 1 if entry * math.sqrt(squares) <= _ONE_PART else 2


class RootValues:
    """Values of polynomials at one root of X^N + 1 modulo one prime, by integer arithmetic.

    Powers of the root are cut into digits of 12 bits: 2^13 products with numbers of 27 bits stay below 2^53, and are
    exact in any order.
    """

    def __init__(self, number: int, power: int) -> None:
        self.number, self._prime = number, PRIMES[number]
        root = _root(self._prime, power)
        powers = [1]
        for _ in range(DEGREE - 1):
            powers.append(powers[-1] * root % self._prime)
        whole = np.array(powers, np.int64)
        self._powers = np.stack([whole & 4095, whole >> _DIGIT_BITS], axis=1).astype(np.float64)

    @classmethod
    def random(cls, primes: int) -> RootValues:
        return cls(secrets.randbelow(primes), 2 * secrets.randbelow(DEGREE) + 1)

    def value(self, polynomials: Integers | Residues) -> Integers:
        """``[..., DEGREE]`` of integers to values ``[...]``."""
        short = polynomials.dtype == np.uint32 or not np.abs(polynomials).max(initial=0) >> 27
        numbers = polynomials if short else polynomials % self._prime
        low, high = np.moveaxis((numbers.astype(np.float64) @ self._powers).astype(np.int64), -1, 0)
        return np.asarray(((high % self._prime << _DIGIT_BITS) + low) % self._prime)

    def total(self, left: Integers, right: Integers) -> Integers:
        """``[rows, blocks]``: sum_u left_u right_u for values ``left [group, rows]`` and ``right [group, blocks]``."""
        products = left[:, :, np.newaxis] * right[:, np.newaxis] % self._prime
        return np.asarray(products.sum(axis=0) % self._prime)

    def agree(self, first: Integers, second: Integers) -> bool:
        return bool(((first - second) % self._prime == 0).all())


def _root(prime: int, power: int) -> int:
    """An odd power of a root of X^N + 1: another such root."""
    roots = (pow(base, (prime - 1) // (2 * DEGREE), prime) for base in range(2, 100))
    return pow(next(root for root in roots if pow(root, DEGREE, prime) == prime - 1), power, prime)


class SumOfProducts:
    """``sum_u c_u D_u`` for polynomials c_u modulo q (``rows`` of them each, as a ciphertext has two) and integer
    polynomials D_u in many blocks, group by group.

    entry    no number of a D_u is larger
    parts    see :func:`parts_for`
    workers  threads, each with chunks of blocks of its own
    """

    def __init__(self, rows: int, primes: int, blocks: int, entry: int, parts: int = 1, workers: int = 1) -> None:
        self._shape, self._blocks, self._workers = (rows, primes, 2), blocks, workers
        self._cut = -(-entry.bit_length() // parts) if parts > 1 else None
        self._chunks = [_Chunk(range(*bounds), rows * primes * 2) for bounds in _chunks(blocks * parts, workers)]
        self._point = RootValues.random(primes)
        self._values = np.zeros((rows, blocks * parts), np.int64)

    def prepared(self, ciphertexts: Sequence[Residues]) -> Spectra:
        """What :meth:`add` takes of ciphertexts ``[rows, primes, DEGREE]`` of a group: ``[HALF, group, digits]``."""
        found = np.empty((HALF, len(ciphertexts), math.prod(self._shape)), np.complex128)

        def one(first: int) -> None:
            some = prepared(np.stack(ciphertexts[first : first + _TOGETHER]))
            found[:, first : first + _TOGETHER] = some.reshape(len(some), -1, HALF).transpose(2, 0, 1)

        in_threads(one, range(0, len(ciphertexts), _TOGETHER), self._workers)
        return found

    def add(self, spectrum: Spectra, ciphertexts: Sequence[Residues], contributions: Integers) -> None:
        """Add the products of a group with its ``contributions [group, blocks, DEGREE]``; ``spectrum`` is
        ``prepared(ciphertexts)``."""
        if self._cut is not None:
            high = (contributions + (1 << (self._cut - 1))) >> self._cut
            contributions = np.concatenate([contributions - (high << self._cut), high], axis=1)
        left = self._point.value(np.stack([ciphertext[:, self._point.number] for ciphertext in ciphertexts]))

        def one(chunk: _Chunk) -> None:
            own = contributions[:, chunk.blocks.start : chunk.blocks.stop]
            chunk.add(spectrum, own)
            self._values[:, chunk.blocks.start : chunk.blocks.stop] += self._point.total(left, self._point.value(own))

        in_threads(one, self._chunks, self._workers)

    def block(self, number: int) -> Residues:
        """The sums of one block, ``[rows, primes, DEGREE]``."""
        found = self._rounded(number)
        if self._cut is None:
            return found
        primes = _column(self._shape[1])
        high = self._rounded(self._blocks + number).astype(np.int64)
        return np.asarray((found + (high * (1 << self._cut) % primes)) % primes, np.uint32)

    def _rounded(self, number: int) -> Residues:
        chunk = next(chunk for chunk in self._chunks if number in chunk.blocks)
        values = np.ascontiguousarray(chunk.sums[:, :, number - chunk.blocks.start].T).reshape(*self._shape, HALF)
        found = joined(polynomials(values))
        if not self._point.agree(self._point.value(found[:, self._point.number]), self._values[:, number]):
            raise Inexact("a sum of products differs from integer arithmetic")
        return found


class _Chunk:
    """Some blocks of a sum, with the memory that adding to them takes: it is used again for every group."""

    def __init__(self, blocks: range, digits: int) -> None:
        self.blocks = blocks
        self.sums = np.zeros((HALF, digits, len(blocks)), np.complex128)
        self._products = np.empty((_POINTS, digits, len(blocks)), np.complex128)
        self._folded = np.empty((0, 0, 0), np.complex128)

    def add(self, spectrum: Spectra, contributions: Integers) -> None:
        shape = (len(contributions), len(self.blocks), HALF)
        if self._folded.shape != shape:
            self._folded = _room(*shape[:2])
            self._values = np.empty((HALF, *shape[:2]), np.complex128)
        np.copyto(self._values, spectra(contributions, out=self._folded).transpose(2, 0, 1))
        for first in range(0, HALF, _POINTS):
            points = slice(first, first + _POINTS)
            np.matmul(spectrum[points].swapaxes(1, 2), self._values[points], out=self._products)
            self.sums[points] += self._products


def _chunks(blocks: int, workers: int) -> list[tuple[int, int]]:
    """Blocks in equal chunks of at most ``_BLOCKS``, as many as keep all workers busy."""
    count = min(blocks, workers * -(-blocks // (workers * _BLOCKS)))
    bounds = [blocks * k // count for k in range(count + 1)]
    return list(itertools.pairwise(bounds))


def in_threads(work: Callable[[Any], Any], pieces: Iterable[Any], workers: int) -> list[Any]:
    """The same work on all pieces; NumPy and SciPy let other threads run while they compute."""
    if workers == 1:
        return [work(piece) for piece in pieces]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, pieces))
