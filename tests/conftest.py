"""Shared by all tests: a quick, deterministic JAX and small made data."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

# Compiled kernels are kept between test runs; set before JAX is imported anywhere.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(tempfile.gettempdir()) / "tacit-test-compiled"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")

import pandas as pd
import pytest
from hypothesis import settings

from tests import made
from tests.compiled import forget_if_too_much
from tests.levels import level_of

# The first example of a property may compile a kernel: time is no property here.
settings.register_profile("tacit", deadline=None)
settings.load_profile("tacit")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow") is None:
            file = PurePosixPath(item.path.relative_to(Path(__file__).parent).as_posix())
            level = level_of(file)
            if level is None:
                raise pytest.UsageError(f"tests/levels.py names no level for tests/{file.parent}")
            item.add_marker(level)


@pytest.fixture(autouse=True, scope="module")
def forgets_when_too_much_is_compiled() -> Iterator[None]:
    yield
    forget_if_too_much()


@pytest.fixture
def visits() -> pd.DataFrame:
    return made.visits()


@pytest.fixture
def experiment() -> dict:
    return made.experiment()
