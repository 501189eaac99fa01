"""Enforces :mod:`tacit.transport.channels` inside NVFlare's processes.

NVFlare 2.9.0 has no setting for most of this, so :func:`close` replaces the functions of ``_REPLACED`` before the first
cell exists. If one of them is missing, or NVFlare has another version, the process does not start.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from contextvars import ContextVar
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import nvflare
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.job_def import JobMetaKey
from nvflare.apis.workspace import Workspace
from nvflare.app_common.job_launcher.client_process_launcher import ClientProcessJobLauncher
from nvflare.app_common.job_launcher.server_process_launcher import ServerProcessJobLauncher
from nvflare.fuel.f3.cellnet import cell as cells
from nvflare.fuel.f3.cellnet import core_cell as core_cells
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType
from nvflare.fuel.f3.cellnet.identity import CellIdentityResolver
from nvflare.fuel.f3.comm_error import CommError
from nvflare.fuel.f3.drivers import aio_grpc_driver, grpc_driver, socket_conn
from nvflare.fuel.f3.drivers.connector_info import Mode
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.drivers.tcp_driver import TcpStreamServer
from nvflare.fuel.f3.sfm.conn_manager import ConnManager, NullConnection
from nvflare.fuel.f3.sfm.constants import HandshakeKeys, Types
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix
from nvflare.fuel.f3.stats_pool import CounterPool, HistPool
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.f3.streaming.byte_streamer import ByteStreamer
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.hci.proto import MetaStatusValue, ReplyKeyword, make_meta
from nvflare.fuel.hci.server.authz import AuthzFilter
from nvflare.fuel.hci.server.constants import ConnProps
from nvflare.fuel.sec.audit import Auditor
from nvflare.private.admin_defs import error_reply
from nvflare.private.defs import (
    ERROR_MSG_PREFIX,
    CellMessageHeaderKeys,
    ClientType,
    RequestHeader,
    new_cell_message,
)
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.private.fed.client.fed_client_base import FederatedClientBase
from nvflare.private.fed.server.client_manager import ClientManager
from nvflare.private.fed.server.job_cmds import JobCommandModule
from nvflare.private.fed.server.training_cmds import TrainingCommandModule
from nvflare.private.fed.utils.identity_utils import CNMismatch, IdentityVerifier, get_cn_from_cert

from tacit.transport.channels import (
    ACK,
    COMMANDS,
    DATA,
    HCI,
    REQUESTS,
    SERVER,
    STREAM,
    VERSION,
    Cell,
    CellHeaders,
    known_as,
    most_bytes,
    verdict,
)
from tacit.transport.log import Refusals, escaped, log_of
from tacit.transport.objects import MOST_HEADERS, ForbiddenObject, check_command, check_values, is_table, restrict
from tacit.transport.packed import PACKED
from tacit.transport.streams import MOST_FRAME, PROCESS, Arrived, Places, Stream, Streams, Unread

_HANDSHAKE = 10.0  # seconds
_MOST_CALLS = 16  # connections of a party at a time: a silo has one, and one for each of 4 jobs
_MOST_ASKED = 16  # messages of a party that are worked on at a time, apart from streams: each holds a thread
_MOST_PASSED = 2 << 20  # bytes of a message that is forwarded: a part of a stream has 1 MB
_MOST_NAME = 4096  # bytes of the message that names a neighbour
_MOST_QUEUED = 128  # connections that wait for their TLS handshake: 5 by default
_MTLS = "mtls"
_UNKNOWN, _LOCAL = "unknown", "local-user"
_TOKEN = "TOKEN"  # a column of a table
_PUBLIC = ("job_id", "name", "status", "submitter_name", "submit_time", "duration", "study")  # of jobs of others
_RECEIVED = "grpc.max_receive_message_length"  # 2 GB in NVFlare
_PARTY: ContextVar[str] = ContextVar("party")  # whose message this thread works on, as the certificate says
_EXCEPTION = "exception_occurred"  # begins an answer of FedAdminAgent
_PROGRAMS = {
    "nvflare.private.fed.app.client.worker_process": "client-job",
    "nvflare.private.fed.app.server.runner_process": "server-job",
}


# What is replaced, by the method of :class:`Gate` that has its name, and why.
_REPLACED: tuple[tuple[Any, str], ...] = (
    (CoreCell, "process_message"),  # any neighbour can send on any channel, to any cell, with any origin
    (CoreCell, "_create_internal_listener"),  # the port for job processes is open to every local user by default
    (CoreCell, "start"),  # a job process does not wait for the connection to its parent process
    (FedAdminAgent, "register_processor"),  # `sys.shell`, `train.shutdown` and fourteen others are registered
    (FedAdminAgent, "_dispatch_request"),  # it checks rights only if the sender asks for it
    (AuthzFilter, "pre_command"),  # `process_info`, `stress` and eleven others need no right
    (JobCommandModule, "get_job_meta"),  # it shows every requester what silos have said about jobs of others
    (JobCommandModule, "_send_detail_list"),  # it shows every requester the whole description of jobs of others
    (TcpStreamServer, "get_request"),  # one silent local connection blocks all others in the TLS handshake
    (TcpStreamServer, "finish_request"),
    (ClientProcessJobLauncher, "get_command"),  # job processes have cells, too: they start from `.__main__`
    (ServerProcessJobLauncher, "get_command"),
    (Workspace, "get_app_custom_dir"),  # code in the folder of a job would be on the path of its process
    (CellIdentityResolver, "require_match"),  # who was accepted or rejected is a line of Tacit's log, ...
    (IdentityVerifier, "verify_common_name"),  # ... without text of others
    (ClientManager, "authenticate"),
    (FederatedClientBase, "client_register"),
    (grpc_driver.Servicer, "Stream"),  # every connection holds one of 100 threads, and one party can open them all
    (ConnManager, "process_frame"),  # what has arrived and is not worked on yet waits without a bound
    (ConnManager, "process_frame_task"),  # the name of a neighbour is unpacked, of any size, as often as it is sent
    (ConnManager, "update_endpoint"),  # every name under which a neighbour was connected is kept, with its message
    (ConnManager, "close_connection"),
    (grpc_driver.StreamConnection, "send_frame"),  # what a party does not read waits in memory without a bound
    (grpc_driver.StreamConnection, "generate_output"),
    (grpc_driver.StreamConnection, "close"),
    (Auditor, "__init__"),  # `audit.log` grows without a bound, and text of others is lines in it
    (TrainingCommandModule, "check_status"),  # it shows the tokens of silos to every requester
    (HistPool, "record_value"),  # statistics keep every name of a channel or a cell that a message has said
    (CounterPool, "increment"),
)
# A message can hold objects that read and write files (:mod:`.objects`).
_DECODERS = ((cells, "decode_payload"), (core_cells, "decode_payload"))


def close(kit: Path) -> None:
    """Close NVFlare's doors in this process; what is refused is written into the log of a kit."""
    gate = _opened(kit)
    for owner, name in _REPLACED:
        _replace(gate, owner, name)
    for driver in (grpc_driver, aio_grpc_driver):  # by default, 2 GB are received before any of it is looked at
        options = [one for one in driver.GRPC_DEFAULT_OPTIONS if one[0] != _RECEIVED]
        driver.GRPC_DEFAULT_OPTIONS[:] = [*options, (_RECEIVED, MOST_FRAME)]
    socket_conn.MAX_FRAME_SIZE = MOST_FRAME  # 2 GB: memory for a frame is taken when its first 16 bytes have come
    TcpStreamServer.request_queue_size = _MOST_QUEUED
    needed = frozenset().union(*REQUESTS.values())
    kept = [one for one in ClientRequestProcessors.request_processors if needed.issuperset(one.get_topics())]
    if frozenset().union(*(one.get_topics() for one in kept)) != needed:
        raise RuntimeError("NVFlare lacks a request processor that a run needs")
    ClientRequestProcessors.request_processors[:] = kept


def guard(cell: CoreCell, kit: Path) -> None:
    """Enforce the table in one cell alone: a requester's, whose process has no other part of a party in it."""
    cell.process_message = partial(_opened(kit).process_message, CoreCell.process_message, cell)


def _opened(kit: Path) -> Gate:
    if nvflare.__version__ != VERSION:
        raise RuntimeError(f"NVFlare {nvflare.__version__} is installed; Tacit needs {VERSION}")
    gate = Gate(Refusals(log_of(kit)))
    restrict()
    for module, name in _DECODERS:
        _replace(gate, module, name)
    return gate


def _replace(gate: Gate, owner: Any, name: str) -> None:
    old = getattr(owner, name, None) if owner is TcpStreamServer else vars(owner).get(name)
    if not callable(old):
        raise RuntimeError(f"NVFlare has no {owner.__name__}.{name}: its doors cannot be closed")
    first, ours = getattr(old, "replaced", old), getattr(gate, name.strip("_").lower())

    def new(*args: Any, **more: Any) -> Any:
        return ours(first, *args, **more)

    new.replaced = first  # type: ignore[attr-defined]  # a process may have several requesters, one after another
    setattr(owner, name, staticmethod(new) if isinstance(first, staticmethod) else new)


class Gate:
    """What NVFlare's functions of the same names are replaced by; ``old`` is the function that was there."""

    def __init__(self, refusals: Refusals) -> None:
        self._note, self._write = refusals.note, refusals.write
        self._streams, self._asked = Streams(_is_open, PROCESS), Places(_MOST_ASKED)
        self._calls, self._unread, self._arrived = Places(_MOST_CALLS), Unread(), Arrived()

    # -- messages

    def process_message(self, old: Any, cell: Any, endpoint: Any, connection: Any, app_id: int, message: Any) -> None:
        """Called for every message that arrives over a connection, before any of it is decoded."""
        if isinstance(connection, NullConnection):  # from this very cell
            old(cell, endpoint, connection, app_id, message)
            return
        headers: Mapping[str, Any] = message.headers or {}
        read = _read(headers)
        party, rule = _judged(cell, endpoint, connection, read)
        sender = party if "@" in party else str(read.origin)  # a requester can have many cells
        stream = (read.origin, headers.get(StreamHeaderKey.STREAM_ID)) if read.inner is not None else None
        is_ours = read.destination == cell.my_info.fqcn
        if rule is None and headers.get(MessageHeaderKey.CONN_URL) is not None:
            rule = "relay"  # an invitation to connect to another address
        if rule is None and not is_ours and _length(message) > _MOST_PASSED:
            rule = "size"
        if rule is None and is_ours and not self._is_taken(sender, stream, read, message):
            rule = "size"
        if rule is None and is_ours and (read.channel, read.topic) == (STREAM, ACK) and not _is_from_target(headers):
            rule = "reply"
        if rule is None and is_ours and read.type != MessageType.REQ and not _is_awaited(cell, headers):
            return  # no request waits for it: it is late, or was never asked for
        is_single = rule is None and is_ours and read.type == MessageType.REQ and read.channel != STREAM
        with self._asked.of(_certified(party, read)) if is_single or "@" in party else nullcontext(True) as is_free:
            if rule is None and is_free:
                _PARTY.set(party)
                old(cell, endpoint, connection, app_id, message)
                if is_ours and stream is not None:
                    self._streams.handled(sender, stream)
                return
        channel, topic = read.inner or (read.channel, read.topic)
        names = (channel, topic, "from", read.origin, "to", read.destination)
        self._note(party, f"{' '.join(map(escaped, names))} ({rule or 'number'})")

    def _is_taken(self, sender: str, stream: Any, read: CellHeaders, message: Any) -> bool:
        """Whether a message is small enough, and the stream that it belongs to."""
        declared = (message.headers or {}).get(StreamHeaderKey.SIZE) or 0
        most = most_bytes(read.channel, read.topic, is_request=read.type == MessageType.REQ)
        return self._streams.takes(sender, stream, declared, _length(message), most)

    def decode_payload(self, old: Any, message: Any, *args: Any, **more: Any) -> None:
        """Called for every message that a cell receives, and for every stream at its end."""
        channel, topic = (message.get_header(key) for key in (MessageHeaderKey.CHANNEL, MessageHeaderKey.TOPIC))
        try:
            old(message, *args, **more)
            if (channel, topic, message.get_header(MessageHeaderKey.MSG_TYPE)) == (HCI, "command", MessageType.REQ):
                check_command(message.payload, PACKED)
        except ForbiddenObject as error:
            origin = Cell.named(message.get_header(MessageHeaderKey.ORIGIN))
            party = _PARTY.get(_UNKNOWN if origin is None else origin.party)  # a stream ends in a thread of its own
            self._note(party, f"{escaped(channel)} {escaped(topic)}: {error} (object)")
            raise

    # -- who is let in

    def stream(self, old: Any, servicer: Any, request_iterator: Any, context: Any) -> Any:
        """A connection to the server; it holds a thread until the other side ends it."""
        names = context.auth_context().get("x509_common_name") or [_UNKNOWN.encode()]
        party = names[0].decode(errors="replace")
        with self._calls.of(party) as is_free:
            if not is_free:
                self._note(party, f"a connection: it has {_MOST_CALLS} already")
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many connections")
            yield from old(servicer, request_iterator, context)

    def process_frame(self, old: Any, manager: Any, sfm_conn: Any, frame: Any) -> None:
        """Called by the thread that reads a connection: it reads on when what has arrived before is worked on."""
        party, length = _peer(sfm_conn.conn), len(frame)
        self._arrived.wait(party, length)
        try:
            manager.frame_mgr_executor.submit(self._worked_on, manager, sfm_conn, frame, party)
        except RuntimeError:  # the process ends
            self._arrived.done(party, length)

    def _worked_on(self, manager: Any, sfm_conn: Any, frame: Any, party: str) -> None:
        try:
            manager.process_frame_task(sfm_conn, frame)
        finally:
            self._arrived.done(party, len(frame))

    def process_frame_task(self, old: Any, manager: Any, sfm_conn: Any, frame: Any) -> None:
        """Called for everything that arrives over a connection. A neighbour says its name once, in a short message."""
        prefix = Prefix.from_bytes(frame) if len(frame) >= PREFIX_LEN else Prefix()
        problem = ""
        if prefix.type in (Types.HELLO, Types.READY):
            is_named = sfm_conn.sfm_endpoint is not None
            if is_named or len(frame) > _MOST_NAME:
                problem = f"it says its name {'a second time' if is_named else f'in {len(frame)} bytes'}"
        headers = memoryview(frame)[PREFIX_LEN : PREFIX_LEN + prefix.header_len]
        if headers and not is_table(headers[0]):
            problem = "headers that are no table"
        try:
            check_values(headers, MOST_HEADERS)
        except ForbiddenObject as error:
            problem = f"headers: {error}"
        if problem:
            self._note(_peer(sfm_conn.conn), problem)
        else:
            old(manager, sfm_conn, frame)

    def update_endpoint(self, old: Any, manager: Any, sfm_conn: Any, data: Any) -> None:
        """A neighbour has said its name. Nothing else that it has said is kept."""
        key = HandshakeKeys.ENDPOINT_NAME
        old(manager, sfm_conn, {key: data.get(key) if isinstance(data, dict) else None})

    def close_connection(self, old: Any, manager: Any, connection: Any) -> None:
        """The name of a neighbour goes with its last connection."""
        sfm_conn = manager.sfm_conns.get(connection.name)
        old(manager, connection)
        endpoint = getattr(sfm_conn, "sfm_endpoint", None)
        if endpoint is None or endpoint.connections:
            return
        name = endpoint.endpoint.name
        if manager.sfm_endpoints.get(name) is endpoint:
            del manager.sfm_endpoints[name]
        if endpoint.connections:  # it has connected again meanwhile, and NVFlare takes no lock for that
            manager.sfm_endpoints.setdefault(name, endpoint)

    def send_frame(self, old: Any, line: Any, frame: Any) -> None:
        """Called for everything that is sent over a connection: it waits until the other side reads it."""
        party = _peer(line)
        if not self._unread.takes(party, id(line), len(frame)):
            self._note(party, "a connection: it does not read what it is sent")
            if line.context is not None:
                line.context.cancel()  # the thread of the connection waits for the other side
            line.oq.q.queue.clear()
            line.close()
            raise CommError(CommError.CLOSED, "the other side does not read")
        try:
            old(line, frame)
        except BaseException:
            self._unread.sent(party, id(line), len(frame))
            raise

    def generate_output(self, old: Any, line: Any) -> Iterator[Any]:
        for frame in old(line):
            self._unread.sent(_peer(line), id(line), len(frame.data))
            yield frame

    def close(self, old: Any, line: Any) -> None:
        old(line)
        self._unread.sent(_peer(line), id(line))

    def require_match(self, old: Any, resolver: Any, fqcn: Any, peer_cn: Any, peer_desc: Any) -> Any:
        try:
            return old(resolver, fqcn, peer_cn, peer_desc)
        except ValueError:
            self._note(peer_cn if isinstance(peer_cn, str) else _UNKNOWN, f"it calls itself {escaped(fqcn)}")
            raise

    def verify_common_name(self, old: Any, verifier: Any, asserted_cn: Any, *args: Any, **more: Any) -> Any:
        try:
            return old(verifier, asserted_cn, *args, **more)
        except CNMismatch:
            party = get_cn_from_cert(more["asserter_cert"]) if "asserter_cert" in more else _UNKNOWN
            self._note(party, f"a login as {escaped(asserted_cn)}")
            raise

    def authenticate(self, old: Any, manager: Any, request: Any, fl_ctx: Any) -> Any:
        name, kind = (request.get_header(getattr(CellMessageHeaderKeys, key)) for key in ("CLIENT_NAME", "CLIENT_TYPE"))
        if kind != (ClientType.ADMIN if "@" in str(name) else ClientType.REGULAR):
            self._note(_PARTY.get(_UNKNOWN), f"a login as {escaped(name)}, of another kind ({escaped(kind)})")
            fl_ctx.set_prop(FLContextKey.UNAUTHENTICATED, "a login of another kind", sticky=False)
            return None
        was_there = name in manager.name_to_clients if isinstance(name, str) else False
        client = old(manager, request, fl_ctx)
        if client is not None and client.name in manager.name_to_clients:  # a silo or the analyzer, by its certificate
            again = " again, and had not left: does a copy of its kit run?" if was_there else ""
            self._write(client.name, f"joined  {escaped(client.name)}{again}")
        return client

    def client_register(self, old: Any, client: Any, project_name: Any, fl_ctx: Any) -> None:
        before = client.token
        old(client, project_name, fl_ctx)
        if client.token and client.token != before:
            self._write(SERVER, f"joined  the server, as {escaped(client.client_name)}")

    # -- job processes, and the port for them

    def create_internal_listener(self, old: Any, cell: Any, scheme: Any = None, resources: Any = None) -> Any:
        used = cell.connector_manager.int_resources if resources is None else resources
        if used.get(DriverParams.CONNECTION_SECURITY.value) != _MTLS:
            raise RuntimeError("the port for job processes has no mutual TLS: local/comm_config.json is not Tacit's")
        return old(cell, scheme, resources)

    def start(self, old: Any, cell: Any) -> None:
        """With TLS a job process can fail before it is connected to its parent, which then waits a minute for it."""
        old(cell)
        parent, end = cell.my_info.fqcn.rpartition(".")[0], time.monotonic() + _HANDSHAKE
        while parent and parent not in cell.agents and time.monotonic() < end:
            time.sleep(0.01)

    def get_request(self, old: Any, server: TcpStreamServer) -> Any:
        """Accept a connection and leave its TLS handshake to the thread of the connection."""
        server.socket.do_handshake_on_connect = False
        return server.socket.accept()

    def finish_request(self, old: Any, server: Any, request: Any, client_address: Any) -> None:
        if not isinstance(request, ssl.SSLSocket):
            raise RuntimeError("a connection without TLS")
        try:
            request.settimeout(_HANDSHAKE)
            request.do_handshake()
            request.settimeout(None)
        except OSError as error:
            reason = getattr(error, "reason", None) or type(error).__name__
            self._note(_LOCAL, f"a connection to the port for job processes ({escaped(reason)})")
            return
        if not _is_own(request, server.connector.params):
            self._note(_LOCAL, "a connection to the port for job processes (the certificate of another party)")
            return
        old(server, request, client_address)

    def get_command(self, old: Any, launcher: Any, job_meta: Any, fl_ctx: Any) -> str:
        """NVFlare's command line, with Tacit's program; ``-P``: no module comes from the folder it is started in."""
        command = str(old(launcher, job_meta, fl_ctx))
        for theirs, ours in _PROGRAMS.items():
            before, found, after = command.partition(f" -m {theirs} ")
            if found:
                return f"{before} -P -m tacit.transport {ours} {after}"
        raise RuntimeError("NVFlare starts job processes from a program that Tacit does not know")

    def get_app_custom_dir(self, old: Any, workspace: Any, job_id: Any) -> str:
        return ""

    # -- requests to a silo, and commands to the server

    def register_processor(self, old: Any, agent: Any, processor: Any) -> None:
        topics = frozenset(processor.get_topics())
        if not topics <= frozenset().union(*REQUESTS.values()):
            raise RuntimeError(f"no run needs the requests {sorted(topics)}")
        old(agent, processor)

    def dispatch_request(self, old: Any, agent: Any, request: Any) -> Any:
        """The sender is the one that :func:`_judged` has checked; the topic that counts is within the payload."""
        own, origin = Cell.named(agent.cell.get_fqcn()), Cell.named(request.get_header(MessageHeaderKey.ORIGIN))
        sender = None if own is None or origin is None else known_as(own, origin)
        asked, topic = request.payload, getattr(request.payload, "topic", None)
        job = asked.get_header(RequestHeader.JOB_ID) if topic is not None else None
        is_known = sender is not None and topic in REQUESTS.get(sender, ())
        # a job's number becomes the name of a folder and a word of a command line
        names_a_job = topic == "scheduler.cancel_resource" or Cell.named(f"job.{job}") is not None
        is_its_own = origin is None or origin.job is None or origin.job == job
        if is_known and names_a_job and is_its_own:
            return _without_errors(old(agent, request))
        claimed = escaped(request.get_header(MessageHeaderKey.ORIGIN))
        rule = "job" if is_known else "topic"
        self._note(_UNKNOWN if origin is None else origin.party, f"admin {escaped(topic)} from {claimed} ({rule})")
        return new_cell_message({}, error_reply(ReplyKeyword.NOT_AUTHORIZED))

    def pre_command(self, old: Any, authorizer: Any, conn: Any, args: list[str]) -> Any:
        name = getattr(conn.get_prop(ConnProps.CMD_ENTRY, None), "name", None)
        if name in COMMANDS:
            is_allowed = old(authorizer, conn, args)
            if not is_allowed:
                user = conn.get_prop(ConnProps.USER_NAME, "") or _UNKNOWN
                self._note(user, f"the command {escaped(name)} (right)")
            return is_allowed
        return self._forbid(conn, f"the command {escaped(name)} (topic)")

    def get_job_meta(self, old: Any, module: Any, conn: Any, args: list[str]) -> None:
        """What silos have said about a job is for its requester."""
        user = conn.get_prop(ConnProps.USER_NAME, "")
        if user and user == conn.get_prop(ConnProps.SUBMITTER_NAME, ""):
            old(module, conn, args)
        else:
            self._forbid(conn, "the description of a job of another requester")

    def _forbid(self, conn: Any, what: str) -> bool:
        self._note(conn.get_prop(ConnProps.USER_NAME, "") or _UNKNOWN, what)
        meta = make_meta(MetaStatusValue.NOT_AUTHORIZED, ReplyKeyword.NOT_AUTHORIZED)
        conn.append_error(f"This action is {ReplyKeyword.NOT_AUTHORIZED}", meta=meta)
        return False

    def check_status(self, old: Any, module: Any, conn: Any, args: list[str]) -> None:
        """Who is connected, without the tokens by which NVFlare knows them."""
        seen = copy(conn)
        tables: list[Any] = []

        def append_table(headers: Any, **options: Any) -> Any:
            tables.append(conn.append_table(headers, **options))
            return tables[-1]

        seen.append_table = append_table
        old(module, seen, args)
        for table in tables:
            kept = [number for number, name in enumerate(table.rows[0]) if name != _TOKEN]
            table.rows[:] = [[row[number] for number in kept] for row in table.rows]

    def send_detail_list(self, old: Any, conn: Any, jobs: list[Any]) -> None:
        """Of the jobs of others, their names alone."""
        user, shown = conn.get_prop(ConnProps.USER_NAME, ""), []
        for job in jobs:
            if not user or job.meta.get(JobMetaKey.SUBMITTER_NAME.value) != user:
                job = copy(job)
                job.meta = {key: job.meta[key] for key in _PUBLIC if key in job.meta}
            shown.append(job)
        old(conn, shown)

    def record_value(self, old: Any, pool: Any, category: Any, value: Any) -> None:
        """Nothing: no command that Tacit accepts reads the statistics."""

    def increment(self, old: Any, pool: Any, category: Any, counter_name: Any, amount: Any = 1) -> None:
        """Nothing, as in :meth:`record_value`."""

    def init(self, old: Any, auditor: Any, audit_file_name: str) -> None:
        """NVFlare's audit without a file: it then writes nothing."""
        auditor.audit_file, auditor._lock = None, threading.Lock()


def _length(message: Any) -> int:
    payload = message.payload
    return len(payload) if isinstance(payload, bytes | bytearray | memoryview) else 0


def _is_own(request: ssl.SSLSocket, params: Mapping[str, Any]) -> bool:
    """Whether the other side has the certificate of this process's own kit, as its job processes have."""
    files = (params.get(key.value) for key in (DriverParams.SERVER_CERT, DriverParams.CLIENT_CERT))
    own = [ssl.PEM_cert_to_DER_cert(_first_certificate(Path(file))) for file in files if file]
    return request.getpeercert(binary_form=True) in own


def _first_certificate(file: Path) -> str:
    """Of a file that may hold a chain."""
    text, end = file.read_text(encoding="ascii"), "-----END CERTIFICATE-----"
    return text[text.index("-----BEGIN CERTIFICATE-----") : text.index(end) + len(end)]


def _certified(party: str, read: CellHeaders) -> str:
    """The party on whose account a message counts. Others' messages reach the process of a job through the server."""
    origin = Cell.named(read.origin)
    return party if "@" in party or origin is None else origin.party


def _is_from_target(headers: Mapping[str, Any]) -> bool:
    """Whether what is said about a stream of ours, if it is still open, is said by the cell to which it goes."""
    number = headers.get(StreamHeaderKey.STREAM_ID)
    task = ByteStreamer.tx_task_map.get(number) if isinstance(number, str | int) else None
    return task is None or task.target == headers.get(MessageHeaderKey.ORIGIN)


def _is_open(stream: Stream) -> bool:
    task = RxTask.rx_task_map.get(stream)
    return task is not None and not task.completed and not task.failed


def _read(headers: Mapping[str, Any]) -> CellHeaders:
    key = MessageHeaderKey
    within = (headers.get(StreamHeaderKey.CHANNEL), headers.get(StreamHeaderKey.TOPIC))
    returned, failed = key.ORIGINAL_HEADERS, StreamHeaderKey.FAILED_DESTINATION
    original = headers.get(returned)
    missed = [original.get(key.DESTINATION) if isinstance(original, dict) else None] if returned in headers else []
    return CellHeaders(
        origin=headers.get(key.ORIGIN),
        destination=headers.get(key.DESTINATION),
        type=headers.get(key.MSG_TYPE),
        channel=headers.get(key.CHANNEL),
        topic=headers.get(key.TOPIC),
        inner=within if headers.get(key.TOPIC) == DATA else None,
        missed=(*missed, *([headers[failed]] if failed in headers else [])),
    )


def _judged(cell: Any, endpoint: Any, connection: Any, message: CellHeaders) -> tuple[str, str | None]:
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


def _peer(connection: Any) -> str:
    """The party at the other end of a connection, as its certificate calls it; the server, if we have connected."""
    if connection.connector.mode == Mode.ACTIVE:
        return SERVER
    party = (connection.get_conn_properties() or {}).get(DriverParams.PEER_CN.value)
    return party if isinstance(party, str) else _UNKNOWN


def _without_errors(answer: Any) -> Any:
    """An answer without the text of an exception, which may hold paths, and what was read from files."""
    body = getattr(answer.payload, "body", None)
    if isinstance(body, str) and body.startswith((_EXCEPTION, ERROR_MSG_PREFIX)):
        return new_cell_message({}, error_reply(f"{ERROR_MSG_PREFIX}: see the log of the silo"))
    return answer
