"""Each cell compiles programs of its own: kept, they would exceed the memory maps that a process may have."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import jax
import pytest

from tacit.engine import kernel


@pytest.fixture(autouse=True)
def forgets_what_was_compiled() -> Iterator[None]:
    yield
    kernel.kernels.cache_clear()
    kernel._compiled.cache_clear()
    jax.clear_caches()
    gc.collect()
