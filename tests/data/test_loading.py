"""From options to a federation: order, numbering, promises, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tacit.data import DataOptions, Federation, load
from tests.refusals import refuses

Read = Callable[..., Federation]
Refusal = Callable[..., None]


def test_training_rows_are_grouped_by_silo_then_subject(read: Read) -> None:
    train = read().train
    order = np.lexsort((train.subject, train.silo))
    np.testing.assert_array_equal(order, np.arange(len(train)))


def test_silos_are_views_that_cover_every_training_row_once(read: Read) -> None:
    federation = read()
    assert [silo.name for silo in federation.silos] == ["north", "south", "west"]
    assert sum(len(silo) for silo in federation.silos) == len(federation.train)
    for silo in federation.silos:
        for person, start, stop in zip(silo.subjects, silo.offsets[:-1], silo.offsets[1:], strict=True):
            assert (federation.train.subject[start:stop] == person).all()


def test_a_subject_has_the_same_key_and_the_same_lot_whoever_else_is_there(read: Read) -> None:
    everybody = read()
    for person in (0, 7, 30):  # the first in the table, and others
        fewer = read(lambda visits, gone=person: visits[visits.person != gone])
        assert everybody.subject_count == fewer.subject_count + 1 == 60
        for before, after in ((everybody.train, fewer.train), (everybody.test, fewer.test)):
            kept = np.isin(before.subject, after.subject)
            np.testing.assert_array_equal(before.subject[kept], after.subject)
            np.testing.assert_array_equal(before.features[kept], after.features)
    assert everybody.held_out == "subjects"


def test_rows_stay_whole(read: Read, visits: pd.DataFrame) -> None:
    federation = read()
    sums = visits.assign(age=(visits["age"] - 50) / 10).groupby("clinic")["age"].sum()
    features = np.concatenate([federation.train.features, federation.test.features])
    silo = np.concatenate([federation.train.silo, federation.test.silo])
    for k, name in enumerate(federation.silo_names):
        assert features[silo == k, 0].sum() == pytest.approx(sums[name], abs=1e-3)
    key = {tuple(row) for row in np.round(federation.encoder.encode(visits), 4)}  # type: ignore[union-attr]
    assert {tuple(row) for row in np.round(features, 4)} == key


def test_the_same_seed_gives_the_same_federation_and_another_does_not(visits: pd.DataFrame) -> None:
    options = DataOptions(
        label="ill", numeric=["age"], subjects={"assign": "zipf", "count": 20}, silos={"assign": "zipf", "count": 3}
    )
    first, again, other = (load(options, frame=visits, seed=seed) for seed in (4, 4, 5))
    for name in ("features", "labels", "subject", "silo"):
        np.testing.assert_array_equal(getattr(first.train, name), getattr(again.train, name))
    assert not np.array_equal(first.train.features, other.train.features)


def test_the_seed_of_the_data_section_wins(visits: pd.DataFrame) -> None:
    options = DataOptions(label="ill", numeric=["age"], silos={"column": "clinic"}, seed=9)
    one, two = (load(options, frame=visits, seed=seed) for seed in (1, 2))
    np.testing.assert_array_equal(one.train.features, two.train.features)


def test_who_is_held_out_does_not_depend_on_the_number_of_silos(visits: pd.DataFrame) -> None:
    def held_out(count: int) -> np.ndarray:
        options = DataOptions(label="ill", numeric=["age"], silos={"assign": "uniform", "count": count})
        return np.sort(load(options, frame=visits).test.features[:, 0])

    np.testing.assert_array_equal(held_out(2), held_out(7))


def test_without_people_every_record_is_its_own_subject(read: Read) -> None:
    federation = read(subjects={})
    assert federation.subject_count == 600
    assert federation.held_out == "records"
    assert len(np.unique(federation.train.subject)) == len(federation.train)


def test_assigned_people_are_held_out_by_record_and_own_training_rows_only(read: Read) -> None:
    federation = read(subjects={"assign": "uniform", "count": 30})
    assert federation.held_out == "records"
    assert len(np.unique(federation.train.subject)) == 30
    assert len(np.unique(federation.test.subject)) == len(federation.test)
    assert 90 < len(federation.test) < 150  # a fifth of 600, by lot
    assert not set(federation.train.subject) & set(federation.test.subject)


def test_with_assigned_silos_test_rows_are_spread_over_all_of_them(read: Read) -> None:
    federation = read(silos={"assign": "zipf", "count": 4})
    assert federation.silo_names == ("silo 1", "silo 2", "silo 3", "silo 4")
    assert set(federation.test.silo) == {0, 1, 2, 3}


def test_caps_bound_what_a_person_brings(visits: pd.DataFrame, read: Read) -> None:
    options = DataOptions(label="ill", numeric=["age"], subjects={"column": "person"}, silos={"column": "clinic"})
    capped = load(options, frame=visits, max_records_per_subject_and_silo=2, max_silos_per_subject=1)
    assert np.unique(capped.train.subject, return_counts=True)[1].max() == 2
    assert len(capped.test) == len(load(options, frame=visits).test)


def test_a_cap_on_silos_that_is_a_promise_is_refused_where_the_data_break_it(visits: pd.DataFrame) -> None:
    options = DataOptions(label="ill", numeric=["age"], subjects={"column": "person"}, silos={"column": "clinic"})
    most = int(visits.groupby("person")["clinic"].nunique().max())
    kept = load(options, frame=visits, max_silos_per_subject=most, over_silo_cap="refuse")
    assert len(kept.train) == len(load(options, frame=visits).train)
    visits.loc[::10, "clinic"] = "east"
    with refuses("mismatch", "privacy.max_silos_per_subject"):
        load(options, frame=visits, max_silos_per_subject=most, over_silo_cap="refuse")


def test_a_file_and_a_frame_load_alike(visits: pd.DataFrame, tmp_path: Path, read: Read) -> None:
    visits.to_parquet(tmp_path / "t.parquet")
    options = {"label": "ill", "subjects": {"column": "person"}, "silos": {"column": "clinic"}, "numeric": ["age"]}
    from_file = load(DataOptions(path=str(tmp_path / "t.parquet"), **options))
    np.testing.assert_array_equal(from_file.train.features, load(DataOptions(**options), frame=visits).train.features)


def test_numbered_silos_come_in_numeric_order(read: Read) -> None:
    federation = read(lambda frame: frame.assign(clinic=np.arange(600) % 3 * 5 + 5))
    assert federation.silo_names == ("5", "10", "15")


def test_data_without_silos_are_refused(refusal: Refusal) -> None:
    refusal("missing", "data.silos", silos={})


def test_a_single_silo_is_refused(refusal: Refusal) -> None:
    refusal("too-few", "data.silos", lambda frame: frame.assign(clinic="north"), names=["'north'"])


def test_a_silo_without_a_training_record_is_refused(visits: pd.DataFrame) -> None:
    visits.loc[::10, "clinic"] = "east"  # one of everybody's ten records: nobody's fullest silo
    options = DataOptions(label="ill", numeric=["age"], subjects={"column": "person"}, silos={"column": "clinic"})
    assert load(options, frame=visits).silo_count == 4
    with refuses("empty", "data.silos", names=["east"]):
        load(options, frame=visits, max_silos_per_subject=1)


def test_a_promised_number_of_silos_must_be_kept(refusal: Refusal) -> None:
    refusal("mismatch", "data.silos.count", silos={"column": "clinic", "count": 5})


def test_more_people_than_promised_are_refused_and_fewer_are_fine(refusal: Refusal, read: Read) -> None:
    refusal("mismatch", "data.subjects.count", subjects={"column": "person", "count": 10}, names=["50"])
    assert read(subjects={"column": "person", "count": 1000}).subject_count == 60


@pytest.mark.parametrize(("setting", "column"), [("subjects", "person"), ("silos", "clinic")])
def test_a_row_without_owner_or_home_is_refused(refusal: Refusal, setting: str, column: str) -> None:
    def forget(frame: pd.DataFrame) -> pd.DataFrame:
        frame[column] = frame[column].astype(object)
        frame.loc[:4, column] = None
        return frame

    refusal("missing-values", f"data.{setting}.column", forget, names=[f"'{column}'", "5 rows"])


def test_labels_per_subject_is_for_assigned_people(refusal: Refusal, read: Read) -> None:
    refusal("no-effect", "data.labels_per_subject", labels_per_subject=1)
    federation = read(subjects={"assign": "uniform", "count": 30}, labels_per_subject=1)
    pairs = np.unique(np.column_stack([federation.train.subject, federation.train.labels]), axis=0)
    assert len(pairs) == 30


def test_an_empty_frame_is_refused(refusal: Refusal) -> None:
    refusal("empty", "frame", lambda frame: frame.iloc[:0])


def test_no_table_at_all_is_refused(refusal: Refusal) -> None:
    refusal("missing", "data.path", lambda frame: None)  # type: ignore[arg-type, return-value]


def test_one_silo_is_loaded_where_it_is_declared(visits):
    found = load(DataOptions(label="ill", silos={"count": 1}, numeric=("age",)), frame=visits)
    assert found.silo_names == ("silo 1",)
    assert not found.train.silo.any()
    named = visits.assign(clinic="north")
    found = load(DataOptions(label="ill", silos={"column": "clinic", "count": 1}, numeric=("age",)), frame=named)
    assert found.silo_names == ("north",)
