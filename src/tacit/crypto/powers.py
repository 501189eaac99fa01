"""Products of many powers modulo m: tables for bases that are used again and again.

    result[o] = product over b of bases[b] ^ exponents[o, b]    (mod m)

is what a silo computes in the private weighting protocol: a base per person, an output per parameter. Taken one by one,
every power costs an exponentiation. Here the bases are fixed and the exponents short, so that a few multiplications are
left of each. Exponents are written in signed digits -2^(w-1) .. 2^(w-1) of w bits (a negative digit divides, and all
divisions of the call share one inversion), and the digits are used in one of two ways, whichever takes fewer
multiplications:

- tables (Brickell, Gordon, McCurley, Wilson 1992; Straus 1964): for each base all powers base^(j 2^(w i)), then one
  multiplication per digit. Best for many outputs; one base's table is in memory at a time.
- buckets (Pippenger 1976): for each output, bases are multiplied into the bucket of their digit, and the buckets are
  joined with two multiplications each. Best for many bases.

Run time depends on the exponents (zero digits cost nothing): who can time these functions learns something about them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from gmpy2 import invert, mpz

# digits of 14 bits fit an int16 with their carry
_WIDEST = 15

Exponents = npt.NDArray[np.int64] | Sequence[Sequence[int]]


def products_of_powers(bases: Sequence[mpz], exponents: Exponents, modulus: mpz) -> list[mpz]:
    """For each row of ``exponents`` [outputs, bases], the product of the bases raised to it.

    Exponents may be negative and, as lists of integers, of any length. Bases must have inverses. What is left of a row
    of zeros, or without any base, is 1.
    """
    integers = _Integers(exponents, len(bases))
    size = integers.bits, integers.outputs, len(bases)
    tables = min(range(2, _WIDEST), key=lambda window: _table_cost(window, *size))
    buckets = min(range(2, _WIDEST), key=lambda window: _bucket_cost(window, *size))
    if _table_cost(tables, *size) <= _bucket_cost(buckets, *size):
        return _by_tables(bases, integers.digits(tables), tables, modulus)
    return _by_buckets(bases, integers.digits(buckets), buckets, modulus)


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


def power_table(base: mpz, size: int, modulus: mpz) -> list[mpz]:
    """base^0, base^1, …, base^size."""
    table = [mpz(1)]
    for _ in range(size):
        table.append(table[-1] * base % modulus)
    return table


class _Integers:
    """A matrix [outputs, bases] of signed integers of any length: signs, and magnitudes in words of 64 bits."""

    def __init__(self, exponents: Exponents, bases: int) -> None:
        if isinstance(exponents, np.ndarray) and exponents.dtype != object:
            matrix = exponents.astype(np.int64, casting="safe")
            if matrix.ndim != 2 or matrix.shape[1] != bases:
                raise ValueError(f"exponents of shape {matrix.shape} for {bases} bases")
            self.negative = matrix < 0
            # the magnitude of -2^63 overflows to itself, which is right as an unsigned number
            self._words = np.abs(matrix).view(np.uint64)[np.newaxis]
            self.bits = int(self._words.max(initial=0)).bit_length()
        else:
            rows = [[int(exponent) for exponent in row] for row in exponents]
            if any(len(row) != bases for row in rows):
                raise ValueError(f"a row of exponents that does not have {bases} of them")
            shape = (len(rows), bases)
            self.negative = np.array([e < 0 for row in rows for e in row], dtype=np.bool_).reshape(shape)
            self.bits = max((e.bit_length() for row in rows for e in row), default=0)
            words = max(1, -(-self.bits // 64))
            joined = b"".join(abs(e).to_bytes(8 * words, "little") for row in rows for e in row)
            self._words = np.moveaxis(np.frombuffer(joined, dtype="<u8").reshape(*shape, words), -1, 0)
        self.outputs = self.negative.shape[0]

    def digits(self, window: int) -> npt.NDArray[np.int16]:
        """[digits, outputs, bases]: sum over i of digits[i] 2^(window i) is the exponent; each is at most 2^(w-1)."""
        count = _digit_count(window, self.bits)
        digits = np.zeros((count, *self.negative.shape), dtype=np.int16)
        carry = np.zeros(self.negative.shape, dtype=np.int16)
        for place in range(count):
            digit = self._window(place * window, window) + carry
            carry = (digit > 1 << (window - 1)).astype(np.int16)
            digits[place] = digit - (carry << window)
        return np.where(self.negative, -digits, digits)

    def _window(self, start: int, window: int) -> npt.NDArray[np.int16]:
        """Bits ``start`` to ``start + window`` of every magnitude."""
        word, offset = divmod(start, 64)
        bits = np.zeros(self.negative.shape, dtype=np.uint64)
        if word < len(self._words):
            bits |= self._words[word] >> np.uint64(offset)
        if offset + window > 64 and word + 1 < len(self._words):
            bits |= self._words[word + 1] << np.uint64(64 - offset)
        return (bits & np.uint64((1 << window) - 1)).astype(np.int16)


def _digit_count(window: int, bits: int) -> int:
    """Enough for ``bits`` bits and the carry of the last digit: the top digit must not exceed 2^(w-1)."""
    return bits // window + 1


def _table_cost(window: int, bits: int, outputs: int, bases: int) -> int:
    digits = _digit_count(window, bits)
    return digits * bases * ((1 << (window - 1)) + outputs)


def _bucket_cost(window: int, bits: int, outputs: int, bases: int) -> int:
    digits = _digit_count(window, bits)
    return bases * (bits + 3 * digits) + outputs * (digits * bases + (2 << (window - 1)))


def _by_tables(bases: Sequence[mpz], digits: npt.NDArray[np.int16], window: int, modulus: mpz) -> list[mpz]:
    outputs = digits.shape[1]
    above, below = [mpz(1)] * outputs, [mpz(1)] * outputs
    for index, base in enumerate(bases):
        for row in digits[:, :, index].tolist():
            table = power_table(base, 1 << (window - 1), modulus)
            for output, digit in enumerate(row):
                if digit > 0:
                    above[output] = above[output] * table[digit] % modulus
                elif digit < 0:
                    below[output] = below[output] * table[-digit] % modulus
            base = table[-1] * table[-1] % modulus
    return _divided(above, below, modulus)


def _by_buckets(bases: Sequence[mpz], digits: npt.NDArray[np.int16], window: int, modulus: mpz) -> list[mpz]:
    shifted = [list(bases)]
    for _ in range(digits.shape[0] - 1):
        row = shifted[-1]
        for _ in range(window):
            row = [base * base % modulus for base in row]
        shifted.append(row)
    flat = [base for row in shifted for base in row]
    inverted = inverses(flat, modulus)
    size = 1 << (window - 1)
    results = []
    for row in digits.transpose(1, 0, 2).reshape(digits.shape[1], len(flat)).tolist():
        buckets: list[mpz | None] = [None] * (size + 1)
        for place, digit in enumerate(row):
            if digit:
                factor = flat[place] if digit > 0 else inverted[place]
                held = buckets[abs(digit)]
                buckets[abs(digit)] = factor if held is None else held * factor % modulus
        # product of bucket[j]^j: running products from the largest digit down
        running = total = mpz(1)
        for held in reversed(buckets[1:]):
            if held is not None:
                running = running * held % modulus
            total = total * running % modulus
        results.append(total)
    return results


def _divided(above: Sequence[mpz], below: Sequence[mpz], modulus: mpz) -> list[mpz]:
    if all(value == 1 for value in below):
        return list(above)
    inverted = inverses(below, modulus)
    return [a * b % modulus for a, b in zip(above, inverted, strict=True)]
