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
import tomllib
from functools import partial
from pathlib import Path

import pytest
import tomli_w

pytest.importorskip("nvflare")

from tacit.data.sources.tables import SITES
from tacit.engine import Run
from tacit.federation.carrier.processes import prepare_silo
from tacit.federation.site.ledgers import LEDGERS
from tacit.transport.attendant import joined

from . import faults, worlds
from .faults import Fault, Moment, Story, struck
from .relay import Relay

pytestmark = pytest.mark.slow  # half a minute each and more

PATIENCE = 30
PHASES = ("keys", "shares", "vectors", "survivors", "unmasking")
BEFORE, IN = "before", "in"
WORDS = {BEFORE: "before it has done anything in", IN: "when it has done, and not sent, its part of"}
ONE = {"name": "masked", "drop_outs": 1}
AGAIN = "asked again, finished"
SILOS = ("north", "south", "west")


@pytest.fixture(scope="module")
def relay():
    with Relay() as carrying:
        yield carrying


@pytest.fixture(scope="module")
def trial(tmp_path_factory, relay):
    """Everything between one of the silos and the server goes through a relay."""
    folder = tmp_path_factory.mktemp("matrix")
    with faults.federation(folder, prepared=lambda made: relay.between(made, "west")) as running:
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
    due = []
    for number, phase in enumerate(PHASES, 1):
        silo = SILOS[number % 3]
        name = f"a silo hangs {WORDS[moment]} {phase}; none may be missing"
        due.append(struck(trial, name, Moment(silo, phase, moment, number, signal.SIGSTOP), faults.wake(trial, silo)))
    story = faults.story(trial, experiment(6), f"hang-{moment}", due, patience=PATIENCE, retries=8)
    finished(story, len(PHASES) + 1)
    assert story.rounds["server"] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6]
    for fault in due:
        story.note(fault.name, AGAIN)


def test_a_silo_is_killed_before_the_first_round(trial):
    """Setup needs every silo."""
    due = []
    for phase, moment in (("call", BEFORE), ("call", IN), ("hello", IN), ("begin", IN)):
        name = f"a silo is killed {WORDS[moment]} {phase}, in setup"
        again = partial(faults.start_again, trial, "south")
        due.append(struck(trial, name, Moment("south", phase, moment, 0), again))
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


def test_processes_of_silos_that_work_on_the_run_are_killed(trial):
    """NVFlare then ends the whole job, whether or not a silo may be missing."""
    due = []
    for number, (silo, phase) in enumerate(zip(SILOS, ("keys", "vectors", "unmasking"), strict=True), 2):
        name = f"a silo's process that works on the run is killed {WORDS[IN]} {phase}; one may be missing"
        due.append(struck(trial, name, Moment(silo, phase, IN, number, whole=False)))
    story = faults.story(trial, experiment(5, exchange=ONE), "jobs", due, patience=PATIENCE)
    finished(story, 4)
    # what two silos show is enough to unmask: round 4 may be done before NVFlare has ended the job
    assert story.rounds["server"] in ([1, 2, 2, 3, 3, 4, 4, 5], [1, 2, 2, 3, 3, 4, 5, 5])
    assert story.rounds["south"].count(3) == 2  # it was killed when it had written that line
    for fault in due:
        story.note(fault.name, AGAIN)


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
    again = partial(faults.start_again, trial, "server")
    due = [struck(trial, name, moment, again) for name, (_, moment) in zip(names, moments, strict=True)]
    story = faults.story(trial, experiment(3), "server", due, patience=PATIENCE, retries=len(due) + 1)
    finished(story, len(due) + 1)
    assert story.rounds["server"] == [1] * 7 + [2, 3]
    assert all(story.rounds[silo] == [1, 1, 1, 1, 2, 3] for silo in SILOS)
    for name in names:
        story.note(name, AGAIN)


def test_the_server_hangs_loses_its_process_and_all_that_it_knows_of_jobs(trial):
    names = (
        "the server hangs for 10 s when it has all answers of vectors",
        "the server's process that works on the run is killed when it has all answers of vectors",
        "the server is killed, and NVFlare's records of jobs are lost",
    )

    def go_on() -> None:
        time.sleep(10)
        faults.send_signal(trial, "server", signal.SIGCONT)

    def start_without_records() -> None:
        shutil.rmtree(trial.kit("server").ours / "store")
        faults.start_again(trial, "server")

    due = [
        struck(trial, names[0], Moment("server", "vectors", IN, 2, signal.SIGSTOP), go_on),
        struck(trial, names[1], Moment("server", "vectors", IN, 3, whole=False)),
        struck(trial, names[2], Moment("server", "keys", IN, 4), start_without_records),
    ]
    story = faults.story(trial, experiment(4), "server-hangs", due, patience=PATIENCE)
    finished(story, 3)
    assert story.rounds["server"] == [1, 2, 3, 3, 4, 4]
    assert all(story.rounds[silo] == [1, 2, 3, 3, 4] for silo in SILOS)
    story.note(names[0], "goes on")
    for name in names[1:]:
        story.note(name, AGAIN)


# -- two silos at once


def both_killed(trial, name: str, silos: tuple[str, str], phase: str, number: int) -> Fault:
    """Both silos in one phase of a round, started again when both are dead."""
    moments = [struck(trial, name, Moment(silo, phase, IN, number)) for silo in silos]

    def again() -> None:
        for silo in silos:
            faults.start_again(trial, silo)

    # all of them are asked, also while the first has not come: they are armed thereby
    return Fault(name, lambda: sum(moment.comes() for moment in moments) == len(moments), again)


def test_two_silos_are_killed_where_one_may_be_missing(trial):
    due = []
    for number, phase in ((2, "shares"), (3, "unmasking")):
        name = f"two silos are killed at once {WORDS[IN]} {phase}; one may be missing"
        due.append(both_killed(trial, name, ("north", "west"), phase, number))
    story = faults.story(trial, experiment(4, exchange=ONE), "two", due, patience=PATIENCE)
    finished(story, 3)
    assert story.rounds["server"] == [1, 2, 2, 3, 3, 4]
    assert all(story.rounds[silo] == [1, 2, 3, 3, 4] for silo in SILOS)
    for number, fault in enumerate(due, 2):
        assert any(f"round {number} was not finished" in line for line in story.told)
        story.note(fault.name, f"round not released, {AGAIN}")


def test_two_of_five_silos_are_killed_where_two_may_be_missing(tmp_path):
    parts = dict(zip(("a", "b", "c", "d", "e"), ((site,) for site in SITES), strict=False))
    name = f"two of five silos are killed at once {WORDS[IN]} vectors; two may be missing"
    with faults.federation(tmp_path, parts) as five:
        content = experiment(3, exchange={"name": "masked", "drop_outs": 2})
        content["data"]["silos"] = {"count": 5}
        content["privacy"]["max_silos_per_subject"] = 5
        due = [both_killed(five, name, ("a", "b"), "vectors", 2)]
        story = faults.story(five, content, "five", due, patience=2 * PATIENCE)
    finished(story, 1, drop_outs=2)
    assert story.rounds["a"] == story.rounds["b"] == [1, 2]
    assert story.rounds["c"] == story.rounds["server"] == [1, 2, 3]
    story.note(name, "finished without them")


# -- the connection


def test_the_connection_of_a_silo_breaks_and_comes_back(trial, relay):
    """The silo is stopped for as long as it takes to break its connection."""
    due = []
    for number, (way, silently) in enumerate((("is cut", False), ("falls silent", True)), 2):
        name = f"the connection of a silo {way} before its vector leaves; none may be missing"

        def then(silently: bool = silently) -> None:
            relay.cut(silently=silently)
            faults.send_signal(trial, "west", signal.SIGCONT)
            faults.wait_until_given_up(trial, "west")
            relay.mend()

        due.append(struck(trial, name, Moment("west", "vectors", IN, number, signal.SIGSTOP), then))
    story = faults.story(trial, experiment(4), "cut", due, patience=PATIENCE)
    finished(story, 3)
    assert all(rounds == [1, 2, 2, 3, 3, 4] for rounds in story.rounds.values())
    for fault in due:
        story.note(fault.name, AGAIN)


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
        tomli_w.dumps(tomllib.loads(before) | {"name": f"small-{rule}", "ledger": str(disk / "ledger.jsonl")})
    )
    again = {"new_budget": True, "same_table": True}
    prepare_silo(trial.kit("north").path, settings, trial.home("north") / "POLICY.toml", **again)

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
    # the last pages of a disk may have had room for a checkpoint
    assert all(rounds in ([1, 2, 2, 3], [1, 2, 3]) for rounds in story.rounds.values())
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
    assert all(story.rounds[silo] == [1, 2] for silo in SILOS)
    story.note(name, "not gone on with; says that the checkpoint is damaged")


# -- clocks, ledgers, requesters


def start_with_another_clock(trial, silo: str, hours: int) -> None:
    library = next(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"), None)
    if library is None:
        pytest.skip("needs libfaketime")
    trial.stop(silo)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LD_PRELOAD", str(library))
        patch.setenv("FAKETIME", f"{hours * 3600:+d}s")
        trial.start(silo)


def test_a_silo_whose_clock_is_three_days_fast_takes_part(trial):
    name = "the clock of a silo is three days fast"
    start_with_another_clock(trial, "west", 72)
    trial.wait("west")
    seen = [Fault(name, lambda: True)]
    story = faults.story(trial, experiment(3), "fast", seen, patience=PATIENCE)
    trial.stop("west")
    trial.start("west")
    trial.wait("west")
    finished(story, 1)
    assert all(rounds == [1, 2, 3] for rounds in story.rounds.values())
    story.note(name, "finished")


def test_a_silo_to_whom_no_certificate_is_valid_yet_waits_outside(trial):
    name = "the clock of a silo is three days slow: certificates are not valid yet"
    start_with_another_clock(trial, "west", -72)

    def come_in() -> None:
        time.sleep(80)  # NVFlare takes a silo to be there for a minute after its last sign of life
        assert not joined(trial.kit("west").path)
        trial.stop("west")
        trial.start("west")

    story = faults.story(trial, experiment(2), "slow", [Fault(name, lambda: True, come_in)], patience=PATIENCE)
    finished(story, 1)
    assert "waiting for west" in story.told
    story.note(name, "not let in; the run begins when its clock is right")


def test_a_silo_comes_back_with_an_older_ledger(trial):
    name = "a silo is started again with an older copy of its ledger"
    ledger = faults.ledger(trial, "west")
    older, newer = ledger.with_suffix(".older"), ledger.with_suffix(".newer")
    known = trial.kit("west").ours / LEDGERS  # restored with the ledger: else the silo would not start
    shutil.copy(ledger, older)
    state = known.read_bytes()
    story = faults.story(trial, experiment(2), "newer", [], patience=PATIENCE)
    finished(story, 1)
    trial.stop("west")
    shutil.copy(ledger, newer)
    shutil.copy(older, ledger)
    known.write_bytes(state)
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
    command = [sys.executable, "-m", "tacit", "submit", str(file), "--kit", str(kit.path), "--out", str(out)]
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
