"""Files and frames become the same table, and bad ones are refused in one line."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.data.encode import as_numbers
from tacit.data.table import as_name, from_arrays, from_frame, match_names, numbers_in, read_file
from tests.refusals import refuses


def write(frame: pd.DataFrame, path: Path) -> Path:
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".npz":
        np.savez(path, **{name: frame[name].to_numpy() for name in frame if frame[name].dtype != object})
    else:
        frame.to_csv(path, index=False)
    return path


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.parquet", "t.npz"])
def test_every_format_gives_the_same_columns(tmp_path: Path, visits: pd.DataFrame, name: str) -> None:
    frame = visits.drop(columns=["clinic", "smoker"])
    table = read_file(write(frame, tmp_path / name))
    assert set(table.names) == set(frame.columns)
    assert table.rows == len(frame)
    for column in frame:
        np.testing.assert_allclose(numbers_in(table.read(column)), frame[column])


def test_a_wide_array_of_an_npz_becomes_columns_named_by_feature_names() -> None:
    wide = np.arange(6.0).reshape(3, 2)
    table = from_arrays({"X": wide, "feature_names": np.array(["a", "b"]), "y": np.array([0, 1, 1])})
    assert table.names == ("a", "b", "y")
    assert table.read("b").tolist() == [1, 3, 5]
    assert from_arrays({"X": wide}).names == ("X0", "X1")


def test_arrays_of_another_length_are_no_columns() -> None:
    table = from_arrays({"x": np.zeros(5), "silo_names": np.array(["a", "b"])})
    assert table.names == ("x",)


def test_gaps_in_nullable_columns_become_nan() -> None:
    table = from_frame(pd.DataFrame({"x": pd.array([1, None, 3], dtype="Int64")}))
    np.testing.assert_array_equal(numbers_in(table.read("x")), [1, np.nan, 3])


def test_the_word_none_in_a_csv_is_a_category_and_an_empty_cell_is_a_gap(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("glucose\nNone\n''\nNA\n")
    values = read_file(tmp_path / "t.csv").read("glucose")
    assert values[0] == "None"
    assert pd.isna(values[2])


def test_a_missing_column_is_answered_with_the_nearest_name(visits: pd.DataFrame) -> None:
    with refuses("unknown-name", "data.label", names=["'il'", "'ill'"]):
        from_frame(visits).column("il", "data.label")


def test_a_missing_file_is_refused() -> None:
    with refuses("file-not-found", "data.path", names=["nowhere.csv"]):
        read_file("nowhere.csv")


@pytest.mark.parametrize("name", ["t.parquet", "t.npz", "t.csv.gz"])
def test_a_corrupt_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"this is not what the ending says" * 9)
    with refuses("file-damaged", "data.path"):
        read_file(tmp_path / name)


@pytest.mark.parametrize("name", ["t.parquet", "t.npz", "t.csv.gz"])
def test_a_truncated_file_is_refused(tmp_path: Path, visits: pd.DataFrame, name: str) -> None:
    path = write(visits, tmp_path / name)
    path.write_bytes(path.read_bytes()[:-200])
    with refuses("file-damaged", "data.path"):
        read_file(path)


def test_an_npz_with_pickled_objects_is_not_unpickled(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", x=np.array([{"a": 1}], dtype=object))
    with refuses("file-damaged", "data.path"):
        read_file(tmp_path / "t.npz")


@pytest.mark.parametrize("text", ["", "a,b\n"])
def test_an_empty_table_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with refuses("empty", "data.path"):
        read_file(tmp_path / "t.csv")


def test_an_unknown_ending_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.xlsx").write_text("x")
    with refuses("wrong-file", "data.path"):
        read_file(tmp_path / "t.xlsx")


def test_two_columns_of_one_name_are_refused() -> None:
    with refuses("duplicate", "frame", names=["'a'"]):
        from_frame(pd.DataFrame([[1, 2]], columns=["a", "a"]))


def test_cells_with_a_leading_zero_are_names_and_other_cells_are_numbers(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("ward,hour,dose\n01,7,0.5\n02,,10\n11,12,0\n")
    table = read_file(tmp_path / "t.csv")
    assert table.read("ward").tolist() == ["01", "02", "11"]
    assert as_numbers(table.read("ward"), "ward").tolist() == [1, 2, 11]  # whoever declares them as numbers gets them
    np.testing.assert_array_equal(numbers_in(table.read("hour")), [7, np.nan, 12])
    assert match_names(table.read("dose"), ["0", "0.5", "10"])[0].tolist() == [1, 2, 0]


def test_two_columns_of_one_name_are_refused_in_a_csv_too(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("age,age\n1,2\n")
    with refuses("duplicate", "data.path", names=["'age'"]):
        read_file(tmp_path / "t.csv")


def test_a_csv_without_rows_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("age,ill\n")
    with refuses("empty", "data.path", names=["t.csv"]):
        read_file(tmp_path / "t.csv")


def test_a_text_among_numbers_is_the_value_that_is_shown(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("age\n51\n\n43 years\n")
    with refuses("wrong-type", "data.numeric", names=["'age'", "43 years"]):
        as_numbers(read_file(tmp_path / "t.csv").read("age"), "age")


@pytest.mark.parametrize("names", [("false", "true"), ("FALSE", "TRUE"), ("False", "True")])
def test_truth_values_go_by_the_declared_names(tmp_path: Path, names: tuple[str, str]) -> None:
    (tmp_path / "t.csv").write_text("ill\ntrue\nfalse\n")
    codes, unknown = match_names(read_file(tmp_path / "t.csv").read("ill"), names)
    assert (codes.tolist(), unknown) == ([1, 0], None)


def test_a_category_has_one_name_in_columns_of_numbers_and_of_text() -> None:
    numbers, text = np.array([1.0, 2.5, 1e5, 1e-5, np.nan]), np.array(["1.0", "2.50", "1E+05", "1e-05", "x"], object)
    names = ["1", "2.5", "100000", "0.00001"]
    assert match_names(numbers, names)[0].tolist() == [0, 1, 2, 3, -1]
    assert match_names(text, names)[0].tolist() == [0, 1, 2, 3, -1]
    assert match_names(np.array(["01"], dtype=object), ["1"])[0].tolist() == [-1]


@settings(max_examples=200)
@given(st.floats(-(2.0**53), 2.0**53) | st.integers(-(10**25), 10**25))
def test_a_name_is_the_exact_number_without_an_exponent(value: float) -> None:
    name = as_name(value)
    assert "e" not in name
    assert Decimal(name) == Decimal(repr(value))
    assert as_name(repr(value)) == as_name(f" +{name}" if value > 0 else name) == name


@pytest.mark.parametrize("text", ["01", "", ".", "-", "e5", "1e", "1_0", "x", "1e4000", "true", "0x1"])
def test_what_is_no_plain_number_is_a_name_as_it_is_written(text: str) -> None:
    assert as_name(text) == text
