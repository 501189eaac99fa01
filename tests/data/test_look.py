"""A look at a table finds what its columns are, and which of them should be no features."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tacit.data.look import look, open_table
from tacit.data.table import TextFormat, from_frame
from tests.exported import exported, write_export

SUSPECTS = {
    "Fallnummer": "looks like an identifier",
    "Versicherung": "looks like an identifier",
    "Aufnahme": "a date",
    "Kommentar": "free text, or over 30 categories",
    "Risiko_pred": "looks like a prediction of another model",
    "Grund": "nearly repeats the label",
}


def test_encoding_separator_and_decimals_are_found(tmp_path: Path) -> None:
    table, text = open_table(write_export(tmp_path / "t.csv"))
    assert text == TextFormat("cp1252", ",")
    assert {column.name: column.kind for column in look(table)} == {
        **dict.fromkeys(("Fallnummer", "Alter", "BMI", "Blutdruck", "Risiko_pred"), "number"),
        **dict.fromkeys(("Patient", "Versicherung", "Kommentar"), "text"),
        **dict.fromkeys(("Klinik", "Zugang", "Grund", "wieder"), "category"),
        "Aufnahme": "date",
    }


def test_plain_files_have_plain_text(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1.5,ü\n2.5,x\n")
    assert open_table(tmp_path / "t.csv")[1] == TextFormat()
    exported().to_parquet(tmp_path / "t.parquet")
    assert open_table(tmp_path / "t.parquet")[1] == TextFormat()
    (tmp_path / "u.csv").write_bytes("a;b\n1,5;ü\n".encode("utf-16"))
    assert open_table(tmp_path / "u.csv")[1] == TextFormat("utf-16", ",")


def test_identifiers_dates_and_what_tells_the_label_are_suspect() -> None:
    found = look(from_frame(exported()), "wieder", "Patient", "Klinik")
    assert {column.name: column.suspect for column in found if column.suspect} == SUSPECTS


def test_a_look_says_range_categories_and_share_of_gaps() -> None:
    frame = exported()
    by_name = {column.name: column for column in look(from_frame(frame))}
    assert (by_name["Alter"].low, by_name["Alter"].high) == (frame["Alter"].min(), frame["Alter"].max())
    assert by_name["Zugang"].categories == ("Notfall", "geplant", "Überweisung")
    assert by_name["BMI"].missing == pytest.approx(frame["BMI"].isna().mean())


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1] * 100, "one value in all rows"),
        ([None] * 100, "no values"),
        ([3] + [None] * 99, "almost always missing"),
        ([*range(99), "unknown"], "numbers mixed with text"),
    ],
)
def test_columns_without_use_are_suspect(values: list[object], reason: str) -> None:
    found = look(from_frame(pd.DataFrame({"x": pd.Series([*values, *values], dtype=object)})))
    assert found[0].suspect == reason


def test_labels_of_numbers_and_of_many_classes_are_recognised_too() -> None:
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=400), rng.normal(size=400)
    real = look(from_frame(pd.DataFrame({"y": y, "twice": 2 * y + 1e-3 * x, "x": x})), "y")
    assert [column.suspect for column in real] == [None, "nearly repeats the label", None]
    kind = rng.integers(0, 4, 400)
    classes = look(from_frame(pd.DataFrame({"y": kind, "code": np.array(list("abcd"))[kind], "n": kind // 2})), "y")
    assert [column.suspect for column in classes] == [None, "nearly repeats the label", None]
