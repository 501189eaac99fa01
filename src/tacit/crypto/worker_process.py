"""Work in other processes: one process does not multiply long integers, or seal messages, in parallel.

A worker is a program that runs :func:`serve`: it gets one piece of work on its standard input, answers on its standard
output and ends. It is started as a new program, not forked: the caller may have threads (JAX has).
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any, TypeVar

Result = TypeVar("Result")


def shared(function: Callable[..., Result], pieces: Sequence[tuple[Any, ...]]) -> list[Result]:
    """``function(*piece)`` of every piece, the first in this process and each of the others in one of its own.

    ``function`` is one of a module's, by whose name it is found again; pieces and results are plain values.
    """
    if len(pieces) == 1:
        return [function(*pieces[0])]
    with ThreadPoolExecutor(len(pieces) - 1) as pool:
        others = [pool.submit(_elsewhere, function.__module__, function.__name__, piece) for piece in pieces[1:]]
        return [function(*pieces[0]), *(other.result() for other in others)]


def _elsewhere(module: str, name: str, piece: tuple[Any, ...]) -> Any:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run(
        [sys.executable, "-c", "from tacit.crypto.worker_process import serve; serve()"],
        input=pickle.dumps((module, name, piece)),
        stdout=subprocess.PIPE,
        env=environment,
        check=True,
    )
    result, error = pickle.loads(done.stdout)
    if error is not None:
        raise error
    return result


def serve() -> None:
    """What the other process does: the result, or the error that it ended with."""
    module, name, piece = pickle.load(sys.stdin.buffer)
    answer: tuple[Any, Exception | None]
    try:
        answer = getattr(import_module(module), name)(*piece), None
    except Exception as error:
        answer = None, error
    sys.stdout.buffer.write(pickle.dumps(answer))
