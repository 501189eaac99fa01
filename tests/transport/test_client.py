"""A requester's client takes known files of limited size from a server, whatever the server offers."""

from __future__ import annotations

import io
import resource
import zipfile
from base64 import b64decode
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.refusals import refuses

pytest.importorskip("nvflare")

from nvflare.apis.signal import Signal
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming.download_service import ProduceRC
from nvflare.fuel.f3.streaming.file_downloader import DEFAULT_CHUNK_SIZE
from nvflare.fuel.flare_api.api_spec import NoReply
from nvflare.fuel.hci.file_transfer_defs import PULL_FOLDER_FQN, PUSH_FOLDER_FQN

from tacit.transport import client
from tacit.transport.channels import Cell, verdict
from tacit.transport.channels import CellHeaders as Headers
from tacit.transport.client import _PART, _READ, _REST, Unacceptable, _Commands, fetch, is_local
from tacit.transport.packed import PACKED


def test_a_part_of_a_file_as_nvflare_s_server_sends_it_is_accepted():
    assert DEFAULT_CHUNK_SIZE + (1 << 16) < _PART


LIMITS = {"outcome.json": 100, "model": 3 * _READ}
REQUESTER = Cell("_admin_" + "0" * 32)


class Server:
    """A server that offers files of its choice, and sends an archive in parts of its choice."""

    def __init__(self, archive: bytes, names: Any = ("workspace.zip",), part: Any = 1 << 19) -> None:
        self._archive, self._names, self._part, self.length = archive, names, part, len(archive)
        self.asked: list[tuple[str, str]] = []
        timeout = {"file_download_progress_timeout": 1.0, "session_abort_signal": Signal()}
        self.api = SimpleNamespace(cell=self, **timeout)

    def _do_command(self, command: str) -> dict[str, Any]:
        return {"meta": {"files": [[name, f"ref-{name}"] for name in self._names], "source_fqcn": "elsewhere"}}

    def register_request_cb(self, **options: Any) -> None: ...

    def fire_and_forget(self, **options: Any) -> None: ...

    def get_fqcn(self) -> str:
        return REQUESTER.party

    def send_request(self, target: str, request: Message, **options: Any) -> Message:
        self.asked.append((target, request.payload["ref_id"]))
        state = request.payload.get("state") or {"received_bytes": 0}
        begin = state["received_bytes"]
        data = self._archive[begin : begin + self._part] if isinstance(self._part, int) else self._part
        ended = {"status": ProduceRC.EOF}
        reply = Message({}, ended if begin >= self.length else {"status": ProduceRC.OK, "data": data, "state": {}})
        reply.set_header(MessageHeaderKey.RETURN_CODE, ReturnCode.OK)
        return reply


def archived(files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return data.getvalue()


def fetched(server: Server, folder: Path) -> dict[str, bytes]:
    fetch(server, "job", "tacit", LIMITS, folder / "target")
    return {path.name: path.read_bytes() for path in (folder / "target").iterdir()}


GOOD = {"tacit/outcome.json": b"{}", "tacit/model": bytes(2 * _READ + 1)}


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_known_files_are_taken_from_the_server_itself(method, tmp_path):
    server = Server(archived(GOOD, method))
    assert fetched(server, tmp_path) == {"outcome.json": b"{}", "model": GOOD["tacit/model"]}
    assert set(server.asked) == {("server", "ref-workspace.zip")}


def test_files_that_nobody_asked_for_are_left_where_they_are(tmp_path):
    evil = dict.fromkeys(("../evil", "tacit/../../evil", "/evil", "tacit/evil", "evil", "other/outcome.json"), b"evil")
    names = ("../evil", "/tmp/evil", "workspace.zip", "workspace.zip/evil")
    assert fetched(Server(archived(GOOD | evil), names), tmp_path) == {
        "outcome.json": b"{}",
        "model": GOOD["tacit/model"],
    }
    assert {path.name for path in tmp_path.rglob("*")} == {"target", "outcome.json", "model"}


LARGE_TABLE = archived({**GOOD, **{f"{k:0200}": b"" for k in range(6000)}})
REFUSED = {
    "no archive": Server(b"x" * 1000),
    "an empty archive": Server(b""),
    "a file too large": Server(archived({"tacit/outcome.json": bytes(101)})),
    "a file that grows": Server(archived({"tacit/model": bytes(3 * _READ + 1)})),
    "another compression": Server(archived(GOOD, zipfile.ZIP_LZMA)),
    "a large table of contents": Server(LARGE_TABLE),
    "a spoilt archive": Server(archived(GOOD).replace(b"tacit/outcome", b"tacit/0utcome", 1)),
    "an empty part": Server(b"x", part=b""),
    "no bytes": Server(b"x", part=["x"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_everything_else_is_refused(case, tmp_path):
    with pytest.raises(Unacceptable):
        fetched(REFUSED[case], tmp_path)


@pytest.mark.parametrize("names", [(), ("x", "y"), (7, None), ("../workspace.zip",)])
def test_a_job_without_an_archive_has_left_nothing(names, tmp_path):
    fetch(Server(archived(GOOD), names), "job", "tacit", LIMITS, tmp_path / "target")
    assert not list(tmp_path.iterdir())


def test_a_download_ends_at_the_limit(tmp_path):
    server = Server(b"x", part=bytes(32 << 20))
    server.length = 1 << 40
    with refuses("too-large", kind=Unacceptable):
        fetched(server, tmp_path)
    assert len(server.asked) <= (sum(LIMITS.values()) + _REST) // (32 << 20) + 1


def test_a_download_that_breaks_off_can_be_tried_again(tmp_path):
    server = Server(archived(GOOD))
    server.send_request = lambda **options: Message({MessageHeaderKey.RETURN_CODE: ReturnCode.COMM_ERROR}, None)
    with pytest.raises(NoReply):
        fetched(server, tmp_path)


@pytest.mark.parametrize("most", [1 << 10, 1 << 20], ids=["archive", "file"])
def test_a_file_that_cannot_be_written_is_not_the_fault_of_the_server(most, tmp_path):
    """The archive is small, and one of its files larger than the limit of the second case."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        with pytest.raises(OSError) as caught:  # noqa: PT011
            fetched(Server(archived(GOOD), part=1 << 8), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert is_local(caught.value)


@pytest.mark.parametrize(
    ("name", "does"),
    [("download_job", PULL_FOLDER_FQN), ("get_job_meta", PUSH_FOLDER_FQN), ("submit_job", PUSH_FOLDER_FQN)],
)
def test_a_server_makes_no_command_a_transfer_of_files(name, does):
    module = _Commands()
    assert module.generate_module_spec(SimpleNamespace(name=name, client_cmd=does)) is None
    assert [spec.name for spec in module.get_spec().cmd_specs] == ["submit_job", "download_job"]


@pytest.mark.parametrize(("size", "is_sent"), [(1 << 10, True), (11 << 18, False)])
def test_a_job_travels_within_its_command_if_it_is_not_too_large(size, is_sent, tmp_path, monkeypatch):
    for name in ("sign_folders", "load_private_key_file"):
        monkeypatch.setattr(client, name, lambda *args: None)
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "meta.json").write_bytes(bytes(size))
    sent: list[tuple[str, bytes]] = []
    api = SimpleNamespace(client_key="", client_cert="", set_command_timeout=float, unset_command_timeout=float)
    api.server_execute = lambda command, props: sent.append((command, b64decode(props[PACKED])))
    words = ["submit_job", str(tmp_path / "job"), "--submit-token", "t"]
    told = client._sent(words, SimpleNamespace(get_api=lambda: api))
    assert [command for command, _ in sent] == ["submit_job job --submit-token t"] * is_sent
    assert all(zipfile.ZipFile(io.BytesIO(packed)).namelist() == ["job/meta.json"] for _, packed in sent)
    assert is_sent or "bytes" in told["details"]


@pytest.mark.parametrize(
    ("channel", "topic", "rule"),
    [
        ("hci_channel", "command", None),
        ("download_service__", "download_service__download", None),
        ("return_only", "x:y", "topic"),
        ("aux_communication", "ObjectStreamer.Request", "topic"),
        ("hci.upload", "x", "topic"),
    ],
)
def test_a_server_takes_commands_of_a_requester_and_no_streams(channel, topic, rule):
    name, server = REQUESTER.party, Cell("server")
    stream = Headers(name, "server", "req", "sm__STREAM", "sm__DATA", (channel, topic))
    assert verdict(server, REQUESTER, stream, own_port=False) == "topic"
    assert verdict(server, REQUESTER, Headers(name, "server", "req", channel, topic), own_port=False) == rule


@pytest.mark.parametrize(
    ("channel", "topic", "rule"),
    [
        ("_net_manager", "stop_cell", "topic"),
        ("_net_manager", "echo", "topic"),
        ("credential_manager", "key_exchange", "topic"),
        ("aux_communication", "ObjectStreamer.Request", "topic"),
        ("download_service__", "download_service__download", "topic"),
        ("hci_channel", "SESSION_EXPIRED", None),
        ("cellnet.channel", "bye", None),
    ],
)
def test_a_requesters_cell_takes_no_requests_but_the_end_of_its_session(channel, topic, rule):
    name, server = REQUESTER.party, Cell("server")
    assert verdict(REQUESTER, server, Headers("server", name, "req", channel, topic), own_port=False) == rule
    assert verdict(REQUESTER, server, Headers("north", name, "req", channel, topic), own_port=False) == "origin"
    assert verdict(REQUESTER, Cell("north"), Headers("north", name, "req", channel, topic), own_port=False) == "origin"
