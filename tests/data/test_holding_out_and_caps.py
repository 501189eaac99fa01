"""Who is held out, and how much one person may bring."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tacit.data.load import held_out, within_caps
from tacit.data.options import Columns, DataOptions, Labels, NumericColumn
from tacit.data.sources import Declaration, identifier_keys, read_raw
from tacit.data.sources.tables import hold_out_records
from tacit.data.table import from_frame, read_file
from tests.refusals import refuses


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_a_fraction_is_held_out_by_lot_and_rows_of_one_key_stay_together() -> None:
    keys = rng().integers(0, 2**63, 20_000)
    test = held_out(np.repeat(keys, 2), 0.2, 0)
    assert abs(test.mean() - 0.2) < 5 * np.sqrt(0.16 / 20_000)
    assert (test[::2] == test[1::2]).all()
    other = held_out(np.repeat(keys, 2), 0.2, 1)
    assert abs((test & other).mean() - 0.04) < 0.01  # another seed is another lot


@settings(deadline=None)
@given(st.lists(st.integers(0, 10), min_size=2, max_size=40), st.integers(0, 39), st.booleans())
def test_nobody_s_absence_changes_whether_others_are_held_out(values: list[int], gone: int, named: bool) -> None:
    """A table with a row less, of a person or of nobody named: the others' lots stay, as a multiset where rows are
    equal."""
    frame = pd.DataFrame({"person": [f"p{v}" for v in values], "x": np.asarray(values) / 7, "y": 0.0})
    row = gone % len(values)
    less = frame[frame["person"] != frame["person"][row]] if named else frame.drop(index=row)
    assume(len(less) > 0)
    options = DataOptions(subjects={"column": "person"} if named else {}, silos={"assign": "uniform", "count": 2})
    declared = Declaration(Columns({"x": NumericColumn()}), label="y", labels=Labels("real"))

    def lots(table: pd.DataFrame) -> Counter[tuple[str, int]]:
        keys = read_raw(from_frame(table), declared, options).keys
        assert keys is not None
        return Counter(zip(table["person"], keys().tolist(), strict=True))

    before, after = lots(frame), lots(less)
    assert after <= before
    assert before.total() - after.total() == (len(frame) - len(less))


@pytest.mark.parametrize("odd", ["A7", "", "1.5"])
@pytest.mark.parametrize("column", ["person", "x"])
def test_an_odd_cell_of_one_row_changes_the_lots_of_no_other(tmp_path: Path, odd: str, column: str) -> None:
    """One cell decides the type of a whole column: integers become floats, or text."""
    people = [str(2**53 + k) for k in range(20)]
    frame = pd.DataFrame({"person": people, "x": [str(k % 3) for k in range(20)], "y": "0"})
    options = DataOptions(silos={"assign": "uniform", "count": 2})
    declared = Declaration(Columns({}), label="y", labels=Labels("real"))

    def keys(table: pd.DataFrame) -> list[int]:
        file = tmp_path / "table.csv"
        table.to_csv(file, index=False)
        read = read_file(file)
        if column == "person":
            return list(identifier_keys(read.identifiers("person", "")))
        found = read_raw(read, declared, options).keys
        assert found is not None
        return list(found())

    changed = frame.copy()
    changed.loc[19, column] = odd
    before, after = keys(frame), keys(changed)
    assert before[:19] == after[:19]
    assert before[19] != after[19]
    assert len(set(before)) == 20


@pytest.mark.parametrize("gone", range(10))
def test_rows_that_differ_in_how_a_cell_is_written_have_keys_of_their_own(gone: int) -> None:
    """Where two rows had one key, the second would have another one without the first."""
    frame = pd.DataFrame({"x": [1, "01", True, "true", 2**53 + 1, 2**53, "1.10", "1.1", "", None], "y": 0.0})
    options = DataOptions(silos={"assign": "uniform", "count": 2})
    declared = Declaration(Columns({}), label="y", labels=Labels("real"))

    def keys(table: pd.DataFrame) -> list[int]:
        found = read_raw(from_frame(table), declared, options).keys
        assert found is not None
        return list(found())

    others = keys(frame)
    del others[gone]
    assert keys(frame.drop(index=gone)) == others


def test_held_out_records_keep_the_shares_of_classes() -> None:
    labels = np.repeat([0, 1], [99_508, 492]).astype(np.int32)
    test = hold_out_records(rng().permutation(labels), 0.15, rng())
    assert test.sum() == 15_000
    labels = rng().permutation(labels)
    assert labels[hold_out_records(labels, 0.15, rng(1))].sum() == 74  # 73.8


def test_one_record_of_everything_stays_on_both_sides() -> None:
    assert hold_out_records(np.array([0, 1], np.int32), 0.99, rng()).sum() == 1


def test_a_lot_that_leaves_one_side_empty_is_refused() -> None:
    with refuses("empty", "data.test_fraction"):
        held_out(np.zeros(5, int), 0.2, 0)


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
