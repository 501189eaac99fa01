"""The work of the private-step race: one step of DP-SGD on a batch of a given size, again and again.

Needs numpy only. The speed of a step does not depend on what the records hold, so they are made from a seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

CLIP = 1.0
NOISE_MULTIPLIER = 1.0
LEARNING_RATE = 0.05
RECORDS = 8192
CHARACTERS = 80  # length of a text and size of the alphabet


@dataclass(frozen=True)
class StepRace:
    """What every contestant does: ``rounds`` steps on batches of ``batch_size``; a round is a step here."""

    name: str
    question: str
    model: str
    batch_size: int
    rounds: int
    warm_up_rounds: int
    seed: int = 2022


CNN = StepRace("private_step_cnn", "CNN on 28 x 28 images, batch 512", "cnn", 512, rounds=14, warm_up_rounds=4)
LSTM = StepRace("private_step_lstm", "LSTM on 80 characters, batch 100", "lstm", 100, rounds=14, warm_up_rounds=4)
MLP = StepRace("private_step_mlp", "MLP 784-64-10, batch 512", "mlp", 512, rounds=60, warm_up_rounds=10)
LOGISTIC = StepRace("private_step_logistic", "784 to 10, batch 512", "logistic", 512, rounds=60, warm_up_rounds=10)
ROWS = StepRace(
    "private_step_transformer", "transformer on 28 rows, batch 512", "transformer", 512, rounds=14, warm_up_rounds=4
)
RACES = {race.model: race for race in (CNN, LSTM, MLP, LOGISTIC, ROWS)}
BUILT_IN = ("cnn", "lstm", "mlp", "logistic")  # what the race of Tacit's own models is about


class Examples(NamedTuple):
    """``features [records, 28, 28]`` float32 or ``[records, characters]`` int64, ``labels [records]`` int64."""

    features: np.ndarray
    labels: np.ndarray


def examples(race: StepRace) -> Examples:
    rng = np.random.default_rng(race.seed)
    if race.model == "lstm":
        return Examples(rng.integers(0, CHARACTERS, (RECORDS, CHARACTERS)), rng.integers(0, CHARACTERS, RECORDS))
    return Examples(rng.normal(size=(RECORDS, 28, 28)).astype(np.float32), rng.integers(0, 10, RECORDS))


def batches(race: StepRace, size: int | None = None) -> np.ndarray:
    """Positions of the records of each step: ``[rounds, size]``, without repetition within a step."""
    rng = np.random.default_rng(race.seed + 1)
    return np.stack([rng.permutation(RECORDS)[: size or race.batch_size] for _ in range(race.rounds)])
