"""A silo is stopped as an operator stops it, and may be missing: the others finish, however long silos have."""

from __future__ import annotations

import signal
from contextlib import suppress

import psutil
import pytest

pytest.importorskip("nvflare")

from . import faults, worlds
from .faults import Moment, struck

pytestmark = pytest.mark.slow  # minutes

TIMEOUT = 180  # seconds; NVFlare gives a party up after 60 without a sign of life, and would end its job after 60 more


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    with faults.federation(tmp_path_factory.mktemp("stopped")) as running:
        yield running


@pytest.mark.parametrize("exchange", ["weighted", "masked"])
def test_a_run_finishes_without_a_silo_that_is_stopped(trial, exchange):
    """NVFlare's process of the silo gets SIGTERM while the silo holds a message of round 2. The server waits for the
    answer for longer than NVFlare keeps a job of which a required party is gone."""
    content = worlds.experiment(train={"rounds": 4}, exchange={"name": exchange, "drop_outs": 1})
    if exchange == "weighted":
        content["method"]["weights"] = "records"
        content["exchange"]["slots"] = 40
    hangs = Moment("west", "vectors", "before", 2, signal.SIGSTOP, whole=False)
    workers: list[psutil.Process] = []

    def stop() -> None:
        workers.extend(psutil.Process(trial.processes["west"].pid).children(recursive=True))
        trial.processes["west"].terminate()

    try:
        story = faults.story(trial, content, exchange, [struck(trial, "silo stops", hangs, stop)], patience=TIMEOUT)
    finally:
        for worker in workers:  # it is held by SIGSTOP, and cannot end by itself
            with suppress(psutil.NoSuchProcess):
                worker.kill()
    faults.start_again(trial, "west")
    assert story.run is not None, (story.why, story.told)
    story.check(drop_outs=1)
    assert story.attempts == 1, story.told
