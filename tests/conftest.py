"""Shared by all tests: a quick, deterministic JAX and small made data."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

# Compiled kernels are kept between test runs; set before JAX is imported anywhere.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(tempfile.gettempdir()) / "tacit-test-compiled"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")

import numpy as np
import pandas as pd
import pytest
from hypothesis import settings

# The first example of a property may compile a kernel: time is no property here.
settings.register_profile("tacit", deadline=None)
settings.load_profile("tacit")


@pytest.fixture
def visits() -> pd.DataFrame:
    """A made table: 600 rows of 60 people in 3 clinics, two numbers and a category, a learnable binary label."""
    rng = np.random.default_rng(3)
    person = np.repeat(np.arange(60), 10)
    age, pressure = rng.normal(50, 10, 600), rng.normal(130, 15, 600)
    smoker = rng.choice(["no", "yes"], 600)
    score = (age - 50) / 10 + (pressure - 130) / 15 + (smoker == "yes") + rng.normal(0, 0.5, 600)
    return pd.DataFrame(
        {
            "person": person,
            "clinic": np.array(["north", "south", "west"])[(person + (rng.random(600) < 0.2)) % 3],
            "age": age,
            "pressure": pressure,
            "smoker": smoker,
            "ill": (score > 0.5).astype(int),
        }
    )


@pytest.fixture
def experiment() -> dict:
    """An experiment on the made table, as a dictionary."""
    return {
        "title": "Made visits",
        "seed": 5,
        "data": {
            "label": "ill",
            "subjects": {"column": "person"},
            "silos": {"column": "clinic"},
            "numeric": {"age": {"mean": 50, "scale": 10}, "pressure": {"mean": 130, "scale": 15}},
            "categorical": {"smoker": ["no", "yes"]},
        },
        "model": {"name": "logistic"},
        "method": {"name": "fedavg", "batch_size": 16, "local_learning_rate": 0.5},
        "train": {"rounds": 4},
    }
