"""Every channel and topic of NVFlare 2.9.0's cells: who may send on it, and to whom.

A *cell* is a process of a party: the server's (``server``), a silo's (``north``; the analyzer counts as a silo), that
of one of their jobs (``server.JOB``, ``north.JOB``), or a requester's (``_admin_...``). :func:`verdict` decides about
one message. It trusts the name of the neighbour that delivered the message, which the neighbour's certificate proves,
and nothing that the message says about itself. What the table does not name is refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

VERSION: Final = "2.9.0"  # of NVFlare: the table was made by looking at this one

Kind = Literal["server", "server's job", "silo", "silo's job", "requester"]
Rule = Literal["name", "port", "origin", "relay", "sender", "topic", "reply", "size", "number"]
"""Why a message is refused.

name    a malformed name of a cell, or one that the certificate does not permit
port    it arrived on the port for this party's own job processes, from another cell
origin  its origin is not the neighbour that delivered it, nor a cell that this neighbour may speak for
relay   its destination is another cell, and this party does not forward messages to it
sender  this sender may not send anything to this receiver
topic   this sender may not use this channel and topic
reply   it reports a failure to reach a cell that is not behind the neighbour that delivered it, or is about a stream
        to another cell than its origin
size    it, the stream that it is part of, or all open streams of its sender are larger or more than the receiver takes
number  the receiver works on 16 messages of this party already
"""

SERVER: Final = "server"
ANALYZER: Final = "analyzer"
STREAM: Final = "sm__STREAM"
ACK, DATA, ERROR = "sm__ACK", "sm__DATA", "sm__ERROR"
BYE: Final = ("cellnet.channel", "bye")
REPLIES: Final = "return_only"  # answers to streamed requests: their topics are those of the requests
ADMIN: Final = "admin"
HCI: Final = "hci_channel"
DOWNLOAD: Final = "download_service__"
AUX, TASK, COMMAND, LISTENER = "aux_communication", "task", "server_command", "server_parent_listener"

_JOB = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_PARTY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_REQUESTER = re.compile(r"_admin_[0-9a-f-]{32,36}")

Topics = frozenset[tuple[str, str]]


def _topics(channel: str, *topics: str) -> Topics:
    return frozenset((channel, topic) for topic in topics)


_ACKS = _topics(STREAM, ACK, ERROR)
_STREAMED = _ACKS | _topics(STREAM, DATA)  # streams of the other topics, too
_BYE: Topics = frozenset({BYE})

# (receiver, sender as the receiver knows it): channels and topics of requests. "*" stands for every topic.
ALLOWED: Final[Mapping[tuple[Kind, str], Topics]] = {
    ("server", "a silo"): _BYE | _topics(TASK, "challenge", "register", "heart_beat", "quit", "report_job_failure"),
    ("server", "a silo's job"): _BYE,
    ("server", "its job"): _BYE
    | _STREAMED
    | _topics(LISTENER, "get_clients", "heartbeat", "update_run_status")
    | _topics(REPLIES, "*"),
    ("server", "a requester"): _BYE
    | _ACKS  # and no streams: each would hold a thread of the server's
    | _topics(TASK, "challenge", "register")
    | _topics(HCI, "command")
    | _topics(DOWNLOAD, "download_service__download"),
    ("server's job", "its server"): _BYE
    | _STREAMED
    | _topics(COMMAND, "app_command", "abort", "handle_dead_job", "get_run_info")
    | _topics(REPLIES, "*"),
    ("server's job", "a silo's job"): _STREAMED
    | _topics(AUX, "__sync_runner__", "__job_heartbeat__", "__task_check__")
    | _topics(COMMAND, "get_task", "submit_update")
    | _topics(REPLIES, "*"),
    ("server's job", "a silo"): _ACKS,  # that the silo could not forward a stream to its job
    ("silo", "the server"): _BYE | _topics(ADMIN, "admin"),
    ("silo", "its job"): _BYE | _topics(ADMIN, "train.notify_job_status"),
    ("silo's job", "the server"): _BYE | _ACKS,
    ("silo's job", "the server's job"): _STREAMED
    | _topics(AUX, "__end_run__", "tacit-call", "tacit-message", "tacit-evaluate")
    | _topics(REPLIES, "*"),
    ("silo's job", "its silo"): _BYE | _ACKS | _topics("client_command", "abort"),
    ("requester", "the server"): _BYE | _STREAMED | _topics(HCI, "SESSION_EXPIRED"),
}

# The topic of a request on a silo's channel `admin` is in its payload.
REQUESTS: Final[Mapping[str, frozenset[str]]] = {
    "the server": frozenset(
        {"scheduler.check_resource", "scheduler.cancel_resource", "train.deploy", "train.start_job", "train.abort"}
    ),
    "its job": frozenset({"train.notify_job_status"}),
}

# What a requester may ask of the server by name, and has the right to (kits: authorization.json).
COMMANDS: Final = frozenset(
    {
        *("_cert_login", "_check_session", "_commands", "_logout"),
        *("submit_job", "list_jobs", "get_job_meta", "download_job", "app_command", "abort_job", "check_status"),
    }
)


_SHORT: Final = 64 << 10
_WITH_JOB: Final = 4 << 20  # a job of 2.75 MiB, in base64 or in bytes, and what is around it


def most_bytes(channel: object, topic: object, *, is_request: bool) -> int | None:
    """Bytes of a message that is no stream; None: as many as the process takes (:mod:`.streams`). In an honest run the
    largest ones without a job are a certificate or the list of silos, a few kB. Models and updates are in streams."""
    if is_request:
        return _WITH_JOB if (channel, topic) in ((HCI, "command"), (ADMIN, "admin")) else _SHORT
    return None if channel in (HCI, DOWNLOAD) else _SHORT  # answers to requesters, parts of a result


class Cell(NamedTuple):
    """A process, by its name."""

    party: str
    job: str | None = None

    @classmethod
    def named(cls, name: object) -> Cell | None:
        """The cell of a name; None if the name is malformed."""
        if not isinstance(name, str):
            return None
        party, dot, job = name.partition(".")
        if _REQUESTER.fullmatch(name):
            return cls(name)
        if not _PARTY.fullmatch(party) or (dot and not _JOB.fullmatch(job)):
            return None
        return cls(party, job or None)

    @property
    def kind(self) -> Kind:
        if self.party.startswith("_"):
            return "requester"
        if self.party == SERVER:
            return "server" if self.job is None else "server's job"
        return "silo" if self.job is None else "silo's job"


class CellHeaders(NamedTuple):
    """What the headers of a message say. ``type`` is ``req`` (a request), ``reply``, or ``return`` (a request that was
    not forwarded); ``inner`` are the channel and topic of what a stream carries; ``missed`` are the cells that a
    request or a stream did not reach, as each header that can name one says."""

    origin: object
    destination: object
    type: object
    channel: object
    topic: object
    inner: tuple[object, object] | None = None
    missed: tuple[object, ...] = ()


def verdict(own: Cell, neighbour: Cell, message: CellHeaders, *, own_port: bool) -> Rule | None:
    """Why a message that a neighbour has delivered to one's own cell is refused; None: it is accepted.

    ``own_port`` says that it came in on the port for the own job processes."""
    origin, destination = Cell.named(message.origin), Cell.named(message.destination)
    if origin is None or destination is None:
        return "name"
    is_own_job = neighbour.party == own.party and neighbour.job is not None and own.job is None
    if own_port != is_own_job:  # job processes use the port for them, and no other cell does
        return "port"
    if not _speaks_for(own, neighbour, origin):
        return "origin"
    if destination != own and not _passes_on(own, destination):
        return "relay"
    sender = known_as(destination, origin)
    if sender is None:
        return "sender"
    if message.type not in ("req", "reply", "return"):
        return "name"
    if not all(
        name is None or isinstance(name, str) for name in (message.channel, message.topic, *(message.inner or ()))
    ):
        return "name"
    if message.type == "req" and not _is_allowed(ALLOWED[destination.kind, sender], message):
        return "topic"
    missed = [Cell.named(name) for name in message.missed]
    if any(cell is None or not _leads_to(own, neighbour, cell) for cell in missed):
        return "reply"
    return "reply" if message.type == "return" and not missed else None


def known_as(receiver: Cell, sender: Cell) -> str | None:
    """How a receiver calls a sender (in :data:`ALLOWED`); None: this sender may not send it anything."""
    same_job = receiver.job == sender.job
    names: Mapping[tuple[Kind, Kind], tuple[str, bool]] = {
        ("server", "silo"): ("a silo", True),
        ("server", "silo's job"): ("a silo's job", True),
        ("server", "server's job"): ("its job", True),
        ("server", "requester"): ("a requester", True),
        ("server's job", "server"): ("its server", True),
        ("server's job", "silo"): ("a silo", True),
        ("server's job", "silo's job"): ("a silo's job", same_job),
        ("silo", "server"): ("the server", True),
        ("silo", "silo's job"): ("its job", receiver.party == sender.party),
        ("silo's job", "server"): ("the server", True),
        ("silo's job", "server's job"): ("the server's job", same_job),
        ("silo's job", "silo"): ("its silo", receiver.party == sender.party),
        ("requester", "server"): ("the server", True),
    }
    name, holds = names.get((receiver.kind, sender.kind), ("", False))
    return name if holds else None


def _speaks_for(own: Cell, neighbour: Cell, origin: Cell) -> bool:
    """Whether the neighbour may deliver a message of this origin: its own; those of its jobs; to a job, what its parent
    process or the server forwards."""
    if known_as(own, neighbour) is None:
        return False
    if own.kind == "requester":
        return neighbour == origin
    if own.kind == "server":
        return neighbour == origin or (neighbour.kind == "silo" and neighbour.party == origin.party)
    if own.kind == "server's job":
        return neighbour.kind == "server"
    if neighbour.party == own.party and neighbour.job is not None:  # a job of one's own
        return neighbour == origin
    return origin.party == SERVER or neighbour == origin


def _passes_on(own: Cell, destination: Cell) -> bool:
    """Whether a message for another cell is forwarded here: by the server, and by a silo for its own jobs."""
    return own.kind == "server" or (own.kind == "silo" and destination.party in (own.party, SERVER))


def _leads_to(own: Cell, neighbour: Cell, missed: Cell) -> bool:
    return neighbour.party == missed.party if own.kind == "server" else neighbour.job is None


def _is_allowed(topics: Topics, message: CellHeaders) -> bool:
    if (message.channel, message.topic) == (STREAM, DATA):
        inner = message.inner
        return (STREAM, DATA) in topics and inner is not None and inner[0] != STREAM and _has(topics, *inner)
    return message.channel != REPLIES and _has(topics, message.channel, message.topic)


def _has(topics: Topics, channel: object, topic: object) -> bool:
    return isinstance(topic, str) and ((channel, topic) in topics or (channel, "*") in topics)
