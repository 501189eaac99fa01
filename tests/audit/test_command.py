"""``tacit audit`` from the shell and from Python: what it writes, prints and refuses."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tacit
from tacit import api, report
from tacit.auditing import Audit
from tacit.auditing.one_run import CanaryFinding
from tacit.errors import UserError
from tacit.report.audit_page import VERDICTS
from tacit.ui.main import app
from tests.refusals import refuses


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
    assert VERDICTS["not-refuted"][1] in page
    assert "outside the guarantee" in page
    assert "As published" in page


def test_the_report_of_a_run_gets_the_audit_as_a_section(private, tmp_path):
    run = tacit.run(private, out=tmp_path / "run")
    assert 'id="audit"' not in run.report.read_text()
    found = api.audit(private, of=run.path, canaries=50, input_canaries=10, runs=60)
    assert not found.refuted
    assert 'id="audit"' in run.report.read_text()
    with refuses("wrong-file", "--of"):
        api.audit(tacit.plan(private, ["train.rounds=4"]), of=run.path)


def test_an_existing_folder_is_left_alone(private, tmp_path):
    (tmp_path / "there").mkdir()
    with refuses("exists-already", "--out"):
        api.audit(private, out=tmp_path / "there")


LINE = {
    "kind": "gradient", "seen": "rounds", "view": "public", "canaries": 100, "guesses": 50, "right": 48,
    "confidence": 0.95, "delta": 1e-5, "proved": 4.0, "epsilon": 2.5, "fdp_epsilon": 3.0, "estimate": 3.9,
    "refuted": False,
}  # fmt: skip


def page_of(tmp_path: Path, line: dict, published: float | None, verdict: str = "not-refuted") -> str:
    claim = None if published is None else {"epsilon": published, "valid": "no", "reason": ""}
    content = {
        "title": "Made", "method": "higrad", "unit": "subject", "delta": 1e-5, "rounds": 3, "seconds": 1.0,
        "refuted": line["refuted"], "verdict": verdict, "refuted_as_published": [], "mechanism": [], "canaries": [line],
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
    page = page_of(tmp_path, LINE | {"epsilon": 4.5, "refuted": True}, None, "refuted")
    assert VERDICTS["refuted"][1] in page
    assert '<strong class="infinite">4.50</strong>' in page


def audit_of(*canaries: dict, mechanism: tuple = ()) -> Audit:
    lines = tuple(CanaryFinding(**(LINE | line)) for line in canaries)
    return Audit("Made", "higrad", "subject", 1e-5, 3, (), mechanism, lines, 1.0)


def test_the_verdict_goes_with_what_is_printed_beside_it(tmp_path):
    assert audit_of({}).verdict == "not-refuted"
    assert audit_of({"refuted": True}).verdict == "refuted"
    # a lower bound at 95 % confidence above what is proved is red, and not passed over in the sentence
    doubtful = audit_of({"epsilon": 4.1})
    assert doubtful.verdict == "doubtful"
    page = page_of(tmp_path, LINE | {"epsilon": 4.1}, None, doubtful.verdict)
    assert VERDICTS["doubtful"][1] in page
    assert "No attack did better" not in page


def test_where_nothing_is_proved_nothing_is_said_to_hold(tmp_path):
    unbounded = audit_of({"proved": math.inf})
    assert unbounded.verdict == "nothing-claimed"
    assert "nothing can be refuted" in page_of(tmp_path, LINE | {"proved": "inf"}, None, unbounded.verdict)


@pytest.mark.parametrize(
    ("option", "value"), [("--canaries", "5"), ("--runs", "0"), ("--confidence", "1"), ("--confidence", "0.01")]
)
def test_numbers_that_bound_nothing_are_refused_before_anything_is_trained(private, option, value):
    done = CliRunner().invoke(app, ["audit", str(private), option, value])
    assert isinstance(done.exception, UserError)  # exit code 2
    assert done.exception.field == option
    assert done.exception.code == ("out-of-range" if option == "--confidence" else "too-few")


@pytest.mark.parametrize("name", ["ldp-laplace", "ss-simple"])
def test_where_people_protect_what_they_send_the_method_alone_is_attacked(private, tmp_path, name):
    exchange = "shuffled" if name.startswith("ss") else "plain"
    changes = [f"method={{name='{name}', local_epsilon=3.0}}", f"exchange.name={exchange}"]
    arguments = [*changes, "privacy.max_records_per_subject_and_silo=3", "train.rounds=1"]
    found = api.audit(tacit.plan(private, arguments), out=tmp_path / "audit", runs=60)
    assert not found.canaries
    each = "shuffler+analyzer" if name.startswith("ss") else "server"
    assert {"public", each} <= {line.view for line in found.mechanism}
    assert found.verdict == "not-refuted"
    assert found.page is not None
    assert "local epsilon 4" in found.page.read_text()
