"""What all parties of a weighted sum agree on before it begins, and whether it fits the modulus; all of it public."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from tacit.crypto import Refused
from tacit.errors import UserError
from tacit.exchange.post import Terms
from tacit.exchange.sums import LEAST_SHARE, REACH, Grid, SumFacts
from tacit.families.weighting.modular_powers import WIDEST
from tacit.privacy.accounting.gaussian import smallest_integer

PROTOCOL = "tacit-weighted-1"
# setup, once: what silos send
KEYS, SEED, COUNTS = "keys", "seed", "counts"
# a round: what silos send; the first two only where sampling is hidden
READY, REQUESTS, SUMS = "ready", "requests", "sums"
# of the rate at which people are sampled, where sampling is hidden
MOST_SLOTS = 64
# entries of contributions are integers of 64 bits with a sign
_ENTRY_BITS = 63
# bits of the modulus that a plaintext may not use: its sign, and one to spare
_SPARE_BITS = 2
# more bytes than go around one ciphertext (lengths, a tag), and into what is said of each silo (keys, a sealed seed)
_AROUND, _PER_SILO = 64, 2048
# of the costs below, in multiplications modulo n^2: see :func:`packing`
_SQUARING, _DECRYPTION, _BLINDING = 1.5, 1000, 250


@dataclass(frozen=True)
class PaillierTerms(Terms):
    """The terms of a weighted sum.

    run        a name that no other run has
    silos      who takes part, by names of the roster; the first one deals the common seed and adds the phantom records
    people     slots for people
    numbers    how many numbers a contribution has
    most       N_max: no slot has more records in all, the phantom record included
    entry      no entry of a contribution is larger, in steps of the grid
    norm       no contribution has a larger l2 norm, in steps of the grid
    share      standard deviation of each silo's noise, in steps of the grid divided by C_LCM
    width      bits of one number's slot in a plaintext
    packed     numbers in one plaintext
    key_bits   length of the server's modulus
    sampling   (a, M): a slot is in a round with probability a / M, and no party knows which; None: all, or as silos say
    """

    people: int
    numbers: int
    most: int
    entry: int
    norm: int
    share: int
    width: int
    packed: int
    key_bits: int
    sampling: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        self.check_names()
        if len(self.silos) < 2:
            raise Refused("bad-terms", "a weighted sum needs at least two silos")
        if self.packed * self.width + _SPARE_BITS > self.key_bits:
            raise Refused("bad-terms", f"{self.packed} slots of {self.width} bits do not fit {self.key_bits} bits")

    @property
    def common(self) -> int:
        """C_LCM, a multiple of every possible number of records."""
        return common_multiple(self.most)

    @property
    def cap(self) -> int:
        """The most records of a person in a silo, so that over all silos there are fewer than ``most``."""
        return (self.most - 1) // len(self.silos)

    @property
    def outputs(self) -> int:
        """Ciphertexts that a silo sends in a round."""
        return -(-self.numbers // self.packed)

    @property
    def longest(self) -> int:
        """No message has more bytes: a ciphertext for each slot (for each choice of it) or for every output, or what
        is said of or to each silo."""
        slots = 1 if self.sampling is None else self.sampling[1]
        ciphertexts = max(self.outputs, self.people * (slots + 1))
        return ciphertexts * (self.key_bits // 4 + _AROUND) + self.of_each_silo(_PER_SILO)

    @property
    def leader(self) -> str:
        return self.silos[0]


def common_multiple(most: int) -> int:
    """lcm(1, …, most)."""
    return math.lcm(*range(1, most + 1))


def agreed(
    run: str, silos: tuple[str, ...], numbers: int, facts: SumFacts, precision: float, key_bits: int, hidden: bool
) -> PaillierTerms:
    """The terms for these facts; UserError, with what would fit, where they do not fit the modulus."""
    most, entry = _most_records(facts) * facts.silos + 1, _entry(facts, precision)
    if entry.bit_length() > _ENTRY_BITS:
        problem = f"{precision:g} is too fine: one number of a contribution would take {entry.bit_length()} bits"
        coarser = facts.bound / 2.0 ** (_ENTRY_BITS - 1)
        fix = f"use {coarser:.1e} or more"
        raise UserError("out-of-range", "exchange.precision", f"{problem}, there are {_ENTRY_BITS}", fix)
    if not _fits(facts, precision, key_bits, most):
        raise _does_not_fit(facts, precision, key_bits, most)
    part = 0.0 if facts.noise is None else facts.noise.std / math.sqrt(facts.silos)
    if 0 < part / precision < LEAST_SHARE:
        problem = f"{precision:g} is too coarse: a silo's noise has {part / precision:.2g} steps"
        finer = part / LEAST_SHARE
        fix = f"use {finer:.1e} or less"
        raise UserError("out-of-range", "exchange.precision", f"{problem}, {LEAST_SHARE:g} are needed", fix)
    width, share = slot_width(facts, precision, most), share_of(facts, precision, most)
    packed = packing(facts.people, numbers, width, key_bits)
    sampling = sampling_slots(facts.rate) if hidden and facts.rate < 1 else None
    norm = Grid(precision).steps(facts.bound if facts.norm is None else facts.norm)
    return PaillierTerms(run, silos, facts.people, numbers, most, entry, norm, share, width, packed, key_bits, sampling)


def slot_width(facts: SumFacts, precision: float, most: int) -> int:
    """Bits for C_LCM (people clip / P + noise) and its sign; enough more than one contribution's to let the digits of
    its numbers lie apart from those of the next slot (:mod:`tacit.families.weighting.modular_powers`)."""
    entry = _entry(facts, precision)
    reach = facts.people * entry * common_multiple(most)
    reach += math.ceil(REACH) * (math.isqrt(facts.silos) + 1) * share_of(facts, precision, most)
    return max(reach.bit_length() + 1, entry.bit_length() + WIDEST)


def share_of(facts: SumFacts, precision: float, most: int) -> int:
    """The standard deviation of a silo's noise, sigma C C_LCM / (P sqrt |S|), rounded up: an integer on Z, and no
    multiple of C_LCM, so that no residue of the sum is free of noise (specification 4.6, leak A)."""
    if facts.noise is None or facts.noise.std == 0:
        return 0
    whole = Fraction(facts.noise.std) / Fraction(precision) * common_multiple(most)
    return math.isqrt(math.ceil(whole**2 / facts.silos)) + 1


def packing(people: int, numbers: int, width: int, key_bits: int) -> int:
    """How many numbers go into one plaintext: as many as fit, unless moving the tables of powers to the
    next slot costs more than the ciphertexts that it saves."""
    fitting = max(1, (key_bits - _SPARE_BITS) // width)

    def cost(packed: int) -> float:
        return people * (packed - 1) * width * _SQUARING + -(-numbers // packed) * (_DECRYPTION + _BLINDING)

    return min(range(1, fitting + 1), key=cost)


def sampling_slots(rate: float) -> tuple[int, int]:
    """``rate`` as a of M slots, exactly; UserError where it is none with at most ``MOST_SLOTS``."""
    near = Fraction(rate).limit_denominator(MOST_SLOTS)
    if near.numerator == 0 or abs(float(near) - rate) > 1e-12:
        problem = f"{rate:g} is no fraction of at most {MOST_SLOTS} slots, by which sampling is hidden"
        close = max(near, Fraction(1, MOST_SLOTS))
        raise UserError("invalid-value", "method.subject_sample_rate", problem, f"use {float(close)!r} ({close})")
    return near.numerator, near.denominator


def _most_records(facts: SumFacts) -> int:
    if facts.records is None:
        problem = "is missing: the weighted exchange needs a public bound on a subject's records"
        raise UserError("missing", "privacy.max_records_per_subject_and_silo", problem, "declare it")
    return facts.records


def _entry(facts: SumFacts, precision: float) -> int:
    return Grid(precision).steps(facts.bound)


def _fits(facts: SumFacts, precision: float, key_bits: int, most: int) -> bool:
    """Whether sums for this N_max fit the modulus. lcm(1, …, N) >= 2^(N - 1): beyond the modulus it is not computed."""
    return most <= key_bits and slot_width(facts, precision, most) + _SPARE_BITS <= key_bits


def _does_not_fit(facts: SumFacts, precision: float, key_bits: int, most: int) -> UserError:
    low = smallest_integer(lambda n: not _fits(facts, precision, key_bits, n), 1, min(most, key_bits + 1)) - 1
    problem = (
        f"{_most_records(facts)} in each of {facts.silos} silos makes N_max = {most}, for which sums do not fit a"
        f" modulus of {key_bits} bits; the largest N_max that fits is {low}"
    )
    fix = f"use at most {(low - 1) // facts.silos}" if low > facts.silos else "use a coarser exchange.precision"
    return UserError(
        "out-of-range", "privacy.max_records_per_subject_and_silo", problem, f"{fix}, or a longer exchange.key_bits"
    )
