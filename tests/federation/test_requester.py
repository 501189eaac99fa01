"""What the operator of a server can do to the machine of a requester."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare")

from tacit.errors import UserError
from tacit.federation.demo import REQUESTER
from tacit.federation.kits import Kit
from tacit.federation.requester import Asked, _collected, _Outcome, _session, status
from tests.refusals import refuses

from .worlds import experiment, federation, finished

# Runs in the server's processes: it adds a file to every result, and sends a request to the requester's cell.
ROGUE = """
import os, sys
if "server" in sys.orig_argv and "tacit.transport" in sys.orig_argv:
    import nvflare.fuel.hci.server.binary_transfer as transfer
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
    from nvflare.fuel.f3.message import Message
    from nvflare.fuel.hci.proto import MetaKey
    from nvflare.fuel.hci.server.constants import ConnProps
    folder = os.environ["ROGUE"]
    made, added, shared, last = transfer.make_meta, transfer.add_file, transfer.BinaryTransfer.download_folder, {}

    def add_file(downloader, file_name, **options):
        last["downloader"] = downloader
        return added(downloader, file_name=file_name, **options)

    def make_meta(status, info="", extra=None):
        if extra and MetaKey.FILES in extra:
            evil = os.path.join(folder, "content")
            open(evil, "w").write("evil")
            for name in (os.path.join(folder, "absolute"), "../relative"):
                extra[MetaKey.FILES].insert(0, [name, added(last["downloader"], file_name=evil)])
        return made(status, info, extra)

    def download_folder(self, conn, tx_id, folder_name):
        target = conn.get_prop(ConnProps.REQUEST).get_header(MessageHeaderKey.ORIGIN)
        cell = conn.get_prop(ConnProps.ENGINE).get_cell()
        reply = cell.send_request(channel="_net_manager", topic="echo", target=target, request=Message(), timeout=2.0)
        open(os.path.join(folder, "echo"), "w").write(str(reply.get_header(MessageHeaderKey.RETURN_CODE)))
        return shared(self, conn, tx_id, folder_name)

    transfer.make_meta, transfer.add_file = make_meta, add_file
    transfer.BinaryTransfer.download_folder = download_folder

    import json
    import nvflare.fuel.hci.conn as connections
    close = connections.Connection.close

    def answer(self):
        text, file = close(self), os.path.join(folder, "answers.json")
        answers = json.load(open(file)) if os.path.isfile(file) else {}
        return answers.get(str(self.command).split(" ")[0], text)

    connections.Connection.close = answer
"""
EVIL = "x\n\x1b]0;owned\x07\x1b[2J\nforged line\n"


def answered(status: str) -> str:
    """What a server can answer to a command."""
    told = {"status": status, "info": EVIL}
    return json.dumps({"time": "t", "data": [{"type": "error", "data": EVIL}], "meta": told})


ANSWERS = [
    *((command, answered("not_authorized")) for command in ("list_jobs", "_cert_login")),
    *(("check_status", answered(status)) for status in ("invalid_target", "job_running", "internal_error")),
    ("check_status", json.dumps({"time": "t", "data": [], "meta": {"status": "ok", "clients": EVIL}})),
    ("list_jobs", EVIL),
]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "file-access"),
        (PermissionError(errno.EACCES, "Permission denied", "left.json"), "file-access"),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), "no-answer"),
        (RuntimeError("session_inactive"), "no-answer"),
    ],
)
def test_a_local_file_and_a_connection_fail_with_different_codes(error, code, tmp_path, monkeypatch):
    (tmp_path / "tacit").mkdir()
    kit = Kit(tmp_path, "requester", REQUESTER, "trial", "localhost", 1, (), False)
    monkeypatch.setattr("tacit.federation.requester.connection_problem", lambda *args: None)
    monkeypatch.setattr("tacit.transport.client.connected", lambda *args, **more: SimpleNamespace(close=lambda: None))
    with refuses(code, "--kit"), _session(kit):
        raise error


@pytest.mark.parametrize(
    ("rules", "names"),
    [
        ({"west": ["data"]}, ["west: data", "tacit federation check"]),
        ({"west": ["data"], "east": ["methods"]}, ["east: methods", "tacit federation check", "policies"]),
        ({"east": ["methods"]}, ["east: methods", "policies"]),
    ],
)
def test_a_refusal_names_what_to_check(rules, names):
    asked = Asked("a" * 32, "", "nowhere", ("west", "east"), 120)
    with refuses("policy-forbids", "policy", names=names) as caught:
        _collected(asked, None, _Outcome(status="refused", rules=rules))
    assert ("federation check" in caught.value.fix) == ("west" in rules)


def test_a_server_writes_no_file_and_reaches_no_service_on_a_requesters_machine(tmp_path, monkeypatch, capfd):
    rogue = tmp_path / "rogue"
    rogue.mkdir()
    (rogue / "sitecustomize.py").write_text(ROGUE)
    monkeypatch.setenv("ROGUE", str(rogue))
    monkeypatch.setenv("PYTHONPATH", f"{rogue}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with federation(tmp_path / "trial") as trial:
        run = finished(trial, experiment(), "run")
        kit = trial.kit(REQUESTER)
        said = (kit.ours / "log.txt").read_text() if (kit.ours / "log.txt").is_file() else ""
        written = {path.name for path in (*kit.path.rglob("*"), *Path(run.path).rglob("*"))}
        for command, answer in ANSWERS:
            (rogue / "answers.json").write_text(json.dumps({command: answer}))
            capfd.readouterr()
            with pytest.raises(UserError) as caught:
                status(kit)
            shown = f"{caught.value}{capfd.readouterr()}"
            assert (caught.value.code in ("no-answer", "rejected"), caught.value.field) == (True, "--kit")
            assert ("\x1b" in shown, "\nforged" in shown, "Traceback" in shown) == (False, False, False), shown
    assert (rogue / "content").is_file()  # the server did offer its files
    assert not (rogue / "absolute").exists()
    assert not {"absolute", "relative"} & written
    assert (rogue / "echo").read_text() != "ok"
    assert "refused server: _net_manager echo from server" in said
