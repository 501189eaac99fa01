from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting import gaussian_mechanism
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from research.textbook import textbook_sigma
from tacit.families.randomizers import standard_laplace
from tacit.privacy import Randomness
from tacit.privacy.accounting.gaussian import gaussian_delta
from tacit.privacy.invalid import InvalidArgument
from tacit.privacy.mechanisms.discrete_gaussian import discrete_gaussian
from tacit.privacy.mechanisms.noise_mechanisms import (
    ExponentialMechanism,
    gaussian_sigma,
    standard_normal,
)
from tests.refusals import refuses


def stream(name: str):
    return Randomness.from_seed(11).stream(name)


@settings(deadline=None, max_examples=60)
@given(st.floats(0.01, 100), st.floats(1e-12, 0.5), st.floats(0.01, 100))
def test_calibrated_gaussian_noise_is_enough_and_not_more(epsilon, delta, sensitivity):
    sigma = gaussian_sigma(epsilon, delta, sensitivity)
    mu = sensitivity / sigma
    assert gaussian_delta(mu, epsilon) <= delta < gaussian_delta(mu / (1 - 1e-6), epsilon)
    assert sigma == pytest.approx(sensitivity * gaussian_mechanism.get_sigma_gaussian(epsilon, delta), rel=1e-6)


def test_gaussian_noise_at_the_edges():
    assert gaussian_sigma(1.0, 0.0) == math.inf
    assert gaussian_sigma(1.0, 1.0) == 0
    assert gaussian_sigma(math.inf, 1e-5) == 0
    assert gaussian_sigma(1.0, 1e-5, 0.0) == 0
    assert 0 < gaussian_sigma(0.0, 1e-5) < math.inf
    assert 0 < gaussian_sigma(1000.0, 1e-5) < 1
    for wrong in ((-1.0, 1e-5, 1.0), (1.0, 2.0, 1.0), (1.0, 1e-5, -1.0)):
        with refuses("out-of-range", "epsilon", InvalidArgument):
            gaussian_sigma(*wrong)


@pytest.mark.parametrize(("delta", "first"), [(1e-2, 6.78), (1e-5, 8.42), (1e-9, 9.63)])
def test_the_textbook_gaussian_mechanism_fails_from_a_known_epsilon_on(delta, first):
    """S5: the slides state it for any epsilon."""

    def spent(epsilon):
        return gaussian_delta(epsilon / math.sqrt(2 * math.log(1.25 / delta)), epsilon)

    assert spent(first - 0.01) <= delta < spent(first + 0.01)
    assert gaussian_delta(1 / textbook_sigma(1.0, delta), 1.0) <= delta
    with refuses("out-of-range", "epsilon", InvalidArgument):
        textbook_sigma(first + 0.01, delta)


def test_normal_and_laplace_numbers_have_their_laws():
    # Kolmogorov-Smirnov, false alarm probability 1e-6 each
    assert stats.kstest(standard_normal(200_001, stream("n")), "norm").pvalue > 1e-6
    assert stats.kstest(standard_laplace(200_000, stream("l")), "laplace").pvalue > 1e-6
    pairs = standard_normal(200_000, stream("pairs")).reshape(2, -1)
    assert abs(np.corrcoef(pairs)[0, 1]) < 5 / math.sqrt(100_000)
    assert np.isfinite(standard_normal(1, stream("one"))).all()
    assert standard_normal(0, stream("none")).size == 0


def test_the_exponential_mechanism_has_its_probabilities():
    mechanism = ExponentialMechanism(1.0, 2.0)
    scores = [0.0, 4.0, 2.0, -8.0]
    expected = mechanism.probabilities(scores)
    assert expected == pytest.approx(np.exp(np.array(scores) / 4) / np.exp(np.array(scores) / 4).sum())
    source = stream("choice")
    counts = np.bincount([mechanism.release(scores, source) for _ in range(5000)], minlength=4)
    # chi-square with 3 degrees of freedom: above 30.7 has probability 1e-6
    assert ((counts - 5000 * expected) ** 2 / (5000 * expected)).sum() < 30.7


@settings(deadline=None)
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=8), st.floats(0, 3), st.data())
def test_the_exponential_mechanism_is_private(scores, epsilon, data):
    moves = data.draw(st.lists(st.floats(-1, 1), min_size=len(scores), max_size=len(scores)))
    mechanism = ExponentialMechanism(epsilon)
    ratio = mechanism.probabilities(scores) / mechanism.probabilities(np.add(scores, moves))
    assert (np.abs(np.log(ratio)) <= epsilon + 1e-9).all()


def test_infinite_gaps_are_never_chosen_and_ties_are():
    assert ExponentialMechanism(1e6).release([0.0, 1.0, 0.0], stream("sure")) == 1
    assert {ExponentialMechanism(5.0).release([2.0, 2.0], stream(str(i))) for i in range(40)} == {0, 1}


def test_values_that_are_not_finite_are_refused():
    with refuses("out-of-range", "value", InvalidArgument):
        ExponentialMechanism(1.0).release([1.0, math.nan], stream("bad"))
    with refuses("missing", "scores", InvalidArgument):
        ExponentialMechanism(1.0).release([], stream("bad"))


def test_the_exponential_mechanism_without_any_privacy_takes_the_best_and_ends():
    stream = Randomness.from_seed(7).stream("best")
    scores = np.concatenate([np.zeros(100_000), [1.0, 1.0]])
    for epsilon in (1e300, math.inf):
        best = ExponentialMechanism(epsilon)
        assert {best.release(scores, stream) for _ in range(20)} == {100_000, 100_001}
        assert best.probabilities([0.0, 1.0, 1.0, -1e308]).tolist() == [0, 0.5, 0.5, 0]
    assert ExponentialMechanism(0.0).probabilities([1e308, -1e308]).tolist() == [0.5, 0.5]
    assert ExponentialMechanism(1.0, 5e-324).release([0.0, 1.0], stream) == 1


def test_discrete_noise_of_the_smallest_scales_is_zero():
    stream = Randomness.from_seed(7).stream("tiny")
    for sigma in (5e-324, 1e-200, 1e-3):
        assert discrete_gaussian(sigma, 5, stream).tolist() == [0] * 5
