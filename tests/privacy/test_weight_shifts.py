"""Weights that depend on what other silos hold: the largest shift, against every case of small worlds."""

from __future__ import annotations

import math
import time
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.privacy import Gaussian, Repeated, account
from tacit.privacy.invalid import InvalidArgument
from tacit.privacy.proofs.weight_shifts import (
    largest_shift,
    largest_slot_record_shift,
    largest_slot_shift,
    shared_slots,
    slot_record_shift,
    slot_shift,
)
from tacit.privacy.proofs.weight_tables import RECORD_WEIGHTS, WeightTable
from tests.refusals import refuses

SILOS, RECORDS = 5, 20
PHANTOM, ONE_OVER_N = (WeightTable(kind, 200).floats() for kind in ("records-phantom", "records"))


def table_of(kind: str, most: int, **changes) -> WeightTable:
    cap = {"cap": max(1, most // 3)} if kind == "records-capped" else {}
    return WeightTable(kind, most, **(cap | changes))


def epsilon(shift: float, colluding: int = 0) -> float:
    """Noise 5, 100 rounds, 5 silos, delta 1e-5."""
    left = SILOS / (SILOS - colluding)
    return account(Repeated(Gaussian(5.0 / (shift * math.sqrt(left))), 100), 1e-5).epsilon


@pytest.mark.parametrize(
    ("table", "colluding", "shift", "expected"),
    [
        (PHANTOM, 1, 1.7077, 22.91),
        (PHANTOM, 3, 1.6, 33.66),
        (ONE_OVER_N, 1, 1.975, 27.90),
        (ONE_OVER_N, 3, 1.951, 44.59),
    ],
)
def test_curious_silos_with_weights_of_all_records(table, colluding, shift, expected):
    found = largest_shift(table, (SILOS - colluding) * RECORDS, colluding * RECORDS)
    assert found == pytest.approx(shift, abs=5e-4)
    assert epsilon(found, colluding) == pytest.approx(expected, abs=5e-3)


def test_a_subject_of_a_hundred_records_who_shares_a_slot_with_any_others():
    found = largest_shift(PHANTOM, 100, 100)
    assert found == pytest.approx(1.736, abs=5e-4)
    assert epsilon(found) == pytest.approx(20.19, abs=5e-3)
    assert epsilon(1.0) == pytest.approx(9.997, abs=5e-4)


@pytest.mark.parametrize("seed", range(5))
def test_any_table_is_searched_completely(seed):
    table = np.random.default_rng(seed).random(13)
    expected = max(n * table[n + r] + r * abs(table[r] - table[n + r]) for n, r in product(range(1, 8), range(6)))
    assert largest_shift(table, 7, 5) == pytest.approx(expected, rel=1e-12)


def test_a_table_of_ten_thousand_records_is_searched_in_seconds():
    began = time.process_time()
    assert 1.97 < largest_shift(WeightTable("records-phantom", 20_000).floats(), 10_000, 10_000) < 2
    assert time.process_time() - began < 10


@pytest.mark.parametrize("table", [[1.0, 0.5], [1.0, 0.5, math.nan, 0.1], [1.0, 0.5, -0.1, 0.1]])
def test_a_table_that_is_too_short_or_no_weights_is_refused(table):
    code, field = ("wrong-length", "table") if len(table) == 2 else ("out-of-range", "weights")
    with refuses(code, field, InvalidArgument):
        largest_shift(table, 2, 1)


# -- slots that subjects share, and silos with more records in a slot than they use


def weights(table: np.ndarray, counts: np.ndarray, records: int) -> np.ndarray:
    """The weights of ``counts [silos, subjects]`` of one slot: an overfull one counts as full and is not used."""
    held = counts.sum(axis=1, keepdims=True)
    return np.where(held <= records, counts, 0) * table[np.minimum(held, records).sum()]


def moved(table: np.ndarray, before: np.ndarray, after: np.ndarray, records: int) -> float:
    """By how many clips a sum moves: parts of one subject in different silos, and of others, may point anywhere."""
    return float(np.abs(weights(table, before, records) - weights(table, after, records)).sum())


def moved_by_record(table: np.ndarray, before: np.ndarray, records: int) -> float:
    """One record of the first subject leaves the first silo, and its part there turns around."""
    after = before.copy()
    after[0, 0] -= 1
    one, other = weights(table, before, records), weights(table, after, records)
    return float(np.abs(one - other).sum() - abs(one[0, 0] - other[0, 0]) + one[0, 0] + other[0, 0])


@pytest.mark.parametrize(("colluding", "shift"), [(0, 1.7445), (1, 1.7077), (3, 1.6)])
def test_a_subject_with_a_phantom_record_in_a_slot(colluding, shift):
    assert slot_shift(table_of("records-phantom", 100), SILOS, RECORDS, colluding) == pytest.approx(shift, abs=5e-5)


@pytest.mark.parametrize(
    ("kind", "cap", "subject", "silo", "record"),
    [
        ("records", None, 1.98, 1.9753, 2.0),  # 2 - 2 / (S R): one record of another subject; 160 / 81
        ("records-phantom", None, 1.7445, 1.7077, 1.9048),
        ("records-sqrt", None, 0.8 + 0.2**0.5, 60 / 8000**0.5 + 0.2**0.5, 2 * 0.2**0.5),
        ("records-capped", 10, 1.8, 1.7778, 2.0),
    ],
)
def test_every_table_in_a_slot(kind, cap, subject, silo, record):
    table = WeightTable(kind, SILOS * RECORDS, cap)
    assert slot_shift(table, SILOS, RECORDS) == pytest.approx(subject, abs=5e-5)
    assert slot_shift(table, SILOS, RECORDS, 1) == pytest.approx(silo, abs=5e-5)
    assert slot_record_shift(table, SILOS, RECORDS) == pytest.approx(record, abs=5e-5)


@pytest.mark.parametrize("kind", RECORD_WEIGHTS)
@pytest.mark.parametrize(("silos", "records", "curious"), [(2, 2, 0), (2, 3, 1), (3, 2, 0), (3, 2, 1), (3, 2, 2)])
def test_the_worst_of_all_small_worlds_moves_a_slot_by_the_bound(kind, silos, records, curious):
    """All counts of the subject, and of others in its slot up to one more than fit."""
    table, found = table_of(kind, silos * records), 0.0
    for own in product(range(records + 1), repeat=silos):
        for others in product(range(records + 2), repeat=silos):
            before = np.array([own, others]).T
            after = before.copy()
            after[curious:, 0] = 0
            found = max(found, moved(table.floats(), before, after, records))
    assert found == pytest.approx(slot_shift(table, silos, records, curious), rel=1e-12)


@pytest.mark.parametrize("kind", RECORD_WEIGHTS)
@pytest.mark.parametrize(("silos", "records"), [(2, 2), (2, 3), (3, 2)])
def test_the_worst_of_all_small_worlds_moves_a_slot_by_the_bound_of_a_record(kind, silos, records):
    table = table_of(kind, silos * records)
    found = 2 * records * float(table.floats()[records])  # a replaced record turns R of them around
    for own in product(range(records + 1), repeat=silos):
        for others in product(range(records + 2), repeat=silos):
            if own[0] > 0:
                found = max(found, moved_by_record(table.floats(), np.array([own, others]).T, records))
    assert found == pytest.approx(slot_record_shift(table, silos, records), rel=1e-12)


@st.composite
def slots(draw) -> tuple[WeightTable, np.ndarray, int, int]:
    """A table, a slot of several subjects with more records than fit some silos, R, and the number of curious silos."""
    silos, records, subjects = draw(st.integers(2, 6)), draw(st.integers(1, 9)), draw(st.integers(1, 4))
    kind, bits = draw(st.sampled_from(RECORD_WEIGHTS)), draw(st.sampled_from([None, 4, 8, 24]))
    cap = {"cap": draw(st.integers(1, 2 * silos * records))} if kind == "records-capped" else {}
    # few records of the others leave room for the subject's
    counts = st.lists(st.integers(0, records) | st.integers(0, 1), min_size=subjects, max_size=subjects)
    world = np.array(draw(st.lists(counts, min_size=silos, max_size=silos)))
    return WeightTable(kind, silos * records, bits=bits, **cap), world, records, draw(st.integers(0, silos - 1))


def rounded(table: WeightTable) -> np.ndarray:
    return table.floats() if table.bits is None else table.integers(table.bits) / 2.0**table.bits


@settings(max_examples=500, deadline=None)
@given(slots())
def test_no_slot_of_several_subjects_moves_further_than_the_bound(slot):
    table, before, records, curious = slot
    after = before.copy()
    after[curious:, 0] = 0
    bound = slot_shift(table, len(before), records, curious)
    assert moved(rounded(table), before, after, records) <= bound + 1e-12


@settings(max_examples=500, deadline=None)
@given(slots())
def test_no_record_moves_a_slot_of_several_subjects_further_than_the_bound(slot):
    table, before, records, _ = slot
    before[0, 0] = max(1, before[0, 0])
    bound = slot_record_shift(table, len(before), records)
    assert moved_by_record(rounded(table), before, records) <= bound + 1e-12


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 6), st.integers(1, 12), st.sampled_from(RECORD_WEIGHTS), st.data())
def test_a_world_that_is_built_for_it_moves_a_slot_by_the_bound(silos, records, kind, data):
    """Others fill j silos, where the subject has one record more. They have r records elsewhere, it has the rest."""
    table = table_of(kind, silos * records)
    curious = data.draw(st.integers(0, silos - 1))
    found = 0.0
    for overfull, r in product(range(silos - curious + 1), range(silos * records + 1)):
        room = silos - overfull
        if r > room * records:
            continue
        # from the front: the curious silos first, the overfull ones last
        others = np.r_[np.clip(r - records * np.arange(room), 0, records), np.full(overfull, records)]
        own = np.r_[records - others[:room], np.ones(overfull, int)]
        own[:curious] = 0
        before = np.stack([own, others], axis=1)
        after = before.copy()
        after[:, 0] = 0
        found = max(found, moved(table.floats(), before, after, records))
    assert found == pytest.approx(slot_shift(table, silos, records, curious), rel=1e-12)


@pytest.mark.parametrize(("silos", "records"), [(200, 40), (100, 81), (2, 4095)])
def test_the_largest_tables_are_searched_in_a_moment(silos, records):
    table = WeightTable("records-sqrt", silos * records)
    began = time.process_time()
    assert 0.8 < largest_slot_shift(table.floats(), silos, records, 1) < 2
    assert 0 < largest_slot_record_shift(table.floats(), silos, records) < 2
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    "table",
    [
        [0.0, 0.1, 0.2, 0.2, 0.2],  # increases
        [0.0, 0.5, 0.2, 0.2, 0.2],  # N f(N) decreases
        [0.0, 0.4, 0.4, 0.4, 0.4],  # N f(N) is more than 1
    ],
)
def test_tables_that_the_proof_does_not_cover_are_refused(table):
    for search in (largest_slot_shift, largest_slot_record_shift):
        with refuses("out-of-range", "weights", InvalidArgument):
            search(table, 2, 2)


def test_the_expected_share_of_subjects_who_share_a_slot():
    assert shared_slots(1, 10) == 0
    assert shared_slots(1000, 10_000) == pytest.approx(0.0951, abs=1e-4)
