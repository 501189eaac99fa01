"""A subject with two pseudonyms that nothing links."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from tacit.privacy import (
    Composed,
    Gaussian,
    GaussianMixture,
    Largest,
    PoissonSampled,
    Pure,
    Repeated,
    SampledWithoutReplacement,
    ShuffledReports,
    account,
)
from tacit.privacy.accounting.account import delta_of
from tacit.privacy.proofs.subject_events import linked_epsilon, of_two
from tests.methods.worlds import planned

DELTA = 1e-5


def test_a_sum_moves_by_two_clips():
    assert linked_epsilon(Repeated(Gaussian(5.0), 100), DELTA) == pytest.approx(24.382, abs=1e-3)


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_two_secret_coins_are_a_mixture_of_none_one_and_both(epsilon):
    """The exact pair of aligned vectors, by numerical integration."""
    rate, noise = 0.3, 1.5
    x = np.linspace(-20, 24, 400_001)
    present = sum(stats.binom.pmf(k, 2, rate) * stats.norm.pdf(x, k, noise) for k in range(3))
    absent = stats.norm.pdf(x, 0, noise)
    exact = max(
        np.trapezoid(np.maximum(0, p - math.exp(epsilon) * q), x) for p, q in ((present, absent), (absent, present))
    )
    both = of_two(PoissonSampled(rate, Gaussian(noise)))
    assert exact * (1 - 1e-6) <= delta_of(both, epsilon) <= exact * 1.02
    assert of_two(GaussianMixture(noise, (0.0, 1.0), (1 - rate, rate))) == both


def test_what_is_drawn_without_replacement_or_pure_is_counted_for_both():
    assert of_two(SampledWithoutReplacement(1, 10, Gaussian(2.0))) == Gaussian(1.0)
    assert of_two(Pure(0.5)) == Pure(1.0)


def test_two_pseudonyms_may_be_in_different_parts_of_a_run():
    one, other = Repeated(Gaussian(5.0), 10), Gaussian(1.0)
    both = of_two(Largest((one, other)))
    assert isinstance(both, Largest)
    assert Composed((one, other)) in both.events


@pytest.mark.parametrize("event", [ShuffledReports(1.0, 1000), Repeated(ShuffledReports(1.0, 1000), 5)])
def test_other_events_are_converted(event):
    assert of_two(event) is None
    found = linked_epsilon(event, DELTA)
    one = found / 2
    assert 2 * account(event, DELTA).epsilon < found < math.inf
    assert (1 + math.exp(one)) * delta_of(event, one) <= DELTA * 1.05


def test_a_plan_prints_it_beside_guarantees_for_subjects_only():
    method = {"name": "subject-sgd", "noise_multiplier": 5.0}
    subject, record = (
        planned(method, silos=5, rounds=100, privacy={"against": ["public"], "unit": unit}).guarantees()[0].as_dict()
        for unit in ("subject", "record")
    )
    assert subject["linkage"]["pseudonyms"] == 2
    assert subject["linkage"]["epsilon"] == pytest.approx(24.382, abs=1e-3)
    assert record["linkage"] is None
