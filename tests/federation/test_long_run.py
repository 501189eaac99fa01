"""Twenty runs of one federation to whose processes sixty random faults come: each finishes or says why, ledgers are
whole, and no party grows."""

from __future__ import annotations

import contextlib
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest

pytest.importorskip("nvflare")

from tacit.errors import UserError
from tacit.federation.demo import PARTS, Trial, parted
from tacit.federation.site.retention import KEPT_RUNS
from tacit.privacy import Ledger
from tacit.transport.attendant import joined
from tacit.transport.upkeep import KEPT_JOBS

from . import faults, worlds
from .faults import Fault
from .test_upkeep import disk, without_logs_and_runs

RUNS, FAULTS, SEED = 20, 60, 17
ROUNDS, PATIENCE, RETRIES = 6, 15, 8
WATCHED = 12  # the last runs, over which nothing may grow
PARTIES = ("server", *PARTS)
ROLES = ("attendant", "parent", "job")

# What a trend over the watched runs may add up to, for one party: what a process gains between its start and its fourth
# run, because faults start parties again at random (a server: from 123 to 141 MB, from 52 to 80 threads of pools that
# NVFlare fills as it needs them; a silo: 1 MB, 1 thread). Above it, a trend of three standard errors is growth.
TOLERATED = {"MB": 25.0, "threads": 25.0, "descriptors": 6.0, "kB": 16.0}


class Attended(Trial):
    """A federation on this machine whose parties have attendants, as `tacit server` and `tacit silo` start them."""

    def launch(self, kit: Path) -> subprocess.Popen[bytes]:
        words = [sys.executable, "-P", "-m", "tacit.transport.attendant", str(kit)]
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def found(self, name: str, role: str) -> list[psutil.Process]:
        """The processes of a party that have that role now."""
        try:
            attendant = psutil.Process(self.processes[name].pid)
            parents = attendant.children()
            jobs = [job for parent in parents for job in parent.children()]
        except psutil.NoSuchProcess:
            return []
        return {"attendant": [attendant], "parent": parents, "job": jobs}[role]


class Supervisor:
    """Starts parties that have ended, as a service manager does."""

    def __init__(self, trial: Attended) -> None:
        self._trial, self._over = trial, threading.Event()
        self.starts: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Supervisor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        try:
            while not self._over.wait(0.5):
                for name in PARTIES:
                    if self._trial.processes[name].poll() is not None:
                        with contextlib.suppress(UserError):  # its old process, or its port, is still there
                            self._trial.start(name)
                            self.starts[name] += 1
        except BaseException as error:
            self.failure = error


@dataclass(frozen=True)
class Strike:
    """A signal for one process of a party, some seconds after the fault before; one that stops is lifted later."""

    party: str
    role: str
    signal: signal.Signals
    delay: float
    stopped: float

    def fault(self, trial: Attended, number: int) -> Fault:
        due: list[float] = []

        def comes() -> bool:
            due[:] = due or [time.monotonic() + self.delay]
            if time.monotonic() < due[0]:
                return False
            time.sleep(0.1)
            targets = trial.found(self.party, self.role)
            if not targets:
                return False
            with contextlib.suppress(psutil.NoSuchProcess):
                targets[0].send_signal(self.signal)
                if self.signal == signal.SIGSTOP:
                    threading.Timer(self.stopped, _continue, targets[:1]).start()
                return True
            return False

        return Fault(str(number), comes)


def _continue(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(signal.SIGCONT)


def strikes() -> list[Strike]:
    """Every role of every party, killed and stopped, at least twice; in a random order, the same in every test."""
    rng = random.Random(SEED)
    kinds = [
        (party, role, number) for party in PARTIES for role in ROLES for number in (signal.SIGKILL, signal.SIGSTOP)
    ]
    chosen = [*kinds, *kinds, *rng.sample(kinds, FAULTS - 2 * len(kinds))]
    rng.shuffle(chosen)
    return [Strike(*kind, rng.uniform(1, 10), rng.uniform(2, 1.5 * PATIENCE)) for kind in chosen]


@pytest.fixture(scope="module")
def trial(tmp_path_factory) -> Iterator[Attended]:
    tables = {silo: table.head(faults.ROWS) for silo, table in parted(PARTS).items()}
    running = Attended(tmp_path_factory.mktemp("long"), worlds.POLICY, tables=tables)
    running.prepare()
    with running.running():
        yield running


def rest(trial: Attended) -> None:
    """Until every party runs, the silos have joined, and nobody works on a job."""
    end = time.monotonic() + 180
    while time.monotonic() < end:
        one_each = all(len(trial.found(party, "parent")) == 1 for party in PARTIES)
        if one_each and all(joined(trial.kit(silo).path) for silo in PARTS):
            words = [" ".join(one.info["cmdline"] or []) for one in psutil.process_iter(["cmdline"])]
            if sum(str(trial.folder) in line for line in words) == 2 * len(PARTIES):
                time.sleep(3)  # NVFlare says that a job has ended before its folder goes
                return
        time.sleep(0.5)
    raise AssertionError("no rest within 180 s")


def figures(trial: Attended, party: str) -> dict[str, float]:
    """What a party takes at rest. Logs, run folders and the store of jobs have bounds of their own."""
    both = [*trial.found(party, "attendant"), *trial.found(party, "parent")]
    kit = trial.kit(party).path
    return {
        "MB": sum(one.memory_info().rss for one in both) / 2**20,
        "threads": sum(one.num_threads() for one in both),
        "descriptors": sum(one.num_fds() for one in both),
        "kB": (without_logs_and_runs(kit) - disk(kit / "tacit" / "store")) / 1024,
    }


def trend(values: Sequence[float]) -> tuple[float, float]:
    """What a straight line through the values adds up to from the first to the last, and its standard error."""
    places = np.arange(len(values)) - (len(values) - 1) / 2
    slope = float(places @ np.asarray(values) / (places @ places))
    left = np.asarray(values) - np.mean(values) - slope * places
    error = float(np.sqrt(left @ left / (len(values) - 2) / (places @ places)))
    return slope * (len(values) - 1), error * (len(values) - 1)


def check_ledgers(trial: Attended) -> int:
    """All ledgers open with an unbroken chain; how many lines they have."""
    files = [faults.ledger(trial, silo) for silo in PARTS]
    files += (trial.kit("server").ours / "runs").glob("*/ledger.jsonl")
    lines = 0
    for file in files:
        with Ledger(file) as book:
            lines += len(book.lines)
    return lines


def test_a_trend_is_told_from_restarts():
    """A leak of 3 MB a run is growth; the figures of parties that start again at random are none."""
    leak = [100 + 3 * k + (-1) ** k for k in range(WATCHED)]
    restarts = [146, 146, 135, 144, 137, 152, 159, 162, 172, 182, 137, 139]
    growth, error = trend(leak)
    assert growth > TOLERATED["MB"]
    assert growth > 3 * error
    growth, error = trend(restarts)
    assert growth <= TOLERATED["MB"]


@pytest.mark.slow
def test_twenty_runs_with_sixty_faults_end_and_nothing_grows(trial):
    waiting, came, rows = list(enumerate(strikes())), Counter(), []
    ends: Counter[str] = Counter()
    with Supervisor(trial) as supervisor:
        for run in range(RUNS):
            due = waiting[: -(-len(waiting) // (RUNS - run))]
            drop_outs = run % 2
            content = worlds.experiment(
                train={"rounds": ROUNDS}, exchange={"name": "masked", **({"drop_outs": 1} if drop_outs else {})}
            )
            began = time.monotonic()
            story = faults.story(
                trial,
                content,
                str(run),
                [strike.fault(trial, number) for number, strike in due],
                patience=PATIENCE,
                retries=RETRIES,
                all_come=False,
            )
            for number, strike in due:
                if str(number) in story.came:
                    waiting.remove((number, strike))
                    came[f"{strike.role} {strike.signal.name}"] += 1
            seconds = time.monotonic() - began
            rest(trial)
            story.check(drop_outs)
            ends["finished" if story.run is not None else "said why"] += 1
            rows.append({party: figures(trial, party) for party in PARTIES})
            shown = "  ".join(
                f"{party} " + " ".join(f"{value:.0f}" for value in row.values()) for party, row in rows[-1].items()
            )
            what = f"{story.attempts} attempts {len(story.came)} faults"
            print(f"{run + 1:2} {seconds:4.0f} s {what}  {shown}  {story.why}", flush=True)
            assert story.run is not None or story.why
            assert supervisor.failure is None
    print(dict(came), dict(ends), "starts", dict(supervisor.starts), "lines", check_ledgers(trial))
    assert sum(came.values()) == FAULTS, waiting
    jobs = list((trial.kit("server").ours / "store" / "jobs").iterdir())
    assert len(jobs) <= KEPT_JOBS
    assert all(json.loads((job / "meta").read_text())["status"].startswith("FINISHED") for job in jobs)
    assert len(list((trial.kit("server").ours / "runs").iterdir())) <= RUNS <= KEPT_RUNS
    assert all(not any((trial.kit(silo).ours / "runs").iterdir()) for silo in PARTS)
    for party in PARTIES:
        for name, most in TOLERATED.items():
            last = [row[party][name] for row in rows[-WATCHED:]]
            growth, error = trend(last)
            print(f"{party} {name}: {growth:+.1f} (standard error {error:.1f}) over the last {WATCHED} runs")
            assert growth <= most or growth <= 3 * error, (party, name, last)
