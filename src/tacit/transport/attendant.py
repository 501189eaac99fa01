"""The attendant of a server, a silo or the analyzer: it starts NVFlare's process from a kit, reports, and stops it.

``python -m tacit.transport.attendant KIT [--tell]`` stays for as long as the party runs, so it imports the standard
library alone: with JAX, an idle party would take hundreds of MB. NVFlare's process ends when its attendant has ended.

process.lock  locked (flock) by NVFlare's process for as long as it lives: one party per kit
process.pid   the number of that process, for people
log.txt       what happens to runs, in one line each
nvflare.log   what NVFlare prints, over all starts; a line marks each start. Above 10 MB its text goes to nvflare.log.1
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from tacit.escape import escaped
from tacit.transport.log import LOG, OURS, Refusals, log_of

NVFLARE_LOG, PID, LOCK, KIT = "nvflare.log", "process.pid", "process.lock", "kit.json"
LOCK_VARIABLE = "TACIT_LOCK"  # tells NVFlare's process which descriptor is its lock
MOST_LOG_BYTES = 10_000_000  # of nvflare.log, before its text is moved to nvflare.log.1
_STARTED = "==== started by Tacit at "
_LOOK = 0.2  # seconds between two looks at the logs
TIMEOUT = 15  # seconds in which a process must end by itself
# gRPC prints connections that TLS has rejected past Python's logging. NVFlare's own lines, which may quote other
# parties, begin with a time or with spaces (`log.escape_records`), so none of them looks like one of gRPC's.
_HANDSHAKE = re.compile(
    r"[EWI]\d{4} [\d:. ]+ ssl_transport_security\.cc:\d+\] Handshake failed with error SSL_ERROR_SSL: "
    r"error:[0-9a-f]+:SSL routines:OPENSSL_internal:(.+)"
)
_ISSUER = r"unable to get (?:local )?issuer certificate|self.signed certificate.*|certificate signature failure"
_REASONS = {
    r"PEER_DID_NOT_RETURN_A_CERTIFICATE": "it shows no certificate",
    r"CERTIFICATE_VERIFY_FAILED: certificate has expired": "its certificate has expired",
    r"CERTIFICATE_VERIFY_FAILED: certificate is not yet valid": "its certificate is not valid yet",
    rf"CERTIFICATE_VERIFY_FAILED: (?:{_ISSUER})": "its certificate is of another authority",
    r"CERTIFICATE_VERIFY_FAILED: (.+)": "its certificate is not accepted ({0})",
}


class AlreadyRunning(Exception):
    """The party of a kit runs already."""


def organisation(name: str) -> str:
    """A name as NVFlare wants organisations to be called."""
    return re.sub(r"\W", "_", name, flags=re.ASCII)


def command(kit: Path) -> list[str]:
    """How NVFlare is started from a kit: by Tacit's own program, which closes what a run does not need."""
    party = _party(kit)
    is_server = party["kind"] == "server"
    program = "server" if is_server else "client"
    start = [sys.executable, "-P", "-m", "tacit.transport", program, "-m", str(kit), "-s", f"fed_{program}.json"]
    of = organisation(party["federation"] if is_server else party["name"])
    who = [] if is_server else [f"uid={party['name']}"]
    return [*start, "--set", "secure_train=true", f"org={of}", "config_folder=config", *who]


def _party(kit: Path) -> dict[str, str]:
    party: dict[str, str] = json.loads((kit / OURS / KIT).read_text(encoding="utf-8"))
    return party


def check_idle(kit: Path) -> None:
    """AlreadyRunning where the party of this kit runs."""
    os.close(_locked(kit))


def _locked(kit: Path) -> int:
    """A descriptor of the kit's lock file, locked until the last process that holds the descriptor ends."""
    descriptor = os.open(kit / OURS / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise AlreadyRunning(f"it runs already{_number(kit)}") from None
    return descriptor


def _number(kit: Path) -> str:
    file = kit / OURS / PID
    return f" (process {escaped(file.read_text().strip(), 20)})" if file.is_file() else ""


def start(kit: Path) -> subprocess.Popen[bytes]:
    """Start NVFlare's process of a kit, which holds the lock from then on."""
    lock = _locked(kit)
    try:
        log = kit / OURS / NVFLARE_LOG
        with log.open("ab") as output:
            bound(log)
            output.write(f"{_STARTED}{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} ====\n".encode())
            output.flush()
            process = subprocess.Popen(
                command(kit),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=kit,
                start_new_session=True,
                pass_fds=(lock,),
                env={**os.environ, LOCK_VARIABLE: str(lock)},
            )
    finally:
        os.close(lock)
    (kit / OURS / PID).write_text(f"{process.pid}\n")
    return process


def bound(log: Path, most: int = MOST_LOG_BYTES) -> None:
    """Move the text of a log that is too long to ``….1``. The file stays: NVFlare's process appends to it."""
    if log.stat().st_size > most:
        shutil.copyfile(log, log.with_name(f"{log.name}.1"))
        os.truncate(log, 0)


def joined(kit: Path) -> bool:
    """Whether the process of a silo, or the analyzer's, has been accepted by the server since it was started."""
    log = kit / OURS / NVFLARE_LOG
    return log.is_file() and b"Successfully registered client" in log.read_bytes().rpartition(_STARTED.encode())[2]


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process that :func:`start` began, and with it those that work on its runs (they watch it)."""
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Tail:
    """Reads whole lines that are appended to a log, also after it was rotated: cut to nothing, or replaced.

    A log that was cut is read from its start again. Of one that was replaced, the rest of the old file is read first;
    ``follows_name = False`` stays with the old one (NVFlare's process continues to write there).
    """

    def __init__(self, log: Path, *, from_end: bool = True, follows_name: bool = True) -> None:
        log.touch()
        self._log, self._follows_name = log, follows_name
        self._file = log.open("rb")
        self._at = os.fstat(self._file.fileno()).st_size if from_end else 0

    def lines(self) -> list[str]:
        """The lines that are new since the last call."""
        found = self._read()
        if self._follows_name and self._was_replaced():
            found += self._read()  # what was written between the two looks
            self._file.close()
            self._file, self._at = self._log.open("rb"), 0
            found += self._read()
        return found

    def close(self) -> None:
        self._file.close()

    def _read(self) -> list[str]:
        if os.fstat(self._file.fileno()).st_size < self._at:
            self._at = 0
        self._file.seek(self._at)
        news = self._file.read()
        whole = news[: news.rfind(b"\n") + 1]
        self._at += len(whole)
        return whole.decode(errors="replace").splitlines()

    def _was_replaced(self) -> bool:
        try:
            return not os.path.samestat(os.fstat(self._file.fileno()), self._log.stat())
        except FileNotFoundError:  # moved away, and nothing was written since
            return False


def rejected_connection(line: str) -> str | None:
    """The line of our log for a connection that gRPC reports as rejected; None for every other line."""
    if failed := _HANDSHAKE.match(line):
        for pattern, words in _REASONS.items():
            if found := re.match(pattern, failed[1]):
                return f"refused a connection: {words.format(*found.groups())}"
    return None


def attend(kit: Path, tell: Callable[[str], None]) -> int:
    """Run a kit's process in the foreground and pass on its log, until it ends or Ctrl-C; its exit code.

    What gRPC says in the server's log about connections that it has turned away is written into the kit's log, too.
    """
    is_server = _party(kit)["kind"] == "server"
    refusals = Refusals(log_of(kit))
    log, nvflare_log = Tail(kit / OURS / LOG), Tail(kit / OURS / NVFLARE_LOG, follows_name=False)

    def report() -> None:
        for line in nvflare_log.lines():
            if is_server and (found := rejected_connection(line)) is not None:
                refusals.write("connections", found)
        for line in log.lines():
            tell(line)

    asked: list[int] = []
    before = {number: signal.signal(number, lambda n, _: asked.append(n)) for number in (signal.SIGINT, signal.SIGTERM)}
    process = start(kit)
    try:
        while process.poll() is None and not asked:
            time.sleep(_LOOK)
            report()
            bound(kit / OURS / NVFLARE_LOG)
        if not asked:
            tell(f"NVFlare ended by itself (exit code {process.returncode}); see {kit / OURS / NVFLARE_LOG}")
    finally:
        stop(process)
        (kit / OURS / PID).unlink(missing_ok=True)
        report()
        log.close()
        nvflare_log.close()
        for number, handler in before.items():
            signal.signal(number, handler)
    return 0 if asked else process.returncode or 1


def main(kit: Path, tells: bool) -> int:
    """Attend to a kit; exit code 2 where its process does not start, or ends by itself."""
    try:
        code = attend(kit, (lambda line: print(escaped(line), flush=True)) if tells else lambda line: None)
    except AlreadyRunning as error:
        print(f"error  KIT: {error}; stop that process first", file=sys.stderr)
        return 2
    if code:
        log = kit / OURS / NVFLARE_LOG
        print(f"error  KIT: the process ended with code {code}; see {escaped(log)}", file=sys.stderr)
    return 2 if code else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:] == ["--tell"]))
