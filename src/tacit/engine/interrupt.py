"""Ctrl-C as a wish: the first one ends a run after the round at hand, the second one at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class Interruption:
    """``with Interruption() as wish: …`` makes ``wish.asked`` true on the first Ctrl-C; the next one raises.

    An exception in the middle of whatever the interpreter is doing can be swallowed by code that must not fail (a
    destructor, a callback of a library); a flag that is looked at between rounds cannot. Outside the main thread, where
    signals do not arrive, this does nothing.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
