"""Local randomisers: what they promise exactly, that they are unbiased, and their variance."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.families.randomizers import LaplaceReports, LevelReports, randomizer
from tacit.privacy import Randomness
from tacit.privacy.invalid import InvalidArgument
from tests.refusals import refuses

LAWS = [LaplaceReports(0.5), LaplaceReports(4.0), LevelReports(0.5, 2), LevelReports(2.0, 1), LevelReports(1.0, 5)]


def stream(name: str = "reports"):
    return Randomness.from_seed(11).stream(name)


def level_law(law: LevelReports, value: float) -> np.ndarray:
    """The probabilities of all levels, from the definition: rounding at random, then with probability gamma any."""
    scaled = value * law.steps
    below = math.floor(scaled)
    rounded = np.zeros(law.steps + 1)
    rounded[below] += 1 - (scaled - below)
    rounded[min(below + 1, law.steps)] += scaled - below
    return (1 - law.gamma) * rounded + law.gamma / (law.steps + 1)


@given(st.floats(0.01, 6), st.integers(1, 12), st.floats(0, 1), st.floats(0, 1))
def test_no_two_values_change_the_probability_of_a_level_by_more_than_epsilon_allows(epsilon, steps, x, other):
    law = LevelReports(epsilon, steps)
    ratio = level_law(law, x) / level_law(law, other)
    assert ratio.max() <= math.exp(epsilon) * (1 + 1e-12)
    assert level_law(law, x).sum() == pytest.approx(1)
    # and the ends of the interval reach it: epsilon is not less
    ends = level_law(law, 0.0) / level_law(law, 1.0)
    assert ends.max() == pytest.approx(math.exp(epsilon))


def test_the_printed_algorithm_gives_level_zero_away_and_the_repaired_one_does_not():
    """Noise on 1..b for values on 0..b (FLAME, algorithm 1): level 0 comes from small values only."""
    b, epsilon = 2, 1.0
    gamma = b / (math.exp(epsilon) + b - 1)
    printed = {x: (1 - gamma) * np.eye(b + 1)[round(x * b)] + gamma * np.array([0, *[1 / b] * b]) for x in (0.0, 1.0)}
    assert printed[0.0][0] > 0 == printed[1.0][0]
    assert (level_law(LevelReports(epsilon, b), 1.0) > 0).all()


def test_reports_on_levels_have_the_probabilities_of_their_definition():
    """Chi-square of 40,000 reports per value with 5 degrees of freedom: wrong alarm below 1e-6 each."""
    law = LevelReports(1.0, 5)
    for value in (0.0, 0.33, 1.0):
        reports = law.report(np.full(40_000, value), stream(f"levels {value}"))
        found = Counter(np.rint(reports * 5).astype(int).tolist())
        expected = 40_000 * level_law(law, value)
        assert sum((found[k] - expected[k]) ** 2 / expected[k] for k in range(6)) < 37


def test_laplace_reports_have_the_density_that_epsilon_allows():
    """Bins of 200,000 reports about 0 and about 1: every ratio of counts within e^epsilon and 6 deviations."""
    law = LaplaceReports(1.5)
    edges = np.linspace(-1, 2, 31)
    zero, one = (np.histogram(law.report(np.full(200_000, x), stream(f"at {x}")), edges)[0] for x in (0.0, 1.0))
    deviation = np.sqrt(1 / zero + 1 / one)
    assert (np.abs(np.log(zero / one)) <= 1.5 + 6 * deviation).all()
    assert np.log(zero / one)[:8].mean() == pytest.approx(1.5, abs=0.05)  # left of 0 it is reached


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("value", [0.0, 0.2, 0.5, 1.0])
def test_reports_are_unbiased_and_have_the_predicted_variance(law, value):
    """100,000 reports; mean within 6 of its deviations, variance within 5 %."""
    reports = law.report(np.full(100_000, value), stream(f"{law} {value}"))
    variance = float(law.variance(np.array([value]))[0])
    assert (reports - 0.5).mean() / law.kept == pytest.approx(
        value - 0.5, abs=6 * math.sqrt(variance / 100_000) / law.kept
    )
    assert reports.var() == pytest.approx(variance, rel=0.05)


@pytest.mark.parametrize("law", LAWS)
def test_the_blanket_is_centred_and_has_the_predicted_variance(law):
    drawn = law.blanket(200_000, stream(f"blanket {law}"))
    assert drawn.mean() == pytest.approx(0.5, abs=6 * math.sqrt(law.blanket_variance / 200_000))
    assert drawn.var() == pytest.approx(law.blanket_variance, rel=0.05)


@given(st.floats(0.05, 5), st.integers(1, 8))
def test_the_blanket_of_levels_is_the_mean_of_what_the_levels_report(epsilon, steps):
    law = LevelReports(epsilon, steps)
    mean = np.mean([level_law(law, k / steps) for k in range(steps + 1)], axis=0)
    np.testing.assert_allclose(mean, 1 / (steps + 1))


def test_values_outside_the_interval_are_refused_and_never_reported():
    for law in LAWS[::2]:
        for bad in (-0.01, 1.01, math.nan, math.inf):
            with refuses("out-of-range", "value", InvalidArgument):
                law.report(np.array([0.5, bad]), stream())
        assert law.report(np.zeros(0), stream()).shape == (0,)


def test_names_give_the_randomisers():
    assert randomizer("laplace", 0.5, 2) == LaplaceReports(0.5)
    assert randomizer("response", 0.5, 3) == LevelReports(0.5, 3)
