"""A party does not start if its doors cannot be closed."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare")

import grpc
import msgpack
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.comm_error import CommError
from nvflare.fuel.f3.connection import Connection
from nvflare.fuel.f3.drivers import grpc_driver
from nvflare.fuel.f3.drivers.connector_info import Mode
from nvflare.fuel.f3.drivers.grpc.streamer_pb2 import Frame
from nvflare.fuel.f3.drivers.grpc.streamer_pb2_grpc import StreamerStub, add_StreamerServicer_to_server
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.f3.sfm.constants import Types
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix
from nvflare.fuel.f3.streaming.byte_streamer import ByteStreamer

from tacit.transport import gate
from tacit.transport.streams import MOST_UNREAD_ANSWERS, Arrived

CLOSED = "from pathlib import Path; from tacit.transport.gate import close; close(Path(sys.argv[1])); print('closed')"


def started(kit: Path, change: str = "") -> subprocess.CompletedProcess[str]:
    """A process that changes NVFlare, and then closes its doors."""
    (kit / "tacit").mkdir(exist_ok=True)
    program = f"import sys\n{change}\n{CLOSED}"
    command = [sys.executable, "-c", program, str(kit)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_doors_of_this_version_can_be_closed(tmp_path):
    assert started(tmp_path).stdout == "closed\n"


@pytest.mark.parametrize(
    "change",
    [
        "import nvflare; nvflare.__version__ = '2.9.1'",
        "from nvflare.private.fed.client.admin import FedAdminAgent as agent; del agent._dispatch_request",
        "from nvflare.fuel.f3.cellnet.core_cell import CoreCell as cell; del cell.process_message",
        "from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors as c; "
        "c.request_processors.pop(4)",
    ],
)
def test_another_nvflare_is_not_started(tmp_path, change):
    ended = started(tmp_path, change)
    assert ended.returncode != 0
    assert "closed" not in ended.stdout


JOB = "9357edf7-794b-4e17-bb2d-a353c2b61186"
LAUNCHED = f"""
from nvflare.apis.fl_context import FLContext
from nvflare.apis.workspace import Workspace
from nvflare.app_common.job_launcher import client_process_launcher, process_launcher
from tacit.transport.gate import close
kit = Path(sys.argv[1])
close(kit) if CLOSES else None
process_launcher.spawn_process = lambda argv, env: print(env.get("PYTHONPATH", "")) or 1
args = {{"exe_module": ("-m", "nvflare.private.fed.app.client.worker_process"), "workspace": ("-m", "x")}}
context = FLContext()
context.set_prop("__workspace_object__", Workspace(str(kit), "north"), sticky=False, private=True)
context.set_prop("__job_process_args__", args, sticky=False, private=True)
client_process_launcher.ClientProcessJobLauncher().launch_job({{"job_id": "{JOB}"}}, context)
"""


@pytest.mark.parametrize("closes", [True, False])
def test_code_in_the_folder_of_a_job_is_not_on_the_path_of_its_process(tmp_path, closes):
    for name in ("tacit", "startup", "local", f"{JOB}/app_north/custom"):
        (tmp_path / name).mkdir(parents=True)
    program = f"import sys\nfrom pathlib import Path\nCLOSES = {closes}\n{LAUNCHED}"
    command = [sys.executable, "-c", program, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ("custom" in ended.stdout) != closes  # NVFlare as it comes puts it there


ASKED = """
import json
from types import SimpleNamespace
from nvflare.apis.impl.job_def_manager import JobDefManagerSpec
from nvflare.apis.job_def import Job
from nvflare.fuel.hci.server.constants import ConnProps
from nvflare.private.fed.server.job_cmds import JobCommandModule
from tacit.transport.gate import close
close(Path(sys.argv[1])) if CLOSES else None
job = Job("1", {}, {}, {"job_id": "1", "submitter_name": "ana@example.org", "job_deploy_detail": ["north: secret"]})
class Jobs(JobDefManagerSpec):
    pass
Jobs.__abstractmethods__ = frozenset()
Jobs.get_job = lambda self, jid, fl_ctx: job
class Context:
    __enter__ = __exit__ = lambda self, *_: None
for user in ("ana@example.org", "eve@example.org"):
    told = []
    props = {ConnProps.USER_NAME: user, ConnProps.SUBMITTER_NAME: "ana@example.org"}
    add = lambda *words, **more: told.append(str(words) + str(more))
    conn = SimpleNamespace(
        get_prop=lambda key, default=None: props.get(key, default), append_dict=add, append_error=add,
        append_string=add, app_ctx=SimpleNamespace(job_def_manager=Jobs(), new_context=Context),
    )
    JobCommandModule.get_job_meta(JobCommandModule(), conn, ["get_job_meta", "1"])
    JobCommandModule._send_detail_list(conn, [job])
    print("secret" in told[0], "ana@" in str(told[1:]), "secret" in str(told[1:]))
"""


@pytest.mark.parametrize("closes", [True, False])
def test_what_silos_have_said_about_a_job_is_for_its_requester(tmp_path, closes):
    (tmp_path / "tacit").mkdir()
    program = f"import sys\nfrom pathlib import Path\nCLOSES = {closes}\n{ASKED}"
    command = [sys.executable, "-c", program, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not ended.returncode, ended.stderr
    other = "False True False" if closes else "True True True"  # NVFlare as it comes tells all
    assert ended.stdout.splitlines() == ["True True True", other]
    log = tmp_path / "tacit" / "log.txt"
    assert (log.is_file() and "refused eve@example.org: the description of a job" in log.read_text()) == closes


def test_an_idle_partys_program_imports_neither_jax_nor_numpy(tmp_path):
    program = "import json, sys, tacit.transport.gate; print(json.dumps([n in sys.modules for n in ('jax', 'numpy')]))"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout) == [False, False]


class Noted:
    """Stands for the log of refusals."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, party: str, words: str) -> None:
        self.lines.append(f"{party}: {words}")

    write = note


class Ended(Exception):
    """What gRPC raises where a call is aborted."""


def call_of(party: str) -> SimpleNamespace:
    def abort(code: object, words: str) -> None:
        raise Ended

    return SimpleNamespace(auth_context=lambda: {"x509_common_name": [party.encode()]}, abort=abort)


def test_a_party_has_few_connections_at_a_time():
    noted = Noted()
    called = partial(gate.Gate(noted).stream, lambda self, frames, context: iter("ab"))
    calls = [called(None, (), call_of("eve")) for _ in range(gate._MOST_CALLS)]
    assert [next(call) for call in calls] == ["a"] * gate._MOST_CALLS
    for _ in range(3):
        with pytest.raises(Ended):
            next(called(None, (), call_of("eve")))
    assert noted.lines == ["eve: a connection: it has 16 already"] * 3
    assert next(called(None, (), call_of("north"))) == "a"
    calls[3].close()  # as gRPC does when the other side is gone
    assert list(called(None, (), call_of("eve"))) == ["a", "b"]


@pytest.mark.parametrize("kind", [Types.HELLO, Types.READY])
def test_a_neighbour_says_its_name_once_and_shortly(kind):
    noted, passed = Noted(), []
    greeted = partial(gate.Gate(noted).process_frame_task, lambda self, neighbour, frame: passed.append(frame))
    peer = SimpleNamespace(get_conn_properties=lambda: {"peer_cn": "eve"}, connector=SimpleNamespace(mode=Mode.PASSIVE))
    neighbour = SimpleNamespace(conn=peer, sfm_endpoint=None)

    def frame(size: int, type_: int = kind) -> bytes:
        made = bytearray(size)
        Prefix(length=size, type=type_).to_buffer(made, 0)
        return bytes(made)

    greeted(None, neighbour, frame(4096))
    greeted(None, neighbour, frame(4097))
    neighbour.sfm_endpoint = "eve"
    greeted(None, neighbour, frame(100))
    for other in (frame(1 << 20, Types.DATA), frame(100, Types.PING), b"", b"x"):
        greeted(None, neighbour, other)
    assert [len(one) for one in passed] == [4096, 1 << 20, 100, 0, 1]
    assert noted.lines == ["eve: it says its name in 4097 bytes", "eve: it says its name a second time"]


EVE = f"_admin_{uuid.UUID(int=1)}"


def sent(origin: str, receiver: str, channel: str, topic: str, payload: bytes = b"x", **headers: object) -> tuple:
    """A message as a cell receives it."""
    cell = SimpleNamespace(my_info=SimpleNamespace(fqcn=receiver), int_listener=None, waiters={})
    certified = "eve@example.org" if origin == EVE else origin.partition(".")[0]
    mode = Mode.ACTIVE if origin.startswith("server") else Mode.PASSIVE  # silos connect to the server
    connector = SimpleNamespace(mode=mode, handle=None)
    connection = SimpleNamespace(connector=connector, get_conn_properties=lambda: {"peer_cn": certified})
    said = {"ORIGIN": origin, "DESTINATION": receiver, "MSG_TYPE": "req", "CHANNEL": channel, "TOPIC": topic}
    message = Message({getattr(MessageHeaderKey, key): value for key, value in said.items()} | headers, payload)
    return cell, SimpleNamespace(name=origin.partition(".")[0]), connection, 1, message


@pytest.mark.parametrize(
    ("party", "message"),
    [
        ("eve@example.org", sent(EVE, "server", "hci_channel", "command")),
        ("north", sent("north", "server", "task", "challenge")),
        ("server", sent("server", "north", "admin", "admin")),
    ],
    ids=["requester", "silo", "server"],
)
def test_a_process_works_on_few_messages_of_a_party_at_a_time(party, message):
    noted, go_on, passed = Noted(), threading.Event(), []

    def works(*message: object) -> None:
        passed.append(message)
        assert go_on.wait(10)

    guarded = partial(gate.Gate(noted).process_message, works)
    with ThreadPoolExecutor(gate._MOST_ASKED) as pool:
        busy = [pool.submit(guarded, *message) for _ in range(gate._MOST_ASKED)]
        end = time.monotonic() + 10
        while len(passed) < gate._MOST_ASKED and time.monotonic() < end:
            time.sleep(0.01)
        guarded(*message)
        go_on.set()
        assert all(one.result() is None for one in busy)
    assert len(noted.lines) == 1
    assert noted.lines[0].startswith(f"{party}: ")
    assert noted.lines[0].endswith("(number)")
    guarded(*message)
    assert len(passed) == gate._MOST_ASKED + 1


JOB_OF_NORTH = f"north.{JOB}"


def test_the_parts_of_streams_are_not_limited_in_number():
    """They are limited in bytes, and a part that is lost would end a run."""
    noted, go_on, passed = Noted(), threading.Event(), []

    def works(*message: object) -> None:
        passed.append(message)
        assert go_on.wait(10)

    guarded = partial(gate.Gate(noted).process_message, works)
    stream = {"sm__ch": "aux_communication", "sm__tp": "__sync_runner__", "sm__id": 1}
    own = sent(JOB_OF_NORTH, f"server.{JOB}", "sm__STREAM", "sm__DATA", **stream)
    server = SimpleNamespace(connector=SimpleNamespace(mode=Mode.ACTIVE))
    part = (own[0], SimpleNamespace(name="server"), server, *own[3:])
    with ThreadPoolExecutor(40) as pool:
        busy = [pool.submit(guarded, *part) for _ in range(40)]
        end = time.monotonic() + 10
        while len(passed) < 40 and time.monotonic() < end:
            time.sleep(0.01)
        go_on.set()
        assert all(one.result() is None for one in busy)
    assert (len(passed), noted.lines) == (40, [])


@pytest.mark.parametrize(
    ("message", "most"),
    [
        (("north", "server", "task", "challenge"), 64 << 10),
        (("north", "server", "task", "register"), 64 << 10),
        ((EVE, "server", "task", "challenge"), 64 << 10),
        ((EVE, "server", "download_service__", "download_service__download"), 64 << 10),
        ((EVE, "server", "hci_channel", "command"), 4 << 20),
        (("server", "north", "admin", "admin"), 4 << 20),
        (("server", "north", "cellnet.channel", "bye"), 64 << 10),
    ],
)
def test_every_topic_has_a_bound_in_bytes(message, most):
    noted, passed = Noted(), []
    guarded = partial(gate.Gate(noted).process_message, lambda *one: passed.append(one))
    guarded(*sent(*message, bytes(most)))
    assert len(passed) == 1
    guarded(*sent(*message, bytes(most + 1)))
    assert len(passed) == 1
    assert noted.lines[0].endswith("(size)")


def test_what_is_forwarded_is_no_larger_than_a_part_of_a_stream():
    noted, passed = Noted(), []
    guarded = partial(gate.Gate(noted).process_message, lambda *one: passed.append(one))
    stream = {"sm__ch": "aux_communication", "sm__tp": "__sync_runner__", "sm__id": 1}
    for length in (1 << 20, 3 << 20):
        own = sent(JOB_OF_NORTH, f"server.{JOB}", "sm__STREAM", "sm__DATA", bytes(length), **stream)
        own[0].my_info.fqcn = "server"
        guarded(own[0], SimpleNamespace(name="north"), *own[2:])
    assert len(passed) == 1
    assert [line.rpartition(" ")[2] for line in noted.lines] == ["(size)"]


def test_only_the_receiver_of_a_stream_acknowledges_it(monkeypatch):
    noted, passed = Noted(), []
    guarded = partial(gate.Gate(noted).process_message, lambda *one: passed.append(one))
    monkeypatch.setitem(ByteStreamer.tx_task_map, 7, SimpleNamespace(target=JOB_OF_NORTH))
    server = SimpleNamespace(connector=SimpleNamespace(mode=Mode.ACTIVE))
    for origin in (JOB_OF_NORTH, f"east.{JOB}"):
        own = sent(origin, f"server.{JOB}", "sm__STREAM", "sm__ACK", b"", sm__id=7, sm__em="stop")
        guarded(own[0], SimpleNamespace(name="server"), server, *own[3:])
    assert len(passed) == 1
    assert noted.lines == [f"server: sm__STREAM sm__ACK from east.{JOB} to server.{JOB} (reply)"]


def test_headers_of_many_values_are_refused_before_they_are_built():
    noted, passed = Noted(), []
    greeted = partial(gate.Gate(noted).process_frame_task, lambda self, neighbour, frame: passed.append(frame))
    peer = SimpleNamespace(get_conn_properties=lambda: {"peer_cn": "eve"}, connector=SimpleNamespace(mode=Mode.PASSIVE))
    neighbour = SimpleNamespace(conn=peer, sfm_endpoint="eve")
    for values in (100, 60_000):
        headers = b"\x81\xa1a\xdd" + values.to_bytes(4) + b"\x90" * values
        frame = bytearray(PREFIX_LEN) + headers
        Prefix(length=len(frame), header_len=len(headers), type=Types.DATA).to_buffer(frame, 0)
        greeted(None, neighbour, bytes(frame))
    assert len(passed) == 1
    assert noted.lines == ["eve: headers: a message holds more than 1000 values"]


@pytest.mark.parametrize("headers", [b"\x90", b"\x91\x01", b"\xa1x", b"\xc0", b"\x01", b"\xc1"])
def test_headers_that_are_no_table_are_refused(headers):
    noted, passed = Noted(), []
    greeted = partial(gate.Gate(noted).process_frame_task, lambda self, neighbour, frame: passed.append(frame))
    peer = SimpleNamespace(get_conn_properties=lambda: {"peer_cn": "eve"}, connector=SimpleNamespace(mode=Mode.PASSIVE))
    frame = bytearray(PREFIX_LEN) + headers
    Prefix(length=len(frame), header_len=len(headers), type=Types.DATA).to_buffer(frame, 0)
    greeted(None, SimpleNamespace(conn=peer, sfm_endpoint="eve"), bytes(frame))
    assert not passed
    assert noted.lines == ["eve: headers that are no table"]


@pytest.mark.parametrize("odd", [[], {}, ["task"], 1, 1.5, b"task"])
@pytest.mark.parametrize("kind", ["req", "reply"])
def test_a_channel_that_is_no_text_is_refused(odd, kind):
    noted = Noted()
    for channel, topic in ((odd, "challenge"), ("task", odd)):
        message = sent("north", "server", channel, topic)
        message[-1].headers[MessageHeaderKey.MSG_TYPE] = kind
        gate.Gate(noted).process_message(pytest.fail, *message)
    assert [line.rpartition(" ")[2] for line in noted.lines] == ["(name)"] * 2


def test_what_a_party_has_sent_waits_within_a_bound(manager):
    """The thread that reads a connection goes on when there is room again; others' connections are not affected."""
    made, work = gate.Gate(Noted()), threading.Event()
    made._arrived = Arrived(1000)
    held: list[int] = []

    def working(neighbour: object, frame: bytes) -> None:
        work.wait(30)
        held.append(len(frame))

    manager.process_frame_task = working

    def line(party: str) -> SimpleNamespace:
        peer = SimpleNamespace(
            get_conn_properties=lambda: {"peer_cn": party}, connector=SimpleNamespace(mode=Mode.PASSIVE)
        )
        return SimpleNamespace(conn=peer)

    def read(party: str) -> None:
        for _ in range(5):
            made.process_frame(None, manager, line(party), bytes(400))

    threads = [threading.Thread(target=read, args=(party,)) for party in ("eve", "north")]
    for thread in threads:
        thread.start()
    end = time.monotonic() + 20
    while made._arrived._waiting.total() < 1600 and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(0.2)
    assert made._arrived._waiting == {"eve": 800, "north": 800}
    work.set()
    for thread in threads:
        thread.join(30)
    manager.frame_mgr_executor.shutdown()
    assert held == [400] * 10
    assert not made._arrived._waiting


class Line(Connection):
    """A connection to NVFlare's manager of connections, of which only the near end exists."""

    def get_conn_properties(self) -> dict[str, str]:
        return {"peer_cn": "east"}

    def close(self) -> None:
        pass

    def send_frame(self, frame: object) -> None:
        pass


@pytest.fixture
def manager(monkeypatch) -> ConnManager:
    for name in ("update_endpoint", "close_connection"):
        monkeypatch.setattr(ConnManager, name, getattr(ConnManager, name))  # put back at the end
        gate._replace(gate.Gate(Noted()), ConnManager, name)
    return ConnManager(Endpoint("server"))


def greet(manager: ConnManager, name: str) -> Line:
    line = Line(SimpleNamespace(mode=Mode.PASSIVE, params={}))
    manager.handle_new_connection(line)
    content = msgpack.packb({"endpoint_name": name, "k": [{}] * 3000})
    frame = bytearray(PREFIX_LEN) + content
    Prefix(length=len(frame), type=Types.HELLO).to_buffer(frame, 0)
    manager.process_frame_task(manager.sfm_conns[line.name], bytes(frame))
    return line


def test_a_neighbour_is_forgotten_with_its_last_connection(manager):
    for _ in range(50):
        name = f"east.{uuid.uuid4()}"
        line = greet(manager, name)
        assert manager.find_endpoint(name).properties == {}
        manager.close_connection(line)
    assert not manager.sfm_endpoints
    assert not manager.sfm_conns


def test_a_neighbour_that_has_connected_again_stays(manager):
    first = greet(manager, "east")
    greet(manager, "east")  # NVFlare ends the first one
    manager.close_connection(first)
    assert manager.find_endpoint("east") is not None
    assert len(manager.get_connections("east")) == 1


class Driver:
    """Stands for what NVFlare's driver notes about connections."""

    def __init__(self) -> None:
        self.there: list[object] = []
        self.ended = threading.Event()

    def add_connection(self, connection: object) -> None:
        self.there.append(connection)

    def close_connection(self, connection: object) -> None:
        self.ended.set()


def test_a_connection_whose_other_side_does_not_read_is_ended(monkeypatch):
    noted, driver, line = Noted(), Driver(), grpc_driver.StreamConnection
    closed = gate.Gate(noted)
    for name in ("send_frame", "generate_output", "close"):
        monkeypatch.setattr(line, name, getattr(line, name))  # put back at the end
        gate._replace(closed, line, name)
    monkeypatch.setattr(gate, "_peer", lambda connection: "eve@example.org")
    connector = SimpleNamespace(params={"host": "localhost", "port": 1}, mode=Mode.PASSIVE)
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool)
        servicer = grpc_driver.Servicer(SimpleNamespace(connector=connector, driver=driver))
        add_StreamerServicer_to_server(servicer, server)
        port = server.add_insecure_port("localhost:0")
        server.start()
        with grpc.insecure_channel(f"localhost:{port}") as channel:
            stop = threading.Event()

            def said() -> Iterator[Frame]:
                yield Frame(seq=1, data=b"x")
                stop.wait(30)

            call = StreamerStub(channel).Stream(said())  # and nothing of it is read
            end = time.monotonic() + 10
            while not driver.there and time.monotonic() < end:
                time.sleep(0.01)
            queued: list[int] = []
            with pytest.raises(CommError):
                queued.extend(driver.there[0].send_frame(bytes(1 << 20)) or k for k in range(200))
            assert len(queued) < 2 * (MOST_UNREAD_ANSWERS >> 20)  # gRPC holds a few, too
            assert driver.ended.wait(10)
            assert not driver.there[0].oq.q.queue
            assert not closed._unread._waiting
            stop.set()
            call.cancel()
        server.stop(0).wait()
    assert noted.lines == ["eve@example.org: a connection: it does not read what it is sent"]


TABLED = """
from types import SimpleNamespace
from nvflare.apis.client import Client
from nvflare.fuel.hci.conn import Connection
from nvflare.private.fed.server.server_engine_internal_spec import ServerEngineInternalSpec
from nvflare.private.fed.server.training_cmds import TrainingCommandModule
from tacit.transport.gate import close
close(Path(sys.argv[1])) if CLOSES else None
class Engine(ServerEngineInternalSpec):
    pass
Engine.__abstractmethods__ = frozenset()
Engine.get_engine_info = lambda self: SimpleNamespace(start_time=1.0, app_names={}, status=None)
Engine.get_clients = lambda self: [Client("north", "secret-token")]
import nvflare.private.fed.server.training_cmds as commands
commands._server_status_value = lambda engine: "started"
conn = Connection({})
conn.app_ctx = Engine()
TrainingCommandModule().check_status(conn, ["check_status", "server"])
text = conn.close()
print("north" in text, "secret-token" in text)
"""


def test_the_log_says_that_a_silo_joined_before_it_had_left(monkeypatch):
    """A copy of its kit may run; NVFlare listens to the one that came last."""
    manager, lines = SimpleNamespace(name_to_clients={}), []
    made = gate.Gate(Noted())
    monkeypatch.setattr(made, "_write", lambda party, line: lines.append(line))
    request = Message({"client_name": "north", "client_type": "regular"}, None)

    def joined(manager: SimpleNamespace, request: Message, context: None) -> SimpleNamespace:
        manager.name_to_clients["north"] = SimpleNamespace(name="north")
        return manager.name_to_clients["north"]

    for _ in range(2):
        made.authenticate(joined, manager, request, None)
    assert lines[0] == "joined  north"
    assert lines[1].startswith("joined  north again")


@pytest.mark.parametrize("closes", [True, False])
def test_a_requester_sees_no_token_of_a_silo(tmp_path, closes):
    (tmp_path / "tacit").mkdir()
    program = f"import sys\nfrom pathlib import Path\nCLOSES = {closes}\n{TABLED}"
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert ended.stdout.split() == ["True", str(not closes)], ended.stderr
