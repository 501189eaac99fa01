"""Sums of clipped record gradients on a grid: what one record may move, in batches as large as silos."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.kernels import Arrays, Objective, PoissonBatches, Rows, Sampled, Work
from tacit.kernels.batches import BLOCK, blocks_for, most_expected
from tacit.kernels.clipped_sum import rounding
from tacit.kernels.exact_sums import FINEST
from tacit.kernels.noisy_descent import clipped_records
from tacit.models import Params, task_for
from tacit.privacy import Randomness
from tests.refusals import refuses


def weighted(params: Params, x: jax.Array) -> jax.Array:
    return x @ params["layer"]["w"]


OBJECTIVE = Objective(weighted, task_for("real"))


def records(sizes: np.ndarray) -> Arrays:
    """Records whose gradients at zero have one number each: the ``sizes``."""
    return Arrays(jnp.ones((len(sizes), 1), jnp.float32), jnp.asarray(-sizes / 2, jnp.float32))


def drawn(number: int, seed: int = 0, **options: Any) -> Sampled:
    """One batch of everything."""
    plan = PoissonBatches((1.0,), (1,), (float(number),), (0.0,), **options)
    stream = Randomness.from_seed(seed).stream("batches", 1, 0)
    found = plan.draw([Rows(0, 0, number, np.arange(number + 1))], [stream], 1)
    return jax.tree.map(lambda part: np.asarray(part)[0], found)


def without(sampled: Sampled, record: int) -> Sampled:
    """The same coins for everybody, and one entry less."""
    place = int(np.flatnonzero(sampled.records[: sampled.blocks[0, -1]] == record)[0])
    moved = np.append(np.delete(sampled.records, place), 0)
    return sampled._replace(records=moved, blocks=sampled.blocks - (sampled.blocks > place))


@jax.jit
def total(arrays: Arrays, sampled: Sampled) -> Any:
    work = Work(OBJECTIVE, {}, arrays, sampled, jnp.float32(1))
    return clipped_records(work, {"layer": {"w": jnp.zeros((1, 1))}}, 0, jnp.float32(1)).vector


def test_one_record_less_moves_the_sum_of_208_194_by_one_clip():
    """Added up one after the other in single precision, chunks of these records round up with the first record and
    down without it: the sum moves by 15.9 clips."""
    number = 208_194
    sizes = np.full(number, 1 - 2.0**-10)
    sizes[np.isin(np.arange(number) % 64, (32, 33))] -= 0.4 * 2.0**-6
    arrays, sampled = records(sizes), drawn(number)
    everything = total(arrays, sampled).integers()[0] * FINEST
    assert everything == pytest.approx(sizes.sum(), rel=1e-6)
    for record in (0, 33, 150_000):
        moved = everything - total(arrays, without(sampled, record)).integers()[0] * FINEST
        assert abs(moved) <= sizes[record] + sum(rounding(number, 1, 0.0))
        assert moved == pytest.approx(sizes[record], abs=1e-3)


def test_one_record_less_changes_the_rounding_of_its_own_block_alone():
    number = 3000
    rng = np.random.default_rng(1)
    arrays, sampled = records(rng.uniform(-2, 2, number)), drawn(number)
    ends = sampled.blocks[0]
    assert len(ends) - 1 == blocks_for(number) == 12
    fewer = without(sampled, 1234)

    def blocks(sampled: Sampled) -> list[int]:
        found = []
        for first, last in zip(sampled.blocks[0][:-1], sampled.blocks[0][1:], strict=True):
            one = sampled._replace(blocks=np.array([[first] + [last] * (len(ends) - 1)], np.int32))
            found.append(int(total(arrays, one).integers()[0]))
        return found

    assert sum(left != right for left, right in zip(blocks(sampled), blocks(fewer), strict=True)) == 1


def test_a_subjects_entries_share_a_block_where_they_share_a_weight():
    plan = PoissonBatches((1.0,), (1,), (2000.0,), (0.0,), averaged=True)
    rows = Rows(0, 0, 2000, np.arange(0, 2001, 4))
    found = plan.draw([rows], [Randomness.from_seed(2).stream("batches", 1, 0)], 1)
    ends = found.blocks[0, 0]
    block_of = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
    subject = found.records[0][: ends[-1]] // 4
    assert all(len(set(block_of[subject == one])) == 1 for one in range(500))
    assert len(set(block_of)) == blocks_for(2000)


def test_rounding_is_charged_below_one_percent_for_batches_of_any_size():
    for expected in (1, 100, BLOCK, 10_000, 10_000_000):
        assert 0 < sum(rounding(expected, 50_000, 2.0)) < 0.01
    assert sum(rounding(10, 1000, 1.0)) < 0.001


def test_batches_far_larger_than_declared_are_refused():
    plan = PoissonBatches((0.5,), (1,), (50.0,), (0.0,))
    most = int(most_expected(50.0) / 0.5)
    stream = Randomness.from_seed(3).stream("batches", 1, 0)
    plan.draw([Rows(0, 0, most, np.arange(most + 1))], [stream], 1)
    with refuses("mismatch", "data.records_per_silo"):
        plan.draw([Rows(0, 0, most + 1, np.arange(most + 2))], [stream], 1)
