"""Files and frames become the same table, and bad ones are refused in one line."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.data.encode import as_numbers
from tacit.data.table import (
    TextFormat,
    as_name,
    days_in,
    from_arrays,
    from_frame,
    match_names,
    numbers_in,
    read_file,
    read_names,
)
from tests.refusals import refuses


def write(frame: pd.DataFrame, path: Path) -> Path:
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix == ".feather":
        frame.to_feather(path)
    elif path.suffix == ".arrow":
        content = pa.Table.from_pandas(frame)
        with pa.ipc.new_stream(path, content.schema) as stream:
            stream.write_table(content)
    elif path.suffix == ".xlsx":
        frame.to_excel(path, index=False)
    elif ".tsv" in path.suffixes:
        frame.to_csv(path, index=False, sep="\t")
    elif path.suffix == ".npz":
        np.savez(path, **{name: frame[name].to_numpy() for name in frame if frame[name].dtype != object})
    else:
        frame.to_csv(path, index=False)
    return path


FORMATS = ["t.csv", "t.csv.gz", "t.tsv", "t.tsv.gz", "t.parquet", "t.feather", "t.arrow", "t.xlsx", "t.npz"]


@pytest.mark.parametrize("name", FORMATS)
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
    (tmp_path / "t.docx").write_text("x")
    with refuses("wrong-file", "data.path"):
        read_file(tmp_path / "t.docx")


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


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_the_first_line_of_a_text_file_says_what_separates_its_cells(tmp_path: Path, separator: str) -> None:
    rows = ['"a,b;c"', "x", "y"], ["1", '"p;q,r"', "3"]
    (tmp_path / "t.csv").write_text("\n".join(separator.join(row) for row in rows))
    table = read_file(tmp_path / "t.csv")
    assert table.names == read_names(tmp_path / "t.csv") == ("a,b;c", "x", "y")
    assert [table.read(name).tolist() for name in table.names] == [["1"], ["p;q,r"], ["3"]]


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16", "utf-8-sig"])
def test_a_text_file_is_read_in_its_declared_encoding(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "t.csv").write_bytes("größe;stadt\n1,5;Köln\n-,25e1;Genf\n".encode(encoding))
    table = read_file(tmp_path / "t.csv", text=TextFormat(encoding, ","))
    assert table.names == read_names(tmp_path / "t.csv", text=TextFormat(encoding)) == ("größe", "stadt")
    assert numbers_in(table.read("größe")).tolist() == [1.5, -2.5]
    assert table.read("stadt").tolist() == ["Köln", "Genf"]


def test_another_encoding_than_declared_is_refused_in_names_and_in_rows(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("größe\n1\n".encode("latin-1"))
    with refuses("file-damaged", "data.encoding"):
        read_file(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_bytes("stadt\nKöln\nGenf\n".encode("latin-1"))
    with refuses("file-damaged", "data.path", names=["(1)"]):
        read_file(tmp_path / "t.csv")
    with refuses("unknown-name", "data.encoding"):
        TextFormat("latin-x")


def test_an_encoding_of_a_file_without_text_has_no_effect(tmp_path: Path, visits: pd.DataFrame) -> None:
    with refuses("no-effect", "data.encoding"):
        read_file(write(visits, tmp_path / "t.parquet"), text=TextFormat("latin-1"))


class Interchanged:
    """A frame of some library that speaks the interchange protocol alone."""

    def __init__(self, frame: pa.Table) -> None:
        self._frame = frame

    def __dataframe__(self, **options: bool) -> object:
        return self._frame.__dataframe__(**options)


COLUMNS = {"a": [1, None, 3], "b": ["x", None, "01"], "c": [True, False, None], "d": [1.5, None, 2.0]}


@pytest.mark.parametrize("kind", [pl.DataFrame, pa.table, lambda columns: Interchanged(pa.table(columns))])
def test_frames_of_other_libraries_are_tables(kind: object) -> None:
    table = from_frame(kind(COLUMNS))  # type: ignore[operator]
    assert table.names == ("a", "b", "c", "d")
    np.testing.assert_array_equal(numbers_in(table.read("a")), [1, np.nan, 3])
    assert table.read("b").tolist() == ["x", None, "01"]
    np.testing.assert_array_equal(numbers_in(table.read("c")), [1, 0, np.nan])
    np.testing.assert_array_equal(numbers_in(table.read("d")), [1.5, np.nan, 2])


def test_what_is_no_frame_is_refused() -> None:
    with refuses("wrong-type", "frame"):
        from_frame([1, 2])


DATES = pd.DataFrame({"day": pd.to_datetime(["2020-01-02 00:00", "2020-03-01 12:00", None])})


@pytest.mark.parametrize("kind", [from_frame, lambda frame: from_arrays({"day": frame["day"].to_numpy("M8[ns]")})])
def test_dates_are_no_numbers_but_days_after_a_date_where_that_is_said(kind: object) -> None:
    values = kind(DATES).read("day")  # type: ignore[operator]
    with refuses("wrong-type", "data.numeric", names=["'day'", "2 rows"]):
        as_numbers(values, "day")
    np.testing.assert_array_equal(as_numbers(values, "day", "2020-01-01"), [1, 60.5, np.nan])


def test_days_are_read_from_usual_spellings_only() -> None:
    texts = np.array(["2020-01-31", "31.01.2020", "2020-01-31T06:00:00+06:00", "01/31/2020", "soon", None], object)
    np.testing.assert_array_equal(days_in(texts, "2020-01-01"), [30, 30, 30, np.nan, np.nan, np.nan])
