"""Trainings in several processes of this machine, or on an existing Dask cluster.

Both are executors: ``submit(train, trial)`` gives a future. A process of this machine is a new program that gets
trials on its standard input and answers on its standard output; it ends when the caller does, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any, BinaryIO

from tacit.engine.portable import optional
from tacit.errors import UserError

FIX = "run the command again: finished trainings are kept; a lower --jobs needs less memory"


def cores() -> list[int]:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


class _Processes(Executor):
    """A thread and a process for each job at a time; every process has its own part of the cores."""

    def __init__(self, jobs: int) -> None:
        self._local = threading.local()
        self._started: list[subprocess.Popen[bytes]] = []
        self._free: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        known = cores()
        each = max(1, len(known) // jobs)
        for number in range(jobs):
            start = number * each % len(known)
            self._free.put(known[start : start + each])
        self._threads = ThreadPoolExecutor(jobs)

    def submit(self, function: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        return self._threads.submit(self._elsewhere, function, given, named)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End all processes at once; what they were at is lost."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in self._started:
            process.kill()
        for process in self._started:
            process.wait()
        self._threads.shutdown(wait=True)

    def _elsewhere(self, function: Callable[..., Any], given: Any, named: Any) -> Any:
        process = getattr(self._local, "process", None) or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            pickle.dump((function, given, named), process.stdin)
            process.stdin.flush()
            result, error = pickle.load(process.stdout)
        except (OSError, EOFError, ValueError):
            raise UserError("run-failed", "--jobs", "a process ended in the middle of a training", FIX) from None
        if error is not None:
            raise error
        return result

    def _start(self) -> subprocess.Popen[bytes]:
        mine = self._free.get()
        one_thread = {"OMP_NUM_THREADS": str(len(mine)), "OPENBLAS_NUM_THREADS": str(len(mine))}
        environment = os.environ | one_thread | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        code = f"from tacit.studies.study_workers import serve; serve({mine!r})"
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment,
            start_new_session=True,  # Ctrl-C is for the caller alone
        )  # fmt: skip
        self._local.process = process
        self._started.append(process)
        return process


def serve(mine: list[int]) -> None:
    """What a process does: one piece of work after another, until the caller ends. ``mine``: its cores."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(
            0, mine
        )  # before the first use of JAX, which starts a thread for every core that it may use
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print does not get between the answers
    work: queue.SimpleQueue[tuple[Any, Any, Any]] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(sys.stdin.buffer, work), daemon=True).start()
    while True:
        function, given, named = work.get()
        answer: tuple[Any, Exception | None]
        try:
            answer = function(*given, **named), None
        except Exception as error:
            answer = None, error
        pickle.dump(answer, answers)
        answers.flush()


def _receive(stream: BinaryIO, work: queue.SimpleQueue[tuple[Any, Any, Any]]) -> None:
    """Work as it comes. The end of the stream is the end of the caller, and of this process, whatever it is at."""
    while True:
        try:
            work.put(pickle.load(stream))
        except (EOFError, OSError, pickle.UnpicklingError):
            os._exit(1)


@contextlib.contextmanager
def workers(jobs: int, scheduler: str | None = None) -> Iterator[Executor]:
    """Where trainings run: processes of this machine, or the workers of the Dask scheduler at an address."""
    if scheduler is None:
        executor = _Processes(jobs)
        try:
            yield executor
        finally:
            executor.shutdown()
        return
    distributed = optional("distributed", "cluster")
    try:
        client = distributed.Client(scheduler, timeout="20s")
    except (OSError, TimeoutError, ValueError) as error:
        raise UserError("no-answer", "--scheduler", f"'{scheduler}' does not answer ({error})", "start it") from None
    with client:
        yield client.get_executor(pure=False, retries=2)
