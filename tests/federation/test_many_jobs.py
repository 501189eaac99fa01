"""Sixteen jobs at once, of a requester whom the policies list and of one whom they do not: each is answered, and the
processes and the memory of every party stay within a bound."""

from __future__ import annotations

import threading
import time

import psutil
import pytest
import tomli_w

pytest.importorskip("nvflare")

from tacit.engine.folder import read_json
from tacit.engine.run import Silence
from tacit.federation.demo import PARTS, REQUESTER, Trial
from tacit.federation.requester import OUTCOME, _downloaded, _refused_early, _session, _submitted, _Watch

from . import worlds

JOBS, AT_ONCE = 16, 4  # jobs that a server starts at a time (kits), and a silo works on (policy)
PARTIES = ("server", *PARTS)


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    with worlds.federation(tmp_path_factory.mktemp("jobs")) as running:
        yield running


class Sampler:
    """The most job processes of every party, and its most memory in MB, while the block goes on."""

    def __init__(self, trial: Trial) -> None:
        self._trial, self._over = trial, threading.Event()
        self.processes, self.megabytes = dict.fromkeys(PARTIES, 0), dict.fromkeys(PARTIES, 0.0)
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._over.wait(0.1):
            for name in PARTIES:
                parent = psutil.Process(self._trial.processes[name].pid)
                memory = [size for one in (parent, *parent.children()) if (size := _resident(one))]
                self.processes[name] = max(self.processes[name], len(memory) - 1)
                self.megabytes[name] = max(self.megabytes[name], sum(memory) / 2**20)


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def answers(trial: Trial, name: str) -> tuple[list[dict], float]:
    """The outcomes of sixteen requests that are sent before any of them is looked at, and after how many seconds all of
    them are there."""
    kit, began = trial.kit(REQUESTER), time.monotonic()
    content = worlds.experiment(train={"rounds": 1})
    asked = [_submitted(kit, worlds.asked(trial, content, f"{name}-{k}")[1]) for k in range(JOBS)]
    waiting = {request.job: (request, _Watch(kit, request, Silence(), lambda line: None)) for request in asked}
    found = []
    with _session(kit) as session:
        while waiting and time.monotonic() < began + 900:
            for job, (request, watch) in list(waiting.items()):
                if watch.is_over(session):
                    del waiting[job]
                    results = _refused_early(session, kit, request) or _downloaded(session, kit, request)
                    found.append(read_json(results / OUTCOME, "run") if results else {"status": "lost"})
            time.sleep(0.5)
    return found, time.monotonic() - began


def test_sixteen_jobs_of_a_requester_who_is_not_listed_start_no_process(trial):
    for silo in PARTS:
        policy = {**trial.policy, "requesters": ["ana@example.org"]}
        (trial.home(silo) / "POLICY.toml").write_text(tomli_w.dumps(policy))
    try:
        with Sampler(trial) as most:
            found, seconds = answers(trial, "unlisted")
    finally:
        for silo in PARTS:
            (trial.home(silo) / "POLICY.toml").write_text(tomli_w.dumps(trial.policy))
    print(f"{seconds:.0f} s", most.processes, most.megabytes)
    assert [outcome["status"] for outcome in found] == ["refused"] * JOBS
    assert all(outcome["rules"] == {silo: ["requesters"] for silo in PARTS} for outcome in found)
    assert most.processes == dict.fromkeys(PARTIES, 0)
    assert all(memory < 200 for memory in most.megabytes.values())
    for silo in PARTS:
        said = (trial.kit(silo).ours / "log.txt").read_text()
        assert said.count(f"of {REQUESTER}: requesters: ") == JOBS
        assert not list(trial.kit(silo).path.glob("*-*-*-*-*"))
    told = (trial.kit("server").ours / "log.txt").read_text().splitlines()
    assert sum("refused job" in line and f"of {REQUESTER}: by " in line for line in told) == JOBS
    time.sleep(1)
    assert not list(trial.kit("server").path.glob("*-*-*-*-*"))


@pytest.mark.slow
def test_sixteen_jobs_of_a_listed_requester_are_worked_on_four_at_a_time(trial):
    with Sampler(trial) as most:
        found, seconds = answers(trial, "listed")
    print(f"{seconds:.0f} s", most.processes, most.megabytes)
    assert [outcome["status"] for outcome in found] == ["finished"] * JOBS
    assert all(count <= AT_ONCE for count in most.processes.values())
    assert all(memory < 200 + AT_ONCE * 600 for memory in most.megabytes.values())
