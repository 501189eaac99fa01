"""Exact samples of the discrete Gaussian, at any scale, and exact coins of probability exp(-x).

The discrete Gaussian of parameter sigma has Pr[x] proportional to exp(-x^2 / (2 sigma^2)) on the integers (Canonne,
Kamath, Steinke 2020, "The Discrete Gaussian for Differential Privacy"). Samples here have exactly that law, given
uniform words: no rounding enters it. How:

1. The integers are cut into blocks of ``width`` = 2^k (with sigma/32 < width <= sigma/16, and 1 for sigma < 32): on the
   positive side J*width + {0 .. width-1}, on the negative side -(J*width + 1 + {0 .. width-1}), J >= 0. In each of them
   the point m next to zero has the largest weight.
2. A block is drawn with probability proportional to exp(-m^2 / (2 sigma^2)), and an offset o uniform in 0 .. width-1.
3. x = ±(m + o) is kept with probability exp(-o (2 m + o) / (2 sigma^2)), its weight over that of m: about 24 times of
   25. What is kept has the law wanted (rejection sampling).

Steps 2 and 3 compare a uniform number U with an irrational one. U is read lazily: its first 64 bits decide, unless they
fall into the interval in which the irrational number is only known to lie. For the blocks that interval is one unit of
2^-64, from integer arithmetic; for the coins it is 2^-40 to both sides of a floating-point value whose error is below
2^-46 (:func:`_coins`). In the rest, less than one sample in 10^11, U gets more bits and the irrational number more
digits, by integer arithmetic, until they differ. The same code serves sigma = 1/2 and sigma = 2^2900: only the first 64
bits of a huge offset enter the floating-point value.

The time that a sample takes depends on how often a proposal was rejected, as with any rejection sampler: a party that
can time single samples learns that much.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from tacit.privacy.invalid import require
from tacit.privacy.randomness import Stream

Number = int | float | Fraction

_WORD = 64
_MARGIN = 2.0**-40
# up to offsets of this many bits every sample fits an int64: |x| < 2^9 blocks of 2^54
_SMALL_BITS = 54
# samples drawn at once: their tables fit into the processor's cache
_CHUNK = 1 << 18


def discrete_gaussian(sigma: Number, count: int, stream: Stream) -> npt.NDArray[np.int64]:
    """``count`` independent samples of parameter ``sigma`` (a float counts as the binary fraction that it is).

    ValueError where samples might not fit 64 bits (sigma >= 2^59): there is :func:`discrete_gaussian_integers`.
    """
    exact = _scale(sigma)
    if exact == 0:
        return np.zeros(count, dtype=np.int64)
    table = _table(exact)
    problem = "samples of this sigma may not fit 64 bits: use discrete_gaussian_integers"
    require("out-of-range", "sigma", table.bits <= _SMALL_BITS, problem)
    samples = np.empty(count, dtype=np.int64)
    done = 0
    while done < count:
        some = _kept(table, min(count - done, _CHUNK), stream)
        samples[done : done + some.size] = some
        done += some.size
    return samples


def _kept(table: _Table, wanted: int, stream: Stream) -> npt.NDArray[np.int64]:
    """At most ``wanted`` samples: of a few more proposals, those that are kept."""
    proposals = _propose(table, wanted, stream)
    chosen = np.flatnonzero(proposals.kept)[:wanted]
    blocks = proposals.blocks[chosen]
    magnitude = ((blocks >> 1) << table.bits) + (blocks & 1)
    if table.bits:
        magnitude += (proposals.offsets[chosen] >> np.uint64(_WORD - table.bits)).astype(np.int64)
    return np.where(blocks & 1, -magnitude, magnitude)


def discrete_gaussian_integers(sigma: Number, count: int, stream: Stream) -> list[int]:
    """``count`` independent samples as Python integers: any ``sigma``, for example an int of thousands of bits."""
    exact = _scale(sigma)
    if exact == 0:
        return [0] * count
    table = _table(exact)
    if table.bits <= _SMALL_BITS:
        return [int(sample) for sample in discrete_gaussian(exact, count, stream)]
    samples: list[int] = []
    while len(samples) < count:
        proposals = _propose(table, count - len(samples), stream)
        for index in np.flatnonzero(proposals.kept)[: count - len(samples)]:
            block = int(proposals.blocks[index])
            magnitude = ((block >> 1) << table.bits) + (block & 1) + proposals.offset(table, int(index))
            samples.append(-magnitude if block & 1 else magnitude)
    return samples


def exp_coins(exponents: npt.NDArray[np.float64], stream: Stream) -> npt.NDArray[np.bool_]:
    """Independent coins, the i-th True with probability exactly exp(-exponents[i]) (``exponents`` >= 0, as floats)."""
    words = stream.words(exponents.size)
    heads, open_ = _coins(words, exponents)
    for index in np.flatnonzero(open_):
        heads[index] = _exact_coin(int(words[index]), *float(exponents[index]).as_integer_ratio(), stream)
    return heads


@dataclass(frozen=True)
class _Table:
    """The blocks of one sigma: block 2 J is the positive one at J * 2^bits, block 2 J + 1 the negative one."""

    sigma: Fraction
    bits: int
    ratio: float  # width / sigma
    thresholds: npt.NDArray[np.uint64]  # floor(2^64 Pr[block <= i]), up to the first that is 2^64 - 1


@dataclass(frozen=True)
class _Proposals:
    blocks: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.uint64]  # the first 64 bits of each offset, zero beyond its last bit
    rest: npt.NDArray[np.uint64]  # [proposals, words]: the bits of offsets that are longer
    kept: npt.NDArray[np.bool_]

    def offset(self, table: _Table, index: int) -> int:
        first = int(self.offsets[index])
        if table.bits <= _WORD:
            return first >> (_WORD - table.bits)
        rest = int.from_bytes(self.rest[index].tobytes(), "little")
        surplus = _WORD * int(self.rest.shape[1]) - (table.bits - _WORD)
        return (first << (table.bits - _WORD)) | (rest >> surplus)


def _propose(table: _Table, wanted: int, stream: Stream) -> _Proposals:
    """Steps 1 to 3, a little more often than is likely needed for ``wanted`` samples."""
    count = wanted + (wanted // 16 + 16 if table.bits else 0)
    blocks = _blocks(table, count, stream)
    nothing = np.zeros((count, 0), dtype=np.uint64)
    if table.bits == 0:
        return _Proposals(blocks, np.zeros(count, dtype=np.uint64), nothing, np.ones(count, dtype=np.bool_))
    offsets = stream.words(count)
    if table.bits < _WORD:
        offsets = offsets & np.uint64(2**_WORD - 2 ** (_WORD - table.bits))
    longer = max(0, -(-(table.bits - _WORD) // _WORD))
    rest = stream.words(count * longer).reshape(count, longer) if longer else nothing
    # o (2 m + o) / (2 sigma^2) with o = fraction * width and m = J * width + sign
    fraction = (offsets >> np.uint64(11)).astype(np.float64) * 2.0**-53
    nearest = 2.0 * (blocks >> 1) + math.ldexp(2.0, -table.bits) * (blocks & 1)
    exponents = 0.5 * table.ratio**2 * fraction * (nearest + fraction)
    words = stream.words(count)
    heads, open_ = _coins(words, exponents)
    proposals = _Proposals(blocks, offsets, rest, heads)
    for index in np.flatnonzero(open_):
        heads[index] = _exact_coin(int(words[index]), *_exponent(table, proposals, int(index)), stream)
    return proposals


def _exponent(table: _Table, proposals: _Proposals, index: int) -> tuple[int, int]:
    """o (2 m + o) / (2 sigma^2) as a fraction."""
    block, offset = int(proposals.blocks[index]), proposals.offset(table, index)
    nearest = ((block >> 1) << table.bits) + (block & 1)
    squared = table.sigma.numerator**2, table.sigma.denominator**2
    return offset * (2 * nearest + offset) * squared[1], 2 * squared[0]


def _coins(
    words: npt.NDArray[np.uint64], exponents: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Whether U < exp(-exponent) where U starts with the bits of ``words``; and which of them these bits leave open.

    Errors: U is cut to 53 bits (2^-53). The exponents of :func:`_propose` are at most 1 and off by less than 2^-47 (the
    fraction is cut to 2^-53 and multiplied by at most 2^10 * 2^-9, and four roundings); ``exp`` is right to a few units
    in the last place. Together that is below 2^-46 where values within 2^-40 are left open.
    """
    difference = np.exp(-exponents) - (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return difference > 0, np.abs(difference) <= _MARGIN


def _exact_coin(word: int, numerator: int, denominator: int, stream: Stream) -> bool:
    """U < exp(-numerator/denominator) for the U that starts with ``word``; further bits from the stream as needed."""
    bits = _WORD
    while True:
        low, high = _exp_bounds(numerator, denominator, bits)
        if word + 1 <= low:
            return True
        if word >= high:
            return False
        word, bits = (word << _WORD) | int(stream.words(1)[0]), bits + _WORD


def _blocks(table: _Table, count: int, stream: Stream) -> npt.NDArray[np.int64]:
    words = stream.words(count)
    blocks = np.searchsorted(table.thresholds, words, side="left")
    for index in np.flatnonzero(table.thresholds[np.minimum(blocks, table.thresholds.size - 1)] == words):
        blocks[index] = _exact_block(table, int(words[index]), stream)
    return blocks


def _exact_block(table: _Table, word: int, stream: Stream) -> int:
    """The block of the U that starts with ``word``: cumulative probabilities to as many bits as it takes."""
    bits = _WORD
    while True:
        lows, highs, total_low, total_high = _cumulative(table.sigma, table.bits, bits + _WORD)
        for block, (low, high) in enumerate(zip(lows, highs, strict=True)):
            if (word + 1) * total_high <= low << bits:
                return block
            if word * total_low < high << bits:
                break
        word, bits = (word << _WORD) | int(stream.words(1)[0]), bits + _WORD


@functools.lru_cache(maxsize=32)
def _table(sigma: Fraction) -> _Table:
    bits = max(0, (sigma.numerator // (16 * sigma.denominator)).bit_length() - 1)
    precision, top = 2 * _WORD, 2**_WORD - 1
    while True:
        lows, highs, total_low, total_high = _cumulative(sigma, bits, precision)
        floors = [(low << _WORD) // total_high for low in lows]
        if floors == [min(top, (high << _WORD) // total_low) for high in highs]:  # every probability is below 1
            break
        precision += _WORD
    thresholds = np.array(floors[: floors.index(top) + 1], dtype=np.uint64)
    return _Table(sigma, bits, _ratio(sigma, bits), thresholds)


def _ratio(sigma: Fraction, bits: int) -> float:
    """Width of a block over sigma, no more than a float can square: such a sigma has blocks of single points."""
    return float(min(Fraction(2**bits) / sigma, Fraction(2**500)))


def _cumulative(sigma: Fraction, bits: int, precision: int) -> tuple[list[int], list[int], int, int]:
    """Bounds of the sums of block weights (times 2^precision), after each block and over all infinitely many blocks.

    Blocks are listed up to a J0 with J0 width / sigma >= reach = sqrt(2 ln 2 (precision + 16)) > 14. From there on the
    weights fall at least by the factor exp(-J0 width^2 / sigma^2) < exp(-14/32) < 3/4 from J to J + 1, so that their
    sum, both signs together, is below 8 times the first of them, at most exp(-reach^2 / 2) = 2^-(precision + 16).
    """
    numerator, denominator = sigma.denominator**2, 2 * sigma.numerator**2
    reach = math.sqrt(2 * math.log(2) * (precision + 16))
    last = math.ceil(reach / _ratio(sigma, bits)) + 1
    working = precision + 32
    lows, highs = [], []
    low = high = 0
    for block in range(2 * last):
        nearest = ((block >> 1) << bits) + (block & 1)
        bounds = _exp_bounds(nearest * nearest * numerator, denominator, working)
        low, high = low + bounds[0], high + bounds[1]
        lows.append(low >> 32)
        highs.append((high >> 32) + 1)
    return lows, highs, lows[-1], highs[-1] + 1


def _exp_bounds(numerator: int, denominator: int, bits: int) -> tuple[int, int]:
    """Integers around 2^bits exp(-numerator/denominator), for a fraction >= 0, a few units of the last bit apart.

    The fraction is halved until it is below 1/2, its exponential taken by the Taylor series in fixed point, and squared
    as often. Every term, and every squaring, rounds by at most one unit of the working precision.
    """
    if numerator == 0:
        return 1 << bits, 1 << bits
    if numerator > (bits + 8) * denominator:  # exp(-x) 2^bits < e^-8
        return 0, 1
    halvings = (2 * numerator // denominator).bit_length()
    working = bits + 2 * halvings + 32
    x = (numerator << (working - halvings)) // denominator
    term = total = 1 << working
    order = 0
    while term:
        order += 1
        term = (term * x >> working) // order
        total += -term if order & 1 else term
    error = 2 * order + 2
    for _ in range(halvings):
        total = total * total >> working
        error = 2 * error + 2
    shift = working - bits
    return max(0, (total - error) >> shift), ((total + error) >> shift) + 1


def _scale(sigma: Number) -> Fraction:
    require("out-of-range", "sigma", 0 <= sigma < math.inf, "must be finite and not negative")
    return Fraction(sigma)
