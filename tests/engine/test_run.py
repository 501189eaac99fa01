from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit.engine import read_metrics
from tacit.engine.evaluate import about
from tacit.engine.learner import load_arrays
from tacit.errors import DivergedWarning, UserError
from tacit.privacy import Ledger
from tacit.ui.console import Bars
from tacit.ui.main import main
from tests.refusals import refuses


def model_bytes(run: tacit.Run) -> bytes:
    return (run.path / "model.safetensors").read_bytes()


def test_a_run_learns_writes_its_folder_and_predicts(tmp_path, visits, experiment):
    run = tacit.run(experiment, visits, out=tmp_path / "run", baselines=True)
    expected = {"plan.toml", "ledger.jsonl", "metrics.jsonl", "model.safetensors", "result.json"}
    assert expected | {"report.html", "local.html"} <= {path.name for path in run.path.iterdir()}
    assert run.metrics["accuracy"] > 0.8
    assert run.result["baselines"].keys() == {"silo-only", "pooled"}
    assert list(run.history()["round"]) == [0, 1, 2, 3, 4]
    predictions = tacit.Run.load(run.path).predict(visits)
    assert (predictions["prediction"] == visits["ill"]).mean() > 0.8
    assert predictions["probability"].between(0, 1).all()
    assert [line["round"] for line in Ledger(run.path / "ledger.jsonl").lines] == [1, 2, 3, 4]
    assert {guarantee["epsilon"] for guarantee in run.guarantees()} == {"inf"}
    for name in ("ledger.jsonl", "checkpoint.safetensors", "local.json"):  # they stay with the data holder
        assert stat.S_IMODE((run.path / name).stat().st_mode) == 0o600


def test_equal_seeds_give_equal_models_and_different_seeds_do_not(tmp_path, visits, experiment):
    one = tacit.run(experiment, visits, out=tmp_path / "one")
    two = tacit.run(experiment, visits, out=tmp_path / "two")
    other = tacit.run({**experiment, "seed": 6}, visits, out=tmp_path / "other")
    assert model_bytes(one) == model_bytes(two)
    assert model_bytes(one) != model_bytes(other)


def test_a_run_killed_and_resumed_ends_bit_identical_to_an_uninterrupted_one(tmp_path, visits, experiment):
    """SCAFFOLD and Adam: the server's and the silos' state must both come back."""
    experiment["method"]["name"] = "scaffold"
    experiment["train"] = {"rounds": 60, "server_optimizer": "adam", "evaluate_every": 3, "checkpoint_every": 7}
    file = written(tmp_path, visits, experiment)
    for attempt in range(5):  # on a busy machine a run may end before it is seen to have begun
        cut = tmp_path / f"cut{attempt}"
        process = started("run", file, "--out", cut)
        wait_for(lambda: len(read_metrics(cut / "metrics.jsonl")) > 3, 180)  # noqa: B023
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=180)
        if not (cut / "result.json").exists():  # it was cut off in the middle
            break
    else:
        pytest.fail("the run ended before it could be killed, five times")
    resumed = tacit.run(file, resume=cut)
    whole = tacit.run(file, out=tmp_path / "whole")
    assert model_bytes(resumed) == model_bytes(whole)
    states = [(run.path / "checkpoint.safetensors").read_bytes() for run in (whole, resumed)]
    assert states[0] == states[1]
    values = [[line["metrics"] for line in read_metrics(run.path / "metrics.jsonl")] for run in (whole, resumed)]
    assert values[0] == values[1]
    assert [line["round"] for line in Ledger(resumed.path / "ledger.jsonl").lines] == list(range(1, 61))


def test_frozen_layers_of_a_run_without_a_seed_survive_resuming(tmp_path, visits, experiment):
    del experiment["seed"]
    experiment["model"] = {"name": "mlp", "hidden": [4], "freeze": ["layer0"]}
    experiment["train"] = {"rounds": 100_000, "evaluate_every": 50, "checkpoint_every": 5}
    out, file = tmp_path / "run", written(tmp_path, visits, experiment)
    process = started("run", file, "--out", out)
    wait_for(lambda: (out / "model.safetensors").exists(), 180)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=180)
    before = load_arrays(out / "model.safetensors", "test")[0]["layer0/w"]
    again = started("run", file, "--resume", out)
    lines = len(read_metrics(out / "metrics.jsonl"))
    wait_for(lambda: len(read_metrics(out / "metrics.jsonl")) > lines + 1, 180)
    again.send_signal(signal.SIGINT)
    again.communicate(timeout=180)
    np.testing.assert_array_equal(load_arrays(out / "model.safetensors", "test")[0]["layer0/w"], before)


def test_ctrl_c_during_the_references_keeps_the_finished_run(tmp_path, visits, experiment, monkeypatch):
    """A real signal, sent in the third round of the first reference."""
    experiment["train"] = {"rounds": 20, "evaluate_every": 1}
    out, file = tmp_path / "run", written(tmp_path, visits, experiment)
    references = out / "baselines" / "silo-only" / "metrics.jsonl"
    advance = Bars.advance

    def interrupted(self: Bars, number: int, metrics: Any) -> None:
        advance(self, number, metrics)
        if number == 3 and references.exists():
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Bars, "advance", interrupted)
    monkeypatch.setattr(sys, "argv", ["tacit", "run", str(file), "--out", str(out), "--baselines"])
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(SystemExit) as ended:
            main()
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.value.code == 130
    assert len(read_metrics(references)) < 20
    run = tacit.Run.load(out)
    assert run.result["rounds"] == 20
    assert run.result["baselines"] == {}
    assert not (out / "baselines" / "pooled").exists()
    assert len(run.predict(visits)) == len(visits)


def test_resuming_on_other_records_or_without_the_ledger_is_refused(tmp_path, visits, experiment):
    run = tacit.run(experiment, visits, out=tmp_path / "run")
    with refuses("changed", "data"):
        tacit.run(experiment, visits.assign(age=visits["age"] + 1), resume=run.path)
    (run.path / "ledger.jsonl").unlink()
    with refuses("ledger-mismatch", "--resume"):
        tacit.run(experiment, visits, resume=run.path)


def test_resuming_with_a_changed_experiment_is_refused_by_the_field(tmp_path, visits, experiment):
    tacit.run(experiment, visits, out=tmp_path / "run")
    changed = {**experiment, "method": {**experiment["method"], "local_learning_rate": 0.25}}
    with refuses("changed", "method.local_learning_rate"):
        tacit.run(changed, visits, resume=tmp_path / "run")


def test_a_default_that_is_spelled_out_on_resuming_changes_nothing(tmp_path, visits, experiment):
    experiment["method"].pop("batch_size", None)
    before = tacit.run(experiment, visits, out=tmp_path / "run")
    batch = tacit.plan(experiment).options.batch_size
    spelled = {**experiment, "method": {**experiment["method"], "batch_size": batch}}
    assert spelled != experiment
    assert tacit.run(spelled, visits, resume=tmp_path / "run").metrics == before.metrics


def test_resuming_from_a_damaged_checkpoint_or_an_altered_ledger_is_refused(tmp_path, visits, experiment):
    run = tacit.run(experiment, visits, out=tmp_path / "run")
    ledger = (run.path / "ledger.jsonl").read_text()
    (run.path / "ledger.jsonl").write_text(ledger.replace('"round": 2', '"round": 9'))
    with refuses("ledger-damaged", "--resume"):
        tacit.run(experiment, visits, resume=run.path)
    (run.path / "ledger.jsonl").write_text(ledger)
    (run.path / "checkpoint.safetensors").write_bytes(b"half")
    with refuses("file-damaged", "--resume"):
        tacit.run(experiment, visits, resume=run.path)


@pytest.mark.parametrize("damage", ["column", "label", "nan", "one silo", "model"])
def test_a_refused_run_leaves_no_folder(tmp_path, visits, experiment, damage):
    if damage == "column":
        experiment["data"]["label"] = "sick"
    elif damage == "label":
        visits.loc[3, "ill"] = 7
    elif damage == "nan":
        visits.loc[3, "age"] = np.nan
    elif damage == "one silo":
        visits["clinic"] = "north"
    else:
        experiment["model"] = {"name": "cnn"}
    with pytest.raises(UserError):
        tacit.run(experiment, visits, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_diverging_run_says_so_and_keeps_the_last_finite_model(tmp_path, visits, experiment):
    experiment["model"] = {"name": "mlp", "hidden": [4]}
    experiment["method"]["local_learning_rate"] = 1e6
    experiment["train"] = {"rounds": 30, "checkpoint_every": 1}
    with pytest.warns(DivergedWarning):
        run = tacit.run(experiment, visits, out=tmp_path / "run")
    assert run.result["status"] == "diverged"
    assert run.result["rounds"] < 30
    assert "diverged" in run.report.read_text()


def test_an_existing_folder_is_never_written_into(tmp_path, visits, experiment):
    (tmp_path / "run").mkdir()
    with refuses("exists-already", "--out"):
        tacit.run(experiment, visits, out=tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []


def test_a_public_starting_point_is_where_training_starts(tmp_path, visits, experiment):
    first = tacit.run(experiment, visits, out=tmp_path / "first")
    experiment["model"]["init_from"] = str(first.path / "model.safetensors")
    second = tacit.run(experiment, visits, out=tmp_path / "second")
    start, end = read_metrics(second.path / "metrics.jsonl")[0], read_metrics(first.path / "metrics.jsonl")[-1]
    assert start["metrics"] == end["metrics"]
    experiment["model"] = {"name": "mlp", "init_from": experiment["model"]["init_from"]}
    with refuses("mismatch", "model.init_from"):
        tacit.run(experiment, visits, out=tmp_path / "third")


def test_evaluation_may_use_a_file_of_its_own(tmp_path, visits, experiment):
    visits.iloc[:100].to_csv(tmp_path / "test.csv", index=False)
    experiment["evaluation"] = {"data": str(tmp_path / "test.csv"), "status": "public"}
    run = tacit.run(experiment, visits, out=tmp_path / "run")
    assert json.loads((run.path / "local.json").read_text())["records"] == 600  # nobody is held out as well
    assert run.result["evaluation"] == {"status": "public", "held_out": "file"}
    exact = json.loads((run.path / "local.json").read_text())
    assert exact["test_records"] == 100
    # a result states them rounded
    assert run.result["test_records"] == {silo["name"]: about(silo["test_records"]) for silo in exact["silos"]}


def test_numbers_of_test_records_are_rounded():
    counts = [0, 9, 10, 14, 96, 100, 149, 1949, 12_345]
    assert [about(records) for records in counts] == [0, 0, 10, 10, 100, 100, 150, 1900, 12_000]


def test_without_a_silo_s_own_rows_a_personal_run_says_whose_model_is_wanted(tmp_path, visits, experiment):
    experiment["method"]["name"] = "silo-only"
    run = tacit.run(experiment, visits, out=tmp_path / "run")
    assert len(run.predict(visits, silo="north")) == len(visits)
    with refuses("unknown-name", "silo", names=["north", "south", "west"]):
        run.predict(visits)


def test_ctrl_c_leaves_a_usable_folder(tmp_path, visits, experiment):
    experiment["train"] = {"rounds": 100_000, "evaluate_every": 10, "checkpoint_every": 5}
    out = tmp_path / "run"
    process = started("run", written(tmp_path, visits, experiment), "--out", out)
    wait_for(lambda: len(read_metrics(out / "metrics.jsonl")) > 3, 180)
    process.send_signal(signal.SIGINT)
    printed, _ = process.communicate(timeout=180)
    assert process.returncode == 130
    assert b"--resume" in printed
    run = tacit.Run.load(out)
    assert run.result["status"] == "stopped"
    # the line of a round is written before its work: at most the interrupted one has a line and no model
    assert 20 < run.result["rounds"] <= len(Ledger(out / "ledger.jsonl").lines) <= run.result["rounds"] + 1
    assert "report.html" in os.listdir(out)
    assert len(run.predict(visits)) == len(visits)


def written(folder: Path, visits: pd.DataFrame, experiment: dict) -> Path:
    """The experiment and its table as files."""
    visits.to_csv(folder / "visits.csv", index=False)
    experiment["data"]["path"] = "visits.csv"
    (folder / "experiment.toml").write_text(tacit.plan(experiment, folder=folder).to_toml())
    return folder / "experiment.toml"


def started(*arguments: str | Path) -> subprocess.Popen[bytes]:
    # a test run in the background passes on that SIGINT is ignored; a person's terminal does not
    imports = "import signal; from tacit.ui.main import main"
    program = f"{imports}; signal.signal(signal.SIGINT, signal.default_int_handler); main()"
    wide = {**os.environ, "COLUMNS": "200"}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=wide)


def wait_for(condition, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def test_the_result_holds_no_exact_count_of_the_private_training_data(tmp_path, visits, experiment):
    run = tacit.run(experiment, visits, out=tmp_path / "run")
    local = json.loads((Path(run.path) / "local.json").read_text())
    text = json.dumps(run.result)
    assert str(local["records"]) not in text
    assert "records_per_subject" not in text


def test_a_mistake_in_the_evaluation_file_is_said_of_that_file(tmp_path, visits, experiment):
    experiment["evaluation"] = {"data": str(tmp_path / "test.csv"), "status": "public"}
    broken = visits.iloc[:100].astype({"age": object})
    broken.iloc[7, broken.columns.get_loc("age")] = "old"
    broken.to_csv(tmp_path / "test.csv", index=False)
    with refuses("wrong-type", "evaluation.data", names=["test.csv", "'age'", "'old'"]):
        tacit.run(experiment, visits, out=tmp_path / "run")
    (tmp_path / "test.csv").unlink()
    with refuses("file-not-found", "evaluation.data"):
        tacit.run(experiment, visits, out=tmp_path / "run")


def test_a_run_goes_on_and_predicts_from_any_folder(tmp_path, visits, experiment, monkeypatch):
    """Its own plan knows where the table, and a model of the user's own, are."""
    home = tmp_path / "home"
    home.mkdir()
    visits.to_csv(home / "visits.csv", index=False)
    (home / "beside_the_file.py").write_text((Path(__file__).parents[1] / "models" / "own_models.py").read_text())
    experiment["data"]["path"] = "visits.csv"
    experiment["model"] = {"name": "beside_the_file:scaled"}
    (home / "e.toml").write_text(tacit.plan(experiment, folder=home).to_toml())
    run = tacit.run(home / "e.toml", out=tmp_path / "run")
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(home)])
    monkeypatch.delitem(sys.modules, "beside_the_file")
    monkeypatch.chdir(tmp_path)
    assert len(tacit.Run.load("run").predict(visits)) == len(visits)
    again = tacit.run("run/plan.toml", resume="run")
    assert again.metrics == run.metrics


def test_a_run_without_evaluation_trains_on_all_records_and_has_no_metrics(tmp_path, visits, experiment):
    experiment["evaluation"] = {"data": "none"}
    run = tacit.run(experiment, visits, out=tmp_path / "run")
    assert run.metrics == {}
    assert run.result["evaluation"]["held_out"] == "none"
    assert json.loads((run.path / "local.json").read_text())["records"] == len(visits)
    assert run.report.is_file()
    assert (run.predict(visits)["prediction"] == visits["ill"]).mean() > 0.8
    with refuses("conflict", "evaluation.data"):
        tacit.plan(experiment | {"evaluation": {"data": "none", "status": "public"}})
