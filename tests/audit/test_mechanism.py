"""Every private method, one round of the engine's own code: nothing that is proved is refuted, and audits see much.

At 99.9 % confidence, with fixed seeds. Twenty seeds of every method are run by ``-m slow``.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from research.samples import BATCHES, MUCH, PAIRS, SAMPLES, hardly_noisy
from tacit.auditing.cases import case, numbers_of
from tacit.auditing.mechanism import audit_mechanism, claim_of, simulation
from tacit.auditing.views import at_once, one_by_one
from tacit.methods import METHODS
from tacit.privacy import Randomness, account

NOISE = {"noise_multiplier": 0.5, "clip": 1.0}

# one of each way in which vectors are clipped and noise is added; all others are run by ``-m slow``
QUICK = {
    *(("subject-sgd", "public"), ("uldp-avg", "server"), ("uldp-avg", "silo"), ("uldp-naive", "public")),
    *(("higrad", "server"), ("local-group", "public"), ("user-ldp, subject", "public")),
    *(("dp-fedsgd", "public"), ("central-group", "public"), ("graph-regularized", "public")),
    *(("muffliato-sgd, adopted", "public"), ("random-walk", "public")),
}


def test_every_private_method_is_audited():
    private = {name for name, kind in METHODS.items() if kind.info.private}
    assert private == {sample.method["name"] for sample in SAMPLES.values()}


@pytest.mark.parametrize(
    ("name", "view"), [pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.slow) for pair in PAIRS]
)
def test_what_is_proved_is_not_refuted(name, view):
    one = SAMPLES[name].made()
    proved = account(claim_of(one, view), 1e-5).epsilon
    # people who are drawn anew in every run are run one by one
    runs = 300 if name == "subject-sgd" else 600
    found = audit_mechanism(one, view, runs=runs, randomness=Randomness.from_seed(11))
    assert math.isfinite(proved)
    assert not found.refuted
    assert found.epsilon <= proved
    assert found.hits <= found.most_hits
    # it was worth trying: where a unit is always there at its worst, it is seen
    if name in ("uldp-avg", "uldp-naive", "dp-fedsgd", "local-group", "user-ldp, subject"):
        assert found.gaussian_epsilon > 0.15 * proved


@pytest.mark.slow
@pytest.mark.parametrize(("name", "view"), PAIRS)
def test_no_false_alarm_over_twenty_seeds(name, view):
    one = SAMPLES[name].made()
    proved = account(claim_of(one, view), 1e-5).epsilon
    for seed in range(20):
        found = audit_mechanism(one, view, runs=300, randomness=Randomness.from_seed(seed))
        assert not found.refuted
        assert found.epsilon <= proved


@pytest.mark.parametrize(
    ("name", "view"), [pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.slow) for pair in PAIRS]
)
def test_a_small_part_of_the_noise_is_caught_in_every_method(name, view):
    """So that silence says something: the same worlds, views and attacks."""
    one = SAMPLES[name].made(MUCH)
    found = audit_mechanism(one, view, runs=400, randomness=Randomness.from_seed(11), broken=hardly_noisy)
    assert found.refuted


def test_the_masked_exchange_leaves_the_same_noise():
    """Fewer runs: every sum is taken by parties with keys of their own."""
    one = case({**NOISE, "name": "subject-sgd"}, exchange={"name": "masked"})
    found = audit_mechanism(one, runs=150, randomness=Randomness.from_seed(3))
    assert not found.refuted
    assert found.gaussian_epsilon > 0.3


def test_several_rounds_are_weighed_together():
    method = {**NOISE, "name": "uldp-sgd", "noise_multiplier": 1.0}
    several = audit_mechanism(case(method, rounds=3), runs=1000, randomness=Randomness.from_seed(4))
    alone = audit_mechanism(case(method), runs=1000, randomness=Randomness.from_seed(4))
    assert not several.refuted
    assert several.gaussian_epsilon > alone.gaussian_epsilon


def test_a_case_has_the_unit_in_one_world_only_and_everybody_else_in_both():
    one = case({**NOISE, "name": "subject-sgd"}, records=3, silos=2)
    assert (one.present.train.subject == 0).sum() == 6
    assert not (one.absent.train.subject == 0).any()
    np.testing.assert_array_equal(one.present.train.features[one.present.train.subject > 0], one.absent.train.features)
    other = case({**NOISE, "name": "user-ldp", **BATCHES})
    assert other.relation == "replace"
    assert len(other.present.train) == len(other.absent.train)
    assert other.present.train.labels.min() >= 0 > other.absent.train.labels.min()


def test_a_method_as_numbers_is_the_same_method_again():
    method = case({**NOISE, "name": "higrad", "adaptive_clip": {"count_noise": 2.0}, **BATCHES}).plan.options
    assert case(numbers_of(method)).plan.options == method


@pytest.mark.parametrize("view", ["public", "server", "silo"])
@pytest.mark.parametrize("name", ["uldp-avg", "higrad", "uldp-naive"])
def test_many_rounds_at_once_are_the_rounds_one_by_one(name, view):
    one = SAMPLES[name].made()
    sim = simulation(one.plan, one.present, Randomness.from_seed(2))
    start, numbers = sim.server, [1, 5, 6]
    together = at_once(sim, view, numbers)
    for number, row in zip(numbers, together, strict=True):
        sim.server = start
        apart = np.concatenate([np.ravel(part) for part in one_by_one(sim, view, number)])
        np.testing.assert_allclose(row, apart, rtol=1e-5, atol=1e-6)
