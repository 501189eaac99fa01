"""k-ary randomised response: how a person reports one of several values without revealing it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tacit.privacy.accounting import events
from tacit.privacy.invalid import InvalidArgument
from tacit.privacy.mechanisms.discrete_gaussian import exp_coins
from tacit.privacy.randomness import Stream

Floats = npt.NDArray[np.float64]


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

    def event(self) -> events.Event:
        return events.RandomizedResponse(self.epsilon, self.levels)

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

        (k - 2 + e^eps) / (n (e^eps - 1)^2) + share (k - 2) / (n (e^eps - 1)); the slides have no second term (S12).
        """
        gap = math.expm1(self.epsilon)
        shares = np.asarray(share, dtype=np.float64)
        return np.asarray((self.levels - 1 + gap) / (reports * gap**2) + shares * (self.levels - 2) / (reports * gap))

    def as_published_squared_error(self, reports: int) -> float:
        """The slides' error, (k - 2 + e^eps) / (n (e^eps - 1)^2): right for share 0 or two levels only."""
        return (self.levels - 1 + math.expm1(self.epsilon)) / (reports * math.expm1(self.epsilon) ** 2)
