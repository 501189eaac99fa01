"""Sums of a run: what is public about them before any record is read, and the grid on which they are taken."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tacit.privacy import Noise
from tacit.privacy.invalid import InvalidArgument
from tacit.privacy.mechanisms.noise_mechanisms import Randomizer
from tacit.privacy.proofs.weight_tables import WeightTable
from tacit.privacy.randomness import shares

Integers = npt.NDArray[np.int64]

# the least standard deviation of one silo's noise, in steps of the grid
LEAST_SHARE = 1000.0
# a sum of noise beyond that many standard deviations has probability below exp(-128) in each number
REACH = 16.0
# where sums are taken inside the compiled round, no silo's part of a sum has more steps, and neither has the sum: a
# thousand such parts fit 64 bits
LARGEST_STEPS = 2**52


@dataclass(frozen=True)
class Grid:
    """Multiples of a public step ``precision``, which masks and ciphers can add exactly.

    A number becomes the integer of steps between it and zero, rounded toward zero, so that no norm ever grows: an l2
    bound C on a vector is a bound C / precision on its integers, and the sensitivity of a sum of such vectors is what
    it was. Noise is a discrete Gaussian on the same integers.

    Guarantees count it as continuous. That is not exact: the discrete Gaussian has the Renyi divergences of the
    continuous one at most (Canonne, Kamath, Steinke 2020), but not its whole privacy profile. At 8 steps a shift of 11
    steps costs 6.3618 where the continuous one costs 6.3569 (delta 1e-5). So every share must have ``LEAST_SHARE``
    steps, and coarser grids are refused (specification 9.7). Sums of shares differ from a discrete Gaussian by less
    than 10 silos exp(-pi^2 LEAST_SHARE^2), which is 0 in floating point (Kairouz, Liu, Steinke 2021, "The Distributed
    Discrete Gaussian Mechanism", theorem 11).
    """

    precision: float

    def truncated(self, vectors: npt.NDArray[np.floating], factors: npt.NDArray[np.float64] | float = 1.0) -> Integers:
        """``vectors [n, numbers]`` times ``factors [n]`` in steps of the grid, rounded toward zero.

        Products are taken in double precision: a vector in single precision whose norm is two parts per million below
        a bound stays below it.
        """
        scale = np.asarray(factors, np.float64) / self.precision
        steps = np.asarray(vectors, np.float64) * (scale[..., np.newaxis] if scale.ndim else scale)
        return np.asarray(np.trunc(steps).astype(np.int64))

    def bounded(self, vector: npt.NDArray[np.floating], bound: float) -> Integers:
        """One ``vector [numbers]``, scaled down to an l2 norm of ``bound`` where rounding has left it above."""
        norm = float(np.linalg.norm(np.asarray(vector, np.float64)))
        return self.truncated(vector, min(1.0, bound * (1 - 1e-12) / norm) if norm else 1.0)

    def steps(self, size: float) -> int:
        """A bound in steps, rounded up; of any length."""
        return math.ceil(Fraction(size) / Fraction(self.precision) * (1 + Fraction(1, 10**12)))

    def numbers(self, steps: Integers) -> npt.NDArray[np.float64]:
        return steps.astype(np.float64) * self.precision


def beyond(integers: Integers, bound: int) -> bool:
    """Whether any of them is larger than ``bound``, or smaller than its negative: also -2^63, which has no magnitude,
    and into which NaN and too large numbers are rounded."""
    return bool(integers.max(initial=0) > bound or integers.min(initial=0) < -bound)


def check_vector(vector: Integers, numbers: int, largest: int) -> None:
    """A programming error where a vector is not what was agreed on: ``numbers`` integers, none beyond the bound."""
    if vector.shape != (numbers,) or vector.dtype != np.int64:
        problem = f"{numbers} integers are due, not {vector.dtype} {vector.shape}"
        raise InvalidArgument("wrong-length", "vector", problem)
    if beyond(vector, largest):
        raise InvalidArgument("out-of-range", "vector", "a vector beyond the agreed bound")


def ring_bits(largest: int, noise: float) -> int:
    """Bits, in whole bytes, of a ring Z_2^bits in which a sum with entries up to ``largest`` and noise of standard
    deviation ``noise`` (both in steps) does not wrap around. May be more than 64: the caller refuses that."""
    reach = largest + math.ceil(REACH * noise)
    return 8 * -(-(reach.bit_length() + 1) // 8)


def share_variance(silos: int, drop_outs: int, colluding: int) -> float:
    """The variance of one silo's noise as a part of the whole, 1 / silos where no silo drops out.

    Methods account for noise of variance 1 in the sum, of which c curious silos know their parts c / silos and are left
    with 1 - c / silos. After ``drop_outs`` silos have vanished with their parts, the sum of the others must still have
    variance 1, and what c of them do not know must still be 1 - c / silos:

        (silos - drop_outs) v >= 1                 (silos - drop_outs - c) v >= (silos - c) / silos

    The second is the stronger one, and rises with c; one curious silo is always counted.
    """
    curious = max(1, colluding)
    return (silos - curious) / (silos * (silos - drop_outs - curious))


@dataclass(frozen=True)
class ReportFacts:
    """The single reports that people make, where they make such.

    dimensions  how many numbers a contribution has
    padded      how many reports about each of them are added up
    crowd       at most how many people report in one round
    randomizer  by which reports are made
    listed      how many numbers one person reports about; None where that is random
    """

    dimensions: int
    padded: int
    crowd: int
    randomizer: Randomizer
    listed: int | None = None


@dataclass(frozen=True)
class SumFacts:
    """The sum over silos that a method asks for.

    silos    how many silos there are
    people   how many people, or slots for people; 1 where contributions are not those of people
    bound    the largest entry of a contribution
    noise    the noise in the sum; None where there is none
    records  the most records of one person in one silo, where that is declared
    rate     the public rate at which a person enters a round
    reports  the reports that are added up, where people make such
    complete whether no silo may be missing: the guarantee counts on the noise of all of them
    norm     the largest l2 norm of a contribution; None: that of the largest entry
    weights  the public table of record weights, where contributions are weighted by the exchange
    numbers  how many numbers a contribution has, where that is publicly known
    """

    silos: int
    people: int
    bound: float
    noise: Noise | None = None
    records: int | None = None
    rate: float = 1.0
    reports: ReportFacts | None = None
    complete: bool = False
    norm: float | None = None
    weights: WeightTable | None = None
    numbers: int | None = None

    @property
    def largest(self) -> float:
        """The largest entry that a sum can have before noise."""
        return self.people * self.bound


class Members(NamedTuple):
    """The people of one silo: the slot and the number of records of each, ``[people of the silo]``."""

    slots: np.ndarray
    counts: np.ndarray


class PersonVectors(NamedTuple):
    """A group of people of one silo and what they add: their ``places [n]`` among its :class:`Members`, and ``vectors
    [n, numbers]`` in steps of the grid, clipped and not weighted. A silo's contribution is an iterable of groups, each
    of which is computed when it is asked for."""

    places: np.ndarray
    vectors: np.ndarray

    @classmethod
    def joined(cls, groups: Sequence[PersonVectors], numbers: int) -> PersonVectors:
        """Several groups as one; each person adds ``numbers`` integers."""
        places = np.concatenate([np.zeros(0, int), *(group.places for group in groups)])
        return cls(places, np.concatenate([np.zeros((0, numbers), np.int64), *(group.vectors for group in groups)]))


def checked_groups(
    groups: Iterable[PersonVectors], numbers: int, entry: int, norm: int, counts: np.ndarray
) -> Iterator[PersonVectors]:
    """The same ``groups``, each checked when it is asked for.

    numbers  how many integers each person adds
    entry    the largest of them, in steps of the grid
    norm     the largest l2 norm of a person's vector, in steps of the grid; checked exactly
    counts   ``[people of the silo]`` records of each person

    A programming error (InvalidArgument) where a group is not what was agreed on, where a person is in two groups or
    twice in one, or has no records.
    """
    seen = np.zeros(len(counts), bool)
    for group in groups:
        places, vectors = group
        if vectors.shape != (len(places), numbers) or vectors.dtype != np.int64:
            raise InvalidArgument("wrong-length", "contributions", f"{numbers} integers of each person are due")
        if beyond(vectors, entry) or any(longer(vector, norm) for vector in vectors):
            raise InvalidArgument("out-of-range", "contributions", "a contribution beyond the agreed bound")
        if not ((places >= 0) & (places < len(counts))).all() or not (counts[places] > 0).all():
            raise InvalidArgument("mismatch", "contributions", "a contribution of a subject without records")
        if seen[places].any() or len(np.unique(places)) != len(places):
            raise InvalidArgument("out-of-range", "contributions", "two contributions of one subject")
        seen[places] = True
        yield group


def longer(vector: Integers, norm: int) -> bool:
    """Whether the l2 norm of ``vector [numbers]`` is larger than ``norm``, exactly: in whole numbers where a sum in
    double precision cannot tell."""
    numbers, square = vector.astype(np.float64), norm**2
    found, doubt = float(numbers @ numbers), (len(vector) + 4) * 2.0**-52
    if abs(found - square) > doubt * square:
        return found > square
    return sum(entry**2 for entry in vector.tolist()) > square


def people_of(k: int, people: int, silos: int) -> np.ndarray:
    """The places of silo ``k``, which draws their noise: k, k + silos, k + 2 silos, … A public choice, so that a place
    without records reports as the others do."""
    return np.arange(k, people, silos)


def places_of(keys: np.ndarray, people: int) -> np.ndarray:
    """The places, of ``people`` that are declared, of people with these keys: by their keys alone, so that no person's
    presence moves others. People with one place are one encoder, whose report is protected whatever it is about."""
    return shares(keys, people)
