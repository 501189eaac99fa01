"""Enforces :mod:`tacit.transport.table` inside NVFlare's processes.

NVFlare 2.9.0 has no setting for most of this, so :func:`close` replaces a few of its functions before the first cell
exists. If one of them is missing, or NVFlare has another version, the process does not start.

====================================  ==============================================================================
replaced                              because
====================================  ==============================================================================
``CoreCell.process_message``          any neighbour can send on any channel, to any cell, with any origin
``CoreCell._create_internal_listener``  the port for job processes is open to every local user unless configured
``CoreCell.start``                    a job process does not wait for the connection to its parent process
``FedAdminAgent.register_processor``  ``sys.shell``, ``train.shutdown`` and fourteen others are registered
``FedAdminAgent._dispatch_request``   it checks rights only if the sender asks for it
``AuthzFilter.pre_command``           ``process_info``, ``stress`` and eleven others need no right
``TcpStreamServer.get_request``       one local connection that says nothing blocks all others in the TLS handshake
``….ProcessJobLauncher.get_command``  job processes have cells, too: they start from :mod:`tacit.transport.__main__`
====================================  ==============================================================================
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import nvflare
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.server_process_launcher import ServerProcessJobLauncher
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType
from nvflare.fuel.f3.drivers.connector_info import Mode
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.drivers.tcp_driver import TcpStreamServer
from nvflare.fuel.f3.sfm.conn_manager import NullConnection
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.hci.proto import MetaStatusValue, ReplyKeyword, make_meta
from nvflare.fuel.hci.server.authz import AuthzFilter
from nvflare.fuel.hci.server.constants import ConnProps
from nvflare.private.admin_defs import error_reply
from nvflare.private.defs import RequestHeader, new_cell_message
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

from tacit.transport.log import Refusals, escaped, log_of
from tacit.transport.table import COMMANDS, DATA, REQUESTS, VERSION, Cell, Message, known_as, verdict

_HANDSHAKE = 10.0  # seconds
_MTLS = "mtls"
_UNKNOWN, _LOCAL = "unknown", "local-user"
_PROGRAMS = {
    "nvflare.private.fed.app.client.worker_process": "client-job",
    "nvflare.private.fed.app.server.runner_process": "server-job",
}


def close(kit: Path) -> None:
    """Close NVFlare's doors in this process; what is refused is written into the log of a kit."""
    if nvflare.__version__ != VERSION:
        raise RuntimeError(f"NVFlare {nvflare.__version__} is installed; Tacit needs {VERSION}")
    refusals = Refusals(log_of(kit))
    _replace(CoreCell, "process_message", lambda old: _guarded(old, refusals))
    _replace(CoreCell, "_create_internal_listener", _encrypted)
    _replace(CoreCell, "start", _started)
    _replace(FedAdminAgent, "register_processor", _registered)
    _replace(FedAdminAgent, "_dispatch_request", lambda old: _dispatched(old, refusals))
    _replace(AuthzFilter, "pre_command", lambda old: _authorized(old, refusals))
    _replace(TcpStreamServer, "get_request", lambda old: _accepted, inherited=True)
    _replace(TcpStreamServer, "finish_request", lambda old: _shaken(old, refusals), inherited=True)
    for launcher in (ClientProcessJobLauncher, ServerProcessJobLauncher):
        _replace(launcher, "get_command", _launched)
    needed = frozenset().union(*REQUESTS.values())
    kept = [one for one in ClientRequestProcessors.request_processors if needed.issuperset(one.get_topics())]
    if frozenset().union(*(one.get_topics() for one in kept)) != needed:
        raise RuntimeError("NVFlare lacks a request processor that a run needs")
    ClientRequestProcessors.request_processors[:] = kept


def _replace(owner: type, name: str, made: Callable[[Any], Any], inherited: bool = False) -> None:
    old = getattr(owner, name, None) if inherited else vars(owner).get(name)
    if not callable(old):
        raise RuntimeError(f"NVFlare has no {owner.__name__}.{name}: its doors cannot be closed")
    setattr(owner, name, made(old))


# -- messages


def _guarded(old: Any, refusals: Refusals) -> Any:
    def process_message(self: Any, endpoint: Any, connection: Any, app_id: int, message: Any) -> None:
        """Called for every message that arrives over a connection, before any of it is decoded."""
        if not isinstance(connection, NullConnection):  # that one is from this very cell
            headers: Mapping[str, Any] = message.headers or {}
            read = _read(headers)
            party, rule = _judged(self, endpoint, connection, read)
            if rule is None and headers.get(MessageHeaderKey.CONN_URL) is not None:
                rule = "relay"  # an invitation to connect to another address
            if rule is not None:
                channel, topic = read.inner or (read.channel, read.topic)
                names = (channel, topic, "from", read.origin, "to", read.destination)
                refusals.note(party, f"{' '.join(map(escaped, names))} ({rule})")
                return
            is_answer = read.type != MessageType.REQ and read.destination == self.my_info.fqcn
            if is_answer and not _is_awaited(self, headers):
                return  # no request waits for it: it is late, or was never asked for
        old(self, endpoint, connection, app_id, message)

    return process_message


def _read(headers: Mapping[str, Any]) -> Message:
    key = MessageHeaderKey
    within = (headers.get(StreamHeaderKey.CHANNEL), headers.get(StreamHeaderKey.TOPIC))
    returned, failed = headers.get(key.ORIGINAL_HEADERS), headers.get(StreamHeaderKey.FAILED_DESTINATION)
    return Message(
        origin=headers.get(key.ORIGIN),
        destination=headers.get(key.DESTINATION),
        type=headers.get(key.MSG_TYPE),
        channel=headers.get(key.CHANNEL),
        topic=headers.get(key.TOPIC),
        inner=within if headers.get(key.TOPIC) == DATA else None,
        missed=returned.get(key.DESTINATION) if isinstance(returned, dict) else failed,
    )


def _judged(cell: Any, endpoint: Any, connection: Any, message: Message) -> tuple[str, str | None]:
    """The party that has delivered a message, as its certificate calls it, and why the message is refused."""
    own, neighbour = Cell.named(cell.my_info.fqcn), Cell.named(getattr(endpoint, "name", None))
    connector = getattr(connection, "connector", None)
    if own is None or neighbour is None or connector is None:
        return _UNKNOWN, "name"
    party = neighbour.party
    if connector.mode == Mode.PASSIVE:  # the neighbour has connected to this process, with a certificate
        certified = connection.get_conn_properties().get(DriverParams.PEER_CN.value)
        if not isinstance(certified, str) or certified == "N/A":
            return _UNKNOWN, "name"
        if (neighbour.kind == "requester") != ("@" in certified):
            return certified, "name"
        party = certified if neighbour.kind == "requester" else party
    port = cell.int_listener
    own_port = port is not None and connector.handle == port.handle
    return party, verdict(own, neighbour, message, own_port=own_port)


def _is_awaited(cell: Any, headers: Mapping[str, Any]) -> bool:
    asked = headers.get(MessageHeaderKey.REQ_ID)
    ids = asked if isinstance(asked, list) else [asked]
    return any(isinstance(one, str) and one in cell.waiters for one in ids)


# -- the port for job processes


def _encrypted(old: Any) -> Any:
    def _create_internal_listener(self: Any, scheme: Any = None, resources: Any = None) -> Any:
        used = self.connector_manager.int_resources if resources is None else resources
        if used.get(DriverParams.CONNECTION_SECURITY.value) != _MTLS:
            raise RuntimeError("the port for job processes has no mutual TLS: local/comm_config.json is not Tacit's")
        return old(self, scheme, resources)

    return _create_internal_listener


def _started(old: Any) -> Any:
    def start(self: Any) -> None:
        """With TLS a job process can fail before it is connected to its parent, which then waits a minute for it."""
        old(self)
        parent, end = self.my_info.fqcn.rpartition(".")[0], time.monotonic() + _HANDSHAKE
        while parent and parent not in self.agents and time.monotonic() < end:
            time.sleep(0.01)

    return start


def _accepted(self: TcpStreamServer) -> tuple[Any, Any]:
    """Accept a connection and leave its TLS handshake to the thread of the connection."""
    self.socket.do_handshake_on_connect = False
    accepted: tuple[Any, Any] = self.socket.accept()
    return accepted


def _shaken(old: Any, refusals: Refusals) -> Any:
    def finish_request(self: Any, request: Any, client_address: Any) -> None:
        if not isinstance(request, ssl.SSLSocket):
            raise RuntimeError("a connection without TLS")
        try:
            request.settimeout(_HANDSHAKE)
            request.do_handshake()
            request.settimeout(None)
        except OSError as error:
            reason = getattr(error, "reason", None) or type(error).__name__
            refusals.note(_LOCAL, f"a connection to the port for job processes ({escaped(reason)})")
            return
        old(self, request, client_address)

    return finish_request


# -- requests to a silo, and commands to the server


def _registered(old: Any) -> Any:
    def register_processor(self: Any, processor: Any) -> None:
        topics = frozenset(processor.get_topics())
        if not topics <= frozenset().union(*REQUESTS.values()):
            raise RuntimeError(f"no run needs the requests {sorted(topics)}")
        old(self, processor)

    return register_processor


def _dispatched(old: Any, refusals: Refusals) -> Any:
    def _dispatch_request(self: Any, request: Any) -> Any:
        """The sender is the one that :func:`_judged` has checked; the topic that counts is within the payload."""
        own, origin = Cell.named(self.cell.get_fqcn()), Cell.named(request.get_header(MessageHeaderKey.ORIGIN))
        sender = None if own is None or origin is None else known_as(own, origin)
        asked, topic = request.payload, getattr(request.payload, "topic", None)
        job = asked.get_header(RequestHeader.JOB_ID) if topic is not None else None
        is_known = sender is not None and topic in REQUESTS.get(sender, ())
        # a job's number becomes the name of a folder and a word of a command line
        names_a_job = topic == "scheduler.cancel_resource" or Cell.named(f"job.{job}") is not None
        is_its_own = origin is None or origin.job is None or origin.job == job
        if is_known and names_a_job and is_its_own:
            return old(self, request)
        claimed = escaped(request.get_header(MessageHeaderKey.ORIGIN))
        rule = "job" if is_known else "topic"
        refusals.note(_UNKNOWN if origin is None else origin.party, f"admin {escaped(topic)} from {claimed} ({rule})")
        return new_cell_message({}, error_reply(ReplyKeyword.NOT_AUTHORIZED))

    return _dispatch_request


def _authorized(old: Any, refusals: Refusals) -> Any:
    def pre_command(self: Any, conn: Any, args: list[str]) -> Any:
        entry = conn.get_prop(ConnProps.CMD_ENTRY, None)
        name = getattr(entry, "name", None)
        if name in COMMANDS:
            return old(self, conn, args)
        refusals.note(conn.get_prop(ConnProps.USER_NAME, "") or _UNKNOWN, f"the command {escaped(name)} (topic)")
        meta = make_meta(MetaStatusValue.NOT_AUTHORIZED, ReplyKeyword.NOT_AUTHORIZED)
        conn.append_error(f"This action is {ReplyKeyword.NOT_AUTHORIZED}", meta=meta)
        return False

    return pre_command


# -- job processes


def _launched(old: Any) -> Any:
    def get_command(self: Any, job_meta: Any, fl_ctx: Any) -> str:
        """NVFlare's command line, with Tacit's program; ``-P``: no module comes from the folder it is started in."""
        command = str(old(self, job_meta, fl_ctx))
        for theirs, ours in _PROGRAMS.items():
            before, found, after = command.partition(f" -m {theirs} ")
            if found:
                return f"{before} -P -m tacit.transport {ours} {after}"
        raise RuntimeError("NVFlare starts job processes from a program that Tacit does not know")

    return get_command
