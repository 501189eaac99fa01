"""Attackers that speak NVFlare's own protocol, with raw cell messages: no console, no checks of their own.

An :class:`Attacker` is a process of its own (``python attackers.py``, with JSON in and out) that makes one cell and
sends messages from it. It can run as another user. Which certificate it has, under which name it connects, to which
port, and what its messages say about their origin is up to the test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

NO_ANSWER = "timeout"
NOBODY = 65534


@dataclass(frozen=True)
class Sent:
    """A message. ``asks`` and ``body`` are the topic and the text within, where the channel is ``admin``; on other
    channels the body can be any JSON, which NVFlare serializes."""

    target: str
    channel: str
    topic: str
    asks: str | None = None
    body: Any = ""
    packed: str | None = None  # the bytes within, as hexadecimal digits
    headers: dict[str, Any] = field(default_factory=dict)
    origin: str | None = None  # another than the sender's, forged
    stream: bool = False  # as a stream
    timeout: float = 2.0


def shell(target: str, command: str, **more: Any) -> Sent:
    return Sent(target, "admin", "admin", "sys.shell", command, **more)


@dataclass(frozen=True)
class Attacker:
    """Who connects: to the server (``root``), to the port for a party's job processes (``parent``), or as the server
    itself (``listen``); ``startup`` is the folder of its certificates."""

    cell: str
    root: str | None = None
    parent: str | None = None
    listen: str | None = None
    startup: str | None = None
    registers: str | None = None  # the name it registers by
    kind: str | None = None  # as which kind of party it tries to register, whether it is let in or not
    host: str = "localhost"
    project: str = "trial"
    waits_for: str | None = None  # a cell that has to connect first
    user: int | None = None  # whom it becomes once its modules are imported (a user may be unable to read them)
    prefix: tuple[str, ...] = ()  # words before the command, such as `ip netns exec …`
    files: str | None = None  # the folder into which NVFlare writes files that a message holds

    def sends(self, *messages: Sent, within: float = 90.0) -> list[str]:
        """The answers, as text; :data:`NO_ANSWER` where none came."""
        said = {**asdict(self), "messages": [asdict(one) for one in messages]}
        process = subprocess.run(
            [*self.prefix, sys.executable, "-P", str(Path(__file__).resolve())],
            input=json.dumps(said),
            capture_output=True,
            text=True,
            check=False,
            timeout=within,
        )
        assert process.returncode == 0, process.stderr[-3000:]
        return list(json.loads(process.stdout.splitlines()[-1]))


def requester_cell() -> str:
    return f"_admin_{uuid.uuid4()}"


def job_cell(party: str) -> str:
    return f"{party}.{uuid.uuid4()}"


def own_port(pid: int, besides: Sequence[int] = ()) -> int:
    """The port on which a party's process listens for its job processes, as every user of the machine can find out."""
    sockets = {os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir() if file.is_symlink()}
    found = []
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:  # of its own network namespace
        _, local, _, state, *_, inode = line.split()[:10]
        if state == "0A" and f"socket:[{inode}]" in sockets:  # it listens
            found.append(int(local.partition(":")[2], 16))
    ports = [port for port in found if port not in besides]
    assert len(ports) == 1, found
    return ports[0]


# -- the process


def _main() -> None:
    said = json.load(sys.stdin)
    import logging

    if said["files"]:
        os.environ["NVFLARE_DATUM_DIR"] = said["files"]
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    with _connected(said) as cell:
        answers = [_sent(cell, message) for message in said["messages"]]
        time.sleep(1.0)  # until what expects no answer has left
    print(json.dumps(answers), flush=True)
    os._exit(0)  # whatever threads NVFlare still has


@contextmanager
def _connected(said: dict[str, Any]) -> Iterator[Any]:
    from nvflare.fuel.f3.cellnet.cell import Cell
    from nvflare.fuel.f3.communicator import load_comm_drivers
    from nvflare.private.fed.utils.fed_utils import nvflare_fobs_initialize

    nvflare_fobs_initialize()
    if said["user"] is not None:
        load_comm_drivers()
        os.setgroups([])
        os.setgid(said["user"])
        os.setuid(said["user"])
    startup = said["startup"]
    side = "server" if startup and Path(startup, "server.crt").is_file() else "client"
    keys = {"ca_cert": "rootCA.pem", f"{side}_cert": f"{side}.crt", f"{side}_key": f"{side}.key"}
    credentials = {key: f"{startup}/{file}" for key, file in keys.items()} if startup else {}
    cell = Cell(
        fqcn=said["cell"],
        root_url=said["listen"] or said["root"],
        secure=bool(startup),
        credentials=credentials,
        create_internal_listener=False,
        parent_url=said["parent"],
        auth_identity_map={"server": said["host"]},
    )
    cell.start()
    neighbour = said["waits_for"] or (said["cell"].partition(".")[0] if said["parent"] else "server")
    end = time.monotonic() + (30 if said["waits_for"] else 3 if said["parent"] else 8)
    while neighbour not in cell.core_cell.agents and time.monotonic() < end:
        time.sleep(0.05)
    if said["registers"]:
        with suppress(Exception) if said["kind"] else nullcontext():
            _register(cell, said)
    yield cell


def _register(cell: Any, said: dict[str, Any]) -> None:
    """As a requester or a silo does: the server then accepts its messages."""
    from nvflare.apis.fl_constant import ReservedKey
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.signal import Signal
    from nvflare.fuel.sec.authn import set_add_auth_headers_filters
    from nvflare.private.defs import ClientType
    from nvflare.private.fed.authenticator import Authenticator

    name, startup = said["registers"], said["startup"]
    authenticator = Authenticator(
        cell=cell,
        project_name=said["project"],
        client_name=name,
        client_type=said["kind"] or (ClientType.ADMIN if "@" in name else ClientType.REGULAR),
        expected_sp_identity=said["host"],
        secure_mode=True,
        root_cert_file=f"{startup}/rootCA.pem",
        private_key_file=f"{startup}/client.key",
        cert_file=f"{startup}/client.crt",
        msg_timeout=5.0,
        retry_interval=1.0,
        timeout=2.0 if said["kind"] else 20.0,
    )
    context = FLContext()
    context.set_public_props({ReservedKey.IDENTITY_NAME: name})
    token, signature, ssid, _ = authenticator.authenticate(shared_fl_ctx=context, abort_signal=Signal())
    set_add_auth_headers_filters(cell, name, token, signature, ssid)


def _sent(cell: Any, message: dict[str, Any]) -> str:
    from nvflare.private.admin_defs import Message
    from nvflare.private.defs import new_cell_message

    payload: Any = message["body"]
    if message["asks"] is not None:
        content = message["body"] if message["packed"] is None else bytes.fromhex(message["packed"])
        payload = Message(topic=message["asks"], body=content)
        payload.set_headers(message["headers"])
    request = new_cell_message({} if message["asks"] is not None else message["headers"], payload)
    if message["origin"] is not None:
        return _forged(cell, message, request)
    send = cell._send_request if message["stream"] else cell.core_cell.send_request
    try:
        reply = send(
            channel=message["channel"],
            topic=message["topic"],
            target=message["target"],
            request=request,
            timeout=message["timeout"],
        )
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    code = reply.get_header("cn__return_code") or reply.get_header("return_code")
    content = reply.payload
    return str(code) if content is None else f"{code}: {getattr(content, 'body', content)}"


def _forged(cell: Any, message: dict[str, Any], request: Any) -> str:
    """Past NVFlare's own sending, which would write the true origin. Its answer goes to whom it claims to be from."""
    from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType

    core = cell.core_cell
    if not core.agents:
        return "no connection"
    neighbour = next(iter(core.agents.values())).endpoint
    request.add_headers(
        {
            MessageHeaderKey.CHANNEL: message["channel"],
            MessageHeaderKey.TOPIC: message["topic"],
            MessageHeaderKey.FROM_CELL: message["origin"],
            MessageHeaderKey.TO_CELL: neighbour.name,
            MessageHeaderKey.ORIGIN: core.get_fqcn(),
            MessageHeaderKey.DESTINATION: message["target"],
            MessageHeaderKey.MSG_TYPE: MessageType.REQ,
            MessageHeaderKey.REPLY_EXPECTED: False,
            MessageHeaderKey.ROUTE: [(message["origin"], time.time())],
        }
    )
    for found in core.out_req_filter_reg.find(message["channel"], message["topic"]) or []:
        found.cb(request, *found.args, **found.kwargs)  # with the attacker's own token
    request.set_header(MessageHeaderKey.ORIGIN, message["origin"])
    return core._send_to_endpoint(neighbour, request) or NO_ANSWER


if __name__ == "__main__":
    _main()
