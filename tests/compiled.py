"""All programs that all tests compile exceed the memory maps that Linux allows a process: sometimes it forgets them."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

# Memory maps of a process above which it forgets what it compiled: a third of those that Linux allows.
MOST_MAPS = 20_000


def forget_compiled() -> None:
    import jax

    from tacit.engine import kernel

    kernel.kernels.cache_clear()
    kernel._compiled.cache_clear()
    jax.clear_caches()
    gc.collect()


def forget_if_too_much() -> None:
    if "jax" in sys.modules and maps() > MOST_MAPS:
        forget_compiled()


def maps() -> int:
    """How many memory maps this process has; more than are allowed where that is not known."""
    try:
        return Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:
        return MOST_MAPS + 1
