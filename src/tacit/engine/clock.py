"""Where the seconds of a run go. Compilation is told apart from the work during which it happened."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax.monitoring

_intervals: list[tuple[float, float]] = []
_lock = threading.Lock()


def _listen(event: str, duration_secs: float, **_: Any) -> None:
    """Collect tracing, lowering and compiling as intervals; they may nest and, from two threads, overlap."""
    if "/compile/" not in event and "/compilation_cache/" not in event:
        return
    end = time.perf_counter()
    with _lock:
        _intervals.append((end - duration_secs, end))


jax.monitoring.register_event_duration_secs_listener(_listen)


def compile_seconds(since: float) -> float:
    """Seconds of this process after the moment ``since`` (of ``time.perf_counter``) in which something was compiled."""
    with _lock:
        recent = sorted((max(start, since), end) for start, end in _intervals if end > since)
    total, reached = 0.0, since
    for start, end in recent:
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


class Clock:
    """Seconds by phase: ``with clock("train"): …``; compilation inside a phase is counted as ``compile`` instead."""

    def __init__(self, before: Mapping[str, float] | None = None) -> None:
        """``before``: the seconds of an interrupted run that goes on."""
        self._spent: dict[str, float] = defaultdict(float, before or {})
        self._start = time.perf_counter() - self._spent.pop("total", 0.0)

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            compiling = compile_seconds(start)
            self._spent["compile"] += compiling
            self._spent[phase] += time.perf_counter() - start - compiling

    def move(self, seconds: float, source: str, target: str) -> None:
        """Count ``seconds`` that were spent inside ``source`` as ``target``."""
        self._spent[source] -= seconds
        self._spent[target] += seconds

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self._start

    def seconds(self) -> dict[str, float]:
        """The contract's form: compile, train, evaluate, exchange, total; and ``ledger``, the writing of everything
        that must be on disk before a run goes on (lines of the ledger, of the metrics, checkpoints)."""
        phases = ("compile", "train", "evaluate", "exchange", "ledger")
        return {**{phase: round(self._spent[phase], 4) for phase in phases}, "total": round(self.elapsed, 4)}
