"""Two lanes of work side by side, each with its own sum.

A constant, not the number of cores, so that the order of additions is always the same (the compiler may still round
differently on another machine).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

LANES = 2

Lane = TypeVar("Lane")
Result = TypeVar("Result")


def in_lanes(work: Callable[[Lane], Result], lanes: Sequence[Lane], together: bool = True) -> list[Result]:
    """``work`` of every lane, the first in this thread. Not ``together``: one after the other, so that what they have
    in common is compiled once."""
    if not together:
        return [work(lane) for lane in lanes]
    others = [_threads().submit(work, lane) for lane in lanes[1:]]
    return [work(lanes[0]), *(other.result() for other in others)]


@cache
def _threads() -> ThreadPoolExecutor:
    """Threads that hand the lanes after the first to the device: work from one thread runs one after the other."""
    return ThreadPoolExecutor(LANES - 1, thread_name_prefix="tacit-lane")
