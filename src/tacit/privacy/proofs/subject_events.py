"""Events of one subject: pure functions of public numbers (specification 1.1, 1.2, 1.2b and 2).

Throughout, ``noise_multiplier`` is the standard deviation of the noise on a *sum* divided by the clip C, ``rate`` the
public probability with which each record enters a batch, ``records`` the public and enforced largest number of
records per subject and silo, and the relation is zero-out unless said otherwise.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from tacit.privacy.accounting.events import (
    Event,
    Gaussian,
    GaussianMixture,
    PoissonSampled,
    Repeated,
    SampledWithoutReplacement,
)

Array = npt.NDArray[np.float64]

# A rate is written as a share of this population, rounded up.
_POPULATION = 10**9


def sampled_place(rate: float, replaced: Gaussian) -> Event:
    """A unit takes part with probability ``rate``; the change puts another unit in its place.

    With P0 for a place that is left out, P1 and P1' for one that is in, the pair is (1 - rate) P0 + rate P1 against
    (1 - rate) P0 + rate P1'. Where any two of the three are no further apart than ``replaced`` says, advanced joint
    convexity gives what sampling without replacement gives (Balle, Barthe, Gaboardi 2018; specification 9.8).
    """
    if rate >= 1:
        return replaced
    return SampledWithoutReplacement(math.ceil(rate * _POPULATION), _POPULATION, replaced)


# -- one silo ----------------------------------------------------------------------------------------------------------


def subject_rate(rate: float, records: int) -> float:
    """1 - (1 - rate)^records: the probability that a batch holds at least one of the subject's records."""
    return -math.expm1(records * math.log1p(-rate)) if rate < 1 else float(records > 0)


def averaged_per_subject(rate: float, records: int, noise_multiplier: float, batches: int) -> Event:
    """HiGradAvgDP: whatever the number of sampled records, the subject moves the sum by at most C."""
    return Repeated(PoissonSampled(subject_rate(rate, records), Gaussian(noise_multiplier)), batches)


def summed_records(rate: float, records: int, noise_multiplier: float, batches: int, cap: int | None = None) -> Event:
    """LocalGroupDP and LocalSubDP with constant noise: j sampled records move the sum by up to j C, by min(j, cap) C
    where the excess is dropped at random."""
    return Repeated(binomial_mixture(records, rate, noise_multiplier, cap), batches)


def binomial_mixture(
    parts: int, rate: float, noise_multiplier: float, cap: int | None = None, step: float = 1.0
) -> GaussianMixture:
    """A unit in ``parts`` parts, each sampled with ``rate`` by a coin of its own and moving the sum by ``step``; what
    is beyond ``cap`` parts is dropped."""
    amounts = np.arange(parts + 1)
    moved = step * (amounts if cap is None else np.minimum(amounts, cap))
    return _mixture(noise_multiplier, moved, binomial(parts, rate))


def clipped_batch_of_silo(noise_multiplier: float, batches: int, replace: bool = True) -> Event:
    """UserLDP, silo unit: every batch is drawn from the replaced data, so nothing is amplified, and a clipped vector
    moves by 2 C when it is replaced, by C when it is zeroed."""
    return Repeated(Gaussian(noise_multiplier / 2 if replace else noise_multiplier), batches)


def clipped_batch_of_subject(rate: float, records: int, noise_multiplier: float, batches: int) -> Event:
    """UserLDP, subject unit: the clipped gradient of a batch that holds the subject may flip: 2 C."""
    return Repeated(PoissonSampled(subject_rate(rate, records), Gaussian(noise_multiplier / 2)), batches)


def fixed_batches(
    population: int, batch: int, records: int, noise_multiplier: float, batches: int, averaged: bool = True
) -> Event:
    """``batch`` of ``population`` records without replacement: j records of the subject displace j others, each of
    which moves the sum by up to C. Averaged per subject: (1 + j) C; summed: 2 j C (specification 1.1)."""
    amounts = np.arange(records + 1)
    moved = np.where(amounts > 0, amounts + 1, 0) if averaged else 2 * amounts
    return Repeated(_mixture(noise_multiplier, moved, hypergeometric(population, records, batch)), batches)


def shuffled_epochs(
    epochs: int, noise_multiplier: float, records: int = 1, batches_per_epoch: int = 1, averaged: bool = True
) -> Event:
    """Batches from a shuffled pass over the data, nothing amplified (specification 0.4). Averaged per subject: at most
    min(records, batches per epoch) batches hold the subject. Summed: all its records may fall into one batch."""
    if averaged or records <= 1:
        return Repeated(Gaussian(noise_multiplier), epochs * min(records, batches_per_epoch))
    return Repeated(Gaussian(noise_multiplier / records), epochs)


# -- several silos -----------------------------------------------------------------------------------------------------


def sum_seen(inclusion: float, silos: int, noise_multiplier: float, rounds: int) -> Event:
    """Only the sum over ``silos`` is seen, one batch per silo and round, the subject in each with probability
    ``inclusion`` and moving it by at most C: a binomial mixture against noise of sqrt(silos) times the standard
    deviation."""
    return Repeated(
        _mixture(math.sqrt(silos) * noise_multiplier, np.arange(silos + 1), binomial(silos, inclusion)), rounds
    )


def central_group(
    rate: float, records: int, with_subject: int, silos: int, noise_multiplier: float, rounds: int
) -> Event:
    """CentralSubDP with constant noise, public view, one batch per silo and round: all records of the subject in the
    ``with_subject`` silos, each sampled by itself, against the noise of ``silos`` silos."""
    total = with_subject * records
    noise = math.sqrt(silos) * noise_multiplier
    return Repeated(_mixture(noise, np.arange(total + 1), binomial(total, rate)), rounds)


# -- per-user weighted clipping (ULDP) and its views -------------------------------------------------------------------


def weighted_users(noise_multiplier: float, rounds: int, rate: float = 1.0, factor: float = 1.0) -> Event:
    """ULDP-AVG and -SGD: the subject's total over silos has norm at most C. ``factor`` multiplies the Renyi
    divergence for the view in question (below); ``rate`` is credited only to views that do not know who was
    sampled."""
    return Repeated(PoissonSampled(rate, Gaussian(noise_multiplier / math.sqrt(factor))), rounds)


def naive_silos(noise_multiplier: float, rounds: int) -> Event:
    """ULDP-NAIVE, noise relative to C |S|: a silo's clipped update depends on all its users and may flip, 2 C."""
    return Repeated(Gaussian(noise_multiplier / 2), rounds)


def grouped_records(rate: float, group: int, noise_multiplier: float, steps: int) -> Event:
    """ULDP-GROUP-k: at most ``group`` records per user over all silos, each sampled with at most ``rate``."""
    return summed_records(rate, group, noise_multiplier, steps)


def server_factor(silos: int, squared_weights: float | None = None) -> float:
    """A server that sees each silo's update with noise of variance sigma^2 / |S|: |S| max_u sum_s w^2, at worst |S|."""
    return silos * (1.0 if squared_weights is None else squared_weights)


def colluding_factor(silos: int, colluding: int = 1, largest_weight: float = 1.0) -> float:
    """Silos that subtract their own noise: |S| / (|S| - c) for any weights. Where no silo has more than
    ``largest_weight`` of a subject, the others hold at most h = min(1, (|S| - c) largest_weight), and the factor is
    h^2 |S| / (|S| - c): 1 - c / |S| for uniform weights 1 / |S|."""
    others = silos - colluding
    if others <= 0:
        return math.inf  # no silo is left to protect
    return min(1.0, others * largest_weight) ** 2 * silos / others


REPLACEMENT_FACTOR = 4.0
"""Another subject's data instead of none: twice the sensitivity."""


def adaptive_clip(count_noise: float, rounds: int) -> Event:
    """One noisy count per round, centred so that a subject moves it by at most 1/2 (specification 1.2b)."""
    return Repeated(Gaussian(2 * count_noise), rounds)


# -- probabilities -----------------------------------------------------------------------------------------------------


def binomial(trials: int, rate: float) -> Array:
    """Pr[Binom(trials, rate) = 0..trials], summing to 1."""
    j = np.arange(trials + 1)
    if rate <= 0 or rate >= 1:
        return np.asarray(j == (trials if rate >= 1 else 0), dtype=np.float64)
    return _normalised(_log_choose(trials, j) + j * math.log(rate) + (trials - j) * math.log1p(-rate))


def hypergeometric(population: int, marked: int, drawn: int) -> Array:
    """Pr[j marked ones among the drawn], j = 0..marked."""
    j = np.arange(marked + 1)
    possible = (j <= drawn) & (drawn - j <= population - marked)
    k = np.where(possible, j, max(0, drawn - population + marked))
    logs = _log_choose(marked, k) + _log_choose(population - marked, drawn - k)
    return _normalised(np.where(possible, logs, -np.inf))


def _log_choose(n: int, k: npt.NDArray[np.int64]) -> Array:
    # of few numbers, and without SciPy, which takes a second to import
    logs = np.array([math.lgamma(i + 1) for i in range(n + 1)])
    return np.asarray(logs[n] - logs[k] - logs[n - k], dtype=np.float64)


def _normalised(logs: Array) -> Array:
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / math.fsum(weights), dtype=np.float64)


def _mixture(noise_multiplier: float, amounts: npt.NDArray[Any], probabilities: Array) -> GaussianMixture:
    return GaussianMixture(noise_multiplier, tuple(map(float, amounts)), tuple(map(float, probabilities)))
