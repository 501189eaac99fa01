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
PATIENCE = (
    25  # of the server with a silo, in seconds; whoever is slower for other reasons costs an attempt, not the test
)
RETRIES = 8


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
    content = worlds.experiment(train={"rounds": ROUNDS})
    story = faults.story(trial, content, "silos", due, patience=PATIENCE, retries=RETRIES)
    outlived(story, least=4)
    assert any("north" in line and "asking again" in line for line in story.told)
    # a round that was cut off is asked for again; what had been written down stays
    assert all(story.rounds["server"].count(number) > 1 for number in (2, 3, 4))
    assert story.rounds["west"].count(2) > 1


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
    story = faults.story(trial, content, "server", due, patience=PATIENCE, retries=RETRIES)
    outlived(story, least=3, drop_outs=1)
    assert all(story.rounds["server"].count(number) > 1 for number in (4, 5))
    assert 2 in story.rounds["west"]  # written down, though it never left
    assert 6 in story.rounds["west"]


def outlived(story: faults.Story, *, least: int, drop_outs: int = 0) -> None:
    """It has finished, after so many attempts at least, and everybody has written down what was released; every attempt
    may have over-counted by the round in which it ended, and by no more."""
    assert story.run is not None, (story.why, story.told)
    story.check(drop_outs)
    assert story.attempts >= least, story.told
    for rounds in story.rounds.values():
        assert len(rounds) <= ROUNDS + story.attempts - 1, story.rounds
