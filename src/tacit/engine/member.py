"""One process of a training that several processes share: what :mod:`tacit.engine.supervisor` starts.

Its orders come on standard input, which stays open: where it ends, the supervisor has ended, and so does this process.
What it tells (progress, warnings, errors) goes to the standard output that it was started with.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import jax
import numpy as np

from tacit.engine.evaluate import Numbers
from tacit.engine.process_group import ProcessGroup, join
from tacit.engine.run import run, take_part
from tacit.errors import Deprecated, Note, TacitError
from tacit.planning.plan import Plan
from tacit.privacy import Randomness


@dataclass(frozen=True, repr=False)
class Orders:
    """What a process is to do.

    address    where the first process listens for the others
    processes  the place of this process among all
    key        of the run's randomness, where it has no seed and all processes are on this machine
    options    those of :func:`tacit.engine.run.run`
    """

    plan: Plan
    address: str
    processes: ProcessGroup
    key: bytes | None
    options: dict[str, Any]

    def randomness(self) -> Randomness:
        """The same in all processes; between machines, a key without a seed is that of the first one."""
        if self.plan.experiment.seed is not None or self.key is not None:
            return Randomness(self.key) if self.key else Randomness.from_seed(self.plan.experiment.seed)
        return Randomness(self.processes.told(np.frombuffer(os.urandom(32), np.uint32)).tobytes())


class MemberEvent(NamedTuple):
    """What a process tells its supervisor: a ``kind`` (progress, warning, folder, error) and what belongs to it."""

    kind: str
    content: Any


class Channel:
    """To the supervisor, and the progress that is shown there."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def tell(self, kind: str, *content: Any) -> None:
        pickle.dump(MemberEvent(kind, content), self._file)
        self._file.flush()

    def begin(self, what: str, rounds: int, done: int) -> None:
        self.tell("progress", "begin", what, rounds, done)

    def advance(self, number: int, metrics: Numbers) -> None:
        self.tell("progress", "advance", number, metrics)

    def end(self) -> None:
        self.tell("progress", "end")


def main() -> None:
    """Do as ordered. The exit code is 0, or 1 after an error, which has been told."""
    channel = Channel(os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)  # libraries print to standard output
    orders: Orders = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_supervisor, daemon=True).start()
    if orders.processes.place:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first process ends the rounds of all
    else:
        warnings.showwarning = lambda message, category, *where, **more: _warned(channel, message, category)
    try:
        join(orders.address, orders.processes)
        _work(orders, channel)
        jax.distributed.shutdown()
    except BaseException as error:
        _tell_error(channel, error)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # no shutdown: it would wait for the others


def _work(orders: Orders, channel: Channel) -> None:
    plan, processes = orders.plan, orders.processes
    if processes.place:
        take_part(plan, orders.randomness(), processes)
    else:
        finished = run(plan, randomness=orders.randomness(), processes=processes, progress=channel, **orders.options)
        channel.tell("folder", Path(finished.path))


def _end_with_supervisor() -> None:
    os.read(0, 1)  # not of sys.stdin, whose lock Python takes when it ends
    os._exit(1)


def _warned(channel: Channel, message: Warning | str, category: type[Warning]) -> None:
    if issubclass(category, Deprecated | Note):
        channel.tell("warning", str(message), category)


def _tell_error(channel: Channel, error: BaseException) -> None:
    """Errors of Tacit as they are; that memory is short, or an interruption; of others, their type alone."""
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        channel.tell("error", MemoryError())
    elif isinstance(error, TacitError | OSError | KeyboardInterrupt):
        channel.tell("error", error)
