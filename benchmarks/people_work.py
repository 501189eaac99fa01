"""The work of the race over people: the same records, people, start and steps for every contestant.

Needs numpy only. Records are drawn, not real: the question is what a round costs. Every person starts at the same
model, takes ``steps`` full-batch steps of plain SGD on their own records, and the difference is clipped, weighted with
1 and added. The norm of that sum is the ``answer`` on which all contestants must agree.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

CLIP = 0.5
HIDDEN = (64, 32)
Layers = list[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Case:
    """One row of the race. ``rounds`` are timed after one warm-up round."""

    name: str
    question: str
    model: str
    people: int
    records: int
    steps: int
    rate: float
    rounds: int
    target: str
    warm_up_rounds: int = 1
    seed: int = 2024


CASES = {
    case.name: case
    for case in (
        Case(
            "race_people_mlp",
            "MLP of 4,097 parameters on 30 features: 1,000 people with 25 records, 30 local epochs",
            "mlp",
            people=1000,
            records=25,
            steps=30,
            rate=0.01,
            rounds=2,
            target="25 times the loop",
        ),
        Case(
            "race_people_cnn_100",
            "CNN of 26,010 parameters on 28 x 28 images: 100 people with 60 records, 2 local steps",
            "cnn",
            people=100,
            records=60,
            steps=2,
            rate=0.1,
            rounds=3,
            target="3 times the loop",
        ),
        Case(
            "race_people_cnn_1000",
            "CNN of 26,010 parameters on 28 x 28 images: 1,000 people with 6 records, 2 local steps",
            "cnn",
            people=1000,
            records=6,
            steps=2,
            rate=0.1,
            rounds=2,
            target="5 times the loop, and ahead of vmap",
        ),
    )
}


def uniform(case: Case, factor: int = 1) -> np.ndarray:
    """Records of each person: all the same, ``factor`` times as many."""
    return np.full(case.people, factor * case.records)


def zipf(case: Case, exponent: float = 0.5) -> np.ndarray:
    """As many records altogether, dealt in proportion to ``rank^-exponent``, at least one each."""
    share = np.arange(1, case.people + 1) ** -exponent
    counts = np.maximum(1, np.floor(share / share.sum() * case.people * case.records)).astype(int)
    counts[0] += case.people * case.records - counts.sum()
    return counts


def records(case: Case, total: int) -> tuple[np.ndarray, np.ndarray]:
    """``features [total, 30]`` or ``[total, 28, 28]`` float32, ``labels [total]`` int64."""
    rng = np.random.default_rng(case.seed)
    if case.model == "mlp":
        features = rng.normal(size=(total, 30)).astype(np.float32)
        return features, (features[:, 0] + rng.normal(size=total) > 0).astype(np.int64)
    return rng.normal(size=(total, 28, 28)).astype(np.float32), rng.integers(0, 10, total)


def start(case: Case) -> Layers:
    """The model that everybody starts at: ``(w [in, out], b [out])`` by layer; kernels by row, column, channel."""
    sizes = [(30, 64), (64, 32), (32, 1)] if case.model == "mlp" else [(64, 16), (256, 32), (512, 32), (32, 10)]
    rng = np.random.default_rng(case.seed + 1)
    return [
        ((rng.normal(size=size) * np.sqrt(2 / size[0])).astype(np.float32), np.zeros(size[1], np.float32))
        for size in sizes
    ]
