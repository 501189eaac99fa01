"""Removing everything of one subject moves what noise is added to by at most what the event says.

Real compiled local work on random instances: people of any size over any silos, records of any scale, among them some
whose gradient cannot be computed. Both worlds have the same coins: a subject is taken out of what was drawn.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from tacit.methods import Facts
from tacit.methods.per_subject import SubjectWork
from tacit.planning.claims import cost
from tacit.privacy import Repeated, View
from tests.methods.worlds import before_noise, federation, moved, planned, random_federation, simulation

CLIP = 0.7
# sums in float32: rounding of the sum itself, of up to 60 vectors of norm CLIP
ROUNDING = 60 * 1e-6
INSTANCES = range(12)


def without(drawn: Any, rows: np.ndarray) -> Any:
    """A silo's drawn batches without the entries of some rows; noise, divisor and keys stay."""

    def one(group: Any) -> Any:
        batches = group.batches
        records, weights, blocks = (np.array(part) for part in batches[:3])
        for k in range(len(records)):
            used = np.arange(records.shape[1]) < blocks[k].max()
            keep = used & ~np.isin(records[k], rows)
            before = np.concatenate([[0], np.cumsum(keep)])
            blocks[k] = before[blocks[k]]
            for array in (records, weights):
                array[k] = np.pad(array[k][keep], (0, (~keep).sum()))
        return group._replace(batches=batches._replace(records=records, weights=weights, blocks=blocks))

    return [[one(group) for group in lane] for lane in drawn]


def in_batch(drawn: Any, rows: np.ndarray) -> int:
    """How many entries of one batch of one silo are among these rows."""
    batches = drawn[0][0].batches
    return int(np.isin(batches.records[0][: int(batches.blocks[0].max())], rows).sum())


def one_batch(name: str, seed: int, **numbers: Any):
    """One silo, one batch without noise, learning rate 1: what is sent is the batch's vector over its divisor."""
    rng = np.random.default_rng(seed)
    made = random_federation(rng, silos=1)
    method = {"name": name, "noise_multiplier": 0, "clip": CLIP, "sample_rate": 0.5, **numbers}
    if name != "central-group":
        method |= {"batches_per_round": 1, "local_learning_rate": 1.0}
    sim = simulation(made, method)
    moved(sim, float(rng.normal()))
    return sim, made.train, float(sim.work.schedule.divisors[0])


# method, its numbers, and the clips by which j records of a subject in the batch may move its vector
EACH_BATCH = {
    "higrad": ("higrad", {}, lambda j: min(j, 1)),
    "local-record": ("local-record", {}, lambda j: j),
    "local-group, at most 3": ("local-group", {"group_cap": 3}, lambda j: min(j, 3)),
    "user-ldp": ("user-ldp", {}, lambda j: 2 * min(j, 1)),
    "central-group": ("central-group", {}, lambda j: j),
}


@pytest.mark.parametrize("name", EACH_BATCH)
def test_removing_a_subject_moves_a_batch_by_at_most_what_the_event_says(name):
    method, numbers, clips = EACH_BATCH[name]
    largest = 0.0
    for seed in INSTANCES:
        sim, train, divisor = one_batch(method, seed, **numbers)
        divisor = {"user-ldp": 1.0, "central-group": 1.0}.get(method, divisor)
        drawn = sim.work.draw(1)
        with_all = before_noise(sim, drawn)
        assert np.isfinite(with_all).all()
        for subject in np.unique(train.subject)[:4]:
            rows = np.flatnonzero(train.subject == subject)
            shift = divisor * np.linalg.norm(with_all - before_noise(sim, without(drawn, rows)))
            allowed = CLIP * clips(in_batch(drawn, rows))
            assert shift <= allowed + ROUNDING
            largest = max(largest, shift / max(allowed, CLIP))
    assert largest > 0.3  # the instances do reach the neighbourhood of the bound


@pytest.mark.parametrize("name", ["higrad", "local-record", "central-group"])
def test_removing_one_record_moves_a_batch_by_at_most_one_clip(name):
    for seed in INSTANCES:
        sim, _, divisor = one_batch(name, seed)
        divisor = 1.0 if name == "central-group" else divisor
        drawn = sim.work.draw(1)
        batches = drawn[0][0].batches
        row = batches.records[0][:1]
        changed = without(drawn, row)
        if name == "higrad":  # without the record, the others of its subject count for more
            subject = sim.federation.train.subject
            entries = changed[0][0].batches.records[0][: int(changed[0][0].batches.blocks[0].max())]
            same = np.flatnonzero(subject[entries] == subject[row[0]])
            changed[0][0].batches.weights[0][same] = 1 / max(len(same), 1)
        shift = divisor * np.linalg.norm(before_noise(sim, drawn) - before_noise(sim, changed))
        assert shift <= CLIP + ROUNDING


@pytest.mark.parametrize("name", ["higrad", "local-record", "user-ldp", "central-group"])
def test_an_empty_batch_gives_nothing_and_breaks_nothing(name):
    sim, train, _ = one_batch(name, 0)
    nobody = without(sim.work.draw(1), np.arange(len(train)))
    np.testing.assert_array_equal(before_noise(sim, nobody), 0)


def test_a_clipped_batch_turns_around_so_that_a_subject_moves_it_by_nearly_two_clips():
    """The finding about UserLDP: one subject outweighs all others."""
    features, labels = np.ones((6, 4)), np.array([-1.0] * 5 + [100.0])
    made = federation(features, labels, [0, 1, 2, 3, 4, 5], [0] * 6, silos=1)
    method = {"name": "user-ldp", "noise_multiplier": 0, "clip": 1e-3, "sample_rate": 1.0}
    sim = simulation(made, {**method, "batches_per_round": 1, "local_learning_rate": 1.0})
    drawn = sim.work.draw(1)
    shift = np.linalg.norm(before_noise(sim, drawn) - before_noise(sim, without(drawn, np.array([5]))))
    assert shift == pytest.approx(2e-3, rel=1e-3)


PER_SUBJECT = {
    "subject-sgd": {"name": "subject-sgd", "subject_sample_rate": 0.7},
    "subject-sgd, 2 records": {"name": "subject-sgd", "records_per_subject": 2},
    "subject-sgd, clip first": {"name": "subject-sgd", "clip_first": True, "subject_sample_rate": 0.7},
    "subject-sgd, training": {"name": "subject-sgd", "local_epochs": 3},
    "uldp-sgd": {"name": "uldp-sgd", "weights": "records", "disclose_counts": True},
    "uldp-avg": {"name": "uldp-avg", "local_epochs": 2, "subject_sample_rate": 0.7},
    "uldp-avg, record weights": {"name": "uldp-avg", "weights": "records", "disclose_counts": True, "local_epochs": 4},
    "uldp-sgd, records by root": {"name": "uldp-sgd", "weights": "records-sqrt", "disclose_counts": True},
    "uldp-sgd, records up to a cap": {
        "name": "uldp-sgd",
        "weights": "records-capped",
        "weight_cap": 8,
        "disclose_counts": True,
    },
    "uldp-avg, batches": {"name": "uldp-avg", "batch_size": 2, "local_epochs": 2},
    "uldp-avg, diverging": {"name": "uldp-avg", "local_learning_rate": 1e20, "local_epochs": 4},
}

# divergence beyond float32 leaves nothing to add; no subject has a weight near that of N_max = 180 records
FAR_BELOW = ("uldp-avg, diverging", "uldp-sgd, records by root")


def zeroed(sim: Any, subject: int) -> np.ndarray:
    """The sum of round 1 without one subject, with everybody's coins and choice of records as they were."""
    kept, arranged = sim.work._weights, sim.work._arrangements
    sim.work._weights, sim.work._arrangements = np.where(sim.work._subject == subject, 0.0, kept), {}
    try:
        return before_noise(sim, sim.work.draw(1))
    finally:
        sim.work._weights, sim.work._arrangements = kept, arranged


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("name", PER_SUBJECT)
def test_removing_a_person_from_all_silos_moves_the_sum_by_at_most_one_clip(name, adaptive):
    largest = 0.0
    for seed in INSTANCES[:6]:
        rng = np.random.default_rng(seed)
        made = random_federation(rng, silos=3)
        method = {**PER_SUBJECT[name], "clip": CLIP, "noise_multiplier": 3.0}
        if adaptive:
            method["adaptive_clip"] = {"quantile": 0.8, "count_noise": 2.0}
        sim = simulation(made, method)
        moved(sim, float(rng.normal()))
        if adaptive:  # the clip has moved since the plan was made; noise is scaled to the one in use
            sim.server = sim.server._replace(extra=np.float32(0.01 * 10 ** rng.uniform(0, 3)))
        everybody = before_noise(sim, sim.work.draw(1))
        assert np.isfinite(everybody).all()
        for subject in np.unique(made.train.subject)[:4]:
            change = everybody - zeroed(sim, subject)
            vector, count = (change[:-1], change[-1]) if adaptive else (change, 0.0)
            assert np.linalg.norm(vector) <= CLIP + ROUNDING
            # in units in which the count's noise is that of the sum: .8 of noise 2 is as .8 / 2 of noise 1
            assert abs(count) <= 3.0 * CLIP * 0.8 / 2.0 + ROUNDING
            largest = max(largest, np.linalg.norm(vector) / CLIP)
    # everything else comes near the bound or the smaller weights
    assert name in FAR_BELOW or largest > 0.25


def test_a_person_whose_training_blows_up_adds_at_most_one_clip_and_spoils_nobody():
    """A rate at which numbers grow beyond the clip, but not beyond float32: clipped. Beyond: left out."""
    rng = np.random.default_rng(0)
    made = federation(rng.normal(size=(20, 4)), rng.normal(size=20), np.repeat(np.arange(5), 4), [0] * 20, silos=1)
    for rate, contributes in ((1e8, True), (1e25, False)):
        method = {"name": "uldp-avg", "clip": CLIP, "noise_multiplier": 1.0, "local_learning_rate": rate}
        sim = simulation(made, {**method, "local_epochs": 3})
        total = before_noise(sim, sim.work.draw(1))
        assert np.isfinite(total).all()
        assert np.linalg.norm(total) <= 5 * CLIP + ROUNDING
        assert (np.abs(total).max() > 0.1 * CLIP) == contributes


def test_weights_that_sum_to_more_than_one_are_never_used():
    class Heavy(SubjectWork):
        def weights_of(self, counts, totals, facts):
            return np.ones(len(counts))

    sim = simulation(random_federation(np.random.default_rng(0)), {"name": "uldp-avg", "noise_multiplier": 1.0})
    sim.work._checked_weights(Facts(silos=3))
    sim.work.method = replace(sim.work.method, work=Heavy())
    with pytest.raises(AssertionError) as caught:
        sim.work._checked_weights(Facts(silos=3))
    assert caught.traceback[-1].name == "_checked_weights"


SILOS = {
    "dp-fedavg": {"name": "dp-fedavg", "local_epochs": 3},
    "uldp-naive": {"name": "uldp-naive", "local_epochs": 3},
}


@pytest.mark.parametrize("name", SILOS)
def test_a_silo_moves_the_sum_by_one_clip_and_a_subject_by_two_in_each_of_its_silos(name):
    rng = np.random.default_rng(3)
    features = np.ones((40, 4)) + 0.01 * rng.normal(size=(40, 4))
    labels = np.full(40, -1.0)
    labels[:4] = 1e4  # a subject that outweighs everybody, in both of its silos
    subject = np.concatenate([np.zeros(4), rng.integers(1, 9, 36)])
    silo = np.concatenate([[0, 0, 1, 1], np.arange(36) % 3])
    made = federation(features, labels, subject, silo, silos=3)
    sim = simulation(made, {**SILOS[name], "clip": 0.01, "noise_multiplier": 1.0})
    total = before_noise(sim, sim.work.draw(1))
    for k in range(3):
        assert np.linalg.norm(before_noise(sim, [[sim.work._group(1, [k])], []])) <= 0.01 * (1 + 1e-6)
    rest = subject != 0
    fewer = federation(features[rest], labels[rest], subject[rest], silo[rest], 3, made.subject_count)
    other = simulation(fewer, {**SILOS[name], "clip": 0.01, "noise_multiplier": 1.0})
    shift = np.linalg.norm(total - before_noise(other, other.work.draw(1)))
    assert 0.039 < shift <= 0.04 + 1e-6  # in two silos, by two clips each


@pytest.mark.parametrize("name", SILOS)
def test_a_record_that_cannot_be_computed_spoils_no_other_silo(name):
    """Batches of four, of which the second silo has three: its padding is none of the first silo's records."""
    rng = np.random.default_rng(5)
    features = rng.normal(size=(7, 4))
    features[0] = np.nan
    made = federation(features, rng.normal(size=7), np.arange(7), [0, 0, 0, 0, 1, 1, 1], silos=2)
    sim = simulation(made, {**SILOS[name], "clip": 0.01, "noise_multiplier": 1.0, "batch_size": 4})
    first, second = (before_noise(sim, [[sim.work._group(1, [k])], []]) for k in range(2))
    np.testing.assert_array_equal(first, 0)
    assert np.linalg.norm(second) == pytest.approx(0.01, rel=1e-5)


def test_a_record_that_cannot_be_computed_spoils_only_the_batches_that_hold_it():
    rng = np.random.default_rng(5)
    features, labels = rng.normal(size=(12, 4)), rng.normal(size=12)
    method = {"name": "user-ldp", "noise_multiplier": 0, "clip": CLIP, "sample_rate": 0.5}
    method |= {"batches_per_round": 2, "local_learning_rate": 1.0}

    def work(features):
        return simulation(federation(features, labels, np.arange(12), [0] * 12, silos=1), method)

    batches = work(features).work.draw(1)[0][0].batches
    first, second = (set(batches.records[0][ends[0] : ends[-1]]) for ends in batches.blocks[0, :2])
    features[min(second - first)] = np.nan
    spoilt = work(features)
    assert np.linalg.norm(before_noise(spoilt, spoilt.work.draw(1))) > 0.1 * CLIP


@pytest.mark.parametrize(
    "name",
    [
        *("central-group", "user-ldp", "subject-sgd"),
    ],
)
def test_a_gradient_at_the_end_of_the_range_of_floats_is_clipped_like_any_other(name):
    """2e38: its inverse is too small a float, and a compiler that multiplies by inverses takes it for zero."""
    features = np.zeros((9, 4))
    features[:, 0] = np.where(np.arange(9) == 5, 1e18, 1e-3)
    made = federation(features, np.where(np.arange(9) == 5, 1e20, 1e-3), np.arange(9), [0] * 9, silos=1)
    method = {"name": name, "noise_multiplier": 0, "clip": CLIP}
    if name == "user-ldp":
        method |= {"sample_rate": 1.0, "batches_per_round": 1, "local_learning_rate": 1.0}
    if name == "central-group":
        method |= {"sample_rate": 1.0}
    sim = simulation(made, method, data={"records_per_silo": 1})
    total = before_noise(sim, sim.work.draw(1))
    assert np.linalg.norm(total) <= CLIP + 0.01


def test_records_that_cannot_be_computed_contribute_nothing():
    """The same batch with and without them gives the same vector, bit by bit but for the order of additions."""
    for name in ("local-record", "higrad", "central-group"):
        sim, train, _ = one_batch(name, 5)
        drawn = sim.work.draw(1)
        finite = np.isfinite(train.features).all(axis=1) & np.isfinite(train.labels)
        bad = np.flatnonzero(~finite)
        assert len(bad)
        # of higrad only those that are alone in their batch: the others' weights know about them
        changed = jax.tree.map(np.array, without(drawn, bad))
        np.testing.assert_allclose(before_noise(sim, drawn), before_noise(sim, changed), atol=1e-6)


# -- one record is replaced by a record of another subject -------------------------------------------------------------

TWO_SUBJECTS = {
    # method, numbers, exchange: clips for a record that goes, and for one that is replaced (3 silos)
    "subject-sgd": ({}, "plain", 2 / 3, 4 / 3),
    "uldp-sgd": ({}, "masked", 2 / 3, 4 / 3),
    "uldp-avg": ({}, "plain", 2 / 3, 4 / 3),
    "uldp-naive": ({}, "plain", 2 / 3, 4 / 3),
    "dp-fedavg": ({}, "plain", 2.0, 4.0),
    "muffliato-sgd": ({}, "direct", 2 / 3**0.5, 4 / 3**0.5),
}


@pytest.mark.parametrize("name", TWO_SUBJECTS)
def test_a_replaced_record_may_change_two_subjects_or_silos(name):
    numbers, exchange, gone, replaced = TWO_SUBJECTS[name]
    method = {"name": name, "noise_multiplier": 5.0, **numbers}
    plan = planned(method, silos=3, exchange={"name": exchange}, privacy={"max_silos_per_subject": None})
    for relation, clips in (("zero-out", gone), ("replace", replaced)):
        event = replace(plan.promise, unit="record", relation=relation).event("record", View("public"))
        assert 5.0 / event.noise_multiplier == pytest.approx(clips)


def test_a_record_of_another_subject_instead_moves_a_sum_by_four_weights():
    """A's record makes place for one of B's, and both turn around: 4 w clips, w = 1/3."""
    people = [("A", 1.0), ("B", -1.0)]
    rows = [(who, silo, -10.0 * sign) for who, sign in people for silo in range(3) for _ in range(2)]

    def total(extra: tuple[str, int, float]) -> np.ndarray:
        who, silo, label = zip(*rows, extra, strict=True)
        made = federation(np.ones((len(who), 1)), label, [int(w == "B") for w in who], silo, 3)
        sim = simulation(made, {"name": "subject-sgd", "noise_multiplier": 5.0, "clip": CLIP})
        return before_noise(sim, sim.work.draw(1))

    moved = np.linalg.norm(total(("A", 0, 1000.0)) - total(("B", 0, -1000.0))) / CLIP
    assert moved == pytest.approx(4 / 3, rel=1e-3)


@pytest.mark.parametrize(
    ("method", "clips"),
    [
        ({"name": "local-record"}, 4.0),
        ({"name": "higrad"}, 4.0),
        ({"name": "uldp-group"}, 4.0),
        ({"name": "central-group"}, 4.0 / 3**0.5),
    ],
)
def test_caps_move_a_record_of_each_of_two_subjects(method, clips):
    if method["name"] != "central-group":
        method = method | {"batches_per_round": 1}
    plan = planned({"noise_multiplier": 5.0, "sample_rate": 0.1, **method}, silos=3)
    event = replace(plan.promise, unit="record", relation="replace").event("record", View("public"))
    noise = event.event.noise_multiplier if isinstance(event, Repeated) else event.noise_multiplier
    assert 5.0 / noise == pytest.approx(clips, rel=0.1)  # and rounding
    assert 5.0 / noise >= clips


def test_two_people_report_otherwise_where_a_record_is_replaced():
    columns = {"label": "y", "numeric": {f"x{i}": {} for i in range(3)}}
    for name in ("ldp-laplace", "ldp-gaussian", "ss-simple", "ss-double", "ss-topk"):
        exchange = {"name": "shuffled" if name.startswith("ss") else "plain"}
        numbers = {"index_rate": 0.5} if name in ("ss-double", "ss-topk") else {}
        plan = planned({"name": name, "local_epsilon": 1.0, **numbers}, data=columns, exchange=exchange)
        one, two = (
            cost(replace(plan.promise, unit="record", relation=relation).event("record", View("public")), 1e-5).epsilon
            for relation in ("zero-out", "replace")
        )
        assert two > 1.9 * one
        assert plan.options.info.relation("record") == "zero-out"
