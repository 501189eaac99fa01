"""The kernel against a plain loop over people, and its promises."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial, reduce

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

from tacit.kernels import (
    Arrays,
    Computation,
    Counts,
    Gradient,
    Lane,
    LocalTraining,
    Objective,
    PeopleSum,
    RecordGradients,
    arrange,
    drawn,
    each_person,
    people_sum,
)
from tacit.kernels import people as kernel
from tacit.kernels.exact_sums import FINEST
from tacit.models import build, task_for
from tacit.privacy import Randomness
from tacit.privacy.invalid import InvalidArgument
from tests.refusals import refuses

CLIP = 1.0
BOUNDED = jax.jit(kernel.bounded)
SCALE = 1 / FINEST  # steps of a clip
# few sizes: every one is compiled
UNEQUAL = [6, 2_000, 1, 0, 20, 1, 6]


@cache
def problem(name: str):
    """An objective, its parameters and 3,000 records."""
    rng = np.random.default_rng(3)
    shape, kind, numbers = {
        "cnn": ((28, 28), "multiclass", {}),
        "mlp": ((30,), "binary", {"hidden": (64, 32)}),
        "logistic": ((12,), "binary", {}),
        "cox": ((8,), "survival", {}),
    }[name]
    task = task_for(kind, 10)
    model = build(name, shape, task.outputs, **numbers)
    features = rng.normal(size=(3000, *shape)).astype(np.float32)
    labels = {
        "multiclass": rng.integers(0, 10, 3000).astype(np.int32),
        "binary": rng.integers(0, 2, 3000).astype(np.int32),
        "survival": np.stack([rng.exponential(size=3000), rng.integers(0, 2, 3000)], axis=1).astype(np.float32),
    }[kind]
    params = model.init(jax.random.key(0))
    params = jax.tree.map(lambda leaf: leaf + 0.01, params)
    return Objective(model.apply, task), params, Arrays(jnp.asarray(features), jnp.asarray(labels))


def spans(counts) -> tuple[np.ndarray, np.ndarray]:
    counts = np.array(counts)
    return np.cumsum(counts) - counts, counts


def total_of(
    name: str, local: Computation, starts, counts, weights, clip=CLIP, rows=None, arrays=None, lanes=2
) -> PeopleSum:
    objective, params, own = problem(name)
    arrays = own if arrays is None else arrays
    layout = local.layout(objective, params, arrays)
    arranged = arrange(starts, counts, weights, layout, rows=rows, lanes=lanes)
    scale = SCALE / clip
    counted = Counts(SCALE, 0)
    sums = (people_sum(objective, {}, arrays, params, lane, local, clip, scale, counted) for lane in arranged)
    return reduce(PeopleSum.plus, sums)


def numbers(found: PeopleSum, clip: float = CLIP) -> np.ndarray:
    """The total as numbers."""
    return found.total.integers() * (clip / SCALE)


@cache
def gradient_of(objective: Objective):
    """The gradient of the mean loss of rows, without padding or masks worth the name."""

    def loss(params, features, labels):
        return objective.loss(params, {}, features, labels, jnp.ones(len(features)))

    return jax.jit(jax.grad(loss))


def clipped_in_numpy(tree, clip) -> np.ndarray:
    vector = np.asarray(ravel_pytree(tree)[0], np.float64)
    return vector * min(1.0, clip / max(np.linalg.norm(vector), 1e-300))


def plain_person(name: str, local: Computation, rows: np.ndarray, clip=CLIP) -> np.ndarray:
    """What one person contributes, step by step, as the paper writes it."""
    objective, params, arrays = problem(name)
    gradient = gradient_of(objective)
    if isinstance(local, Gradient):
        return clipped_in_numpy(gradient(params, arrays.features[rows], arrays.labels[rows]), clip)
    if isinstance(local, RecordGradients):
        return np.mean([plain_person(name, Gradient(), rows[i : i + 1], clip) for i in range(len(rows))], axis=0)
    own = params
    size = local.batch_size or len(rows)
    for _ in range(local.epochs):
        for first in range(0, len(rows), size):
            part = rows[first : first + size]
            step = gradient(own, arrays.features[part], arrays.labels[part])
            own = jax.tree.map(lambda p, g: p - local.rate * g, own, step)
    return clipped_in_numpy(jax.tree.map(jnp.subtract, own, params), clip)


def plain_loop(name: str, local: Computation, starts, counts, weights) -> np.ndarray:
    people = zip(starts, counts, weights, strict=True)
    return sum(w * plain_person(name, local, np.arange(s, s + n)) for s, n, w in people if n and w)


@pytest.mark.parametrize(
    ("name", "local"),
    [
        ("cnn", LocalTraining(epochs=2, rate=0.3)),
        ("mlp", LocalTraining(epochs=5, rate=0.5)),
        ("mlp", Gradient()),
        ("logistic", LocalTraining(epochs=30, rate=0.3)),
        ("logistic", LocalTraining(epochs=2, rate=0.5, batch_size=6)),
        ("logistic", LocalTraining(epochs=1, rate=0.5, batch_size=280)),
        ("logistic", RecordGradients()),
        ("cox", LocalTraining(epochs=5, rate=0.5)),
    ],
)
def test_the_kernel_is_a_plain_loop_over_people(name, local):
    starts, counts = spans([1, 1, 2_000, 0] if name == "cnn" else UNEQUAL)
    weights = np.linspace(0, 0.5, len(counts))  # the first person has weight 0
    found = total_of(name, local, starts, counts, weights)
    expected = plain_loop(name, local, starts, counts, weights)
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(numbers(found), expected, atol=1e-5)
    assert int(found.people) == np.sum((counts > 0) & (weights > 0))
    assert int(found.not_finite) == 0


def test_each_person_is_the_loops_person():
    objective, params, arrays = problem("mlp")
    local = LocalTraining(epochs=2, rate=0.3)
    starts, counts = spans([1, 6, 6, 0, 1])
    lanes = arrange(starts, counts, np.ones(5), local.layout(objective, params, arrays))
    seen = {}
    for lane in lanes:
        for places, vectors, _, _ in each_person(objective, {}, arrays, params, lane, local, CLIP):
            seen.update(zip(places.tolist(), vectors, strict=True))
    assert sorted(seen) == [0, 1, 2, 4]
    for i, vector in seen.items():
        own = plain_person("mlp", local, np.arange(starts[i], starts[i] + counts[i]))
        np.testing.assert_allclose(vector, own, atol=1e-5)


def test_a_subset_of_a_persons_records_is_trained_on_in_its_order():
    local = LocalTraining(epochs=2, rate=0.5, batch_size=4)
    starts, counts = spans([20, 9])
    rows, first, kept = drawn(starts, counts, Randomness.from_seed(5).stream("draw").words(29), most=8)
    found = total_of("logistic", local, first, kept, np.ones(2), rows=rows)
    people = [rows[a : a + n] for a, n in zip(first, kept, strict=True)]
    np.testing.assert_allclose(numbers(found), sum(plain_person("logistic", local, own) for own in people), atol=1e-5)


def test_frozen_layers_take_part_and_are_not_moved():
    objective, params, arrays = problem("mlp")
    trainable = {name: layer for name, layer in params.items() if name != "layer0"}
    frozen = {"layer0": params["layer0"]}
    local = LocalTraining(epochs=3, rate=0.5)
    starts, counts = spans([6, 6])
    lanes = arrange(starts, counts, np.ones(2), local.layout(objective, trainable, arrays))
    sums = [people_sum(objective, frozen, arrays, trainable, lane, local, CLIP, SCALE / CLIP) for lane in lanes]

    def person(start, count):
        own = trainable
        rows = slice(start, start + count)
        for _ in range(3):
            step = gradient_of(objective)({**own, **frozen}, arrays.features[rows], arrays.labels[rows])
            own = jax.tree.map(lambda p, g: p - 0.5 * g, own, {k: v for k, v in step.items() if k != "layer0"})
        return clipped_in_numpy(jax.tree.map(jnp.subtract, own, trainable), CLIP)

    expected = sum(person(s, n) for s, n in zip(starts, counts, strict=True))
    np.testing.assert_allclose(numbers(reduce(PeopleSum.plus, sums)), expected, atol=1e-5)


def test_a_single_record_tells_cox_nothing():
    starts, counts = spans([1, 1, 1])
    found = total_of("cox", LocalTraining(epochs=5, rate=0.5), starts, counts, np.ones(3))
    np.testing.assert_array_equal(found.total.integers(), 0)
    assert int(found.not_finite) == 0


@pytest.mark.parametrize("local", [LocalTraining(batch_size=4), RecordGradients()])
def test_cox_takes_a_persons_records_together_or_not_at_all(local):
    objective, params, arrays = problem("cox")
    with refuses("not-supported", "task", InvalidArgument):
        local.layout(objective, params, arrays)


# --- the promises ---


class Huge(Computation):
    """A computation that keeps to nothing: other lengths of vectors, and numbers that are not finite."""

    def vector(self, person):
        gradient = person.gradient()
        return jnp.where(person.count > 5, 1e30, jnp.inf) * gradient / jnp.abs(gradient)


@settings(max_examples=25, deadline=None)
@given(
    counts=st.lists(st.sampled_from([1, 3, 6, 20]), min_size=2, max_size=12),
    rate=st.sampled_from([0.1, 10.0, 1e4, 1e12, 1e30, 1e38]),
    epochs=st.integers(1, 6),
    work=st.sampled_from([("mlp", LocalTraining), ("mlp", Gradient), ("logistic", RecordGradients), ("mlp", Huge)]),
    clip=st.sampled_from([1e-3, 1.0, 50.0]),
    seed=st.integers(0, 1000),
)
def test_removing_a_person_moves_the_sum_by_at_most_weight_times_clip(counts, rate, epochs, work, clip, seed):
    """Also where local training blows up, and whatever is computed."""
    rng = np.random.default_rng(seed)
    starts, counts = spans(counts)
    weights = rng.uniform(0, 1, len(counts)).astype(np.float32)
    name, kind = work
    local = kind(epochs, rate) if kind is LocalTraining else kind()
    everybody = total_of(name, local, starts, counts, weights, clip)
    i = rng.integers(len(counts))
    without = total_of(name, local, starts, counts, np.where(np.arange(len(counts)) == i, 0, weights), clip)
    alone = total_of(name, local, starts, counts, np.where(np.arange(len(counts)) == i, weights, 0), clip)
    moved = everybody.total.integers() - without.total.integers()
    np.testing.assert_array_equal(moved, alone.total.integers())
    assert np.linalg.norm(moved * (clip / SCALE)) <= weights[i] * clip


@pytest.mark.parametrize("name", ["cnn", "mlp", "logistic"])
def test_one_person_never_exceeds_the_clip_even_by_rounding(name):
    starts, counts = spans([6, 6, 6, 6])
    objective, params, arrays = problem(name)
    layout = LocalTraining().layout(objective, params, arrays)
    for rate in (3.0, 1e6, 1e20, 1e38):
        local = LocalTraining(epochs=4, rate=rate)
        for lane in arrange(starts, counts, np.ones(4), layout):
            for clip in (0.1, 0.3, 1.0, 7.7):
                for _, vectors, _, _ in each_person(objective, {}, arrays, params, lane, local, clip):
                    assert np.isfinite(vectors).all()
                    assert (np.linalg.norm(vectors.astype(np.float64), axis=1) <= clip).all()


@given(st.lists(st.floats(width=32), min_size=7, max_size=7), st.floats(2.0**-10, 2.0**10, width=32))
def test_the_bound_holds_for_every_vector(values, clip):
    vector = np.array(values, np.float32)
    found, finite, within = BOUNDED(vector, clip)
    norm = np.linalg.norm(vector.astype(np.float64)) if np.isfinite(vector).all() else np.inf
    assert np.linalg.norm(np.asarray(found, np.float64)) <= clip
    assert bool(finite) == np.isfinite(vector).all()
    if bool(within):
        normal = np.abs(vector) >= np.finfo(np.float32).tiny  # smaller numbers may be flushed to zero
        np.testing.assert_array_equal(np.asarray(found)[normal], vector[normal])
        assert (np.abs(found) <= np.abs(vector)).all()
    else:
        assert norm > clip * (1 - 1e-5)
    if np.isfinite(norm) and norm > clip:
        np.testing.assert_allclose(found, vector / norm * clip, rtol=1e-5, atol=1e-30)


def test_a_person_that_blows_up_is_counted_and_adds_nothing():
    found = total_of("mlp", LocalTraining(epochs=6, rate=1e38), *spans([5, 8]), np.ones(2))
    assert int(found.not_finite) == 2
    assert int(found.below) == 0
    np.testing.assert_array_equal(found.total.integers(), 0)


@pytest.mark.parametrize(
    ("name", "local"),
    [
        ("mlp", LocalTraining(epochs=2, rate=0.1)),
        ("logistic", LocalTraining(epochs=2, rate=0.1)),
        ("logistic", LocalTraining(epochs=2, rate=0.1, batch_size=2)),
    ],
)
@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_records_that_overflow_spoil_nobody_elses_contribution(name, local, bad):
    _, _, arrays = problem(name)
    starts, counts = spans([3, 3, 3, 5])
    features = np.array(arrays.features)
    features[3:6] = bad  # all that the second person has
    weights = np.ones(4)
    found = total_of(name, local, starts, counts, weights, arrays=Arrays(jnp.asarray(features), arrays.labels))
    without = total_of(name, local, starts, counts, np.array([1, 0, 1, 1]))
    moved = np.linalg.norm(numbers(found) - numbers(without))
    assert moved <= CLIP * (1 + 1e-6)
    if not np.isfinite(bad):
        assert int(found.not_finite) == 1
        np.testing.assert_allclose(numbers(found), numbers(without), atol=1e-6)


@pytest.mark.parametrize("others", [4, 7])
def test_how_many_records_others_have_does_not_decide_what_a_person_adds(others):
    """Batches of three, people side by side: the last of this person's leaves a finite model whose outputs are not."""
    _, _, arrays = problem("mlp")
    features, labels = np.array(arrays.features), np.array(arrays.labels)
    features[3] *= 1e30
    labels[3] = 1
    arrays = Arrays(jnp.asarray(features), jnp.asarray(labels))
    local = LocalTraining(rate=1.0, batch_size=3)
    starts, counts = spans([4, others, others, others])
    alone = total_of("mlp", local, starts, counts, np.array([1, 0, 0, 0]), arrays=arrays)
    beside = total_of("mlp", local, starts, counts, np.array([1, 1e-30, 1e-30, 1e-30]), arrays=arrays)
    steps = FINEST * np.sqrt(numbers(alone).size)  # by which rounding toward zero shortens a vector at most
    assert np.linalg.norm(numbers(alone)) == pytest.approx(CLIP, rel=1e-5 + steps)
    np.testing.assert_allclose(numbers(beside), numbers(alone), atol=1e-6)


def test_who_is_below_the_clip_is_counted_with_and_without_weights():
    starts, counts = spans([6, 6, 6, 6])
    local = LocalTraining(epochs=3, rate=0.5)
    norms = [
        np.linalg.norm(plain_person("mlp", local, np.arange(s, s + n), clip=1e9))
        for s, n in zip(starts, counts, strict=True)
    ]
    clip = float(np.median(norms))
    weights = np.array([0.5, 0.25, 0.125, 0.0625])
    found = total_of("mlp", local, starts, counts, weights, clip)
    assert int(found.below) == 2
    counted = found.counted.integers()[0] / SCALE
    assert counted == pytest.approx(weights[np.array(norms) <= clip].sum())


def test_nobody_adds_nothing():
    for counts, weights in (([], []), ([3, 4], [0, 0]), ([0, 0], [1, 1])):
        starts, counts = spans(np.array(counts, int))
        objective, params, arrays = problem("logistic")
        local = LocalTraining(rate=0.1)
        for lane in arrange(starts, counts, np.array(weights), local.layout(objective, params, arrays)):
            found = people_sum(objective, {}, arrays, params, lane, local, CLIP, SCALE)
            np.testing.assert_array_equal(found.total.integers(), 0)
            assert int(found.people) == 0


# --- sums are exact ---


@pytest.mark.parametrize("name", ["cnn", "mlp", "logistic"])
def test_neither_the_order_of_people_nor_the_lanes_change_a_bit(name):
    rng = np.random.default_rng(4)
    starts, counts = spans(rng.integers(1, 30, 90))
    weights = rng.uniform(0, 1, 90)
    local = LocalTraining(epochs=2, rate=0.7)
    first = total_of(name, local, starts, counts, weights)
    order = rng.permutation(90)
    shuffled = total_of(name, local, starts[order], counts[order], weights[order])
    for other in (shuffled, *(total_of(name, local, starts, counts, weights, lanes=n) for n in (1, 3))):
        np.testing.assert_array_equal(other.total.integers(), first.total.integers())
        np.testing.assert_array_equal(other.counted.integers(), first.counted.integers())


def test_one_person_less_moves_a_large_sum_by_what_this_person_adds():
    """300,000 people with one record and one gradient: a running sum in single precision loses part of every one."""
    people = 300_000
    features = np.zeros((2, 12), np.float32)
    features[0, 0], features[1, 1] = 1.0, 1.0
    arrays = Arrays(jnp.asarray(features), jnp.asarray([0, 0], jnp.int32))
    starts = np.zeros(people, int)
    starts[people // 2] = 1
    counts, weights, clip = np.ones(people, int), np.full(people, 0.7), 0.01
    local = Gradient()
    everybody = total_of("logistic", local, starts, counts, weights, clip, arrays=arrays)
    fewer = np.arange(people) != people // 2
    without = total_of("logistic", local, starts[fewer], counts[fewer], weights[fewer], clip, arrays=arrays)
    alone = total_of("logistic", local, starts[~fewer], counts[~fewer], weights[~fewer], clip, arrays=arrays)
    moved = everybody.total.integers() - without.total.integers()
    np.testing.assert_array_equal(moved, alone.total.integers())
    assert np.linalg.norm(moved) <= 0.7 * SCALE


# --- the cost ---


def test_rounds_of_sampled_people_compile_nothing_new():
    rng = np.random.default_rng(0)
    starts, counts = spans(np.minimum(rng.zipf(1.5, 500), 30))
    starts %= 2800
    before = kernel._add_people._cache_size()
    for turn in range(4):
        weights = (rng.uniform(size=500) < (1.0 if turn == 0 else 0.5)).astype(float)
        local = LocalTraining(epochs=turn + 1, rate=0.1 * turn)
        total_of("logistic", local, starts, counts, weights, clip=1.0 + turn)
        if turn == 0:
            compiled = kernel._add_people._cache_size() - before
            assert compiled <= 12
    assert kernel._add_people._cache_size() - before == compiled


def test_memory_does_not_depend_on_the_number_of_people():
    objective, params, arrays = problem("mlp")
    local = LocalTraining(epochs=2, rate=0.1)

    def calls(people):
        layout = local.layout(objective, params, arrays)
        lanes = arrange(np.zeros(people, int), np.full(people, 7), np.ones(people), layout)
        return [people for lane in lanes for people in lane.people]

    few, many = calls(10), calls(100_000)
    # the same compiled call, more often; a person is a few integers
    assert {jax.tree.map(jnp.shape, people) for people in few} == {jax.tree.map(jnp.shape, people) for people in many}
    assert sum(leaf.nbytes for people in many for leaf in jax.tree.leaves(people)) < 40 * 100_000
    work = kernel._Work.of(objective, {}, arrays, params, Lane((), None), local, CLIP, SCALE)
    compiled = kernel._add_people.lower(work, many[0], kernel._nothing(4097)).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 4_000_000


def test_lanes_in_threads_give_the_same_sum():
    objective, params, arrays = problem("mlp")
    local = LocalTraining(epochs=3, rate=0.3)
    starts, counts = spans([5, 7, 20, 3, 20, 20, 20, 20])
    lanes = arrange(starts, counts, np.ones(8), local.layout(objective, params, arrays))
    assert all(lane.people for lane in lanes)
    with ThreadPoolExecutor(2) as pool:
        work = partial(people_sum, objective, {}, arrays, params, computes=local, clip=CLIP, scale=SCALE / CLIP)
        sums = list(pool.map(work, lanes))
    again = total_of("mlp", local, starts, counts, np.ones(8))
    np.testing.assert_array_equal(reduce(PeopleSum.plus, sums).total.integers(), again.total.integers())


def test_computations_with_the_same_fields_are_different_structures():
    """Otherwise what is compiled for one could be used for the other."""
    from tacit.kernels import Computation, Gradient, RecordGradients

    class Own(Computation):
        """As :class:`Gradient`, under another name."""

    structures = [jax.tree.structure(one) for one in (Gradient(), RecordGradients(), Own())]
    assert all(one != other for one, other in itertools.combinations(structures, 2))
    assert jax.tree.structure(Own()) == structures[2]
