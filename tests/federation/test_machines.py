"""A federation over a network: server, two hospitals and a requester on machines of their own, by the commands of
``docs/deploy.md`` alone."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import tomli_w

pytest.importorskip("nvflare")

from tacit.data.sources.tables import SITES
from tacit.federation.demo import POLICY, parted
from tacit.privacy import Ledger

from . import worlds
from .attackers import NOBODY, Attacker, Sent, job_cell, own_port, shell
from .faults import Story
from .machines import Machines, require_namespaces

pytestmark = pytest.mark.slow  # a minute and more

ANA, HOST = "ana@example.org", "server.example.org"
FEDERATION = {"name": "readmission", "silos": ["north", "south"], "requesters": [ANA], "server": {"host": HOST}}
ALLOWED = {**POLICY, "requesters": [ANA], "epsilon_per_run": 10.0, "epsilon_in_total": 100.0}
ROUNDS = 20
PATIENCE = 20
PLANTED = "patient 4711 has the diagnosis Q99"


@dataclass
class Consortium:
    """Everybody's own folder, and their machines."""

    machines: Machines
    folder: Path

    def home(self, who: str) -> Path:
        return self.folder / who

    def kit(self, who: str) -> Path:
        return self.home(who) / "kit"

    def log(self, who: str) -> str:
        return (self.kit(who) / "tacit" / "log.txt").read_text()

    def start(self, who: str, *words: str) -> subprocess.Popen:
        """A party in the foreground, as at a terminal."""
        command = self.machines.command(who, *words)
        return subprocess.Popen(command, cwd=self.home(who), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def asks(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command of the requester's."""
        command = self.machines.command("requester", *words)
        return subprocess.run(command, cwd=self.home("requester"), capture_output=True, text=True, check=False)

    def rounds(self, silo: str) -> list[int]:
        with Ledger(self.home(silo) / "DATA.ledger.jsonl") as book:
            return [line["round"] for line in book.lines]


@pytest.fixture(scope="module")
def consortium(tmp_path_factory) -> Iterator[Consortium]:
    require_namespaces()
    folder = tmp_path_factory.mktemp("machines")
    made = Consortium(Machines(["server", "north", "south", "requester"]), folder)
    with made.machines.connected({HOST: "server"}):
        trusted = folder / "trusted"  # whoever makes the kits, somewhere else
        trusted.mkdir()
        (trusted / "FEDERATION.toml").write_text(tomli_w.dumps(FEDERATION))
        init = made.machines.command("requester", "federation", "init", "FEDERATION.toml")
        subprocess.run(init, cwd=trusted, check=True, capture_output=True)
        kits = trusted / "readmission-kits"
        for who, kit in {
            "server": kits / "server",
            "north": kits / "silos" / "north",
            "south": kits / "silos" / "south",
            "requester": kits / "requesters" / ANA,
        }.items():
            made.home(who).mkdir()
            shutil.move(kit, made.kit(who))
        for silo, table in parted({"north": SITES[:3], "south": SITES[3:]}).items():
            table.head(2000).to_csv(made.home(silo) / "visits.csv", index=False)
            (made.home(silo) / "DATA.toml").write_text('path = "visits.csv"\nsubjects = "person"\n')
            (made.home(silo) / "POLICY.toml").write_text(tomli_w.dumps(ALLOWED))
        content = worlds.experiment(
            data={"silos": {"count": 2}, "records_per_silo": 2000},
            train={"rounds": ROUNDS},
            privacy={"max_silos_per_subject": 2},
            method={"name": "uldp-avg", "noise_multiplier": 8.0},
        )
        (made.home("requester") / "experiment.toml").write_text(tomli_w.dumps(content))
        yield made


@pytest.fixture(scope="module")
def running(consortium) -> Iterator[dict[str, subprocess.Popen]]:
    """Server and hospitals in the foreground; Ctrl-C ends each of them with nothing left behind."""
    silo = ("silo", "kit", "--data", "DATA.toml", "--policy", "POLICY.toml")
    with ExitStack() as stack:
        there = {}
        for who, words in {"server": ("server", "kit"), "north": silo, "south": silo}.items():
            there[who] = consortium.start(who, *words)
            stack.callback(there[who].kill)
        yield there
        for who in reversed(list(there)):
            there[who].send_signal(signal.SIGINT)
            said = there[who].communicate(timeout=60)[0].decode()
            assert "Traceback" not in said, said
            assert there[who].returncode in (0, 130), said


def test_two_hospitals_and_a_server_on_machines_of_their_own(consortium, running):
    asked = consortium.asks("submit", "experiment.toml", "--kit", "kit", "--out", "first", "--json")
    assert asked.returncode == 0, asked.stderr
    told = json.loads(asked.stdout)
    assert (told["status"], told["rounds"]) == ("finished", ROUNDS)
    assert (consortium.home("requester") / "first" / "report.html").is_file()
    assert consortium.rounds("north") == consortium.rounds("south") == list(range(1, ROUNDS + 1))
    status = consortium.asks("federation", "status", "--kit", "kit")
    assert status.returncode == 0, status.stderr
    assert "north" in status.stdout
    assert "south" in status.stdout


def test_a_cable_is_pulled_in_the_midst_of_a_run_and_plugged_in_again(consortium, running):
    before = {silo: len(consortium.rounds(silo)) for silo in ("north", "south")}
    seen = len(consortium.log("server"))
    words = ("submit", "experiment.toml", "--kit", "kit", "--out", "second", "--timeout", str(PATIENCE), "--json")
    asking = consortium.start("requester", *words)
    wait_for(consortium, seen, "done    round 2 ", asking)
    consortium.machines.pull_cable("south")
    pulled = time.monotonic()
    wait_for(consortium, seen, "silent  south: no answer", asking)
    consortium.machines.plug_in("south")
    said = asking.communicate(timeout=300)[0].decode()
    assert asking.returncode == 0, said
    told = json.loads(said[said.index("{") :])
    assert (told["status"], told["rounds"]) == ("finished", ROUNDS)
    with Ledger(consortium.home("requester") / "second" / "ledger.jsonl") as book:
        server = [line["round"] for line in book.lines]
    assert len(server) == ROUNDS + 1  # the round in which it was pulled was made again
    rounds = {silo: consortium.rounds(silo)[earlier:] for silo, earlier in before.items()}
    for mine in rounds.values():
        assert set(mine) == set(range(1, ROUNDS + 1))
        assert all(mine.count(number) <= server.count(number) for number in mine)
    name = "the network cable of a silo's machine is pulled, and plugged in again; none may be missing"
    story = Story(None, "", [], {**rounds, "server": server}, {name: pulled}, time.monotonic())
    story.note(name, "asked again, finished")


@pytest.fixture(scope="module")
def planted(consortium, running) -> Path:
    """A row of a patient's, on north's machine, that north's own user alone can read. All parties have joined."""
    end, log = time.monotonic() + 60, consortium.kit("server") / "tacit" / "log.txt"
    while not log.is_file() or not all(f"joined  {silo}" in consortium.log("server") for silo in ("north", "south")):
        assert time.monotonic() < end
        time.sleep(0.2)
    file = consortium.home("north") / "row.txt"
    file.write_text(PLANTED)
    file.chmod(0o600)
    return file


def reading(file: Path) -> list[Sent]:
    return [shell("north", f"{command} {file}") for command in ("cat", "head", "tail", "grep patient")]


def test_a_user_of_a_silos_machine_reads_nothing(consortium, running, planted):
    port = own_port(int((consortium.kit("north") / "tacit" / "process.pid").read_text()))
    place = consortium.machines.within("north")
    for scheme in ("tcp", "stcp"):
        user = Attacker(job_cell("north"), parent=f"{scheme}://localhost:{port}", user=NOBODY, prefix=place)
        assert PLANTED not in " ".join(user.sends(*reading(planted)))
    assert "refused local-user" in consortium.log("north")


def test_a_rogue_silo_reads_nothing(consortium, running, planted):
    ended(running["south"])
    rogue = Attacker(
        "south",
        root=f"grpc://{HOST}:8002",
        startup=str(consortium.kit("south") / "startup"),
        registers="south",
        host=HOST,
        project=FEDERATION["name"],
        prefix=consortium.machines.within("south"),
    )
    challenge = Sent("server", "task", "challenge", headers={"cn": "x", "nonce": "n"})
    control, *answers = rogue.sends(challenge, *reading(planted))
    assert control.startswith("ok")
    assert PLANTED not in " ".join(answers)
    assert "refused south: admin admin from south to north (sender)" in consortium.log("server")


def test_a_rogue_server_reads_nothing(consortium, running, planted):
    ended(running["server"])
    rogue = Attacker(
        "server",
        listen="grpc://0:8002",
        startup=str(consortium.kit("server") / "startup"),
        waits_for="north",
        host=HOST,
        prefix=consortium.machines.within("server"),
    )
    asked = Sent("north", "admin", "admin", "scheduler.check_resource", headers={"job_id": str(uuid.uuid4())})
    control, *answers = rogue.sends(asked, *reading(planted))
    assert control.startswith("ok")
    assert PLANTED not in " ".join(answers)
    assert "refused server: admin sys.shell from server (topic)" in consortium.log("north")


def ended(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGINT)
    process.wait(60)


def wait_for(consortium: Consortium, seen: int, words: str, asking: subprocess.Popen) -> None:
    """Until the server's log says so, after what was there before."""
    end = time.monotonic() + 180
    while words not in consortium.log("server")[seen:]:
        assert asking.poll() is None, asking.communicate()[0].decode()
        assert time.monotonic() < end, consortium.log("server")[seen:]
        time.sleep(0.02)
