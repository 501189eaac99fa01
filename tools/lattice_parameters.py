"""Recompute what the encryption of private weighting rests on, apart from the code that chooses its parameters.

    python tools/lattice_parameters.py [--people 1000 --records 20 --silos 5 --numbers 1000000]

Prints, for one plan (by default for the sizes of the documentation): the modulus; how hard ring-LWE is, by the table of
HomomorphicEncryption.org and by an estimate of the primal attack; how far flooding is from hiding the noise; and how
far the worst case is from decrypting a sum wrongly. Exits with 1 where one of them is not as it must be.

The estimate is that of lattice reduction with BKZ of block size b for the embedding of Bai and Galbraith: it succeeds
where sigma sqrt(b) <= delta(b)^(2 b - d - 1) volume^(1/d), and costs 2^(0.292 b + 16.4) for each of 8 d calls. It knows
no dual or hybrid attacks: it is a check of the table, not a replacement of it.
"""

from __future__ import annotations

import argparse
import math
import sys
from fractions import Fraction

from tacit.families.weighting.lattice import STATISTICAL, Lattice, Load, fitting
from tacit.families.weighting.ring import DEGREE, PRIMES

# log2 q for a ternary secret and 128 bits, by degree (HomomorphicEncryption.org, 2018, table 1)
STANDARD = {4096: 109, 8192: 218, 16384: 438}
ERROR = 10.5  # variance of a centred binomial of 2 x 21 coins
SECRET = 2 / 3  # variance of a ternary number

SIZES = [  # people, records of one in a silo, silos, numbers, norm of a contribution in steps
    (1000, 20, 5, 4_000, 10**8),
    (1000, 20, 5, 100_000, 10**8),
    (1000, 20, 5, 1_000_000, 10**8),
    (10_000, 20, 5, 1_000_000, 10**8),
    (10_000, 2_000, 4, 1_000_000, 10**8),
    (4_000, 44, 186, 200, 10**8),
    (100_000, 10, 5, 1_000, 10**8),
]


def root_hermite(block: int) -> float:
    """delta of BKZ with this block size (Chen 2013)."""
    return ((math.pi * block) ** (1 / block) * block / (2 * math.pi * math.e)) ** (1 / (2 * (block - 1)))


def primal_bits(degree: int, log_q: float) -> float:
    """log2 of the cost of the cheapest primal attack, over the number of samples."""
    scale = math.log2(math.sqrt(ERROR / SECRET))  # the secret is scaled to the size of the errors

    def succeeds(block: int, samples: int) -> bool:
        size = degree + samples + 1
        volume = samples * log_q + degree * scale
        left = 0.5 * math.log2(ERROR) + 0.5 * math.log2(block)
        return left <= (2 * block - size - 1) * math.log2(root_hermite(block)) + volume / size

    found = math.inf
    for samples in range(degree // 4, 2 * degree, degree // 16):
        low, high = 60, 4 * degree
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if succeeds(middle, samples) else (middle + 1, high)
        found = min(found, 0.292 * low + 16.4 + math.log2(8 * (degree + samples + 1)))
    return found


def checked(load: Load, made: Lattice) -> tuple[list[str], bool]:
    """One line each of what must hold, and whether it does; in exact arithmetic where it is about numbers."""
    modulus = math.prod(PRIMES[: made.primes])
    dropped, kept = math.prod(PRIMES[made.kept : made.primes]), math.prod(PRIMES[: made.kept])
    numbers = load.blocks * DEGREE
    # the errors of ciphertexts: no value of an error at a root of X^N + 1 is above 11 standard deviations
    spectrum = math.isqrt(math.ceil(121 * Fraction(21, 2) * DEGREE)) + 1
    length = load.people * load.records * spectrum * load.entry
    zero = 21 * (2 * DEGREE + 1)
    moved = (math.isqrt(numbers) + 1) * length + numbers * zero
    distance = math.log2(moved) - made.flood_bits - 1
    worst = Fraction(load.silos * (2**made.flood_bits + length + zero), dropped)
    worst += load.silos * Fraction(DEGREE + 1, 2) * (1 + Fraction(1, 2**22))
    half = Fraction(2**made.scale_bits, 2)
    largest = load.people * load.entry * 2**24 + load.reach
    bits = primal_bits(DEGREE, math.log2(modulus))
    table = STANDARD[DEGREE]
    rows = [
        (f"modulus of {math.log2(modulus):.1f} bits, {table} are allowed for 128 bits", math.log2(modulus) <= table),
        (f"primal attack: 2^{bits:.1f}", bits >= 128),
        (f"flooding: 2^{distance:.1f} from ideal for one message", distance <= -STATISTICAL),
        (f"worst error over half a step: {float(worst / half):.3f}", worst < half),
        (f"largest sum over the modulus: {float(Fraction((2 * largest + 1) * 2**made.scale_bits, kept)):.2g}",
         (2 * largest + 1) * 2**made.scale_bits < kept),
    ]  # fmt: skip
    return [f"  {'ok ' if good else 'NOT'} {text}" for text, good in rows], all(good for _, good in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, kind in (("people", int), ("records", int), ("silos", int), ("numbers", int)):
        parser.add_argument(f"--{name}", type=kind)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--precision", type=float, default=1e-8)
    given = parser.parse_args()
    entry = math.ceil(given.clip / given.precision)
    own = (given.people or 1000, given.records or 20, given.silos or 5, given.numbers or 1_000_000, entry)
    named = any((given.people, given.records, given.silos, given.numbers))
    fine = True
    for people, records, silos, numbers, norm in [own] if named else SIZES:
        load = Load(people, records, silos, -(-numbers // DEGREE), norm, 16 * math.isqrt(silos) * 5 * norm * 2**24)
        made = fitting(load)
        print(f"{people:,} people, {records} records in each of {silos} silos, {numbers:,} numbers of norm {norm:,}:")
        if made is None:
            print("  does not fit: a plan of this size is refused")
            continue
        rows, good = checked(load, made)
        print(f"  {made.primes} primes, {made.kept} kept, {made.number_bytes} bytes a number", *rows, sep="\n")
        fine = fine and good
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
