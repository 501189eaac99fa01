"""Attacks on NVFlare's channels with raw messages: who can make a silo read a file, describe its machine, or stop.

Every attacker has a control: a message that it may send, from the same process and connection, is answered. On NVFlare
as it comes, each of these attacks succeeds.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from pathlib import Path

import pytest

pytest.importorskip("nvflare")

from tacit.engine.federation.trial import REQUESTER, Trial, parted
from tacit.transport.log import LOG

from . import worlds
from .attackers import NOBODY, Attacker, Sent, job_cell, own_port, requester_cell, shell

PLANTED = "patient 4711 has the diagnosis Q99"
CHALLENGE = Sent("server", "task", "challenge", headers={"cn": "x", "nonce": "n"})
ASKED = ("sys.shell", "sys.info", "train.shutdown")
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act as another user")


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    """A server and a silo, north, which run; another silo, east, is the attackers'."""
    table = parted()["north"].head(200)
    made = Trial(tmp_path_factory.mktemp("attacks"), worlds.POLICY, tables={"north": table, "east": table})
    made.prepare()
    try:
        for name in ("server", "north"):
            made.start(name)
            made.wait(name)
        yield made
    finally:
        made._stop_all()


@pytest.fixture(scope="module")
def planted(trial) -> Path:
    file = trial.home("north") / "row.txt"
    file.write_text(PLANTED)
    file.chmod(0o600)
    return file


def lines(trial: Trial, name: str) -> list[str]:
    file = trial.kit(name).ours / LOG
    return file.read_text().splitlines() if file.is_file() else []


def logged(trial: Trial, name: str, *words: str) -> bool:
    """Whether the log of a party has a line of a refusal with these words, at last."""
    end = time.monotonic() + 5
    while not any("refused" in line and all(word in line for word in words) for line in lines(trial, name)):
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def attacks(target: str, file: Path) -> list[Sent]:
    return [shell(target, f"cat {file}"), Sent(target, "admin", "admin", "sys.info"), shutdown(target)]


def shutdown(target: str) -> Sent:
    return Sent(target, "admin", "admin", "train.shutdown")


def is_unharmed(trial: Trial, answers: list[str]) -> bool:
    """Whether no attack of :func:`attacks` had an effect."""
    time.sleep(1.5)  # a silo that is told to stop takes a second
    told = " ".join(answers)
    return PLANTED not in told and "available" not in told and trial.processes["north"].poll() is None


def requester(trial: Trial) -> Attacker:
    kit = trial.kit(REQUESTER)
    root = f"grpc://localhost:{kit.port}"
    return Attacker(requester_cell(), root=root, startup=str(kit.startup), registers=REQUESTER)


def east(trial: Trial) -> Attacker:
    kit = trial.kit("east")
    return Attacker("east", root=f"grpc://localhost:{kit.port}", startup=str(kit.startup), registers="east")


def test_a_requester_makes_a_silo_do_nothing(trial, planted):
    control, *answers = requester(trial).sends(CHALLENGE, *attacks("north", planted))
    assert control.startswith("ok")
    assert is_unharmed(trial, answers)
    assert logged(trial, "server", REQUESTER, "admin admin", "to north", "(sender)")


def test_another_silo_makes_a_silo_do_nothing(trial, planted):
    control, *answers = east(trial).sends(CHALLENGE, *attacks("north", planted))
    assert control.startswith("ok")
    assert is_unharmed(trial, answers)
    assert logged(trial, "server", "refused east", "admin admin", "to north", "(sender)")


@NEEDS_ROOT
def test_a_local_user_makes_a_silo_do_nothing(trial, planted):
    port = own_port(trial.processes["north"].pid)
    for scheme in ("tcp", "stcp"):
        user = Attacker(job_cell("north"), parent=f"{scheme}://localhost:{port}", user=NOBODY)
        assert is_unharmed(trial, user.sends(*attacks("north", planted)))
    assert logged(trial, "north", "refused local-user")
    job = job_cell("north")
    status = {"job_id": job.partition(".")[2], "job_status": "x"}
    control = Sent("north", "admin", "train.notify_job_status", "train.notify_job_status", headers=status)
    own = Attacker(job, parent=f"stcp://localhost:{port}", startup=str(trial.kit("north").startup))
    with socket.create_connection(("localhost", port)):  # a connection that says nothing keeps no other from the port
        assert own.sends(control)[0].startswith("ok")


@pytest.mark.parametrize("name", [REQUESTER, "east"])
def test_an_origin_that_the_certificate_does_not_bear_out_is_refused(trial, name):
    attacker = requester(trial) if name == REQUESTER else east(trial)
    origins = ("server", f"server.{uuid.uuid4()}", "north")
    forged = [Sent("north", "admin", "admin", "train.shutdown", origin=origin) for origin in origins]
    control, *_ = attacker.sends(CHALLENGE, *forged)
    assert control.startswith("ok")
    assert is_unharmed(trial, [])
    for origin in origins:
        assert logged(trial, "server", f"refused {name}", f"from {origin} to north", "(origin)")


def test_the_servers_operator_makes_a_silo_do_nothing(trial, planted):
    """The last test here: another process takes the server's place, with its certificate."""
    kit = trial.kit("server")
    trial.stop("server")
    rogue = Attacker("server", listen=f"grpc://localhost:{kit.port}", startup=str(kit.startup), waits_for="north")
    job = {"job_id": str(uuid.uuid4())}
    control = Sent("north", "admin", "admin", "scheduler.check_resource", headers=job)
    answer, *answers = rogue.sends(control, *attacks("north", planted))
    assert answer.startswith("ok")
    assert is_unharmed(trial, answers)
    for topic in ASKED:
        assert logged(trial, "north", "refused server", f"admin {topic}", "(topic)")
