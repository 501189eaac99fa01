"""Canaries go through the engine as everybody does, at their full length; they tell broken runs from whole ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tacit
from tacit.auditing.audit import audit
from tacit.auditing.canaries import BLANKS, LAYER, Planted, plant
from tacit.auditing.one_run import audit_run, log_ratio, train
from tacit.engine import load_federation
from tacit.engine.learner import Learner, learner
from tacit.methods.per_subject import SubjectSGD
from tacit.privacy import Gaussian, GaussianMixture, Noise, PoissonSampled, Randomness, Repeated
from tests.refusals import refuses

CLIP = 0.5


def planted(visits, experiment, method: dict, canaries: int = 40, **changes) -> tuple[Planted, Learner]:
    """The made table with canaries, people in up to three clinics with at most two records each."""
    data = experiment["data"] | {"records_per_silo": 200}
    data["subjects"] = {"column": "person", "count": 60}
    data["silos"] = {"column": "clinic", "count": 3}
    privacy = {"max_records_per_subject_and_silo": 2, "max_silos_per_subject": 3, **changes.pop("privacy", {})}
    plan = tacit.plan(experiment | {"data": data, "method": {"clip": CLIP, **method}, "privacy": privacy, **changes})
    federation = load_federation(plan, visits)
    randomness = Randomness.from_seed(1)
    base = learner(plan.experiment.model, federation.labels, federation.train.features.shape[1:], randomness)
    return plant(plan, federation, base, canaries, 20, randomness.stream("canaries")), base


def test_a_subject_canary_has_records_in_several_silos_or_none_at_all(visits, experiment):
    made, _ = planted(visits, experiment, {"name": "subject-sgd", "noise_multiplier": 1.0})
    train_rows = made.federation.train
    mark = train_rows.features[:, -1]
    for i, there in enumerate(made.coins):
        own = mark == i + 1
        assert own.sum() == (6 if there else 0)
        if there:
            assert sorted(train_rows.silo[own]) == [0, 0, 1, 1, 2, 2]
            assert len(np.unique(train_rows.subject[own])) == 1
    assert 5 < made.coins.sum() < 35
    assert made.plan.promise.facts.subjects == 60 + 40 + 20


@pytest.mark.parametrize(
    ("method", "divisor"),
    [
        ({"name": "subject-sgd"}, 120),
        ({"name": "subject-sgd", "local_epochs": 2}, 120),
        ({"name": "uldp-avg", "local_epochs": 2}, 120 * 3),
        ({"name": "higrad", "sample_rate": 1.0, "batches_per_round": 1, "local_learning_rate": 1.0}, 200),
    ],
)
def test_a_canary_moves_its_own_number_by_the_whole_clip_and_nobody_else_moves_it(visits, experiment, method, divisor):
    made, _ = planted(visits, experiment, {**method, "noise_multiplier": 4e-5}, train={"rounds": 1})
    seen = train(made, Randomness.from_seed(2))
    pulled, blank = made.pulls(seen.rounds[0])
    np.testing.assert_allclose(pulled, np.where(made.coins, CLIP / divisor, 0.0), atol=1e-3 * CLIP / divisor)
    assert np.abs(blank).max() < 1e-3 * CLIP / divisor
    assert len(blank) == BLANKS
    # real people train the rest of the model as if nothing were there
    assert LAYER in seen.model
    assert np.abs(np.asarray(seen.model["layer0"]["w"])).max() > 0


def test_record_and_silo_canaries_are_one_record_each(visits, experiment):
    record, _ = planted(
        visits, experiment, {"name": "local-record", "noise_multiplier": 1.0}, privacy={"unit": "record"}
    )
    marks = record.federation.train.features[:, -1]
    assert (marks > 0).sum() == record.coins.sum()
    silo, _ = planted(visits, experiment, {"name": "dp-fedavg", "noise_multiplier": 1.0}, privacy={"unit": "silo"})
    assert silo.federation.silo_count == 43 == silo.plan.promise.facts.silos
    marked = silo.federation.train.features[:, -1] > 0
    np.testing.assert_array_equal(np.sort(silo.federation.train.silo[marked]) - 3, np.flatnonzero(silo.coins))
    seen = train(replace(silo, plan=silo.plan), Randomness.from_seed(2))
    assert seen.rounds.shape == (4, 40 + BLANKS)


def test_under_replacement_absent_canaries_pull_the_other_way(visits, experiment):
    made, _ = planted(
        visits,
        experiment,
        {"name": "user-ldp", "noise_multiplier": 1e-6, "sample_rate": 1.0, "batches_per_round": 1},
        privacy={"unit": "silo"},
        train={"rounds": 1},
    )
    pulled, _ = made.pulls(train(made, Randomness.from_seed(2)).rounds[0])
    np.testing.assert_array_equal(pulled > 0, made.coins)


def test_a_run_with_its_noise_is_not_refuted_and_bounds_epsilon_from_below(visits, experiment):
    made, base = planted(visits, experiment, {"name": "subject-sgd", "noise_multiplier": 1.0}, canaries=400)
    found = {line.kind + " " + line.seen: line for line in audit_run(made, base, Randomness.from_seed(3))}
    assert found.keys() == {"gradient rounds", "gradient final", "input final"}
    assert not any(line.refuted for line in found.values())
    assert all(line.epsilon <= line.proved for line in found.values())
    assert found["gradient rounds"].epsilon > 1.5  # four rounds at mu = 2: proved 10
    assert found["gradient rounds"].fdp_epsilon > found["gradient rounds"].epsilon
    assert found["gradient rounds"].estimate == pytest.approx(10.0, rel=0.3)


def test_a_run_without_its_noise_is_refuted(visits, experiment):
    class Quiet(SubjectSGD):
        def build(self, facts):
            method = super().build(facts)
            return replace(method, noise=Noise(method.noise.std / 10, "shares"))

    made, base = planted(visits, experiment, {"name": "subject-sgd", "noise_multiplier": 4.0}, canaries=400)
    quiet = Quiet(clip=CLIP, noise_multiplier=4.0)
    broken = replace(made, plan=replace(made.plan, promise=replace(made.plan.promise, options=quiet)))
    found = audit_run(broken, base, Randomness.from_seed(3))
    assert found[0].refuted
    assert found[0].epsilon > found[0].proved


def test_what_the_server_sees_of_each_silo_is_looked_at_where_noise_is_in_every_batch(visits, experiment):
    method = {"name": "higrad", "noise_multiplier": 1.0, "sample_rate": 0.2, "batches_per_round": 2}
    made, base = planted(visits, experiment, method, canaries=200)
    found = audit_run(made, base, Randomness.from_seed(4))
    assert [(line.kind, line.seen, line.view) for line in found] == [
        ("gradient", "rounds", "public"),
        ("gradient", "uploads", "server"),
        ("gradient", "final", "public"),
        ("input", "final", "public"),
    ]
    assert not any(line.refuted for line in found)


def test_uploads_are_searched_where_a_canary_would_be(visits, experiment):
    """Where silos protect themselves, nobody else's upload says anything about one of them."""
    method = {"name": "user-ldp", "noise_multiplier": 4.0, "sample_rate": 1.0, "batches_per_round": 2}
    made, base = planted(visits, experiment, method, canaries=100, privacy={"unit": "silo"}, train={"rounds": 2})
    np.testing.assert_array_equal(made.homes, 3 + np.arange(100)[:, None])
    uploads = audit_run(made, base, Randomness.from_seed(4))[1]
    assert uploads.seen == "uploads"
    assert not uploads.refuted
    assert uploads.estimate > 0.6 * uploads.proved


def test_silos_as_canaries_that_would_change_what_is_promised_are_left_out(visits, experiment):
    experiment["data"] |= {"subjects": {"column": "person", "count": 60}, "silos": {"column": "clinic", "count": 3}}
    method = {"name": "uldp-naive", "noise_multiplier": 2.0}
    plan = tacit.plan(experiment | {"method": method, "privacy": {"unit": "silo"}})
    found = audit(plan, frame=visits, canaries=20, runs=40)
    assert not found.canaries  # a hundred silos more: noise of 103, and hardly any epsilon
    assert found.mechanism


def test_the_masked_exchange_is_audited_as_it_is(visits, experiment):
    method = {"name": "subject-sgd", "noise_multiplier": 1.0}
    made, base = planted(visits, experiment, method, canaries=60, exchange={"name": "masked"}, train={"rounds": 2})
    assert not any(line.refuted for line in audit_run(made, base, Randomness.from_seed(5)))


def test_scores_are_likelihood_ratios_of_what_a_round_is():
    z = np.array([-1.0, 0.0, 2.0])
    np.testing.assert_allclose(log_ratio(Gaussian(2.0))(z), z / 2 - 1 / 8)
    sampled = np.log(0.7 + 0.3 * np.exp(z / 2 - 1 / 8))
    np.testing.assert_allclose(log_ratio(PoissonSampled(0.3, Gaussian(2.0)))(z), sampled)
    np.testing.assert_allclose(log_ratio(GaussianMixture(2.0, (0.0, 1.0), (0.7, 0.3)))(z), sampled)
    np.testing.assert_allclose(log_ratio(Repeated(Repeated(PoissonSampled(0.3, Gaussian(2.0)), 1), 1))(z), sampled)


def test_an_audit_of_nothing_is_refused(visits, experiment):
    with refuses("not-private", "method.name"):
        audit(tacit.plan(experiment), frame=visits)


# -- end to end on the built-in data


# method, and in how many silos a person may be: the uniform weights of uldp-avg sum to 1 only over all of them
METHODS = {
    "subject-sgd": ({"name": "subject-sgd", "clip": 0.5, "subject_sample_rate": 0.3}, 2),
    "higrad": ({"name": "higrad", "clip": 0.5, "sample_rate": 0.05, "batches_per_round": 4}, 2),
    "uldp-avg": ({"name": "uldp-avg", "clip": 0.5, "local_epochs": 2}, 6),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_the_built_in_experiment_with_canaries_is_not_refuted(name):
    method, silos = METHODS[name]
    plan = tacit.plan(
        {
            "seed": 3,
            "data": {"source": "randhie", "records_per_silo": 2700},
            "model": {"name": "mlp", "hidden": [16]},
            "method": {**method, "target_epsilon": 8.0},
            "train": {"rounds": 20},
            "privacy": {
                "unit": "subject",
                "against": ["public"],
                "max_records_per_subject_and_silo": 5,
                "max_silos_per_subject": silos,
            },
        }
    )
    found = audit(plan, canaries=1000, runs=500)
    assert not found.refuted
    gradient = found.canaries[0]
    assert 1.0 < gradient.epsilon < gradient.proved
