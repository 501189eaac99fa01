"""Randomised response, and what histograms and means cost in accuracy, centrally and locally ([Slides]).

In the local model every person randomises their value before any other party sees it; in the central model a trusted
party adds noise to the answer once. The bounds here are those of the slides with their errors corrected (specification
6, S5 to S7 and S11 to S13); what the slides print is under ``as_published_``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

from tacit.privacy.accounting import events
from tacit.privacy.invalid import InvalidArgument
from tacit.privacy.mechanisms.discrete_gaussian import exp_coins
from tacit.privacy.mechanisms.noise_mechanisms import gaussian_sigma
from tacit.privacy.randomness import Stream

Floats = npt.NDArray[np.float64]


# --- randomised response ---------------------------------------------------------------------------------------------


def response_epsilon(truth: float) -> float:
    """Local epsilon of answering a yes-no question truthfully with probability ``truth``: |ln(truth / (1 - truth))|."""
    if not 0 <= truth <= 1:
        raise InvalidArgument("out-of-range", "truth", f"a probability is between 0 and 1, not {truth}")
    return abs(math.log(truth / (1 - truth))) if 0 < truth < 1 else math.inf


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


# --- means -----------------------------------------------------------------------------------------------------------


def local_mean_variance(count: int, epsilon: float, delta: float, width: float = 1.0) -> float:
    """Variance that local Gaussian noise adds to the mean of ``count`` values from an interval of this width."""
    return gaussian_sigma(epsilon, delta, width) ** 2 / count


def central_mean_variance(count: int, epsilon: float, delta: float, width: float = 1.0) -> float:
    """The same when a trusted party adds the noise to the mean: one value moves it by width / count (replacement)."""
    return gaussian_sigma(epsilon, delta, width / count) ** 2


def as_published_local_mean_variance(count: int, epsilon: float, delta: float) -> float:
    """The slides' 2 ln(1.25/delta) / (n epsilon^2) (S13): private for epsilon <= 1, with more noise than needed."""
    return 2 * math.log(1.25 / delta) / (count * epsilon**2)


# --- histograms under the Gaussian mechanism -------------------------------------------------------------------------


def largest_error(sigma: float, queries: int, failure: float) -> float:
    """What the largest of ``queries`` independent |N(0, sigma^2)| exceeds with probability ``failure``, exactly."""
    # each stays within with probability (1 - failure)^(1/queries)
    outside = -math.expm1(math.log1p(-failure) / queries)
    return float(-sigma * special.ndtri(outside / 2))


def largest_error_coverage(sigma: float, queries: int, error: float) -> float:
    """Probability that none of ``queries`` independent N(0, sigma^2) exceeds ``error``."""
    return float(np.exp(queries * np.log1p(-2 * special.ndtr(-error / sigma))))


def textbook_sigma(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """sqrt(2 ln(1.25/delta)) sensitivity / epsilon: private for epsilon <= 1 (S5), refused above."""
    if not 0 < epsilon <= 1:
        problem = "the textbook Gaussian mechanism is proved for 0 < epsilon <= 1: use gaussian_sigma"
        raise InvalidArgument("not-proved", "epsilon", problem)
    return math.sqrt(2 * math.log(1.25 / delta)) * sensitivity / epsilon


def histogram_error_bound(
    levels: int, epsilon: float, delta: float, failure: float, sensitivity: float = math.sqrt(2)
) -> float:
    """With probability 1 - ``failure`` no count is off by more, with textbook noise: the slides' theorem, corrected.

    2 sqrt(ln(1.25/delta) ln(2 levels/failure)) sensitivity/epsilon, from Pr[|N| > t] <= 2 e^(-t^2 / (2 sigma^2)) and a
    union bound (S6). Under replacement two counts change by one each: sensitivity sqrt 2.
    """
    return textbook_sigma(epsilon, delta, sensitivity) * math.sqrt(2 * math.log(2 * levels / failure))


def histogram_error(
    levels: int, epsilon: float, delta: float, failure: float, sensitivity: float = math.sqrt(2)
) -> float:
    """The same for the least noise that is private, and exactly: no smaller number can be promised for this noise."""
    return largest_error(gaussian_sigma(epsilon, delta, sensitivity), levels, failure)


def as_published_histogram_error(
    levels: int, epsilon: float, delta: float, failure: float, sensitivity: float = math.sqrt(2)
) -> float:
    """The slides' sqrt(2 ln(1.25/delta) ln(levels/failure)) sensitivity/epsilon: not a bound (S6, S7).

    For 10,000 first names, epsilon 1, delta 1e-9 and failure .01 it is the 34 of the slides; that no error exceeds it
    has probability .133, not .99.
    """
    return math.sqrt(2 * math.log(1.25 / delta) * math.log(levels / failure)) * sensitivity / epsilon
