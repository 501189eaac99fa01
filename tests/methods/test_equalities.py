"""Methods that coincide under a condition, bit by bit, with a seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tacit.planning.preview import noise_to_signal
from tests.methods.worlds import federation, planned, simulation, weights

FACTS = {"records_per_silo": 20, "subjects": {"column": "person", "count": 40}}
COMMON = {"noise_multiplier": 1.0, "clip": 0.5, "sample_rate": 0.3, "batches_per_round": 3}


def made(subjects: Any, silos: int = 1) -> Any:
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(40, 4)), rng.normal(size=40)
    return federation(features, labels, subjects, np.arange(40) % silos, silos)


def after(records: Any, name: str, rounds: int = 2, **numbers: Any) -> np.ndarray:
    sim = simulation(records, {"name": name, **COMMON, **numbers}, rounds=rounds, data=FACTS)
    for number in range(1, rounds + 1):
        sim.round(number)
    return weights(sim)


def test_higrad_with_all_distinct_subjects_is_local_record():
    distinct = made(np.arange(40))
    np.testing.assert_array_equal(after(distinct, "higrad"), after(distinct, "local-record"))
    shared = made(np.arange(40) % 4)
    assert np.abs(after(shared, "higrad") - after(shared, "local-record")).max() > 1e-3


def test_local_group_with_room_for_everybody_is_local_record():
    shared = made(np.arange(40) % 4)
    records = after(shared, "local-record")
    np.testing.assert_array_equal(after(shared, "local-group", group_cap=10), records)


def test_a_curator_of_one_silos_records_is_that_silo():
    alone = made(np.arange(40) % 4)
    np.testing.assert_array_equal(after(alone, "pooled-dp-sgd"), after(alone, "local-record"))


def test_projected_steps_end_within_the_ball():
    projected = after(made(np.arange(40)), "pooled-dp-sgd", projection=0.05, local_learning_rate=1.0)
    assert 0.9 * 0.05 < np.linalg.norm(projected) <= 0.05 * (1 + 1e-6)


def test_a_seed_gives_the_same_run_again_and_another_seed_another():
    records, found = made(np.arange(40) % 4), []
    for seed in (1, 1, 2):
        sim = simulation(records, {"name": "local-record", **COMMON}, seed=seed, rounds=2, data=FACTS)
        sim.round(1)
        found.append(weights(sim))
    np.testing.assert_array_equal(found[0], found[1])
    assert np.abs(found[0] - found[2]).max() > 1e-4


@pytest.mark.parametrize("name", ["uldp-sgd", "uldp-avg"])
def test_divided_by_people_a_rate_is_the_papers_times_the_silos(name):
    """A power of two of silos: both quotients are exact."""
    records, found, plans = made(np.arange(40) % 4, silos=4), [], []
    for divisor, rate in (("paper", 8.0), ("people", 2.0), ("people", 8.0)):
        method = {"name": name, "noise_multiplier": 1.0, "clip": 0.5, "divisor": divisor}
        train = {"server_learning_rate": rate}
        sim = simulation(records, method, rounds=2, data=FACTS, train=train)
        for number in (1, 2):
            sim.round(number)
        found.append(weights(sim))
        plans.append(planned(method, silos=4, train=train))
    np.testing.assert_array_equal(found[0], found[1])
    assert np.abs(found[1] - found[2]).max() > 1e-3
    assert plans[0].guarantees() == plans[1].guarantees()
    assert [noise_to_signal(plan).step for plan in plans] == [1.0, 1.0, 4.0]
