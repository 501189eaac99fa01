"""Federations of real processes for tests."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest

from tacit.config import Plan, plan
from tacit.data import Federation, Records
from tacit.engine import Run
from tacit.engine.federation.requester import Asked, ask, follow
from tacit.engine.federation.shard import load_shard, read_silo_data
from tacit.engine.federation.trial import PARTS, REQUESTER, Trial
from tacit.engine.learner import learner
from tacit.engine.simulate import Simulation
from tacit.errors import TacitError
from tacit.models import Params
from tacit.privacy import Ledger, Randomness

# everything that the tests of this folder ask for
POLICY = {
    "methods": ["uldp-avg", "subject-sgd", "local-record", "fedavg"],
    "exchanges": ["masked", "plain", "weighted"],
    "unit": "record",
    "against": ["public"],
    "epsilon_per_run": float("inf"),
    "epsilon_in_total": float("inf"),
    "seeds": True,
}


def experiment(**changes: object) -> dict:
    """A few rounds of a small model on the built-in table."""
    base: dict = {
        "title": "test",
        "data": {"source": "randhie", "subjects": {"count": 50000}, "silos": {"count": 3}, "records_per_silo": 5400},
        "model": {"name": "logistic"},
        "method": {"name": "uldp-avg", "noise_multiplier": 5.0},
        "train": {"rounds": 3, "server_learning_rate": 10.0},
        "privacy": {"max_records_per_subject_and_silo": 5, "max_silos_per_subject": 3},
        "exchange": {"name": "masked"},
    }
    for key, value in changes.items():
        base[key] = {**base[key], **value} if isinstance(value, dict) else value
    return base


@contextmanager
def federation(folder: Path, *, rows: int | None = None, **policy: object) -> Iterator[Trial]:
    """Server and silos, running, with so many rows of their tables; a :class:`Moment` may strike each of them."""
    trial = Trial(folder, {**POLICY, **policy})
    trial.prepare()
    for silo in PARTS if rows else ():
        table = trial.home(silo) / "visits.parquet"
        pd.read_parquet(table).head(rows).to_parquet(table, index=False)
    moments = folder / "moments"
    moments.mkdir()
    path = os.pathsep.join([str(Path(__file__).parent / "moments"), os.environ.get("PYTHONPATH", "")])
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", path)
        environment.setenv("TACIT_MOMENTS", str(moments))
        with trial.running():
            yield trial


def asked(trial: Trial, content: dict, name: str, patience: int = 60) -> tuple[Plan, Asked]:
    planned = plan(content)
    return planned, ask(trial.kit(REQUESTER), planned, trial.folder / name, patience)


def finished(trial: Trial, content: dict, name: str, *, patience: int = 60, told: list[str] | None = None) -> Run:
    """The run of an experiment on the federation."""
    planned, request = asked(trial, content, name, patience)
    tell = (lambda line: None) if told is None else told.append
    return follow(trial.kit(REQUESTER), request, planned.rounds, planned.label, tell=tell)


def simulated(trial: Trial, content: dict) -> Params:
    """The model of the same experiment in the simulator, on what the silos hold."""
    planned = plan(content)
    shards = [
        load_shard(planned, silo, read_silo_data(trial.home(silo) / "DATA.toml"), trial.kit(silo).pseudonyms())
        for silo in PARTS
    ]
    joined = united(shards)
    randomness = Randomness.from_seed(planned.experiment.seed)
    made = learner(planned.experiment.model, joined.labels, joined.train.features.shape[1:], randomness)
    simulation = Simulation(planned, joined, made, randomness)
    for number in range(1, planned.rounds + 1):
        simulation.round(number)
    return simulation.model()


def united(shards: list[Federation]) -> Federation:
    """What silos hold, in one place."""

    def rows(part: str) -> Records:
        parts: list[Records] = [getattr(shard, part) for shard in shards]
        silo = np.concatenate([np.full(len(one), k, np.int32) for k, one in enumerate(parts)])
        columns = (np.concatenate([getattr(one, name) for one in parts]) for name in ("features", "labels", "subject"))
        return Records(*columns, silo)

    names = tuple(shard.silo_names[0] for shard in shards)
    return replace(shards[0], train=rows("train").grouped(), test=rows("test"), silo_names=names)


@dataclass(frozen=True)
class Moment:
    """When a process that works on a run is struck, and by which signal.

    who     a silo, or the server
    phase   keys, shares, vectors, survivors, unmasking of a masked round; call, hello, begin before the first; of the
            server also checkpoint (it is written) and result (it is not)
    moment  before: a silo has got the message, the server has not sent it
            in: a silo has done its work (and written its ledger), and nothing has left; the server has all answers
    whole   not only the process that works on the run, but everything of that silo or server
    """

    who: str
    phase: str
    moment: str = "before"
    round: int = 2
    signal: int = signal.SIGKILL
    whole: bool = True

    def arm(self, trial: Trial) -> None:
        content = {key: int(value) if key == "signal" else value for key, value in vars(self).items()}
        draft = self._file(trial).with_name(f".{self.who}")
        draft.write_text(json.dumps(content))
        draft.replace(self._file(trial))

    def has_struck(self, trial: Trial) -> bool:
        return not self._file(trial).exists()

    def _file(self, trial: Trial) -> Path:
        return trial.folder / "moments" / self.who


@dataclass(frozen=True)
class Fault:
    """Something that happens to a run, and what is done about it: ``comes`` waits until it has happened, ``then``
    follows (a silo is started again, say)."""

    name: str
    comes: Callable[[], bool]
    then: Callable[[], None] = lambda: None


def struck(
    trial: Trial, name: str, moment: Moment, then: Callable[[], None] = lambda: None, *, at_once: bool = True
) -> Fault:
    """The fault of a moment, armed now or, where the one before has to come first, when it is waited for."""
    armed: list[Moment] = []

    def comes() -> bool:
        if not armed:
            moment.arm(trial)
            armed.append(moment)
        return moment.has_struck(trial)

    if at_once:
        comes()
    return Fault(name, comes, then)


class Watcher:
    """Lets faults come one after the other while a run goes on; ``seconds`` says when each of them did."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.came: dict[str, float] = {}
        self.failure: BaseException | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(faults,), daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(120)

    def _watch(self, faults: Sequence[Fault]) -> None:
        try:
            for fault in faults:
                while not fault.comes():
                    if self._ended.wait(0.02):
                        return
                self.came[fault.name] = time.monotonic()
                fault.then()
        except BaseException as error:
            self.failure = error


def lines(trial: Trial, run: str) -> int:
    """How many lines the server's ledger of a run has."""
    ledger = trial.kit("server").ours / "runs" / run / "ledger.jsonl"
    return ledger.read_bytes().count(b"\n") if ledger.is_file() else 0


def said(trial: Trial, name: str, words: str) -> bool:
    """Whether the log of the server or a silo says so."""
    log = trial.kit(name).ours / "log.txt"
    return log.is_file() and words in log.read_text()


def job_processes(trial: Trial, name: str) -> list[psutil.Process]:
    """The processes that work on runs for the server or a silo."""
    return psutil.Process(trial.processes[name].pid).children(recursive=True)


def send_signal(trial: Trial, name: str, number: signal.Signals, *, whole: bool = True) -> None:
    """To all processes of the server or a silo, or only to those that work on runs."""
    parent = [psutil.Process(trial.processes[name].pid)] if whole else []
    for process in [*job_processes(trial, name), *parent]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def start_again(trial: Trial, name: str) -> None:
    """The server or a silo of which everything was killed."""
    trial.processes.pop(name).wait()
    trial.start(name)
    trial.wait(name)


@dataclass(frozen=True)
class Story:
    """What came of a run to which faults came: its folder (None: it says why not), what the requester was told, the
    rounds in everybody's ledgers, and how many seconds all of it took."""

    run: Run | None
    why: str
    told: list[str]
    rounds: dict[str, list[int]]
    seconds: float

    @property
    def attempts(self) -> int:
        return sum("asked for run" in line for line in self.told)

    def check(self, drop_outs: int = 0) -> None:
        """Nothing was released that is not written down: the server's line comes before anything is asked for, a
        silo's before anything leaves it, and up to ``drop_outs`` of them may have been missing from a round."""
        server = self.rounds["server"]
        silos = [self.rounds[silo] for silo in PARTS]
        for number in set(server):
            assert all(written.count(number) <= server.count(number) for written in silos), self.rounds
        if self.run is not None:
            assert self.run.result["status"] == "finished"
            for number in range(1, self.run.result["rounds"] + 1):
                assert number in server, self.rounds
                assert sum(number in written for written in silos) >= len(PARTS) - drop_outs, self.rounds


def story(
    trial: Trial,
    content: dict,
    name: str,
    faults: Callable[[str], Sequence[Fault]],
    *,
    patience: int,
    retries: int = 3,
) -> Story:
    """A run while ``faults(run)`` come to it; fails if one of them did not."""
    planned, request = asked(trial, content, f"run-{name}", patience)
    due, told, run, why = faults(request.run), [], None, ""
    began = time.monotonic()
    with Watcher(due) as watcher:
        try:
            kit = trial.kit(REQUESTER)
            run = follow(kit, request, planned.rounds, planned.label, tell=told.append, retries=retries)
        except TacitError as error:
            why = str(error)
        seconds = time.monotonic() - began
    if watcher.failure is not None:
        raise watcher.failure
    assert list(watcher.came) == [fault.name for fault in due], (told, why)
    folders = {silo: trial.home(silo) / "DATA.ledger.jsonl" for silo in PARTS}
    folders["server"] = trial.kit("server").ours / "runs" / request.run / "ledger.jsonl"
    return Story(run, why, told, {party: written(file, request.run) for party, file in folders.items()}, seconds)


def written(file: Path, run: str) -> list[int]:
    """The rounds of a run in a ledger, as they were written down."""
    if not file.is_file():
        return []
    with Ledger(file) as ledger:
        mine = [line for line in ledger.lines if line["party"] == "server" or line["run"].startswith(run)]
    return [line["round"] for line in mine]
