"""Local randomisers of values in [0, 1] ([FLAME]): how a person adds noise to a number before it is sent.

    laplace    the value plus Laplace noise of scale 1/epsilon
    response   the value rounded at random to one of ``steps + 1`` levels, then randomised response on the levels

Both have a *blanket*, a law w from which a report is drawn with some probability whatever the value is (Balle, Bell,
Gascón, Nissim 2019): reports from w alone say nothing about any person, and in random order they look like
all other reports. It is a mixture of reports (specification 5.1, T3): R(1/2) for Laplace, the mean over levels of
R(level) for response. Its mean is 1/2, so what is added to a sum of ``value - 1/2`` is noise and no bias.

Formal guarantees. A report is epsilon-locally private: densities (Laplace) or probabilities (response) of any two
values differ by at most e^epsilon. Response is drawn exactly; Laplace noise is floating point (``noise_mechanisms``).
FLAME's algorithm 1 takes b levels of noise for b + 1 levels of values, so that level 0 gives the value away; here both
have b + 1 (specification 5.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

from tacit.privacy.invalid import InvalidArgument
from tacit.privacy.mechanisms.noise_mechanisms import standard_laplace
from tacit.privacy.mechanisms.randomized_response import Response
from tacit.privacy.randomness import Stream

Floats = npt.NDArray[np.float64]
Kind = Literal["laplace", "response"]


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
class LaplaceReports:
    """value + Laplace(1 / epsilon); the blanket is Laplace around 1/2."""

    epsilon: float

    @property
    def kept(self) -> float:
        return 1.0

    def report(self, values: Floats, stream: Stream) -> Floats:
        return _in_range(values) + standard_laplace(values.size, stream) / self.epsilon

    def blanket(self, count: int, stream: Stream) -> Floats:
        return 0.5 + standard_laplace(count, stream) / self.epsilon

    def variance(self, values: Floats) -> Floats:
        return np.full(values.shape, self.blanket_variance)

    @property
    def blanket_variance(self) -> float:
        return 2 / self.epsilon**2


@dataclass(frozen=True)
class LevelReports:
    """One of the levels 0, 1/steps, …, 1 (R_{gamma,b} of [FLAME], repaired): with probability gamma a uniform one.

    gamma = (steps + 1) / (e^epsilon + steps), so that any level has e^epsilon times its smallest probability at most.
    """

    epsilon: float
    steps: int = 2

    @property
    def response(self) -> Response:
        return Response(self.epsilon, self.steps + 1)

    @property
    def gamma(self) -> float:
        small = math.exp(-self.epsilon)
        return (self.steps + 1) * small / (1 + self.steps * small)

    @property
    def kept(self) -> float:
        # 1 - gamma, also where that is small
        return -math.expm1(-self.epsilon) / (1 + self.steps * math.exp(-self.epsilon))

    def report(self, values: Floats, stream: Stream) -> Floats:
        scaled = _in_range(values) * self.steps
        below = np.floor(scaled)
        levels = (below + (stream.uniform(values.size) < scaled - below)).astype(np.int64)
        return np.asarray(self.response.release(levels, stream) / self.steps, dtype=np.float64)

    def blanket(self, count: int, stream: Stream) -> Floats:
        return np.asarray(stream.integers(self.steps + 1, count) / self.steps, dtype=np.float64)

    def variance(self, values: Floats) -> Floats:
        # E[y^2] - E[y]^2 in steps: with probability kept the rounded value, else a uniform level
        scaled = _in_range(values) * self.steps
        part = scaled - np.floor(scaled)
        middle = self.steps / 2
        uniform = self._uniform_variance + middle**2
        square = self.kept * (scaled**2 + part * (1 - part)) + self.gamma * uniform
        mean = middle + self.kept * (scaled - middle)
        return np.asarray((square - mean**2) / self.steps**2)

    @property
    def blanket_variance(self) -> float:
        return self._uniform_variance / self.steps**2

    @property
    def _uniform_variance(self) -> float:
        return ((self.steps + 1) ** 2 - 1) / 12


def randomizer(kind: Kind, epsilon: float, steps: int) -> Randomizer:
    """The randomiser of that name; ``steps`` is b, the number of steps between levels."""
    return LaplaceReports(epsilon) if kind == "laplace" else LevelReports(epsilon, steps)


def _in_range(values: Floats) -> Floats:
    exact = np.asarray(values, dtype=np.float64)
    if exact.size and not (exact.min() >= 0 and exact.max() <= 1):  # not-a-number is neither
        raise InvalidArgument("out-of-range", "value", "a value to be reported must be in [0, 1]: clip it first")
    return exact
