from __future__ import annotations

from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

from tacit.kernels import Arrays, ClippedSum, Objective, clipped_gradient_sum
from tacit.kernels.clipped_sum import CHUNK, rounding
from tacit.kernels.exact_sums import FINEST, norms
from tacit.models import Params, build, task_for
from tacit.models.model import dense
from tacit.privacy.invalid import InvalidArgument
from tests.refusals import refuses

RECORDS = 150
CAPACITY = 300
MODELS = {
    # name: shape of a record, kind of label, classes, numbers of the model
    "logistic": ((6,), "binary", 2, {}),
    "softmax": ((6,), "multiclass", 3, {}),
    "wide": ((130,), "multiclass", 3, {}),  # records that are copied row by row
    "linear": ((5,), "real", 0, {}),
    "mlp": ((6,), "multiclass", 3, {"hidden": (8, 5)}),
    "cnn": ((16, 16), "multiclass", 3, {"channels": (4, 6), "hidden": 5}),
    "lstm": ((9,), "multiclass", 7, {"hidden": 5, "dense_units": 4}),
    "gru": ((9,), "multiclass", 7, {"hidden": 5, "dense_units": 4}),
    "resnet": ((16, 16), "multiclass", 3, {"channels": (4, 6), "groups": 2}),
    "transformer": ((6,), "multiclass", 3, {"width": 4, "heads": 2, "hidden": 5}),
}
TEXTS = ("lstm", "gru")


class Case(NamedTuple):
    objective: Objective
    params: Params
    arrays: Arrays
    total: object  # the compiled clipped sum: (params, frozen, arrays, index, weight, blocks, clip)
    gradients: object  # the compiled gradients of single records: (params, frozen, x, y) -> [records, parameters]


@cache
def case(name: str) -> Case:
    shape, kind, classes, numbers = MODELS[name]
    task = task_for(kind, classes)
    model = build("logistic" if name in ("softmax", "wide") else name, shape, task.outputs, **numbers)
    rng = np.random.default_rng(5)
    features = rng.integers(0, 7, (RECORDS, *shape)) if name in TEXTS else rng.normal(size=(RECORDS, *shape))
    labels = rng.normal(size=RECORDS) if kind == "real" else rng.integers(0, classes, RECORDS)
    arrays = Arrays(
        jnp.asarray(features, jnp.int32 if name in TEXTS else jnp.float32),
        jnp.asarray(labels, jnp.float32 if kind == "real" else jnp.int32),
    )
    params = jax.tree.map(lambda leaf: leaf + 0.1 * rng.normal(size=leaf.shape), model.init(jax.random.key(3)))
    return of_objective(Objective(model.apply, task), jax.tree.map(jnp.float32, params), arrays)


def of_objective(objective: Objective, params: Params, arrays: Arrays) -> Case:
    def loss(params: Params, frozen: Params, x: jax.Array, y: jax.Array) -> jax.Array:
        return objective.task.losses(objective.apply({**params, **frozen}, x[None]), y[None])[0]

    single = jax.vmap(lambda *given: ravel_pytree(jax.grad(loss)(*given))[0], (None, None, 0, 0))
    total = jax.jit(lambda *given: clipped_gradient_sum(objective, *given))
    return Case(objective, params, arrays, total, jax.jit(single))


class Found(NamedTuple):
    """A clipped sum with its total as numbers."""

    total: np.ndarray
    not_finite: int
    below: int


def as_numbers(found: ClippedSum, clip: float) -> Found:
    return Found(found.total.integers() * (FINEST * clip), int(found.not_finite), int(found.below))


def summed(c: Case, index, weight=None, clip: float = 0.5, frozen: Params | None = None, params=None) -> Found:
    """The kernel on one batch, somewhere within the capacity, with other batches' entries around it."""
    start = 7
    around = np.full(CAPACITY, 3, np.int32)
    around[start : start + len(index)] = index
    weights = np.full(CAPACITY, 1e6, np.float32)
    weights[start : start + len(index)] = 1.0 if weight is None else weight
    params = c.params if params is None else params
    blocks = np.array([start, start + len(index)])
    return as_numbers(c.total(params, frozen or {}, c.arrays, around, weights, blocks, clip), clip)


def record_gradients(c: Case, index, frozen: Params | None = None, params=None) -> np.ndarray:
    """Of every record, then of those in ``index``: one compilation for all batches."""
    params = c.params if params is None else params
    return np.asarray(c.gradients(params, frozen or {}, *c.arrays), np.float64)[np.asarray(index, int)]


def one_by_one(c: Case, index, weight, clip: float, frozen: Params | None = None, params=None) -> np.ndarray:
    """The sum as its definition says, in double precision."""
    total = np.zeros(len(ravel_pytree(c.params if params is None else params)[0]))
    for w, gradient in zip(weight, record_gradients(c, index, frozen, params), strict=True):
        total += w * gradient * min(1.0, clip / np.linalg.norm(gradient))
    return total


def assert_equal(result, expected) -> None:
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("name", MODELS)
def test_it_is_the_sum_over_a_loop_of_records(name):
    c, rng = case(name), np.random.default_rng(1)
    index = rng.permutation(RECORDS)[:75]
    norms = np.linalg.norm(record_gradients(c, index), axis=1)
    clip = float(np.quantile(norms, 0.4))  # some are clipped, some are not
    for weight in (np.ones(75, np.float32), rng.uniform(0.1, 1, 75).astype(np.float32)):
        result = summed(c, index, weight, clip)
        assert_equal(result.total, one_by_one(c, index, weight, clip))
        assert int(result.below) == np.sum(norms <= clip)
        assert int(result.not_finite) == 0


@pytest.mark.parametrize("name", MODELS)
def test_an_empty_batch_gives_exact_zeros(name):
    result = summed(case(name), np.zeros(0, np.int32))
    np.testing.assert_array_equal(result.total, 0.0)
    assert (int(result.not_finite), int(result.below)) == (0, 0)


def test_frozen_layers_have_no_part_in_the_sum():
    c = case("mlp")
    frozen = {"layer0": c.params["layer0"]}
    trained = {name: layer for name, layer in c.params.items() if name not in frozen}
    index = np.arange(20)
    result = summed(c, index, clip=0.3, frozen=frozen, params=trained)
    assert_equal(result.total, one_by_one(c, index, np.ones(20), 0.3, frozen, trained))


@pytest.mark.parametrize("name", ["logistic", "linear", "mlp", "cnn"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_records_without_a_finite_gradient_contribute_zero_and_are_counted(name, bad):
    c = case(name)
    broken = np.asarray(c.arrays.features).copy()
    broken[[4, 60]] = bad
    sick = c._replace(arrays=Arrays(jnp.asarray(broken), c.arrays.labels))
    healthy = np.setdiff1d(np.arange(70), [4, 60])
    result, without = summed(sick, np.arange(70)), summed(c, healthy)
    assert int(result.not_finite) == 2
    assert int(result.below) == int(without.below)
    assert_equal(result.total, without.total)


def test_neighbours_of_a_batch_do_not_count_even_if_they_are_not_finite():
    c = case("mlp")
    broken = np.asarray(c.arrays.features).copy()
    broken[3] = np.nan  # the record that fills the capacity around the batch
    sick = c._replace(arrays=Arrays(jnp.asarray(broken), c.arrays.labels))
    result = summed(sick, np.arange(10, 30))
    assert int(result.not_finite) == 0
    assert_equal(result.total, summed(c, np.arange(10, 30)).total)


@pytest.mark.parametrize("name", ["logistic", "softmax", "linear", "mlp", "cnn"])
@pytest.mark.parametrize("scale", [1e-30, 1e-19, 1e-3, 1.0, 1e3, 1e15, 1e19, 1e25, 1e30, 3e38])
def test_one_record_never_exceeds_the_clip(name, scale):
    c = case(name)
    features = np.asarray(c.arrays.features) / np.abs(c.arrays.features).max() * np.float32(scale)
    loud = c._replace(arrays=Arrays(jnp.asarray(features, jnp.float32), c.arrays.labels))
    for clip in (1e-6, 0.37, 1.0, 50.0):
        for record in range(3):
            total = np.asarray(summed(loud, [record], clip=clip).total, np.float64)
            assert np.isfinite(total).all()
            assert np.linalg.norm(total) <= clip


@pytest.mark.parametrize("name", ["softmax", "cnn"])
def test_gradients_beyond_the_range_of_squares_are_clipped_not_lost(name):
    c = case(name)
    loud = c._replace(arrays=Arrays(c.arrays.features * 1e25, c.arrays.labels))
    results = [summed(loud, [record]) for record in range(20)]
    norms = np.array([np.linalg.norm(np.asarray(result.total, np.float64)) for result in results])
    wrong = norms > 0  # a record that is classified right, and be it by 1e25, has no gradient
    assert wrong.sum() >= 5
    steps = FINEST * np.sqrt(len(ravel_pytree(c.params)[0]))  # by which rounding toward zero shortens a vector at most
    np.testing.assert_allclose(norms[wrong], 0.5, rtol=1e-5 + steps)
    assert all(int(result.not_finite) == 0 for result in results)


@pytest.mark.parametrize("scale", [1e-18, 1e-20, 1e-25])
def test_a_tiny_factor_of_a_huge_one_is_measured_not_lost(scale):
    """Features whose squares vanish, times a residual that makes their product an ordinary number."""
    c = case("linear")
    tiny = c._replace(arrays=Arrays(c.arrays.features * scale, c.arrays.labels * 1e18))
    params = jax.tree.map(jnp.zeros_like, c.params)
    for record in range(3):
        total = np.asarray(summed(tiny, [record], clip=1e-6, params=params).total, np.float64)
        assert 0 < np.linalg.norm(total) <= 1e-6


@pytest.mark.parametrize("count", [3, 17, 51_200, 100_003])
@pytest.mark.parametrize("value", [0.1, 1.7e-3, 1e25])
def test_norms_of_many_equal_numbers_are_exact_enough_for_the_margin(count, value):
    numbers = np.full((2, count), value, np.float32)
    exact = np.linalg.norm(numbers.astype(np.float64), axis=1)
    found = jax.jit(norms, static_argnums=1)
    np.testing.assert_allclose(found(numbers, True), exact, rtol=2e-6)
    if value < 1e15:
        np.testing.assert_allclose(found(numbers, False), exact, rtol=2e-6)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_removing_a_record_moves_the_sum_by_at_most_its_weight_times_the_clip(data):
    c = case("mlp")
    seed = data.draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    size = data.draw(st.integers(1, 100))
    clip = data.draw(st.sampled_from([0.01, 0.3, 1.0, 20.0]))
    features = np.asarray(c.arrays.features) * np.exp(rng.normal(0, 3, (RECORDS, 1))).astype(np.float32)
    wild = c._replace(arrays=Arrays(jnp.asarray(features), c.arrays.labels))
    index, weight = rng.integers(0, RECORDS, size), rng.uniform(0, 1, size).astype(np.float32)
    gone = int(rng.integers(size))
    before = np.asarray(summed(wild, index, weight, clip).total, np.float64)
    after = np.asarray(summed(wild, np.delete(index, gone), np.delete(weight, gone), clip).total, np.float64)
    beyond = sum(rounding(100, before.size, 0.0)) * clip
    assert np.linalg.norm(before - after) <= clip * weight[gone] + beyond


def test_batches_of_all_sizes_share_one_compilation():
    c = case("linear")
    kernel = jax.jit(lambda *given: clipped_gradient_sum(c.objective, *given))
    index, weight = jnp.arange(CAPACITY) % RECORDS, jnp.ones(CAPACITY)
    for start, stop in ((0, 0), (0, 1), (3, 3 + CHUNK), (1, CAPACITY), (CAPACITY, CAPACITY)):
        result = kernel(c.params, {}, c.arrays, index, weight, jnp.array([start, stop]), 0.5)
        assert_equal(as_numbers(result, 0.5).total, one_by_one(c, index[start:stop], np.ones(stop - start), 0.5))
    assert kernel._cache_size() == 1


def test_memory_grows_with_the_chunk_not_with_the_batch():
    """The working memory of the compiled sum, for batches of 512 and of 8,192."""
    c = case("cnn")

    def scratch(capacity: int) -> int:
        index, weight = np.zeros(capacity, np.int32), np.ones(capacity, np.float32)
        lowered = c.total.lower(c.params, {}, c.arrays, index, weight, np.array([0, capacity]), 0.5)
        return lowered.compile().memory_analysis().temp_size_in_bytes

    gradient = 4 * len(ravel_pytree(c.params)[0])
    small, large = scratch(512), scratch(8192)
    assert small > CHUNK * gradient / 4  # a part of a chunk's gradients is there
    assert large - small < 10 * gradient


def test_batches_of_several_silos_are_summed_side_by_side():
    c = case("mlp")
    bounds = np.array([[0, 40], [40, 41], [41, 41], [41, 128]])
    index, weight = jnp.arange(CAPACITY) % RECORDS, jnp.ones(CAPACITY)

    def one(blocks: jax.Array) -> ClippedSum:
        return clipped_gradient_sum(c.objective, c.params, {}, c.arrays, index, weight, blocks, 0.5)

    together = jax.jit(jax.vmap(one))(bounds)
    totals = together.total.integers() * (FINEST * 0.5)
    for i, (start, stop) in enumerate(bounds):
        assert_equal(totals[i], summed(c, np.arange(start, stop)).total)


def own_model(params: Params, x: jax.Array) -> jax.Array:
    """A user's: weights used twice, a scalar, a layer within another compilation, one that is never used."""
    h = jnp.tanh(x @ params["a"]["w"])
    h = jnp.tanh(h @ params["a"]["w"]) * params["gain"]["g"]
    h = jax.jit(dense)(params["b"], h)
    return jnp.einsum("bi,io->bo", jnp.abs(h), params["c"]["w"])


def test_a_users_own_model_is_summed_alike():
    rng = np.random.default_rng(8)
    shapes = {
        "a": {"w": (6, 6)},
        "b": {"w": (6, 4), "b": (4,)},
        "c": {"w": (4, 3)},
        "gain": {"g": ()},
        "no": {"w": (2,)},
    }
    params = jax.tree.map(
        lambda shape: jnp.asarray(rng.normal(size=shape), jnp.float32), shapes, is_leaf=lambda s: isinstance(s, tuple)
    )
    c = of_objective(Objective(own_model, task_for("multiclass", 3)), params, case("softmax").arrays)
    index = np.arange(50)
    assert_equal(summed(c, index).total, one_by_one(c, index, np.ones(50), 0.5))


def test_a_task_without_a_loss_per_record_is_refused():
    c = case("linear")
    survival = Objective(c.objective.apply, task_for("survival"))
    with refuses("not-supported", "task", InvalidArgument):
        clipped_gradient_sum(survival, c.params, {}, c.arrays, jnp.arange(4), jnp.ones(4), jnp.array([0, 4]), 1.0)


def test_a_record_that_is_not_finite_changes_no_other_records_norm():
    """Large inputs with tiny errors, for which the quick norm is above the careful one by a sixth."""
    objective = Objective(lambda params, x: x @ params["w"], task_for("real"))
    features = np.zeros((32, 4), np.float32)
    features[:, 0] = 3e18
    labels = jnp.full(32, -6e-19)

    def total(first: float) -> np.ndarray:
        features[0] = first
        arrays, blocks = Arrays(jnp.asarray(features), labels), jnp.array([0, 32])
        given = {"w": jnp.zeros((4, 1))}, {}, arrays, jnp.arange(32), jnp.ones(32), blocks, 1.0
        found = clipped_gradient_sum(objective, *given)
        return found.total.integers() * FINEST

    assert np.linalg.norm(total(np.inf) - total(0.0)) <= 1e-3
