"""``tacit audit`` from the shell and from Python: what it writes, prints and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tacit
from tacit import api, report
from tacit.cli import app
from tacit.errors import UserError


@pytest.fixture
def private(tmp_path, visits, experiment) -> Path:
    visits.to_csv(tmp_path / "visits.csv", index=False)
    experiment["data"] |= {
        "path": "visits.csv",
        "subjects": {"column": "person", "count": 60},
        "silos": {"column": "clinic", "count": 3},
    }
    experiment |= {
        "method": {"name": "uldp-sgd", "noise_multiplier": 2.0},
        "privacy": {"max_records_per_subject_and_silo": 3},
        "train": {"rounds": 3},
    }
    path = tmp_path / "experiment.toml"
    path.write_text(tacit.plan(experiment, folder=tmp_path).to_toml())
    return path


def test_an_audit_from_the_shell_writes_a_page_and_prints_one_object(private, tmp_path):
    arguments = [
        "audit",
        str(private),
        "--out",
        str(tmp_path / "audit"),
        "--canaries",
        "100",
        "--runs",
        "200",
        "--json",
    ]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    assert printed["refuted"] is False
    assert {line["seen"] for line in printed["canaries"]} == {"rounds", "final"}
    assert [line["view"] for line in printed["mechanism"]] == ["public", "server", "silo"]
    assert all(line["epsilon"] <= line["proved"] for line in printed["canaries"])
    assert json.loads((tmp_path / "audit" / "audit.json").read_text()) == {
        key: value for key, value in printed.items() if key != "report"
    }
    page = Path(printed["report"]).read_text()
    assert "No attack did better than what is proved allows" in page
    assert "outside the guarantee" in page
    assert "As published" in page


def test_the_report_of_a_run_gets_the_audit_as_a_section(private, tmp_path):
    run = tacit.run(private, out=tmp_path / "run")
    assert "Attacked by ourselves" not in run.report.read_text()
    found, _ = api.audit(private, of=run.path, canaries=50, input_canaries=10, runs=60)
    assert not found.refuted
    assert "Attacked by ourselves" in run.report.read_text()
    with pytest.raises(UserError, match="another experiment"):
        api.audit(tacit.plan(private, ["train.rounds=4"]), of=run.path)


def test_an_existing_folder_is_left_alone(private, tmp_path):
    (tmp_path / "there").mkdir()
    with pytest.raises(UserError, match="exists"):
        api.audit(private, out=tmp_path / "there")


LINE = {
    "kind": "gradient", "seen": "rounds", "view": "public", "canaries": 100, "guesses": 50, "right": 48,
    "confidence": 0.95, "delta": 1e-5, "proved": 4.0, "epsilon": 2.5, "fdp_epsilon": 3.0, "estimate": 3.9,
    "refuted": False,
}  # fmt: skip


def page_of(tmp_path: Path, line: dict, published: float | None) -> str:
    claim = None if published is None else {"epsilon": published, "valid": "no", "reason": ""}
    content = {
        "title": "Made", "method": "higrad", "unit": "subject", "delta": 1e-5, "rounds": 3, "seconds": 1.0,
        "refuted": line["refuted"], "refuted_as_published": [], "mechanism": [], "canaries": [line],
        "guarantees": [{"view": "public", "epsilon": 4.0, "as_published": claim}],
    }  # fmt: skip
    (tmp_path / "audit.json").write_text(json.dumps(content))
    return report.write_audit(tmp_path).read_text()


def test_a_lower_bound_above_what_was_published_is_red(tmp_path):
    red = '<strong class="infinite">2.50</strong>'
    assert red in page_of(tmp_path, LINE, published=2.0)
    assert red not in page_of(tmp_path, LINE, published=3.0)
    assert red not in page_of(tmp_path, LINE, published=None)


def test_a_lower_bound_above_what_is_proved_is_said_first(tmp_path):
    page = page_of(tmp_path, LINE | {"epsilon": 4.5, "refuted": True}, published=None)
    assert "something is wrong" in page
    assert '<strong class="infinite">4.50</strong>' in page
