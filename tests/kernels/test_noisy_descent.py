"""Private local training: what a batch gives before noise, what is counted, and the steps that follow."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.kernels import Arrays, Objective, Sampled, Work, gaussian, noisy_descend, nonce_words
from tacit.kernels.noisy_descent import BATCH_NOISE, COUNT_NOISE, Counting, clipped_batch, clipped_records
from tacit.models import build, task_for

KEY = np.arange(8, dtype=np.uint32)
ROWS = 64


@cache
def objective() -> Objective:
    task = task_for("real")
    return Objective(build("linear", (3,), task.outputs).apply, task)


@pytest.fixture
def arrays() -> Arrays:
    rng = np.random.default_rng(2)
    features = rng.normal(size=(ROWS, 3)) * 10.0 ** rng.uniform(-1, 1, size=(ROWS, 1))
    return Arrays(jnp.asarray(features, jnp.float32), jnp.asarray(rng.normal(size=ROWS), jnp.float32))


def params() -> dict:
    return jax.tree.map(lambda leaf: leaf + 0.1, build("linear", (3,), 1).init(jax.random.key(0)))


def work(arrays: Arrays, batches: list[list[int]], noise: float = 0.0, weights: float = 1.0) -> Work:
    """Batches of given rows; capacity for all, so that every test shares one compilation."""
    flat = np.zeros(256, np.int32)
    rows = [row for batch in batches for row in batch]
    flat[: len(rows)] = rows
    blocks = np.zeros((4, 2), np.int32)
    ends = np.cumsum([0, *map(len, batches)])
    blocks[: len(batches)] = np.stack([ends[:-1], ends[1:]], axis=1)
    sampled = Sampled(
        flat,
        np.full(256, weights, np.float32),
        blocks,
        np.full(4, noise, np.float32),
        np.int32(len(batches)),
        np.float32(8.0),
        KEY,
    )
    return Work(objective(), {}, arrays, jax.tree.map(jnp.asarray, sampled), jnp.float32(ROWS))


@cache
def compiled(rule, counted: bool):
    def descend(arrays, sampled, params, clip, noise):
        one = Work(objective(), {}, arrays, sampled, jnp.float32(ROWS))
        return noisy_descend(one, params, 0.5, clip, rule, counting=Counting(0.75, noise) if counted else None)

    return jax.jit(descend)


def descended(one: Work, start, clip: float, rule=clipped_records, counted: bool = False, noise: float = 0.0):
    return compiled(rule, counted)(one.arrays, one.batches, start, jnp.float32(clip), jnp.float32(noise))


def record_gradients(arrays: Arrays, start, rows) -> np.ndarray:
    """``[rows, parameters]`` in the order of leaves, as float64."""
    w = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(start)]).astype(float)  # bias, then weights
    x = np.asarray(arrays.features, float)[rows]
    error = 2 * (w[0] + x @ w[1:] - np.asarray(arrays.labels, float)[rows])
    return error[:, None] * np.column_stack([np.ones(len(rows)), x])


def clip_rows(gradients: np.ndarray, clip: float) -> np.ndarray:
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    return gradients * np.minimum(1, clip / norms)


def flat(tree) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def test_steps_are_those_of_dp_sgd_written_by_hand(arrays):
    batches, clip, start = [[3, 5, 9, 11], [], [1, 2, 3]], 0.9, params()
    found, _ = descended(work(arrays, batches), start, clip)
    expected, now = flat(start).astype(float), start
    for batch in batches:
        total = clip_rows(record_gradients(arrays, now, batch), clip).sum(0) if batch else 0.0
        expected = expected - 0.5 * total / 8.0
        now = {"layer0": {"b": expected[:1], "w": expected[1:, None]}}
    np.testing.assert_allclose(flat(found), expected, atol=1e-5)


def test_a_clipped_batch_is_one_mean_clipped_as_a_whole(arrays):
    batch, start = list(range(20)), params()
    mean = record_gradients(arrays, start, batch).sum(0) / 8.0
    for clip in (0.1, 2 * np.linalg.norm(mean)):
        found, _ = descended(work(arrays, [batch]), start, clip, clipped_batch)
        expected = flat(start) - 0.5 * mean * min(1, clip / np.linalg.norm(mean))
        np.testing.assert_allclose(flat(found), expected, rtol=1e-4, atol=1e-5)


def test_noise_is_that_of_its_step_times_multiplier_and_clip_over_the_divisor(arrays):
    start = params()
    found, _ = descended(work(arrays, [[], []], noise=3.0), start, 0.5)
    normals = sum(gaussian(KEY, nonce_words(BATCH_NOISE, t), (4,)) for t in range(2))
    np.testing.assert_allclose(flat(found), flat(start) - 0.5 * 3.0 * 0.5 * np.asarray(normals) / 8.0, atol=1e-5)


def test_a_step_beyond_the_radius_ends_on_it_whatever_noise_the_padding_holds(arrays):
    start, radius = params(), 0.1
    found, _ = noisy_descend(work(arrays, [[], []], noise=3.0), start, 0.5, jnp.float32(0.5), clipped_records, radius)
    expected = flat(start).astype(float)
    for t in range(2):
        expected = expected - 0.5 * 3.0 * 0.5 * np.asarray(gaussian(KEY, nonce_words(BATCH_NOISE, t), (4,))) / 8.0
        expected *= min(1, radius / np.linalg.norm(expected))
    np.testing.assert_allclose(flat(found), expected, atol=1e-5)


def test_every_entry_counts_as_below_or_above_the_clip(arrays):
    batches, start = [[0, 1, 2, 3, 4, 5], [], list(range(10, 40))], params()
    for clip in (1e-3, 1.0, 1e3):
        now, expected = start, 0.0
        found, tally = descended(work(arrays, batches), start, clip, counted=True)
        for batch in batches:
            if batch:
                gradients = record_gradients(arrays, now, batch)
                expected += (np.linalg.norm(gradients, axis=1) <= clip).sum() - 0.75 * len(batch)
                moved = flat(now) - 0.5 * clip_rows(gradients, clip).sum(0) / 8.0
                now = {"layer0": {"b": moved[:1], "w": moved[1:, None]}}
        assert float(tally.excess) == pytest.approx(expected, abs=1e-4)
        assert np.isfinite(flat(found)).all()


def test_one_record_moves_the_count_by_at_most_its_sensitivity(arrays):
    """The first batch alone, where both worlds have the same model: 3/4 above the clip, 1/4 below."""
    start = params()
    everybody = list(range(30))
    for clip in (1e-3, 1.0, 1e6):
        whole = descended(work(arrays, [everybody]), start, clip, counted=True)[1].excess
        for row in everybody[:10]:
            rest = [other for other in everybody if other != row]
            fewer = descended(work(arrays, [rest]), start, clip, counted=True)[1].excess
            moved = abs(float(whole - fewer))
            assert moved == pytest.approx(0.25, rel=1e-5) or moved == pytest.approx(0.75, rel=1e-5)
            assert moved <= 0.75


def test_a_clipped_batch_counts_once_also_if_it_is_empty(arrays):
    start = params()
    for batches, clip, expected in (([[]], 1.0, 0.25), ([[0, 1]], 1e-6, -0.75), ([[0, 1], []], 1e6, 0.5)):
        tally = descended(work(arrays, batches), start, clip, clipped_batch, counted=True)[1]
        assert float(tally.excess) == pytest.approx(expected)


def test_counts_have_noise_of_their_own_in_every_batch(arrays):
    tally = descended(work(arrays, [[], [], []]), params(), 1.0, counted=True, noise=4.0)[1]
    normals = sum(float(gaussian(KEY, nonce_words(COUNT_NOISE, t), ())) for t in range(3))
    assert float(tally.excess) == pytest.approx(4.0 * normals, rel=1e-5)
    assert COUNT_NOISE != BATCH_NOISE


def test_records_that_are_not_finite_are_counted_and_move_nothing(arrays):
    spoiled = Arrays(arrays.features.at[7].set(jnp.nan).at[8].set(jnp.inf), arrays.labels)
    start = params()
    found, tally = descended(work(spoiled, [[3, 7, 5, 8]]), start, 0.9)
    clean, none = descended(work(arrays, [[3, 5]]), start, 0.9)
    np.testing.assert_allclose(flat(found), flat(clean), atol=1e-6)
    assert (int(tally.not_finite), int(none.not_finite)) == (2, 0)
    whole, tally = descended(work(spoiled, [[3, 7, 5, 8]]), start, 0.9, clipped_batch)
    np.testing.assert_array_equal(flat(whole), flat(start))
    assert int(tally.not_finite) == 1
