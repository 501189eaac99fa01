"""Who is held out, and how much one person may bring."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.data.arrange import hold_out_records, hold_out_subjects, within_caps
from tacit.errors import UserError


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_held_out_subjects_leave_no_record_behind() -> None:
    subject = rng().integers(0, 50, 1000)
    test = hold_out_subjects(subject, 0.2, rng())
    assert not set(subject[test]) & set(subject[~test])
    assert len(set(subject[test])) == 10


def test_held_out_records_keep_the_shares_of_classes() -> None:
    labels = np.repeat([0, 1], [99_508, 492]).astype(np.int32)
    test = hold_out_records(rng().permutation(labels), 0.15, rng())
    assert test.sum() == 15_000
    labels = rng().permutation(labels)
    assert labels[hold_out_records(labels, 0.15, rng(1))].sum() == 74  # 73.8


def test_one_of_everything_stays_on_both_sides() -> None:
    assert hold_out_subjects(np.array([3, 3, 9]), 0.01, rng()).sum() in (1, 2)
    assert hold_out_records(np.array([0.5, 0.7], np.float32), 0.99, rng()).sum() == 1


def test_one_person_alone_cannot_be_split() -> None:
    with pytest.raises(UserError, match="only 1 subject"):
        hold_out_subjects(np.zeros(5, int), 0.2, rng())


ids = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=60)


@settings(deadline=None)
@given(ids, st.integers(1, 4), st.integers(1, 3))
def test_caps_hold_for_every_person(rows: list[tuple[int, int]], records: int, silos: int) -> None:
    subject, silo = np.array(rows, dtype=np.int32).T
    kept = within_caps(subject, silo, records=records, silos=silos)
    pairs, counts = np.unique(np.column_stack([subject, silo])[kept], axis=0, return_counts=True)
    assert counts.max() <= records
    assert np.bincount(pairs[:, 0]).max() <= silos
    assert set(subject[kept]) == set(subject)  # nobody vanishes


@settings(deadline=None)
@given(ids, st.integers(0, 5), st.integers(1, 4), st.integers(1, 3))
def test_what_is_kept_of_a_person_depends_on_that_person_alone(
    rows: list[tuple[int, int]], person: int, records: int, silos: int
) -> None:
    subject, silo = np.array(rows, dtype=np.int32).T
    mine = subject == person
    together = within_caps(subject, silo, records=records, silos=silos)[mine]
    alone = within_caps(subject[mine], silo[mine], records=records, silos=silos)
    np.testing.assert_array_equal(together, alone)


def test_the_fullest_silos_and_the_first_records_are_kept() -> None:
    subject = np.zeros(7, np.int32)
    silo = np.array([2, 0, 1, 2, 0, 2, 1], np.int32)
    assert within_caps(subject, silo, silos=2).tolist() == [True, True, False, True, True, True, False]
    assert within_caps(subject, silo, records=1).tolist() == [True, True, True, False, False, False, False]


def test_without_caps_everything_is_kept() -> None:
    assert within_caps(np.zeros(3, np.int32), np.arange(3, dtype=np.int32)).all()
