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
_STEPS_OF_OCTAVE = 16
LARGEST_VALUE = 2.0**_OCTAVES.stop
_COARSE, _FINE = len(_OCTAVES), len(_OCTAVES) * _STEPS_OF_OCTAVE
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

    The grid has octaves [2^e, 2^(e+1)), -20 <= e < 40, of both signs, and a cell for zero; each octave has 16 steps of
    equal width. Smaller values count as zero, larger ones as the last octave. For column j let a_j(x) be the unit
    vector of the octave of x_j, and b_j(x) that of its step; both are 0 where x_j is missing. Then

        phi(x) = (a_1, b_1, …, a_F, b_F) / sqrt(2),    |phi|^2 = sum_j (|a_j|^2 + |b_j|^2) / 2 <= F,

    so the sensitivity is sqrt(F), however fine the grid is. It is attained by a subject all of whose records lie in one
    cell of each column. All numbers of phi lie in [0, 1]. A part adds up whole steps of 2^-40, each record's rounded
    toward zero: a record adds what it adds alone, and no norm grows.

    **Formal guarantee.** That of ``noisy_queries``, with s = sqrt(F). The rest is post-processing of the noisy sum:
    octaves whose count exceeds 4 standard deviations of the noise are believed (the largest one, if there is none), and
    octaves of either sign near the largest of them from 2 on. Within them, the finest equal division of octaves is
    taken whose cells above 3 standard deviations hold 80 % of the count. Mean and variance are those of the believed
    cells, with a uniform law within a cell.
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
            known = ~np.isnan(exact[:, j])
            for cell in _cells(exact[known, j]):
                np.add.at(found, where[known] * self.numbers + j * _CELLS + cell, steps[known])
        return np.asarray(found.reshape(silos, -1) / STEPS, dtype=np.float64)

    def estimate(self, noisy: Floats) -> PaidSpreads:
        counts, noise = noisy.reshape(self.columns, _CELLS) / _HALF, self.sigma / _HALF
        found = [_spread(column[: 2 * _COARSE + 1], column[2 * _COARSE + 1 :], noise) for column in counts]
        means, deviations = np.array(found, dtype=np.float64).T
        return PaidSpreads(means, deviations, self.event())


_HALF = math.sqrt(0.5)
_CELLS = 2 * _COARSE + 1 + 2 * _FINE + 1


def _cells(values: Floats) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The numbers of each value's two cells among those of its column: its octave and its step, in rising order."""
    inside = np.clip(np.abs(values), 0.0, np.nextafter(LARGEST_VALUE, 0.0))
    fraction, exponent = np.frexp(inside)  # fraction in [1/2, 1)
    octave = exponent.astype(np.int64) - 1 - _OCTAVES.start
    step = octave * _STEPS_OF_OCTAVE + np.floor((2 * fraction - 1) * _STEPS_OF_OCTAVE).astype(np.int64)
    sign = np.where(octave < 0, 0, np.sign(values)).astype(np.int64)
    return _COARSE + sign * (octave + 1), 2 * _COARSE + 1 + _FINE + sign * (step + 1)


def _middles(parts: int) -> tuple[Floats, Floats]:
    """Middle and width of all cells where each octave has that many parts, in rising order."""
    low = np.concatenate([2.0**e * (1 + np.arange(parts) / parts) for e in _OCTAVES])
    width = np.repeat([2.0**e / parts for e in _OCTAVES], parts)
    middle = low + width / 2
    return np.concatenate([-middle[::-1], [0.0], middle]), np.concatenate([width[::-1], [0.0], width])


def _spread(octaves: Floats, steps: Floats, noise: float) -> tuple[float, float]:
    """Mean and deviation from the noisy counts of one column."""
    believed = octaves > _OCTAVE_BELIEVED * noise
    if not believed.any():
        believed = np.arange(octaves.size) == np.argmax(octaves)
    size_of = np.abs(np.arange(octaves.size) - _COARSE)  # 0 for zero, else one more than the octave
    largest = size_of[believed].max()
    near = (size_of > 0) & (size_of >= largest - 3) & (size_of <= largest + 1)
    believed |= near & (octaves > _NEIGHBOUR_BELIEVED * noise)
    parts, counts = 1, np.where(believed, octaves, 0.0)
    size = 1
    while size < _STEPS_OF_OCTAVE:
        finer = np.repeat(believed, np.where(np.arange(octaves.size) == _COARSE, 1, _STEPS_OF_OCTAVE // size))
        summed = np.concatenate([part.reshape(-1, size).sum(axis=1) for part in (steps[:_FINE], steps[_FINE + 1 :])])
        summed = np.insert(summed, _FINE // size, steps[_FINE])
        level = np.full(summed.size, math.sqrt(size) * noise)
        level[_FINE // size] = noise
        kept = np.where(finer & (summed > _STEP_BELIEVED * level), summed, 0.0)
        if kept.sum() >= _SHARE_BELIEVED * counts.sum():
            parts, counts = _STEPS_OF_OCTAVE // size, kept
            break
        size *= 2
    middle, width = _middles(parts)
    shares = np.maximum(counts, 0.0)
    shares = shares / shares.sum() if shares.sum() > 0 else np.full(shares.size, 1.0 / shares.size)
    mean = float(shares @ middle)
    variance = float(shares @ ((middle - mean) ** 2 + width**2 / 12))
    return mean, math.sqrt(variance) if variance > 0 else 1.0
