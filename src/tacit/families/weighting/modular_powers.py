"""Products of many powers modulo n^2: tables for bases that are used repeatedly.

    result[o] = product over b of bases[b] ^ exponents[o, b]    (mod n^2)

is what a silo computes in the private weighting protocol: a base per person, an output per parameter. Taken one by one,
every power costs an exponentiation. Here the bases are fixed and the exponents short, so that a few multiplications are
left of each:

- Exponents are written in signed digits -2^(w-1) .. 2^(w-1) of w bits. For each base and digit place there is a table
  of powers base^(j 2^(w i)), and every digit costs one multiplication by an entry (Brickell, Gordon, McCurley, Wilson
  1992). A negative digit divides; all divisions of a call share one inversion. One table is in memory at a time.
- An element x of Z_{n^2}^* is a (1 + t n) with a = x mod n below n, its *part*, and t in Z_n, its *tilt*. In a product
  tilts only add up: (1 + s n) (1 + t n) = 1 + (s + t) n. Parts are half as long as elements, so that the product of two
  needs no reduction, and there is one multiplication modulo n^2 for two digits. Tables are made modulo n: if
  a b = q n + r, the product of a (1 + s n) and b (1 + t n) is r (1 + (s + t + q / r) n), and 1 / r is the product of
  the inverses of a and b, which are kept along the way.

Run time depends on the exponents (zero digits cost nothing): who can time these functions learns something about them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from gmpy2 import f_divmod, invert, mpz, powmod_base_list

from tacit.crypto.crypto_errors import Misused
from tacit.crypto.worker_process import shared

# digits of 14 bits fit an int16 with their carry
WIDEST = 14
# below this count, starting a process takes longer than the work
_WORTH_A_PROCESS = 20_000


def shared_products(
    bases: Sequence[mpz], numbers: npt.NDArray[np.int64], slots: int, width: int, n: mpz, workers: int = 1
) -> list[mpz]:
    """:func:`products_of_packed_powers`, the bases shared between this process and ``workers - 1`` others."""
    pieces = max(1, min(workers, len(bases), numbers.size // _WORTH_A_PROCESS))
    work = [
        (bases[piece::pieces], np.ascontiguousarray(numbers[:, piece::pieces]), slots, width, n)
        for piece in range(pieces)
    ]
    modulus = mpz(n) ** 2
    total, *others = shared(products_of_packed_powers, work)
    for result in others:
        total = [a * b % modulus for a, b in zip(total, result, strict=True)]
    return total


def products_of_packed_powers(
    bases: Sequence[mpz], numbers: npt.NDArray[np.int64], slots: int, width: int, n: mpz
) -> list[mpz]:
    """For each output o, the product modulo n^2 of the bases (which must have inverses) raised to exponents that pack
    ``slots`` of the ``numbers`` [outputs * slots, bases]:

        exponents[o, b] = sum over k of numbers[o * slots + k, b] 2^(width k)

    What is left of a row of zeros, or without any base, is 1. Slots are wider than their numbers, so that the sums of
    all bases' numbers times contents fit: their digits lie apart, and every number costs what it costs alone.
    """
    if numbers.ndim != 2 or numbers.shape[1] != len(bases) or numbers.dtype != np.int64:
        problem = f"numbers {numbers.dtype} of shape {numbers.shape} for {len(bases)} bases"
        raise Misused("wrong-length", "numbers", problem)
    bits = int(np.abs(numbers).view(np.uint64).max(initial=0)).bit_length()
    if slots < 1 or len(numbers) % slots or bits + WIDEST > width:
        problem = f"{len(numbers)} numbers of {bits} bits for slots of {width} bits, {slots} each"
        raise Misused("mismatch", "slots", problem)
    outputs = len(numbers) // slots
    window = min(range(2, WIDEST + 1), key=lambda w: (bits // w + 1) * (2**w + outputs))
    digits = signed_digits(numbers, window, bits)  # [digits, outputs * slots, bases]
    apart = np.moveaxis(digits.reshape(len(digits), outputs, slots, len(bases)), 2, 0)
    positions = [width * slot + window * place for slot in range(slots) for place in range(len(digits))]
    return _products(bases, apart.reshape(len(positions), outputs, len(bases)), positions, window, n)


def _products(
    bases: Sequence[mpz], digits: npt.NDArray[np.int16], positions: Sequence[int], window: int, n: mpz
) -> list[mpz]:
    """The products of base^(digit 2^position), for ``digits`` [positions, outputs, bases]."""
    outputs = digits.shape[1]
    above, below = _Products(outputs, n), _Products(outputs, n)
    for index, base in enumerate(bases):
        rows = digits[:, :, index].tolist()
        for row, (parts, tilts) in zip(rows, tables_at(base, window, positions, n), strict=True):
            for output, digit in enumerate(row):
                if digit > 0:
                    above.multiply(output, parts[digit], tilts[digit])
                elif digit < 0:
                    below.multiply(output, parts[-digit], tilts[-digit])
    return quotients(above.values(), below.values(), n**2)


def power_tables(base: mpz, window: int, places: Sequence[int], n: mpz) -> Iterator[tuple[list[mpz], list[mpz]]]:
    """For each digit place i, in rising order, the parts and the tilts of base^(j 2^(window i)), j = 0 .. 2^(w-1)."""
    return tables_at(base, window, [window * place for place in places], n)


def tables_at(base: mpz, window: int, positions: Sequence[int], n: mpz) -> Iterator[tuple[list[mpz], list[mpz]]]:
    """The same for digits that begin at any bits, at least a window apart from each other."""
    step, shift = _Split.of(base, n), 0
    for position in positions:
        for _ in range(position - shift):
            step = step.times(step, n)
        powers = [_Split(mpz(1), mpz(1), mpz(0)), step]
        for _ in range(2 ** (window - 1) - 1):
            powers.append(powers[-1].times(step, n))
        yield [power.part for power in powers], [power.tilt for power in powers]
        step, shift = powers[-1], position + window - 1


def powers(bases: Sequence[mpz], exponents: Sequence[mpz], modulus: mpz, workers: int = 1) -> list[mpz]:
    """Each base to its exponent, by ``workers`` threads (gmpy2 lets other threads run during ``powmod_base_list``)."""

    def power(base: mpz, exponent: mpz) -> mpz:
        return powmod_base_list([base], exponent, modulus)[0]

    if workers <= 1:
        return list(map(power, bases, exponents))
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(power, bases, exponents))


def quotients(above: Sequence[mpz], below: Sequence[mpz], modulus: mpz) -> list[mpz]:
    """above / below, element by element."""
    if all(value == 1 for value in below):
        return list(above)
    return [a * b % modulus for a, b in zip(above, inverses(below, modulus), strict=True)]


def inverses(values: Sequence[mpz], modulus: mpz) -> list[mpz]:
    """The inverses of many values with one inversion and three multiplications each (Montgomery 1987)."""
    running, partial = mpz(1), []
    for value in values:
        partial.append(running)
        running = running * value % modulus
    inverse = invert(running, modulus)
    result = [mpz(0)] * len(values)
    for place in range(len(values) - 1, -1, -1):
        result[place] = inverse * partial[place] % modulus
        inverse = inverse * values[place] % modulus
    return result


def product(values: Sequence[mpz], modulus: mpz) -> mpz:
    """The product of all values, 1 of none."""
    total = mpz(1)
    for value in values:
        total = total * value % modulus
    return total


class _Split(NamedTuple):
    """An element part * (1 + tilt n) of Z_{n^2}^*, with the inverse of its part modulo n."""

    part: mpz
    inverse: mpz
    tilt: mpz

    @classmethod
    def of(cls, element: mpz, n: mpz) -> _Split:
        quotient, part = f_divmod(element, n)
        inverse = invert(part, n)
        return cls(part, inverse, quotient * inverse % n)

    def times(self, other: _Split, n: mpz) -> _Split:
        quotient, part = f_divmod(self.part * other.part, n)
        inverse = self.inverse * other.inverse % n
        return _Split(part, inverse, (self.tilt + other.tilt + quotient * inverse) % n)


class _Products:
    """Running products modulo n^2: a part waits for a second one, tilts are summed to the end."""

    def __init__(self, count: int, n: mpz) -> None:
        self._n, self._modulus = n, n**2
        self._values, self._tilts = [mpz(1)] * count, [mpz(0)] * count
        self._waiting: list[mpz | None] = [None] * count

    def multiply(self, place: int, part: mpz, tilt: mpz) -> None:
        self._tilts[place] += tilt
        waiting = self._waiting[place]
        if waiting is None:
            self._waiting[place] = part
        else:
            self._waiting[place] = None
            self._values[place] = self._values[place] * (waiting * part) % self._modulus

    def values(self) -> list[mpz]:
        n, modulus = self._n, self._modulus
        return [
            value * ((1 + tilt % n * n) * (1 if waiting is None else waiting) % modulus) % modulus
            for value, tilt, waiting in zip(self._values, self._tilts, self._waiting, strict=True)
        ]


def signed_digits(numbers: npt.NDArray[np.int64], window: int, bits: int) -> npt.NDArray[np.int16]:
    """[digits, …] of ``numbers`` with magnitudes of ``bits`` bits: sum over i of digits[i] 2^(window i) is the
    number, each is at most 2^(w-1). There is one more digit than the bits need, for the last carry."""
    # the magnitude of -2^63 overflows to itself, which is right as an unsigned number
    rest = np.abs(numbers).view(np.uint64)
    digits = np.zeros((bits // window + 1, *numbers.shape), np.int16)
    carry = np.zeros(numbers.shape, np.int16)
    for place in range(len(digits)):
        digit = (rest & np.uint64((1 << window) - 1)).astype(np.int16) + carry
        carry = (digit > 1 << (window - 1)).astype(np.int16)
        digits[place] = digit - (carry << window)
        rest = rest >> np.uint64(window)
    return np.where(numbers < 0, -digits, digits)
