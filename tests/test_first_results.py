"""Settings that are left out, and what a run says about a model that is of no use."""

from __future__ import annotations

import tomllib

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit.data import Records
from tacit.engine.useless_models import problems
from tacit.models import convexity, task_for
from tacit.planning.verdict import verdict
from tests.made import experiment, visits
from tests.refusals import refuses
from tests.stability.make import flat


def private(method: dict | None = None, **sections) -> dict:
    made = experiment()
    made["data"] |= {"subjects": {"column": "person", "count": 60}, "silos": {"column": "clinic", "count": 3}}
    made["method"] = {"name": "subject-sgd", "target_epsilon": 8.0, **(method or {})}
    del made["train"]
    return made | {"exchange": {"name": "masked"}} | sections


def test_left_out_settings_follow_one_rule_and_are_written_down():
    plan = tacit.plan(private())
    train = plan.experiment.train
    assert (train.rounds, train.server_optimizer, train.server_learning_rate) == (40, "momentum", 3.0)
    again = tacit.plan(private(train={"rounds": 7, "server_learning_rate": 0.5})).experiment.train
    assert (again.rounds, again.server_optimizer, again.server_learning_rate) == (7, "momentum", 0.5)
    assert "server_learning_rate = 3.0" in plan.to_toml()


def of_many(people: int = 1_000_000, **sections) -> dict:
    made = private(privacy={"delta": 1e-7}, **sections)
    made["data"]["subjects"] = {"column": "person", "count": people}
    return made


def test_in_little_noise_gradients_are_clipped_and_no_guarantee_changes():
    plan = tacit.plan(of_many())
    assert (plan.options.clip, plan.experiment.train.server_learning_rate) == (0.5, 10.0)
    assert plan.experiment.method["clip"] == 0.5
    assert plan.guarantees() == tacit.plan(of_many(train={"server_learning_rate": 3.0})).guarantees()
    assert tacit.plan(tomllib.loads(plan.to_toml())).to_toml() == plan.to_toml()


def test_a_rate_without_a_clip_is_one_along_directions():
    for train in ({"server_learning_rate": 3.0}, {"server_learning_rate": 10.0}):
        assert tacit.plan(of_many(train=train)).options.clip is None
    assert tacit.plan(of_many(train={"rounds": 40})).options.clip == 0.5


def test_little_noise_is_a_matter_of_public_facts():
    def clip(people: int, epsilon: float) -> float | None:
        made = of_many(people)
        made["method"]["target_epsilon"] = epsilon
        found = verdict(tacit.plan(made))
        assert found is not None
        assert (tacit.plan(made).options.clip == 0.5) == (found.ratio <= 0.01)
        return tacit.plan(made).options.clip

    assert clip(100, 8.0) is None
    assert clip(100_000, 8.0) == 0.5
    assert clip(1_000, 0.1) is None


@pytest.mark.parametrize("method", [{"clip": 1.0}, {"clip_first": True}, {"local_epochs": 2}])
def test_the_rule_is_for_gradients_that_are_scaled(method):
    assert tacit.plan(private(method)).experiment.train.server_optimizer == "sgd"


def test_without_a_clip_every_subject_moves_the_sum_by_one(tmp_path):
    """Three subjects with the same records, one in each silo; a step of 60 along the mean over 60 people, no noise."""
    own = visits().query("person == 3")
    table = pd.concat([own.assign(person=k, clinic=name) for k, name in enumerate(("north", "south", "west"))])
    many = private({"target_epsilon": None, "noise_multiplier": 0.0}, train={"rounds": 1, "server_optimizer": "sgd"})
    many["method"].pop("target_epsilon")
    many["exchange"] = {"name": "plain"}
    many["privacy"] = {"max_silos_per_subject": 1}
    visits().to_csv(tmp_path / "test.csv", index=False)
    many["evaluation"] = {"data": str(tmp_path / "test.csv"), "status": "public"}
    vectors = []
    for rate in (1e-9, 60.0):
        train = many["train"] | {"server_learning_rate": rate}
        run = tacit.run({**many, "train": train}, frame=table, out=tmp_path / str(rate))
        vectors.append(flat(run))
    assert np.linalg.norm(np.subtract(*vectors)) == pytest.approx(3.0, abs=1e-3)


def test_the_weighted_exchange_needs_no_declared_cap():
    plan = tacit.plan(private({"weights": "records"}, exchange={"name": "weighted"}))
    assert plan.experiment.privacy.max_records_per_subject_and_silo == 8191 // 3
    assert all(guarantee.finite for guarantee in plan.guarantees())


def test_a_delta_above_one_over_people_warns_and_a_large_one_is_refused():
    assert not tacit.plan(private(privacy={"delta": 1e-3})).warnings
    assert tacit.plan(private(privacy={"delta": 0.05})).warnings
    with refuses("out-of-range", "privacy.delta"):
        tacit.plan(private(privacy={"delta": 0.2}))
    assert tacit.plan(private(privacy={"delta": 0.2, "confirm_delta": True})).warnings


def test_a_run_says_that_a_model_is_noise(tmp_path):
    made = private({"target_epsilon": 0.05}, privacy={"against": ["public"]})
    table = visits().assign(ill=np.random.default_rng(0).integers(0, 2, 600))
    run = tacit.run(made, frame=table, out=tmp_path / "run")
    assert any("no better than a guess" in warning for warning in run.result["warnings"])
    assert "no better than a guess" in run.report.read_text()


def records(features: np.ndarray, labels: np.ndarray) -> Records:
    count = len(labels)
    return Records(features.astype(np.float32), labels, np.arange(count), np.zeros(count, int))


def test_what_makes_a_model_useless_is_named():
    rng = np.random.default_rng(1)
    labels, features = rng.integers(0, 2, 200), rng.normal(size=(200, 3))
    binary = task_for("binary")
    good = (4 * labels - 2 + rng.normal(size=200))[:, None]
    assert problems(binary, good, records(features, labels), [0.7, 0.3]) == []
    assert len(problems(binary, good + 20, records(features, labels), [0.7, 0.3])) == 1  # one class
    assert len(problems(binary, -good, records(features, labels), [0.7, 2.0])) == 2  # worse than chance, diverging
    assert len(problems(binary, good, records(features * 100, labels), [None])) == 1  # large features
    numbers = rng.normal(size=200)
    assert len(problems(task_for("real"), numbers[::-1, None], records(features, numbers), [])) == 1


def test_the_headline_is_the_same_for_all_shares_of_classes_and_can_be_named(tmp_path):
    assert tacit.plan(private()).headline == "auc"
    made = private(evaluation={"headline": "balanced_accuracy"}, train={"rounds": 2})
    run = tacit.run(made, frame=visits(), out=tmp_path / "run")
    assert run.result["task"]["headline"] == next(iter(run.metrics)) == "balanced_accuracy"
    assert "Balanced accuracy" in run.report.read_text()
    with refuses("unknown-name", "evaluation.headline"):
        tacit.plan(private(evaluation={"headline": "rmse"}))
    noisy = {"status": "private", "noise_multiplier": 10.0}
    assert tacit.plan(private(evaluation=noisy)).headline == "accuracy"
    with refuses("unknown-name", "evaluation.headline"):
        tacit.plan(private(evaluation=noisy | {"headline": "auc"}))


def test_class_weights_change_the_model_and_no_guarantee(tmp_path):
    def learned(weights: dict) -> tuple[tuple, float]:
        made = private({"clip": 1.0}, train={"rounds": 3}, seed=1)
        made["model"] = {**made.get("model", {}), **weights}
        plan = tacit.plan(made)
        run = tacit.run(plan, frame=visits(), out=tmp_path / str(len(weights)))
        return plan.guarantees(), float(run.predict(visits())["probability"].mean())

    (plain, before), (weighted, after) = learned({}), learned({"class_weights": [1.0, 20.0]})
    assert plain == weighted
    assert after > before


def test_class_weights_that_cancel_are_named():
    made = private()
    made["model"] = {**made.get("model", {}), "class_weights": [1.0, 5.0]}
    assert any("class_weights" in warning for warning in tacit.plan(made).warnings)
    made["method"]["clip"] = 1.0
    assert not tacit.plan(made).warnings


def test_class_weights_scale_the_bounds_of_a_convex_loss():
    plain, weighted = convexity("logistic", "binary"), convexity("logistic", "binary", (0.5, 4.0))
    assert weighted == (4 * plain.slope, 4 * plain.curvature)
