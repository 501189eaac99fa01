"""From a table to the first array, through the simulator's loader and a silo's: whatever one row says, and whether it
is there, all other rows become the same features, labels, keys, silos and hold-out lots."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tacit.crypto import Secret
from tacit.data import DataOptions, load
from tacit.data.table import read_file
from tacit.engine.run import load_federation
from tacit.errors import UserError
from tacit.federation.request import received
from tacit.federation.site.shard import load_shard, read_silo_data
from tacit.planning.claims import ASSIGNED
from tacit.planning.plan import plan as planned
from tests.federation.worlds import travelled
from tests.refusals import refuses

ROWS, ODD = 24, 23
SILOS = ("a", "b")
Table = dict[str, list[Any]]
Outcome = dict[float, tuple[Any, ...]]

PLAN = """
[data]
label = "ill"
subjects = { column = "person", count = 500 }
silos = { count = 2 }
numeric = { number = {}, smokes = {} }
categorical = { grade = ["1", "100000", "False", "True", "x"] }
missing = "center"
test_fraction = 0.3
[method]
name = "uldp-avg"
noise_multiplier = 5.0
[privacy]
max_records_per_subject_and_silo = 100
"""

COLUMNS: dict[str, list[list[Any]]] = {
    "person": [[7 * k for k in range(ROWS)], [f"p{k}" for k in range(ROWS)], [f"1.{k}" for k in range(ROWS)]],
    "ill": [[bool(k % 2) for k in range(ROWS)], [("true", "FALSE")[k % 2] for k in range(ROWS)], [1, 0] * 12],
    "smokes": [[bool(k % 3) for k in range(ROWS)], [0.5, 1.0] * 12],
    "grade": [
        [bool(k % 2) for k in range(ROWS)],
        [1, 100000] * 12,
        ["1e+05", "1.0"] * 12,
        ["x", "true"] * 12,
        ["true", "false"] * 12,
    ],
    "note": [[bool(k % 2) for k in range(ROWS)], list(range(ROWS)), [k / 7 for k in range(ROWS)]],
}
BIG = [2**53 + k for k in range(ROWS)]  # as floats, two of them are one

CELLS = st.sampled_from(
    [
        *(None, "", "?", "x", "a,b", 'say "x"', "true", "FALSE", "01", "1.10", "1e+05", "2020-01-01", "nan", "NA"),
        *(True, False, 0, 1, 2, -1, 7.0, 0.5, 1e5, 2**53 + 1, 2.0**70, np.nan, np.inf),
    ]
)


@st.composite
def tables(draw: Callable[..., Any]) -> Table:
    return completed({name: draw(st.sampled_from(kinds)) for name, kinds in COLUMNS.items()})


def completed(table: Table) -> Table:
    rest = {"number": list(range(ROWS)), "site": [SILOS[k % 2] for k in range(ROWS)]}
    return {**{name: kinds[0] for name, kinds in COLUMNS.items()}, **table, **rest}


def changed(table: Table, cells: dict[str, Any]) -> Table:
    return {name: [*values[:ODD], cells.get(name, values[ODD])] for name, values in table.items()}


def without(table: Table) -> Table:
    return {name: values[:ODD] for name, values in table.items()}


def file_of(table: Table, folder: Path, kind: str) -> Path:
    path = folder / f"table.{kind}"
    if kind == "csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([list(table), *zip(*table.values(), strict=True)])
        return path
    try:
        pd.DataFrame(table).to_parquet(path, index=False)
    except (pa.ArrowException, OverflowError):
        assume(False)  # a typed file has no place for such a row
    return path


def others(federation: Any) -> Outcome:
    """What every row but the odd one becomes, by its number."""
    return {
        float(features[0]): (features.tolist(), float(label), int(key), int(silo), held_out)
        for held_out, part in ((False, federation.train), (True, federation.test))
        for features, label, key, silo in zip(part.features, part.labels, part.subject, part.silo, strict=True)
        if features[0] != ODD
    }


def simulated(table: Table, folder: Path, kind: str, **options: Any) -> Outcome:
    data: dict[str, Any] = {
        "label": "ill",
        "subjects": {"column": "person"},
        "silos": {"column": "site", "count": 2},
        "numeric": {"number": {}, "smokes": {}},
        "categorical": {"grade": ["1", "100000", "False", "True", "x"]},
        "missing": "center",
        "test_fraction": 0.3,
        **options,
    }
    if kind == "frame":
        return others(load(DataOptions(**data), frame=pd.DataFrame(table)))
    return others(load(DataOptions(**data, path=str(file_of(table, folder, kind)))))


def in_a_silo(table: Table, folder: Path, kind: str) -> Outcome:
    return loaded(file_of(table, folder, kind))


def loaded(path: Path) -> Outcome:
    """The rows of a silo's file."""
    data = path.with_name("DATA.toml")
    data.write_text(f'path = "{path.name}"\nsubjects = "person"\n')
    shard = load_shard(received(travelled(PLAN)), "north", read_silo_data(data), Secret(bytes(32)))
    found = others(shard.federation)
    assert len({row[2] for row in found.values()}) == len(found)  # one person a row
    return found


def assert_same(run: Callable[[Table], Outcome], table: Table, neighbour: Table) -> None:
    before = run(table)
    assert len(before) == ODD
    assert run(neighbour) == before
    assert run(without(table)) == before


generated = settings(deadline=None, max_examples=30, suppress_health_check=list(HealthCheck))
odd_rows = st.dictionaries(st.sampled_from(list(COLUMNS)), CELLS, min_size=1, max_size=2)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@generated
@given(table=tables(), cells=odd_rows)
def test_in_a_silo_no_cell_changes_another_row(kind: str, tmp_path: Path, table: Table, cells: dict[str, Any]) -> None:
    assert_same(lambda made: in_a_silo(made, tmp_path, kind), table, changed(table, cells))


SIMULATED: dict[str, dict[str, Any]] = {"columns": {}, "no subject": {"subjects": {}}}
for law in ("uniform", "zipf", "power"):
    SIMULATED[f"{law} silos"] = {"silos": {"assign": law, "count": 2}}
    SIMULATED[f"{law} silos, no subject"] = {"silos": {"assign": law, "count": 2}, "subjects": {}}
SIMULATED["assigned subjects"] = {"subjects": {"assign": "uniform", "count": 4}}


@pytest.mark.parametrize("world", ["columns", "no subject"])
@pytest.mark.parametrize("kind", ["csv", "parquet", "frame"])
@generated
@given(table=tables(), cells=odd_rows)
def test_in_the_simulator_no_cell_changes_another_row(
    kind: str, world: str, tmp_path: Path, table: Table, cells: dict[str, Any]
) -> None:
    neighbour = changed(table, cells)
    try:
        simulated(neighbour, tmp_path, kind, **SIMULATED[world])
    except UserError:  # the one who holds all records is told, and nothing is released
        assume(False)
    assert_same(lambda made: simulated(made, tmp_path, kind, **SIMULATED[world]), table, neighbour)


@pytest.mark.parametrize("world", SIMULATED)
def test_in_the_simulator_no_absence_changes_another_row(world: str, tmp_path: Path) -> None:
    table = completed({})
    assert_same(lambda made: simulated(made, tmp_path, "frame", **SIMULATED[world]), table, table)


@pytest.mark.parametrize("odd", ["?", None, "01"])
@pytest.mark.parametrize("kind", ["csv", "frame"])
def test_without_subjects_an_unused_cell_changes_no_other_row(kind: str, odd: Any, tmp_path: Path) -> None:
    for note in COLUMNS["note"]:
        table = completed({"note": note})
        assert_same(lambda made: simulated(made, tmp_path, kind, subjects={}), table, changed(table, {"note": odd}))


@pytest.mark.parametrize(
    ("settings_", "together"),
    [
        ({"silos": {"assign": "uniform", "count": 4}, "subjects": {"column": "person", "count": 100}}, False),
        ({"silos": {"assign": "zipf", "count": 4}, "subjects": {"assign": "zipf", "count": 100}}, True),
        ({"silos": {"column": "site", "count": 4}, "subjects": {"assign": "uniform", "count": 100}}, True),
        ({"silos": {"assign": "dirichlet", "count": 4}, "subjects": {"column": "person", "count": 100}}, True),
        ({"silos": {"column": "site", "count": 4}, "subjects": {"assign": "zipf", "count": 100}}, True),
        (
            {
                "silos": {"assign": "uniform", "count": 4},
                "subjects": {"assign": "uniform", "count": 100},
                "labels_per_subject": 2,
            },
            True,
        ),
    ],
)
def test_a_guarantee_says_that_all_records_decide_an_assignment(settings_: dict[str, Any], together: bool) -> None:
    plan = planned(
        {
            "data": {"label": "ill", "numeric": {"smokes": {}}, **settings_},
            "method": {"name": "subject-sgd", "noise_multiplier": 5.0},
        }
    )
    for guarantee in plan.guarantees():
        assert (ASSIGNED in guarantee.assumptions) == together


def test_a_file_for_evaluation_keeps_the_promise_about_silos(tmp_path: Path) -> None:
    file_of({**completed({}), "person": list(range(ROWS))}, tmp_path, "csv").rename(tmp_path / "train.csv")
    data = {"path": str(tmp_path / "train.csv"), "label": "ill", "numeric": {"number": {}}}
    plan = planned(
        {
            "data": {
                **data,
                "subjects": {"column": "person", "count": 500},
                "silos": {"column": "site", "count": 2},
            },
            "method": {"name": "uldp-sgd", "noise_multiplier": 5.0},
            "evaluation": {"data": str(tmp_path / "table.csv"), "status": "paid", "noise_multiplier": 1.0},
            "privacy": {"max_silos_per_subject": 1, "over_silo_cap": "refuse"},
        }
    )
    held_out = {**completed({}), "person": [900 + k for k in range(ROWS)]}
    file_of(held_out, tmp_path, "csv")
    assert len(load_federation(plan).test) == ROWS
    file_of({**held_out, "person": [900 + k // 2 for k in range(ROWS)]}, tmp_path, "csv")
    with refuses("mismatch", "privacy.max_silos_per_subject"):
        load_federation(plan)


LINES = [b"1,2", b"1,2,3,4,5,6,7,8,9", b"\xff" * 9, b'"', b'x,"y', b'"a"b,c', b"a\rb", b"", b",,,,,,", b"\0", b'""""']


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("place", [1, 9, ODD])
def test_no_line_of_a_silo_s_csv_changes_another_row(line: bytes, place: int, tmp_path: Path) -> None:
    """What a line cannot be read as stays in that line."""
    path = file_of(without(completed({})), tmp_path, "csv")
    before = loaded(path)
    lines = path.read_bytes().split(b"\r\n")
    path.write_bytes(b"\r\n".join([*lines[:place], line, *lines[place:]]))
    assert len(before) == ODD
    assert loaded(path) == before


@generated
@given(
    line=st.binary(max_size=30).filter(lambda line: b"\n" not in line) | st.text('",\r0a', max_size=20).map(str.encode)
)
def test_no_bytes_in_a_line_change_another_row(line: bytes, tmp_path: Path) -> None:
    test_no_line_of_a_silo_s_csv_changes_another_row(line, 5, tmp_path)


def test_the_simulator_refuses_lines_that_cannot_be_read(tmp_path: Path) -> None:
    path = file_of(completed({}), tmp_path, "csv")
    path.write_bytes(path.read_bytes() + b"1,2\r\n\xff\r\n")
    with refuses("file-damaged", "data.path"):
        read_file(path)


ODD_ROWS: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "a true/false label is missing": ({"ill": 0}, {"ill": None}),
    "a true/false label is stray text": ({"ill": 0}, {"ill": "?"}),
    "a true/false number is stray text": ({"smokes": 0}, {"smokes": "?"}),
    "a true/false category is another one": ({"grade": 4}, {"grade": "x"}),
    "a category that is written as a number is text": ({"grade": 2}, {"grade": "x"}),
    "an identifier is missing": ({"person": 0}, {"person": None}),
    "an identifier is another one's with a zero more": ({"person": 2}, {"person": "1.10"}),
    "an identifier is text": ({"person": 0}, {"person": "p1"}),
}


@pytest.mark.parametrize("name", ODD_ROWS)
def test_one_odd_row_in_a_silo_s_csv(name: str, tmp_path: Path) -> None:
    chosen, cells = ODD_ROWS[name]
    table = completed({column: kinds[chosen.get(column, 0)] for column, kinds in COLUMNS.items()})
    assert_same(lambda made: in_a_silo(made, tmp_path, "csv"), table, changed(table, cells))
    if cells.get("person", 0) is None:
        big = {**table, "person": BIG}
        assert_same(lambda made: in_a_silo(made, tmp_path, "csv"), big, changed(big, cells))
