"""Calibration: the third of epsilon, delta and noise, never on the wrong side."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.privacy.accounting.account import account, calibrate_noise, calibrate_rounds
from tacit.privacy.accounting.events import (
    Composed,
    Event,
    Gaussian,
    Laplace,
    PoissonSampled,
    Pure,
    Repeated,
    Unprotected,
)
from tacit.privacy.accounting.gaussian import gaussian_mu
from tacit.privacy.invalid import InvalidArgument
from tacit.privacy.proofs.subject_events import summed_records
from tests.refusals import refuses


def poisson(noise: float) -> Event:
    return Repeated(PoissonSampled(0.01, Gaussian(noise)), 1000)


@settings(max_examples=6, deadline=None)
@given(st.floats(0.05, 20.0), st.floats(-8.0, -3.0))
def test_calibrated_noise_is_sufficient_and_hardly_more(epsilon: float, exponent: float) -> None:
    delta = 10.0**exponent
    noise = calibrate_noise(poisson, epsilon, delta)
    assert account(poisson(noise), delta).epsilon <= epsilon
    # the tolerance of the search and of the grid
    assert account(poisson(noise * 0.99), delta).epsilon > epsilon * 0.995


def test_calibration_of_a_gaussian_is_the_analytic_one() -> None:
    exact = math.sqrt(100) / gaussian_mu(2.0, 1e-5)
    noise = calibrate_noise(lambda nm: Repeated(Gaussian(nm), 100), 2.0, 1e-5)
    assert exact <= noise <= exact * 1.0011


def test_other_events_can_be_calibrated_too() -> None:
    for make in (lambda nm: summed_records(0.05, 10, nm, 200), lambda nm: Repeated(Laplace(nm), 20)):
        noise = calibrate_noise(make, 1.5, 1e-5)
        assert account(make(noise), 1e-5).epsilon <= 1.5 < account(make(noise * 0.99), 1e-5).epsilon * 1.005
    assert calibrate_noise(Laplace, 0.5, 0.0) == pytest.approx(2.0, rel=2e-3)


def test_extremes_of_calibration() -> None:
    assert calibrate_noise(poisson, math.inf, 1e-5) == 0.0
    assert calibrate_noise(poisson, 1.0, 1.0) == 0.0
    assert account(poisson(calibrate_noise(poisson, 0.01, 1e-5)), 1e-5).epsilon <= 0.01
    assert account(poisson(calibrate_noise(poisson, 1000.0, 1e-5)), 1e-5).epsilon <= 1000.0
    with refuses("unreachable", "epsilon", InvalidArgument):
        calibrate_noise(lambda nm: Composed((Gaussian(nm), Unprotected("a mean"))), 1.0, 1e-5)
    with refuses("unreachable", "epsilon", InvalidArgument):
        calibrate_noise(lambda nm: Composed((Gaussian(nm), Pure(2.0))), 1.0, 0.0)


def test_rounds_within_a_budget() -> None:
    def make(rounds: int) -> Event:
        return Repeated(PoissonSampled(0.01, Gaussian(1.0)), rounds)

    rounds = calibrate_rounds(make, 2.0, 1e-5)
    assert account(make(rounds), 1e-5).epsilon <= 2.0 < account(make(rounds + 1), 1e-5).epsilon
    assert calibrate_rounds(make, 0.0, 1e-9) == 0
    assert calibrate_rounds(lambda count: Repeated(Gaussian(math.inf), count), 1.0, 1e-5, most=500) == 500
    assert calibrate_rounds(lambda count: Repeated(Pure(0.25), count), 2.0, 0.0) == 8


def test_no_number_of_rounds_fits_a_budget_that_is_already_exceeded() -> None:
    def make(rounds: int) -> Event:
        return Composed((Gaussian(1.0), Repeated(Gaussian(50.0), rounds)))

    with refuses("unreachable", "epsilon", InvalidArgument):
        calibrate_rounds(make, 1.0, 1e-5)
    # what fits without any round, but not with one, is 0 rounds
    spent = account(Gaussian(1.0), 1e-5).epsilon
    assert calibrate_rounds(make, spent * 1.0000001, 1e-5) == 0
    assert calibrate_rounds(make, spent * 1.01, 1e-5) > 0
