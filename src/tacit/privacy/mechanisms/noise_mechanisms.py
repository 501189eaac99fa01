"""Gaussian noise, the exponential mechanism, and what a local randomiser is. All randomness is from ChaCha20 streams.

Formal guarantees. Gaussian noise is computed in floating point from 53-bit uniforms: the epsilon is that of the ideal
real-valued mechanism, and nothing is promised against attacks on the last bits of the output (Mironov 2012), nor beyond
|noise| of 8.6 standard deviations, where such noise ends. The exponential mechanism is exact
(``discrete_gaussian.exp_coins``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tacit.privacy.accounting.gaussian import gaussian_mu
from tacit.privacy.invalid import not_negative, require
from tacit.privacy.mechanisms.discrete_gaussian import exp_coins
from tacit.privacy.randomness import Stream

Floats = npt.NDArray[np.float64]


def gaussian_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """The smallest standard deviation (to a relative 1e-12, from above) that is (epsilon, delta)-private.

    Balle and Wang 2018 ("analytic" calibration): the exact condition is solved, for any epsilon >= 0.
    """
    usual = epsilon >= 0 and 0 <= delta <= 1 and sensitivity >= 0
    require("out-of-range", "epsilon", usual, "epsilon and sensitivity are not negative, delta is between 0 and 1")
    if sensitivity == 0:
        return 0.0
    mu = gaussian_mu(epsilon, delta)
    return 0.0 if math.isinf(mu) else math.inf if mu == 0 else sensitivity / mu


def standard_normal(count: int, stream: Stream) -> Floats:
    """``count`` standard normal numbers (Box and Muller 1958)."""
    half = -(-count // 2)
    # in (0, 1), never 0: multiples of 2^-53 moved by half a step
    radius = np.sqrt(-2 * np.log(stream.uniform(half) + 2.0**-54))
    angle = 2 * np.pi * stream.uniform(half)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


class Randomizer(Protocol):
    """Reports about numbers in [0, 1]. ``kept`` is the part of ``value - 1/2`` that a report has on average."""

    @property
    def epsilon(self) -> float: ...

    @property
    def kept(self) -> float: ...

    def report(self, values: Floats, stream: Stream) -> Floats:
        """A report about each of ``values``, which are in [0, 1]; E[report - 1/2] = kept (value - 1/2)."""

    def blanket(self, count: int, stream: Stream) -> Floats:
        """``count`` reports that depend on no value."""

    def variance(self, values: Floats) -> Floats:
        """The variance of a report about each of ``values``."""

    @property
    def blanket_variance(self) -> float: ...


@dataclass(frozen=True)
class ExponentialMechanism:
    """One of several candidates, Pr proportional to exp(epsilon score / (2 sensitivity)): epsilon-private.

    McSherry and Talwar 2007. ``sensitivity`` is the most that one unit moves any score. Sampled exactly, by rejection:
    a uniform candidate is taken with probability exp(-gap), its gap to the best score.
    """

    epsilon: float
    sensitivity: float = 1.0

    def __post_init__(self) -> None:
        not_negative("epsilon", self.epsilon)
        require("out-of-range", "sensitivity", 0 < self.sensitivity < math.inf, "must be positive and finite")

    def probabilities(self, scores: npt.ArrayLike) -> Floats:
        weights = np.exp(-self._gaps(scores))
        return np.asarray(weights / weights.sum(), dtype=np.float64)

    def release(self, scores: npt.ArrayLike, stream: Stream) -> int:
        """The index of the candidate chosen; about as many coins as there are candidates at most."""
        gaps = self._gaps(scores)
        possible = np.flatnonzero(np.isfinite(gaps))  # those infinitely far from the best are never chosen
        while True:
            candidates = possible[stream.integers(possible.size, 64)]
            taken = np.flatnonzero(exp_coins(gaps[candidates], stream))
            if taken.size:
                return int(candidates[taken[0]])

    def _gaps(self, scores: npt.ArrayLike) -> Floats:
        exact = finite(scores).ravel()
        require("missing", "scores", exact.size > 0, "at least one candidate is required")
        scale = self.epsilon / self.sensitivity / 2
        gaps = np.zeros(exact.size)
        worse = exact < exact.max()
        if scale > 0:
            with np.errstate(over="ignore"):
                gaps[worse] = (exact.max() - exact[worse]) * scale
        return gaps


def finite(value: npt.ArrayLike) -> Floats:
    exact = np.asarray(value, dtype=np.float64)
    require("out-of-range", "value", bool(np.isfinite(exact).all()), "must be finite: clip it before the release")
    return exact
