"""Every private method, one round of the engine's own code: nothing that is proved is refuted, and audits see much.

At 99.9 % confidence, with fixed seeds. Twenty seeds of every method are run by ``-m slow``.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from tacit.audit.cases import Case, case, numbers_of
from tacit.audit.mechanism import audit_mechanism, claim_of, simulation
from tacit.audit.views import at_once, one_by_one
from tacit.methods import METHODS
from tacit.privacy import Randomness, account

NOISE = {"noise_multiplier": 0.5, "clip": 1.0}
BATCHES = {"sample_rate": 0.5, "batches_per_round": 2, "local_learning_rate": 0.1}

NODES = {"exchange": {"name": "direct"}, "silos": 3}
SHUFFLED = {"exchange": {"name": "shuffled", "sealed": False}, "records": 1}

# name -> method, other numbers of the case, views; all private methods, and the variants whose code is their own
CASES: dict[str, tuple[dict, dict, tuple[str, ...]]] = {
    "subject-sgd": ({"name": "subject-sgd", "subject_sample_rate": 0.5}, {}, ("public", "server", "silo")),
    "subject-sgd, training": ({"name": "subject-sgd", "local_epochs": 2, "records_per_subject": 2}, {}, ("public",)),
    "uldp-avg": ({"name": "uldp-avg", "local_epochs": 2}, {}, ("public", "server", "silo")),
    "uldp-sgd": ({"name": "uldp-sgd", "subject_sample_rate": 0.5}, {}, ("public",)),
    "uldp-naive": ({"name": "uldp-naive"}, {}, ("public", "server")),
    "uldp-naive, silo": ({"name": "uldp-naive"}, {"unit": "silo"}, ("public",)),
    "uldp-group": ({"name": "uldp-group", "group_size": 4, **BATCHES}, {"records": 2}, ("public",)),
    "local-record": ({"name": "local-record", **BATCHES}, {}, ("public", "server")),
    "local-record, subject": ({"name": "local-record", **BATCHES}, {"unit": "subject"}, ("public",)),
    "local-group": ({"name": "local-group", "group_cap": 2, **BATCHES}, {}, ("public", "server")),
    "higrad": ({"name": "higrad", **BATCHES}, {}, ("public", "server")),
    "higrad, one batch": ({"name": "higrad", **BATCHES, "batches_per_round": 1}, {}, ("public",)),
    "user-ldp": ({"name": "user-ldp", **BATCHES}, {}, ("public", "server")),
    "user-ldp, subject": ({"name": "user-ldp", **BATCHES}, {"unit": "subject"}, ("public",)),
    "pooled-dp-sgd": ({"name": "pooled-dp-sgd", **BATCHES}, {}, ("public",)),
    "dp-fedavg": ({"name": "dp-fedavg", "silo_sample_rate": 0.5, "batch_size": 4}, {}, ("public",)),
    "dp-fedavg, subject": ({"name": "dp-fedavg", "silo_sample_rate": 0.5}, {"unit": "subject"}, ("public",)),
    "dp-fedsgd": ({"name": "dp-fedsgd"}, {}, ("public",)),
    "fine-tune": ({"name": "fine-tune"}, {}, ("public",)),
    "mean-regularized": ({"name": "mean-regularized", "silo_sample_rate": 0.5}, {}, ("public",)),
    "mean-regularized, subject, two rounds": (
        {"name": "mean-regularized"},
        {"unit": "subject", "rounds": 2},
        ("public",),
    ),
    "graph-regularized": ({"name": "graph-regularized", "relations": "learned"}, {}, ("public",)),
    "per-fedavg": ({"name": "per-fedavg", "order": "hessian-vector"}, {}, ("public",)),
    "pfedme": ({"name": "pfedme"}, {}, ("public",)),
    "fedem": ({"name": "fedem", "components": 2}, {}, ("public",)),
    "central-group": ({"name": "central-group", "sample_rate": 0.5}, {}, ("public",)),
    "subject-sgd, adaptive": ({"name": "subject-sgd", "adaptive_clip": {"count_noise": 1.0}}, {}, ("public",)),
    "ldp-gaussian": ({"name": "ldp-gaussian", "local_epsilon": 2.0}, {"records": 1}, ("public", "server")),
    "ldp-laplace": ({"name": "ldp-laplace", "local_epsilon": 2.0}, {"records": 1}, ("public", "server")),
    "ss-simple": ({"name": "ss-simple", "local_epsilon": 2.0}, SHUFFLED, ("public", "shuffler+analyzer")),
    "ss-double": (
        {"name": "ss-double", "local_epsilon": 2.0, "index_rate": 0.5},
        SHUFFLED,
        ("public", "shuffler+analyzer"),
    ),
    "ss-double, fixed": (
        {"name": "ss-double", "local_epsilon": 2.0, "index_rate": 0.5, "index_sampling": "fixed"},
        SHUFFLED,
        ("public",),
    ),
    "ss-topk": ({"name": "ss-topk", "local_epsilon": 2.0, "index_rate": 0.5}, SHUFFLED, ("public",)),
    "muffliato-sgd": ({"name": "muffliato-sgd", "topology": "complete"}, NODES, ("public",)),
    "muffliato-sgd, adopted": ({"name": "muffliato-sgd", "adopt": True}, NODES, ("public",)),
    "random-walk": ({"name": "random-walk", "walk_steps": 3}, NODES, ("public",)),
    "local-walk": ({"name": "local-walk", "walk_steps": 3}, NODES, ("public",)),
    "higrad, adaptive": ({"name": "higrad", "adaptive_clip": {"count_noise": 1.0}, **BATCHES}, {}, ("public",)),
}
PAIRS = [(name, view) for name, (_, _, views) in CASES.items() for view in views]
# one of each way in which vectors are clipped and noise is added; all others are run by ``-m slow``
QUICK = {
    *(("subject-sgd", "public"), ("uldp-avg", "server"), ("uldp-avg", "silo"), ("uldp-naive", "public")),
    *(("higrad", "server"), ("local-group", "public"), ("user-ldp, subject", "public")),
    *(("dp-fedsgd", "public"), ("central-group", "public"), ("graph-regularized", "public")),
    *(("muffliato-sgd, adopted", "public"), ("random-walk", "public")),
}


def made(name: str) -> Case:
    method, numbers, _ = CASES[name]
    return case(method if "local_epsilon" in method else {**NOISE, **method}, **numbers)


def test_every_private_method_is_audited():
    private = {name for name, kind in METHODS.items() if kind().private}
    assert private == {method["name"] for method, _, _ in CASES.values()}


@pytest.mark.parametrize(
    ("name", "view"), [pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.slow) for pair in PAIRS]
)
def test_what_is_proved_is_not_refuted(name, view):
    one = made(name)
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
    one = made(name)
    proved = account(claim_of(one, view), 1e-5).epsilon
    for seed in range(20):
        found = audit_mechanism(one, view, runs=300, randomness=Randomness.from_seed(seed))
        assert not found.refuted
        assert found.epsilon <= proved


def test_the_masked_exchange_leaves_the_same_noise():
    """Fewer runs: every sum is taken by parties with keys of their own."""
    one = case({**NOISE, "name": "subject-sgd"}, exchange={"name": "masked"})
    found = audit_mechanism(one, runs=150, randomness=Randomness.from_seed(3))
    assert not found.refuted
    assert found.gaussian_epsilon > 0.3


def test_several_rounds_are_weighed_together():
    method = {**NOISE, "name": "uldp-sgd", "noise_multiplier": 1.0}
    several = audit_mechanism(case(method, rounds=3), runs=200, randomness=Randomness.from_seed(4))
    alone = audit_mechanism(case(method), runs=200, randomness=Randomness.from_seed(4))
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
    method = case({**NOISE, "name": "higrad", "adaptive_clip": {"count_noise": 2.0}, **BATCHES}).plan.method
    assert case(numbers_of(method)).plan.method == method


@pytest.mark.parametrize("view", ["public", "server", "silo"])
@pytest.mark.parametrize("name", ["uldp-avg", "higrad", "uldp-naive"])
def test_many_rounds_at_once_are_the_rounds_one_by_one(name, view):
    one = made(name)
    sim = simulation(one.plan, one.present, Randomness.from_seed(2))
    start, numbers = sim.server, [1, 5, 6]
    together = at_once(sim, view, numbers)
    for number, row in zip(numbers, together, strict=True):
        sim.server = start
        apart = np.concatenate([np.ravel(part) for part in one_by_one(sim, view, number)])
        np.testing.assert_allclose(row, apart, rtol=1e-5, atol=1e-6)
