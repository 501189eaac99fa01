"""Surveys: unbiased, with the error that they state; means and variances over many repetitions, fixed seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tacit.families.survey.questions import CentralMean, CentralShares, LocalMean, LocalShares, Question
from tacit.privacy import Gaussian, Pure, RandomizedResponse, Randomness, account

TIMES = 400
SHARES = np.array([0.6, 0.3, 0.1])
# the mean of so many standardised estimates lies within this with probability 1 - 1e-6
OFF = 4.9 / math.sqrt(TIMES)


def people(count: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """One record each."""
    return np.repeat(np.arange(3), (SHARES * count).round().astype(int)), np.arange(count)


def repeated(question: Question, values: np.ndarray, subject: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Estimates, standard errors and half widths ``[times, answers]``."""
    randomness = Randomness.from_seed(1)
    found = [question.release(values, subject, randomness.stream("survey", n)) for n in range(TIMES)]
    return tuple(np.array([getattr(one, name) for one in found]) for name in found[0]._fields)


def assert_honest(question: Question, values: np.ndarray, subject: np.ndarray, truth: np.ndarray) -> None:
    """Unbiased; the stated error is the real one (to 15 %, five deviations of it at 400 times); intervals cover."""
    estimate, error, half = repeated(question, values, subject)
    off = (estimate - truth) / error.mean(axis=0)
    assert np.abs(off.mean(axis=0)).max() < OFF
    np.testing.assert_allclose(off.std(axis=0), 1.0, atol=0.25 if question.place == "central" else 0.18)
    covered = (np.abs(estimate - truth) <= half).mean(axis=0)
    assert covered.min() > 0.90  # of 0.95, binomial with 400 times


@pytest.mark.parametrize(
    "question",
    [
        CentralShares(3, 0.5),
        CentralShares(3, 0.5, 1e-6),
        LocalShares(3, 1.0, one_record=True),
        LocalShares(3, 3.0, True),
    ],
    ids=str,
)
def test_shares_are_unbiased_with_the_stated_error(question):
    assert_honest(question, *people(), SHARES)


@pytest.mark.parametrize(
    "question",
    [CentralMean(0, 10, 0.5), CentralMean(0, 10, 0.5, 1e-6), LocalMean(0, 10, 1.0), LocalMean(0, 10, 6.0)],
    ids=str,
)
def test_means_are_unbiased_with_the_stated_error(question):
    values, subject = people()
    assert_honest(question, 4.0 + 2.0 * values, subject, np.array([4.0 + 2.0 * values.mean()]))


def test_a_person_with_many_records_counts_once():
    values = np.array([0] * 90 + [1] * 10)
    subject = np.array([0] * 90 + list(range(1, 11)))
    truth = np.array([1 / 11, 10 / 11])
    for question in (CentralShares(2, 4.0), LocalShares(2, 4.0)):
        estimate, error, _ = repeated(question, values, subject)
        assert np.abs((estimate.mean(axis=0) - truth) / error.mean(axis=0)).max() < OFF
    estimate, error, _ = repeated(CentralMean(0, 1, 4.0), values, subject)
    assert abs(estimate.mean() - 10 / 11) < OFF * error.mean()


def test_with_several_records_each_the_stated_error_is_never_too_small():
    """Everybody has one record of each kind: the largest variance that there is."""
    values, subject = np.tile([0, 1], 300), np.repeat(np.arange(300), 2)
    estimate, error, _ = repeated(LocalShares(2, 1.0), values, subject)
    assert np.abs(estimate.mean(axis=0) - 0.5).max() < OFF * error.mean()
    np.testing.assert_allclose(estimate.std(axis=0), error.mean(axis=0), rtol=0.18)


def test_values_beyond_the_bounds_count_as_the_bound():
    values = np.array([-1e9, 1e9, np.inf, 5.0])
    found = CentralMean(0, 10, 1e6).release(values, np.arange(4), Randomness.from_seed(0).stream("x"))
    assert found.estimate == pytest.approx(25 / 4, abs=1e-3)


def test_what_a_survey_costs():
    assert CentralShares(3, 0.5).event() == Pure(0.5)
    assert LocalShares(3, 0.5).event() == RandomizedResponse(0.5, 3)
    for question in (CentralShares(4, 0.7, 1e-6), CentralMean(0, 5, 0.7, 1e-6)):
        assert isinstance(question.event(), Gaussian)
        assert account(question.event(), 1e-6).epsilon == pytest.approx(0.7, rel=1e-6)
    for question in (LocalShares(2, 0.7), LocalMean(0, 5, 0.7), CentralMean(0, 5, 0.7)):
        assert account(question.event(), 0.0).epsilon == pytest.approx(0.7)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_replacing_a_person_moves_what_noise_is_added_to_by_at_most_the_sensitivity(delta):
    """Counts of people as probability vectors, and sums of clipped averages, of random tables."""
    from tacit.privacy.mechanisms.noisy_queries import CategoryCounts

    rng = np.random.default_rng(0)
    for _ in range(50):
        subject = rng.integers(5, size=30)
        one, other = rng.integers(3, size=(2, 30))
        changed = np.where(subject == 0, other, one)
        counts = CategoryCounts(3, 0.0)
        moved = counts.total(one, subject) - counts.total(changed, subject)
        l1, l2 = CentralShares(3, 1.0, delta).sensitivity
        assert np.abs(moved).sum() <= l1 + 1e-9
        assert np.linalg.norm(moved) <= l2 + 1e-9


def test_central_noise_shrinks_with_the_number_of_people_and_local_noise_with_its_root():
    for central, local in (
        (CentralShares(3, 1.0), LocalShares(3, 1.0)),
        (CentralMean(0, 1, 1.0), LocalMean(0, 1, 1.0)),
    ):
        assert central.expected_error(100) / central.expected_error(10_000) == pytest.approx(100)
        assert local.expected_error(100) / local.expected_error(10_000) == pytest.approx(10)
        assert local.expected_error(1000) > 10 * central.expected_error(1000)


def test_a_mean_is_reported_by_whichever_errs_less():
    def error(epsilon: float) -> float:
        return LocalMean(0, 1, epsilon).expected_error(1)

    assert LocalMean(0, 1, 0.5).randomizer != LocalMean(0, 1, 6.0).randomizer
    found = [error(epsilon) for epsilon in (0.1, 0.5, 1, 2, 3, 4, 6, 8)]
    assert found == sorted(found, reverse=True)
