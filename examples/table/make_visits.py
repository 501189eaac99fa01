"""Made visits of made people at four clinics: nothing in here is about anybody.

    python examples/table/make_visits.py          writes visits.csv beside this file

Some people go to two clinics. Clinics differ in whom they see, and pain is not always written down.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

CLINICS = ("Ash", "Birch", "Cedar", "Dogwood")
ARRIVALS = ("appointment", "walk-in", "ambulance")


def made_visits(people: int = 500, seed: int = 0) -> pd.DataFrame:
    """One row per visit: who, where, what was known on arrival, and whether the person came back within a month."""
    rng = np.random.default_rng(seed)
    visits = 1 + rng.poisson(2.0, people)
    person = np.repeat(np.arange(people), visits)
    home, other = rng.integers(len(CLINICS), size=(2, people))
    clinic = np.where(rng.random(len(person)) < 0.85, home[person], other[person])
    age = np.clip(rng.normal(45 + 6 * home, 16), 18, 95).round()[person]
    pain = rng.integers(0, 11, len(person)).astype(float)
    arrival = rng.choice(len(ARRIVALS), len(person), p=(0.6, 0.3, 0.1))
    frailty = rng.normal(0, 0.7, people)[person]
    score = -1.2 + 0.04 * (age - 50) + 0.25 * (pain - 5) + 0.8 * arrival + frailty
    back = rng.random(len(person)) < 1 / (1 + np.exp(-score))
    pain[rng.random(len(person)) < 0.05] = np.nan
    return pd.DataFrame(
        {
            "person": [f"P{number:04}" for number in person],
            "clinic": np.array(CLINICS)[clinic],
            "age": age.astype(int),
            "pain": pain,
            "arrival": np.array(ARRIVALS)[arrival],
            "back_in_a_month": back.astype(int),
        }
    )


if __name__ == "__main__":
    file = Path(__file__).with_name("visits.csv")
    table = made_visits()
    table.to_csv(file, index=False)
    print(f"{len(table)} visits of {table['person'].nunique()} people: {file}")
