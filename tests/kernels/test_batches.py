from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.kernels import Batches, Rows, Schedule
from tacit.privacy import Randomness


def shuffled(start, count, *, size, steps, epochs, stream) -> Batches:
    """The plan of one silo alone, without padding."""
    plan = Schedule(size, steps, epochs).draw([Rows(0, start, count, np.zeros(1, int))], [stream], 1)
    used = 1 if size is None else int(plan.steps[0])
    return Batches(plan.records[0, :used], plan.sizes[0, :used], plan.steps[0])


def rows_of(plan) -> list[int]:
    """Every record that the plan looks at, in order."""
    taken = [plan.records[t % len(plan.sizes)][: plan.sizes[t % len(plan.sizes)]] for t in range(int(plan.steps))]
    return [int(i) for step in taken for i in step]


@given(count=st.integers(1, 70), size=st.integers(1, 20), epochs=st.integers(1, 3), start=st.integers(0, 9))
def test_every_epoch_looks_at_every_record_once(count, size, epochs, start):
    plan = shuffled(start, count, size=size, steps=None, epochs=epochs, stream=Randomness.from_seed(1).stream("b"))
    seen = rows_of(plan)
    for epoch in range(epochs):
        assert sorted(seen[epoch * count : (epoch + 1) * count]) == list(range(start, start + count))
    assert all(1 <= real <= size for real in plan.sizes)


@given(count=st.integers(1, 40), size=st.integers(1, 20), steps=st.integers(1, 30))
def test_a_number_of_steps_is_kept_whatever_the_size_of_the_silo(count, size, steps):
    plan = shuffled(0, count, size=size, steps=steps, epochs=1, stream=Randomness.from_seed(1).stream("b"))
    assert plan.steps == steps == len(plan.sizes)
    assert set(rows_of(plan)) <= set(range(count))


def test_a_batch_larger_than_the_silo_takes_no_more_room_than_the_silo():
    plan = shuffled(0, 50, size=10**9, steps=None, epochs=2, stream=Randomness.from_seed(1).stream("b"))
    assert plan.records.shape == (2, 64)
    assert sorted(rows_of(plan)[:50]) == list(range(50))


def test_without_a_size_every_step_takes_the_whole_silo():
    plan = shuffled(5, 7, size=None, steps=3, epochs=1, stream=Randomness.from_seed(1).stream("b"))
    assert rows_of(plan) == list(range(5, 12)) * 3


def test_an_empty_silo_has_no_step():
    plan = shuffled(0, 0, size=4, steps=None, epochs=2, stream=Randomness.from_seed(1).stream("b"))
    assert plan.steps == 0
    assert rows_of(plan) == []


@given(
    counts=st.lists(st.integers(1, 80), min_size=1, max_size=12),
    size=st.integers(1, 50),
    steps=st.one_of(st.none(), st.integers(1, 12)),
    epochs=st.integers(1, 3),
)
def test_silos_drawn_at_once_look_at_the_same_records_as_one_by_one(counts, size, steps, epochs):
    schedule = Schedule(size, steps, epochs)

    def shape(count):
        return schedule.shape(Rows(0, 0, count, np.zeros(1, int)))

    counts = [count for count in counts if shape(count) == shape(counts[0])]
    starts = np.cumsum([0, *counts])[:-1].tolist()
    root = Randomness.from_seed(7)

    def streams():
        return [root.stream("b", k) for k in range(len(counts))]

    silos = [
        Rows(k, start, count, np.zeros(1, int)) for k, (start, count) in enumerate(zip(starts, counts, strict=True))
    ]
    together = schedule.draw(silos, streams(), 16)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tacit.kernels.batches.DRAWN_AT_ONCE", 0)
        assert all(map(np.array_equal, schedule.draw(silos, streams(), 16), together))
    assert together.records.shape[1:] == shape(counts[0])
    for k, stream in enumerate(streams()):
        alone = shuffled(starts[k], counts[k], size=size, steps=steps, epochs=epochs, stream=stream)
        mine = Batches(together.records[k], together.sizes[k], together.steps[k])
        assert rows_of(mine) == rows_of(alone)
        assert np.array_equal(mine.sizes[: int(alone.steps)], alone.sizes)
    assert (together.steps[len(counts) :] == 0).all()
