"""The verdict of a plan, on generated problems: what it calls good works, what it calls hopeless does not."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit.planning.preview import outlook
from tacit.planning.verdict import GOOD, HOPELESS

SEED = 20261118
PROBLEMS = 40
# noise multiplier over the root of rounds, about, of each epsilon
NOISE = {1.0: 3.7, 2.0: 2.0, 4.0: 1.08, 8.0: 0.6}


class Problem(NamedTuple):
    """A binary label of ``features`` normal columns, ``people`` in ``silos``, each in one."""

    number: int
    features: int
    epsilon: float
    silos: int
    people: int
    records: int
    strength: float
    weights: str


def problem(number: int) -> Problem:
    """Every fourth problem lies within a factor of 2 of one of the two limits, the others anywhere between."""
    rng = np.random.default_rng([SEED, number])
    features, silos = int(rng.choice([3, 10, 30, 100])), int(rng.choice([2, 4, 12]))
    epsilon, weights = float(rng.choice(list(NOISE))), str(rng.choice(["capped", "records"]))
    low, high = math.log(GOOD / 4), math.log(HOPELESS * 4)
    if number % 4 == 0:
        limit = math.log(rng.choice([GOOD, HOPELESS]))
        low, high = limit - math.log(2), limit + math.log(2)
    ratio = math.exp(rng.uniform(low, high))
    share = 1 / silos if weights == "capped" else 0.3  # slots that are shared, and twice the noise
    people = int(np.clip(NOISE[epsilon] * math.sqrt(features + 1) / (ratio * share), 40, 6000))
    strength = float(rng.uniform(1.0, 3.0))
    return Problem(number, features, epsilon, silos, people, int(rng.integers(1, 6)), strength, weights)


def rows(made: Problem, people: int, part: int) -> pd.DataFrame:
    rng = np.random.default_rng([SEED, made.number, 1])
    weights = rng.normal(size=made.features)
    weights *= made.strength / np.linalg.norm(weights)
    rng = np.random.default_rng([SEED, made.number, 2, part])
    person = np.repeat(np.arange(people), made.records)
    values = rng.normal(size=(len(person), made.features))
    label = rng.random(len(person)) < 1 / (1 + np.exp(-values @ weights))
    found = pd.DataFrame(values, columns=[f"x{k}" for k in range(made.features)])
    return found.assign(person=person, silo=[f"s{k}" for k in person % made.silos], ill=label.astype(int))


def experiment(made: Problem, file: str, private: bool) -> dict[str, Any]:
    weighted = {"name": "weighted", "encrypted": False}
    return {
        "seed": made.number,
        "data": {
            "label": "ill",
            "subjects": {"column": "person", "count": made.people},
            "silos": {"column": "silo", "count": made.silos},
            "numeric": {f"x{k}": {"mean": 0, "scale": 1} for k in range(made.features)},
        },
        "method": {"name": "subject-sgd", "weights": made.weights, "target_epsilon": made.epsilon}
        if private
        else {"name": "pooled"},
        "train": {} if private else {"rounds": 30},
        "exchange": {"name": "plain"} if not private else weighted if made.weights == "records" else {"name": "masked"},
        "privacy": {"against": ["public", "server"]} if private else {},
        "evaluation": {"data": file, "status": "public"},
    }


def judged(made: Problem, folder: Any) -> tuple[str, float]:
    """The verdict, and which part of what training without privacy gains over guessing the private model keeps."""
    file, table = folder / "test.csv", rows(made, made.people, 0)
    rows(made, max(1, 4000 // made.records), 1).to_csv(file, index=False)
    plans = [tacit.plan(experiment(made, str(file), private)) for private in (True, False)]
    found = [tacit.run(plan, frame=table, out=folder / str(k)).metrics["auc"] for k, plan in enumerate(plans)]
    verdict = outlook(plans[0]).verdict
    assert verdict is not None
    return verdict.light, (found[0] - 0.5) / (found[1] - 0.5)


@pytest.mark.parametrize(
    "number", [0, 5, *(pytest.param(k, marks=pytest.mark.slow) for k in range(1, PROBLEMS) if k != 5)]
)
def test_what_is_called_good_works_and_what_is_called_hopeless_does_not(number, tmp_path):
    light, kept = judged(problem(number), tmp_path)
    print(f"{problem(number)} {light} kept {kept:.2f}")
    assert light != "good" or kept >= 0.5
    assert light != "hopeless" or kept < 0.5


def test_the_problems_cover_all_verdicts_and_both_limits():
    made = [problem(number) for number in range(PROBLEMS)]
    found = [outlook(tacit.plan(experiment(one, "none.csv", True))).verdict for one in made]
    near = [v for v in found if min(abs(math.log2(v.ratio / limit)) for limit in (GOOD, HOPELESS)) <= 1]
    assert len(near) >= 10
    assert {verdict.light for verdict in found} == {"good", "uncertain", "hopeless"}


def test_a_cap_over_silos_is_named_with_what_it_would_bring():
    made = Problem(0, 10, 4.0, 100, 500, 2, 1.0, "capped")
    verdict = outlook(tacit.plan(experiment(made, "none.csv", True))).verdict
    assert verdict.light != "good"
    assert verdict.factor == pytest.approx(50)
    assert verdict.share == pytest.approx(0.01)
