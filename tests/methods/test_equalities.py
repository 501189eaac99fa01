"""Methods that coincide under a condition, bit by bit, with a seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.methods.worlds import federation, simulation, weights

COMMON = {"noise_multiplier": 1.0, "clip": 0.5, "sample_rate": 0.3, "batches_per_round": 3}


def made(subjects: Any, silos: int = 2) -> Any:
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(40, 4)), rng.normal(size=40)
    return federation(features, labels, subjects, np.arange(40) % silos, silos)


def after(records: Any, name: str, rounds: int = 2, **numbers: Any) -> np.ndarray:
    sim = simulation(records, {"name": name, **COMMON, **numbers}, rounds=rounds, data={"records_per_silo": 20})
    for number in range(1, rounds + 1):
        sim.round(number)
    return weights(sim)


def test_higrad_with_all_distinct_subjects_is_local_record():
    distinct = made(np.arange(40))
    np.testing.assert_array_equal(after(distinct, "higrad"), after(distinct, "local-record"))
    shared = made(np.arange(40) % 4)
    assert np.abs(after(shared, "higrad") - after(shared, "local-record")).max() > 1e-3


def test_local_group_with_room_for_everybody_is_local_record_and_with_less_is_not():
    shared = made(np.arange(40) % 4)
    records = after(shared, "local-record")
    np.testing.assert_array_equal(after(shared, "local-group", group_cap=10), records)
    assert np.abs(after(shared, "local-group", group_cap=1) - records).max() > 1e-3


def test_a_curator_of_one_silos_records_is_that_silo():
    alone = made(np.arange(40) % 4, silos=1)
    np.testing.assert_array_equal(after(alone, "pooled-dp-sgd"), after(alone, "local-record"))


def test_projected_steps_end_within_the_ball():
    projected = after(made(np.arange(40)), "pooled-dp-sgd", projection=0.05, local_learning_rate=1.0)
    assert 0.9 * 0.05 < np.linalg.norm(projected) <= 0.05 * (1 + 1e-6)


@pytest.mark.parametrize("name", ["local-record", "subject-sgd"])
def test_a_seed_gives_the_same_run_again_and_another_seed_another(name):
    records = made(np.arange(40) % 8)
    numbers = COMMON if name == "local-record" else {"noise_multiplier": 1.0}
    found = []
    for seed in (1, 1, 2):
        sim = simulation(records, {"name": name, **numbers}, seed=seed, data={"records_per_silo": 20})
        sim.round(1)
        found.append(weights(sim))
    np.testing.assert_array_equal(found[0], found[1])
    assert np.abs(found[0] - found[2]).max() > 1e-4


def test_an_adaptive_clip_that_hardly_moves_is_a_fixed_one():
    """The sum and its noise are the same; only a count travels beside them."""
    records = made(np.arange(40) % 8)
    still = after(records, "local-record", adaptive_clip={"rate": 1e-9})
    np.testing.assert_allclose(still, after(records, "local-record"), rtol=1e-5, atol=1e-6)


def test_subject_sgd_with_one_record_per_person_and_everybody_in_is_central_group_at_rate_one_before_noise():
    """Two ways to a sum of clipped record gradients."""
    records = made(np.arange(40), silos=1)
    people = simulation(records, {"name": "subject-sgd", "noise_multiplier": 0.0, "clip": 0.5})
    batch = simulation(
        records,
        {"name": "central-group", "noise_multiplier": 0.0, "clip": 0.5, "sample_rate": 1.0},
        data={"records_per_silo": 40},
    )
    people.round(1)
    batch.round(1)
    np.testing.assert_allclose(weights(people), weights(batch), atol=1e-5)
    assert np.abs(weights(people)).max() > 1e-3
