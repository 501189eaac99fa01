"""How far a release moves, in units of the noise that is in it, and how far its event lets it move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import singledispatch

import numpy as np
from scipy.stats import binom

from tacit.privacy import (
    Composed,
    Event,
    Gaussian,
    GaussianMixture,
    Largest,
    Nothing,
    PoissonSampled,
    RandomWalk,
    Repeated,
    SampledWithoutReplacement,
    Unprotected,
)

# Shifts below this, in units of the noise, are those of single precision.
ROUNDING = 1e-2


class NotGaussian(Exception):
    """An event that says nothing about how far a Gaussian release moves."""


@singledispatch
def allowed(event: Event) -> float:
    """The largest shift over the standard deviation of the noise that ``event`` covers, all its releases together."""
    raise NotGaussian(type(event).__name__)


@allowed.register
def _(event: Nothing) -> float:
    return 0.0


@allowed.register
def _(event: Unprotected) -> float:
    return math.inf


@allowed.register
def _(event: Gaussian) -> float:
    return 1 / event.noise_multiplier if event.noise_multiplier else math.inf


@allowed.register
def _(event: PoissonSampled) -> float:
    return allowed(event.event) if event.rate else 0.0


@allowed.register
def _(event: SampledWithoutReplacement) -> float:
    return allowed(event.event)


@allowed.register
def _(event: GaussianMixture) -> float:
    likely = [s for s, p in zip(event.sensitivities, event.probabilities, strict=True) if p > 0]
    return max(likely, default=0.0) / event.noise_multiplier


@allowed.register
def _(event: RandomWalk) -> float:
    """Of one step."""
    return 1 / event.noise_multiplier


@allowed.register
def _(event: Repeated) -> float:
    return math.sqrt(event.count) * allowed(event.event) if event.count else 0.0


@allowed.register
def _(event: Composed) -> float:
    return math.hypot(*(allowed(part) for part in event.events))


@allowed.register
def _(event: Largest) -> float:
    return max(allowed(part) for part in event.events)


@singledispatch
def chance_beyond(event: Event, shift: float) -> float:
    """The probability with which ``event`` lets a single release move by more than ``shift`` noise deviations."""
    return float(allowed(event) > shift)


@chance_beyond.register
def _(event: PoissonSampled, shift: float) -> float:
    return event.rate * chance_beyond(event.event, shift)


@chance_beyond.register
def _(event: SampledWithoutReplacement, shift: float) -> float:
    return event.size / event.population * chance_beyond(event.event, shift)


@chance_beyond.register
def _(event: GaussianMixture, shift: float) -> float:
    beyond = (s / event.noise_multiplier > shift for s in event.sensitivities)
    return math.fsum(p for p, is_beyond in zip(event.probabilities, beyond, strict=True) if is_beyond)


@chance_beyond.register
def _(event: RandomWalk, shift: float) -> float:
    return float(allowed(event) > shift) / event.nodes


@chance_beyond.register
def _(event: Repeated, shift: float) -> float:
    return chance_beyond(event.event, shift) if event.count == 1 else float(allowed(event) > shift)


def too_often(event: Event, shifts: Sequence[float], tolerance: float) -> bool:
    """Whether releases move further than ``event`` says more often than it says: by a binomial test at 1e-4 for every
    distance that was seen, but those of rounding."""
    for shift in {shift for shift in shifts if shift > ROUNDING}:
        below = shift * (1 - tolerance) * (1 - 1e-9)
        seen = sum(other > below for other in shifts)
        if binom.sf(seen - 1, len(shifts), min(1.0, chance_beyond(event, below))) < 1e-4:
            return True
    return False


def unprotected(event: Event) -> bool:
    """Whether an event, or a part of it, costs everything."""
    parts = getattr(event, "events", ()) or (getattr(event, "event", None),)
    return isinstance(event, Unprotected) or any(unprotected(part) for part in parts if isinstance(part, Event))


class Noise:
    """The noise in a release of several parts (silos that send apart, or rounds that are one release), measured on
    numbers that nothing else moves.

    samples    how many numbers were looked at
    tolerance  relative error of a shift in its units, at 5 standard deviations
    """

    def __init__(self, draws: list[np.ndarray]) -> None:
        """``draws``: noise alone, ``[parts, numbers]`` each."""
        together = np.concatenate(draws, axis=1)
        self.samples = together.shape[1]
        covariance = together @ together.T / self.samples
        self._inverse = np.linalg.inv(covariance) if np.linalg.det(covariance) > 0 else None
        self.tolerance = 5 / math.sqrt(2 * self.samples)

    def shift(self, moved: np.ndarray) -> float:
        """The norm of ``moved [parts, numbers]`` over the noise."""
        if self._inverse is None:
            return math.inf if np.any(moved) else 0.0
        return math.sqrt(max(0.0, float(np.einsum("ik,ij,jk->", moved, self._inverse, moved))))
