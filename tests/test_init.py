"""From a table that is not in the repository to a report, with no number typed by hand but epsilon."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

import tacit
from tacit.data import source_facts
from tacit.planning.template import CONFIRM, rounded_up
from tacit.ui.main import app
from tests.data.test_look import SUSPECTS
from tests.exported import exported, write_export
from tests.refusals import refuses

ROLES = ("--label", "wieder", "--subject", "Patient", "--silo", "Klinik")
READ = ["data.subjects.count", "data.silos.count", "data.classes", "data.numeric", "data.categorical"]
READ += ["exchange.name"]


def init(*arguments: str | Path) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["init", *map(str, arguments), "--json"], catch_exceptions=False)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return write_export(tmp_path / "stays.csv")


def test_three_commands_lead_from_an_exported_table_to_a_report_in_three_minutes(table: Path) -> None:
    start = time.monotonic()
    for command in (
        ["init", "stays.csv", *ROLES, "--epsilon", "4", "--yes"],
        ["run", "experiment.toml", "--out", "one"],
        ["report", "one"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "tacit", *command], cwd=table.parent, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    assert time.monotonic() - start < 180
    assert (table.parent / "one" / "report.html").is_file()
    run = tacit.Run.load(table.parent / "one")
    assert 0 < max(guarantee["epsilon"] for guarantee in run.result["guarantees"]) <= 4
    assert {guarantee["valid"] for guarantee in run.result["guarantees"]} == {"only-if"}
    assert run.metrics["auc"] > 0.7  # 0.8 without privacy
    with tacit.privacy.Ledger(table.parent / "one" / "ledger.jsonl") as ledger:
        assert [line["mechanism"] for line in ledger.lines][:2] == ["statistics", "subject-sgd"]


def test_suspects_are_left_out_and_what_is_read_from_the_table_is_marked(table: Path) -> None:
    out = table.parent / "e.toml"
    found = init(table, *ROLES, "--yes", "--out", out)
    assert found["left_out"] == SUSPECTS
    assert found["features"] == ["Alter", "BMI", "Blutdruck", "Zugang"]
    plan = tacit.plan(out)
    assert list(plan.from_this_table) == found["from_this_table"] == READ
    content = tomllib.loads(out.read_text())
    assert content["data"]["subjects"]["count"] == 1500
    assert content["data"]["classes"] == ["nein", "ja"]
    assert content["data"]["standardize"] == "private"
    assert content["data"]["numeric"] == {"Alter": {}, "BMI": {"indicator": True}, "Blutdruck": {}}
    assert content["method"]["target_epsilon"] == 4


def test_no_constant_of_a_column_depends_on_the_table_with_yes(tmp_path: Path) -> None:
    files = []
    for name, factor in (("a", 1), ("b", 1000)):
        frame = exported()
        frame["Alter"] *= factor
        frame.to_parquet(tmp_path / f"{name}.parquet")
        init(tmp_path / f"{name}.parquet", *ROLES, "--yes", "--out", tmp_path / f"{name}.toml")
        files.append((tmp_path / f"{name}.toml").read_text().replace(f"{name}.parquet", ""))
    assert files[0] == files[1]


def test_proposed_constants_are_marked_in_the_file_and_in_every_guarantee(table: Path) -> None:
    out = table.parent / "e.toml"
    init(table, *ROLES, "--constants", "--keep", "Aufnahme", "--out", out)
    marked = [line for line in out.read_text().splitlines() if CONFIRM in line]
    assert [line.split(" ")[0] for line in marked] == ["Alter", "BMI", "Blutdruck", "Zugang"]
    content = tomllib.loads(out.read_text())["data"]
    assert "standardize" not in content
    assert content["numeric"]["Aufnahme"] == {"days_since": "2000-01-01"}
    assert 40 < content["numeric"]["Alter"]["mean"] < 70
    assert "data.numeric" in tacit.plan(out).from_this_table
    with refuses("conflict", "--yes"):
        init(table, *ROLES, "--constants", "--yes", "--out", table.parent / "f.toml")


def labelled() -> dict[str, tuple[str, pd.Series]]:
    frame = exported()
    yes = frame["wieder"] == "ja"
    return {
        "numbers": ("real", frame["Blutdruck"] + frame["Alter"]),
        "truths": ("binary", yes),
        "signs": ("binary", yes.map({True: 1, False: -1})),
        "codes": ("binary", yes.map({True: "01", False: "02"})),
        "digits": ("multiclass", frame["Alter"] % 7),
        "names": ("multiclass", pd.cut(frame["Alter"], [0, 40, 60, 100], labels=["a", "b", "c"]).astype(str)),
    }


@pytest.mark.parametrize("name", labelled())
def test_every_kind_of_label_gives_a_file_that_can_be_run(tmp_path: Path, name: str) -> None:
    task, label = labelled()[name]
    odd = exported()["Alter"].map(lambda age: ['a"b', "c\\d", "01", "1.0", "Ü", True][age % 6])
    frame = exported().assign(goal=label, true=exported()["Alter"] > 50).rename(columns={"BMI": 'a.b "ü" = [x]'})
    frame.assign(odd=odd.astype(str)).to_parquet(tmp_path / "t.parquet")
    found = init(tmp_path / "t.parquet", "--label", "goal", *ROLES[2:], "--yes", "--out", tmp_path / "e.toml")
    assert {'a.b "ü" = [x]', "odd", "true"} <= {*found["features"], *found["left_out"]}
    assert source_facts(tacit.plan(tmp_path / "e.toml").data).labels.kind == task


def test_rows_without_a_person_are_people_of_their_own_where_that_is_said(table: Path) -> None:
    init(table, *ROLES[:2], "--subject", "none", *ROLES[4:], "--yes", "--out", table.parent / "e.toml")
    content = tomllib.loads((table.parent / "e.toml").read_text())
    assert content["data"]["subjects"] == {"count": 3000}
    assert content["privacy"]["max_silos_per_subject"] == 1


@pytest.mark.parametrize(
    ("arguments", "code", "field"),
    [
        (ROLES[2:], "missing", "--label"),
        (ROLES[:2], "missing", "--subject"),
        (("--label", "Fall", *ROLES[2:]), "unknown-name", "--label"),
        (("--label", "Kommentar", *ROLES[2:]), "wrong-type", "--label"),
        ((*ROLES[:4], "--silo", "Patient"), "conflict", "--subject"),
        ((*ROLES, "--keep", "Kommentar"), "unknown-name", "--keep"),
        ((*ROLES, "--out", "stays.csv"), "exists-already", "--out"),
        ((*ROLES, "--out", "nowhere/e.toml"), "file-not-found", "--out"),
    ],
)
def test_what_is_missing_or_wrong_is_named(table: Path, monkeypatch, arguments, code: str, field: str) -> None:
    monkeypatch.chdir(table.parent)
    with refuses(code, field):
        init("stays.csv", *arguments)
    assert not Path("experiment.toml").exists()


def test_a_table_that_no_run_would_accept_leaves_no_file(table: Path) -> None:
    exported()[["Patient", "Klinik", "Alter", "wieder"]].head(30).to_csv(table, index=False)
    with refuses("too-few", "data.standardize"):
        init(table, *ROLES, "--yes", "--out", table.parent / "e.toml")
    assert not (table.parent / "e.toml").exists()


def test_a_terminal_is_asked_what_the_options_leave_open(table: Path) -> None:
    main, other = pty.openpty()
    command = [sys.executable, "-m", "tacit", "init", "stays.csv", "--label", "wieder"]
    asked = subprocess.Popen(command, cwd=table.parent, stdin=other, stdout=other, stderr=other, close_fds=True)
    os.close(other)
    os.write(main, b"Person\nPatient\nKlinik\nn\ny\n" + b"n\n" * len(SUSPECTS))
    output = b""
    try:
        while chunk := os.read(main, 65536):
            output += chunk
    except OSError:  # the other end is closed
        pass
    os.close(main)
    assert asked.wait(120) == 0, output.decode()
    content = tomllib.loads((table.parent / "experiment.toml").read_text())
    assert content["data"]["subjects"]["column"] == "Patient"
    assert content["data"]["standardize"] == "private"
    assert "from_this_table" not in content["data"]  # all of it was said to be public


def test_the_columns_of_a_table_are_shown_without_an_experiment(table: Path) -> None:
    done = CliRunner().invoke(app, ["data", str(table), "--json"], catch_exceptions=False)
    columns = {column["name"]: column for column in json.loads(done.stdout)["columns"]}
    assert columns["Alter"]["kind"] == "number"
    assert columns["Fallnummer"]["suspect"] == SUSPECTS["Fallnummer"]
    assert "Exact numbers" in CliRunner().invoke(app, ["data", str(table)]).stdout


@pytest.mark.parametrize(("count", "shown"), [(1, 1), (4137, 5000), (5912, 6000), (1001, 1200), (8001, 10000)])
def test_counts_are_rounded_up_to_numbers_that_people_write(count: int, shown: int) -> None:
    assert rounded_up(count) == shown
