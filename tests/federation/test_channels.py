"""Which of NVFlare's channels and topics take messages, and from whom: the table, what NVFlare registers, and what real
processes accept.

``python -m tests.federation.test_channels`` writes the table into ``docs/security.md``.
"""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from tacit.federation.demo import REQUESTER, Trial, parted
from tacit.federation.requester import _session, _submitted, ask
from tacit.planning.plan import plan
from tacit.transport import channels
from tacit.transport.channels import ALLOWED, DATA, REPLIES, STREAM, Cell, CellHeaders, Kind, verdict
from tacit.transport.gate import _read

from . import worlds
from .attackers import Attacker, Sent, own_port, requester_cell
from .registered import REGISTERED, REGISTERED_COMMANDS, REGISTERED_REQUESTS

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
BEGIN, END = "<!-- channels: generated -->\n", "<!-- end of channels -->\n"
RECEIVERS: dict[Kind, str] = {"server": "server", "server's job": "server.J", "silo": "north", "silo's job": "north.J"}
OTHER = "(any other)"
JOB, ANOTHER = str(uuid.UUID(int=1)), str(uuid.UUID(int=2))


# -- the table


@dataclass(frozen=True)
class Sender:
    """Who sends: the neighbour that delivers the message, to which cells it is connected, and what it says it is."""

    neighbour: str
    origin: str
    at: tuple[str, ...]  # the first of these that leads to the receiver
    own_port: bool = False


def senders(requester: str, rogue: str = "south", job: str = JOB, another: str = ANOTHER) -> dict[str, list[Sender]]:
    """The columns of the table. A local user has no certificate; one with a kit of another party has."""
    server, north = ("server",), ("north", f"north.{job}")
    jobs = [Sender(f"{rogue}.{one}", f"{rogue}.{one}", server) for one in (job, another)]
    claims = ("server", f"server.{job}", "north", f"north.{job}", requester)
    forged = [Sender(rogue, claim, server) for claim in claims]
    forged += [Sender(requester, claim, server) for claim in (*claims[:-1], rogue)]
    forged += [Sender(f"north.{another}", claim, north[:1], own_port=True) for claim in ("server", f"north.{job}")]
    return {
        "requester": [Sender(requester, requester, server)],
        "another silo": [Sender(rogue, rogue, server)],
        "another silo's job process": jobs,
        "server's operator": [Sender("server", one, north) for one in ("server", f"server.{job}", f"server.{another}")],
        "own processes": [
            Sender(f"north.{job}", f"north.{job}", ("north", "server")),
            Sender(f"server.{job}", f"server.{job}", server, own_port=True),
            Sender("north", "north", (f"north.{job}",)),
            Sender("server", "server", (f"server.{job}",)),
        ],
        "local user with another party's kit": [
            Sender(rogue, rogue, (place,), own_port=True) for place in ("north", "server")
        ],
        "forged origin": forged,
    }


def topics(kind: Kind) -> list[tuple[str, str]]:
    """Every channel and topic of a kind of cell; where a callback takes all topics, those that some sender may use, and
    another one."""
    allowed = {pair for (receiver, _), pairs in ALLOWED.items() if receiver == kind for pair in pairs}
    some = {pair for pair in REGISTERED[kind] | allowed if pair[1] != "*" and pair != (STREAM, DATA)}
    every = {(channel, OTHER) for channel, topic in REGISTERED[kind] if topic == "*"}
    return sorted(some | every)


def is_accepted(sender: Sender, receiver: str, channel: str, topic: str) -> bool:
    """Whether a request gets there: every cell on its way accepts it."""
    target = Cell.named(receiver)
    assert target is not None
    if channel in (REPLIES, "hci.upload"):
        message = CellHeaders(sender.origin, receiver, "req", STREAM, DATA, (channel, topic))
    else:
        message = CellHeaders(sender.origin, receiver, "req", channel, topic)
    neighbour, own_port = sender.neighbour, sender.own_port
    for place in way(sender, target):
        own, before = Cell.named(place), Cell.named(neighbour)
        assert own is not None
        assert before is not None
        # a silo listens for its own job processes alone
        if verdict(own, before, message, own_port=own_port or before.party == place == "north") is not None:
            return False
        neighbour, own_port = place, False
    return True


def way(sender: Sender, target: Cell) -> list[str]:
    """The cells that a message passes, the receiver included."""
    name = target.party if target.job is None else f"{target.party}.{target.job}"
    if name in sender.at:
        return [name]
    first = sender.at[0] if target.party in ("server", sender.at[0]) or "server" not in sender.at else "server"
    if first == name:
        return [name]
    return [first, *(["server"] if first != "server" and target.party == "server" and target.job else []), name]


def rows() -> Iterator[tuple[str, str, str, list[str]]]:
    """Receiver, channel, topics with the same verdicts, and the verdicts."""
    columns = senders(f"_admin_{uuid.UUID(int=3)}")
    for kind, shown in RECEIVERS.items():
        receiver = shown.replace("J", JOB)
        found: dict[tuple[str, tuple[str, ...]], list[str]] = {}  # topics by channel and verdicts
        for channel, topic in topics(kind):
            words = tuple(
                "**yes**" if any(is_accepted(one, receiver, channel, topic) for one in column) else "no"
                for column in columns.values()
            )
            found.setdefault((channel, words), []).append(topic)
        for (channel, words), named in found.items():
            alone = named == [OTHER] and sum(one == channel for one, _ in found) == 1
            some = [f"`{topic}`" for topic in named if topic != OTHER]
            rest = ["all" if alone else "any other"] if OTHER in named else []
            yield shown, channel, ", ".join([*some, *rest]), list(words)


def page() -> str:
    columns = [*senders(f"_admin_{uuid.UUID(int=3)}")]
    head = ["receiver", "channel", "topics", "no certificate", *columns]
    lines = [head, ["---"] * len(head)]
    lines += [[f"`{to}`", f"`{channel}`", named, "no", *words] for to, channel, named, words in rows()]
    cells = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    asked = channels.REQUESTS.items()
    requests = "".join(
        f"| `{topic}` | {', '.join(who for who, topics in asked if topic in topics) or 'no sender'} |\n"
        for topic in sorted(REGISTERED_REQUESTS)
    )
    commands = ", ".join(f"`{name}`" for name in sorted(channels.COMMANDS))
    refused = ", ".join(f"`{name}`" for name in sorted(REGISTERED_COMMANDS - channels.COMMANDS))
    return (
        f"{cells}\nThe channel `admin` of a silo carries requests, whose topic is in the payload:\n\n"
        f"| request | accepted from |\n|---|---|\n{requests}\n"
        "The channel `hci_channel` of the server carries commands of requesters. Accepted, if the requester has the "
        f"right: {commands}. Refused: {refused}.\n"
    )


def test_the_page_has_the_table():
    text = PAGE.read_text(encoding="utf-8")
    assert text[text.index(BEGIN) + len(BEGIN) : text.index(END)] == page()


def accepted_from(kind: Kind, channel: str) -> set[str]:
    pairs = ((sender, pair) for (receiver, sender), some in ALLOWED.items() if receiver == kind for pair in some)
    return {sender for sender, (used, _) in pairs if used == channel}


def test_no_sender_reaches_the_manager_of_the_network():
    for kind in RECEIVERS:
        assert not accepted_from(kind, "_net_manager")
        assert not accepted_from(kind, "credential_manager")
    assert all(topic != "bulk" for some in ALLOWED.values() for _, topic in some)


def test_a_silo_takes_requests_from_the_server_and_its_own_jobs_alone():
    assert accepted_from("silo", "admin") == {"the server", "its job"}
    assert accepted_from("silo's job", "aux_communication") == {"the server's job"}
    assert accepted_from("silo's job", "client_command") == {"its silo"}
    assert not accepted_from("silo", "server_command")


def test_commands_to_a_servers_job_come_from_the_server():
    assert {topic for channel, topic in ALLOWED["server's job", "a silo's job"] if channel == "server_command"} == {
        "get_task",
        "submit_update",
    }


@pytest.mark.parametrize(
    "name", ["", ".", "north.", ".a", "north.job", f"north.{JOB}.x", "north/..", "a b", None, 7, ["north"], "x" * 64]
)
def test_a_malformed_name_is_no_cell(name):
    assert Cell.named(name) is None


def test_a_failure_is_reported_by_the_party_that_it_concerns():
    server, south = Cell("server"), Cell("south")
    good, bad = f"south.{JOB}", f"north.{JOB}"
    for missed, rule in (
        ((good,), None),
        ((good, good), None),
        ((bad,), "reply"),
        ((good, bad), "reply"),
        ((bad, good), "reply"),
        ((None,), "reply"),
        ((), "reply"),
    ):
        message = CellHeaders("south", "server", "return", "admin", "admin", missed=missed)
        assert verdict(server, south, message, own_port=False) == rule


def test_every_header_that_names_a_cell_which_was_not_reached_counts():
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey as Key
    from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey

    said = {
        Key.ORIGIN: f"south.{JOB}",
        Key.DESTINATION: f"server.{JOB}",
        Key.MSG_TYPE: "req",
        Key.CHANNEL: "sm__STREAM",
        Key.TOPIC: "sm__ERROR",
        StreamHeaderKey.FAILED_DESTINATION: f"north.{JOB}",
    }
    for returned in (None, {}, [], {Key.DESTINATION: f"south.{JOB}"}):
        headers = said if returned is None else {**said, Key.ORIGINAL_HEADERS: returned}
        assert verdict(Cell("server"), Cell("south"), _read(headers), own_port=False) == "reply"
    own = {**said, StreamHeaderKey.FAILED_DESTINATION: f"south.{JOB}"}
    assert verdict(Cell("server"), Cell("south"), _read(own), own_port=False) is None
    assert verdict(Cell("server"), Cell("south"), _read({**own, Key.ORIGINAL_HEADERS: {}}), own_port=False) == "reply"


# -- what NVFlare registers, and what processes accept


class World:
    """A federation with a run in flight; the analyzer's kit is the attackers'."""

    def __init__(self, trial: Trial, job: str, recorded: Path) -> None:
        self.trial, self.job, self._recorded = trial, job, recorded

    def records(self, what: str) -> list[Any]:
        lines = [json.loads(line) for line in self._recorded.read_text().splitlines()]
        return [(program, *words) for program, kind, *words in lines if kind == what]

    def accepted(self, *attackers: tuple[Attacker, list[Sent]]) -> set[tuple[str, str, str]]:
        """The mark, receiver and origin of the messages that cells have accepted."""
        for attacker, messages in attackers:
            attacker.sends(*messages)
        time.sleep(1.0)
        return {(mark, cell, origin) for _, mark, cell, origin in self.records("accepted")}


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("channels")
    recorded = folder / "recorded.jsonl"
    path = os.pathsep.join([str(Path(__file__).parent / "recorder"), os.environ.get("PYTHONPATH", "")])
    tables = {name: one.head(200) for name, one in parted().items() if name != "west"}
    trial = Trial(folder, worlds.POLICY, analyzer=True, tables=tables)
    trial.prepare()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TACIT_RECORDED", str(recorded))
        patch.setenv("PYTHONPATH", path)
        with trial.running():
            content = worlds.experiment(
                data={"silos": {"count": 2}, "records_per_silo": 100},
                train={"rounds": 500},
                privacy={"max_silos_per_subject": 2},
                method={"name": "uldp-avg", "noise_multiplier": 100.0},
            )
            kit = trial.kit(REQUESTER)
            asked = _submitted(kit, ask(kit, plan(content), folder / "run", 60))
            log = trial.kit("server").ours / "log.txt"
            end = time.monotonic() + 120
            while not log.is_file() or "done    round 1 " not in log.read_text():
                assert time.monotonic() < end
                time.sleep(0.2)
            trial.stop("analyzer")
            yield World(trial, asked.job, recorded)


PROGRAMS: dict[str, Kind] = {
    "server": "server",
    "server-job": "server's job",
    "client": "silo",
    "client-job": "silo's job",
}


def test_the_table_knows_every_channel_and_topic_that_nvflare_registers(world):
    found = {(PROGRAMS[program], channel, topic) for program, channel, topic in world.records("registered")}
    assert {kind for kind, _, _ in found} == set(RECEIVERS)
    later = {("server", channel, topic) for channel, topic in REGISTERED["server"] if channel == "download_service__"}
    assert found | later == {(kind, *pair) for kind, some in REGISTERED.items() for pair in some}


def test_the_table_knows_every_request_and_command_that_nvflare_registers(world):
    from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

    processors = ClientRequestProcessors.request_processors
    assert {topic for one in processors for topic in one.get_topics()} == REGISTERED_REQUESTS
    assert {name for program, name in world.records("command") if program == "server"} == REGISTERED_COMMANDS


def test_processes_accept_what_the_table_allows_and_nothing_else(world):
    trial, job, another = world.trial, world.job, str(uuid.uuid4())
    port = trial.kit("server").port
    root = f"grpc://localhost:{port}"
    inner = {name: f"stcp://localhost:{own_port(trial.processes[name].pid, (port,))}" for name in ("server", "north")}
    requester = requester_cell()
    kits = {requester: REQUESTER, "analyzer": "analyzer", "north": "north", "server": "server"}
    expected: set[tuple[str, str, str]] = set()
    attackers: dict[tuple[str, bool, str], list[Sent]] = {}
    columns = senders(requester, "analyzer", job, another)
    played = {one for who, column in columns.items() if who != "server's operator" for one in column}
    for sender in (one for one in played if one.at[0] in inner):
        for kind, shown in RECEIVERS.items():
            receiver = shown.replace("J", job)
            for channel, topic in topics(kind):
                mark = f"{sender.neighbour} {sender.own_port} {channel} {topic} {receiver}"
                headers = {"x-attack": mark}
                if channel == REPLIES:
                    headers |= {"sm__ch": channel, "sm__tp": topic, "sm__id": 1}
                    sent = Sent(receiver, STREAM, DATA, headers=headers, origin=sender.origin)
                else:
                    sent = Sent(receiver, channel, topic, headers=headers, origin=sender.origin)
                first = sender.at[0]
                attackers.setdefault((sender.neighbour, sender.own_port, first), []).append(sent)
                own, neighbour = Cell.named(first), Cell.named(sender.neighbour)
                within = (headers["sm__ch"], headers["sm__tp"]) if "sm__ch" in headers else None
                message = CellHeaders(sender.origin, receiver, "req", sent.channel, sent.topic, within)
                assert own is not None
                assert neighbour is not None
                at_port = sender.own_port or first == "north"
                if verdict(own, neighbour, message, own_port=at_port) is None:
                    expected.add((mark, first, sender.origin))
    runs = []
    for (cell, at_port, first), messages in attackers.items():
        kit = trial.kit(kits[cell if cell in kits else cell.partition(".")[0]])
        reached = inner[first] if at_port or first == "north" else root
        where = {"parent" if at_port and "." in cell else "root": reached}
        runs.append((Attacker(cell, startup=str(kit.startup), waits_for=first, **where), messages))
    accepted = world.accepted(*runs)
    # of every certified sender some message is accepted: they do arrive
    certified = {requester, "analyzer", f"analyzer.{job}", f"north.{job}", f"server.{job}"}
    assert certified <= {origin for _, _, origin in expected}
    assert accepted == expected


@pytest.mark.parametrize("command", ["process_info north", "show_config_vars north", "stress north", "cells"])
def test_a_requester_has_no_commands_that_need_no_right(world, command):
    with _session(world.trial.kit(REQUESTER)) as session:  # its own console would not send them
        assert "not authorized" in str(session.api.server_execute(command)).lower()


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(text[: text.index(BEGIN) + len(BEGIN)] + page() + text[text.index(END) :], encoding="utf-8")
