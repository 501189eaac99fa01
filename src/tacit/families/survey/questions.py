"""Questions to people: the share of every answer, or a mean, with central or local noise.

    central   a trusted server sees all answers and adds noise to the result
    local     every person randomises the answer, and no party is trusted

A question has public numbers only: ``event`` is what an answer costs a person whose data are replaced,
``expected_error`` the standard error to be expected of one answer (for shares, where all of them are equal), and
``release`` gives estimates from the values of records ``[records]`` and whose each of them is.

**Every person counts once.** A person with several records counts by their average. In the local model a person answers
a question with categories by one record, drawn at random, which has the same mean.

**Formal guarantees.** Unit subject, relation replace: the answers of one person replaced by others; the number of
people is public. Central: every view of the result, but not the server. A person's part of the counts is a probability
vector, so that replacing it moves them by at most 2 in l1 and sqrt 2 in l2; a mean of n people in [low, high] moves by
(high - low) / n. Laplace noise for delta = 0, else Gaussian noise with the exact condition of Balle and Wang 2018.
Local: every view, the server too, since a report is epsilon-private by itself (``families.randomizers``).
Randomised response is exact; Laplace and Gaussian noise is floating point (``noise_mechanisms``).

**Errors** are those of the noise: how far an estimate is from the result without noise. They do not include that these
people may not be typical of others. Every estimate is unbiased; a share may be below 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tacit.families.randomizers import LaplaceReports, LevelReports, Response, standard_laplace
from tacit.privacy.accounting.events import Event, Gaussian, Pure
from tacit.privacy.invalid import InvalidArgument
from tacit.privacy.mechanisms.noise_mechanisms import Randomizer, finite, gaussian_sigma, standard_normal
from tacit.privacy.mechanisms.noisy_queries import CategoryCounts, record_weights
from tacit.privacy.randomness import Stream

Floats = npt.NDArray[np.float64]
Place = Literal["central", "local"]

CONFIDENCE = 0.95
NORMAL = 1.959963984540054  # its quantile at both ends of CONFIDENCE


class Estimates(NamedTuple):
    """One number per answer: ``estimate``, its ``standard_error``, and half the width of its CONFIDENCE interval."""

    estimate: Floats
    standard_error: Floats
    half_width: Floats


class Central:
    """Noise by a trusted server: Laplace where ``delta`` is 0, else Gaussian.

    sensitivity  of what the noise is added to, in l1 and in l2
    """

    epsilon: float
    delta: float

    @property
    def sensitivity(self) -> tuple[float, float]:
        raise NotImplementedError

    @property
    def scale(self) -> float:
        """The scale of Laplace noise, or the standard deviation of Gaussian noise."""
        l1, l2 = self.sensitivity
        if self.delta == 0:
            return l1 / self.epsilon if self.epsilon > 0 else math.inf
        return gaussian_sigma(self.epsilon, self.delta, l2)

    def event(self) -> Event:
        # of Laplace noise on several numbers no more than the pure bound is claimed
        return Pure(self.epsilon) if self.delta == 0 else Gaussian(self.scale / self.sensitivity[1])

    @property
    def errors(self) -> tuple[float, float]:
        """The standard error of the noise, and what |noise| stays below with probability CONFIDENCE, exactly."""
        if self.delta == 0:
            return math.sqrt(2) * self.scale, -math.log1p(-CONFIDENCE) * self.scale
        return self.scale, NORMAL * self.scale

    def expected_error(self, people: int) -> float:
        return self.errors[0] / people

    def estimates(self, exact: Floats, people: int, stream: Stream) -> Estimates:
        noise = standard_laplace if self.delta == 0 else standard_normal
        noisy = (finite(exact) + self.scale * noise(exact.size, stream)) / people
        return Estimates(noisy, *(np.full(noisy.shape, size / people) for size in self.errors))


@dataclass(frozen=True)
class CentralShares(Central):
    """The share of every one of ``categories`` answers, 0 .. categories-1, with noise on the counts."""

    categories: int
    epsilon: float
    delta: float = 0.0
    place: Place = "central"

    @property
    def sensitivity(self) -> tuple[float, float]:
        return 2.0, math.sqrt(2)

    def release(self, values: npt.ArrayLike, subject: npt.ArrayLike, stream: Stream) -> Estimates:
        counts = CategoryCounts(self.categories, 0.0).total(values, subject)
        return self.estimates(counts, np.unique(np.asarray(subject)).size, stream)


@dataclass(frozen=True)
class LocalShares:
    """The same by k-ary randomised response; with two categories, Warner's (1965).

    one_record  it is public that no person has more than one record: errors are then given exactly
    """

    categories: int
    epsilon: float
    one_record: bool = False
    place: Place = "local"

    @property
    def response(self) -> Response:
        return Response(self.epsilon, self.categories)

    def event(self) -> Event:
        return self.response.event()

    def expected_error(self, people: int) -> float:
        return float(np.sqrt(self.response.squared_error(1 / self.categories, people)))

    def release(self, values: npt.ArrayLike, subject: npt.ArrayLike, stream: Stream) -> Estimates:
        """With one record each the error is that of :meth:`Response.squared_error`, at the estimated share. Else a
        person gives an answer with probability P, linear in the share s of it among the own records; the variance of
        the number of such reports, the sum of P(1 - P), is at most n P(1 - P) at the mean of P: that is the error."""
        own, people = _one_record_each(values, subject, stream)
        reports = self.response.release(own, stream)
        estimate = self.response.histogram(reports)
        if self.one_record:
            error = np.sqrt(self.response.squared_error(np.clip(estimate, 0.0, 1.0), people))
        else:
            seen = np.bincount(reports, minlength=self.categories) / people
            scale = (math.expm1(self.epsilon) + self.categories) / math.expm1(self.epsilon)
            error = scale * np.sqrt(seen * (1 - seen) / people)
        return Estimates(estimate, error, NORMAL * error)


@dataclass(frozen=True)
class CentralMean(Central):
    """The mean over people of a number between the public bounds ``low`` and ``high``; what is beyond counts as the
    bound."""

    low: float
    high: float
    epsilon: float
    delta: float = 0.0
    place: Place = "central"

    @property
    def sensitivity(self) -> tuple[float, float]:
        return self.high - self.low, self.high - self.low

    def release(self, values: npt.ArrayLike, subject: npt.ArrayLike, stream: Stream) -> Estimates:
        """The sum is that of distances from the middle of the bounds: a person who says nothing counts as the middle,
        and moves it by half of what a replacement does."""
        own, middle = _averages(values, subject, self.low, self.high), (self.low + self.high) / 2
        found = self.estimates(np.array([(own - middle).sum()]), own.size, stream)
        return found._replace(estimate=found.estimate + middle)


@dataclass(frozen=True)
class LocalMean:
    """The same if every person reports a randomised number: rounded at random to one of the bounds and randomised
    response (Duchi, Jordan, Wainwright 2018, in one dimension), or with Laplace noise, whichever errs less."""

    low: float
    high: float
    epsilon: float
    place: Place = "local"

    @property
    def randomizer(self) -> Randomizer:
        bits = LevelReports(self.epsilon, 1)
        noise = LaplaceReports(self.epsilon)
        return bits if 0.25 / bits.kept**2 <= noise.blanket_variance else noise

    def event(self) -> Event:
        return Pure(self.epsilon)

    def expected_error(self, people: int) -> float:
        """At the middle of the bounds, where it is largest."""
        made = self.randomizer
        variance = float(made.variance(np.array([0.5]))[0])
        return (self.high - self.low) * math.sqrt(variance / people) / made.kept

    def release(self, values: npt.ArrayLike, subject: npt.ArrayLike, stream: Stream) -> Estimates:
        """A report's variance is concave in the value: at the mean of all it is at least the mean of all variances."""
        made, width = self.randomizer, self.high - self.low
        own = (_averages(values, subject, self.low, self.high) - self.low) / width
        middle = 0.5 + (made.report(own, stream).mean() - 0.5) / made.kept
        variance = made.variance(np.clip([middle], 0.0, 1.0))
        error = width * np.sqrt(variance / own.size) / made.kept
        return Estimates(np.array([self.low + width * middle]), error, NORMAL * error)


Question = CentralShares | LocalShares | CentralMean | LocalMean


def _averages(values: npt.ArrayLike, subject: npt.ArrayLike, low: float, high: float) -> Floats:
    """Every person's average of records within the bounds, [people]."""
    exact = np.clip(np.asarray(values, dtype=np.float64), low, high)
    if np.isnan(exact).any():
        raise InvalidArgument("missing", "values", "a value is missing: fill the gap or leave the record out")
    _, person = np.unique(np.asarray(subject), return_inverse=True)
    return np.clip(np.bincount(person, weights=exact * record_weights(subject)), low, high)


def _one_record_each(values: npt.ArrayLike, subject: npt.ArrayLike, stream: Stream) -> tuple[Floats, int]:
    """The value of one record of every person, drawn by lot, and how many people there are."""
    exact, who = np.asarray(values), np.asarray(subject)
    lot = stream.permutation(who.size)
    people, first = np.unique(who[lot], return_index=True)
    return exact[lot[first]], people.size
