"""One training in several processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tacit
from tacit.engine.process_group import ALONE, ProcessGroup
from tacit.engine.supervisor import MachinePlace, check_coordinator, check_shared
from tacit.kernels import arrange
from tacit.kernels.lane_schedule import Layout
from tacit.kernels.stored import forget, is_on_disk, on_disk
from tests.refusals import refuses

NOISE = {"clip": 1.0, "noise_multiplier": 0.5}
METHODS = {
    "subject-sgd": {**NOISE, "subject_sample_rate": 0.7},
    "dp-fedavg": {**NOISE, "local_learning_rate": 0.5},
    "fedavg": {"batch_size": 16, "local_learning_rate": 0.5},
    "uldp-avg": {**NOISE, "local_learning_rate": 0.5},
    "uldp-sgd": NOISE,
}
QUICK = ("subject-sgd", "dp-fedavg", "fedavg")


@pytest.fixture
def made(tmp_path, visits, experiment):
    """An experiment on a table in a file, with a method of METHODS."""
    visits.to_parquet(tmp_path / "visits.parquet", index=False)
    experiment["data"] |= {"path": str(tmp_path / "visits.parquet")}
    experiment["data"]["silos"]["count"] = 3
    experiment["data"]["subjects"]["count"] = 60
    experiment["privacy"] = {"max_records_per_subject_and_silo": 10, "max_silos_per_subject": 2, "delta": 1e-3}

    def made(method: str, processes: int = 1, **changes: object) -> dict:
        parts = {"method": {"name": method, **METHODS.get(method, {})}, "engine": {"processes": processes}}
        return {**experiment, **parts, **changes}

    return made


def model_of(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def metrics_of(folder: Path) -> list[dict]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


@pytest.mark.parametrize(
    ("method", "processes"),
    [
        pytest.param(method, count, marks=() if count == 2 and method in QUICK else pytest.mark.slow)
        for method in METHODS
        for count in (2, 4)
    ],
)
def test_any_number_of_processes_learns_the_same_bits(made, tmp_path, method, processes):
    alone = tacit.run(made(method), out=tmp_path / "alone")
    shared = tacit.run(made(method, processes), out=tmp_path / "shared")
    assert model_of(shared.path) == model_of(alone.path)
    assert metrics_of(shared.path) == metrics_of(alone.path)
    assert shared.result["guarantees"] == alone.result["guarantees"]


def test_processes_share_constants_that_were_released_and_a_key_without_a_seed(made, tmp_path):
    changes = {"seed": None, "train": {"rounds": 2}}
    content = made("subject-sgd", 2, **changes)
    content["data"] |= {"standardize": "private"}
    content["data"]["numeric"] = {"age": {"low": 0, "high": 100}, "pressure": {"low": 60, "high": 200}}
    run = tacit.run(content, out=tmp_path / "run")  # processes refuse each other where keys or constants differ
    assert run.result["status"] == "finished"
    assert len(metrics_of(run.path)) == 3


def children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds processes in /proc")
def test_a_killed_process_ends_the_run_with_one_error_and_the_run_can_be_resumed(made, tmp_path):
    train = {"rounds": 120, "checkpoint_every": 1}
    (tmp_path / "it.toml").write_text(tacit.plan(made("subject-sgd", 2, train=train)).to_toml())
    command = [sys.executable, "-m", "tacit", "run", str(tmp_path / "it.toml")]
    started = subprocess.Popen([*command, "--out", str(tmp_path / "run")], stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "run" / "metrics.jsonl"
    while not metrics.is_file() or len(metrics.read_text().splitlines()) < 3:
        assert started.poll() is None, started.stderr.read()
        time.sleep(0.05)
    members = children(started.pid)
    assert len(members) == 2
    assert all(b"python" in Path(f"/proc/{member}/cmdline").read_bytes() for member in members)
    os.kill(members[1], signal.SIGKILL)
    _, said = started.communicate(timeout=60)
    assert started.returncode == 2
    assert "engine.processes: process 1" in said
    assert "[process-ended]" in said
    assert not any(Path(f"/proc/{member}").exists() for member in members)
    resumed = tacit.run(tacit.plan(tmp_path / "it.toml", ["engine.processes=1"]), resume=tmp_path / "run")
    alone = tacit.run(tacit.plan(tmp_path / "it.toml", ["engine.processes=1"]), out=tmp_path / "alone")
    assert model_of(resumed.path) == model_of(alone.path)


def test_an_error_of_a_process_is_that_of_the_run(made, tmp_path):
    content = made("subject-sgd", 2)
    content["data"] |= {"path": str(tmp_path / "missing.parquet")}
    with refuses("file-not-found", "data.path"):
        tacit.run(content, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("method", "exchange"),
    [("subject-sgd", "masked"), ("scaffold", "plain"), ("pooled", "plain"), ("silo-only", "plain")],
)
def test_work_that_is_no_sum_over_subjects_or_silos_is_refused(made, method, exchange):
    changes = {"exchange": {"name": exchange}}
    with refuses("not-supported", "engine.processes"):
        check_shared(tacit.plan(made(method, 2, **changes)))


def test_a_frame_is_refused_by_several_processes(made, visits):
    with refuses("not-supported", "frame"):
        tacit.run(made("subject-sgd", 2), visits)


@pytest.mark.parametrize(
    ("address", "place", "code", "field"),
    [
        ("localhost", 0, "malformed", "--coordinator"),
        ("localhost:0", 0, "malformed", "--coordinator"),
        ("localhost:4000", 2, "out-of-range", "--process-id"),
    ],
)
def test_a_coordinator_has_an_address_and_a_process_a_number(made, address, place, code, field):
    with refuses(code, field):
        check_coordinator(tacit.plan(made("subject-sgd", 2)), MachinePlace(address, place))


def test_lanes_of_all_processes_together_are_those_of_one(made):
    starts, counts = np.arange(40) * 5, np.resize([1, 5, 2], 40)
    layout = Layout(parameters=100, pass_rows=16)
    every = arrange(starts, counts, np.ones(40), layout, lanes=4)
    groups = [ProcessGroup(place, 2) for place in range(2)]
    shares = [
        arrange(starts, counts, np.ones(40), layout, lanes=4, here=group.shared([0, 1, 2, 3])) for group in groups
    ]
    for group, lanes in zip(groups, shares, strict=True):
        assert [len(lane.people) for lane in lanes] == [len(lane.people) for lane in group.shared(list(every))]
    assert ALONE.gathered(3) == (3,)


def test_processes_with_a_coordinator_are_one_run(made, tmp_path):
    (tmp_path / "it.toml").write_text(tacit.plan(made("subject-sgd", 2)).to_toml())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [sys.executable, "-m", "tacit", "run", str(tmp_path / "it.toml"), "--coordinator", address]
    other = subprocess.Popen([*command, "--process-id", "1"])
    first = subprocess.run([*command, "--out", str(tmp_path / "run")], check=False, timeout=300)
    assert (first.returncode, other.wait(timeout=60)) == (0, 0)
    alone = tacit.run(made("subject-sgd"), out=tmp_path / "alone")
    assert model_of(tmp_path / "run") == model_of(alone.path)


@pytest.mark.parametrize("method", ["subject-sgd", "uldp-avg"])
def test_features_in_a_file_train_the_same_bits(made, tmp_path, monkeypatch, method):
    for place in ("tacit.kernels.stored", "tacit.data.encode"):
        monkeypatch.setattr(f"{place}.ROWS_AT_ONCE", 128)
    runs = [
        tacit.run(made(method, engine={"features": features}), out=tmp_path / features)
        for features in ("memory", "disk")
    ]
    assert model_of(runs[0].path) == model_of(runs[1].path)
    assert metrics_of(runs[0].path) == metrics_of(runs[1].path)


def test_a_file_of_features_has_no_name_and_keeps_what_memory_forgets():
    made = on_disk(10, 3)
    made[2:4, 1] = 5.0
    forget(made)
    assert is_on_disk(made)
    assert made[2:4, 1].tolist() == [5.0, 5.0]
    assert np.count_nonzero(made) == 2
    assert not Path(made.filename or "").is_file()


@pytest.mark.parametrize("method", ["fedavg", "dp-fedavg"])
def test_work_silo_by_silo_needs_features_in_memory(made, tmp_path, method):
    with refuses("not-supported", "engine.features"):
        tacit.run(made(method, engine={"features": "disk"}), out=tmp_path / "run")
