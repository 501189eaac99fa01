"""Weights that depend on what other silos hold: the largest shift, against every case of small worlds."""

from __future__ import annotations

import math
import time
from itertools import product

import numpy as np
import pytest

from tacit.privacy import Gaussian, Repeated, account
from tacit.privacy.invalid import InvalidArgument
from tacit.privacy.proofs.weight_shifts import (
    largest_shift,
    phantom_weights,
    shared_slots,
    slot_record_shift,
    slot_shift,
)
from tests.refusals import refuses

ONE_OVER_N = np.r_[1.0, 1.0 / np.arange(1, 201)]
SILOS, RECORDS = 5, 20


def epsilon(shift: float, colluding: int = 0) -> float:
    """Noise 5, 100 rounds, 5 silos, delta 1e-5."""
    left = SILOS / (SILOS - colluding)
    return account(Repeated(Gaussian(5.0 / (shift * math.sqrt(left))), 100), 1e-5).epsilon


@pytest.mark.parametrize(
    ("table", "colluding", "shift", "expected"),
    [
        (phantom_weights(200), 1, 1.7077, 22.91),
        (phantom_weights(200), 3, 1.6, 33.66),
        (ONE_OVER_N, 1, 1.975, 27.90),
        (ONE_OVER_N, 3, 1.951, 44.59),
    ],
)
def test_curious_silos_with_weights_of_all_records(table, colluding, shift, expected):
    found = largest_shift(table, (SILOS - colluding) * RECORDS, colluding * RECORDS)
    assert found == pytest.approx(shift, abs=5e-4)
    assert epsilon(found, colluding) == pytest.approx(expected, abs=5e-3)


def test_a_subject_of_a_hundred_records_who_shares_a_slot_with_any_others():
    found = largest_shift(phantom_weights(200), 100, 100)
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
    assert 1.97 < largest_shift(phantom_weights(20_000), 10_000, 10_000) < 2
    assert time.process_time() - began < 10


@pytest.mark.parametrize("table", [[1.0, 0.5], [1.0, 0.5, math.nan, 0.1], [1.0, 0.5, -0.1, 0.1]])
def test_a_table_that_is_too_short_or_no_weights_is_refused(table):
    code, field = ("wrong-length", "table") if len(table) == 2 else ("out-of-range", "weights")
    with refuses(code, field, InvalidArgument):
        largest_shift(table, 2, 1)


def weights(counts: np.ndarray, records: int) -> np.ndarray:
    """The weights of ``counts [silos, subjects]`` of one slot: an overfull one counts as full and is not used."""
    held = counts.sum(axis=1, keepdims=True)
    return np.where(held <= records, counts, 0) / (1 + np.minimum(held, records).sum())


@pytest.mark.parametrize(("silos", "records", "curious"), [(2, 2, 0), (2, 3, 1), (3, 2, 0), (3, 2, 1), (3, 2, 2)])
def test_no_small_world_moves_a_slot_further(silos, records, curious):
    """All counts of the subject, and of others in its slot up to one more than fit."""
    bound, found = slot_shift(silos, records, curious), 0.0
    for own in product(range(records + 1), repeat=silos):
        for others in product(range(records + 2), repeat=silos):
            before = np.array([own, others]).T
            after = before.copy()
            after[curious:, 0] = 0
            # the parts of one subject in different silos, and of two subjects, may point anywhere
            found = max(found, float(np.abs(weights(before, records) - weights(after, records)).sum()))
    assert found <= bound + 1e-12
    assert found >= 0.8 * bound


@pytest.mark.parametrize(("silos", "records"), [(2, 2), (2, 3), (3, 2)])
def test_no_small_world_moves_a_slot_further_by_one_record(silos, records):
    bound = slot_record_shift(silos, records)
    for own in product(range(records + 1), repeat=silos):
        for others in product(range(records + 2), repeat=silos):
            before = np.array([own, others]).T
            if own[0] == 0:
                continue
            after = before.copy()
            after[0, 0] -= 1
            one, other = weights(before, records), weights(after, records)
            # the subject's vector in the first silo may turn around, the others stay
            shift = np.abs(one - other).sum() - abs(one[0, 0] - other[0, 0]) + one[0, 0] + other[0, 0]
            assert shift <= bound + 1e-12


def test_the_expected_share_of_subjects_who_share_a_slot():
    assert shared_slots(1, 10) == 0
    assert shared_slots(1000, 10_000) == pytest.approx(0.0951, abs=1e-4)
