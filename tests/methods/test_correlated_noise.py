"""``uldp-avg`` with noise that is correlated over rounds, and with weights from what a silo knows by itself."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.errors import UserError
from tacit.exchange import Masked
from tacit.families.weighting.methods import CorrelatedNoise, UldpAvg
from tacit.methods import Facts
from tacit.methods.per_subject import SubjectWork
from tacit.privacy import Gaussian, account
from tacit.privacy.proofs.correlated_noise import noise_weights, sensitivity, strategy_column
from tacit.privacy.proofs.weight_tables import RECORD_WEIGHTS, WeightTable
from tests.methods.test_noise_added import CLIP, SIGMA, assert_independent, assert_variance, moves, silent
from tests.methods.worlds import before_noise, epsilon, moved, planned, random_federation, simulation
from tests.refusals import refuses

AVG = {"name": "uldp-avg", "noise_multiplier": SIGMA, "clip": CLIP}


def correlated(groups: int, bands: int) -> dict:
    return {**AVG, "correlated_noise": {"groups": groups, "bands": bands}}


# -- noise


def test_a_round_s_noise_is_the_weighted_sum_of_the_normals_of_the_rounds_before():
    rounds, divisor = 5, 5 * 3 / 2  # people times silos, of which half take part
    sim = simulation(silent(3), correlated(groups=2, bands=3), rounds=rounds)
    plain = simulation(silent(3), AVG, rounds=rounds)
    fresh = [noise * 15 for noise in moves(plain, rounds)]
    for t, noise in enumerate(moves(sim, rounds)):
        expected = sum(weight * fresh[t - j] for j, weight in enumerate(noise_weights(3)) if t >= j)
        np.testing.assert_allclose(noise * divisor, expected, atol=1e-4)


def test_noise_partly_cancels_over_rounds():
    rounds, bands = 6, 4
    found = moves(simulation(silent(3), correlated(groups=2, bands=bands), rounds=rounds), rounds)
    scale = SIGMA * CLIP / 7.5
    partial = np.cumsum(np.pad(noise_weights(bands), (0, rounds - bands)))
    assert_variance(sum(found), scale**2 * np.square(partial).sum())
    assert_variance(found[-1], scale**2 * np.square(noise_weights(bands)).sum())
    assert np.corrcoef(found[-1], found[-2])[0, 1] < -0.2


def test_one_band_in_one_group_is_the_same_noise_as_ever():
    one, other = (moves(simulation(silent(3), method), 2) for method in (AVG, correlated(1, 1)))
    np.testing.assert_array_equal(one, other)
    assert_independent(*one)


# -- who takes part


def test_people_take_turns_by_number_in_all_their_silos():
    made = random_federation(np.random.default_rng(3), silos=3)
    sim = simulation(made, correlated(groups=3, bands=2))
    for number in range(1, 8):
        there = np.unique(sim.work._subject[sim.work.draw(number).entries])
        everybody = np.unique(made.train.subject)
        np.testing.assert_array_equal(there, everybody[everybody % 3 == (number - 1) % 3])


@pytest.mark.parametrize("weights", ["uniform", "capped"])
def test_removing_a_person_moves_the_whole_training_by_at_most_what_the_event_says(weights):
    """The strategy applied to a person's part of every round, at models that have moved meanwhile."""
    rounds, groups, bands = 7, 2, 3
    column, most = strategy_column(bands, rounds), sensitivity(bands, groups, rounds)
    largest = 0.0
    for seed in range(4):
        rng = np.random.default_rng(seed)
        made = random_federation(rng, silos=3)
        extra = {"weights": "capped", "weight_cap": 4} if weights == "capped" else {}
        sim = simulation(made, {**correlated(groups, bands), **extra}, rounds=rounds)
        for subject in np.unique(made.train.subject)[:3]:
            own = sim.work._subject == subject
            parts = []
            for number in range(1, rounds + 1):
                moved(sim, float(rng.normal()))
                drawn = sim.work.draw(number)
                kept = sim.work._weights
                sim.work._weights = np.where(own, kept, 0.0)
                alone = sim.work._arranged(
                    sim.work._starts[drawn.entries], sim.work._counts[drawn.entries], drawn.entries
                )
                sim.work._weights = kept
                parts.append(before_noise(sim, alone))
            encoded = [sum(column[t - s] * parts[s] for s in range(t + 1)) for t in range(rounds)]
            assert np.linalg.norm(encoded) <= most * CLIP * (1 + 1e-5)
            largest = max(largest, np.linalg.norm(encoded) / (most * CLIP))
    assert largest > 0.2


# -- what is promised


def test_the_whole_training_is_one_gaussian_however_many_rounds_are_asked_about():
    plan = planned(correlated(4, 4), silos=5, rounds=100)
    expected = account(Gaussian(SIGMA / sensitivity(4, 4, 100)), 1e-5).epsilon
    assert epsilon(plan, "public") == pytest.approx(expected)
    public = plan.promise.views[0]
    assert plan.promise.total(public, 1) == plan.promise.total(public, 100)


def test_one_band_costs_what_independent_rounds_cost():
    together = planned({**correlated(1, 1), "noise_multiplier": 5.0}, silos=5, rounds=100)
    apart = planned({**AVG, "noise_multiplier": 5.0}, silos=5, rounds=100)
    for view in ("public", "server", "silo"):
        assert epsilon(together, view) == pytest.approx(epsilon(apart, view), rel=1e-6)


def test_a_target_is_met_by_less_noise_per_round_where_people_take_turns():
    target = {"name": "uldp-avg", "target_epsilon": 4.0}
    everybody = planned(target, rounds=40)
    turns = planned({**target, "correlated_noise": {"groups": 8, "bands": 8}}, rounds=40)
    assert epsilon(turns, "public") <= 4.0
    assert turns.noise_multiplier < everybody.noise_multiplier
    assert any("take turns in 8 groups" in text for text in turns.guarantees()[0].assumptions)


@pytest.mark.parametrize("changes", [{"subject_sample_rate": 0.5}, {"adaptive_clip": {"quantile": 0.5}}])
def test_what_would_break_the_schedule_or_the_cancelling_is_refused(changes):
    with refuses("conflict", "method.correlated_noise"):
        planned({**correlated(2, 2), **changes})


def test_exchanges_that_draw_every_round_s_noise_themselves_are_refused():
    with refuses("not-supported", "method.correlated_noise"):
        UldpAvg(correlated_noise=CorrelatedNoise(groups=2, bands=2)).check(Masked())


# -- weights that need no counts from elsewhere

CAPPED = {**AVG, "weights": "capped", "weight_cap": 4}


def test_capped_weights_grow_with_records_up_to_the_cap_and_sum_to_at_most_one():
    counts = np.array([1, 2, 4, 100])
    facts = Facts(silos=5, max_silos=2)
    found = SubjectWork(weights="capped", weight_cap=4).weights_of(counts, counts * 1000, facts)
    np.testing.assert_allclose(found, [1 / 8, 1 / 4, 1 / 2, 1 / 2])


def test_capped_weights_do_not_depend_on_what_other_silos_hold():
    method, counts, facts = SubjectWork(weights="capped", weight_cap=3), np.array([1, 5]), Facts(silos=4)
    one, other = (method.weights_of(counts, totals, facts) for totals in (counts, counts + 50))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("weights", RECORD_WEIGHTS)
@pytest.mark.parametrize("most", [30, None])
def test_disclosed_counts_give_the_weights_of_the_table(weights, most):
    counts, totals = np.array([1, 3, 20, 30]), np.array([1, 10, 50, 120])
    cap = 7 if weights == "records-capped" else None
    table = WeightTable(weights, 120, cap)  # four silos, or the largest number that there is
    found = SubjectWork(weights=weights, weight_cap=cap).weights_of(counts, totals, Facts(silos=4, max_records=most))
    np.testing.assert_array_equal(found, counts * table.floats()[totals])


def test_capped_weights_are_private_for_every_view_without_disclosing_counts():
    capped, uniform = (
        planned(method, silos=5, rounds=20, privacy={"max_silos_per_subject": 5}) for method in (CAPPED, AVG)
    )
    for view in ("public", "server", "silo"):
        assert epsilon(capped, view) == pytest.approx(epsilon(uniform, view))
    two = planned(CAPPED, silos=5, rounds=20, privacy={"max_silos_per_subject": 2})
    assert epsilon(two, "public") == pytest.approx(epsilon(uniform, "public"))
    assert epsilon(two, "server") > epsilon(uniform, "server")  # one silo may hold half of somebody


def test_a_cap_goes_with_capped_weights():
    with pytest.raises(UserError) as found:
        planned({**AVG, "weight_cap": 3})
    assert found.value.field == "method.weight_cap"
