"""Faults that come to a federation of real processes at chosen moments, and what came of the run."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tacit.engine import Run
from tacit.errors import TacitError
from tacit.federation.demo import PARTS, REQUESTER, Trial, parted
from tacit.federation.requester import follow
from tacit.federation.site.shard import read_silo_data
from tacit.privacy import Ledger

from . import worlds

ROWS = 300  # of every silo's table: little to load, few shapes to compile


@contextmanager
def federation(
    folder: Path,
    parts: Mapping[str, Sequence[str]] = PARTS,
    prepared: Callable[[Trial], None] = lambda trial: None,
) -> Iterator[Trial]:
    """Server and silos, running, each of which a :class:`Moment` may strike.

    parts     silos and their sites
    prepared  what to do with the kits before anybody starts
    """
    moments = folder / "moments"
    moments.mkdir()
    path = os.pathsep.join([str(Path(__file__).parent / "moments"), os.environ.get("PYTHONPATH", "")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", path)
        patch.setenv("TACIT_MOMENTS", str(moments))
        trial = Trial(folder, worlds.POLICY, tables={silo: table.head(ROWS) for silo, table in parted(parts).items()})
        trial.prepare()
        prepared(trial)
        with trial.running():
            yield trial


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

    def waits(self, trial: Trial) -> bool:
        """Whether a moment is armed for that party."""
        return self._file(trial).exists()

    def has_struck(self, trial: Trial) -> bool:
        """Once it was armed: whether it has come, and who is to be stopped has stopped."""
        if self.waits(trial) or self.signal != signal.SIGSTOP:
            return not self.waits(trial)
        parent = psutil.Process(trial.processes[self.who].pid)
        workers = [process for process in parent.children() if process.status() == psutil.STATUS_STOPPED]
        return bool(workers) and (not self.whole or parent.status() == psutil.STATUS_STOPPED)

    def _file(self, trial: Trial) -> Path:
        return trial.folder / "moments" / self.who


@dataclass(frozen=True)
class Fault:
    """Something that happens to a run, and what is done about it: ``comes`` waits until it has happened, ``then``
    follows (a silo is started again, say)."""

    name: str
    comes: Callable[[], bool]
    then: Callable[[], None] = lambda: None


def struck(trial: Trial, name: str, moment: Moment, then: Callable[[], None] = lambda: None) -> Fault:
    """The fault of a moment, which is armed as soon as no other moment of the same party is."""
    armed = False

    def comes() -> bool:
        nonlocal armed
        if not armed and not moment.waits(trial):
            moment.arm(trial)
            armed = True
        return armed and moment.has_struck(trial)

    comes()
    return Fault(name, comes, then)


class Watcher:
    """Lets faults come one after the other while a run goes on; ``came`` says when each of them did."""

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


def logged(trial: Trial, name: str, words: str) -> int:
    """How often the log of the server or a silo says so."""
    log = trial.kit(name).ours / "log.txt"
    return log.read_text().count(words) if log.is_file() else 0


def wait_until_given_up(trial: Trial, silo: str) -> None:
    """Until the server has waited for an answer of a silo in vain."""
    words = f"silent  {silo}: no answer"
    before = logged(trial, "server", words)
    while logged(trial, "server", words) == before:
        time.sleep(0.1)


def wake(trial: Trial, silo: str) -> Callable[[], None]:
    """Lets a silo that was stopped go on when the server has given it up."""

    def then() -> None:
        wait_until_given_up(trial, silo)
        send_signal(trial, silo, signal.SIGCONT)

    return then


def send_signal(trial: Trial, name: str, number: signal.Signals) -> None:
    """To all processes of the server or a silo."""
    parent = psutil.Process(trial.processes[name].pid)
    for process in [*parent.children(recursive=True), parent]:
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
    rounds in everybody's ledgers, when which fault came and when all of it was over."""

    run: Run | None
    why: str
    told: list[str]
    rounds: dict[str, list[int]]
    came: dict[str, float]
    over: float

    @property
    def attempts(self) -> int:
        return sum("asked for run" in line for line in self.told)

    def check(self, drop_outs: int = 0) -> None:
        """Nothing was released that is not written down: the server's line comes before anything is asked for, a
        silo's before anything leaves it, and up to ``drop_outs`` of them may have been missing from a round."""
        server = self.rounds["server"]
        silos = [rounds for party, rounds in self.rounds.items() if party != "server"]
        for number in {*server, *(number for rounds in silos for number in rounds)}:
            assert all(rounds.count(number) <= server.count(number) for rounds in silos), self.rounds
        if self.run is not None:
            assert self.run.result["status"] == "finished"
            for number in range(1, self.run.result["rounds"] + 1):
                assert number in server, self.rounds
                assert sum(number in rounds for rounds in silos) >= len(silos) - drop_outs, self.rounds

    def note(self, fault: str, follows: str, came: str = "") -> None:
        """Add a line to the table of the documentation, where one is made (``benchmarks.faults``)."""
        if (file := os.environ.get("TACIT_FAULTS")) is None:
            return
        times = [*self.came.values(), self.over]
        at = list(self.came).index(came or fault)
        row = {
            "fault": fault,
            "follows": follows,
            "rounds": self.rounds,
            "seconds": round(times[at + 1] - times[at], 1),
        }
        with Path(file).open("a") as rows:
            rows.write(json.dumps(row) + "\n")


def story(
    trial: Trial,
    content: dict,
    name: str,
    faults: Sequence[Fault] | Callable[[str], Sequence[Fault]],
    *,
    patience: int,
    retries: int = 3,
    all_come: bool = True,
) -> Story:
    """A run while ``faults`` (of the run by that name) come to it; fails if one of them did not, unless not all of them
    need to."""
    planned, request = worlds.asked(trial, content, f"run-{name}", patience)
    due = faults(request.run) if callable(faults) else faults
    told: list[str] = []
    run, why = None, ""
    with Watcher(due) as watcher:
        try:
            kit = trial.kit(REQUESTER)
            run = follow(kit, request, planned.rounds, planned.label, tell=told.append, retries=retries)
        except TacitError as error:
            why = str(error)
        over = time.monotonic()
    if watcher.failure is not None:
        raise watcher.failure
    assert not all_come or list(watcher.came) == [fault.name for fault in due], (told, why)
    return Story(run, why, told, all_rounds(trial, request.run), watcher.came, over)


def all_rounds(trial: Trial, run: str) -> dict[str, list[int]]:
    """The rounds of a run in the ledgers of the server and of all silos, as they were written down."""
    files = {silo: ledger(trial, silo) for silo in trial.kit("server").silos}
    files["server"] = trial.kit("server").ours / "runs" / run / "ledger.jsonl"
    return {party: _rounds(file, run) for party, file in files.items()}


def ledger(trial: Trial, silo: str) -> Path:
    """A silo's ledger."""
    return Path(read_silo_data(trial.home(silo) / "DATA.toml").ledger or "")


def _rounds(file: Path, run: str) -> list[int]:
    if not file.is_file():
        return []
    with Ledger(file) as book:
        mine = [line for line in book.lines if line["party"] == "server" or line["run"].startswith(run)]
    return [line["round"] for line in mine]
