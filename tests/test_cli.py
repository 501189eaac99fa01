from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import tacit
from tacit.cli import _print_guarantees, app
from tacit.errors import UserError


def command(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tacit.cli", *map(str, arguments)], capture_output=True, text=True, cwd=cwd, check=False
    )


@pytest.fixture
def file(tmp_path, visits, experiment) -> Path:
    visits.to_csv(tmp_path / "visits.csv", index=False)
    experiment["data"]["path"] = "visits.csv"
    path = tmp_path / "experiment.toml"
    path.write_text(tacit.plan(experiment).to_toml())
    return path


def test_run_report_and_compare_from_the_command_line(file, tmp_path):
    done = command("run", file, "--out", tmp_path / "one", "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert {"guarantees", "noise_multiplier", "run", "metrics", "rounds", "seconds"} <= printed.keys()
    assert printed["seconds"].keys() == {"compile", "train", "evaluate", "exchange", "ledger", "total"}
    assert printed["guarantees"][0]["epsilon"] == "inf"
    again = command("run", file, "--set", "train.rounds=2", "--out", tmp_path / "two")
    assert again.returncode == 0, again.stderr
    assert "No privacy guarantee" in again.stdout
    report = command("report", tmp_path / "one", "--json")
    assert Path(json.loads(report.stdout)["report"]).is_file()
    compared = command("compare", tmp_path / "one", tmp_path / "two", "--json")
    assert len(json.loads(compared.stdout)["runs"]) == 2


def test_plan_says_infinity_plainly_and_reads_no_data(file, tmp_path):
    (tmp_path / "visits.csv").unlink()
    printed = json.loads(command("plan", file, "--json").stdout)
    assert {guarantee["epsilon"] for guarantee in printed["guarantees"]} == {"inf"}
    assert "infinity" in command("plan", file).stdout


def test_methods_and_data_describe_themselves(file):
    names = {row["name"] for row in json.loads(command("methods", "--json").stdout)["methods"]}
    assert {"fedavg", "fedsgd", "fedprox", "scaffold", "silo-only", "pooled"} <= names
    picture = json.loads(command("data", file, "--json").stdout)
    assert picture["subjects"] == 48
    assert "stay with the data holder" in command("data", file).stdout


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--set", "train.rounds=0"], "train.rounds"),
        (["--set", "data.label=sick"], "data.label"),
        (["--set", "data.path=none.csv"], "data.path"),
        (["--set", "method.nme=3"], "method.nme"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(file, tmp_path, arguments, line):
    done = command("run", file, *arguments, "--out", tmp_path / "run")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert line in done.stderr
    assert not (tmp_path / "run").exists()


def test_what_a_budget_forbids_is_exit_3(file, tmp_path):
    done = command("run", file, "--set", "privacy.budget=1.0", "--out", tmp_path / "run")
    assert done.returncode == 3
    assert "privacy.budget" in done.stderr


@pytest.fixture
def private(file) -> Path:
    """The same experiment with whole silos protected, and a seed."""
    text = file.read_text().replace('name = "fedavg"', 'name = "dp-fedavg"\nnoise_multiplier = 2.0\nclip = 0.5')
    file.write_text(text.replace('column = "clinic"', 'column = "clinic"\ncount = 3'))
    return file


def in_process(*arguments: str | Path) -> str:
    """The output of a command that succeeds, without a process of its own: a second saved."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_plan_prints_promise_noise_views_reasons_and_budget(private):
    said = " ".join(in_process("plan", private, "--set", "privacy.budget=4.0").split())
    for part in (
        "Adding or removing everything that any one silo holds",
        "standard deviation 1 on every number of a sum",
        "server: epsilon = infinity, because the server adds the noise",
        "This rests on:",
        "The model must not be published",
        "Budget: epsilon 4 allows",
    ):
        assert part in said
    printed = json.loads(in_process("plan", private, "--json"))
    assert {"title", "method", "noise_multiplier", "guarantees", "noise", "promise"} <= printed.keys()
    assert printed["rounds_within_budget"] is None
    assert printed["noise"]["largest"] == 1.5


def test_plan_solves_a_sweep_and_writes_its_plot(private, tmp_path):
    page = tmp_path / "sweep.html"
    printed = json.loads(
        in_process("plan", private, "--epsilon", "2", "--sweep", "rounds=5,20", "--out", page, "--json")
    )
    noise = [point["noise_multiplier"] for point in printed["points"]]
    assert noise[0] < noise[1]
    assert printed["report"] == str(page)
    assert page.is_file()
    with pytest.raises(UserError, match="did you mean 'rounds'"):
        in_process("plan", private, "--sweep", "rouds=5,20")


def test_a_private_run_keeps_its_references_and_has_a_sheet_that_forbids_publication(private, tmp_path):
    said = " ".join(in_process("run", private, "--baselines", "--out", tmp_path / "run").split())
    assert "outside the guarantee" in said
    assert "must not be published" in said
    sheet = Path(json.loads(in_process("report", tmp_path / "run", "--sheet", "--json"))["sheet"]).read_text()
    assert "can be regenerated from the seed" in sheet
    assert "chain verified" in sheet


def test_what_a_paper_says_stands_beside_what_is_proved(capsys):
    line = {
        "unit": "subject", "relation": "zero-out", "view": "public", "sampling": "none", "epsilon": 9.9973,
        "delta": 1e-5, "assumptions": ["sizes are public"],
        "as_published": {"epsilon": 10.7255, "valid": "no", "reason": "it counts rows"},
    }  # fmt: skip
    _print_guarantees([line, line | {"view": "silos:2", "epsilon": "inf", "as_published": None}], rests_on=True)
    said = " ".join(capsys.readouterr().out.split())
    assert "as published, public: 10.73 (not valid); it counts rows" in said
    assert "silos:2: epsilon = infinity" in said
