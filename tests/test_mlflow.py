"""Runs in MLflow: a server of its own on loopback, with a database of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomli_w

import tacit
from tacit.engine import read_metrics
from tacit.errors import NotLoggedWarning
from tests import made

mlflow = pytest.importorskip("mlflow")

import tacit.mlflow  # noqa: E402

SERVER = "from mlflow.cli import cli; cli()"


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[str]:
    """The address of a tracking server."""
    home, port = tmp_path_factory.mktemp("mlflow"), free_port()
    place = ["--backend-store-uri", f"sqlite:///{home}/mlflow.db", "--artifacts-destination", str(home / "files")]
    listen = ["--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command = [sys.executable, "-c", SERVER, "server", *place, *listen]
    with (home / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for(address, process, home / "log")
        yield address
    finally:
        os.killpg(process.pid, 15)
        process.wait(30)


def wait_for(address: str, process: subprocess.Popen, log: Path) -> None:
    for _ in range(240):
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"{address}/health", timeout=2) as answer:
                assert answer.status == 200
                return
        except OSError:
            time.sleep(0.5)
    pytest.fail(f"no MLflow server after 120 seconds: {log.read_text()}")


def private() -> dict:
    experiment = made.experiment()
    del experiment["seed"]
    experiment["data"]["subjects"]["count"] = 60
    experiment["data"]["silos"]["count"] = 3
    experiment["method"] = {"name": "subject-sgd", "target_epsilon": 4.0}
    return experiment


def files(client, logged: str) -> set[str]:
    return {file.path for file in client.list_artifacts(logged)}


def test_a_run_is_logged_with_settings_rounds_epsilon_and_what_may_leave(server, tmp_path):
    run = tacit.run(private(), made.visits(), out=tmp_path / "run")
    logged = tacit.mlflow.log(run, server)
    client = mlflow.MlflowClient(tracking_uri=server)
    found = client.get_run(logged)
    assert found.info.status == "FINISHED"
    assert found.data.tags["tacit.metrics"] == "outside-guarantee"
    assert found.data.params["method.name"] == "subject-sgd"
    assert found.data.params["method.target_epsilon"] == "4.0"
    assert float(found.data.params["method.noise_multiplier"]) == run.result["noise_multiplier"]
    lines = read_metrics(run.path / "metrics.jsonl")
    for name, key in (("accuracy", "metrics"), ("epsilon.public", "epsilon")):
        steps = {point.step: point.value for point in client.get_metric_history(logged, name)}
        assert steps == {line["round"]: line[key][name.removeprefix("epsilon.")] for line in lines}
    shared = files(client, logged)
    assert shared == {file.name for file in (run.path / "share").iterdir()}
    assert {"plan.toml", "model.safetensors", "encoder.json"} <= shared
    assert not shared & {"metrics.jsonl", "report.html", "model-card.md"}  # they have metrics of private records
    copy = client.download_artifacts(logged, "model.safetensors", str(tmp_path))
    assert Path(copy).read_bytes() == (run.path / "model.safetensors").read_bytes()


def test_constants_of_single_silos_are_not_sent(server, tmp_path):
    experiment = made.experiment()
    experiment["data"]["standardize"] = "per-silo"
    logged = tacit.mlflow.log(tacit.run(experiment, made.visits(), out=tmp_path / "run"), server)
    client = mlflow.MlflowClient(tracking_uri=server)
    assert "encoder.json" not in files(client, logged)
    assert not [name for name in client.get_run(logged).data.metrics if name.startswith("epsilon")]  # infinite


def test_the_command_logs_its_run(server, tmp_path):
    made.visits().to_csv(tmp_path / "visits.csv", index=False)
    experiment = private()
    experiment["data"]["path"] = "visits.csv"
    (tmp_path / "e.toml").write_text(tomli_w.dumps(experiment))
    arguments = ["run", str(tmp_path / "e.toml"), "--out", str(tmp_path / "run"), "--mlflow", server, "--json"]
    done = subprocess.run([sys.executable, "-m", "tacit", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["status"] == "finished"
    client = mlflow.MlflowClient(tracking_uri=server)
    runs = client.search_runs([client.get_experiment_by_name("tacit").experiment_id])
    assert "…/visits.csv" in {found.data.params.get("data.path") for found in runs}


def test_autolog_logs_every_run_until_it_is_disabled(server, tmp_path):
    client = mlflow.MlflowClient(tracking_uri=server)
    tacit.mlflow.autolog(server, "auto")
    try:
        run = tacit.run(private(), made.visits(), out=tmp_path / "run")
    finally:
        tacit.mlflow.autolog(disable=True)
    tacit.run(private(), made.visits(), out=tmp_path / "other")
    (found,) = client.search_runs([client.get_experiment_by_name("auto").experiment_id])
    assert found.data.metrics["accuracy"] == run.metrics["accuracy"]


def test_a_server_that_does_not_answer_leaves_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    tacit.mlflow.autolog(f"http://127.0.0.1:{free_port()}")
    try:
        with pytest.warns(NotLoggedWarning):
            run = tacit.run(private(), made.visits(), out=tmp_path / "run")
    finally:
        tacit.mlflow.autolog(disable=True)
    assert run.report.is_file()
