"""The whole matrix of faults on real processes: who is struck, in which phase, by what. After each of them nothing was
released that is not written down on every side, and the run has finished, or says why it has not.

``python -m benchmarks.faults`` runs it and writes ``docs/faults.md``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import tomli_w

pytest.importorskip("nvflare")

from tacit.data.sources.randhie import SITES
from tacit.engine import Run

from . import faults, worlds
from .faults import Fault, Moment, Story, struck

pytestmark = pytest.mark.slow  # half a minute each and more

PATIENCE = 30
PHASES = ("keys", "shares", "vectors", "survivors", "unmasking")
BEFORE, IN = "before", "in"
WORDS = {BEFORE: "before it has done anything in", IN: "when it has done, and not sent, its part of"}
ONE = {"name": "masked", "drop_outs": 1}
AGAIN = "asked again, finished"


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    with faults.federation(tmp_path_factory.mktemp("matrix")) as running:
        yield running


def experiment(rounds: int, **changes: object) -> dict:
    return worlds.experiment(train={"rounds": rounds}, **changes)


def finished(story: Story, attempts: int, drop_outs: int = 0) -> None:
    assert story.run is not None, (story.why, story.told)
    story.check(drop_outs)
    assert story.attempts == attempts, story.told


# -- a silo


@pytest.mark.parametrize("moment", [BEFORE, IN])
@pytest.mark.parametrize("phase", PHASES)
def test_a_silo_is_killed_and_the_others_finish_without_it(trial, phase, moment):
    name = f"a silo is killed {WORDS[moment]} {phase}; one may be missing"
    due = [struck(trial, name, Moment("west", phase, moment), lambda: faults.start_again(trial, "west"))]
    story = faults.story(trial, experiment(3, exchange=ONE), f"killed-{phase}-{moment}", due, patience=PATIENCE)
    finished(story, 1, drop_outs=1)
    assert story.rounds["north"] == story.rounds["server"] == [1, 2, 3]
    has_written = PHASES.index(phase) > PHASES.index("vectors") or (phase, moment) == ("vectors", IN)
    assert story.rounds["west"] == ([1, 2] if has_written else [1])
    story.note(name, "finished without it")


@pytest.mark.parametrize("moment", [BEFORE, IN])
def test_silos_hang_in_every_phase_where_none_may_be_missing(trial, moment):
    """Another silo in every round, each longer than it is waited for."""
    silos = ("north", "south", "west")
    due = []
    for number, phase in enumerate(PHASES, 1):
        silo = silos[number % 3]
        name = f"a silo hangs {WORDS[moment]} {phase}; none may be missing"
        due.append(struck(trial, name, Moment(silo, phase, moment, number, signal.SIGSTOP), faults.wake(trial, silo)))
    story = faults.story(trial, experiment(6), f"hang-{moment}", due, patience=PATIENCE, retries=8)
    finished(story, len(PHASES) + 1)
    assert story.rounds["server"] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6]
    for fault in due:
        story.note(fault.name, AGAIN)


def test_silos_are_killed_before_the_first_round(trial):
    """Setup needs every silo."""
    due = []
    for number, (phase, moment) in enumerate([("call", BEFORE), ("call", IN), ("hello", IN), ("begin", IN)]):
        silo = ("north", "south", "west")[number % 3]
        name = f"a silo is killed {WORDS[moment]} {phase}, in setup"
        strike = Moment(silo, phase, moment, 0)
        due.append(struck(trial, name, strike, lambda silo=silo: faults.start_again(trial, silo)))
    story = faults.story(trial, experiment(2), "setup", due, patience=PATIENCE, retries=8)
    finished(story, len(due) + 1)
    assert all(rounds == [1, 2] for rounds in story.rounds.values())
    for fault in due:
        story.note(fault.name, AGAIN)


def test_a_silo_hangs_when_the_run_is_asked_for(trial):
    name = "a silo hangs from before the run is asked for"
    faults.send_signal(trial, "west", signal.SIGSTOP)
    told = threading.Timer(25, lambda: faults.send_signal(trial, "west", signal.SIGCONT))
    told.start()
    story = faults.story(trial, experiment(2), "asleep", [Fault(name, lambda: True)], patience=PATIENCE)
    told.join()
    finished(story, story.attempts)
    assert all(rounds == [1, 2] for rounds in story.rounds.values())
    story.note(name, AGAIN if story.attempts > 1 else "finished")


@pytest.mark.parametrize("phase", ["keys", "vectors", "unmasking"])
def test_the_process_of_a_silo_that_works_on_the_run_is_killed(trial, phase):
    name = f"a silo's process that works on the run is killed {WORDS[IN]} {phase}; one may be missing"
    due = [struck(trial, name, Moment("south", phase, IN, whole=False))]
    story = faults.story(trial, experiment(3, exchange=ONE), f"job-{phase}", due, patience=PATIENCE)
    finished(story, 2)  # NVFlare ends the whole job
    assert story.rounds["server"] == [1, 2, 2, 3]
    story.note(name, AGAIN)


# -- the server


def test_the_server_is_killed_in_every_phase(trial):
    """And between them: one run, killed and started again a dozen times."""
    moments = [
        ("when all silos have been called", Moment("server", "call", IN, 0)),
        ("when all silos are ready", Moment("server", "begin", IN, 0)),
        ("between the line in its ledger and the first message of a round", Moment("server", "keys", BEFORE, 1)),
        *((f"when it has all answers of {phase}", Moment("server", phase, IN, 1)) for phase in PHASES),
        ("right after the checkpoint of the first round", Moment("server", "checkpoint", IN, 1)),
        ("right after the checkpoint of the last round", Moment("server", "checkpoint", IN, 3)),
        ("before it writes the result", Moment("server", "result", BEFORE, 3)),
    ]
    names = [f"the server is killed {when}" for when, _ in moments]
    again = lambda: faults.start_again(trial, "server")  # noqa: E731
    due = [struck(trial, name, moment, again) for name, (_, moment) in zip(names, moments, strict=True)]
    story = faults.story(trial, experiment(3), "server", due, patience=PATIENCE, retries=len(due) + 1)
    finished(story, len(due) + 1)
    assert story.rounds["server"] == [1] * 7 + [2, 3]
    assert all(story.rounds[silo] == [1, 1, 1, 1, 2, 3] for silo in ("north", "south", "west"))
    for name in names:
        story.note(name, AGAIN)


def test_the_server_hangs_and_goes_on(trial):
    name = "the server hangs for 10 s when it has all answers of vectors"

    def go_on() -> None:
        time.sleep(10)
        faults.send_signal(trial, "server", signal.SIGCONT)

    due = [struck(trial, name, Moment("server", "vectors", IN, 2, signal.SIGSTOP), go_on)]
    story = faults.story(trial, experiment(3), "server-hangs", due, patience=PATIENCE)
    finished(story, 1)
    assert all(rounds == [1, 2, 3] for rounds in story.rounds.values())
    story.note(name, "finished")


def test_the_servers_process_that_works_on_the_run_is_killed(trial):
    name = "the server's process that works on the run is killed when it has all answers of vectors"
    due = [struck(trial, name, Moment("server", "vectors", IN, 2, whole=False))]
    story = faults.story(trial, experiment(3), "server-job", due, patience=PATIENCE)
    finished(story, 2)
    assert all(rounds == [1, 2, 2, 3] for rounds in story.rounds.values())
    story.note(name, AGAIN)


# -- two silos at once


@pytest.mark.parametrize("phase", ["shares", "unmasking"])
def test_two_silos_are_killed_where_one_may_be_missing(trial, phase):
    name = f"two silos are killed at once {WORDS[IN]} {phase}; one may be missing"
    other = struck(trial, "the other", Moment("south", phase, IN))

    def again() -> None:
        while not other.comes():
            time.sleep(0.05)
        for silo in ("west", "south"):
            faults.start_again(trial, silo)

    due = [struck(trial, name, Moment("west", phase, IN), again)]
    story = faults.story(trial, experiment(3, exchange=ONE), f"two-{phase}", due, patience=PATIENCE)
    finished(story, 2, drop_outs=1)
    assert story.rounds["server"] == [1, 2, 2, 3]
    assert any("round 2 was not finished" in line for line in story.told)
    story.note(name, f"round not released, {AGAIN}")


def test_two_of_five_silos_are_killed_where_two_may_be_missing(tmp_path):
    parts = dict(zip(("a", "b", "c", "d", "e"), ((site,) for site in SITES), strict=False))
    name = f"two of five silos are killed at once {WORDS[IN]} vectors; two may be missing"
    with faults.federation(tmp_path, parts) as five:
        other = struck(five, "the other", Moment("b", "vectors", IN))

        def again() -> None:
            while not other.comes():
                time.sleep(0.05)
            for silo in ("a", "b"):
                faults.start_again(five, silo)

        content = experiment(3, exchange={"name": "masked", "drop_outs": 2})
        content["data"]["silos"] = {"count": 5}
        content["privacy"]["max_silos_per_subject"] = 5
        due = [struck(five, name, Moment("a", "vectors", IN), again)]
        story = faults.story(five, content, "five", due, patience=PATIENCE)
    finished(story, 1, drop_outs=2)
    assert story.rounds["a"] == story.rounds["b"] == [1, 2]
    assert story.rounds["c"] == story.rounds["server"] == [1, 2, 3]
    story.note(name, "finished without them")


# -- the connection


@pytest.mark.parametrize("silently", [False, True], ids=["cut", "silent"])
def test_the_connection_of_a_silo_breaks_and_comes_back(tmp_path, silently):
    """Everything between one silo and the server goes through a relay."""
    way = "falls silent" if silently else "is cut"
    name = f"the connection of a silo {way} {WORDS[IN].replace('it', 'the silo', 1)} vectors; none may be missing"
    with faults.Relay() as relay, faults.federation(tmp_path, prepared=lambda made: relay.between(made, "west")) as cut:

        def then() -> None:
            relay.cut(silently=silently)
            faults.send_signal(cut, "west", signal.SIGCONT)
            while not faults.logged(cut, "server", "silent  west: no answer"):
                time.sleep(0.1)
            relay.mend()

        # stopped for as long as it takes to break its connection
        due = [struck(cut, name, Moment("west", "vectors", IN, 2, signal.SIGSTOP), then)]
        story = faults.story(cut, experiment(3), "cut", due, patience=PATIENCE)
    finished(story, 2)
    assert all(rounds == [1, 2, 2, 3] for rounds in story.rounds.values())
    story.note(name, AGAIN)


# -- disks


@pytest.fixture
def disk(tmp_path):
    """A small disk in memory."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a disk")
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], check=False)
    if mounted.returncode:
        pytest.skip("no disk can be mounted here")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path) -> None:
    """Until not a byte more goes onto it."""
    with (disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


@pytest.mark.parametrize("drop_outs", [0, 1])
def test_the_disk_of_a_silos_ledger_is_full(trial, disk, drop_outs):
    rule = ("none", "one")[drop_outs]
    name = f"the disk with a silo's ledger is full; {rule} may be missing"
    settings, rounds = trial.home("north") / "DATA.toml", 12
    before = settings.read_text()
    settings.write_text(
        tomli_w.dumps({"path": "visits.parquet", "name": f"small-{rule}", "ledger": str(disk / "ledger.jsonl")})
    )

    def then() -> None:
        fill(disk)
        faults.send_signal(trial, "north", signal.SIGCONT)

    due = [struck(trial, name, Moment("north", "vectors", BEFORE, 2, signal.SIGSTOP), then)]
    content = experiment(rounds, exchange={"name": "masked", "drop_outs": drop_outs})
    story = faults.story(trial, content, f"disk-{rule}", due, patience=PATIENCE)
    settings.write_text(before)
    story.check(drop_outs)
    last = story.rounds["north"][-1]  # what fitted into the last page of the file
    assert story.rounds["north"] == list(range(1, last + 1))
    assert last < rounds
    assert faults.logged(trial, "north", "No space left on device")
    if drop_outs:
        finished(story, 1, drop_outs)
        story.note(name, "finished without it")
    else:
        assert "north: ledger" in story.why
        assert story.rounds["server"] == list(range(1, last + 2))
        story.note(name, "refused by that silo (rule `ledger`)")


def test_the_disk_of_the_server_is_full(trial, disk):
    name = "the disk with the server's runs is full for a while"
    runs = trial.kit("server").ours / "runs"
    runs.rename(runs.with_name("elsewhere"))
    runs.symlink_to(disk)

    def then() -> None:
        fill(disk)
        faults.send_signal(trial, "server", signal.SIGCONT)
        while not faults.logged(trial, "server", "the server cannot write: No space left on device"):
            time.sleep(0.1)
        (disk / "filler").unlink()

    due = [struck(trial, name, Moment("server", "unmasking", IN, 2, signal.SIGSTOP), then)]
    story = faults.story(trial, experiment(3), "disk-server", due, patience=PATIENCE)
    runs.unlink()
    runs.with_name("elsewhere").rename(runs)
    finished(story, 2)
    assert any("No space left" in line and "asking again" in line for line in story.told)
    assert all(rounds == [1, 2, 2, 3] for rounds in story.rounds.values())
    story.note(name, f"says so, {AGAIN}")


def test_a_checkpoint_is_half_written(trial):
    name = "the server's process that works on the run is killed, and its checkpoint is cut in half"

    def then() -> None:
        (checkpoint,) = trial.kit("server").ours.glob(f"runs/{run[0]}/checkpoint*")
        os.truncate(checkpoint, checkpoint.stat().st_size // 2)

    run: list[str] = []

    def due(name_of_run: str) -> list[Fault]:
        run.append(name_of_run)
        return [struck(trial, name, Moment("server", "keys", IN, 3, whole=False), then)]

    story = faults.story(trial, experiment(3), "half", due, patience=PATIENCE, retries=1)
    assert story.run is None
    story.check()
    assert "damaged, or was not written to its end" in story.why
    assert story.rounds["server"] == [1, 2, 3]
    assert all(story.rounds[silo] == [1, 2] for silo in ("north", "south", "west"))
    story.note(name, "not gone on with; says that the checkpoint is damaged")


# -- clocks, ledgers, requesters


@pytest.mark.parametrize("hours", [72, -72])
def test_the_clock_of_a_silo_is_wrong(trial, hours):
    """Before it starts, by three days. Certificates are all that looks at a clock."""
    library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
    if library is None:
        pytest.skip("needs libfaketime")
    way = "fast" if hours > 0 else "slow"
    name = f"the clock of a silo is {abs(hours)} hours {way}"
    trial.stop("west")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_PRELOAD", str(library))
        patch.setenv("FAKETIME", f"{hours * 3600:+d}s")
        trial.start("west")
    trial.wait("west")
    seen = [Fault(name, lambda: True)]
    story = faults.story(trial, experiment(3, exchange=ONE), f"clock-{way}", seen, patience=PATIENCE)
    trial.stop("west")
    trial.start("west")
    trial.wait("west")
    finished(story, 1)
    assert all(rounds == [1, 2, 3] for rounds in story.rounds.values())
    story.note(name, "finished")


def test_a_silo_comes_back_with_an_older_ledger(trial):
    name = "a silo is started again with an older copy of its ledger"
    ledger = faults.ledger(trial, "west")
    older, newer = ledger.with_suffix(".older"), ledger.with_suffix(".newer")
    shutil.copy(ledger, older)
    story = faults.story(trial, experiment(2), "newer", [], patience=PATIENCE)
    finished(story, 1)
    trial.stop("west")
    shutil.copy(ledger, newer)
    shutil.copy(older, ledger)
    trial.start("west")
    trial.wait("west")
    refused = faults.story(trial, experiment(2), "older", [Fault(name, lambda: True)], patience=PATIENCE)
    trial.stop("west")
    shutil.copy(newer, ledger)
    trial.start("west")
    trial.wait("west")
    assert "west: ledger" in refused.why
    assert not any(refused.rounds.values())
    refused.note(name, "refused by that silo (rule `ledger`)")


def test_the_requester_is_killed_and_attaches_again(trial):
    name = "the requester's process is killed in a round, and follows the run again"
    kit = trial.kit(worlds.REQUESTER)
    file, out = trial.folder / "experiment.toml", trial.folder / "run-attached"
    file.write_text(tomli_w.dumps(experiment(3)))
    command = [sys.executable, "-m", "tacit.cli", "submit", str(file), "--kit", str(kit.path), "--out", str(out)]
    held = struck(trial, name, Moment("server", "vectors", IN, 2, signal.SIGSTOP))
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE) as asking:
        while not held.comes():
            assert asking.poll() is None
            time.sleep(0.05)
        began = time.monotonic()
        asking.kill()
    faults.send_signal(trial, "server", signal.SIGCONT)
    newest = max((kit.ours / "runs").glob("*.json"), key=lambda one: one.stat().st_mtime).stem
    done = subprocess.run([*command, "--attach", newest, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rounds = faults.all_rounds(trial, newest)
    story = Story(Run.load(out), "", ["asked for run"], rounds, {name: began}, time.monotonic())
    finished(story, 1)
    assert all(found == [1, 2, 3] for found in rounds.values())
    story.note(name, "finished")
