"""How much of others' messages, and of messages to others, a process holds at a time.

NVFlare 2.9.0 takes the memory that the first message of a stream declares, up to 4 GB. :class:`Streams` counts what is
declared and what has arrived, before NVFlare sees a message. Main processes get jobs and commands; the process of a job
gets no more, until it knows the plan of its run and is told what that needs (:meth:`FrameLimit.widen`). What a party
does not read waits in its connections, up to a bound (:class:`Unread`).
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

MOST_BYTES: Final = 4 << 20  # of a message or a stream
MOST_FRAME: Final = 5 << 20  # of what the transport receives in one piece, headers included
MOST_ARRIVED: Final = 64 << 20  # bytes of a party that have arrived and are not worked on yet
AT_ONCE: Final = 8  # streams of MOST_BYTES of one sender that are open, or two of the largest
MOST_OPEN: Final = 16  # streams of one sender that are open, of any size: each holds a thread
MOST_UNREAD: Final = 320 << 20  # bytes for a party of runs: 4 jobs, each with one window of NVFlare's streams (64 MB)
MOST_UNREAD_ANSWERS: Final = 32 << 20  # bytes for a requester: results come in parts of 5 MB, each asked for
Stream = tuple[object, object]  # its origin and number
_GRACE = 1.0  # seconds between the first message of a stream and NVFlare's knowledge of it


class FrameLimit:
    """The largest message or stream that is accepted, in bytes."""

    def __init__(self) -> None:
        self.most = MOST_BYTES

    def widen(self, most: int) -> None:
        self.most = max(self.most, most)


PROCESS: Final = FrameLimit()  # of this process


class Places:
    """A limited number of places for each party."""

    def __init__(self, most: int) -> None:
        self._most, self._taken, self._lock = most, Counter[str](), threading.Lock()

    @contextmanager
    def of(self, party: str) -> Iterator[bool]:
        """Take a place; whether there was one."""
        with self._lock:
            self._taken[party] += 1
            is_free = self._taken[party] <= self._most
        try:
            yield is_free
        finally:
            with self._lock:
                self._taken[party] -= 1
                self._taken += Counter()  # forget those without any


class Unread:
    """Bytes that wait to be sent, by party and connection."""

    def __init__(self) -> None:
        self._waiting: dict[str, Counter[int]] = {}
        self._lock = threading.Lock()

    def takes(self, party: str, connection: int, length: int) -> bool:
        """Count bytes for a connection; whether they are few enough, together with all that waits for the party."""
        most = MOST_UNREAD_ANSWERS if "@" in party else MOST_UNREAD
        with self._lock:
            own = self._waiting.setdefault(party, Counter())
            if own and own.total() + length > most:  # a single message may be as large as it is
                return False
            own[connection] += length
        return True

    def sent(self, party: str, connection: int, length: int | None = None) -> None:
        """Bytes have left; without a number, all that wait for the connection."""
        with self._lock:
            own = self._waiting.get(party, Counter())
            own[connection] -= own[connection] if length is None else min(length, own[connection])
            if not own[connection]:
                del own[connection]
            if not own:
                self._waiting.pop(party, None)


class Arrived:
    """Bytes that have arrived from a party and are not worked on yet."""

    def __init__(self, most: int = MOST_ARRIVED) -> None:
        self._most, self._waiting, self._changed = most, Counter[str](), threading.Condition()

    def wait(self, party: str, length: int) -> None:
        """Count bytes, as soon as there is room for them; a single message may be as large as it is."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting[party] or self._waiting[party] + length <= self._most)
            self._waiting[party] += length

    def done(self, party: str, length: int) -> None:
        with self._changed:
            self._waiting[party] -= length
            self._waiting += Counter()  # forget those without any
            self._changed.notify_all()


class Streams:
    """The streams that are open in this process. ``is_open`` says whether NVFlare still receives one."""

    def __init__(
        self,
        is_open: Callable[[Stream], bool],
        bound: FrameLimit,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_open, self._bound, self._clock, self._lock = is_open, bound, clock, threading.Lock()
        # by sender, then by origin and number: bytes that are declared, bytes that have arrived, when it began
        self._open: dict[str, dict[Stream, tuple[int, int, float]]] = {}

    def takes(
        self, sender: str, stream: Stream | None, declared: object, length: int, most_alone: int | None = None
    ) -> bool:
        """Whether a message of this length is taken, which is part of a stream (by origin and number) or of none. One
        of none has at most ``most_alone`` bytes, if given."""
        most = self._bound.most
        if stream is None:
            return length <= (most if most_alone is None else most_alone)
        if length > most:
            return False
        if not all(isinstance(word, str | int) for word in stream) or type(declared) is not int or declared < 0:
            return False
        with self._lock:
            own = self._open.setdefault(sender, {})
            if stream not in own:
                self._forget_ended(own)
                if len(own) >= MOST_OPEN:
                    return False
            before, arrived, began = own.get(stream, (0, 0, self._clock()))
            known = (max(before, declared), arrived + length, began)
            others = sum(max(one[:2]) for key, one in own.items() if key != stream)
            if max(known[:2]) > most or max(known[:2]) + others > max(2 * most, AT_ONCE * MOST_BYTES):
                return False
            own[stream] = known
        return True

    def handled(self, sender: str, stream: Stream) -> None:
        """NVFlare has a message of a stream, which may have ended with it."""
        with self._lock:
            own = self._open.get(sender, {})
            if stream in own and not self._is_open(stream):
                del own[stream]
            if not own:
                self._open.pop(sender, None)

    def _forget_ended(self, own: dict[Stream, tuple[int, int, float]]) -> None:
        now = self._clock()
        ended = [key for key, one in own.items() if now - one[2] > _GRACE and not self._is_open(key)]
        for key in ended:
            del own[key]
