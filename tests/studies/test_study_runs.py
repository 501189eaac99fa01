"""Studies at work: resumed after kills, in processes and on a cluster; their files and their page."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
import tomli_w
from typer.testing import CliRunner

import tacit
from tacit.studies.study import CSV, JSON, PAGE, TRAININGS, Study
from tacit.studies.study_workers import workers
from tacit.ui.main import app
from tests.browser import BROWSER, Browser
from tests.refusals import refuses
from tests.studies import made_study

ROOT = Path(__file__).resolve().parents[2]


def metrics(out: Path) -> dict[str, float]:
    """The metric of every line of the file of finished trainings, which has no key twice."""
    lines = [json.loads(line) for line in (out / TRAININGS).read_text().splitlines()]
    assert len({line["key"] for line in lines}) == len(lines)
    return {line["key"]: line["metrics"]["auc"] for line in lines}


def descendants(process: int) -> list[int]:
    """Processes that a process and its threads have started."""
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    return [int(pid) for task in tasks for pid in task.read_text().split()]


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(condition: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happens"
        time.sleep(0.02)


def killed_and_resumed(file: Path, out: Path, kills: int, seed: int) -> None:
    """Run a study that is killed after a few more trainings, again and again, and once to its end."""
    chance = random.Random(seed)
    total = len(Study(file, out).planned.expected)
    finished = 0
    for left in range(kills, 0, -1):
        running = subprocess.Popen(made_study.command(file, "--out", out, "--jobs", 2), stdout=subprocess.DEVNULL)
        wanted = finished + chance.randint(1, max(1, (total - finished) // (left + 1)))
        until(lambda wanted=wanted: (out / TRAININGS).is_file() and len(metrics_so_far(out)) >= wanted)
        time.sleep(chance.random() / 4)
        started = descendants(running.pid)
        running.send_signal(signal.SIGKILL)
        running.wait()
        assert started
        until(lambda started=started: not any(map(is_running, started)), 60)  # none is left to train on
        finished = len(metrics_so_far(out))
    done = made_study.ran(file, "--out", out, "--jobs", 2, "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    # every line is a training that was run, and there is one for each that was planned
    assert len((out / TRAININGS).read_text().splitlines()) == printed["trainings"] == printed["finished"] == total
    assert printed["trained"] == total - finished


def metrics_so_far(out: Path) -> list[bytes]:
    content = (out / TRAININGS).read_bytes()
    return content[: content.rfind(b"\n") + 1].splitlines()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """The small study, run without an interruption."""
    folder = tmp_path_factory.mktemp("study")
    return tacit.study(made_study.written(folder), out=folder / "out", jobs=2)


def test_a_study_that_is_killed_three_times_has_the_same_results_and_repeats_nothing(finished, tmp_path):
    killed_and_resumed(finished.file, tmp_path / "out", kills=3, seed=1)
    assert metrics(tmp_path / "out") == pytest.approx(metrics(finished.path), abs=1e-6)


@pytest.mark.slow
def test_the_quick_example_is_killed_three_times_and_ends_with_the_same_results(tmp_path):
    file = ROOT / "examples" / "studies" / "quick.toml"
    begun = time.monotonic()
    assert made_study.ran(file, "--out", tmp_path / "whole").returncode == 0
    assert time.monotonic() - begun < 300
    killed_and_resumed(file, tmp_path / "out", kills=3, seed=2)
    assert len(metrics(tmp_path / "whole")) == 59
    assert metrics(tmp_path / "out") == pytest.approx(metrics(tmp_path / "whole"), abs=1e-6)


# AUC on RAND HIE that examples/subject/run.py had with seeds 0, 1 and 2, and the settings that it had chosen
OF_THE_RUNNER = {
    "fedavg": ([0.7404605828048296, 0.7403696860954682, 0.7402284557033985], {"method.local_learning_rate": 0.1}),
    "subject-sgd": (
        [0.741105446104469, 0.7426258194027464, 0.740329123068815],
        {"method.clip": 0.1, "train.server_learning_rate": 40.0},
    ),
    "central-group": (
        [0.7408999662468245, 0.7395886257720299, 0.7395400685722406],
        {"method.clip": 0.5, "train.server_learning_rate": 0.5},
    ),
}


@pytest.mark.slow
def test_the_study_of_the_subject_level_methods_has_the_numbers_of_the_runner(tmp_path):
    content = tomllib.loads((ROOT / "examples" / "studies" / "subject-tables.toml").read_text(encoding="utf-8"))
    content["axes"][0]["values"] = [str(ROOT / "examples" / "subject" / "randhie.toml")]
    content["contenders"] = [one for one in content["contenders"] if one["name"] in OF_THE_RUNNER]
    (tmp_path / "study.toml").write_text(tomli_w.dumps(content), encoding="utf-8")
    found = {one.cell.contender: one for one in tacit.study(tmp_path / "study.toml", out=tmp_path / "out").outcomes()}
    assert found.keys() == OF_THE_RUNNER.keys()
    for name, (scores, settings) in OF_THE_RUNNER.items():
        assert found[name].scores == pytest.approx(scores, abs=1e-6)
        assert found[name].settings == settings


def test_a_finished_study_trains_nothing_again_and_one_more_contender_only_itself(finished, tmp_path):
    assert finished.trained == 12
    assert (finished.finished, finished.status()["minutes_left"]) == (12, 0.0)
    assert tacit.study(finished.file, out=finished.path, jobs=1).trained == 0
    contenders = [*made_study.study()["contenders"], {"name": "third", "method": {"name": "fedsgd"}}]
    shutil.copytree(finished.path, tmp_path / "out")
    more = tacit.study(made_study.written(tmp_path, contenders=contenders), out=tmp_path / "out", jobs=1)
    assert more.trained == 2
    assert {line["contender"] for line in more.lines.values()} == {"subject-sgd", "fedavg", "third"}


def test_a_result_of_a_study_is_that_of_a_run_with_the_same_seed(finished, tmp_path):
    outcome = finished.outcomes()[0]
    content = {**made_study.EXPERIMENT, "seed": 1}
    content["method"] = {"name": "subject-sgd", "clip": 0.5, "noise_multiplier": 1.0}
    content["train"] = {"rounds": 2, "server_learning_rate": outcome.settings["train.server_learning_rate"]}
    run = tacit.run(content, out=tmp_path / "run")
    assert outcome.scores[1] == pytest.approx(run.metrics["auc"], abs=1e-6)


def test_the_chosen_setting_is_the_best_on_held_out_training_subjects(finished):
    for outcome in finished.outcomes():
        judged = {repr(settings): value for settings, value in outcome.judged}
        assert judged[repr(outcome.settings)] == max(judged.values())
        assert len(judged) == 2


def test_table_json_and_page_have_every_result_and_say_that_tuning_is_not_accounted(finished):
    frame = finished.frame()
    assert len(frame) == 2 * 2 * 2
    assert pd.read_csv(finished.path / CSV).shape == frame.shape
    content = json.loads((finished.path / JSON).read_text())
    assert content["tuning"] == "not-accounted"
    assert {cell["contender"] for cell in content["cells"]} >= {"subject-sgd", "fedavg"}
    difference = content["differences"][0]
    assert difference["low"] < difference["mean"] < difference["high"]
    assert difference["reference"] == "subject-sgd"
    page = (finished.path / PAGE).read_text(encoding="utf-8")
    assert len(page.encode()) < 400_000
    assert "Tuning: not-accounted" in page
    assert "<iframe" in finished.plot()._repr_html_()


def test_status_and_plan_print_the_number_of_trainings_without_a_folder(tmp_path):
    file = made_study.written(tmp_path)
    for word in ("status", "plan"):
        done = CliRunner().invoke(app, ["study", word, str(file), "--out", str(tmp_path / "out"), "--json"])
        assert done.exit_code == 0, done.output
        printed = json.loads(done.stdout)
        assert (printed["trainings"], printed["finished"], printed["refused"]) == (12, 0, [])
    assert not (tmp_path / "out").exists()


def test_a_study_without_a_subcommand_is_run(finished):
    done = CliRunner().invoke(app, ["study", str(finished.file), "--out", str(finished.path)])
    assert done.exit_code == 0, done.output
    assert str(finished.path / PAGE) in done.stdout.replace("\n", "")


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_the_page_is_drawn_with_bands_and_fits_a_phone(finished, tmp_path):
    finished.write()
    page = finished.path / PAGE
    with Browser(tmp_path / "profile") as browser:
        for width, dark in ((1280, False), (390, True)):
            browser.open(page, width, dark=dark)
            assert browser.run("document.documentElement.dataset.charts") == "1"
            assert browser.run("document.documentElement.scrollWidth") <= width
            drawn = "Chart.getChart(document.querySelector('canvas')).data.datasets"
            # two contenders: a line, and two edges of the band around it
            assert browser.run(f"{drawn}.map(one => Boolean(one.edge)).join()") == "false,false,true,true,true,true"
            assert browser.requests == [page.as_uri()]
            assert browser.said == []


def test_a_line_that_a_crash_cut_off_is_trained_again(finished, tmp_path):
    whole = (finished.path / TRAININGS).read_bytes().splitlines(keepends=True)
    (tmp_path / TRAININGS).write_bytes(b"".join(whole[:5]) + whole[5][:40])
    study = Study(finished.file, tmp_path)
    assert len(study.lines) == 5
    assert (tmp_path / TRAININGS).read_bytes() == b"".join(whole[:5])
    (tmp_path / TRAININGS).write_bytes(b"no line\n")
    with refuses("file-damaged", "trainings.jsonl"):
        assert Study(finished.file, tmp_path).lines


def test_two_processes_do_not_work_in_the_same_folder(finished):
    from tacit.engine.run import alone

    with alone(finished.path), refuses("in-use", "--out"):
        finished.run(jobs=1)


def test_a_folder_of_something_else_is_not_used(tmp_path):
    (tmp_path / "letter.txt").write_text("mine")
    with refuses("wrong-file", "--out"):
        tacit.study(made_study.written(tmp_path / "study"), out=tmp_path)


def test_a_process_that_dies_ends_the_study_with_an_error():
    with workers(1) as executor, refuses("run-failed", "--jobs"):
        executor.submit(os._exit, 3).result()


def test_an_error_within_a_training_reaches_the_caller():
    with workers(1) as executor, pytest.raises(ZeroDivisionError):
        executor.submit(divmod, 1, 0).result()


# ---- a cluster


@pytest.fixture
def cluster() -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """The address of a Dask scheduler on this machine, and its two workers."""
    pytest.importorskip("distributed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    dask = [sys.executable, "-m", "distributed.cli.dask_scheduler"]
    started = [
        subprocess.Popen(
            [*dask, "--host", "127.0.0.1", "--port", address.rpartition(":")[2], "--no-dashboard"], **quiet
        )
    ]
    worker = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-dashboard"]
    started += [subprocess.Popen([*worker, "--no-nanny"], **quiet) for _ in range(2)]
    yield address, started[1:]
    for process in started:
        process.kill()
        process.wait()


def test_a_cluster_that_loses_a_worker_has_the_results_of_this_machine(finished, cluster, tmp_path):
    address, dask_workers = cluster
    running = subprocess.Popen(
        made_study.command(finished.file, "--out", tmp_path / "out", "--scheduler", address, "--json"),
        stdout=subprocess.PIPE,
    )
    until(lambda: (tmp_path / "out" / TRAININGS).is_file() and len(metrics_so_far(tmp_path / "out")) >= 2)
    dask_workers[0].kill()
    printed, _ = running.communicate(timeout=400)
    assert running.returncode == 0
    assert json.loads(printed)["trained"] == 12
    same = {key: value for key, value in metrics(finished.path).items() if key in metrics(tmp_path / "out")}
    assert len(same) == 12
    assert metrics(tmp_path / "out") == pytest.approx(same, abs=1e-6)


def test_a_scheduler_that_does_not_answer_is_an_error(finished, tmp_path, monkeypatch):
    pytest.importorskip("distributed")
    with refuses("no-answer", "--scheduler"):
        tacit.study(finished.file, out=tmp_path / "out", scheduler="nowhere://127.0.0.1:1")
