"""What happens to a run when processes of a federation die, hang or come back: it completes, or says why, and nothing
is released that is not written down on every side. Six faults, in two runs; the others are in ``test_fault_matrix``."""

from __future__ import annotations

import signal

import psutil
import pytest

pytest.importorskip("nvflare")

from . import faults, worlds
from .faults import Moment, struck

ROUNDS = 6
PATIENCE = 15


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    with faults.federation(tmp_path_factory.mktemp("faults")) as running:
        yield running
    assert not [process for process in psutil.process_iter(["cmdline"]) if str(running.folder) in _words(process)]


def _words(process: psutil.Process) -> str:
    return " ".join(process.info["cmdline"] or [])


def test_a_run_outlives_silos_that_are_killed_or_hang(trial):
    """A silo's process that works on the run is killed when it has written its ledger and before its vector leaves; a
    whole silo is killed and comes back; a silo hangs longer than it is waited for."""
    dies, hangs = Moment("south", "shares", "before", 3), Moment("north", "unmasking", "in", 4, signal.SIGSTOP)
    due = [
        struck(trial, "job process killed", Moment("west", "vectors", "in", 2, whole=False)),
        struck(trial, "silo killed", dies, lambda: faults.start_again(trial, "south")),
        struck(trial, "silo hangs", hangs, faults.wake(trial, "north")),
    ]
    story = faults.story(trial, worlds.experiment(train={"rounds": ROUNDS}), "silos", due, patience=PATIENCE)
    assert story.run is not None, story.why
    story.check()
    assert story.attempts == 4, story.told
    assert any("north" in line and "asking again" in line for line in story.told)
    # a round that was cut off is asked for again; what had been written down stays
    assert story.rounds["server"] == [1, 2, 2, 3, 3, 4, 4, 5, 6]
    assert story.rounds["west"] == [1, 2, 2, 3, 4, 4, 5, 6]
    for silo in ("north", "south"):  # of round 2 they may have been told that it is over before they had done it
        assert story.rounds[silo] in ([1, 2, 2, 3, 4, 4, 5, 6], [1, 2, 3, 4, 4, 5, 6])


def test_a_run_outlives_a_silo_that_stays_away_and_its_server(trial):
    """With ``drop_outs = 1`` a silo is killed: the others finish the round. The server's process that works on the run
    is killed: the silo that has come back is taken in again. The whole server is killed and comes back."""
    away = Moment("west", "vectors", "in", 2)
    ends, dies = Moment("server", "survivors", "in", 4, whole=False), Moment("server", "unmasking", "in", 5)
    due = [
        struck(trial, "silo killed", away, lambda: faults.start_again(trial, "west")),
        struck(trial, "server's job process killed", ends),
        struck(trial, "server killed", dies, lambda: faults.start_again(trial, "server")),
    ]
    content = worlds.experiment(train={"rounds": ROUNDS}, exchange={"name": "masked", "drop_outs": 1})
    story = faults.story(trial, content, "server", due, patience=PATIENCE)
    assert story.run is not None, story.why
    story.check(drop_outs=1)
    assert story.attempts == 3, story.told
    assert story.rounds["server"] == [1, 2, 3, 4, 4, 5, 5, 6]
    assert story.rounds["north"] == [1, 2, 3, 4, 4, 5, 5, 6]
    assert story.rounds["west"] == [1, 2, 4, 5, 5, 6]  # its vector of round 2 never left; 3 and 4 were without it
