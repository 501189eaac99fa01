"""A party does not start if its doors cannot be closed."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("nvflare")

from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.drivers.connector_info import Mode
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.sfm.constants import Types
from nvflare.fuel.f3.sfm.prefix import Prefix

from tacit.transport import gate

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


class Ended(Exception):
    """What gRPC raises where a call is aborted."""


def call_of(party: str) -> SimpleNamespace:
    def abort(code: object, words: str) -> None:
        raise Ended

    return SimpleNamespace(auth_context=lambda: {"x509_common_name": [party.encode()]}, abort=abort)


def test_a_party_has_few_connections_at_a_time():
    noted = Noted()
    called = gate._called(lambda self, frames, context: iter("ab"), noted)
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
    greeted = gate._greeted(lambda self, neighbour, frame: passed.append(frame), noted)
    peer = SimpleNamespace(get_conn_properties=lambda: {"peer_cn": "eve"})
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


def test_the_server_works_on_few_messages_of_a_requester_at_a_time():
    noted, go_on, passed = Noted(), threading.Event(), []

    def works(*message: object) -> None:
        passed.append(message)
        assert go_on.wait(10)

    guarded, name = gate._guarded(works, noted), f"_admin_{uuid.UUID(int=1)}"
    cell = SimpleNamespace(my_info=SimpleNamespace(fqcn="server"), int_listener=None)
    connector = SimpleNamespace(mode=Mode.PASSIVE)
    eve = SimpleNamespace(connector=connector, get_conn_properties=lambda: {"peer_cn": "eve@example.org"})
    asks = {"ORIGIN": name, "DESTINATION": "server", "MSG_TYPE": "req", "CHANNEL": "hci_channel", "TOPIC": "command"}
    asked = Message({getattr(MessageHeaderKey, key): value for key, value in asks.items()}, b"x")
    message = (cell, SimpleNamespace(name=name), eve, 1, asked)
    with ThreadPoolExecutor(gate._MOST_ASKED) as pool:
        busy = [pool.submit(guarded, *message) for _ in range(gate._MOST_ASKED)]
        end = time.monotonic() + 10
        while len(passed) < gate._MOST_ASKED and time.monotonic() < end:
            time.sleep(0.01)
        guarded(*message)
        go_on.set()
        assert all(one.result() is None for one in busy)
    assert noted.lines == [f"eve@example.org: hci_channel command from {name} to server (number)"]
    guarded(*message)
    assert len(passed) == gate._MOST_ASKED + 1
