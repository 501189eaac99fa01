"""Losses: what they equal, and that a padded row is as good as absent."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from sklearn.metrics import log_loss as sklearn_log_loss

from tacit.models import task_for
from tacit.models.tasks import cox_loss
from tests.refusals import refuses

ROWS, CLASSES = 6, 4
KINDS = ["binary", "multiclass", "real", "survival"]


@functools.cache
def value_and_gradient(kind):
    return jax.jit(jax.value_and_grad(task_for(kind, CLASSES).loss))


def made_labels(kind, rng, rows):
    if kind == "survival":
        return np.stack([rng.integers(1, 5, rows), rng.integers(0, 2, rows)], axis=1).astype(np.float32)
    if kind == "real":
        return rng.normal(size=rows).astype(np.float32)
    return rng.integers(0, CLASSES if kind == "multiclass" else 2, rows).astype(np.int32)


def made_batch(kind, seed, rows=ROWS):
    rng = np.random.default_rng(seed)
    outputs = rng.normal(size=(rows, task_for(kind, CLASSES).outputs)).astype(np.float32)
    return outputs, made_labels(kind, rng, rows)


def explicit_cox(risk, times, events):
    """The partial likelihood as it is written in books."""
    total = 0.0
    for i in np.flatnonzero(events):
        at_risk = [np.exp(risk[j]) for j in range(len(risk)) if times[j] >= times[i]]
        total -= risk[i] - np.log(np.sum(at_risk))
    return total / max(events.sum(), 1)


def test_a_model_gives_one_number_per_record_except_one_per_class():
    assert [task_for(kind, CLASSES).outputs for kind in KINDS] == [1, CLASSES, 1, 1]


def test_the_headline_is_one_of_the_metrics():
    for kind in KINDS:
        task = task_for(kind, CLASSES)
        assert task.headline in task.metrics
    assert [task_for(kind, CLASSES).headline for kind in KINDS] == ["auc", "balanced_accuracy", "rmse", "c_index"]


def test_only_survival_has_no_loss_of_a_single_record():
    assert [task_for(kind, CLASSES).losses is None for kind in KINDS] == [False, False, False, True]


def test_the_same_task_is_the_same_object():
    assert task_for("binary", 2) is task_for("binary", 2)


def test_an_unknown_kind_and_a_single_class_are_refused():
    with refuses("unknown-name", "data.task", names=["survival"]):
        task_for("survivel", 1)
    with refuses("out-of-range", "data.classes"):
        task_for("multiclass", 1)


def test_cross_entropies_equal_scikit_learns():
    outputs, labels = made_batch("binary", 0)
    p = 1 / (1 + np.exp(-outputs[:, 0]))
    loss, _ = value_and_gradient("binary")(outputs, labels, np.ones(ROWS))
    assert float(loss) == pytest.approx(sklearn_log_loss(labels, p, labels=[0, 1]), rel=1e-5)
    outputs, labels = made_batch("multiclass", 0)
    p = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    loss, _ = value_and_gradient("multiclass")(outputs, labels, np.ones(ROWS))
    assert float(loss) == pytest.approx(sklearn_log_loss(labels, p, labels=range(CLASSES)), rel=1e-5)


@pytest.mark.parametrize("kind", ["binary", "multiclass", "real"])
def test_the_loss_is_the_mean_of_the_records_losses(kind):
    outputs, labels = made_batch(kind, 1)
    mask = np.array([1, 0, 1, 1, 0, 1], np.float32)
    each = np.asarray(task_for(kind, CLASSES).losses(outputs, labels))
    loss, _ = value_and_gradient(kind)(outputs, labels, mask)
    assert each.shape == (ROWS,)
    assert float(loss) == pytest.approx(each[mask > 0].mean(), rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), mask=st.lists(st.booleans(), min_size=ROWS, max_size=ROWS), junk=st.data())
def test_masked_rows_never_influence_loss_or_gradient(kind, seed, mask, junk):
    outputs, labels = made_batch(kind, seed)
    keep = np.array(mask)
    filled = outputs.copy()
    filled[~keep] = junk.draw(st.sampled_from([0.0, 1e30, -1e30, np.inf, np.nan]))
    other = labels.copy()
    other[~keep] = junk.draw(st.sampled_from([0, 1, 3]))
    one = value_and_gradient(kind)(outputs, labels, keep.astype(np.float32))
    two = value_and_gradient(kind)(filled, other, keep.astype(np.float32))
    np.testing.assert_array_equal(one[0], two[0])
    np.testing.assert_array_equal(one[1], two[1])
    assert np.isfinite(two[0])
    assert np.isfinite(two[1]).all()
    assert not np.any(np.asarray(two[1])[~keep])


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_mask_gives_loss_zero_and_gradient_zero(kind):
    loss, gradient = value_and_gradient(kind)(*made_batch(kind, 2), np.zeros(ROWS, np.float32))
    assert float(loss) == 0
    np.testing.assert_array_equal(gradient, np.zeros_like(gradient))


@pytest.mark.parametrize("kind", KINDS)
def test_extreme_outputs_keep_gradients_finite(kind):
    outputs, labels = made_batch(kind, 3)
    loss, gradient = value_and_gradient(kind)(outputs * 1e4, labels, np.ones(ROWS))
    assert np.isfinite(loss)
    assert np.isfinite(gradient).all()


def test_cox_without_an_event_or_with_one_row_teaches_nothing():
    outputs, labels = made_batch("survival", 4)
    censored = np.stack([labels[:, 0], np.zeros(ROWS)], axis=1).astype(np.float32)
    died = np.stack([labels[:, 0], np.ones(ROWS)], axis=1).astype(np.float32)
    for given_labels, mask in [(censored, np.ones(ROWS)), (died, np.eye(ROWS)[2])]:
        loss, gradient = value_and_gradient("survival")(outputs, given_labels, mask)
        assert float(loss) == 0
        np.testing.assert_allclose(gradient, 0, atol=1e-7)


def test_cox_loss_and_gradient_equal_the_explicit_sum_with_ties_and_masked_rows():
    rng, rows = np.random.default_rng(5), 60
    outputs = rng.normal(size=(rows, 1)).astype(np.float32)
    labels = np.stack([rng.integers(1, 20, rows), rng.integers(0, 2, rows)], axis=1).astype(np.float32)
    mask = (rng.random(rows) < 0.8).astype(np.float32)
    labels[mask == 0] = np.nan
    loss, gradient = value_and_gradient("survival")(outputs, labels, mask)

    keep = mask > 0
    risk, times, events = outputs[keep, 0].astype(np.float64), labels[keep, 0], labels[keep, 1]
    assert float(loss) == pytest.approx(explicit_cox(risk, times, events), rel=1e-5)
    for place, row in list(enumerate(np.flatnonzero(keep)))[:4]:
        step = np.eye(len(risk))[place] * 1e-5
        slope = (explicit_cox(risk + step, times, events) - explicit_cox(risk - step, times, events)) / 2e-5
        assert float(gradient[row, 0]) == pytest.approx(slope, abs=1e-5)
    assert not np.any(np.asarray(gradient)[~keep])


def test_the_optimum_of_the_cox_loss_is_that_of_the_explicit_likelihood():
    rng = np.random.default_rng(6)
    x = rng.normal(size=(300, 3)).astype(np.float32)
    times = rng.exponential(np.exp(-x @ np.array([0.8, -0.5, 0.0])))
    events = (times < 1.5).astype(float)
    times = np.minimum(times, 1.5 + 1e-3 * rng.random(300))  # no ties among the censored either
    labels = np.stack([times, events], axis=1).astype(np.float32)

    @jax.jit
    def newton(w):
        def loss(w):
            return cox_loss(x @ w, labels, jnp.ones(300))

        gradient, hessian = jax.grad(loss)(w), jax.hessian(loss)(w)
        return w - jnp.linalg.solve(hessian.reshape(3, 3), gradient)

    w = jnp.zeros((3, 1))
    for _ in range(8):
        w = newton(w)
    fit = minimize(lambda w: explicit_cox(x.astype(float) @ w, labels[:, 0], events), np.zeros(3), tol=1e-10)
    np.testing.assert_allclose(w[:, 0], fit.x, atol=2e-4)


def test_balanced_accuracy_averages_the_classes_that_occur():
    labels = np.array([0] * 90 + [1] * 10)
    metric = task_for("binary").metrics["balanced_accuracy"]
    assert metric(np.full((100, 1), -1.0), labels) == 0.5  # accuracy .9
    assert metric(np.where(labels == 1, 1.0, -1.0)[:, None], labels) == 1.0
    outputs = np.eye(4)[[0, 0, 2, 3]]  # class 1 is not among the labels; class 3 is predicted wrongly once
    assert task_for("multiclass", 4).metrics["balanced_accuracy"](outputs, np.array([0, 0, 2, 2])) == 0.75


@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_class_weights_multiply_the_loss_of_a_record_and_no_metric(kind):
    classes = 2 if kind == "binary" else 3
    weights = (1.0, 5.0, 0.5)[:classes]
    plain, weighted = task_for(kind, classes), task_for(kind, classes, weights)
    rng = np.random.default_rng(3)
    outputs = rng.normal(size=(40, plain.outputs)).astype(np.float32)
    labels = rng.integers(0, classes, 40)
    expected = np.asarray(plain.losses(outputs, labels)) * np.array(weights)[labels]
    np.testing.assert_allclose(weighted.losses(outputs, labels), expected, rtol=1e-6)
    assert float(weighted.loss(outputs, labels, np.ones(40))) == pytest.approx(expected.mean(), rel=1e-6)
    assert weighted.metrics["log_loss"](outputs, labels) == plain.metrics["log_loss"](outputs, labels)


def test_class_weights_need_one_number_per_class():
    for kind, classes, code in (("binary", 2, "mismatch"), ("multiclass", 4, "mismatch"), ("real", 0, "not-supported")):
        with refuses(code, "model.class_weights"):
            task_for(kind, classes, (1.0, 2.0, 3.0))
