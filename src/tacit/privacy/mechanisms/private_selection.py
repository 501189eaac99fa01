"""Selection of settings on private records within a guarantee: repeat and select.

Draw a random number K, run K times, each time with a setting drawn at random, publish the best run and nothing else:
Liu and Talwar 2019 (a geometric K: stop after each run with a fixed probability); Papernot and Steinke 2022 (truncated
negative binomial and Poisson K). The proofs are in ``selection_bounds``, an example in docs/privacy.md. Where settings
cost differently (another noise, another number of rounds) give all their events: the largest counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, xlogy

from tacit.privacy.accounting.events import Event, Largest, Selected
from tacit.privacy.accounting.selection_bounds import expected_runs, stopping_rate
from tacit.privacy.invalid import require
from tacit.privacy.randomness import Stream

Setting = TypeVar("Setting")
Result = TypeVar("Result")
Floats = npt.NDArray[np.float64]

_MOST_RUNS = 10**5


@dataclass(frozen=True)
class Repetitions:
    """The law of the number of runs.

    mean    expected number of runs
    law     "negative-binomial": at least one run; ``shape`` 1 is the geometric law (Liu and Talwar), 0 the logarithmic
            one; smaller shapes cost less and spread more. "poisson": concentrated around its mean, at a price that
            grows with it, and with probability e^-mean no run at all
    """

    mean: float
    law: Literal["negative-binomial", "poisson"] = "negative-binomial"
    shape: float = 1.0

    def __post_init__(self) -> None:
        least = 1.0 if self.law == "negative-binomial" else 0.0
        problem = f"must be between {least:g} and {_MOST_RUNS} runs (got {self.mean})"
        require("out-of-range", "mean", least <= self.mean <= _MOST_RUNS, problem)
        require("out-of-range", "shape", -1 < self.shape < math.inf, f"must be above -1 and finite (got {self.shape})")

    def event(self, *runs: Event) -> Event:
        """What the selection costs, given the event of one run and its score, or of the runs of all settings."""
        return Selected(runs[0] if len(runs) == 1 else Largest(runs), self.mean, self.law, self.shape)

    def probabilities(self, counts: npt.ArrayLike) -> Floats:
        """Pr[K = k] for every k of ``counts``.

        The truncated negative binomial has, for k >= 1 and with its stopping rate gamma and shape eta,

            Pr[K = k] = E[K] gamma^{1 + eta} (1 - gamma)^{k - 1} Gamma(k + eta) / (Gamma(1 + eta) k!).
        """
        k = np.asarray(counts, dtype=np.float64)
        if self.law == "poisson":
            logs = xlogy(k, self.mean) - self.mean - gammaln(k + 1)
            return np.asarray(np.exp(logs), dtype=np.float64)
        stop = stopping_rate(self.mean, self.shape)
        if stop >= 1:
            return np.asarray(k == 1, dtype=np.float64)
        runs = np.maximum(k, 1)
        logs = math.log(expected_runs(stop, self.shape)) + (1 + self.shape) * math.log(stop)
        logs = logs + (runs - 1) * math.log1p(-stop)
        logs = logs + gammaln(runs + self.shape) - gammaln(1 + self.shape) - gammaln(runs + 1)
        return np.asarray(np.where(k >= 1, np.exp(logs), 0.0), dtype=np.float64)

    def draw(self, stream: Stream) -> int:
        """K, from the stream's key stream: inversion of a 53-bit uniform, the law met to 1e-12 in total variation."""
        point = float(stream.uniform(1)[0]) + 2.0**-54
        start, size, passed = 0, 64, 0.0
        while True:
            mass = self.probabilities(np.arange(start, start + size))
            reached = passed + np.cumsum(mass)
            if reached[-1] >= point:
                return start + int(np.argmax(reached >= point))
            if passed > 0.5 and float(mass.sum()) < 2.0**-60:
                return start
            start, size, passed = start + size, min(2 * size, 1 << 20), float(reached[-1])


@dataclass(frozen=True)
class Choice(Generic[Setting, Result]):
    """The best run: all that may be seen."""

    setting: Setting
    result: Result
    score: float


def repeat_and_select(
    run: Callable[[Setting, int], Result],
    score: Callable[[Result], float],
    settings: Sequence[Setting],
    repetitions: Repetitions,
    stream: Stream,
) -> Choice[Setting, Result] | None:
    """Run a random number of times, each with a random one of ``settings``; the best run, or None after no run.

    run        (setting, number of the run) -> result, with randomness of its own for every number
    score      larger is better; NaN counts as the worst. Its cost on private records belongs to the run's event
    settings   public and fixed before; each is drawn with equal probability, also repeatedly

    **Formal guarantee.** ``repetitions.event(…)`` covers the choice with its setting, result and score, for the unit
    and relation of the run's event, if runs are independent, if nothing else about them is seen (not their number,
    not how long they took, no log of the other scores), and if no run was skipped or ended because of what it showed.
    """
    require("missing", "settings", bool(settings), "at least one setting is required")
    best: Choice[Setting, Result] | None = None
    count = repetitions.draw(stream)
    for number, index in enumerate(stream.integers(len(settings), count).tolist()):
        result = run(settings[index], number)
        given = float(score(result))
        value = -math.inf if math.isnan(given) else given
        # the first of equals: runs are alike, so that is as good as a random one of them
        if best is None or value > best.score:
            best = Choice(settings[index], result, value)
    return best
