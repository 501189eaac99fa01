"""Who takes part in a round and with what: people by one coin for all silos, silos whether or not they have records."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from scipy.stats import binomtest

from tacit.engine.simulate import FEWEST_ROWS
from tests.methods.worlds import before_noise, federation, random_federation, simulation

ERROR = 1e-6
SUBJECTS, SILOS = 30, 3


def everywhere() -> Any:
    """Thirty people with one to three records in each of three silos."""
    rng = np.random.default_rng(0)
    counts = rng.integers(1, 4, size=(SILOS, SUBJECTS))
    silo = np.repeat(np.repeat(np.arange(SILOS), SUBJECTS), counts.ravel())
    subject = np.repeat(np.tile(np.arange(SUBJECTS), SILOS), counts.ravel())
    return federation(rng.normal(size=(len(silo), 4)), rng.normal(size=len(silo)), subject, silo, SILOS)


def people_sim(**numbers: Any) -> Any:
    method = {"name": "subject-sgd", "noise_multiplier": 1.0, "clip": 0.5, **numbers}
    return simulation(everywhere(), method, rounds=10_000)


def parts(sim: Any, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Subject, weight and number of records of everybody's part in a round, read from the lanes of work."""
    found = []
    for lane in (lane for part in sim.work.draw(number).parts for lane in part.lanes):
        for people in lane.people:
            used = slice(int(people.used))
            starts, counts, weights = (
                np.asarray(part)[used] for part in (people.starts, people.counts, people.weights)
            )
            real = counts > 0
            rows = starts[real] if lane.rows is None else np.asarray(lane.rows)[starts[real]]
            found.append((sim.federation.train.subject[rows], weights[real], counts[real]))
    if not found:
        return np.zeros(0, int), np.zeros(0), np.zeros(0, int)
    subject, weight, count = (np.concatenate(column) for column in zip(*found, strict=True))
    return subject, weight, count


def test_a_person_is_in_a_round_in_all_silos_or_in_none():
    sim = people_sim(subject_sample_rate=0.4)
    for number in range(1, 30):
        subject, weight, _ = parts(sim, number)
        assert set(np.bincount(subject, minlength=SUBJECTS)) <= {0, SILOS}
        assert np.bincount(subject, weight, SUBJECTS).max(initial=0) <= 1 + 1e-6


def test_people_enter_rounds_at_the_public_rate_whatever_they_have():
    sim = people_sim(subject_sample_rate=0.2)
    rounds = [np.unique(parts(sim, number)[0]) for number in range(1, 301)]
    times = np.bincount(np.concatenate(rounds), minlength=SUBJECTS)
    assert binomtest(int(times.sum()), 300 * SUBJECTS, 0.2).pvalue > ERROR
    # no person is favoured: each is Binomial(300, .2); 30 people at 1e-6 together
    assert all(binomtest(int(count), 300, 0.2).pvalue > ERROR / SUBJECTS for count in times)
    assert len({tuple(people) for people in rounds}) > 250


def test_a_seed_gives_the_same_people_again():
    one, other = (parts(people_sim(subject_sample_rate=0.4, records_per_subject=1), 7) for _ in range(2))
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(left, right)


def test_no_more_of_a_persons_records_are_used_than_asked_for():
    for number in range(1, 10):
        subject, _, count = parts(people_sim(records_per_subject=2), number)
        assert count.max() == 2
        assert len(subject) == SUBJECTS * SILOS


def test_people_without_records_and_rounds_without_people_are_ordinary():
    sim = people_sim(subject_sample_rate=1e-9)
    np.testing.assert_array_equal(before_noise(sim, sim.work.draw(1)), 0)
    assert sim.work.participants(sim.work.draw(1)) == SILOS


def test_a_silo_without_records_draws_and_trains_like_any_other():
    """Its batches are empty and there: a silo that sent no noise would be seen to have no records."""
    made = federation(np.ones((4, 3)), np.ones(4), [0, 1, 2, 3], [0, 0, 2, 2], 3)
    sim = simulation(made, {"name": "local-record", "noise_multiplier": 1.0, "batches_per_round": 2})
    groups = [group for lane in sim.work.draw(1) for group in lane]
    places = np.concatenate([group.places for group in groups])
    steps = np.concatenate([group.batches.steps for group in groups])
    noise = np.concatenate([group.batches.noise for group in groups])
    for silo in range(3):
        assert steps[places == silo] == 2
        np.testing.assert_array_equal(noise[places == silo][0], 1.0)
    assert sim.work.participants(sim.work.draw(1)) == 3


@pytest.mark.parametrize("method", ["dp-fedavg", "higrad", "user-ldp", "subject-sgd", "uldp-avg"])
def test_nobody_refers_to_rows_after_the_last_record(method):
    models = []
    for beyond in (0.0, np.nan):
        sim = simulation(everywhere(), {"name": method, "noise_multiplier": 1.0, "clip": 0.5}, rounds=1)
        records = len(sim.federation.train)
        sim.arrays = type(sim.arrays)(*(array.at[records:].set(beyond) for array in sim.arrays))
        assert len(sim.arrays.labels) == FEWEST_ROWS > records
        sim.round(1)
        models.append(np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(sim.server.params)]))
    assert np.isfinite(models[0]).all()
    np.testing.assert_array_equal(*models)


def test_how_silos_are_grouped_does_not_change_what_they_send():
    made = random_federation(np.random.default_rng(4), silos=5)
    method = {"name": "higrad", "noise_multiplier": 1.0, "batches_per_round": 2, "sample_rate": 0.3}
    sim = simulation(made, method)
    together = before_noise(sim, sim.work.draw(1))
    alone = sum(before_noise(sim, [[sim.work._group(1, [k])], []]) for k in range(5))
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)


def test_how_many_silos_were_sampled_is_not_told_by_a_private_method():
    method = {"name": "dp-fedsgd", "noise_multiplier": 1.0, "silo_sample_rate": 0.5}
    sim = simulation(random_federation(np.random.default_rng(1), silos=4), method, rounds=40)
    drawn = [sim.work.draw(number) for number in range(1, 41)]
    sizes = {sum(int((group.places < 4).sum()) for lane in lanes for group in lane) for lanes in drawn}
    assert len(sizes) > 2
    assert {sim.work.participants(lanes) for lanes in drawn} == {2}
