"""Several labels of 0 and 1 for each record."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest

import tacit
from tacit.models import task_for
from tests import made
from tests.refusals import refuses


def visits():
    frame = made.visits()
    frame["old"] = (frame["age"] > 55).astype(int)
    return frame


def experiment(**model):
    content = made.experiment()
    content["data"]["label"] = ["ill", "old"]
    content["data"]["task"] = "multilabel"
    content["data"]["silos"]["count"] = 3
    content["data"]["subjects"]["count"] = 60
    content["model"] = {"name": "logistic", **model}
    content["method"] = {"name": "subject-sgd", "noise_multiplier": 0.3, "clip": 1.0}
    content["train"] = {"rounds": 20, "server_learning_rate": 2.0}
    content["privacy"] = {"max_records_per_subject_and_silo": 10, "max_silos_per_subject": 3}
    return content


def test_the_loss_is_the_mean_over_labels_and_ignores_masked_rows():
    task = task_for("multilabel", 2)
    outputs, labels = jnp.array([[0.0, 0.0], [10.0, -10.0], [jnp.inf, 0.0]]), jnp.array([[0.0, 1], [1, 0], [0, 0]])
    np.testing.assert_allclose(task.losses(outputs[:2], labels[:2]), [math.log(2), 0.0], atol=1e-4)
    np.testing.assert_allclose(task.loss(outputs, labels, jnp.array([1, 1, 0])), math.log(2) / 2, atol=1e-4)


def test_the_headline_is_the_mean_of_the_auc_of_each_label():
    task = task_for("multilabel", 3)
    assert task.headline == "macro_auc"
    outputs = np.array([[1.0, 0, 5], [2, 1, 5], [3, 0, 5], [4, 1, 5]])
    labels = np.array([[0, 1, 1], [0, 0, 1], [1, 1, 1], [1, 0, 1]])
    assert task.metrics["macro_auc"](outputs, labels) == 0.5  # 1 and 0; the third has one class only
    assert math.isnan(task.metrics["macro_auc"](outputs[:, 2:], labels[:, 2:]))
    assert task.metrics["label_accuracy"](outputs, labels) == 0.5  # 6 of 12


def test_several_labels_are_trained_evaluated_predicted_and_reported(tmp_path):
    run = tacit.run(experiment(), visits(), out=tmp_path / "run")
    assert run.result["metrics"]["macro_auc"] > 0.7
    assert list(run.result["metrics"]) == ["macro_auc", "label_accuracy", "mean_log_loss"]
    predicted = run.predict(visits()[:5])
    assert list(predicted) == ["ill", "old", "probability ill", "probability old"]
    assert run.coefficients().shape[1] == 4
    assert (run.path / "report.html").is_file()
    epsilons = {one["view"]: one["epsilon"] for one in run.guarantees()}
    assert 0 < epsilons["public"] <= epsilons["server"] < math.inf


@pytest.mark.parametrize(
    ("key", "value", "code", "field"),
    [
        ("label", "ill", "wrong-type", "data.label"),
        ("label", ["ill", "ill"], "duplicate", "data.label"),
        ("task", "binary", "wrong-type", "data.label"),
        ("classes", 2, "no-effect", "data.classes"),
    ],
)
def test_labels_that_do_not_fit_the_task_are_refused(key, value, code, field):
    content = experiment()
    content["data"][key] = value
    with refuses(code, field):
        tacit.plan(content)


def test_labels_other_than_zero_and_one_are_refused():
    frame = visits()
    frame.loc[3, "old"] = 2
    with refuses("undeclared-value", "data.label"):
        tacit.run(experiment(), frame)


def test_class_weights_and_private_metrics_have_no_meaning_for_several_labels():
    with refuses("not-supported", "model.class_weights"):
        tacit.plan(experiment(class_weights=[1.0, 2.0]))
    content = experiment()
    content["evaluation"] = {"status": "private", "noise_multiplier": 1.0}
    with refuses("not-supported", "evaluation.status"):
        tacit.plan(content)
