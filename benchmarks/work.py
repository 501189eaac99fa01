"""The work of each race: the same numbers, records, silos and rounds for every contestant.

Needs numpy only, so that it runs in any contestant's environment. Papers call the many small participants of race 1
clients; here they are silos, as everywhere in Tacit.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

CLASSES = 10
PIXELS = 784
PIXEL_MEAN, PIXEL_SCALE = 0.1307, 0.3081  # public constants of MNIST, for pixels in 0..1


@dataclass(frozen=True)
class Race:
    """Everything public that a contestant must honour.

    Records are dealt to the silos by a seeded permutation; every local epoch goes through a silo's records in that
    order, in batches of ``batch_size`` (the last one may be smaller), with plain SGD; the server takes the unweighted
    mean of the local models. Pixels are divided by 255, then centred and scaled by MNIST's public constants.
    """

    name: str
    question: str
    silos: int
    records_per_silo: int
    silos_per_round: int
    batch_size: int
    local_epochs: int
    local_learning_rate: float
    rounds: int
    warm_up_rounds: int
    seed: int


CROSS_DEVICE = Race(
    name="race_cross_device",
    question="Logistic regression on MNIST, 1,000 silos, 10 of them per round (FLUTE's public race)",
    silos=1000,
    records_per_silo=60,
    silos_per_round=10,
    batch_size=10,
    local_epochs=1,
    local_learning_rate=0.1,
    rounds=100,
    warm_up_rounds=10,
    seed=2022,
)

CROSS_SILO = Race(
    name="race_cross_silo",
    question="Small CNN on MNIST, 5 silos, all of them in every round",
    silos=5,
    records_per_silo=2000,
    silos_per_round=5,
    batch_size=32,
    local_epochs=1,
    local_learning_rate=0.1,
    rounds=10,
    warm_up_rounds=2,
    seed=2022,
)


class Digits(NamedTuple):
    """MNIST dealt to silos.

    images       [silos, records_per_silo, 28, 28] float32, standardised
    labels       [silos, records_per_silo] int64
    test_images  [10000, 28, 28] float32, standardised
    test_labels  [10000] int64
    """

    images: np.ndarray
    labels: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray


def data_folder(given: str | None) -> Path:
    """The folder with ``mnist.npz``: ``--data``, or the folder ``mnist`` of ``TACIT_DATA``."""
    root = os.environ.get("TACIT_DATA")
    if given is None and root is None:
        raise SystemExit("--data is missing: name the folder that holds mnist.npz, or set TACIT_DATA to its parent")
    folder = Path(given) if given is not None else Path(str(root)) / "mnist"
    if not (folder / "mnist.npz").is_file():
        raise SystemExit(f"--data: no mnist.npz in {folder}; name the folder that holds it")
    return folder


def dealt_rows(race: Race, available: int) -> np.ndarray:
    """Rows of the training set by silo: [silos, records_per_silo]."""
    rows = np.random.default_rng(race.seed).permutation(available)
    return rows[: race.silos * race.records_per_silo].reshape(race.silos, race.records_per_silo)


def participants(race: Race) -> np.ndarray:
    """Who takes part: [rounds, silos_per_round], without repetition within a round."""
    if race.silos_per_round == race.silos:
        return np.tile(np.arange(race.silos), (race.rounds, 1))
    coins = np.random.default_rng(race.seed + 1)
    return np.stack([coins.choice(race.silos, race.silos_per_round, replace=False) for _ in range(race.rounds)])


def load_digits(race: Race, folder: Path) -> Digits:
    """Read ``mnist.npz`` and deal it to the silos of this race."""
    with np.load(folder / "mnist.npz") as file:
        rows = dealt_rows(race, len(file["y_train"]))
        return Digits(
            images=_scaled(file["x_train"][rows]),
            labels=file["y_train"][rows].astype(np.int64),
            test_images=_scaled(file["x_test"]),
            test_labels=file["y_test"].astype(np.int64),
        )


def _scaled(pixels: np.ndarray) -> np.ndarray:
    return (pixels.astype(np.float32) / np.float32(255) - np.float32(PIXEL_MEAN)) / np.float32(PIXEL_SCALE)
