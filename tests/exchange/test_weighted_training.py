"""Methods under the weighted exchange: the same model as with the plain sum and disclosed counts."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.exchange import Grid
from tacit.exchange.sums import beyond
from tacit.planning.plan import plan, sum_facts
from tacit.planning.preview import outlook
from tests.exchange.test_masked_training import experiment_with, simulation, weights
from tests.refusals import refuses

# 2048 bits are allowed, with a warning, and quicker
PAILLIER = {"name": "weighted", "protocol": "paillier", "key_bits": 2048}
EXCHANGE = {"name": "weighted"}
JOINT = {"name": "weighted", "key": "joint", "colluding": 1}
pytestmark = pytest.mark.filterwarnings("ignore::tacit.families.weighting.paillier.WeakKeyWarning")


def weighted(experiment: dict, exchange: dict, method: str = "uldp-avg", **numbers) -> dict:
    made = experiment_with(experiment, method, exchange, weights="records-phantom", **numbers)
    return made | {"privacy": {"max_records_per_subject_and_silo": 4}}


@pytest.mark.parametrize("exchange", [EXCHANGE, JOINT, PAILLIER], ids=["lattice", "joint", "paillier"])
def test_without_noise_the_model_is_that_of_the_plain_sum_with_the_same_weights(exchange, experiment, visits):
    few = visits[visits.person < 20]
    numbers = {"subject_sample_rate": 0.6, "clip": 0.5}
    open_ = weighted(experiment, {"name": "plain"}, "uldp-sgd", disclose_counts=True, **numbers)
    plain = simulation(open_, few)
    private = simulation(weighted(experiment, exchange | {"index": "list"}, "uldp-sgd", **numbers), few)
    for number in range(1, 4):
        assert plain.round(number) == private.round(number)
        # (people + silos) x precision, and what single precision rounds in the plain sum
        np.testing.assert_allclose(weights(private), weights(plain), atol=1e-6)
    assert np.abs(weights(private)).max() > 1e-3


def test_with_hidden_sampling_everybody_works_and_some_are_left_out(experiment, visits):
    few = visits[(visits.person >= 12) & (visits.person < 20)]
    numbers = {"subject_sample_rate": 0.5, "clip": 0.5}
    hidden = simulation(weighted(experiment, PAILLIER | {"hidden_sampling": True}, "uldp-sgd", **numbers), few)
    assert len(hidden.work.draw(1).entries) == len(hidden.work._subject)  # nobody here knows who will be left out
    for number in range(1, 21):  # a round in which all are left out moves nothing
        hidden.round(number)
        assert np.isfinite(weights(hidden)).all()
        if np.abs(weights(hidden)).max() > 0:
            return
    raise AssertionError("all people were left out of 20 rounds")


@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9])
def test_what_an_adaptive_clip_counts_stays_within_the_agreed_bound(quantile, experiment, visits):
    """A person counts as 1 - quantile or as -quantile, on the scale of the noise."""
    adaptive = {"quantile": quantile, "count_noise": 1.0}
    run = simulation(weighted(experiment, EXCHANGE, noise_multiplier=5.0, adaptive_clip=adaptive), visits)
    grid, bound = Grid(1e-8), sum_facts(run.method, run.facts).bound
    people = run.work.subjects(run.work.draw(1), run.given(run.broadcast), grid).parts
    largest = 0.5 * 5 * max(quantile, 1 - quantile)
    assert largest <= bound <= 2 * largest  # the grid of sums is finer by powers of two
    norm = sum_facts(run.method, run.facts).norm
    assert norm == pytest.approx(np.hypot(0.5, largest))
    vectors = [vector for own in people for group in own for vector in group.vectors]
    assert len(vectors) == len(run.work._subject)
    assert not beyond(np.array(vectors), grid.steps(bound))
    norms = np.linalg.norm(np.array(vectors, np.float64), axis=1) * 1e-8
    assert norms.max() <= norm
    assert norms.max() > bound  # a clipped vector and its count together


def test_held_out_records_are_no_people_of_a_sum(experiment, visits):
    """Assigned people are those of training records; every record that is held out would be one more ciphertext."""
    made = weighted(experiment, EXCHANGE, noise_multiplier=3.0)
    made["data"] = made["data"] | {"subjects": {"assign": "uniform", "count": 12}, "test_fraction": 0.3}
    run = simulation(made, visits)
    assert run.federation.subject_count > 12
    assert run.sum_facts().people == 12
    assert sum(own.counts.sum() for own in run.work.members()) == len(run.federation.train)


def test_people_of_one_slot_are_in_a_round_together_or_not_at_all(experiment, visits):
    """Whom a coin leaves out must not be seen in the weights of the others, which count the whole slot."""
    made = weighted(experiment, EXCHANGE | {"slots": 7}, "uldp-sgd", subject_sample_rate=0.5, noise_multiplier=3.0)
    work = simulation(made, visits).work
    slot = np.concatenate([own.slots for own in work.members()])
    assert len(np.unique(slot)) == 7
    for number in range(1, 9):
        present = np.isin(np.arange(len(slot)), work.draw(number).entries)
        assert 0 < present.sum() < len(slot)
        assert not set(slot[present]) & set(slot[~present])


def test_a_list_that_is_too_short_for_its_subjects_is_refused(experiment, visits):
    with refuses("too-few", "exchange.slots"):
        simulation(weighted(experiment, EXCHANGE | {"index": "list", "slots": 7}, noise_multiplier=3.0), visits)


def test_silos_and_server_have_a_guarantee_though_people_are_weighted_by_records(experiment):
    open_ = plan(weighted(experiment, {"name": "plain"}, disclose_counts=True, noise_multiplier=3.0))
    private = plan(weighted(experiment, {"name": "weighted"}, noise_multiplier=3.0))
    listed = plan(weighted(experiment, {"name": "weighted", "index": "list"}, noise_multiplier=3.0))
    before = {str(guarantee.view): guarantee.epsilon for guarantee in open_.guarantees()}
    after = {str(guarantee.view): guarantee.epsilon for guarantee in private.guarantees()}
    alone = {str(guarantee.view): guarantee.epsilon for guarantee in listed.guarantees()}
    assert before["server"] == before["silo"] == np.inf
    # no two share a place on the list, and silos know who is on it
    assert alone == {"public": before["public"], "server": before["public"], "silo": np.inf}
    assert before["public"] < after["server"] == after["public"] < after["silo"] < np.inf
    assert any("colludes with no silo" in text for text in private.guarantees()[0].assumptions)


@pytest.mark.parametrize("name", ["masked", "weighted"])
def test_a_plan_shows_the_noise_for_silos_that_may_drop_out(experiment, name):
    method = {"noise_multiplier": 3.0, "disclose_counts": True} if name == "masked" else {"noise_multiplier": 3.0}
    made = plan(weighted(experiment, {"name": name, "drop_outs": 1}, **method))
    shown = outlook(made).as_dict()["noise_surplus"]
    assert shown == {"drop_outs": 1, "factor": pytest.approx(2**0.5)}  # (3 - 1) / (3 - 1 - 1)
    steady = plan(weighted(experiment, {"name": name}, **method))
    assert "noise_surplus" not in outlook(steady).as_dict()


def test_with_a_joint_key_the_server_may_collude_with_silos(experiment):
    made = weighted(experiment, JOINT, noise_multiplier=3.0)
    found = {str(guarantee.view): guarantee for guarantee in plan(made).guarantees()}
    alone = {
        str(g.view): g for g in plan(weighted(experiment, {"name": "weighted"}, noise_multiplier=3.0)).guarantees()
    }
    assert set(found) == {"public", "server", "silo", "server+silos:1"}
    assert found["public"].epsilon == alone["public"].epsilon < np.inf
    # the coalition sees the sum, and knows its own noise and records: as one silo does
    assert found["server+silos:1"].epsilon == found["silo"].epsilon == alone["silo"].epsilon
    assert not any("colludes with no silo" in text for text in found["server"].assumptions)


def test_a_plan_says_that_its_key_is_short(experiment):
    for bits, said in ((2048, True), (3072, False), (4096, False)):
        planned = plan(
            weighted(experiment, {"name": "weighted", "protocol": "paillier", "key_bits": bits}, noise_multiplier=3.0)
        )
        for guarantee in planned.guarantees():
            assert any(f"Paillier key of {bits} bits" in text for text in guarantee.assumptions) == said


@pytest.mark.parametrize(
    ("change", "code", "field", "names"),
    [
        ({"exchange": PAILLIER | {"key_bits": 1024}}, "out-of-range", "exchange.key_bits", ["1024", "3072"]),
        ({"exchange": PAILLIER | {"drop_outs": 1}}, "not-supported", "exchange.drop_outs", ["lattice"]),
        ({"exchange": {"name": "weighted", "drop_outs": 2}}, "out-of-range", "exchange.drop_outs", ["3 silos"]),
        (
            {"exchange": {"name": "weighted", "hidden_sampling": True}},
            "not-supported",
            "exchange.hidden_sampling",
            ["paillier"],
        ),
        ({"exchange": {"name": "weighted", "max_setup_mb": 1.0}}, "out-of-range", "exchange.max_setup_mb", []),
        ({"exchange": PAILLIER, "privacy": {}}, "missing", "privacy.max_records_per_subject_and_silo", []),
        (
            {"exchange": PAILLIER, "privacy": {"max_records_per_subject_and_silo": 1000}},
            "out-of-range",
            "privacy.max_records_per_subject_and_silo",
            ["3001"],
        ),
        (
            {"privacy": {"max_records_per_subject_and_silo": 3000}},
            "out-of-range",
            "privacy.max_records_per_subject_and_silo",
            ["8,191", "2730"],
        ),
        (
            {"privacy": {"max_records_per_subject_and_silo": 4, "against": ["server+silos:1"]}},
            "unknown-name",
            "privacy.against",
            ["server+silos:1"],
        ),
        ({"method": {"name": "uldp-avg", "noise_multiplier": 1.0}}, "not-supported", "method.weights", ["records"]),
        ({"method": {"name": "uldp-naive", "noise_multiplier": 1.0}}, "not-supported", "exchange.name", ["weighted"]),
        (
            {
                "method": {
                    "name": "uldp-sgd",
                    "noise_multiplier": 1.0,
                    "weights": "records-phantom",
                    "subject_sample_rate": 0.123456,
                },
                "exchange": PAILLIER | {"hidden_sampling": True},
            },
            "invalid-value",
            "method.subject_sample_rate",
            [],
        ),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_reason(change, code, field, names, experiment):
    with refuses(code, field, names=names):
        plan(weighted(experiment, {"name": "weighted"}, noise_multiplier=3.0) | change)
