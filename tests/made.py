"""Small made data: a table, and an experiment on it."""

from __future__ import annotations

import numpy as np
import pandas as pd


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
