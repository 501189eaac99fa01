"""Attacks on NVFlare's channels with raw messages: who can make a silo read a file, describe its machine, or stop.

Every attacker has a control: a message that it may send, from the same process and connection, is answered. On NVFlare
as it comes, each of these attacks succeeds.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import struct
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

pytest.importorskip("nvflare")

import grpc
from nvflare.fuel.f3.drivers.grpc.streamer_pb2 import Frame
from nvflare.fuel.f3.drivers.grpc.streamer_pb2_grpc import StreamerStub
from nvflare.fuel.f3.sfm.constants import Types
from nvflare.fuel.f3.sfm.prefix import PREFIX_LEN, Prefix

from tacit.federation.demo import REQUESTER, Trial, parted
from tacit.federation.kits import Kit
from tacit.federation.request import write_job
from tacit.federation.requester import _session
from tacit.transport.attendant import NVFLARE_LOG
from tacit.transport.log import LOG

from . import worlds
from .attackers import NOBODY, Attacker, Sent, job_cell, own_port, requester_cell, shell

SOON = 30  # seconds until a line is in a log, on a busy machine
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
    end = time.monotonic() + SOON
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


def test_a_requester_does_not_become_a_silo(trial):
    for kind in ("regular", "relay"):
        control, *_ = replace(requester(trial), kind=kind).sends(CHALLENGE)
        assert control.startswith("ok")
        assert logged(trial, "server", f"refused {REQUESTER}: a login as {REQUESTER}, of another kind ({kind})")
    assert not [line for line in lines(trial, "server") if f"joined  {REQUESTER}" in line]
    with _session(trial.kit(REQUESTER)) as session:
        there = [client.name for client in session.get_system_info().client_info]
    assert there == ["north"]


@pytest.mark.parametrize("name", [REQUESTER, "east"])
def test_small_messages_take_little_memory(trial, name):
    server = psutil.Process(trial.processes["server"].pid)
    before, held = server.memory_info().rss >> 20, []
    origin = requester_cell() if name == REQUESTER else "east"
    large, small = bomb(4_000_000), bomb(60_000)
    frames = [framed(origin, "task", "challenge", content) for content in (*[large] * 3, *[small] * 2)]
    with spoken(trial, name, origin, frames):
        assert logged(trial, "server", f"refused {name}: task challenge", "(size)")
        assert logged(trial, "server", f"refused {name}: task challenge: a message holds more than", "(object)")
        for _ in range(20):
            held.append((server.memory_info().rss >> 20) - before)
            time.sleep(0.05)
    assert max(held) < 100


def test_the_port_for_job_processes_is_for_the_own_kit(trial):
    """A local user with the kit of another party, who declares a message of 1 GB."""
    north = psutil.Process(trial.processes["north"].pid)
    port, before = own_port(north.pid), north.memory_info().rss >> 20
    for name, is_own in ((REQUESTER, False), ("north", True)):
        startup = trial.kit(name).startup
        context = ssl.create_default_context(cafile=str(startup / "rootCA.pem"))
        context.check_hostname = False
        context.load_cert_chain(startup / "client.crt", startup / "client.key")
        with socket.create_connection(("127.0.0.1", port)) as plain, context.wrap_socket(plain) as secured:
            secured.settimeout(20)
            frame = bytearray(PREFIX_LEN)
            Prefix(length=1 << 30, type=Types.DATA).to_buffer(frame, 0)
            with suppress(OSError):
                secured.sendall(frame)
                assert secured.recv(1) == b""
        assert bool(logged(trial, "north", "refused local-user", "(the certificate of another party)")) or is_own
    assert (north.memory_info().rss >> 20) - before < 50


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


DATUM_ID = "00000000-0000-4000-8000-000000000001"


def built(name: str, decomposer: str, data: object) -> dict[str, object]:
    """An object as NVFlare's serialization writes it; the receiver builds it."""
    fobs = "nvflare.fuel.utils.fobs.decomposer"
    return {"__fobs_type__": name, "__fobs_dc__": f"{fobs}.{decomposer}", "__fobs_data__": data}


def datum(file: Path) -> dict[str, object]:
    """An object for which whoever sends it again reads a file."""
    held = {"datum_id": DATUM_ID, "datum_type": 3, "dot": 0, "value": str(file)}
    return built("nvflare.fuel.utils.fobs.datum.Datum", "DataClassDecomposer", {"data": held})


@pytest.mark.parametrize("name", [REQUESTER, "east"])
def test_no_message_makes_the_server_send_a_file(trial, tmp_path, name):
    """NVFlare returns the cookies of a request with its answer."""
    cookies = {
        "ObjectStreamer.TX_ID": "x",
        "__peer_props__": {"__identity_name__": name, "__run_num__": "?"},
        "__cookie_jar__": {"x": datum(trial.kit("server").ours / "identity.key")},
    }
    asked = built("nvflare.apis.shareable.Shareable", "DictDecomposer", {"__headers__": cookies})
    attacker = replace(requester(trial) if name == REQUESTER else east(trial), files=str(tmp_path))
    control, *_ = attacker.sends(
        CHALLENGE,
        Sent("server", "aux_communication", "ObjectStreamer.Abort", body=asked),
        Sent("server", "task", "challenge", body={"x": asked}),
        Sent("server", "aux_communication", "ObjectStreamer.Abort", body=asked, stream=True),
    )
    assert control.startswith("ok")
    assert not list(tmp_path.iterdir())
    assert logged(trial, "server", "refused", "task challenge", "(object)")


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


def reading(folder: Path, file: Path) -> Path:
    """A job that makes who unpacks it read a file, into the text of an error."""
    write_job(folder, "{}", "0" * 32, 1, ("north",), 20)
    config = folder / "app" / "config"
    (config / "config_fed_client.json").unlink()
    (config / "config_fed_client.conf").write_text(f'include required(file("{file}"))\nleak = [1] ${{row}}\n')
    return folder


def job_folders(trial: Trial, name: str) -> list[Path]:
    return list(trial.kit(name).path.glob("*-*-*-*-*"))


def test_a_requesters_job_makes_a_silo_read_no_file(trial, tmp_path):
    file = tmp_path / "row.json"
    file.write_text(json.dumps({"row": PLANTED}))
    told = ""
    with _session(trial.kit(REQUESTER)) as session:
        try:
            job = session.submit_job(str(reading(tmp_path / "job", file)))
            end = time.monotonic() + 30
            while "FINISHED" not in (told := str(session.get_job_meta(job))) and time.monotonic() < end:
                time.sleep(0.5)
        except Exception as error:  # NVFlare has many kinds
            told = str(error)
    assert PLANTED not in told
    assert "its files are not those of a request" in told
    assert logged(trial, "server", "refused a job: job: its files are not those of a request")
    assert not job_folders(trial, "north")


def declaring(size: int, number: int, channel: str, topic: str) -> Sent:
    """The first message of a stream."""
    headers = {
        "sm__id": number,
        "sm__dt": 1,
        "sm__sz": size,
        "sm__sq": 0,
        "sm__os": 0,
        "sm__ch": channel,
        "sm__tp": topic,
    }
    return Sent("server", "sm__STREAM", "sm__DATA", body="x", headers=headers, timeout=1)


def test_a_requester_writes_no_lines_into_a_log(trial):
    forged = "Client: New client ghost@192.0.2.7 joined. Sent token"
    failing = Sent("server", "task", "challenge", headers={"sm__ch": f"x\n{forged}\n\x1b[2J"})  # it has no nonce
    control, *_ = requester(trial).sends(CHALLENGE, failing)
    assert control.startswith("ok")
    log = trial.kit("server").ours / NVFLARE_LOG
    end = time.monotonic() + SOON
    while forged not in log.read_text(errors="replace") and time.monotonic() < end:
        time.sleep(0.1)
    text = log.read_text(errors="replace")
    assert forged in text  # NVFlare has printed it
    assert not [line for line in text.splitlines() if line.startswith(forged)]
    assert "\x1b" not in text
    assert not [line for line in lines(trial, "server") if "ghost" in line]
    assert [line for line in lines(trial, "server") if line.endswith("joined  north")]


def test_a_requester_opens_no_streams_and_uploads_nothing_but_jobs(trial):
    """Each stream would take the memory that it declares, and a thread; two messages of one upload stopped them all."""
    server = psutil.Process(trial.processes["server"].pid)
    before = server.memory_info().rss >> 20
    streams = [declaring(300 << 20, 77, "return_only", "x:y"), declaring(10, 78, "hci_channel", "command")]
    uploads = [Sent("server", "aux_communication", "ObjectStreamer.Request", timeout=1)] * 2
    large = Sent("server", "hci_channel", "command", body="x" * (4 << 20), timeout=1)
    held = []
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(requester(trial).sends, CHALLENGE, *streams, *uploads, large)
        while not sent.done():
            held.append((server.memory_info().rss >> 20) - before)
            time.sleep(0.05)
    assert sent.result()[0].startswith("ok")
    assert max(held) < 80  # NVFlare as it comes: 720
    for words in ("return_only x:y", "hci_channel command", "aux_communication ObjectStreamer.Request"):
        assert logged(trial, "server", REQUESTER, words, "(topic)")
    assert logged(trial, "server", REQUESTER, "hci_channel command", "(size)")


@contextmanager
def called(trial: Trial, name: str, times: int, *frames: bytes) -> Iterator[None]:
    """Calls to the server's port with the certificate of a party, which stay open; each begins with these frames."""
    kit, stop = trial.kit(name), threading.Event()
    files = ("rootCA.pem", "client.key", "client.crt")
    credentials = grpc.ssl_channel_credentials(*((kit.startup / file).read_bytes() for file in files))

    def said() -> Iterator[Frame]:
        yield from (Frame(seq=number, data=frame) for number, frame in enumerate(frames))
        stop.wait()

    with grpc.secure_channel(f"localhost:{kit.port}", credentials) as channel:
        calls = [StreamerStub(channel).Stream(said()) for _ in range(times)]
        try:
            yield
        finally:
            stop.set()
            for call in calls:
                call.cancel()


def test_the_name_of_a_neighbour_is_not_unpacked_if_it_is_long(trial):
    server = psutil.Process(trial.processes["server"].pid)
    before = server.memory_info().rss >> 20
    many = (4 << 20).to_bytes(4) + b"\x80" * (4 << 20)  # empty tables
    content = b"\x82\xadendpoint_name\xa4east\xa1k\xdd" + many
    held = []
    with called(trial, "east", 1, prefix(Types.HELLO, content) + content):
        assert logged(trial, "server", "refused east: it says its name in", "bytes")
        for _ in range(20):
            held.append((server.memory_info().rss >> 20) - before)
            time.sleep(0.05)
    assert max(held) < 150  # NVFlare as it comes: 1143


def prefix(kind: int, content: bytes) -> bytes:
    head = bytearray(PREFIX_LEN)
    Prefix(length=PREFIX_LEN + len(content), type=kind).to_buffer(head, 0)
    return bytes(head)


def test_one_party_does_not_take_all_connections(trial):
    """After this, the log only counts what is refused to east within a minute."""
    with called(trial, "east", 120):
        assert logged(trial, "server", "refused east: a connection: it has 16 already")
        with _session(trial.kit(REQUESTER)) as session:
            session.list_jobs()
    assert east(trial).sends(CHALLENGE)[0].startswith("ok")  # once the others have ended


def framed(origin: str, channel: str, topic: str, payload: bytes, route: Sequence[object] = ()) -> bytes:
    """A request to the server, as it is on the wire."""
    import msgpack

    headers = msgpack.packb(
        {
            "cn__channel": channel,
            "cn__topic": topic,
            "cn__from": origin,
            "cn__to": "server",
            "cn__origin": origin,
            "cn__destination": "server",
            "cn__msg_type": "req",
            "cn__payload_encoding": "fobs",
            "cn__req_id": str(uuid.uuid4()),
            "cn__reply_expected": True,
            "cn__route": list(route),
        }
    )
    head = bytearray(PREFIX_LEN)
    length = PREFIX_LEN + len(headers) + len(payload)
    Prefix(length=length, header_len=len(headers), type=Types.DATA, app_id=1).to_buffer(head, 0)
    return bytes(head) + headers + payload


@contextmanager
def spoken(trial: Trial, name: str, origin: str, frames: Iterable[bytes]) -> Iterator[None]:
    """A connection to the server which says a name, waits for the server's, and sends frames."""
    import msgpack

    kit, ready, stop = trial.kit(name), threading.Event(), threading.Event()
    files = ("rootCA.pem", "client.key", "client.crt")
    credentials = grpc.ssl_channel_credentials(*((kit.startup / file).read_bytes() for file in files))
    content = msgpack.packb({"endpoint_name": origin})

    def said() -> Iterator[Frame]:
        yield Frame(seq=1, data=prefix(Types.HELLO, content) + content)
        ready.wait(10)
        time.sleep(0.3)  # until the server has read the name
        yield from (Frame(seq=number, data=frame) for number, frame in enumerate(frames, 2))
        stop.wait(30)

    with grpc.secure_channel(f"localhost:{kit.port}", credentials) as channel:
        call = StreamerStub(channel).Stream(said())
        try:
            next(call)
            ready.set()
            yield
        finally:
            stop.set()
            call.cancel()


def bomb(values: int) -> bytes:
    """A message of that many bytes, each of which is an empty list."""
    content = b"\xdd" + values.to_bytes(4) + b"\x90" * values
    return struct.pack(">BBQ", 100, 0, len(content)) + content


def test_nvflare_writes_no_audit_log_and_shows_no_tokens(trial):
    """An audit log would have lines of others' making, and no bound."""
    with _session(trial.kit(REQUESTER)) as session:
        with suppress(Exception):
            session._do_command("list_jobs 'a\n[E:forged]\x1b[2J'")
        told = str(session._do_command("check_status server"))
    assert "north" in told
    assert "TOKEN" not in told
    for name in ("server", "north"):
        assert not list(trial.kit(name).path.rglob("audit*"))


def test_a_long_command_that_holds_no_job_is_refused(trial):
    text = json.dumps({"data": [{"type": "command", "data": "A" * 100_000}], "meta": {}})
    many = json.dumps({"data": [{"type": "command", "data": "list_jobs"}], "meta": [[]] * 20_000})
    asked = [Sent("server", "hci_channel", "command", body=body, timeout=1) for body in (text, many)]
    control, *answers = requester(trial).sends(CHALLENGE, *asked)
    assert control.startswith("ok")
    assert all(len(answer) < 1000 for answer in answers)
    for words in ("a command has more than", "a command holds more than"):
        assert logged(trial, "server", f"refused {REQUESTER}: hci_channel command: {words}", "(object)")


# -- the last tests here: another process takes the server's place, with its certificate


@pytest.mark.parametrize("name", [REQUESTER, "east"])
def test_names_in_messages_are_not_kept(trial, name):
    """NVFlare's statistics have an entry for every name, for as long as the process lives."""
    server = psutil.Process(trial.processes["server"].pid)
    origin = requester_cell() if name == REQUESTER else "east"
    nothing = struct.pack(">BBQ", 100, 0, 1) + b"\xc0"

    def frames(number: int) -> Iterator[bytes]:
        for place in range(number):
            time.sleep(0.02)  # more at a time would be refused
            route = [f"{place:08}" + "A" * 60_000, time.time() - 1]
            yield framed(origin, "task", "challenge", nothing, [route])

    held = []
    for number in (200, 600):
        with spoken(trial, name, origin, frames(number)):
            time.sleep(3 + 0.025 * number)
        held.append(server.memory_info().rss >> 20)
    assert held[1] - held[0] < 20, held  # 600 names of 60 kB are 36 MB


def rogue(trial: Trial) -> Attacker:
    kit = trial.kit("server")
    if "server" in trial.processes:
        trial.stop("server")
    return Attacker("server", listen=f"grpc://localhost:{kit.port}", startup=str(kit.startup), waits_for="north")


def deployed(job: Path, kit: Kit, number: str, **told: object) -> Sent:
    """A job, signed with a requester's key, as the server sends it to a silo."""
    from nvflare.fuel.utils.zip_utils import zip_directory_to_bytes
    from nvflare.lighter.utils import load_private_key_file, sign_folders

    sign_folders(
        str(job / "app"), load_private_key_file(str(kit.startup / "client.key")), str(kit.startup / "client.crt")
    )
    content = zip_directory_to_bytes(str(job / "app"), "").hex()
    headers = {"job_id": number, "app_name": "app", "job_meta": {"job_id": number, **told}}
    return Sent("north", "admin", "admin", "train.deploy", packed=content, headers=headers, timeout=20)


def test_the_servers_operator_makes_a_silo_read_no_file(trial, tmp_path):
    file, kit = tmp_path / "row.json", trial.kit(REQUESTER)
    file.write_text(json.dumps({"row": PLANTED}))
    write_job(tmp_path / "good", "{}", "0" * 32, 1, ("north",), 20)
    good = deployed(tmp_path / "good", kit, str(uuid.uuid4()))
    bad = deployed(reading(tmp_path / "bad", file), kit, str(uuid.uuid4()))
    control, answer = rogue(trial).sends(good, bad)
    assert control == "ok: deployed app to north"
    assert answer == 'ok: {"rules": ["request"]}'
    assert logged(trial, "north", "refused job", "its files are not those of a request")
    assert [folder.name for folder in job_folders(trial, "north")] == [good.headers["job_id"]]


def test_the_servers_operator_makes_a_silo_do_nothing(trial, planted):
    rogue_server = rogue(trial)
    job = {"job_id": str(uuid.uuid4())}
    control = Sent("north", "admin", "admin", "scheduler.check_resource", headers=job)
    answer, *answers = rogue_server.sends(control, *attacks("north", planted))
    assert answer.startswith("ok")
    assert is_unharmed(trial, answers)
    for topic in ASKED:
        assert logged(trial, "north", "refused server", f"admin {topic}", "(topic)")
