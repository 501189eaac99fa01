"""Shared by all tests: a quick, deterministic JAX and small made data."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

# Compiled kernels are kept between test runs; set before JAX is imported anywhere.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(tempfile.gettempdir()) / "tacit-test-compiled"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")

import pandas as pd
import pytest
from hypothesis import settings

from tests import made

# The first example of a property may compile a kernel: time is no property here.
settings.register_profile("tacit", deadline=None)
settings.load_profile("tacit")


@pytest.fixture
def visits() -> pd.DataFrame:
    return made.visits()


@pytest.fixture
def experiment() -> dict:
    return made.experiment()
