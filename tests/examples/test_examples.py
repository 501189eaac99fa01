"""The examples are part of what is promised: every file is a valid plan, and the made table runs from end to end."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pandas as pd
import pytest

import tacit
from tacit.studies.study import Study

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
STUDIES = sorted((EXAMPLES / "studies").glob("*.toml"))
FILES = sorted(set(EXAMPLES.rglob("*.toml")) - set(STUDIES))


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples are started from the root of the repository, and planning needs no data."""
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("TACIT_DATA", raising=False)


def test_there_are_examples() -> None:
    assert len(FILES) >= 18


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(EXAMPLES)))
def test_every_example_is_a_plan_without_data(file: Path) -> None:
    plan = tacit.plan(file)
    assert plan.title != "Untitled experiment"
    guarantees = plan.guarantees()
    assert guarantees
    assert all(guarantee.finite == plan.method.private for guarantee in guarantees)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(EXAMPLES)))
def test_every_example_names_its_command(file: Path) -> None:
    first = file.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith(f"# tacit run {file.relative_to(ROOT).as_posix()}")


@pytest.mark.parametrize("file", STUDIES, ids=lambda file: file.name)
def test_every_study_can_be_planned_without_data_and_names_its_command(file: Path, tmp_path: Path) -> None:
    study = Study(file, tmp_path)
    assert study.planned.cells
    assert file.read_text(encoding="utf-8").splitlines()[0] == f"# tacit study {file.relative_to(ROOT).as_posix()}"


def test_the_made_table_has_the_columns_and_clinics_of_its_script() -> None:
    made = runpy.run_path(str(EXAMPLES / "table" / "make_visits.py"))["made_visits"]()
    kept = pd.read_csv(EXAMPLES / "table" / "visits.csv")
    assert list(kept.columns) == list(made.columns)
    assert set(kept["clinic"]) == set(made["clinic"])
    assert kept["pain"].isna().any()


def test_the_python_example_runs_from_table_to_predictions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["visits.py", str(tmp_path / "runs")])
    monkeypatch.syspath_prepend(EXAMPLES / "table")
    runpy.run_path(str(EXAMPLES / "table" / "visits.py"), run_name="__main__")
    shown = capsys.readouterr().out
    assert "subject from public: epsilon = inf" in shown
    assert "probability" in shown
    assert (tmp_path / "runs" / "fedavg" / "report.html").is_file()
    assert tacit.Run.load(tmp_path / "runs" / "fedadam").metrics["accuracy"] > 0.6


def test_one_command_shows_a_published_accounting_that_does_not_hold(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", "--only", "marginal-gossip"])
    monkeypatch.syspath_prepend(EXAMPLES / "audit")
    runpy.run_path(str(EXAMPLES / "audit" / "run.py"), run_name="__main__")
    shown = capsys.readouterr().out
    assert "Messages that share their noise" in shown
    published, at_least, proved = (float(cell.strip(" *|")) for cell in shown.strip().split("|")[-4:-1])
    assert published < at_least < proved
