"""What all parties of a weighted sum from ring-LWE agree on before it begins; all of it public."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from tacit.crypto import MaskStream, Refused
from tacit.errors import UserError
from tacit.exchange.masked import of_a_round
from tacit.exchange.post import Terms
from tacit.exchange.sums import LEAST_SHARE, REACH, Grid, SumFacts, share_variance
from tacit.families.weighting.lattice import (
    MOST_RECORDS,
    WEIGHT_BITS,
    Lattice,
    Load,
    Residues,
    column,
    fitting,
    packed,
    uniform,
    unpacked,
)
from tacit.families.weighting.ring import DEGREE

PROTOCOL = "tacit-weighted-2"
# setup: what silos send; the last two in pieces, each a phase of its own
SETUP_KEYS, SEED, COUNTS, TABLES, WEIGHTS = "setup keys", "seed", "counts", "tables", "weights"
# people of one piece: about 12 MB
PIECE = 64
# entries of contributions, in steps of the grid
_ENTRY_BITS = 50
# noise is drawn in 64 bits
_SHARE_BITS = 58


@dataclass(frozen=True)
class LatticeTerms(Terms):
    """The terms of a weighted sum.

    people     slots for subjects
    numbers    how many numbers a contribution has
    cap        the most records of a slot in one silo
    table      f(0), f(1), …: a subject with n records in a silo and N in all has the weight n f(N) / 2^WEIGHT_BITS
    entry      no contribution has a larger l2 norm, in steps of the grid
    share      standard deviation of each silo's noise, in steps of grid / 2^WEIGHT_BITS
    threshold  how many silos must stay to the end of a round
    lattice    the encryption
    """

    people: int
    numbers: int
    cap: int
    table: tuple[int, ...]
    entry: int
    share: int
    threshold: int
    lattice: Lattice

    def __post_init__(self) -> None:
        self.check_names()
        if not 2 <= len(self.silos) < 2 * self.threshold or self.threshold > len(self.silos):
            reason = f"a threshold of {self.threshold} for {len(self.silos)} silos: more than half must stay"
            raise Refused("bad-terms", reason)
        if len(self.table) <= self.cap * len(self.silos) or len(self.table) > DEGREE:
            raise Refused("bad-terms", f"{len(self.table)} weights for up to {self.cap * len(self.silos)} records")
        if any(max(1, count) * weight > 1 << WEIGHT_BITS or weight < 0 for count, weight in enumerate(self.table)):
            raise Refused("bad-terms", "weights of a slot that sum to more than 1")

    @property
    def leader(self) -> str:
        return self.silos[0]

    @property
    def blocks(self) -> int:
        return -(-self.numbers // DEGREE)

    @property
    def pieces(self) -> list[range]:
        """The slots of each piece of setup."""
        size = PIECE // 2 if self.joint else PIECE
        return [range(first, min(first + size, self.people)) for first in range(0, self.people, size)]

    @property
    def joint(self) -> bool:
        """Whether the key is the sum of one of the server and one of each silo."""
        return self.lattice.opening_bits is not None

    @cached_property
    def ring(self) -> KeptResidues:
        return KeptResidues(self.lattice.kept, self.numbers + self.blocks * DEGREE)

    @property
    def longest(self) -> int:
        """No message has more bytes: a masked sum, a piece of setup, or what is said of or to each silo."""
        one = self.lattice.ciphertext_bytes + 256
        piece = len(self.pieces[0]) * one * (2 if self.joint else 1) + one
        shares = self.of_each_silo(one) if self.joint else 0
        return max(of_a_round(self), piece, shares + 2 * self.people)

    def index(self, silo: str) -> int:
        """A silo's number as a holder of shares, from 1."""
        return self.silos.index(silo) + 1


class KeptResidues(NamedTuple):
    """Vectors ``[primes, numbers]`` of residues: ciphertexts as they are sent, c0 without its padding and c1."""

    primes: int
    numbers: int

    @property
    def size(self) -> int:
        return 3 * self.primes * self.numbers

    def masked(self, vector: Residues, plus: Sequence[MaskStream], minus: Sequence[MaskStream]) -> Residues:
        total, primes = vector.astype(np.int64), column(self.primes)
        for sign, streams in ((1, plus), (-1, minus)):
            for stream in streams:
                total += sign * uniform(stream, self.primes, self.numbers).astype(np.int64)
        return np.asarray(total % primes, np.uint32)

    def added(self, vectors: Iterable[Residues]) -> Residues:
        total = np.zeros((self.primes, self.numbers), np.int64)
        for vector in vectors:
            total += vector
        return np.asarray(total % column(self.primes), np.uint32)

    def to_bytes(self, vector: Residues) -> bytes:
        return packed(vector)

    def from_bytes(self, data: bytes, sender: str) -> Residues:
        found = unpacked(data, (self.primes, self.numbers))
        if (found >= column(self.primes)).any():
            raise Refused("out-of-range", "a number that is no residue", sender)
        return found


def agreed(
    run: str,
    silos: tuple[str, ...],
    numbers: int,
    facts: SumFacts,
    precision: float,
    drop_outs: int,
    colluding: int,
    joint: bool,
) -> LatticeTerms:
    """The terms for these facts; UserError, with what would fit, where no encryption fits them."""
    cap, deviation = _cap(facts), _deviation(facts, drop_outs, colluding)
    if deviation and deviation / precision < LEAST_SHARE:
        problem = f"{precision:g} is too coarse: a silo's noise has {deviation / precision:.2g} steps"
        fix = f"use {deviation / LEAST_SHARE:.1e} or less"
        raise UserError("out-of-range", "exchange.precision", f"{problem}, {LEAST_SHARE:g} are needed", fix)
    sized = partial(_sized, -(-numbers // DEGREE), facts, cap, deviation, joint)
    found = sized(precision)
    if isinstance(found, str):
        problem = f"{precision:g} is too fine: {found}"
        raise UserError("out-of-range", "exchange.precision", problem, _coarser(sized, precision, deviation))
    entry, share, lattice = found
    assert facts.weights is not None
    table = tuple(facts.weights.integers(WEIGHT_BITS).tolist())
    threshold = facts.silos - drop_outs
    return LatticeTerms(run, silos, facts.people, numbers, cap, table, entry, share, threshold, lattice)


def _cap(facts: SumFacts) -> int:
    field = "privacy.max_records_per_subject_and_silo"
    if facts.records is None:
        problem = "is missing: the weighted exchange needs a public bound on a subject's records"
        raise UserError("missing", field, problem, f"declare it, at most {MOST_RECORDS // facts.silos}")
    if facts.records * facts.silos > MOST_RECORDS:
        problem = f"{facts.records} in each of {facts.silos} silos is more than {MOST_RECORDS:,} records of a subject"
        raise UserError("out-of-range", field, problem, f"use at most {MOST_RECORDS // facts.silos}")
    return facts.records


def _deviation(facts: SumFacts, drop_outs: int, colluding: int) -> float:
    """The standard deviation of a silo's noise."""
    if facts.noise is None:
        return 0.0
    return facts.noise.std * math.sqrt(share_variance(facts.silos, drop_outs, colluding))


def _sized(
    blocks: int, facts: SumFacts, cap: int, deviation: float, joint: bool, precision: float
) -> tuple[int, int, Lattice] | str:
    """The bound of a contribution, the deviation of a silo's noise, and the encryption; or why ``precision`` is too
    fine. Noise is rounded up, in steps of grid / 2^WEIGHT_BITS: sums are integers on that scale, and no residue of them
    is free of noise (specification 4.6, leak A)."""
    entry = Grid(precision).steps(facts.bound if facts.norm is None else facts.norm)
    if entry.bit_length() > _ENTRY_BITS:
        return f"a contribution of norm {facts.bound:g} has 2^{entry.bit_length()} steps"
    steps = deviation / precision * 2**WEIGHT_BITS * (1 + 1e-12)
    if steps >= 2.0**_SHARE_BITS:
        return f"a silo's noise has 2^{math.log2(steps):.0f} steps"
    share = math.ceil(steps * (1 + 1e-12))
    reach = math.ceil(REACH * math.sqrt(facts.silos)) * share
    lattice = fitting(Load(facts.people, cap, facts.silos, blocks, entry, reach, joint))
    if lattice is None:
        return (
            f"no ring of degree {DEGREE} holds sums over {facts.people:,} slots of {blocks * DEGREE:,} numbers with"
            f" {facts.silos} silos and {cap} records of a subject in each"
        )
    return entry, share, lattice


def _coarser(sized: Callable[[float], object], precision: float, deviation: float) -> str:
    """Which power of ten would be coarse enough, and fine enough for the noise."""
    powers = (10.0**k for k in range(math.ceil(math.log10(precision)), 300))
    fits = (step for step in powers if not isinstance(sized(step), str))
    found = next(fits, None)
    if found is None or (deviation and deviation / found < LEAST_SHARE):
        return "no precision fits: use fewer subjects, slots, records of a subject or silos, or more noise"
    return f"use {found:.0e} or more"
