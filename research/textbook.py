"""Textbook noise, and what histograms and means cost in accuracy, centrally and locally ([Slides]).

In the local model every person randomises their value before any other party sees it; in the central model a trusted
party adds noise to the answer once. The bounds are those of the slides with their errors corrected (specification 6, S5
to S7 and S11 to S13); what the slides print is under ``as_published_``. No command of Tacit uses these formulas.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy import special

from tacit.privacy.invalid import InvalidArgument
from tacit.privacy.mechanisms.noise_mechanisms import gaussian_sigma


@dataclass(frozen=True)
class PublishedNoise:
    """A noise formula's standard deviation, whether its condition holds for these numbers, and the condition."""

    sigma: float
    holds: bool
    condition: str


def as_published_gaussian_noise(sensitivity: float, epsilon: float, delta: float) -> PublishedNoise:
    """The textbook Gaussian mechanism, sigma = S sqrt(2 ln(1.25 / delta)) / epsilon (Dwork and Roth 2014, Theorem A.1).

    The slides state it for every epsilon ([Slides, S5]). It is proved for epsilon <= 1 and fails for large ones: at
    delta = 1e-5 from 8.42 on. ``gaussian.gaussian_mu`` solves the exact condition.
    """
    sigma = sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon if epsilon > 0 else math.inf
    return PublishedNoise(sigma, holds=0 < epsilon <= 1 and 0 < delta < 1, condition="0 < epsilon <= 1")


def as_published_dpsgd_noise(
    lipschitz: float, epsilon: float, delta: float, records: int, steps: int
) -> PublishedNoise:
    """The slides' DP-SGD noise, 16 l sqrt(T ln(2/delta) ln(2.5 T / (delta n))) / (n epsilon) ([Slides, S9]), one
    record per step.

    It splits the budget by advanced composition and amplification, both in forms that need many steps.
    """
    inside = 2.5 * steps / (delta * records)
    sigma = (
        16 * lipschitz * math.sqrt(steps * math.log(2 / delta) * math.log(inside)) / (records * epsilon)
        if inside > 1
        else 0.0
    )
    enough = steps >= (records * epsilon) ** 2 / (32 * math.log(2 / delta))
    return PublishedNoise(
        sigma,
        holds=enough and inside > 1 and epsilon <= 1,
        condition="T >= n^2 epsilon^2 / (32 ln(2/delta)), 2.5 T > delta n and epsilon <= 1",
    )


def response_epsilon(truth: float) -> float:
    """Local epsilon of answering a yes-no question truthfully with probability ``truth``: |ln(truth / (1 - truth))|."""
    if not 0 <= truth <= 1:
        raise InvalidArgument("out-of-range", "truth", f"a probability is between 0 and 1, not {truth}")
    return abs(math.log(truth / (1 - truth))) if 0 < truth < 1 else math.inf


def local_mean_variance(count: int, epsilon: float, delta: float, width: float = 1.0) -> float:
    """Variance that local Gaussian noise adds to the mean of ``count`` values from an interval of this width."""
    return gaussian_sigma(epsilon, delta, width) ** 2 / count


def central_mean_variance(count: int, epsilon: float, delta: float, width: float = 1.0) -> float:
    """The same when a trusted party adds the noise to the mean: one value moves it by width / count (replacement)."""
    return gaussian_sigma(epsilon, delta, width / count) ** 2


def as_published_local_mean_variance(count: int, epsilon: float, delta: float) -> float:
    """The slides' 2 ln(1.25/delta) / (n epsilon^2) (S13): private for epsilon <= 1, with more noise than needed."""
    return 2 * math.log(1.25 / delta) / (count * epsilon**2)


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
        raise InvalidArgument("out-of-range", "epsilon", problem)
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
