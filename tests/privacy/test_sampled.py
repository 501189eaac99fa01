"""Poisson sampling of noise that is not Gaussian, against the exact pair written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tacit.privacy.accounting.account import account, calibrate_noise, delta_of
from tacit.privacy.accounting.event_losses import losses_of
from tacit.privacy.accounting.events import (
    Composed,
    DiscreteGaussian,
    Event,
    Gaussian,
    GaussianMixture,
    Laplace,
    PoissonSampled,
    Pure,
    Repeated,
    SampledWithoutReplacement,
    ShuffledReports,
)
from tacit.privacy.accounting.gaussian import gaussian_delta
from tacit.privacy.accounting.pld import composed_delta

Pair = tuple[np.ndarray, np.ndarray]


def exact_pair(event: Event) -> Pair:
    """Probabilities of outcomes with and without the unit; fine cells for Laplace noise, which can only lose."""
    match event:
        case Pure(epsilon):
            truth = 1 / (1 + math.exp(-epsilon))
            return np.array([truth, 1 - truth]), np.array([1 - truth, truth])
        case DiscreteGaussian(sigma, sensitivity):
            z = np.arange(-math.ceil(14 * sigma) - sensitivity, math.ceil(14 * sigma) + 2 * sensitivity + 1.0)
            weights = [np.exp(-((z - shift) ** 2) / (2 * sigma**2)) for shift in (sensitivity, 0)]
            return weights[0] / weights[0].sum(), weights[1] / weights[1].sum()
        case Laplace(scale):
            inner = np.linspace(0.0, 1.0, 20_001)
            # below 0 and above 1 the ratio is constant: one outcome each
            with_unit, without = (
                np.concatenate([[below], np.diff(middle), [1 - middle[-1]]])
                for below, middle in (
                    (0.5 * math.exp(-1 / scale), 0.5 * np.exp((inner - 1) / scale)),
                    (0.5, 1 - 0.5 * np.exp(-inner / scale)),
                )
            )
            return with_unit, without
        case _:
            raise AssertionError(event)


def exact_delta(pair: Pair, rate: float, epsilon: float, times: int) -> float:
    present = (1 - rate) * pair[1] + rate * pair[0]
    p, q = present, pair[1]
    for _ in range(times - 1):
        p, q = np.outer(p, present).ravel(), np.outer(q, pair[1]).ravel()
    growth = math.exp(epsilon)
    return float(max(np.maximum(p - growth * q, 0).sum(), np.maximum(q - growth * p, 0).sum()))


EVENTS = [Pure(1.0), Pure(0.01), Pure(8.0), Laplace(0.1), Laplace(3.0), DiscreteGaussian(1.0), DiscreteGaussian(4.0, 3)]


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("rate", [1e-6, 1e-3, 0.2, 0.9])
@pytest.mark.parametrize("times", [1, 2])
def test_sampled_losses_are_no_smaller_than_the_exact_ones_and_close_to_them(event, rate, times):
    if times == 2 and isinstance(event, Laplace):
        pytest.skip("too many outcomes to write out")
    pair = exact_pair(event)
    largest = math.log1p(rate * math.expm1(min(1 / event.noise_multiplier if isinstance(event, Laplace) else 9.0, 9)))
    for epsilon in (0.0, 0.2 * rate, 0.3 * largest, 0.9 * largest):
        exact = exact_delta(pair, rate, epsilon, times)
        proved = delta_of(Repeated(PoissonSampled(rate, event), times), epsilon)
        assert proved >= exact * (1 - 1e-9) - 1e-17
        if times == 1 or rate >= 1e-3:  # many losses far above the others: tables of bounded size lose some
            assert proved <= exact * 1.03 + 1e-11


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(EVENTS), st.floats(-6, -0.05), st.floats(0, 2), st.floats(0.3, 3))
def test_every_grid_is_pessimistic(event, exponent, position, coarseness):
    rate = 10.0**exponent
    epsilon = position * rate
    # grids far coarser than the losses, too
    table = losses_of(PoissonSampled(rate, event), coarseness * rate)
    found = max(composed_delta([(way, 1)], epsilon) for way in (table.remove, table.add))
    assert found >= exact_delta(exact_pair(event), rate, epsilon, 1) * (1 - 1e-9) - 1e-17


def test_a_composition_that_is_sampled_is_no_less_than_one_of_its_parts():
    for rate in (1e-5, 0.1):
        single = delta_of(PoissonSampled(rate, Laplace(1.0)), rate)
        both = delta_of(PoissonSampled(rate, Composed((Laplace(1.0), DiscreteGaussian(2.0)))), rate)
        twice = delta_of(PoissonSampled(rate, Repeated(Laplace(1.0), 2)), rate)
        one_of_double = delta_of(PoissonSampled(rate, Laplace(0.5)), rate)
        assert single <= both
        assert single <= twice <= one_of_double * 1.01


@pytest.mark.parametrize("rate", [1e-7, 1e-5, 1e-3])
def test_tiny_rates_take_small_tables(rate):
    for event in (Pure(1.0), Laplace(0.1), DiscreteGaussian(1.0)):
        bound = account(PoissonSampled(rate, event), rate / 100)
        assert 0 < bound.epsilon <= 12
    # two outcomes: delta(epsilon) = rate (p - r) - (e^epsilon - 1) (1 - rate + rate ...) in closed form
    truth = 1 / (1 + math.exp(-1.0))
    present, absent = (1 - rate) * (1 - truth) + rate * truth, 1 - truth
    delta = rate / 100
    exact = math.log1p((present - absent - delta) / absent)
    assert account(PoissonSampled(rate, Pure(1.0)), delta).epsilon == pytest.approx(exact, rel=5e-3)
    assert account(PoissonSampled(rate, Pure(1.0)), delta).epsilon >= exact * (1 - 1e-9)


def test_who_is_sampled_less_often_than_delta_owes_nothing():
    for event in (DiscreteGaussian(1.0), Pure(50.0), Gaussian(0.01), Laplace(0.001)):
        assert account(Repeated(PoissonSampled(1e-7, event), 100), 1.001e-5).epsilon == 0
        assert account(Repeated(PoissonSampled(1e-7, event), 100), 1.001e-5).accountant == "absent"
        assert account(Repeated(PoissonSampled(1e-7, event), 100), 0.9e-5).epsilon > 0 or isinstance(
            event, DiscreteGaussian
        )
    # a subject that is in a batch with probability 1e-6
    assert account(GaussianMixture(1.0, (0.0, 1.0, 50.0), (1 - 1e-6, 5e-7, 5e-7)), 1.01e-6).epsilon == 0
    assert account(GaussianMixture(1.0, (0.0, 50.0), (1 - 1e-6, 1e-6)), 0.99e-6).epsilon > 1
    # not for what holds under replacement only, and not beside anything that is not sampled
    assert account(PoissonSampled(1e-7, ShuffledReports(4.0, 2)), 1e-5).epsilon > 3
    assert account(Composed((PoissonSampled(1e-7, Pure(5.0)), Gaussian(1.0))), 1e-5).epsilon > 4


def test_few_steps_at_a_small_rate_are_calibrated_from_coarse_tables(monkeypatch):
    # the work is the number of losses tabulated: 75 million before grids went from coarse to fine
    from tacit.privacy.accounting import event_losses

    cells = 0
    tabulate = event_losses.losses_of

    def counted(event, grid):
        nonlocal cells
        table = tabulate(event, grid)
        cells += len(table.remove.mass) + len(table.add.mass)
        return table

    monkeypatch.setattr(event_losses, "losses_of", counted)
    noise = calibrate_noise(lambda sigma: Repeated(PoissonSampled(0.001, Gaussian(sigma)), 10), 0.05, 1e-6)
    assert 0.96 < noise < 0.985
    assert cells < 2_000_000


# -- one unit in the place of another, drawn without replacement -------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.0, 0.01, 0.3, 1.0, 3.0])
@pytest.mark.parametrize(("size", "noise"), [(1, 0.5), (3, 1.0), (9, 4.0)])
def test_one_draw_without_replacement_has_the_profile_of_advanced_joint_convexity(size, noise, epsilon):
    rate = size / 10
    exact = rate * gaussian_delta(1 / noise, math.log1p(math.expm1(epsilon) / rate))
    found = delta_of(SampledWithoutReplacement(size, 10, Gaussian(noise)), epsilon)
    assert exact * (1 - 1e-9) <= found <= exact * 1.02 + 1e-12


@pytest.mark.parametrize(("size", "noise", "times"), [(1, 1.0, 3), (3, 2.0, 20), (5, 0.7, 2)])
@pytest.mark.parametrize("places", [(0.5, -0.5), (1.0, 0.0), (0.2, -0.8)])
def test_no_mechanism_that_replaces_a_drawn_unit_costs_more(size, noise, times, places):
    """(1 - q) N(0) + q N(a) against (1 - q) N(0) + q N(b), all three within the Gaussian: by dp-accounting, optimistic
    on a grid of outcomes."""
    rate, (a, b) = size / 10, places
    ends = np.arange(-14 * noise, 14 * noise, noise / 200)

    def law(place: float) -> dict[int, float]:
        mixed = (1 - rate) * stats.norm.cdf(ends, 0, noise) + rate * stats.norm.cdf(ends, place, noise)
        return {i: math.log(p) for i, p in enumerate(np.diff(np.r_[0.0, mixed, 1.0])) if p > 0}

    pair = pld.from_two_probability_mass_functions(
        law(b), law(a), value_discretization_interval=1e-3, pessimistic_estimate=False
    )
    lower = pair.self_compose(times).get_epsilon_for_delta(1e-5)
    event = Repeated(SampledWithoutReplacement(size, 10, Gaussian(noise)), times)
    assert lower <= account(event, 1e-5).epsilon
