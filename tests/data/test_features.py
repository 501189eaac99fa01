"""Features are what is declared, computed from nothing private, and the same for new rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.data import DataOptions, FeatureEncoder, Federation, load
from tacit.data.options import Columns, NumericColumn
from tacit.data.table import match_names
from tacit.errors import Note
from tests.refusals import refuses

Read = Callable[..., Federation]
Refusal = Callable[..., None]


def put(column: str, value: object, rows: int = 3) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def edit(frame: pd.DataFrame) -> pd.DataFrame:
        frame[column] = frame[column].astype(object if isinstance(value, str) else frame[column].dtype)
        frame.loc[frame.index[:rows], column] = value
        return frame

    return edit


def test_declared_constants_standardise_and_categories_become_indicators(read: Read, visits: pd.DataFrame) -> None:
    federation = read()
    assert federation.feature_names == ("age", "pressure", "smoker=no", "smoker=yes")
    assert federation.train.features.dtype == np.float32
    smokes = visits["smoker"] == "yes"
    wanted = np.column_stack([(visits["age"] - 50) / 10, (visits["pressure"] - 130) / 15, ~smokes, smokes])
    assert federation.encoder is not None
    np.testing.assert_allclose(federation.encoder.encode(visits), wanted, rtol=1e-5, atol=1e-6)


def test_declared_features_of_a_row_do_not_depend_on_other_rows(read: Read, visits: pd.DataFrame) -> None:
    encoder = read().encoder
    assert encoder is not None
    np.testing.assert_array_equal(encoder.encode(visits.iloc[:7]), encoder.encode(visits)[:7])


def test_plain_names_without_constants_change_nothing(read: Read, visits: pd.DataFrame) -> None:
    encoder = read(numeric=["age"], categorical={}).encoder
    assert encoder is not None
    np.testing.assert_allclose(encoder.encode(visits)[:, 0], visits["age"], rtol=1e-6)


def test_none_leaves_numbers_as_they_are(read: Read, visits: pd.DataFrame) -> None:
    encoder = read(standardize="none").encoder
    assert encoder is not None
    np.testing.assert_allclose(encoder.encode(visits)[:, 1], visits["pressure"], rtol=1e-6)


def test_per_silo_gives_every_silo_mean_zero_and_deviation_one(read: Read) -> None:
    federation = read(standardize="per-silo")
    for silo in federation.silos:
        mine = federation.train.features[silo.start : silo.stop, :2].astype(float)
        np.testing.assert_allclose(mine.mean(axis=0), 0, atol=1e-5)
        np.testing.assert_allclose(mine.std(axis=0, ddof=1), 1, atol=1e-5)


def test_per_silo_constants_come_from_training_rows_alone(read: Read, visits: pd.DataFrame) -> None:
    federation = read(standardize="per-silo")
    assert federation.encoder is not None
    ages, clinics = federation.encoder.encode(visits)[:, 0], visits["clinic"].to_numpy()
    assert abs(float(ages[clinics == "north"].mean())) > 1e-4
    np.testing.assert_allclose(
        np.sort(np.concatenate([federation.train.features[:, 0], federation.test.features[:, 0]])), np.sort(ages)
    )


def test_a_constant_column_survives_per_silo(read: Read) -> None:
    federation = read(lambda frame: frame.assign(age=40.0), standardize="per-silo")
    assert (federation.train.features[:, 0] == 0).all()


def test_per_silo_refuses_rows_of_an_unknown_silo(read: Read, visits: pd.DataFrame) -> None:
    encoder = read(standardize="per-silo").encoder
    assert encoder is not None
    with refuses("undeclared-value", "data.silos.column", names=["east"]):
        encoder.encode(visits.assign(clinic="east"))


@pytest.mark.parametrize("standardize", ["declared", "per-silo", "none"])
def test_an_encoder_survives_json(read: Read, visits: pd.DataFrame, standardize: str) -> None:
    encoder = read(standardize=standardize).encoder
    assert encoder is not None
    again = FeatureEncoder.from_dict(json.loads(json.dumps(encoder.to_dict())))
    np.testing.assert_array_equal(again.encode(visits), encoder.encode(visits))


def test_missing_values_are_refused_by_default(refusal: Refusal) -> None:
    refusal("missing-values", "data.numeric", put("age", np.nan), names=["age", "3 rows"])
    refusal("missing-values", "data.categorical", put("smoker", None), names=["smoker", "3 rows"])


def test_center_puts_gaps_on_the_mean_and_on_no_category(read: Read, visits: pd.DataFrame) -> None:
    encoder = read(missing="center").encoder
    assert encoder is not None
    gap = visits.iloc[:1].assign(age=np.nan, smoker=None)
    assert encoder.encode(gap)[0, [0, 2, 3]].tolist() == [0, 0, 0]


def test_a_column_may_declare_what_stands_in_for_a_gap(read: Read, visits: pd.DataFrame) -> None:
    encoder = read(numeric={"age": {"mean": 50, "scale": 10, "missing": 70}}, categorical={}).encoder
    assert encoder is not None
    assert encoder.encode(visits.iloc[:1].assign(age=np.nan))[0, 0] == 2


def test_infinite_values_are_always_refused(refusal: Refusal) -> None:
    refusal("not-finite", "data.numeric", put("age", np.inf), missing="center", names=["age", "3 rows"])


def test_numbers_beyond_float32_are_refused(refusal: Refusal) -> None:
    refusal("out-of-range", "data.numeric", put("age", 1e300), names=["age"])


def test_a_category_outside_the_declared_ones_is_refused(refusal: Refusal) -> None:
    refusal("undeclared-value", "data.categorical", put("smoker", "sometimes"), names=["smoker", "sometimes"])


def test_text_among_undeclared_columns_asks_for_its_categories(refusal: Refusal) -> None:
    refusal("wrong-type", "data.numeric", numeric=None, categorical={}, names=["data.categorical.smoker"])


def test_without_a_declaration_every_other_column_is_numeric(read: Read) -> None:
    federation = read(numeric=None)
    assert federation.feature_names == ("age", "pressure", "smoker=no", "smoker=yes")


@pytest.mark.parametrize("column", ["ill", "person"])
def test_the_label_and_the_person_cannot_be_features(refusal: Refusal, column: str) -> None:
    refusal("conflict", "data.numeric", numeric=["age", column], names=[column])


def test_a_misspelt_feature_is_answered_with_the_nearest_name(refusal: Refusal) -> None:
    refusal("unknown-name", "data.numeric", numeric=["presure"], names=["pressure"])


def test_a_schema_file_declares_the_same_columns(read: Read, tmp_path: Path) -> None:
    schema = tmp_path / "columns.toml"
    schema.write_text(
        "[numeric]\nage = { mean = 50, scale = 10 }\npressure = { mean = 130, scale = 15 }\n"
        '[categorical]\nsmoker = ["no", "yes"]\n'
    )
    plain = read()
    by_schema = read(numeric=None, categorical={}, schema=str(schema))
    np.testing.assert_array_equal(by_schema.train.features, plain.train.features)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("[numeric", "file-damaged"),
        ("[numeric]\nage = { scale = 0 }", "invalid-value"),
        ("[numbers]\nage = {}", "unknown-key"),
    ],
)
def test_a_faulty_schema_file_is_refused(refusal: Refusal, tmp_path: Path, text: str, code: str) -> None:
    schema = tmp_path / "columns.toml"
    schema.write_text(text)
    refusal(code, "data.schema", numeric=None, categorical={}, schema=str(schema), names=["columns.toml"])


def test_categories_match_numbers_whatever_their_type() -> None:
    for values in (np.array([2, 1]), np.array([2.0, 1.0]), np.array(["2", "1"], dtype=object)):
        codes, unknown = match_names(values, ("1", "2"))
        assert codes.tolist() == [1, 0]
        assert unknown is None


@settings(deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20), st.floats(-100, 100), st.floats(0.01, 100))
def test_encoding_is_the_declared_line(values: list[float], mean: float, scale: float) -> None:
    encoder = FeatureEncoder(Columns({"x": NumericColumn(mean=mean, scale=scale)}))
    features = encoder.encode(pd.DataFrame({"x": values}))
    np.testing.assert_allclose(features[:, 0], ((np.array(values) - mean) / scale).astype(np.float32), rtol=1e-5)


def test_a_large_table_is_built_without_a_wide_copy_of_doubles() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(2000, 5)).astype(np.float32), columns=list("abcde"))
    frame = frame.assign(y=rng.integers(0, 2, 2000), bank=rng.integers(0, 4, 2000))
    federation = load(DataOptions(label="y", silos={"column": "bank"}), frame=frame)
    assert federation.train.features.flags.c_contiguous
    assert federation.train.features.base is None


def test_an_indicator_says_where_a_number_is_missing(read):
    def gaps(frame):
        frame.loc[::7, "age"] = np.nan
        return frame

    numeric = {"age": {"mean": 50, "scale": 10, "indicator": True}, "pressure": {"mean": 130, "scale": 15}}
    federation = read(gaps, numeric=numeric, missing="center")
    assert federation.feature_names == ("age", "pressure", "age is missing", "smoker=no", "smoker=yes")
    missing = federation.train.features[:, 2] == 1
    assert 0 < missing.sum() < len(missing)
    assert (federation.train.features[missing, 0] == 0).all()
    assert (federation.train.features[~missing, 2] == 0).all()
    assert (federation.train.features[:, 3:].sum(axis=1) == 1).all()


def test_rows_with_gaps_that_no_rule_fills_are_dropped_where_that_is_said(read, visits):
    def gaps(frame):
        frame.loc[0, "ill"] = np.nan
        frame.loc[1, "person"] = np.nan
        frame.loc[2, "clinic"] = np.nan
        frame.loc[3, "age"] = np.nan
        frame.loc[4, "smoker"] = None
        return frame

    def rows(**settings):
        found = read(gaps, drop_missing=True, **settings)
        return len(found.train) + len(found.test)

    assert rows() == len(visits) - 5
    assert rows(missing="center") == len(visits) - 3


def test_all_problems_of_a_table_are_told_at_once_with_counts(refusal):
    def spoiled(frame):
        frame = frame.astype({"age": object, "smoker": object})
        frame.loc[:2, "ill"] = 7
        frame.loc[4, "person"] = np.nan
        frame.loc[5:8, "age"] = "old"
        frame.loc[9:10, "smoker"] = "perhaps"
        return frame

    listed = ["5 problems", "data.label", "3 rows", "data.subjects.column", "1 rows", "'age'", "4 rows", "'smoker'"]
    numeric = {"age": {}, "pressure": {}, "weight": {}}
    refusal("several", "data", spoiled, numeric=numeric, names=[*listed, "2 rows", "'weight'", "[unknown-name]"])


@pytest.mark.parametrize(("name", "values"), [("visit_id", 1.5), ("number", range(100, 100 + 10**6))])
def test_an_identifier_is_no_feature_that_is_taken_without_being_named(read, visits, name, values):
    def with_identifier(frame):
        return frame.assign(**{name: values if isinstance(values, float) else list(values)[: len(frame)]})

    with refuses("missing", "data.numeric", names=[f"'{name}'"]):
        read(with_identifier, numeric=None)
    with pytest.warns(Note):
        assert read(numeric=None).feature_names[:2] == ("age", "pressure")
