"""Local randomisers of values in [0, 1] ([FLAME]): how a person adds noise to a number before it is sent.

    laplace    the value plus Laplace noise of scale 1/epsilon
    response   the value rounded at random to one of ``steps + 1`` levels, then randomised response on the levels

Both have a *blanket*, a law w from which a report is drawn with some probability whatever the value is (Balle, Bell,
Gascón, Nissim 2019): reports from w alone say nothing about any person, and in random order they look like
all other reports. It is a mixture of reports (specification 5.1, T3): R(1/2) for Laplace, the mean over levels of
R(level) for response. Its mean is 1/2, so what is added to a sum of ``value - 1/2`` is noise and no bias.

Formal guarantees. A report is epsilon-locally private: densities (Laplace) or probabilities (response) of any two
values differ by at most e^epsilon. Response is drawn exactly. Laplace noise is floating point (``noise_mechanisms``)
and ends at 37 scales.
FLAME's algorithm 1 takes b levels of noise for b + 1 levels of values, so that level 0 gives the value away; here both
have b + 1 (specification 5.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from tacit.privacy.accounting.events import Event, RandomizedResponse
from tacit.privacy.invalid import InvalidArgument
from tacit.privacy.mechanisms.discrete_gaussian import exp_coins
from tacit.privacy.mechanisms.noise_mechanisms import Randomizer
from tacit.privacy.randomness import Stream

Floats = npt.NDArray[np.float64]
Kind = Literal["laplace", "response"]


@dataclass(frozen=True)
class Response:
    """k-ary randomised response (Warner 1965; Kairouz et al. 2014): values 0 .. levels-1, epsilon-locally private.

    The true value is reported with probability e^epsilon / (e^epsilon + levels - 1), any other with equal probability.
    """

    epsilon: float
    levels: int = 2

    def __post_init__(self) -> None:
        if not 0 <= self.epsilon < math.inf:
            raise InvalidArgument("out-of-range", "epsilon", f"epsilon is finite and not negative, not {self.epsilon}")
        if self.levels < 2:
            problem = f"randomised response has at least 2 levels, not {self.levels}"
            raise InvalidArgument("out-of-range", "levels", problem)

    @property
    def truth(self) -> float:
        """Probability of the true value."""
        return 1 / (1 + (self.levels - 1) * math.exp(-self.epsilon))

    def event(self) -> Event:
        return RandomizedResponse(self.epsilon, self.levels)

    def release(self, values: npt.ArrayLike, stream: Stream) -> npt.NDArray[np.int64]:
        """A report for each of ``values``; exact, by rejection.

        A uniform value is taken if it is the true one, and otherwise with probability e^-epsilon: that gives the true
        one e^epsilon times the probability of any other.
        """
        true = np.asarray(values, dtype=np.int64).ravel()
        if true.size and not (true.min() >= 0 and true.max() < self.levels):
            raise InvalidArgument("out-of-range", "values", f"values must be integers between 0 and {self.levels - 1}")
        reports = np.empty(true.size, dtype=np.int64)
        open_ = np.arange(true.size)
        while open_.size:
            proposed = stream.integers(self.levels, open_.size)
            taken = exp_coins(np.where(proposed == true[open_], 0.0, self.epsilon), stream)
            reports[open_[taken]] = proposed[taken]
            open_ = open_[~taken]
        return reports

    def histogram(self, reports: npt.ArrayLike) -> Floats:
        """Unbiased estimate of the share of every value, [levels].

        (share of the reports times (e^eps + k - 1), minus 1) / (e^eps - 1). Shares may come out below 0 or above 1;
        they sum to 1.
        """
        if self.epsilon == 0:
            problem = "with epsilon 0 the reports say nothing: there is no unbiased estimate"
            raise InvalidArgument("out-of-range", "epsilon", problem)
        given = np.asarray(reports, dtype=np.int64).ravel()
        if given.size == 0:
            raise InvalidArgument("missing", "reports", "there are no reports")
        shares = np.bincount(given, minlength=self.levels) / given.size
        return np.asarray((shares * (math.expm1(self.epsilon) + self.levels) - 1) / math.expm1(self.epsilon))

    def squared_error(self, share: npt.ArrayLike, reports: int) -> Floats:
        """E[(estimate - share)^2] for a value of true share ``share`` among ``reports``, exactly.

        (k - 2 + e^eps) / (n (e^eps - 1)^2) + share (k - 2) / (n (e^eps - 1)).
        """
        gap = math.expm1(self.epsilon)
        shares = np.asarray(share, dtype=np.float64)
        return np.asarray((self.levels - 1 + gap) / (reports * gap**2) + shares * (self.levels - 2) / (reports * gap))


def standard_laplace(count: int, stream: Stream) -> Floats:
    """``count`` Laplace numbers of scale 1: a sign and an exponential."""
    words = stream.words(count)
    sign = np.where(words & np.uint64(1), 1.0, -1.0)
    return np.asarray(-sign * np.log((words >> np.uint64(11)).astype(np.float64) * 2.0**-53 + 2.0**-54))


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
