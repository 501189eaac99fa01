"""Constants for standardising columns of which nothing is publicly known, released with noise.

``noisy_queries.Moments`` needs public bounds of every column. Here a histogram on a grid of powers of two takes their
place: it has one sensitivity for all columns, whatever they hold, and nothing has to be declared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tacit.privacy.accounting.events import Event
from tacit.privacy.invalid import require
from tacit.privacy.mechanisms.noisy_queries import STEPS, Floats, SubjectSum, check_crowd, record_weights

# The grid: octaves [2^e, 2^(e + 1)) of both signs, and zero for everything smaller. It depends on no data.
_OCTAVES = range(-20, 40)
LARGEST_VALUE = 2.0**_OCTAVES.stop
_COARSE = len(_OCTAVES)
# The steps of an octave share their cells with those of every fourth octave of the same sign.
_STEPS_OF_OCTAVE, _FOLDED = 16, 4
_FINE = _FOLDED * _STEPS_OF_OCTAVE
_CELLS = 2 * _COARSE + 1 + 2 * _FINE
_HALF = math.sqrt(0.5)
# a cell is believed where it is so many standard deviations of its noise above zero; cells must hold this share of all
_OCTAVE_BELIEVED, _NEIGHBOUR_BELIEVED, _STEP_BELIEVED, _SHARE_BELIEVED = 4.0, 2.0, 3.0, 0.8


@dataclass(frozen=True)
class PaidSpreads:
    """What ``standardize = "private"`` needs of columns without bounds: subtract ``mean``, divide by ``deviation``."""

    mean: Floats
    deviation: Floats
    event: Event


@dataclass(frozen=True)
class Spreads(SubjectSum[PaidSpreads]):
    """Centre and spread of F columns: histograms on a fixed grid as ONE vector Gaussian event.

    columns            F
    noise_multiplier   standard deviation of the noise over the sensitivity
    max_silos          see ``noisy_queries``

    The grid has octaves [2^e, 2^(e+1)), -20 <= e < 40, of both signs, and a cell for zero. Smaller values count as
    zero, larger ones as the last octave. Each octave has 16 steps of equal width, which share their cells with those of
    every fourth octave. For column j let a_j(x) be the unit vector of the octave of x_j, and b_j(x) that of its step (0
    for zero); both are 0 where x_j is missing. Then

        phi(x) = (a_1, b_1, …, a_F, b_F) / sqrt(2),    |phi|^2 = sum_j (|a_j|^2 + |b_j|^2) / 2 <= F,

    so the sensitivity is sqrt(F), however fine the grid is. It is attained by a subject all of whose records lie in one
    cell of each column. All numbers of phi lie in [0, 1]. A part adds up whole steps of 2^-40, each record's rounded
    toward zero: a record adds what it adds alone, and no norm grows.

    **Formal guarantee.** That of ``noisy_queries``, with s = sqrt(F). The rest is post-processing of the noisy sum:
    octaves whose count exceeds 4 standard deviations of the noise are believed (the largest one, if there is none), and
    octaves of either sign near the largest of them from 2 on. If no two of them share cells, their steps are looked at,
    one by one or in equal groups, as fine as the steps above 3 standard deviations hold 80 % of the count. Mean and
    variance are those of the believed cells, with a uniform law within a cell.
    """

    columns: int
    noise_multiplier: float
    max_silos: int | None = None

    def __post_init__(self) -> None:
        check_crowd(self.noise_multiplier, None, self.max_silos)
        require("out-of-range", "columns", self.columns >= 1, "at least one column is required")

    @property
    def numbers(self) -> int:
        """How many numbers ``total`` has."""
        return self.columns * _CELLS

    @property
    def sensitivity(self) -> float:
        return math.sqrt(self.columns)

    def total(self, values: npt.ArrayLike, subject: npt.ArrayLike, silo: npt.ArrayLike | None = None) -> Floats:
        """The exact histograms: private, not to be released."""
        here = np.zeros(np.size(subject), np.int64)
        found: Floats = self._parts(values, record_weights(subject, silo, self.max_silos), here, 1)[0]
        return found

    def parts(self, values: npt.ArrayLike, subject: npt.ArrayLike, silo: npt.ArrayLike, silos: int) -> Floats:
        """``total`` silo by silo, [silos, …], ``silo`` numbered from 0: private, not to be released."""
        return self._parts(
            values, record_weights(subject, silo, self.max_silos), np.ravel(silo).astype(np.int64), silos
        )

    def _parts(self, values: npt.ArrayLike, weights: Floats, where: npt.NDArray[np.int64], silos: int) -> Floats:
        exact = np.asarray(values, dtype=np.float64).reshape(len(weights), self.columns)
        steps = np.trunc(weights * _HALF * STEPS).astype(np.int64)
        found = np.zeros(silos * self.numbers, np.int64)
        for j in range(self.columns):
            known = np.flatnonzero(~np.isnan(exact[:, j]))
            for cell in _cells(exact[known, j]):
                mine, there = known[cell >= 0], cell[cell >= 0]
                np.add.at(found, where[mine] * self.numbers + j * _CELLS + there, steps[mine])
        return np.asarray(found.reshape(silos, -1) / STEPS, dtype=np.float64)

    def estimate(self, noisy: Floats) -> PaidSpreads:
        counts, noise = noisy.reshape(self.columns, _CELLS) / _HALF, self.sigma / _HALF
        found = [_spread(column[: 2 * _COARSE + 1], column[2 * _COARSE + 1 :], noise) for column in counts]
        means, deviations = np.array(found, dtype=np.float64).T
        return PaidSpreads(means, deviations, self.event())


def _cells(values: Floats) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The numbers of each value's two cells among those of its column, octave and step; zero has -1 for a step."""
    inside = np.clip(np.abs(values), 0.0, np.nextafter(LARGEST_VALUE, 0.0))
    fraction, exponent = np.frexp(inside)  # fraction in [1/2, 1)
    octave = exponent.astype(np.int64) - 1 - _OCTAVES.start
    step = np.floor((2 * fraction - 1) * _STEPS_OF_OCTAVE).astype(np.int64)
    sign = np.where(octave < 0, 0, np.sign(values)).astype(np.int64)
    folded = 2 * _COARSE + 1 + _first_step(sign, octave) + step
    return _COARSE + sign * (octave + 1), np.where(sign == 0, -1, folded)


def _first_step(sign: npt.NDArray[np.int64], octave: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where the steps of an octave begin among all steps."""
    return (sign < 0) * _FINE + octave % _FOLDED * _STEPS_OF_OCTAVE


def _spread(octaves: Floats, steps: Floats, noise: float) -> tuple[float, float]:
    """Mean and deviation from the noisy counts of one column."""
    size = np.abs(np.arange(octaves.size) - _COARSE)  # 0 for zero, else one more than the octave
    believed = octaves > _OCTAVE_BELIEVED * noise
    if not believed.any():
        believed = np.arange(octaves.size) == np.argmax(octaves)
    largest = size[believed].max()
    near = (size > 0) & (size >= largest - 3) & (size <= largest + 1)
    believed |= near & (octaves > _NEIGHBOUR_BELIEVED * noise)
    zero, others = float(octaves[_COARSE]) if believed[_COARSE] else 0.0, np.flatnonzero(believed & (size > 0))
    sign, octave = np.sign(others - _COARSE), size[others] - 1
    first, counts, parts = _first_step(sign, octave), octaves[others][:, np.newaxis], 1
    if len(set(first.tolist())) == len(first):
        fine = np.array([steps[k : k + _STEPS_OF_OCTAVE] for k in first]).reshape(len(first), _STEPS_OF_OCTAVE)
        for group in (1, 2, 4, 8):
            summed = fine.reshape(len(first), _STEPS_OF_OCTAVE // group, group).sum(axis=2)
            kept = np.where(summed > _STEP_BELIEVED * math.sqrt(group) * noise, summed, 0.0)
            if kept.sum() >= _SHARE_BELIEVED * counts.sum():
                counts, parts = kept, _STEPS_OF_OCTAVE // group
                break
    width = np.exp2(octave + float(_OCTAVES.start))[:, np.newaxis] / parts
    middle = sign[:, np.newaxis] * width * (parts + 0.5 + np.arange(parts))
    weights = np.append(np.maximum(counts, 0.0).ravel(), max(zero, 0.0))
    if not weights.sum() > 0:
        return 0.0, 1.0
    weights /= weights.sum()
    places, widths = np.append(middle.ravel(), 0.0), np.append(np.broadcast_to(width, middle.shape).ravel(), 0.0)
    mean = float(weights @ places)
    variance = float(weights @ ((places - mean) ** 2 + widths**2 / 12))
    return mean, math.sqrt(variance) if variance > 0 else 1.0
