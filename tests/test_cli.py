from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text
from typer.testing import CliRunner

import tacit
from tacit.privacy.terms import REFERENCES, noise_text
from tacit.ui import console as console_module
from tacit.ui import main as program
from tacit.ui.console import Bars, metrics_table, show_guarantees
from tacit.ui.main import app, main
from tests.refusals import refuses


def command(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tacit", *map(str, arguments)], capture_output=True, text=True, cwd=cwd, check=False
    )


@pytest.fixture
def file(tmp_path, visits, experiment) -> Path:
    visits.to_csv(tmp_path / "visits.csv", index=False)
    experiment["data"]["path"] = "visits.csv"
    path = tmp_path / "experiment.toml"
    path.write_text(tacit.plan(experiment, folder=tmp_path).to_toml())
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
    assert 40 < picture["subjects"] < 56  # four fifths of 60, by lot
    assert "stay with the data holder" in command("data", file).stdout


@pytest.mark.parametrize(
    ("arguments", "field", "code"),
    [
        (["--set", "train.rounds=0"], "train.rounds", "out-of-range"),
        (["--set", "data.label=sick"], "data.label", "unknown-name"),
        (["--set", "data.path=none.csv"], "data.path", "file-not-found"),
        (["--set", "method.nme=3"], "method.nme", "unknown-key"),
    ],
)
def test_a_mistake_is_one_line_and_exit_2(file, tmp_path, arguments, field, code):
    done = command("run", file, *arguments, "--out", tmp_path / "run")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"{field}: " in done.stderr
    assert done.stderr.endswith(f" [{code}]\n")
    assert not (tmp_path / "run").exists()


def test_what_a_budget_forbids_is_exit_3(file, tmp_path):
    done = command("run", file, "--set", "privacy.budget=1.0", "--out", tmp_path / "run")
    assert done.returncode == 3
    assert "privacy.budget: " in done.stderr
    assert done.stderr.endswith(" [no-guarantee]\n")


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
    with refuses("unknown-name", "--sweep", names=["rounds"]):
        in_process("plan", private, "--sweep", "rouds=5,20")


def test_a_private_run_keeps_its_references_and_has_a_sheet_that_forbids_publication(private, tmp_path):
    said = " ".join(in_process("run", private, "--baselines", "--out", tmp_path / "run").split())
    assert "outside the guarantee" in said
    assert "must not be published" in said
    sheet = Path(json.loads(in_process("sheet", tmp_path / "run", "--json"))["sheet"]).read_text()
    assert "can be regenerated from the seed" in sheet
    assert "chain verified" in sheet


def test_a_sheet_is_signed_and_verified_by_commands(private, tmp_path):
    run, key = tmp_path / "run", tmp_path / "key"
    in_process("run", private, "--out", run)
    made = json.loads(in_process("sheet", "key", key, "--json"))
    with refuses("cannot-sign", "seed"):
        in_process("sheet", run, "--sign", key)
    with refuses("no-effect", "--accept"):
        in_process("sheet", run, "--accept", "seed")
    assert json.loads(in_process("sheet", run, "--json"))["signed"] is False
    accepted = ["--accept", "seed"]
    for line in json.loads((run / "result.json").read_text())["guarantees"]:
        accepted += ["--accept", line["view"]] if line["epsilon"] == "inf" else []
    said = in_process("sheet", run, "--sign", key, *accepted)
    assert made["key"] in said
    found = json.loads(in_process("sheet", "verify", run, "--key", made["public"], "--json"))
    assert (found["verified"], found["key"]) == (True, made["key"])
    (run / "plan.toml").write_text((run / "plan.toml").read_text() + "\n")
    with refuses("not-verified", "plan.toml"):
        in_process("sheet", "verify", run, "--key", made["public"])


def test_the_demo_protects_people_and_is_compared_with_references(tmp_path, monkeypatch):
    """The command with two rounds instead of all: the noise is solved for whatever rounds there are."""
    train = program.train

    def briefly(experiment, **how):
        content = tomllib.loads(experiment.to_toml())
        train(tacit.plan(content | {"train": content["train"] | {"rounds": 2}}), **how)

    monkeypatch.setattr(program, "train", briefly)
    printed = json.loads(in_process("demo", "--out", tmp_path / "demo", "--json"))
    found = {line["view"]: line for line in printed["guarantees"]}
    assert found.keys() == {"public", "server"}
    for line in found.values():
        assert line["unit"] == "subject"
        assert 3.9 < line["epsilon"] <= 4
    beside = {folder.name for folder in (tmp_path / "demo" / "baselines").iterdir()}
    assert beside == {"fedavg", "local-record", "silo-only", "pooled"}
    page = Path(printed["report"]).read_text()
    promise = page.index("Adding or removing everything about any one person, in all silos together,")
    assert promise < page.index("Is joining worth it?")
    # one of the references has noise, and none is in the ledger
    assert "trained without noise" not in page
    assert REFERENCES in page


def test_a_plan_under_the_papers_own_noise_says_in_red_that_nothing_is_proved(file, monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr(
        console_module, "console", Console(file=written, force_terminal=True, color_system="standard", width=300)
    )
    numbers = 'name = "local-group"\nnoise = "as-published"\nnoise_multiplier = 2.0\nbatches_per_round = 2'
    text = re.sub(r"\[method\].*?(?=\n\[)", f"[method]\n{numbers}\n", file.read_text(), flags=re.DOTALL)
    text = text.replace("[data]", "[data]\nrecords_per_silo = 100").replace('"clinic"', '"clinic"\ncount = 3')
    file.write_text(f"{text}\n[privacy]\nmax_records_per_subject_and_silo = 3\n")
    in_process("plan", file)
    red = [Text.from_ansi(line).plain for line in written.getvalue().splitlines() if line.startswith("\x1b[31m")]
    assert any("epsilon = infinity" in line and "group sizes away" in line for line in red)


def test_what_a_paper_says_stands_beside_what_is_proved(capsys):
    line = {
        "unit": "subject", "relation": "zero-out", "view": "public", "sampling": "none", "epsilon": 9.9973,
        "delta": 1e-5, "assumptions": ["sizes are public"],
        "as_published": {"epsilon": 10.7255, "valid": "no", "reason": "it counts rows"},
    }  # fmt: skip
    show_guarantees([line, line | {"view": "silos:2", "epsilon": "inf", "as_published": None}], rests_on=True)
    said = " ".join(capsys.readouterr().out.split())
    assert "as published, public: 10.73 (not valid); it counts rows" in said
    assert "silos:2: epsilon = infinity" in said


def main_says(monkeypatch, capsys, *arguments: str | Path) -> tuple[int, str]:
    """Exit code and error stream of a command that fails, in this process."""
    monkeypatch.setattr(sys, "argv", ["tacit", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0), capsys.readouterr().err


def test_more_memory_than_there_is_is_one_line_and_no_folder(file, tmp_path, monkeypatch, capsys):
    sizes = ["--set", "model.name=mlp", "--set", "model.hidden=[10000000000000]"]
    code, said = main_says(monkeypatch, capsys, "run", file, *sizes, "--out", tmp_path / "run")
    assert (code, said.count("\n")) == (2, 1)
    assert said.startswith("error  memory:")
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("error")
def test_divergence_is_one_line(file, tmp_path, monkeypatch, capsys):
    rate = ["--set", "method.local_learning_rate=1e38", "--set", "train.evaluate_every=1"]
    code, said = main_says(monkeypatch, capsys, "run", file, *rate, "--out", tmp_path / "run")
    assert (code, said.count("\n")) == (2, 1)
    assert "no longer finite" in said


def test_a_run_that_was_cut_off_is_to_be_finished(file, tmp_path, monkeypatch, capsys):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "plan.toml").write_text(file.read_text())
    assert "finish it with `tacit run … --resume" in main_says(monkeypatch, capsys, "report", tmp_path / "run")[1]


def test_methods_say_against_which_views_they_protect():
    rows = {row["name"]: row for row in json.loads(in_process("methods", "--json"))["methods"]}
    assert rows["fedavg"]["views"] == []
    assert {"public", "silo"} <= set(rows["dp-fedavg"]["views"])
    assert "server" not in rows["dp-fedavg"]["views"]  # it adds the noise
    assert "server" in rows["subject-sgd"]["views"]
    assert max(map(len, in_process("methods").splitlines())) <= 80


def test_printed_noise_is_rounded_up_and_its_deviation_is_the_method_s(private):
    assert noise_text(1.00001) == "1.001"
    assert noise_text(0.7) == "0.7"
    said = " ".join(in_process("plan", private, "--set", "method.noise_multiplier=1.00001").split())
    assert "noise multiplier 1.001 (given)" in said
    naive = ["--set", 'method={name="uldp-naive",clip=0.5,noise_multiplier=2.0}']
    said = " ".join(in_process("plan", private, *naive).split())
    assert "standard deviation 3 on every number of a sum = multiplier x clip (0.5) x 3" in said


def test_silos_alone_are_compared_by_the_average_over_silos():
    result = {
        "method": {"label": "fedavg"}, "personal": [], "evaluation": {}, "metrics": {"accuracy": 0.9, "auc": 0.8},
        "over_silos": {"auc": 0.78},
        "baselines": {"silo-only": {"metrics": {"accuracy": 0.7, "auc": 0.71}, "over_silos": {"auc": 0.71}}},
    }  # fmt: skip
    table = metrics_table(result)
    rows = list(zip(*(column.cells for column in table.columns), strict=True))
    assert rows == [
        ("accuracy", "0.9000", "0.7000"), ("auc", "0.8000", "–"), ("  mean of silos", "0.7800", "0.7100")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("value", "error", "is_shown"),
    [(0.0, 0.89, False), (0.3, 0.89, False), (1.0, 0.2, False), (0.9, 0.2, True), (2.5, 0.8, True)],
)
def test_a_metric_that_its_noise_hides_is_not_printed(value, error, is_shown):
    result = {
        "method": {"label": "uldp-avg"}, "personal": [], "over_silos": {}, "baselines": {},
        "evaluation": {"standard_errors": {"log_loss": error}}, "metrics": {"log_loss": value},
    }  # fmt: skip
    (cell,) = metrics_table(result).columns[1].cells
    assert (f"{value:.4f}" in cell) == is_shown
    assert f"{error:.2f}" in cell


def test_the_help_of_a_sweep_loses_no_word():
    shown = " ".join(CliRunner().invoke(app, ["plan", "--help"], env={"COLUMNS": "200"}).stdout.split())
    assert "every key of (" not in shown
    assert "every key of the method" in shown


def test_the_module_is_the_command():
    done = subprocess.run([sys.executable, "-m", "tacit", "--version"], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("tacit ")


def test_bars_fit_on_a_narrow_terminal():
    console = Console(width=80, file=io.StringIO(), force_terminal=True)
    bars = Bars(console)
    bars.begin("subject-sgd + momentum", 60, 0)
    bars.advance(60, {"accuracy": 0.712, "auc": 0.723})
    bars.end()
    last = Text.from_ansi(console.file.getvalue()).plain.splitlines()[-1]
    assert "auc 0.723" in last
    assert re.search(r"0:00:00 left [-0]:[-0]{2}:[-0]{2}", last)


def test_the_program_and_its_help_import_nothing_slow():
    """All commands are imported for the help; what they compute with is not."""
    program = (
        "import sys, tacit; from tacit.ui.main import main\n"
        "sys.argv = ['tacit', '--help']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "slow = {'jax', 'numpy', 'pandas', 'scipy', 'dp_accounting', 'pydantic', 'nvflare'}\n"
        "sys.exit(', '.join(sorted(slow & sys.modules.keys())) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "survey" in done.stdout


def test_commands_of_families_are_part_of_the_program_and_the_package():
    assert "--categories" in in_process("survey", "--help")
    assert tacit.survey.__module__.startswith("tacit.families.")
