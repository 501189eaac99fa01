"""Statistics over subjects with noise: means, variances, quantiles, category counts and metrics.

Each query is a frozen value of public numbers; ``event()`` is what it costs (written into the ledger *before* anything
leaves), and ``release(…)`` gives an estimate, the standard error that the noise adds to it, and the same event again.

**Every subject counts once.** Record r gets a weight w_r >= 0 from its own subject's records alone
(:func:`record_weights`), such that the weights of one subject sum to at most 1: its records are averaged, within
silos and over silos, however many there are and wherever they lie. A query is a sum over records

    S = sum_r w_r phi(x_r),    phi a fixed map into vectors of norm at most s.

*Sensitivity.* The part of S that belongs to one subject is sum over its records of w_r phi(x_r), of norm at most
s sum w_r <= s. Zeroing the subject out takes that part away and changes nothing else (no other weight, bound or
divisor depends on it), so S moves by at most s: the l2 sensitivity for unit subject, relation zero-out. Replacing a
subject moves S by at most 2 s (halve the noise multiplier for that relation).

**Divisors** are the public number of subjects, or, where none is declared, a noisy count: the total weight is one more
coordinate of S, phi = (1, …), under the same noise. In that case subjects without records do not dilute the result.

**Missing and extreme values.** Values are clipped to the public bounds; a NaN contributes zero (the middle of the
bounds). Nothing about the data raises an error.

**Across silos.** ``total`` is a plain sum. With ``max_silos = m`` a record's weight is 1 / (m n_us), with n_us the
subject's records in this silo: each silo computes its part alone, the parts add up (under masking, with noise in
shares: ``proofs.noisy_silo_sums``), and ``estimate`` finishes from the noisy sum. m is then a promise or enforced, as
everywhere; a subject seen in more silos is scaled down where that is visible.

**Formal guarantee.** For unit subject and relation zero-out, and any view that sees only the noisy sum and what follows
from it, ``release`` satisfies ``account(query.event(), delta)``; noise is floating point (``noise_mechanisms``).
Assumed: bounds, caps, candidates, the number of subjects and m are public and not taken from these records; the subject
index names one person the same way in all silos.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from tacit.privacy.accounting.events import Event, Gaussian, Pure
from tacit.privacy.invalid import not_negative, require
from tacit.privacy.mechanisms.noise_mechanisms import ExponentialMechanism, standard_normal
from tacit.privacy.randomness import Stream

Floats = npt.NDArray[np.float64]
Found = TypeVar("Found")


@dataclass(frozen=True)
class Paid:
    """``estimate`` and the ``standard_error`` that the noise adds to it, one per column, and what they cost."""

    estimate: Floats
    standard_error: Floats
    event: Event


@dataclass(frozen=True)
class PaidMoments:
    """What ``standardize = "paid"`` needs, one number per column: subtract ``mean``, divide by ``deviation``.

    The errors are standard errors from the noise alone. ``deviation`` is never below the square root of
    ``variance_error``, so that noise does not inflate a nearly constant column.
    """

    mean: Floats
    mean_error: Floats
    variance: Floats
    variance_error: Floats
    deviation: Floats
    deviation_error: Floats
    event: Event


@dataclass(frozen=True)
class PaidQuantile:
    """A quantile. What the noise does to the *value* depends on how dense the private values are there, so its error is
    given in ranks: ``rank_error`` is the standard deviation, in subjects, where the candidates lie dense."""

    estimate: float
    rank_error: float
    event: Event


def record_weights(
    subject: npt.ArrayLike, silo: npt.ArrayLike | None = None, max_silos: int | None = None, cap: float = 1.0
) -> Floats:
    """A weight for each record: non-negative, at most 1 each, and at most ``cap`` together for every subject.

    With n records of a subject: min(1, cap / n). With silos, the subject in k of them and n_s records in silo s:
    min(1, cap / (k n_s)), and cap / (max(k, max_silos) n_s) where each silo must do without knowing k.

    The sum for one subject is at most sum over its k silos of n_s cap / (k n_s) = cap.
    """
    who = np.asarray(subject).ravel()
    _, person = np.unique(who, return_inverse=True)
    if silo is None:
        held, silos_of = np.bincount(person, minlength=1)[person], np.ones(who.size)
    else:
        where = np.asarray(silo).ravel()
        problem = f"{who.size} records have {where.size} silos: give one per record"
        require("wrong-length", "silo", where.size == who.size, problem)
        names, place = np.unique(where, return_inverse=True)
        pairs, pair, in_pair = np.unique(person * max(names.size, 1) + place, return_inverse=True, return_counts=True)
        held = in_pair[pair]
        silos_of = np.bincount(pairs // max(names.size, 1), minlength=1)[person].astype(np.float64)
    if max_silos is not None:
        silos_of = np.maximum(silos_of, max_silos)
    return np.asarray(np.minimum(1.0, cap / (silos_of * np.maximum(held, 1))), dtype=np.float64)


# -- means and variances -----------------------------------------------------------------------------------------------


class SubjectSum(ABC, Generic[Found]):
    """A sum over records in which every subject counts once, with Gaussian noise on every number."""

    noise_multiplier: float

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """l2 sensitivity of ``total`` for zero-out of one subject."""

    @abstractmethod
    def total(self, values: npt.ArrayLike, subject: npt.ArrayLike, silo: npt.ArrayLike | None = None) -> Floats:
        """The exact sum: private, not to be released."""

    @abstractmethod
    def estimate(self, noisy: Floats) -> Found:
        """What follows from the noisy sum: post-processing."""

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise on every number of ``total``."""
        return self.noise_multiplier * self.sensitivity

    def event(self) -> Event:
        return Gaussian(self.noise_multiplier)

    def release(
        self, values: npt.ArrayLike, subject: npt.ArrayLike, stream: Stream, silo: npt.ArrayLike | None = None
    ) -> Found:
        """``values`` [records, F] or [records] (of categories 0, 1, …), with the subject (and silo) of each record."""
        exact = self.total(values, subject, silo)
        return self.estimate(exact + self.sigma * standard_normal(exact.size, stream))


@dataclass(frozen=True)
class _ColumnSums(SubjectSum[Found]):
    """A sum of per-record vectors phi over F columns, subjects weighted alike, and its noise: what Means and Moments
    share. Without a public number of subjects the vector ends with a count.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    noise_multiplier: float
    subjects: int | None = None
    max_silos: int | None = None

    numbers_per_column: ClassVar[int]

    def __post_init__(self) -> None:
        _check_columns(self.low, self.high)
        check_crowd(self.noise_multiplier, self.subjects, self.max_silos)

    @property
    def numbers(self) -> int:
        """How many numbers ``total`` has."""
        return self.numbers_per_column * len(self.low) + (self.subjects is None)

    @property
    def sensitivity(self) -> float:
        """l2 sensitivity of ``total`` for zero-out of one subject: every number of phi lies in [-1, 1]."""
        return math.sqrt(self.numbers)

    def total(self, values: npt.ArrayLike, subject: npt.ArrayLike, silo: npt.ArrayLike | None = None) -> Floats:
        """The exact sum of phi, and the count: private, not to be released."""
        return _total(self._phi(values), record_weights(subject, silo, self.max_silos), self.subjects)

    def parts(self, values: npt.ArrayLike, subject: npt.ArrayLike, silo: npt.ArrayLike, silos: int) -> Floats:
        """``total`` silo by silo, [silos, …], ``silo`` numbered from 0: private, not to be released."""
        features, weights, where = self._phi(values), record_weights(subject, silo, self.max_silos), np.ravel(silo)
        _check_lengths(len(features), where.size)
        mine = (where == k for k in range(silos))
        return np.stack([_total(features[rows], weights[rows], self.subjects) for rows in mine])

    @abstractmethod
    def _phi(self, values: npt.ArrayLike) -> Floats:
        """[records, numbers_per_column * F]"""


@dataclass(frozen=True)
class Means(_ColumnSums[Paid]):
    """Means of F columns over subjects, each subject by the average of its records: one vector Gaussian event.

    low, high          public bounds of each column, [F]
    noise_multiplier   standard deviation of the noise over the sensitivity: ``gaussian_sigma(epsilon, delta)``
    subjects           public number of subjects, the divisor; None: a noisy count is part of the same event
    max_silos          see the module: silos compute their parts alone; the divisor is then always the noisy count

    phi(x) = z with z_j = (x_j - middle_j) / half width_j clipped to [-1, 1]: norm at most sqrt(F), attained at a corner
    of the box. With a count, phi(x) = (z, 1): sqrt(F + 1). The middle of the bounds is the origin, because taking a
    subject away then moves the sum by half of what the range of a column would suggest.
    """

    numbers_per_column = 1

    def _phi(self, values: npt.ArrayLike) -> Floats:
        scaled, known = _scaled(values, self.low, self.high)
        return np.where(known, scaled, 0.0)

    def estimate(self, noisy: Floats) -> Paid:
        average, divisor, counted = _divided(noisy, self.subjects)
        error = self.sigma / divisor * np.sqrt(1 + counted * average**2)
        middle, half = _middle(self.low, self.high)
        return Paid(middle + half * np.clip(average, -1.0, 1.0), half * error, self.event())


@dataclass(frozen=True)
class Moments(_ColumnSums[PaidMoments]):
    """Means *and* variances of F columns over subjects as ONE vector Gaussian event: what standardising needs.

    Parameters as for :class:`Means`. The mean is that of a random record of a random subject, the variance likewise:
    E[z^2] - E[z]^2 with both expectations taken first over a subject's records, then over subjects.

    phi(x) = (z_1 … z_F, 2 z_1^2 - 1 … 2 z_F^2 - 1), z as for :class:`Means`. Both moments lie in [-1, 1], so that

        |phi|^2 = sum_j z_j^2 + (2 z_j^2 - 1)^2 <= 2 F:    sensitivity sqrt(2 F),

    since t + (2 t - 1)^2 is convex in t = z^2 and is 1 at t = 0 and 2 at t = 1, its largest value on [0, 1]. Attained
    by a subject all of whose values lie on the bounds. With a noisy count: sqrt(2 F + 1). Taking 2 z^2 - 1 instead of
    z^2 halves the noise of the second moment for the same sensitivity. (Two separate events would cost the same noise:
    sqrt(F) for each, composed.)

    The squared noisy mean is too large by the variance of its noise, which is known and subtracted.
    """

    numbers_per_column = 2

    def _phi(self, values: npt.ArrayLike) -> Floats:
        scaled, known = _scaled(values, self.low, self.high)
        return np.concatenate([np.where(known, scaled, 0.0), np.where(known, 2 * scaled**2 - 1, 0.0)], axis=1)

    def estimate(self, noisy: Floats) -> PaidMoments:
        columns = len(self.low)
        average, divisor, counted = _divided(noisy, self.subjects)
        first, second = average[:columns], average[columns:]
        noise = self.sigma / divisor
        first_error = noise * np.sqrt(1 + counted * first**2)
        # d variance = d second / 2 - 2 first d first, where the count's noise enters both; plus the square of the noise
        squared = 0.25 + 4 * first**2 + counted * (second / 2 - 2 * first**2) ** 2
        variance_error = np.sqrt(noise**2 * squared + 2 * first_error**4)
        variance = np.clip((second + 1) / 2 - first**2 + first_error**2, 0.0, 1.0)
        deviation = np.sqrt(np.maximum(variance, np.minimum(variance_error, 1.0)))
        middle, half = _middle(self.low, self.high)
        with np.errstate(divide="ignore", invalid="ignore"):
            deviation_error = np.where(deviation > 0, half * variance_error / (2 * deviation), 0.0)
        return PaidMoments(
            mean=middle + half * np.clip(first, -1.0, 1.0),
            mean_error=half * first_error,
            variance=half**2 * variance,
            variance_error=half**2 * variance_error,
            deviation=half * deviation,
            deviation_error=deviation_error,
            event=self.event(),
        )


# -- counts ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CategoryCounts(SubjectSum[Paid]):
    """How much of every category there is, [categories]; with ``categories = 1`` and zeros as values, how many
    subjects.

    cap   the most that one subject counts over all categories and silos. 1: every subject is spread over the categories
          of its records, and the counts sum to the number of subjects. More: records are counted, n of them as n, and a
          subject with more than ``cap`` is scaled down.

    phi(x) is the unit vector of the record's category, and the weights of one subject sum to at most ``cap``: its part
    has l1 and hence l2 norm at most cap, attained when all its records are of one category. Values that are no category
    count nowhere. Estimates are unbiased and may be negative.
    """

    categories: int
    noise_multiplier: float
    cap: float = 1.0
    max_silos: int | None = None

    def __post_init__(self) -> None:
        check_crowd(self.noise_multiplier, None, self.max_silos)
        usual = self.categories >= 1 and 0 < self.cap < math.inf
        require("out-of-range", "categories", usual, "at least one category and a positive, finite cap are required")

    @property
    def sensitivity(self) -> float:
        return self.cap

    def total(self, values: npt.ArrayLike, subject: npt.ArrayLike, silo: npt.ArrayLike | None = None) -> Floats:
        """The exact counts: private, not to be released."""
        category = np.asarray(values).ravel()
        weights = record_weights(subject, silo, self.max_silos, self.cap)
        _check_lengths(category.size, weights.size)
        known = (category >= 0) & (category < self.categories) & (category == np.floor(category))
        kept = category[known].astype(np.int64)
        return np.asarray(np.bincount(kept, weights=weights[known], minlength=self.categories), dtype=np.float64)

    def estimate(self, noisy: Floats) -> Paid:
        return Paid(noisy, np.full(self.categories, self.sigma), self.event())


# -- quantiles ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Quantile:
    """The value below which a ``share`` of the weight lies, by the exponential mechanism on public candidates.

    candidates   points between ``low`` and ``high``; ``geometric``: equal ratios instead of equal steps (low > 0)
    max_silos    only the convention of the weights; the release itself needs all records in one place

    score(t) = -|sum_r w_r (1[x_r <= t] - share)|: how far t is from the quantile in subjects. No divisor is needed.
    The part of one subject lies between -share and 1 - share (its weights sum to at most 1), so zeroing it out moves
    the score of every candidate by at most max(share, 1 - share), the sensitivity (McSherry and Talwar 2007). The
    candidate is drawn exactly (``mechanisms.ExponentialMechanism``).

    **Formal guarantee.** Unit subject, relation zero-out: Pure(epsilon), for every view of the result. Under
    replacement a score moves by at most 1: use epsilon max(share, 1 - share) for the same promise.
    """

    share: float
    low: float
    high: float
    epsilon: float
    candidates: int = 1000
    geometric: bool = False
    max_silos: int | None = None

    def __post_init__(self) -> None:
        _check_columns((self.low,), (self.high,))
        require("out-of-range", "share", 0 <= self.share <= 1, f"must be between 0 and 1 (got {self.share})")
        require("out-of-range", "epsilon", not_negative("epsilon", self.epsilon) < math.inf, "must be finite")
        usual = self.candidates >= 2 and (self.low > 0 or not self.geometric)
        require("out-of-range", "candidates", usual, "two candidates at least; a geometric grid begins above 0")

    @property
    def grid(self) -> Floats:
        """The candidates, ascending."""
        spaced = np.geomspace if self.geometric else np.linspace
        return np.asarray(spaced(self.low, self.high, self.candidates), dtype=np.float64)

    @property
    def sensitivity(self) -> float:
        """The most that one subject moves any score."""
        return max(self.share, 1 - self.share)

    def event(self) -> Event:
        return Pure(self.epsilon)

    def scores(self, values: npt.ArrayLike, subject: npt.ArrayLike, silo: npt.ArrayLike | None = None) -> Floats:
        """The exact score of every candidate: private, not to be released."""
        exact = np.asarray(values, dtype=np.float64).ravel()
        weights = record_weights(subject, silo, self.max_silos)
        _check_lengths(exact.size, weights.size)
        known = ~np.isnan(exact)
        order = np.argsort(exact[known], kind="stable")
        below = np.concatenate([[0.0], np.cumsum(weights[known][order])])
        places = np.searchsorted(exact[known][order], self.grid, side="right")
        return np.asarray(-np.abs(below[places] - self.share * below[-1]), dtype=np.float64)

    def release(
        self, values: npt.ArrayLike, subject: npt.ArrayLike, stream: Stream, silo: npt.ArrayLike | None = None
    ) -> PaidQuantile:
        """``values`` [records], with the subject (and silo) of each record."""
        chosen = ExponentialMechanism(self.epsilon, self.sensitivity).release(
            self.scores(values, subject, silo), stream
        )
        # exp(-epsilon |rank| / (2 sensitivity)) is a Laplace law of scale 2 sensitivity / epsilon
        deviation = math.sqrt(2) * 2 * self.sensitivity / self.epsilon if self.epsilon > 0 else math.inf
        return PaidQuantile(float(self.grid[chosen]), deviation, self.event())


# -- metrics -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Metrics:
    """Several metrics on private records at once, for the price of one vector: averages over subjects of scores.

    names, bounds   each metric's scores lie between 0 and its public bound: 1 for accuracy; a declared one for
                    log-loss and squared errors, at which they are cut

    A metric is here "of a random record of a random subject": :class:`Means` of the scores, whose proof it shares.
    Metrics that are no averages (AUC, average precision) are not offered.

    **Formal guarantee.** That of :class:`Means`, given that the model evaluated is public or released with noise.
    """

    names: tuple[str, ...]
    bounds: tuple[float, ...]
    noise_multiplier: float
    subjects: int | None = None
    max_silos: int | None = None

    def __post_init__(self) -> None:
        usual = len(set(self.names)) == len(self.names) == len(self.bounds)
        require("mismatch", "metrics", usual, "every metric needs its own name and one bound")
        self.means()

    def means(self) -> Means:
        """The query behind it."""
        low = (0.0,) * len(self.bounds)
        return Means(low, self.bounds, self.noise_multiplier, self.subjects, self.max_silos)

    def event(self) -> Event:
        return self.means().event()

    def release(
        self,
        scores: Mapping[str, npt.ArrayLike],
        subject: npt.ArrayLike,
        stream: Stream,
        silo: npt.ArrayLike | None = None,
    ) -> dict[str, Paid]:
        """``scores`` by name, [records] each. All results together cost one event, which each of them carries."""
        columns = np.stack([np.asarray(scores[name], dtype=np.float64).ravel() for name in self.names], axis=1)
        paid = self.means().release(columns, subject, stream, silo)
        return {
            name: Paid(paid.estimate[index], paid.standard_error[index], paid.event)
            for index, name in enumerate(self.names)
        }


# -- small things ------------------------------------------------------------------------------------------------------


def _scaled(
    values: npt.ArrayLike, low: tuple[float, ...], high: tuple[float, ...]
) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Columns on [-1, 1], [records, F], and which entries are numbers. Clipped before anything can overflow."""
    exact = np.asarray(values, dtype=np.float64)
    exact = exact.reshape(-1, len(low)) if exact.ndim != 2 else exact
    problem = f"{exact.shape[1]} columns have {len(low)} bounds: give one per column"
    require("wrong-length", "bounds", exact.shape[1] == len(low), problem)
    middle, half = _middle(low, high)
    known = ~np.isnan(exact)
    inside = np.clip(np.where(known, exact, middle), low, high)
    return np.clip((inside - middle) / half, -1.0, 1.0), known


def _middle(low: tuple[float, ...], high: tuple[float, ...]) -> tuple[Floats, Floats]:
    """Middle and half width of the bounds, [F]."""
    lower, upper = np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64)
    return lower / 2 + upper / 2, upper / 2 - lower / 2


# steps of the grid on which records are added up, for 1
STEPS = 2.0**40


def _total(features: Floats, weights: Floats, subjects: int | None) -> Floats:
    """The sum of weighted features, and of weights: whole steps of 2^-40, each record's rounded toward zero, so that a
    record adds what it adds alone. 8 million subjects fit 64 bits; the sum is rounded once, by less than 1e-9."""
    _check_lengths(len(features), weights.size)
    columns = features if subjects is not None else np.column_stack([features, np.ones(len(features))])
    steps = np.trunc(weights[:, np.newaxis] * columns * STEPS).astype(np.int64)
    return np.asarray(steps.sum(axis=0) / STEPS, dtype=np.float64)


def _divided(noisy: Floats, subjects: int | None) -> tuple[Floats, float, int]:
    """(averages, divisor, 1 where the divisor is a noisy count and adds to the error)."""
    if subjects is not None:
        return noisy / subjects, float(subjects), 0
    divisor = max(1.0, float(noisy[-1]))
    return np.clip(noisy[:-1] / divisor, -1e6, 1e6), divisor, 1


def _check_columns(low: tuple[float, ...], high: tuple[float, ...]) -> None:
    require("missing", "bounds", len(low) == len(high) > 0, "one low and one high are required for every column")
    usual = all(-math.inf < lower < upper < math.inf for lower, upper in zip(low, high, strict=True))
    require("out-of-range", "bounds", usual, "bounds must be finite, the lower one first")


def check_crowd(noise_multiplier: float, subjects: int | None, max_silos: int | None) -> None:
    finite = not_negative("noise_multiplier", noise_multiplier) < math.inf
    require("out-of-range", "noise_multiplier", finite, "must be finite")
    require("out-of-range", "subjects", subjects is None or subjects >= 1, "must be at least 1")
    require("out-of-range", "max_silos", max_silos is None or max_silos >= 1, "must be at least 1")
    problem = "with max_silos the weights do not sum to the number of subjects: leave subjects out"
    require("mismatch", "subjects", subjects is None or max_silos is None, problem)


def _check_lengths(values: int, records: int) -> None:
    problem = f"{values} values belong to {records} records: give one subject per value"
    require("wrong-length", "subject", values == records, problem)
