"""The attendant of a party: one per kit, small, and at work after its logs were rotated."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

pytest.importorskip("nvflare")

from tacit.federation.carrier.processes import prepare_server
from tacit.federation.kits import FederationOptions, make_kits
from tacit.transport.attendant import (
    LOCK,
    NVFLARE_LOG,
    PID,
    AlreadyRunning,
    Tail,
    bound,
    check_idle,
    joined,
    start,
    stop,
)
from tacit.transport.log import LOG, log_of
from tests.transport.test_rejected_connections import REASON, TLS

REGISTERED = b"Successfully registered client:north for project test\n"


@pytest.fixture
def kits(tmp_path) -> dict[str, Path]:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        server = {"host": "localhost", "port": probe.getsockname()[1]}
    options = FederationOptions(name="test", server=server, silos=("north", "south"), requesters=("a@example.org",))
    return make_kits(options, tmp_path / "kits", None)


@pytest.fixture
def kit(kits) -> Path:
    """Of a silo whose server is not there."""
    return kits["north"]


@pytest.fixture
def server(kits) -> Path:
    return prepare_server(kits["server"]).path


@pytest.fixture
def attendant(kit) -> Iterator[subprocess.Popen]:
    with attended(kit) as process:
        yield process


@contextmanager
def attended(kit: Path) -> Iterator[subprocess.Popen]:
    """The attendant of a kit, when it has started NVFlare's process."""
    words = [sys.executable, "-P", "-m", "tacit.transport.attendant", str(kit), "--tell"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    wait_for(lambda: (kit / "tacit" / PID).is_file())
    yield process
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)


def wait_for(is_so, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


def told(attendant: subprocess.Popen, words: str) -> bool:
    """Whether the attendant prints a line with these words; it waits for it."""
    assert attendant.stdout is not None
    return any(words in line for line in attendant.stdout)


def test_a_process_number_that_is_in_use_again_does_not_block_a_start(kit):
    (kit / "tacit" / PID).write_text(f"{os.getpid()}\n")  # of another process, which lives
    stop(start(kit))
    check_idle(kit)


def test_one_party_runs_per_kit_until_its_process_has_ended(kit):
    process = start(kit)
    try:
        for again in (start, check_idle):
            with pytest.raises(AlreadyRunning) as caught:
                again(kit)
            assert str(process.pid) in str(caught.value)
    finally:
        process.kill()
        process.wait()
    check_idle(kit)
    assert (kit / "tacit" / LOCK).stat().st_mode & 0o777 == 0o600


def test_after_its_attendant_was_killed_a_party_ends_and_can_be_started_again(server):
    kit = server
    with attended(kit) as attendant:
        wait_for(lambda: b"deployed" in (kit / "tacit" / NVFLARE_LOG).read_bytes())
        attendant.kill()
        attendant.wait()

    def is_idle() -> bool:
        try:
            check_idle(kit)
        except AlreadyRunning:
            return False
        return True

    wait_for(is_idle)
    stop(start(kit))


@pytest.mark.parametrize("terminates", [True, False])
def test_a_process_ends_with_its_parent_even_if_it_is_not_asked_to(terminates):
    code = f"""
import os, signal, tacit.transport.__main__ as program
signal.signal(signal.SIGTERM, signal.SIG_IGN)
program.TIMEOUT = 0.2
program.end_with(os.getppid(), {terminates})
"""
    parent = f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {code!r}]); print(p.pid); p.wait()"
    process = subprocess.Popen([sys.executable, "-uc", parent], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    time.sleep(1)
    assert psutil.pid_exists(child)
    process.kill()
    process.wait()
    wait_for(lambda: not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE, 10)


def test_an_idle_attendant_is_small_and_has_no_jax(kit, attendant):
    # the shared memory of libraries counts in full: an upper bound
    resident = next(
        int(line.split()[1])
        for line in Path(f"/proc/{attendant.pid}/smaps_rollup").read_text().splitlines()
        if line.startswith("Rss:")
    )
    assert resident < 60_000  # kB
    mapped = Path(f"/proc/{attendant.pid}/maps").read_text()
    assert "python" in mapped
    assert not [name for name in ("jaxlib", "numpy", "pandas", "nvflare", "grpc") if f"/{name}/" in mapped]


def test_the_attendant_imports_the_standard_library_alone():
    code = "import tacit.transport.attendant, sys; print(*sys.modules)"
    words = [sys.executable, "-P", "-c", code]
    found = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    others = {"jax", "numpy", "pandas", "nvflare", "pydantic", "cryptography", "tacit.engine", "tacit.data"}
    assert "tacit.transport.attendant" in found
    assert not others & set(found)


@pytest.mark.parametrize("rotate", ["cut", "replace", "move"])
def test_the_attendant_reports_after_its_log_was_rotated(kit, attendant, rotate):
    log, writer = kit / "tacit" / LOG, log_of(kit)
    writer.info("a long first line, which the file has before it is rotated")
    assert told(attendant, "a long first line")
    if rotate == "cut":
        os.truncate(log, 0)
    else:
        log.rename(log.with_name("log.txt.1"))
        if rotate == "replace":
            log.touch()
    writer.info("second")
    assert told(attendant, "second")
    assert "second" in log.read_text()


TURNED_AWAY = f"{TLS}{REASON}PEER_DID_NOT_RETURN_A_CERTIFICATE: Invalid\n".encode()


def test_lines_about_connections_are_in_the_servers_log_also_after_it_was_rotated(server):
    log = server / "tacit" / LOG
    with attended(server) as attendant:
        log_of(server).info("first")
        assert told(attendant, "first")
        log.rename(log.with_name("log.txt.1"))
        with (server / "tacit" / NVFLARE_LOG).open("ab") as nvflare:
            nvflare.write(TURNED_AWAY)
        assert told(attendant, "it shows no certificate")
        assert "it shows no certificate" in log.read_text()
        with (server / "tacit" / NVFLARE_LOG).open("ab") as nvflare:
            nvflare.write(TURNED_AWAY * 4200)
        assert told(attendant, "refused connections too often")
        assert log.read_text().count("it shows no certificate") == 20


def test_a_silo_takes_no_connections_and_so_has_no_lines_about_them(kit, attendant):
    with (kit / "tacit" / NVFLARE_LOG).open("ab") as nvflare:
        nvflare.write(TURNED_AWAY)
    time.sleep(1)  # the attendant looks five times
    log_of(kit).info("last")
    assert told(attendant, "last")
    assert "certificate" not in (kit / "tacit" / LOG).read_text()


def test_a_tail_tells_every_line_once_however_the_log_is_rotated(tmp_path):
    log = tmp_path / "log"
    log.write_text("before\n")
    tail = Tail(log)
    with log.open("a") as writer:
        writer.write("one\nhalf")
        writer.flush()
        assert tail.lines() == ["one"]
        writer.write(" two\n")
        writer.flush()
        log.rename(tmp_path / "old")
        assert tail.lines() == ["half two"]
        writer.write("three\n")
    log.write_text("four\n")
    assert tail.lines() == ["three", "four"]
    os.truncate(log, 0)
    assert tail.lines() == []
    log.write_text("5\n")
    assert tail.lines() == ["5"]
    tail.close()


def test_nvflares_log_is_kept_over_starts_and_only_what_follows_the_last_one_counts(kit):
    log = kit / "tacit" / NVFLARE_LOG
    log.write_bytes(b"of an earlier start\n" + REGISTERED)
    assert joined(kit)
    process = start(kit)
    try:
        assert log.read_bytes().startswith(b"of an earlier start\n" + REGISTERED)
        assert not joined(kit)
        with log.open("ab") as output:
            output.write(REGISTERED)
        assert joined(kit)
    finally:
        stop(process)


def test_nvflares_log_is_bounded_and_its_writer_goes_on_in_the_same_file(tmp_path):
    log = tmp_path / "nvflare.log"
    with log.open("ab", buffering=0) as output:
        for text in (b"first" * 10, b"second" * 10):
            output.write(text)
            bound(log, most=20)
            assert log.read_bytes() == b""
            assert (tmp_path / "nvflare.log.1").read_bytes() == text
        output.write(b"short")
        bound(log, most=20)
    assert log.read_bytes() == b"short"
    assert len(list(tmp_path.iterdir())) == 2
