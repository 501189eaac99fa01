"""The one loop over the rounds of a run, in the simulator and on a federation; its clock, and Ctrl-C.

    set up -> ready -> for each round: ledger line, step, checkpoint, evaluate, record -> private metrics

An engine brings :class:`Rounds`, whose parts are generators: they yield messages to carry and are sent the answers. The
simulator has none to carry. A run brings :class:`Hooks`, for what it writes down and who may interrupt it.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import jax.monitoring

from tacit.engine.evaluate import Scores
from tacit.errors import Forbidden
from tacit.planning.plan import Plan

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


class Interruption:
    """``with Interruption() as stop: …`` makes ``stop.asked`` true on the first Ctrl-C; the next one raises.

    An exception in the middle of whatever the interpreter is doing can be swallowed by code that must not fail (a
    destructor, a callback of a library); a flag that is looked at between rounds cannot. Outside the main thread, where
    signals do not arrive, this does nothing.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


Found = TypeVar("Found")
Answers = Mapping[str, bytes | None]
# yields what to send to whom, is sent the answers (None: no answer in time)
Part = Generator[dict[str, bytes], Answers, Found]
Constants = tuple[list[float], list[float]]  # means and scales, one of each per numeric column
Status = Literal["finished", "stopped", "budget", "diverged"]


class Diverged(Exception):
    """After a round the model is no longer finite."""


class RoundsEnded(NamedTuple):
    """How the rounds ended.

    finished   all rounds are done
    stopped    the user interrupted
    budget     the next round would exceed the privacy budget
    diverged   the model is no longer finite; the last finite one stands

    ``metrics`` are private metrics, where they were released.
    """

    status: Status
    reason: str = ""
    metrics: Scores | None = None


class Hooks:
    """What a run does around its rounds; nothing, unless a subclass says otherwise.

    ``interruptible``: whether a KeyboardInterrupt ends the rounds, with the state of the last whole one.
    """

    interruptible = False

    def before_statistics(self) -> Constants | None:
        """Write the ledger line of private constants; or return those that were released before."""
        return None

    def after_statistics(self, constants: Constants) -> None:
        """Write down constants that have been released."""

    def ready(self) -> None:
        """Setup has ended. Check what was released before, and evaluate the start."""

    def stops(self) -> bool:
        """Whether the user has asked for an end after the round at hand."""
        return False

    def before_round(self, number: int) -> None:
        """Write the ledger line of a round; Forbidden, and nothing written, where the budget does not allow it."""

    def after_round(self, number: int, participants: int) -> None:
        """Checkpoint, evaluate and record a round; Diverged where the model is not finite."""

    def before_metrics(self, status: Status) -> bool:
        """Write the ledger line of private metrics; False where they are known or not allowed."""
        return status == "finished"


class Rounds(Protocol):
    """The rounds of a run on one engine; ``done`` of them are done."""

    plan: Plan
    done: int

    def set_up(self, hooks: Hooks) -> Part[None]:
        """All that comes before the first round, private constants included."""

    def step(self, number: int) -> Part[int]:
        """One round, of which the ledger line is written. How many took part, as far as that is public."""

    def metrics(self) -> Part[Scores | None]:
        """Private metrics, of which the ledger line is written; None where they failed."""


def loop(rounds: Rounds, hooks: Hooks) -> Part[RoundsEnded]:
    """All rounds that are left."""
    yield from rounds.set_up(hooks)
    plan, status, reason = rounds.plan, "stopped", ""
    try:
        hooks.ready()
        while rounds.done < plan.rounds and not hooks.stops():
            number = rounds.done + 1
            try:
                hooks.before_round(number)
            except Forbidden as error:
                status, reason = "budget", str(error)
                break
            participants = yield from rounds.step(number)
            hooks.after_round(number, participants)
    except Diverged as error:
        return RoundsEnded("diverged", str(error))
    except KeyboardInterrupt:
        if not hooks.interruptible:
            raise
    ended: Status = "finished" if rounds.done == plan.rounds else "budget" if status == "budget" else "stopped"
    metrics = None
    if plan.evaluation is not None and hooks.before_metrics(ended):
        metrics = yield from rounds.metrics()
    return RoundsEnded(ended, reason, metrics)


def local(work: Callable[..., Found]) -> Callable[..., Part[Found]]:
    """``work`` as a part that sends nothing."""

    @wraps(work)
    def part(*given: Any) -> Part[Found]:
        yield from ()
        return work(*given)

    return part


def driven(part: Part[Found], carry: Callable[[dict[str, bytes]], Answers]) -> Found:
    """What a part comes to; ``carry`` takes what to send to whom, and gives the answers."""
    try:
        told = next(part)
        while True:
            told = part.send(carry(told))
    except StopIteration as end:
        found: Found = end.value
        return found


def done_here(part: Part[Found]) -> Found:
    """What a part comes to that sends nothing."""

    def no_carrier(told: dict[str, bytes]) -> Answers:
        raise AssertionError(f"messages to {', '.join(told)} in one process")

    return driven(part, no_carrier)
