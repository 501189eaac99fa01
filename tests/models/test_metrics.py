"""Metrics equal the ones that people know, and say NaN where there is nothing to say."""

import math
import time

import numpy as np
import pytest
from sklearn import metrics as known

from tacit.models import higher_is_better, task_for
from tacit.models import tasks as metrics
from tests.refusals import refuses


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


@pytest.fixture(params=[1, 20], ids=["tied scores", "fine scores"])
def binary(request):
    rng = np.random.default_rng(0)
    logits = np.round(rng.normal(size=(300, 1)), request.param).astype(np.float32)
    return logits, (rng.random(300) < sigmoid(logits[:, 0])).astype(np.int32)


@pytest.fixture
def multiclass():
    rng = np.random.default_rng(1)
    return rng.normal(size=(200, 5)).astype(np.float32), rng.integers(0, 4, 200)


def survival(rows, seed=2, times=40):
    rng = np.random.default_rng(seed)
    labels = np.stack([rng.integers(1, times, rows), rng.integers(0, 2, rows)], axis=1).astype(np.float32)
    return np.round(rng.normal(size=(rows, 1)) - labels[:, :1] / times, 1), labels


def test_binary_metrics_equal_scikit_learns(binary):
    logits, y = binary
    z = logits[:, 0].astype(np.float64)
    task = task_for("binary", 2)
    expected = {
        "accuracy": known.accuracy_score(y, z > 0),
        "balanced_accuracy": known.balanced_accuracy_score(y, z > 0),
        "auc": known.roc_auc_score(y, z),
        "average_precision": known.average_precision_score(y, z),
        "f1": known.f1_score(y, z > 0),
        "log_loss": known.log_loss(y, sigmoid(z)),
    }
    assert set(task.metrics) == set(expected)
    for name, value in expected.items():
        assert task.metrics[name](logits, y) == pytest.approx(value, rel=1e-9), name


def test_multiclass_metrics_equal_scikit_learns(multiclass):
    logits, y = multiclass
    task = task_for("multiclass", 5)
    p = np.exp(logits.astype(np.float64))
    p /= p.sum(axis=1, keepdims=True)
    expected = {
        "accuracy": known.accuracy_score(y, logits.argmax(axis=1)),
        "balanced_accuracy": known.balanced_accuracy_score(y, logits.argmax(axis=1)),
        "f1": known.f1_score(y, logits.argmax(axis=1), average="macro"),
        "log_loss": known.log_loss(y, p, labels=range(5)),
    }
    assert set(task.metrics) == set(expected)
    for name, value in expected.items():
        assert task.metrics[name](logits, y) == pytest.approx(value, rel=1e-9), name


def test_metrics_of_real_labels_equal_scikit_learns():
    rng = np.random.default_rng(3)
    y = rng.normal(size=50).astype(np.float32)
    z = (y + 0.3 * rng.normal(size=50)).astype(np.float32)[:, None]
    assert metrics.rmse(z, y) == pytest.approx(known.root_mean_squared_error(y, z[:, 0]), rel=1e-5)
    assert metrics.r2(z, y) == pytest.approx(known.r2_score(y, z[:, 0]), rel=1e-5)


def concordance(times: np.ndarray, risks: np.ndarray, events: np.ndarray) -> float:
    """Harrell's C by its definition, pair by pair: i died, and j lived longer (or was censored at the same time)."""
    right = pairs = 0.0
    for i in np.flatnonzero(events):
        for j in range(len(times)):
            if times[j] > times[i] or (times[j] == times[i] and not events[j]):
                pairs += 1
                right += 1.0 if risks[i] > risks[j] else 0.5 if risks[i] == risks[j] else 0.0
    return right / pairs


@pytest.mark.parametrize("rows", [2, 5, 17, 200])
def test_the_c_index_equals_its_definition_with_ties_in_times_and_risks(rows):
    for seed in range(5):
        risk, labels = survival(rows, seed, times=max(3, rows // 4))
        labels[0] = (0.5, 1)  # somebody certainly dies first
        expected = concordance(labels[:, 0], risk[:, 0], labels[:, 1])
        assert metrics.c_index(risk, labels) == pytest.approx(expected, abs=1e-12)


def test_the_c_index_is_fast_enough_for_every_round():
    for rows, seconds in [(1_000, 0.05), (20_000, 1.0)]:
        risk, labels = survival(rows, times=rows)
        took = []
        for _ in range(5):
            start = time.process_time()
            metrics.c_index(risk, labels)
            took.append(time.process_time() - start)
        assert min(took) < seconds


def test_an_undefined_metric_is_nan():
    z, ones, zeros = np.array([[0.3], [-1.0]]), np.ones(2, np.int32), np.zeros(2, np.int32)
    assert math.isnan(metrics.auc(z, ones))
    assert math.isnan(metrics.auc(z, zeros))
    assert math.isnan(metrics.average_precision(z, zeros))
    assert math.isnan(metrics.f1(-np.abs(z), zeros))
    assert math.isnan(metrics.r2(z, ones))
    assert math.isnan(metrics.c_index(z, np.array([[1.0, 0.0], [2.0, 0.0]])))


@pytest.mark.parametrize("kind", ["binary", "multiclass", "real", "survival"])
def test_no_records_and_a_diverged_model_give_nan_everywhere(kind):
    task = task_for(kind, 3)
    labels = np.ones((4, 2)) if kind == "survival" else np.ones(4, np.int32)
    for name, metric in task.metrics.items():
        assert math.isnan(metric(np.zeros((0, task.outputs)), labels[:0])), name
        assert math.isnan(metric(np.full((4, task.outputs), np.nan), labels)), name


def test_every_metric_of_every_task_knows_its_direction():
    for kind in ["binary", "multiclass", "real", "survival"]:
        for name in task_for(kind, 3).metrics:
            assert higher_is_better(name) is (name not in {"log_loss", "rmse"})
    with refuses("unknown-name", "metric", names=["accuracy"]):
        higher_is_better("acuracy")
