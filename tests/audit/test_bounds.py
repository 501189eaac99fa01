"""Lower bounds hold with their confidence, and are worth something: on mechanisms whose epsilon is known exactly.

Statistics with fixed seeds; a count that would be exceeded with probability below 1e-3 fails the test.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.stats import binom

from tacit.auditing.bounds import (
    GaussianTradeOff,
    Guesses,
    ProvedTradeOff,
    Rates,
    best_attack,
    estimate_gaussian_epsilon,
    gaussian_mu,
    guess,
    guesses_to_make,
    hockey_stick_epsilon,
    one_run_epsilon,
    one_run_fdp_epsilon,
    one_run_p_value,
    one_run_refutes,
    proved_curve,
    rate_at_least,
    rate_at_most,
    rates_at,
    refutes,
)
from tacit.privacy import Gaussian, PoissonSampled
from tacit.privacy.accounting.gaussian import gaussian_epsilon
from tacit.privacy.accounting.gaussian import gaussian_mu as mu_for

DELTA = 1e-5


def too_many(errors: float, trials: int) -> int:
    """More errors than this have probability below 1e-3, if each has probability ``errors``."""
    return int(binom.isf(1e-3, trials, errors))


def ideal(rng: np.random.Generator, mu: float, canaries: int = 1000) -> tuple[np.ndarray, np.ndarray]:
    """Scores and coins of canaries that go through a Gaussian mechanism each."""
    coins = rng.random(canaries) < 0.5
    return mu * coins + rng.normal(size=canaries), coins


# -- trade-off curves


def test_the_curve_of_a_gaussian_event_is_the_gaussian_curve():
    exact, proved = GaussianTradeOff(0.8), proved_curve(Gaussian(1 / 0.8))
    for rate in (0.001, 0.02, 0.3, 0.9):
        # proved from finitely many epsilons: never below, hardly above
        assert exact.most_hits(rate) <= proved.most_hits(rate) + 1e-12
        assert proved.most_hits(rate) < exact.most_hits(rate) * 1.002
        assert proved.fewest_false_alarms(exact.most_hits(rate)) == pytest.approx(rate, rel=0.01)


def test_a_curve_and_its_inverse_go_with_each_other_in_both_directions():
    curve = proved_curve(PoissonSampled(0.2, Gaussian(0.7)))
    for rate in (0.003, 0.1, 0.6):
        hits = curve.most_hits(rate)
        assert curve.fewest_false_alarms(hits) == pytest.approx(rate, abs=1e-9)
        assert rate < hits < 1


def test_nothing_is_refuted_where_nothing_is_claimed():
    assert not refutes(Rates(1000, 1000, 0, 1000), ProvedTradeOff((0.0,), (1.0,)), 0.95)
    assert not one_run_refutes(Guesses(1000, 1000, 1000), ProvedTradeOff((0.0,), (1.0,)), 0.95)


# -- many runs


def test_clopper_pearson_bounds_are_the_exact_ones():
    low, high = float(rate_at_least(7, 50, 0.025)), float(rate_at_most(7, 50, 0.025))
    assert binom.sf(6, 50, low) == pytest.approx(0.025)
    assert binom.cdf(7, 50, high) == pytest.approx(0.025)
    assert float(rate_at_least(0, 50, 0.025)) == 0
    assert float(rate_at_most(50, 50, 0.025)) == 1
    assert float(rate_at_most(0, 50, 0.025)) == pytest.approx(1 - 0.025 ** (1 / 50))


def test_both_rates_hold_at_once_with_half_of_the_error_each():
    hits, false_alarms = Rates(40, 50, 3, 60).surely(0.95)
    assert binom.sf(39, 50, hits) == pytest.approx(0.025)
    assert binom.cdf(3, 60, false_alarms) == pytest.approx(0.025)


def test_the_bound_from_many_runs_is_where_the_hockey_stick_divergence_is_delta():
    rates, delta = Rates(80, 100, 5, 100), 0.2
    hits, false_alarms = rates.surely(0.99)
    epsilon = hockey_stick_epsilon(rates, delta, 0.99)
    assert epsilon > 1
    assert hits - math.exp(epsilon) * false_alarms == pytest.approx(delta)


def test_an_attack_without_success_bounds_nothing():
    assert hockey_stick_epsilon(Rates(0, 100, 0, 100), DELTA, 0.95) == 0
    assert hockey_stick_epsilon(Rates(50, 100, 50, 100), DELTA, 0.95) == 0
    assert gaussian_mu(Rates(0, 100, 100, 100), 0.95) == 0


@pytest.mark.parametrize("mu", [0.5, 2.0])
def test_bounds_from_many_runs_hold_with_their_confidence(mu):
    """500 audits at 95 %, thresholds chosen on other runs."""
    rng = np.random.default_rng(0)
    truth, wrong, curve = gaussian_epsilon(mu, DELTA), np.zeros(3, int), GaussianTradeOff(mu)
    audits = 500
    for _ in range(audits):
        learn = mu + rng.normal(size=300), rng.normal(size=300)
        threshold = best_attack(*learn, lambda y, x: y - x, 0.95)
        rates = rates_at(threshold, mu + rng.normal(size=1000), rng.normal(size=1000))
        wrong += [
            hockey_stick_epsilon(rates, DELTA, 0.95) > truth,
            gaussian_mu(rates, 0.95) > mu,
            refutes(rates, curve, 0.95),
        ]
    assert (wrong <= too_many(0.05, audits)).all()


def test_half_the_noise_leaves_the_curve_though_epsilon_at_a_small_delta_does_not_show_it():
    """What the curve is for: 2,000 runs at 99.9 %."""
    rng = np.random.default_rng(1)
    curve = GaussianTradeOff(1.0)
    rates = rates_at(2.0, 2.0 + rng.normal(size=2000), rng.normal(size=2000))
    assert refutes(rates, curve, 0.999)
    assert gaussian_mu(rates, 0.999) > 1.5
    assert hockey_stick_epsilon(rates, DELTA, 0.999) < gaussian_epsilon(1.0, DELTA)


# -- one run


def test_the_p_value_of_one_run_is_a_binomial_tail_without_delta():
    """Randomised response: right with probability e^eps / (1 + e^eps), independently; the bound is exact."""
    guesses = Guesses(100, 100, 80)
    assert one_run_p_value(guesses, 1.0, 0.0) == pytest.approx(binom.sf(79, 100, 1 / (1 + math.exp(-1))))
    assert one_run_p_value(guesses, 1.0, 1e-3) > one_run_p_value(guesses, 1.0, 0.0)
    low = float(rate_at_least(80, 100, 0.05))
    assert one_run_epsilon(guesses, 0.0, 0.95) == pytest.approx(math.log(low / (1 - low)), abs=2e-4)


def test_the_p_value_covers_a_mechanism_that_gives_canaries_away_with_probability_delta():
    """(0, delta)-private: each of m canaries is published with probability delta, and one guess is made. It is right
    surely if anything was published, and half of the time if not."""
    for canaries, delta in ((10, 1e-3), (1000, 1e-4)):
        right = 1 - (1 - delta) ** canaries / 2
        assert right <= one_run_p_value(Guesses(canaries, 1, 1), 0.0, delta) <= right + canaries * delta


def test_the_p_value_is_the_one_of_the_theorem():
    m, made, right, epsilon, delta = 500, 60, 48, 0.8, 1e-4
    q = math.exp(epsilon) / (1 + math.exp(epsilon))
    near = [sum(binom.pmf(right - j, made, q) for j in range(1, i + 1)) / i for i in range(1, right + 1)]
    exact = binom.sf(right - 1, made, q) + 2 * m * delta * max(near)
    assert one_run_p_value(Guesses(m, made, right), epsilon, delta) == pytest.approx(exact)


@pytest.mark.parametrize(("m", "c", "v", "epsilon", "delta"), [(20, 10, 10, 1.0, 0.0), (30, 30, 24, 0.7, 0.02)])
def test_the_curve_is_refuted_exactly_where_no_distribution_of_right_guesses_is_left(m, c, v, epsilon, delta):
    """For one pair (epsilon, delta) the theorem's conditions are linear in the probabilities p_0 … p_c of so many right
    guesses: a linear program finds the largest possible tail from v on."""
    j, growth = np.arange(c + 1), math.exp(epsilon)
    rows, limits = [], []
    for i in range(1, c + 1):
        r, h = (j >= i) * j / m, (j >= i - 1) * (c - j) / m
        rows += [r - growth * h, growth * r - h]  # most_hits: both of its lines
        limits += [delta, growth - 1 + delta]
    found = linprog(-(j >= v).astype(float), A_ub=rows, b_ub=limits, A_eq=np.ones((1, c + 1)), b_eq=[1.0])
    largest = -found.fun
    curve, guesses = ProvedTradeOff((epsilon,), (delta,)), Guesses(m, c, v)
    assert 0.001 < largest < 0.9
    assert one_run_refutes(guesses, curve, 1 - 1.001 * largest)
    assert not one_run_refutes(guesses, curve, 1 - 0.999 * largest)


def test_guesses_that_are_no_better_than_coins_bound_nothing():
    assert one_run_epsilon(Guesses(1000, 400, 200), DELTA, 0.95) == 0
    assert one_run_fdp_epsilon(Guesses(1000, 400, 200), 1e-5, 0.95) == 0
    assert one_run_epsilon(Guesses(1000, 400, 0), DELTA, 0.95) == 0


def test_guesses_are_made_at_both_ends_of_the_scores():
    scores, coins = np.array([3.0, 1.0, -2.0, 0.0, 2.0, -1.0]), np.array([True, False, False, True, False, True])
    assert guess(scores, coins, 4) == Guesses(6, 4, 2)
    assert guess(scores, coins, 2) == Guesses(6, 2, 2)


def test_one_run_bounds_hold_with_their_confidence_on_the_mechanism_where_they_are_tight():
    """Randomised response with epsilon 1, every canary guessed: both bounds are nearly exact there."""
    rng = np.random.default_rng(2)
    audits, wrong = 500, np.zeros(2, int)
    right = rng.binomial(200, 1 / (1 + math.exp(-1.0)), size=audits)
    for number in np.unique(right):
        guesses, times = Guesses(200, 200, int(number)), int((right == number).sum())
        wrong[0] += times * (one_run_epsilon(guesses, 0.0, 0.95) > 1.0)
        wrong[1] += times * one_run_refutes(guesses, ProvedTradeOff((1.0,), (0.0,)), 0.95)
    assert (wrong <= too_many(0.05, audits)).all()
    assert wrong[0] > 5  # and it is no looser than it has to be


def test_the_bound_by_a_gaussian_curve_holds_with_its_confidence():
    """300 runs of 200 canaries at mu 1, of which 100 are guessed."""
    rng = np.random.default_rng(3)
    wrong = sum(one_run_refutes(guess(*ideal(rng, 1.0, 200), 100), GaussianTradeOff(1.0), 0.95) for _ in range(300))
    assert wrong <= too_many(0.05, 300)


@pytest.mark.parametrize(
    ("epsilon", "one_run", "fdp"),
    [
        (4.0, 1.0, 1.4),
        (8.0, 2.2, 3.5),
    ],
)
def test_bounds_on_the_ideal_gaussian_mechanism_with_1000_canaries(epsilon, one_run, fdp):
    """The median of 41 runs at 95 %; how many guesses to make is fixed before."""
    rng = np.random.default_rng(4)
    mu = mu_for(epsilon, DELTA)
    few = guesses_to_make(1000, mu, DELTA, 0.95)
    many = guesses_to_make(1000, mu, DELTA, 0.95, fdp=True)
    found = []
    for _ in range(41):
        scores, coins = ideal(rng, mu)
        found.append(
            (
                one_run_epsilon(guess(scores, coins, few), DELTA, 0.95),
                one_run_fdp_epsilon(guess(scores, coins, many), DELTA, 0.95),
            )
        )
    medians = np.median(found, axis=0)
    assert medians[0] >= one_run
    assert medians[1] >= fdp
    assert np.max(found) < epsilon


def test_a_proved_curve_is_refuted_by_a_run_with_half_the_noise_and_not_by_its_own():
    rng = np.random.default_rng(5)
    curve = proved_curve(Gaussian(1.0))
    assert not one_run_refutes(guess(*ideal(rng, 1.0), 600), curve, 0.999)
    assert one_run_refutes(guess(*ideal(rng, 3.0), 600), curve, 0.999)


# -- estimates


def test_the_estimate_is_near_the_truth_on_gaussians_and_is_no_bound():
    rng = np.random.default_rng(6)
    found = [estimate_gaussian_epsilon(1.5 + rng.normal(size=400), rng.normal(size=400), DELTA) for _ in range(40)]
    truth = gaussian_epsilon(1.5, DELTA)
    assert np.mean(found) == pytest.approx(truth, rel=0.05)
    assert np.max(found) > truth


def test_guesses_are_as_many_as_public_numbers_say_and_never_more_than_canaries():
    assert guesses_to_make(1000, 1.0, DELTA, 0.95) < guesses_to_make(1000, 4.0, DELTA, 0.95) <= 1000
    assert 0 < guesses_to_make(30, 1.0, DELTA, 0.95) <= 30
