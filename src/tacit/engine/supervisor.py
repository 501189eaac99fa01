"""A training in several processes: start them, show their progress, and end all of them where one fails.

The processes are new programs (:mod:`tacit.engine.member`), the first one included: a member that dies can take others
with it (JAX's runtime aborts), and this process is left to say what happened. Orders, with the key of the run's
randomness, travel over a pipe: neither arguments nor environment nor files hold the key.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tacit.engine.loop import Interruption
from tacit.engine.process_group import LOOPBACK, ProcessGroup
from tacit.engine.worker import Worker
from tacit.errors import UserError
from tacit.methods.base import LocalWork
from tacit.names import load
from tacit.planning.plan import Plan

FIELD = "engine.processes"
# The seconds for which others may say why they ended, once one has.
GRACE = 1.0
PROGRAM = "from tacit.engine.member import main; main()"


class MachinePlace(NamedTuple):
    """Processes on several machines: the ``address`` (host:port) of the first one, and the ``place`` of this one."""

    address: str
    place: int


class Shows(Protocol):
    """Shows how a run goes (``engine.run.Progress``)."""

    def begin(self, what: str, rounds: int, done: int) -> None: ...
    def advance(self, number: int, metrics: Any) -> None: ...
    def end(self) -> None: ...


def check_shared(plan: Plan) -> None:
    """Refuse a method whose work is not a sum over subjects or silos, or whose silos keep something between rounds."""
    method, exchange = plan.method, plan.exchange
    worker: type[Worker] = load(method.work.worker)
    fix = "set it to 1"
    if exchange.carries != "sum":
        problem = f"the {exchange.name} exchange runs in one process"
        raise UserError("not-supported", FIELD, problem, f"use the plain exchange, or {fix}")
    keeps = type(method.work).state is not LocalWork.state
    if keeps or not worker.is_shared or method.info.gathers != "nothing":
        problem = f"{method.name} runs in one process: its work is not a sum over subjects or silos"
        raise UserError("not-supported", FIELD, problem, f"{fix}, or use a method that sends sums")


def check_coordinator(plan: Plan, coordinator: MachinePlace) -> None:
    """Refuse an address without a port, and a place that the group does not have."""
    count = plan.experiment.engine.processes
    host, _, port = coordinator.address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        problem = f"'{coordinator.address}' is no address"
        raise UserError("malformed", "--coordinator", problem, "write host:port, such as 10.0.0.1:4000")
    if not 0 <= coordinator.place < count:
        problem = f"must be between 0 and {count - 1} (got {coordinator.place})"
        raise UserError("out-of-range", "--process-id", problem, "engine.processes is the number of all processes")


def run_shared(
    plan: Plan, options: Mapping[str, Any], progress: Shows, coordinator: MachinePlace | None = None
) -> Path | None:
    """The folder of the run; None on a machine that has no first process. ``options`` are those of ``engine.run``."""
    check_shared(plan)
    count = plan.experiment.engine.processes
    if coordinator is not None:
        check_coordinator(plan, coordinator)
    address = f"{LOOPBACK}:{_free_port()}" if coordinator is None else coordinator.address
    places = range(count) if coordinator is None else [coordinator.place]
    key = os.urandom(32) if coordinator is None and plan.experiment.seed is None else None
    with _started(places) as members, Interruption() as stop:
        for member in members:
            member.order((plan, address, ProcessGroup(member.place, count), key, dict(options)))
        return _followed(members, progress, stop)


class Member:
    """A process, and what it tells."""

    def __init__(self, place: int, events: queue.Queue[tuple[Member, Any]]) -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self.place, self._events = place, events
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C arrives here alone
        )
        self.last_line = ""  # on standard error
        self.error: BaseException | None = None
        for work in (self._listen, self._read_errors):
            threading.Thread(target=work, daemon=True).start()

    def order(self, content: tuple[Any, ...]) -> None:
        from tacit.engine.member import Orders

        assert self.process.stdin is not None
        try:
            pickle.dump(Orders(*content), self.process.stdin)
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, which is an event

    def _listen(self) -> None:
        assert self.process.stdout is not None
        while True:
            try:
                self._events.put((self, pickle.load(self.process.stdout)))
            except (EOFError, pickle.UnpicklingError):
                break
        self._events.put((self, self.process.wait()))

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.last_line = line.decode(errors="replace").strip() or self.last_line

    @property
    def ending(self) -> str:
        """How it ended, for an error that it did not tell."""
        code = self.process.returncode
        if code < 0:
            return f"process {self.place} was ended by {signal.Signals(-code).name}"
        return f"process {self.place} ended with exit code {code} ({self.last_line[:200]})"


@contextmanager
def _started(places: Any) -> Iterator[list[Member]]:
    """The processes at these places, of which none is left after the block."""
    members: list[Member] = []
    events: queue.Queue[tuple[Member, Any]] = queue.Queue()
    try:
        for place in places:
            members.append(Member(place, events))
        yield members
    finally:
        for member in members:
            member.process.kill()
            member.process.wait()


def _followed(members: list[Member], progress: Shows, stop: Interruption) -> Path | None:
    """Show what the members tell until all have ended; the first Ctrl-C ends the rounds, the second everything."""
    events, left, folder, asked = members[0]._events, set(members), None, False
    while left:
        if stop.asked and not asked:
            asked = True
            members[0].process.send_signal(signal.SIGINT)
        try:
            member, told = events.get(timeout=0.2)
        except queue.Empty:
            continue
        if isinstance(told, int):
            left.discard(member)
            if told != 0:
                raise _reason(members, member)
        elif told.kind == "progress":
            getattr(progress, told.content[0])(*told.content[1:])
        elif told.kind == "warning":
            message, category = told.content
            warnings.warn(message, category, stacklevel=2)
        elif told.kind == "folder":
            folder = told.content[0]
        else:
            member.error = told.content[0]
    return folder


def _reason(members: list[Member], ended: Member) -> BaseException:
    """Why a member ended: an error that it told, or that of another, which may have ended first."""
    time.sleep(GRACE)
    while True:
        try:
            member, told = ended._events.get_nowait()
        except queue.Empty:
            break
        if not isinstance(told, int) and told.kind == "error":
            member.error = told.content[0]
    for member in (ended, *members):
        if member.error is not None:
            return member.error
    # who was killed comes before who lost the connection to it
    gone = [member for member in members if member.process.poll() not in (None, 0, -signal.SIGABRT)]
    culprit = min(gone or [ended], key=lambda member: member.process.returncode)
    fix = "look for a lack of memory or a lost connection, then continue with --resume if a run folder was made"
    return UserError("process-ended", FIELD, culprit.ending, fix)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
