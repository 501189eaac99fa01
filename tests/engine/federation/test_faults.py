"""What happens to a run when processes of a federation die, hang or come back: it completes, or says why, and nothing
is released that is not written down on every side."""

from __future__ import annotations

import signal
import threading
import time

import psutil
import pytest

pytest.importorskip("nvflare")

from tacit.engine import Run
from tacit.engine.federation.requester import follow
from tacit.engine.federation.trial import PARTS, REQUESTER, Trial
from tacit.privacy import Ledger

from . import worlds

pytestmark = pytest.mark.slow  # a minute each

ROUNDS = 8
PATIENCE = 20


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    with worlds.federation(tmp_path_factory.mktemp("faults")) as running:
        yield running


def followed(trial: Trial, content: dict, name: str, lines: int, happen) -> tuple[Run, list[str], worlds.Mishap]:
    """A run to which something happens in its middle."""
    planned, request = worlds.asked(trial, content, name, PATIENCE)
    mishap = worlds.Mishap(trial, request.run, lines, happen)
    told: list[str] = []
    run = follow(trial.kit(REQUESTER), request, planned.rounds, planned.label, tell=told.append)
    assert mishap.happened.is_set()
    return run, told, mishap


def check_ledgers(trial: Trial, run: Run, *, without: str = "") -> None:
    """Everybody has written down every round of the run at least once, the server what it says."""
    with Ledger(run.path / "ledger.jsonl") as ledger:
        assert {line["round"] for line in ledger.lines} == set(range(1, run.result["rounds"] + 1))
        number = len(ledger.lines)
    assert number <= ROUNDS + 3
    for silo in PARTS:
        if silo != without:
            with Ledger(trial.home(silo) / "DATA.ledger.jsonl") as ledger:
                name = ledger.lines[-1]["run"]
                mine = {line["round"] for line in ledger.lines if line["run"] == name}
            assert mine == set(range(1, ROUNDS + 1)), silo


def long(**changes: object) -> dict:
    return worlds.experiment(train={"rounds": ROUNDS}, **changes)


def test_a_silos_job_process_is_killed(trial):
    def happen() -> None:
        for process in worlds.job_processes(trial, "west"):
            process.kill()

    run, told, _ = followed(trial, long(), "job-killed", 3, happen)
    assert run.result["status"] == "finished"
    assert any("asking again" in line for line in told)
    check_ledgers(trial, run)


def test_a_whole_silo_is_killed_and_comes_back(trial):
    def happen() -> None:
        worlds.kill(trial, "south")
        trial.start("south")

    run, told, _ = followed(trial, long(), "silo-killed", 3, happen)
    assert run.result["status"] == "finished"
    assert any("asking again" in line for line in told)
    check_ledgers(trial, run)


def test_a_silo_hangs_longer_than_it_is_waited_for(trial):
    def happen() -> None:
        worlds.send_signal(trial, "north", signal.SIGSTOP)
        threading.Timer(PATIENCE + 10, lambda: worlds.send_signal(trial, "north", signal.SIGCONT)).start()

    run, told, _ = followed(trial, long(), "silo-hangs", 3, happen)
    assert run.result["status"] == "finished"
    assert any("north" in line for line in told)
    check_ledgers(trial, run)


def test_a_silo_that_dies_is_done_without_where_the_exchange_allows_drop_outs(trial):
    content = long(exchange={"name": "masked", "drop_outs": 1})
    run, told, _ = followed(trial, content, "dropped", 3, lambda: worlds.kill(trial, "west"))
    assert run.result["status"] == "finished"
    assert not any("asking again" in line for line in told)
    check_ledgers(trial, run, without="west")
    trial.start("west")
    trial.wait("west")


def test_the_servers_job_process_is_killed(trial):
    def happen() -> None:
        for process in worlds.job_processes(trial, "server"):
            process.kill()

    run, told, _ = followed(trial, long(), "server-job-killed", 3, happen)
    assert run.result["status"] == "finished"
    assert any("asking again" in line for line in told)
    check_ledgers(trial, run)


def test_the_server_is_killed_and_comes_back(trial):
    def happen() -> None:
        worlds.kill(trial, "server")
        time.sleep(2)
        trial.start("server")

    run, told, _ = followed(trial, long(), "server-killed", 3, happen)
    assert run.result["status"] == "finished"
    assert any("asking again" in line for line in told)
    check_ledgers(trial, run)


def test_nobody_is_left_behind(trial):
    """Processes that work on runs end with their run."""
    end = time.monotonic() + 40
    while any(worlds.job_processes(trial, name) for name in trial.processes) and time.monotonic() < end:
        time.sleep(0.5)
    assert not [p.cmdline() for name in trial.processes for p in worlds.job_processes(trial, name)]
    assert all(psutil.pid_exists(process.pid) for process in trial.processes.values())
