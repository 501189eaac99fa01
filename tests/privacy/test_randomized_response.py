from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from research.textbook import (
    as_published_histogram_error,
    as_published_local_mean_variance,
    central_mean_variance,
    histogram_error,
    histogram_error_bound,
    largest_error,
    largest_error_coverage,
    local_mean_variance,
    response_epsilon,
    textbook_sigma,
)
from tacit.families.randomizers import Response
from tacit.privacy import Randomness
from tacit.privacy.accounting import events
from tacit.privacy.invalid import InvalidArgument
from tacit.privacy.mechanisms.noise_mechanisms import standard_normal
from tests.refusals import refuses

NAMES = {"levels": 10_000, "epsilon": 1.0, "delta": 1e-9, "failure": 0.01}


def stream(name: str):
    return Randomness.from_seed(5).stream(name)


# --- the worked example of the slides: 10,000 first names ------------------------------------------------------------


def test_the_error_of_ten_thousand_counts_as_printed_and_as_it_is():
    """S6, S7."""
    textbook = textbook_sigma(1.0, 1e-9, math.sqrt(2))
    assert as_published_histogram_error(**NAMES) == pytest.approx(34.02, abs=0.005)
    assert histogram_error_bound(**NAMES) == pytest.approx(49.3, abs=0.05)
    assert largest_error(textbook, 10_000, 0.01) == pytest.approx(44.8, abs=0.05)
    assert histogram_error(**NAMES) == pytest.approx(38.0, abs=0.05)
    assert largest_error_coverage(textbook, 10_000, as_published_histogram_error(**NAMES)) == pytest.approx(
        0.133, abs=5e-4
    )
    assert largest_error_coverage(textbook, 10_000, histogram_error_bound(**NAMES)) >= 0.99


@settings(deadline=None)
@given(st.integers(1, 10**6), st.floats(0.01, 1), st.floats(1e-10, 1e-3), st.floats(1e-6, 0.5))
def test_error_bounds_cover_what_they_promise(levels, epsilon, delta, failure):
    textbook = textbook_sigma(epsilon, delta, math.sqrt(2))
    exact = largest_error(textbook, levels, failure)
    assert largest_error_coverage(textbook, levels, exact) == pytest.approx(1 - failure, rel=1e-6)
    assert exact <= histogram_error_bound(levels, epsilon, delta, failure) * (1 + 1e-12)
    assert histogram_error(levels, epsilon, delta, failure) <= exact * (1 + 1e-9)


def test_the_slides_bound_covers_one_run_in_eight_and_ours_ninety_nine_in_a_hundred():
    textbook = textbook_sigma(1.0, 1e-9, math.sqrt(2))
    worst = np.abs(textbook * standard_normal(400 * 10_000, stream("names")).reshape(400, -1)).max(axis=1)
    covered = (worst < as_published_histogram_error(**NAMES)).mean()
    # 400 runs: five standard deviations of the share, false alarm probability below 1e-6
    assert abs(covered - 0.133) < 5 * math.sqrt(0.133 * 0.867 / 400)
    assert (worst <= largest_error(textbook, 10_000, 0.01)).mean() > 0.99 - 5 * math.sqrt(0.01 * 0.99 / 400)


# --- randomised response ---------------------------------------------------------------------------------------------


def test_response_epsilon_of_the_coin():
    assert response_epsilon(0.75) == pytest.approx(math.log(3))
    assert response_epsilon(0.25) == pytest.approx(math.log(3))
    assert response_epsilon(0.5) == 0
    assert response_epsilon(1.0) == math.inf
    assert Response(math.log(3)).truth == pytest.approx(0.75)
    with refuses("out-of-range", "truth", InvalidArgument):
        response_epsilon(1.5)


@pytest.mark.parametrize(("epsilon", "levels"), [(math.log(3), 2), (1.0, 5), (3.0, 4), (0.1, 3)])
def test_reports_have_their_probabilities_whatever_the_value(epsilon, levels):
    response, count = Response(epsilon, levels), 60_000
    for value in (0, levels - 1):
        counts = np.bincount(response.release(np.full(count, value), stream(f"r{value}")), minlength=levels)
        expected = np.full(levels, count * (1 - response.truth) / (levels - 1))
        expected[value] = count * response.truth
        # chi-square with at most 4 degrees of freedom: above 33.4 has probability 1e-6 or less
        assert ((counts - expected) ** 2 / expected).sum() < 33.4
    ratio = response.truth / ((1 - response.truth) / (levels - 1))
    assert math.log(ratio) == pytest.approx(epsilon)
    assert response.event() == events.RandomizedResponse(epsilon, levels)


@settings(deadline=None, max_examples=50)
@given(st.floats(0.05, 6), st.integers(2, 6), st.lists(st.integers(0, 5), min_size=1, max_size=8))
def test_histograms_are_unbiased_and_their_errors_exact(epsilon, levels, values):
    """Expectation and variance over all outcomes, report by report: they are independent."""
    response = Response(epsilon, levels)
    true = [value % levels for value in values]
    gap, n = math.expm1(epsilon), len(true)
    law = np.full((levels, levels), (1 - response.truth) / (levels - 1))
    np.fill_diagonal(law, response.truth)
    per_report = law[true]  # [reports, levels]: probability of each answer
    scale = (gap + levels) / gap
    mean = per_report.sum(axis=0) / n * scale - 1 / gap
    shares = np.bincount(true, minlength=levels) / n
    assert mean == pytest.approx(shares, abs=1e-9)
    variance = (per_report * (1 - per_report)).sum(axis=0) / n**2 * scale**2
    assert response.squared_error(shares, n) == pytest.approx(variance, rel=1e-9)
    # specification 6, row S12: a formula without the share is right for share 0 only
    without_share = (levels - 1 + gap) / (n * gap**2)
    assert response.squared_error(0.0, n) == pytest.approx(without_share)
    assert (response.squared_error(shares, n) >= without_share * (1 - 1e-12)).all()


def test_an_estimated_histogram_is_near_the_true_one():
    response, shares = Response(1.0, 4), np.array([0.5, 0.3, 0.2, 0.0])
    true = np.repeat(np.arange(4), (shares * 100_000).astype(int))
    estimate = response.histogram(response.release(true, stream("h")))
    assert estimate.sum() == pytest.approx(1)
    # five standard deviations each, false alarm probability below 3e-6
    assert (np.abs(estimate - shares) < 5 * np.sqrt(response.squared_error(shares, true.size))).all()


def test_responses_that_make_no_sense_are_refused():
    with refuses("out-of-range", "levels", InvalidArgument):
        Response(1.0, 1)
    with refuses("out-of-range", "epsilon", InvalidArgument):
        Response(math.inf)
    with refuses("out-of-range", "values", InvalidArgument):
        Response(1.0).release([0, 2], stream("bad"))
    with refuses("out-of-range", "epsilon", InvalidArgument):
        Response(0.0).histogram([0, 1])
    with refuses("missing", "reports", InvalidArgument):
        Response(1.0).histogram([])
    assert Response(1.0).release([], stream("none")).size == 0


# --- means -----------------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 10**6), st.floats(0.01, 1), st.floats(1e-10, 1e-3))
def test_local_means_are_noisier_than_central_ones_by_the_number_of_people(count, epsilon, delta):
    """S13, and the gap between the two models."""
    local, central = local_mean_variance(count, epsilon, delta), central_mean_variance(count, epsilon, delta)
    assert local / central == pytest.approx(count)
    assert local <= as_published_local_mean_variance(count, epsilon, delta)
