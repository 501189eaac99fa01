"""A party that cannot connect gets to know why: no server, another authority, or a kit that the server rejects."""

from __future__ import annotations

import fcntl
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w
from typer.testing import CliRunner

from tacit.federation import requester
from tacit.federation.carrier import processes
from tacit.federation.carrier.handshake import connection_problem
from tacit.federation.kits import ROOT, FederationOptions, Kit, make_kits
from tacit.ui.main import app
from tests.federation.test_commands import RULES
from tests.refusals import refuses

pytest.importorskip("nvflare")

ANA = "ana@example.org"


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> tuple[Path, Path]:
    """Kits, and new ones for the same federation: the same names and port, another authority."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        server = {"host": "localhost", "port": probe.getsockname()[1]}
    options = FederationOptions(name="visits", server=server, silos=("north", "south"), requesters=(ANA,))
    folder = tmp_path_factory.mktemp("handshake")
    for name in ("old", "new"):
        make_kits(options, folder / name, None)
    return folder / "old", folder / "new"


@contextmanager
def listening(kit: Path, trusts: Path, sends: bytes = b"settings") -> Iterator[None]:
    """A TLS server with the certificate of a server's kit, for clients of the authority of the kits ``trusts``. It
    closes a connection after it has sent something."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(kit / "startup" / "server.crt", kit / "startup" / "server.key")
    context.load_verify_locations(trusts / "startup" / ROOT)
    context.verify_mode = ssl.CERT_REQUIRED
    door = socket.create_server(("localhost", Kit.load(kit, "server").port))

    def serve() -> None:
        with suppress(OSError):
            while True:
                plain, _ = door.accept()
                with suppress(OSError), context.wrap_socket(plain, server_side=True) as secured:
                    secured.sendall(sends)

    worker = threading.Thread(target=serve, daemon=True)
    worker.start()
    try:
        yield
    finally:
        door.shutdown(socket.SHUT_RDWR)
        door.close()
        worker.join(10)


def problem(kits: Path) -> str | None:
    found = connection_problem(Kit.load(kits / "silos" / "north", "silo"), "KIT")
    return None if found is None else found.code


def test_the_causes_of_a_missing_connection_have_different_codes(places):
    old, new = places
    assert problem(old) == "no-answer"
    with listening(new / "server", trusts=new / "server"):
        assert problem(new) is None
        assert problem(old) == "bad-certificate"
    with listening(new / "server", trusts=old / "server"):
        assert problem(new) == "rejected"
    with listening(new / "server", trusts=new / "server", sends=b""):  # as gRPC rejects a certificate
        assert problem(new) == "rejected"


def test_a_requester_with_a_kit_of_another_authority_needs_a_new_one(places):
    old, new = places
    with listening(new / "server", trusts=new / "server"), refuses("bad-certificate", "--kit"):
        requester.status(Kit.load(old / "requesters" / ANA, "requester"))


def test_a_damaged_kit_is_not_taken_for_a_missing_server(places, tmp_path):
    kit = replace(Kit.load(places[0] / "silos" / "north", "silo"), path=tmp_path)
    found = connection_problem(kit, "KIT")
    assert found is not None
    assert found.code == "file-damaged"


def test_a_silo_says_at_its_start_why_it_cannot_connect(places, tmp_path, monkeypatch):
    old, new = places
    (tmp_path / "table.csv").write_text("patient,age\n1,2\n")
    (tmp_path / "DATA.toml").write_text('path = "table.csv"\nsubjects = "patient"\n')
    (tmp_path / "POLICY.toml").write_text(tomli_w.dumps(RULES))
    monkeypatch.setattr(processes, "in_background", lambda kit: 1)
    files = ["--data", str(tmp_path / "DATA.toml"), "--policy", str(tmp_path / "POLICY.toml")]
    command = ["silo", str(old / "silos" / "south"), *files, "--background"]
    with listening(new / "server", trusts=new / "server"):
        done = CliRunner().invoke(app, command, catch_exceptions=False)
    assert done.exit_code == 0
    assert "[bad-certificate]" in done.output
    assert "[bad-certificate]" in (old / "silos" / "south" / "tacit" / "log.txt").read_text()


@pytest.mark.parametrize("command", ["server", "analyzer"])
def test_a_second_start_is_refused_before_anything_else(tmp_path, command):
    options = FederationOptions(
        name="visits", server={"host": "localhost"}, silos=("north", "south"), requesters=(ANA,), analyzer=True
    )
    kit = Kit.load(make_kits(options, tmp_path / "kits", None)[command], command)
    with (kit.ours / "process.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = CliRunner().invoke(app, [command, str(kit.path)])
    assert (done.exception.code, done.exception.field) == ("in-use", "KIT")
    assert done.output == ""
