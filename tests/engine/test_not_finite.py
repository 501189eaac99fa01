"""What cannot be computed contributes zero and is counted, and only those who hold the records learn how often."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit.engine.run import run as train
from tests.methods.worlds import federation, simulation, weights

ROUNDS = 2
BATCHES = {"sample_rate": 1.0, "batches_per_round": 3}
# method, its numbers, and how much is lost in a round: two records of one person, in one of two silos
LOST = {
    "local-record": ("local-record", BATCHES, 2 * 3),
    "higrad": ("higrad", BATCHES, 2 * 3),
    "user-ldp, whole batches": ("user-ldp", BATCHES, 3),
    "central-group": ("central-group", {"sample_rate": 1.0}, 2),
    "dp-fedsgd, a silo": ("dp-fedsgd", {}, 1),
    "uldp-naive, a silo": ("uldp-naive", {}, 1),
    "subject-sgd, a person": ("subject-sgd", {}, 1),
    "subject-sgd, records first": ("subject-sgd", {"clip_first": True}, 2),
}


def made(bad: float = np.nan) -> Any:
    """Twelve records of six people in two silos; two of person 2 in silo 0 are bad."""
    rng = np.random.default_rng(0)
    features, subject, silo = rng.normal(size=(24, 4)), np.arange(24) // 4, np.arange(24) % 2
    features[[8, 10]] = bad
    return federation(features, rng.normal(size=24), subject, silo, 2)


@pytest.mark.parametrize("name", LOST)
@pytest.mark.parametrize("exchange", ["plain", "masked"])
def test_what_is_not_finite_is_counted_over_all_rounds(name, exchange):
    method, numbers, lost = LOST[name]
    if exchange == "masked" and method not in ("uldp-naive", "subject-sgd"):
        pytest.skip(f"{method} is for the plain exchange")
    settings = {"name": method, "noise_multiplier": 1.0, **numbers}
    sim = simulation(made(), settings, exchange={"name": exchange})
    for number in range(1, ROUNDS + 1):
        sim.round(number)
    assert int(sim.not_finite) == ROUNDS * lost
    assert np.isfinite(weights(sim)).all()
    healthy = simulation(made(1.0), settings, exchange={"name": exchange})
    healthy.round(1)
    assert int(healthy.not_finite) == 0


def test_the_count_outlives_a_checkpoint():
    sim = simulation(made(), {"name": "local-record", "noise_multiplier": 1.0, **BATCHES})
    sim.round(1)
    other = simulation(made(), {"name": "local-record", "noise_multiplier": 1.0, **BATCHES})
    other.state = sim.state
    other.round(2)
    assert int(other.not_finite) == 2 * 6


@pytest.fixture
def spoiled(experiment: dict, visits: pd.DataFrame) -> tuple[dict, pd.DataFrame]:
    """An experiment with a number that no float32 gradient survives, in the records of somebody who is trained on."""
    visits.loc[visits["person"] % 7 == 3, "age"] = 1e38
    experiment["data"] |= {"records_per_silo": 200, "test_fraction": 0.1}
    experiment["data"]["silos"]["count"] = 3
    experiment["data"]["numeric"]["age"] = {"mean": 0, "scale": 0.1}
    experiment["method"] = {"name": "higrad", "noise_multiplier": 1.0, "batches_per_round": 2, "sample_rate": 0.5}
    experiment["privacy"] = {"max_records_per_subject_and_silo": 10, "against": ["public"]}
    return experiment, visits


def test_only_the_data_holders_page_says_how_often(tmp_path, spoiled):
    experiment, frame = spoiled
    run = train(tacit.plan(experiment), frame=frame, out=tmp_path / "run")
    found = json.loads((run.path / "local.json").read_text())["not_finite"]
    assert found["times"] > 0
    assert found["what"] == "a record's gradient"
    assert "Counted as zero" in (run.path / "local.html").read_text()
    for file in ("result.json", "metrics.jsonl", "ledger.jsonl", "plan.toml", "report.html"):
        text = (run.path / file).read_text()
        assert "not_finite" not in text
        assert "Counted as zero" not in text
