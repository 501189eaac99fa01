from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.neighbours.engines import forget_compiled

# Memory maps of a process above which it forgets what it compiled: a third of those that Linux allows.
MOST_MAPS = 20_000


@pytest.fixture(autouse=True)
def forgets_when_there_is_too_much() -> Iterator[None]:
    yield
    if maps() > MOST_MAPS:
        forget_compiled()


@pytest.fixture(autouse=True, scope="module")
def leaves_nothing_compiled() -> Iterator[None]:
    yield
    forget_compiled()


def maps() -> int:
    """How many memory maps this process has; more than are allowed where nobody knows."""
    try:
        return Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:
        return MOST_MAPS + 1
