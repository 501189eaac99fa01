"""A server, a silo or the analyzer as a process of this machine: NVFlare's, with a log that people can read.

``tacit/log.txt`` of a kit says what happens to runs, in one line each: who joined, what was asked for by whom, what was
released, what was refused and why. ``tacit/nvflare.log`` is everything that NVFlare has said since the last start.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

from tacit.engine.federation.kits import (
    Kind,
    Kit,
    encrypt_own_port,
    keep_tidy,
    place_stores,
    read_secret,
    require_nvflare,
)
from tacit.engine.federation.policy import Policy
from tacit.engine.federation.refusals import Listener
from tacit.engine.federation.shard import read_silo_data
from tacit.engine.folder import read_json, write_json
from tacit.errors import UserError
from tacit.settings import read_section
from tacit.transport.log import LOG, log_of

NVFLARE_LOG, PID, SETTINGS = "nvflare.log", "process.pid", "settings.json"
_LOOK = 0.2  # seconds between two looks at the log
_PATIENCE = 15  # seconds that a process gets to end by itself


def party_log(kit: Kit) -> logging.Logger:
    """The log of a kit, for whoever holds it. What it says may name values of the silo's own data."""
    return log_of(kit.path)


def _certified(kit: Kit) -> Kit:
    try:
        kit.check_certificate()
    except UserError as error:
        party_log(kit).warning("refused to start: %s", error)
        raise
    return kit


def prepare_server(path: Path) -> Kit:
    """The kit of a server that is about to start."""
    require_nvflare()
    kit = _certified(Kit.load(path, "server"))
    place_stores(kit)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", kit.port))
        except OSError:
            problem = f"port {kit.port} is taken on this machine"
            raise UserError("KIT", problem, "stop what uses it, or make kits with another port") from None
    return kit


def prepare_analyzer(path: Path) -> Kit:
    """The kit of the analyzer that is about to start."""
    require_nvflare()
    return _certified(Kit.load(path, "analyzer"))


def prepare_silo(path: Path, data: Path, policy: Path) -> Kit:
    """The kit of a silo that is about to start; its data and policy files are read once, to find mistakes now."""
    require_nvflare()
    kit = _certified(Kit.load(path, "silo"))
    options = read_silo_data(data)
    if not Path(options.path).is_file():
        raise UserError("DATA.toml", f"there is no file '{options.path}'", "mend path")
    if options.pseudonyms is not None:
        read_secret(Path(options.pseudonyms), "DATA.toml")
    read_section(policy, Policy, "POLICY.toml")
    write_json(kit.ours / SETTINGS, {"data": str(data.resolve()), "policy": str(policy.resolve())})
    return kit


def settings(kit: Kit) -> tuple[Path, Path]:
    """Where the silo's data and policy files are."""
    values = read_json(kit.ours / SETTINGS, "KIT")
    return Path(values["data"]), Path(values["policy"])


def command(kit: Kit) -> list[str]:
    """How NVFlare is started from a kit: by Tacit's own program, which closes what a run does not need."""
    program = "server" if kit.kind == "server" else "client"
    start = [sys.executable, "-P", "-m", "tacit.transport", program, "-m", str(kit.path), "-s", f"fed_{program}.json"]
    who = [] if kit.kind == "server" else [f"uid={kit.name}"]
    return [*start, "--set", "secure_train=true", f"org={kit.organisation}", "config_folder=config", *who]


def start(kit: Kit) -> subprocess.Popen[bytes]:
    """Start the process of a kit, by itself; its number is in ``tacit/process.pid``."""
    pid_file = kit.ours / PID
    _check_idle(pid_file)
    encrypt_own_port(kit)
    keep_tidy(kit)
    with (kit.ours / NVFLARE_LOG).open("wb") as output:
        process = subprocess.Popen(
            command(kit),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=kit.path,
            start_new_session=True,
        )
    pid_file.write_text(f"{process.pid}\n")
    return process


def _check_idle(pid_file: Path) -> None:
    if pid_file.is_file() and _is_alive(int(pid_file.read_text())):
        problem = f"it runs already (process {pid_file.read_text().strip()})"
        raise UserError("KIT", problem, "stop that process first")


def joined(kit: Kit) -> bool:
    """Whether the process of a silo, or the analyzer's, has been accepted by the server since it was started."""
    log = kit.ours / NVFLARE_LOG
    return log.is_file() and b"Successfully registered client" in log.read_bytes()


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process that :func:`start` began, and with it those that work on its runs (they watch it)."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def in_background(kit: Kit) -> int:
    """Attend to a kit's process without a terminal; the number of that process."""
    pid_file = kit.ours / PID
    _check_idle(pid_file)
    pid_file.unlink(missing_ok=True)
    watch = subprocess.Popen(
        [sys.executable, "-m", __name__, str(kit.path), kit.kind],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    while not (pid_file.is_file() and pid_file.read_text().endswith("\n")):
        if watch.poll() is not None:
            raise UserError("KIT", "the process did not start", f"see {kit.ours / NVFLARE_LOG}")
        time.sleep(_LOOK)
    return int(pid_file.read_text())


def attend(kit: Kit, tell: Callable[[str], None]) -> int:
    """Run a kit's process in the foreground and tell what its log says, until it ends or Ctrl-C; its exit code.

    What NVFlare's own log says about those whom it has let in or turned away is written into the kit's log, too.
    """
    log, words = kit.ours / LOG, party_log(kit)
    log.touch()
    at, heard = log.stat().st_size, 0
    process, listener = start(kit), Listener()

    def note(line: str) -> None:
        if (found := listener.heard(line)) is not None:
            words.info("%s", found)

    asked: list[int] = []
    before = {number: signal.signal(number, lambda n, _: asked.append(n)) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        while process.poll() is None and not asked:
            time.sleep(_LOOK)
            heard = _told(kit.ours / NVFLARE_LOG, heard, note)
            at = _told(log, at, tell)
        if not asked:
            tell(f"NVFlare ended by itself (exit code {process.returncode}); see {kit.ours / NVFLARE_LOG}")
    finally:
        stop(process)
        (kit.ours / PID).unlink(missing_ok=True)
        _told(kit.ours / NVFLARE_LOG, heard, note)
        _told(log, at, tell)
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0 if asked else process.returncode or 1


def _told(log: Path, at: int, tell: Callable[[str], None]) -> int:
    """Tell whole lines after position ``at``; the new position."""
    with log.open("rb") as file:
        file.seek(at)
        news = file.read()
    whole = news[: news.rfind(b"\n") + 1]
    for line in whole.decode(errors="replace").splitlines():
        tell(line)
    return at + len(whole)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


if __name__ == "__main__":
    folder, kind = sys.argv[1:]
    sys.exit(attend(Kit.load(Path(folder), cast(Kind, kind)), lambda line: None))
