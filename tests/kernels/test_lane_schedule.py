from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.kernels import Layout, arrange, drawn
from tacit.kernels.lane_schedule import CALL_CHUNKS, CHUNK_NUMBERS, _dealt
from tacit.privacy import Randomness
from tacit.privacy.invalid import InvalidArgument
from tests.refusals import refuses

MLP = Layout(parameters=4097, pass_rows=256)
CNN = Layout(parameters=26010, pass_rows=16)
LAYOUTS = [
    MLP,
    CNN,
    Layout(parameters=31, pass_rows=256, batch_size=10),
    Layout(parameters=31, pass_rows=16, batch_size=100),
    Layout(parameters=5, pass_rows=256, together=True),
    Layout(parameters=4097, pass_rows=128, apart=True),
]


def laid_out(lanes):
    """Real entries of all lanes: index, start, count, weight, rows of the shape, whole."""
    found = []
    for lane in lanes:
        for people in lane.people:
            used = np.asarray(people.index)[: int(people.used)]
            real = used >= 0
            assert (np.asarray(people.index)[int(people.used) :] == -1).all()
            assert (np.asarray(people.weights)[np.asarray(people.index) < 0] == 0).all()
            columns = [np.asarray(a)[: int(people.used)][real] for a in (people.starts, people.counts, people.weights)]
            rest = [np.full(real.sum(), v) for v in (people.shape.rows, people.shape.whole)]
            found.append(np.stack([used[real], *columns, *rest]))
    return np.concatenate(found, axis=1).T if found else np.zeros((0, 6))


@settings(max_examples=50, deadline=None)
@given(
    counts=st.lists(st.integers(0, 3000), max_size=60),
    layout=st.sampled_from(LAYOUTS),
    lanes=st.integers(1, 3),
    seed=st.integers(0, 9),
)
def test_everybody_with_records_and_a_weight_appears_once_and_nobody_else(counts, layout, lanes, seed):
    rng = np.random.default_rng(seed)
    counts = np.array(counts, int)
    starts = np.cumsum(counts) - counts
    weights = rng.choice([0.0, 0.25, 1.0], len(counts))
    found = laid_out(arrange(starts, counts, weights, layout, lanes=lanes))
    present = np.flatnonzero((counts > 0) & (weights > 0))
    index = found[:, 0].astype(int)
    assert sorted(index) == list(present)
    for column, given_ in ((1, starts), (2, counts), (3, weights)):
        np.testing.assert_array_equal(found[:, column], given_[index])
    assert ((found[:, 2] <= found[:, 4]) | (found[:, 5] == 0)).all()
    if layout.together:
        assert (found[:, 5] == 1).all()


@pytest.mark.parametrize("layout", LAYOUTS[:4] + LAYOUTS[5:])
def test_there_are_at_most_a_dozen_shapes_and_little_padding(layout):
    counts = np.arange(1, 5000)
    shapes, place = layout.shapes(counts)
    assert len(shapes) <= 12
    rows = np.array([shape.rows for shape in shapes])[place]
    whole = np.array([shape.whole for shape in shapes])[place]
    seen = np.where(whole, rows, -(-counts // rows) * rows)
    assert (seen >= counts).all()
    large = counts >= layout.smallest
    assert (seen[large] <= counts[large] + np.maximum(counts[large] // 2, layout.pass_rows)).all()
    small = large & whole
    assert (seen[small] < 1.5 * counts[small] + 1).all()


def test_small_models_are_worked_on_side_by_side_and_large_ones_alone():
    for shape in MLP.shapes(np.arange(1, 300))[0]:
        assert shape.width * MLP.parameters <= CHUNK_NUMBERS
    assert {shape.width for shape in CNN.shapes(np.arange(1, 300))[0]} == {1}
    assert max(shape.width for shape in MLP.shapes(np.arange(1, 300))[0]) > 1


@settings(max_examples=60, deadline=None)
@given(
    costs=st.lists(st.integers(1, 1000), min_size=1, max_size=2000),
    giant=st.integers(1, 100_000),
    lanes=st.integers(1, 4),
)
def test_lanes_differ_by_no_more_than_a_chunk(costs, giant, lanes):
    costs = np.array([*costs, giant])
    lane_of = _dealt(costs, lanes)
    loads = np.bincount(lane_of, costs, minlength=lanes)
    others = np.sort(costs)[::-1]
    assert loads.max() <= max(others[0], costs.sum() / lanes + 3 * others[min(1, len(others) - 1)])


def test_both_lanes_are_busy_where_one_silo_holds_nearly_everybody():
    counts = np.r_[np.full(3000, 20), np.full(10, 4)]
    starts = np.cumsum(counts) - counts
    found = arrange(starts, counts, np.ones(len(counts)), CNN)
    records = [sum(int(np.asarray(p.counts).sum()) for p in lane.people) for lane in found]
    assert abs(records[0] - records[1]) < 0.01 * sum(records)


def test_a_call_has_the_same_shape_for_any_number_of_people():
    def shapes(people):
        found = arrange(np.arange(people) * 5, np.full(people, 5), np.ones(people), CNN)
        return {tuple(p.counts.shape) for lane in found for p in lane.people}

    assert shapes(3) == shapes(1000) == {(CALL_CHUNKS, 1)}


def test_nobody_at_all_is_an_ordinary_arrangement():
    for counts in (np.zeros(0, int), np.zeros(4, int)):
        found = arrange(counts, counts, np.ones(len(counts)), MLP)
        assert [lane.people for lane in found] == [(), ()]


def test_a_draw_keeps_everybodys_own_records_and_no_more_than_asked():
    starts, counts = np.array([10, 0, 50, 30]), np.array([5, 0, 3, 10])
    rows, first, kept = drawn(starts, counts, Randomness.from_seed(1).stream("draw").words(18), most=4)
    np.testing.assert_array_equal(kept, [4, 0, 3, 4])
    for start, count, at, n in zip(starts, counts, first, kept, strict=True):
        own = rows[at : at + n]
        assert len(set(own)) == n
        assert set(own) <= set(range(start, start + count))
    everything, first, kept = drawn(starts, counts, Randomness.from_seed(1).stream("draw").words(18))
    assert sorted(everything[first[3] : first[3] + 10]) == list(range(30, 40))
    np.testing.assert_array_equal(kept, counts)


def test_every_record_is_equally_likely_to_be_drawn():
    # 4,000 draws of 2 out of 5: each record 1,600 times, standard deviation 31; five of them fail with p < 1e-6
    people = 4000
    lots = Randomness.from_seed(2).lots(np.repeat(np.arange(people), 5), "draw", nth=np.tile(np.arange(5), people))
    rows, _, _ = drawn(np.arange(people) * 5, np.full(people, 5), lots, most=2)
    assert np.abs(np.bincount(rows % 5) - 1600).max() < 5.2 * 31


@pytest.mark.parametrize(
    ("starts", "counts", "weights"),
    [([0], [1, 2], [1]), ([0], [-1], [1]), ([-1], [1], [1]), ([0], [1], [-0.5]), ([0], [1], [np.nan])],
)
def test_wrong_arrangements_are_refused(starts, counts, weights):
    with refuses("out-of-range" if len(starts) == len(counts) else "wrong-length", "starts", InvalidArgument):
        arrange(np.array(starts), np.array(counts), np.array(weights), MLP)
