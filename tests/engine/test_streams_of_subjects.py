"""What subjects add reaches an exchange in groups: the same numbers, and never those of all subjects at once."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from tacit.data import Federation
from tacit.engine import people_work
from tacit.engine.kernel import LANES
from tacit.engine.simulate import Simulation
from tacit.exchange import Grid, PersonVectors
from tests.methods.worlds import federation, simulation

GRID = Grid(1e-8)
WIDE = 40_000  # a chunk has one person


def simulated(people: int, numbers: int, bad: Any = (), **method: Any) -> Simulation:
    """``people`` with two records in each of two silos, and a linear model; rows ``bad`` are not finite."""
    rng, rows = np.random.default_rng(0), 4 * people
    features = rng.normal(size=(rows, numbers - 1)).astype(np.float32)
    features[list(bad)] = np.nan
    subject, silo = np.arange(rows) % people, np.arange(rows) // (2 * people)
    return weighted(federation(features, rng.normal(size=rows), subject, silo, 2), 4, **method)


def weighted(made: Federation, most: int, **method: Any) -> Simulation:
    return simulation(
        made,
        {"name": "uldp-avg", "noise_multiplier": 3.0, "clip": 0.5, "weights": "records", **method},
        rounds=2,
        exchange={"name": "weighted"},
        privacy={"max_records_per_subject_and_silo": most},
    )


def streams(sim: Simulation) -> Any:
    return sim.work.subjects(sim.work.draw(1), sim.given(sim.broadcast), GRID)


def in_order(sim: Simulation) -> list[np.ndarray]:
    """Of each silo what its people add, by their places: ``[people, numbers]``."""
    numbers = sim.numbers(sim.broadcast)
    found = [PersonVectors.joined(list(groups), numbers) for groups in streams(sim).parts]
    for silo, own in zip(found, sim.work.members(), strict=True):
        np.testing.assert_array_equal(np.sort(silo.places), np.arange(len(own.counts)))
    return [silo.vectors[np.argsort(silo.places)] for silo in found]


def test_groups_hold_few_numbers_and_together_what_one_group_holds(monkeypatch):
    sim = simulated(people=300, numbers=5)
    whole = in_order(sim)
    assert [sum(1 for _ in groups) for groups in streams(sim).parts] == [LANES, LANES]
    monkeypatch.setattr(people_work, "GROUP_NUMBERS", 1)  # as few as possible: a chunk
    counts = [sum(1 for _ in groups) for groups in streams(sim).parts]
    assert min(counts) > LANES
    for one, other in zip(whole, in_order(sim), strict=True):
        np.testing.assert_array_equal(one, other)
    assert np.abs(whole).max() > 0


@pytest.mark.parametrize("method", [{}, {"adaptive_clip": {}}, {"name": "uldp-sgd", "subject_sample_rate": 0.5}])
def test_the_sum_over_the_groups_is_the_contribution_of_a_silo(method):
    """Weighted one by one as the other form weights them; each is rounded by less than a step twice."""
    sim = simulated(people=40, numbers=5, **method)
    drawn = sim.work.draw(1)
    together = sim.work.integers(drawn, sim.given(sim.broadcast), GRID).parts
    for k, (part, groups) in enumerate(zip(drawn.parts, streams(sim).parts, strict=True)):
        first = np.searchsorted(sim.work._home, k)
        own = [(sim.work._weights[group.places + first], group.vectors) for group in groups]
        np.testing.assert_allclose(sum(weights @ vectors for weights, vectors in own), together[k], atol=2 * 40)
        assert sum(len(weights) for weights, _ in own) == len(part.entries)


def test_no_subject_adds_anything_else_because_another_is_absent():
    """To the last bit, in this silo and in the other."""
    rng = np.random.default_rng(1)
    sizes = np.array([33, 1, 5, 30, 2, 17])
    subject, silo = np.repeat(np.arange(6), sizes), np.arange(sizes.sum()) % 2
    features, labels = 1e3 * rng.normal(size=(len(subject), 4)), rng.normal(size=len(subject))
    found = []
    for kept in (subject >= 0, subject > 0):
        made = federation(features[kept], labels[kept], subject[kept], silo[kept], 2, subjects=6)
        sim = weighted(made, 20)
        entries = zip(sim.work._silo, sim.work._subject, strict=True)
        found.append(dict(zip(entries, np.vstack(in_order(sim)), strict=True)))
    everyone, others = found
    assert everyone.keys() > others.keys()
    for entry, vector in others.items():
        np.testing.assert_array_equal(vector, everyone[entry])


def test_what_is_not_finite_is_counted_when_the_stream_has_ended():
    found = streams(sim := simulated(people=40, numbers=5, bad=(0, 3, 85)))
    assert found.tally.not_finite == 0
    for groups, lost in zip(found.parts, (2, 3), strict=True):
        assert sum(1 for _ in groups) > 0
        assert found.tally.not_finite == lost
    sim.round(1)
    sim.round(2)
    assert int(sim.not_finite) == 2 * 3


def peak(people: int) -> float:
    """Most memory at once while what ``people`` add in two silos is gone through, in vectors of one person."""
    sim = simulated(people, WIDE)
    for groups in streams(sim).parts:
        assert sum(len(group.places) for group in groups) == people  # and it is compiled
    found = streams(sim).parts
    tracemalloc.start()
    try:
        for groups in found:
            for group in groups:
                assert group.vectors.shape[1] == WIDE
        return tracemalloc.get_traced_memory()[1] / (8 * WIDE)
    finally:
        tracemalloc.stop()


def test_memory_grows_with_the_group_and_not_with_the_number_of_subjects(monkeypatch):
    monkeypatch.setattr(people_work, "GROUP_NUMBERS", 2 * LANES * WIDE)
    assert max(peak(12), peak(48)) < 20
    monkeypatch.setattr(people_work, "GROUP_NUMBERS", 8 * LANES * WIDE)
    assert peak(48) > 24
