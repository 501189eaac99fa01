"""Every number of specification 0, 1, 2, 4, 7 and 8 that the accountants can reproduce."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tacit.privacy.accounting.account import account, delta_of
from tacit.privacy.accounting.canonical_form import canonical
from tacit.privacy.accounting.event_losses import losses_of
from tacit.privacy.accounting.events import Event, Gaussian, PoissonSampled, Repeated, SampledWithoutReplacement
from tacit.privacy.accounting.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu
from tacit.privacy.accounting.pld import composed_epsilon
from tacit.privacy.accounting.rdp import ORDERS, composed_rdp, rdp_epsilon
from tacit.privacy.proofs.subject_events import (
    averaged_per_subject,
    colluding_factor,
    naive_silos,
    subject_rate,
    summed_records,
)
from tests.privacy.specified import fixed_batches, gaussians

DELTA = 1e-5


def poisson(rate: float, noise: float, times: int) -> Event:
    return Repeated(PoissonSampled(rate, Gaussian(noise)), times)


def on_a_fine_grid(event: Event, delta: float) -> float:
    """The exact value but for a relative error of about 1e-5: the same tables, four times finer than needed."""
    ((simple, count),) = canonical(event).parts
    grid = account(event, delta).epsilon / 1e5
    grid = max(grid, 2e-5)
    table = losses_of(simple, grid)
    return max(composed_epsilon([(way, count)], delta) for way in (table.remove, table.add))


# (event, value of the specification, its half unit of the last printed digit)
VECTORS = {
    "higrad": (averaged_per_subject(0.05, 10, 2.0, 200), 16.818),
    "higrad, fixed batches": (fixed_batches(2000, 100, 10, 2.0, 200), 62.291),
    "local group, no cap": (summed_records(0.05, 10, 2.0, 200), 24.478),
    "local group, cap 2": (summed_records(0.05, 10, 2.0, 200, cap=2), 23.016),
    "user ldp, silo": (gaussians(10.0 / 2, 200), 15.456),
    "user ldp, silo, zero-out": (gaussians(10.0, 200), 6.573),
    "user ldp, subject": (gaussians(10.0 / 2, 200, subject_rate(0.05, 10)), 5.191),
    "uldp-avg": (gaussians(5.0, 100), 9.9973),
    "uldp-naive": (naive_silos(5.0, 100), 24.3816),
    "uldp-avg q=.1": (gaussians(5.0, 100, 0.1), 0.758),
    "uldp-avg q=.3": (gaussians(5.0, 100, 0.3), 2.532),
    "uldp-avg q=.5": (gaussians(5.0, 100, 0.5), 4.488),
    "uldp-avg q=.7": (gaussians(5.0, 100, 0.7), 6.591),
    "uldp-group 1": (summed_records(0.01, 1, 5.0, 10**5), 2.627),
    "uldp-group 2": (summed_records(0.01, 2, 5.0, 10**5), 5.84),
    "uldp-group 4": (summed_records(0.01, 4, 5.0, 10**5), 13.6),
    "uldp-group 8": (summed_records(0.01, 8, 5.0, 10**5), 34.2),
    "uldp-group 16": (summed_records(0.01, 16, 5.0, 10**5), 95.2),
    "uldp-group 32": (summed_records(0.01, 32, 5.0, 10**5), 295.8),
    "fixed size, record, replace": (Repeated(SampledWithoutReplacement(100, 10**4, Gaussian(1.0)), 1000), 2.199),
    "without replacement q=.1": (Repeated(SampledWithoutReplacement(1, 10, Gaussian(1.0)), 20), 3.743),
    "without replacement q=.3": (Repeated(SampledWithoutReplacement(3, 10, Gaussian(2.0)), 50), 5.695),
    "without replacement q=.05": (Repeated(SampledWithoutReplacement(1, 20, Gaussian(1.0)), 50), 2.85),
    "mixture k=4": (summed_records(0.01, 4, 1.0, 1000), 8.90),
    "mixture k=8": (summed_records(0.01, 8, 2.0, 1000), 6.46),
    "mixture k=16": (summed_records(0.01, 16, 4.0, 1000), 5.98),
    "poisson": (poisson(0.01, 1.0, 1000), 1.828),
    "server without masking, worst weights": (gaussians(5.0, 100, factor=5), 28.37),
    "server without masking, uniform": (gaussians(5.0, 100, factor=5 / 5), 9.997),
    "one silo, worst weights": (gaussians(5.0, 100, factor=colluding_factor(5)), 11.48),
    "one silo, uniform": (gaussians(5.0, 100, factor=(4 / 5) ** 2 * 5 / 4), 8.72),
    "three silos": (gaussians(5.0, 100, factor=colluding_factor(5, 3)), 17.86),
    "replacement": (gaussians(5.0, 100, factor=2**2), 24.38),
    "shuffled epoch, summed": (gaussians(20.0 / 10, 1), 1.993),
    "shuffled epoch, averaged": (gaussians(20.0, 10), 0.561),
}


@pytest.mark.parametrize("name", VECTORS)
def test_the_printed_value_is_within_one_per_cent_above_the_specification(name: str) -> None:
    event, expected = VECTORS[name]
    # the table rounds: half a unit of its last digit below is still the value
    digits = len(str(expected).split(".")[1])
    epsilon = account(event, DELTA).epsilon
    assert expected - 0.5 * 10**-digits - 1e-9 <= epsilon <= 1.01 * expected


@pytest.mark.parametrize("name", ["higrad", "local group, no cap", "poisson", "mixture k=8", "uldp-avg q=.5"])
def test_the_printed_value_is_never_below_a_finer_computation(name: str) -> None:
    event, _ = VECTORS[name]
    exact = on_a_fine_grid(event, DELTA)
    assert exact * (1 - 1e-5) <= account(event, DELTA).epsilon <= 1.003 * exact


def test_the_group_of_64_is_slightly_below_the_coarse_value_of_the_specification() -> None:
    # specification 7 prints 1012.9, from a coarser grid; a finer one gives 1011.0
    assert 1011.0 <= account(summed_records(0.01, 64, 5.0, 10**5), DELTA).epsilon <= 1012.9


def test_a_view_that_knows_the_coins_gets_no_amplification() -> None:
    assert account(gaussians(5.0, 100, 0.1), DELTA).epsilon == pytest.approx(0.758, abs=2e-3)
    assert account(gaussians(5.0, 100), DELTA).epsilon == pytest.approx(9.997, abs=5e-4)


def test_no_accountant_is_always_the_smallest() -> None:
    once = account(Gaussian(1000.0), DELTA)
    assert once.parts["rdp"] == pytest.approx(0.0197, abs=2e-4)
    assert once.epsilon < 0.0104
    # a coarse grid would give 0.125 here, above Renyi accounting (0.066); refined it is below
    rare = account(poisson(1e-4, 5.0, 10**6), DELTA)
    assert rare.parts["rdp"] == pytest.approx(0.066, abs=1e-3)
    assert rare.parts["pld"] < rare.parts["rdp"]
    # and Renyi accounting alone would be negative at a large delta
    rho = composed_rdp(canonical(Gaussian(5.0)).parts)
    assert rdp_epsilon(ORDERS, rho, 0.3) == 0.0


def test_the_textbook_gaussian_fails_first_where_the_specification_says() -> None:
    for delta, first in ((1e-2, 6.78), (1e-5, 8.42), (1e-9, 9.63)):
        for epsilon, fails in ((first - 0.02, False), (first + 0.02, True)):
            sigma = math.sqrt(2 * math.log(1.25 / delta)) / epsilon
            assert (gaussian_delta(1 / sigma, epsilon) > delta) is fails


def test_exact_gaussian_agrees_with_dp_accounting() -> None:
    from dp_accounting import gaussian_mechanism

    for noise in (0.05, 0.7, 3.0, 40.0, 1000.0):
        for delta in (1e-2, 1e-5, 1e-12):
            expected = gaussian_mechanism.get_epsilon_gaussian(noise, delta)
            assert gaussian_epsilon(1 / noise, delta) == pytest.approx(expected, rel=1e-9, abs=1e-9)
    assert 1 / gaussian_mu(1.0, 1e-5) == pytest.approx(gaussian_mechanism.get_sigma_gaussian(1.0, 1e-5), rel=1e-9)


def test_epsilon_delta_does_not_bound_the_loss_with_probability_delta() -> None:
    # [Slides, S1]: at the analytic (1, 1e-5) the loss exceeds 1 with probability 1.6e-4
    mu = gaussian_mu(1.0, 1e-5)
    from scipy.stats import norm

    assert norm.sf((1.0 - mu**2 / 2) / mu) == pytest.approx(1.6e-4, rel=0.05)


def test_sixteen_silos_allow_a_sixteenth_of_the_rounds() -> None:
    # [SubjectDP-2, T3.10] corrected: s silos that release separately cost as much as s times the rounds
    one = poisson(0.0127, 1.5, 79 * 96)
    sixteen = Repeated(poisson(0.0127, 1.5, 79), 16 * 6)
    assert account(sixteen, DELTA).epsilon == account(one, DELTA).epsilon


def test_delta_and_epsilon_are_inverse_to_each_other() -> None:
    for event in (poisson(0.01, 1.0, 1000), summed_records(0.05, 10, 2.0, 200), Repeated(Gaussian(5.0), 100)):
        epsilon = account(event, DELTA).epsilon
        assert delta_of(event, epsilon) == pytest.approx(DELTA, rel=0.03)


def test_small_deltas_are_as_accurate_as_large_ones() -> None:
    # tilting keeps the FFT's rounding relative to delta: compare with the exact Gaussian through its tables
    for delta in (1e-3, 1e-10, 1e-18):
        table = losses_of(Gaussian(20.0), 0.05 / 16)
        exact = gaussian_epsilon(math.sqrt(400) / 20.0, delta)
        assert exact <= composed_epsilon([(table.remove, 400)], delta) <= exact * 1.002


def test_orders_are_those_of_the_specification() -> None:
    assert np.allclose(ORDERS, [1 + x / 10 for x in range(1, 100)] + list(range(12, 256)))
