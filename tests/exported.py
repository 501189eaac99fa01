"""A table as a hospital's system exports it: ids, dates, gaps, categories, latin-1, semicolons, decimal commas."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

PEOPLE, ROWS = 1500, 3000
CLINICS = np.array(["Köln", "Bonn", "Düren", "Trier"])


def exported() -> pd.DataFrame:
    """Stays of people in clinics; one in ten is not in the person's own clinic. ``wieder`` says who comes back."""
    rng = np.random.default_rng(5)
    who, day = rng.integers(0, PEOPLE, ROWS), rng.integers(0, 900, ROWS)
    age, home = rng.integers(18, 95, PEOPLE)[who], rng.integers(0, len(CLINICS), PEOPLE)[who]
    clinic = np.where(rng.random(ROWS) < 0.1, (home + 1) % len(CLINICS), home)
    weight, pressure = rng.normal(26, 4, PEOPLE)[who], rng.normal(130, 18, ROWS)
    arrival = rng.choice(["geplant", "Notfall", "Überweisung"], ROWS, p=[0.5, 0.3, 0.2])
    logit = 0.05 * (age - 55) + 0.12 * (weight - 26) + 0.8 * (arrival == "Notfall") + 0.03 * (pressure - 130) - 0.5
    back = rng.random(ROWS) < 1 / (1 + np.exp(-logit))
    made = pd.DataFrame(
        {
            "Fallnummer": np.arange(ROWS) + 700_000,
            "Patient": [f"P{k:05d}" for k in who],
            "Versicherung": [f"V{7 * k:06d}" for k in who],
            "Klinik": CLINICS[clinic],
            "Aufnahme": (pd.Timestamp("2021-01-01") + pd.to_timedelta(day, unit="D")).strftime("%d.%m.%Y"),
            "Alter": age,
            "BMI": weight.round(1),
            "Blutdruck": pressure.round(),
            "Zugang": arrival,
            "Kommentar": [f"Text {k % 997}" for k in range(ROWS)],
            "Risiko_pred": (1 / (1 + np.exp(-logit - rng.normal(0, 0.3, ROWS)))).round(3),
            "Grund": np.where(back, "Wiederaufnahme", "-"),
            "wieder": np.where(back, "ja", "nein"),
        }
    )
    for column, share in (("BMI", 0.12), ("Zugang", 0.05), ("wieder", 0.01)):
        made.loc[rng.random(ROWS) < share, column] = None
    return made


def write_export(path: Path) -> Path:
    exported().to_csv(path, index=False, sep=";", encoding="latin-1", decimal=",")
    return path
