"""What cannot be computed contributes zero and is counted, and only those who hold the records learn how often."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest

import tacit
from tacit.methods import METHODS
from tacit.planning.claims import exchanges_for
from tests.methods.worlds import federation, simulation, weights

ROUNDS = 2
BATCHES = {"sample_rate": 1.0, "batches_per_round": 3}
# method, its numbers, exchange, and how much is lost in a round: two records of one person, in one of two silos
LOST = {
    "records": ("local-record", BATCHES, "plain", 2 * 3),
    "records, averaged": ("higrad", BATCHES, "plain", 2 * 3),
    "batches": ("user-ldp", BATCHES, "plain", 3),
    "records of a sum": ("central-group", {"sample_rate": 1.0}, "plain", 2),
    "a silo": ("dp-fedsgd", {}, "plain", 1),
    "a silo, masked": ("uldp-naive", {}, "masked", 1),
    "a person": ("subject-sgd", {}, "plain", 1),
    "a person, masked": ("subject-sgd", {}, "masked", 1),
    "records of people": ("subject-sgd", {"clip_first": True}, "plain", 2),
}


def made(bad: float = np.nan) -> Any:
    """Twelve records of six people in two silos; two of person 2 in silo 0 are bad."""
    rng = np.random.default_rng(0)
    features, subject, silo = rng.normal(size=(24, 4)), np.arange(24) // 4, np.arange(24) % 2
    features[[8, 10]] = bad
    return federation(features, rng.normal(size=24), subject, silo, 2)


@pytest.mark.parametrize("name", LOST)
def test_what_is_not_finite_is_counted_over_all_rounds(name):
    method, numbers, exchange, lost = LOST[name]
    settings = {"name": method, "noise_multiplier": 1.0, **numbers}
    sim = simulation(made(), settings, exchange={"name": exchange})
    for number in range(1, ROUNDS + 1):
        sim.round(number)
    assert int(sim.not_finite) == ROUNDS * lost
    assert np.isfinite(weights(sim)).all()
    healthy = simulation(made(1.0), settings, exchange={"name": exchange})
    healthy.round(1)
    assert int(healthy.not_finite) == 0


# how much is lost in a round where one record overflows: one of one person, in one of six silos
SPOILED: dict[str, tuple[dict[str, Any], int]] = {
    **dict.fromkeys(("local-record", "local-group", "higrad", "user-ldp", "uldp-group", "pooled-dp-sgd"), (BATCHES, 3)),
    "central-group": ({"sample_rate": 1.0}, 1),
    **dict.fromkeys(("dp-fedsgd", "uldp-naive", "subject-sgd", "uldp-avg", "uldp-sgd"), ({}, 1)),
    **dict.fromkeys(("dp-fedavg", "muffliato-sgd", "fine-tune", "per-fedavg", "pfedme"), ({"batch_size": 3}, 1)),
    **dict.fromkeys(("mean-regularized", "graph-regularized", "fedem"), ({"batch_size": 3}, 1)),
    **dict.fromkeys(("ldp-laplace", "ldp-gaussian", "ss-simple"), ({"local_epsilon": 8.0}, 1)),
    **dict.fromkeys(("ss-double", "ss-topk"), ({"local_epsilon": 8.0, "index_rate": 0.5}, 1)),
    **dict.fromkeys(("random-walk", "local-walk"), ({"walk_steps": 30}, 5)),  # visits of the one node
}


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.info.private])
def test_a_record_that_overflows_spoils_no_other_part(name):
    """Row 0 overflows in a nonlinear model, and padding is everywhere: silos, people and nodes of 1 to 11 records.
    A method without a line in SPOILED may compute finite numbers of an overflow: it loses one contribution at most."""
    numbers, lost = SPOILED.get(name, ({}, None))
    sizes = [1, 3, 5, 7, 9, 11]
    silo = np.repeat(np.arange(len(sizes)), sizes)
    rng = np.random.default_rng(0)
    features = rng.normal(size=(len(silo), 4))
    features[0] = 3e38
    people = federation(features, rng.normal(size=len(silo)), silo, silo, len(sizes))
    noise = {} if "local_epsilon" in numbers else {"noise_multiplier": 1.0}
    exchange = {"name": exchanges_for(METHODS[name].info)[0]}
    settings = {"name": name, **noise, **numbers}
    columns = {"numeric": {f"x{i}": {} for i in range(4)}}
    sim = simulation(people, settings, data=columns, model={"name": "mlp", "hidden": [8]}, exchange=exchange)
    sim.round(1)
    assert int(sim.not_finite) in ((0, 1) if lost is None else (lost,))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(sim.server.params))


def test_the_count_outlives_a_checkpoint():
    sim = simulation(made(), {"name": "local-record", "noise_multiplier": 1.0, **BATCHES})
    sim.round(1)
    other = simulation(made(), {"name": "local-record", "noise_multiplier": 1.0, **BATCHES})
    other.state = sim.state
    other.round(2)
    assert int(other.not_finite) == 2 * 6


@pytest.fixture
def spoiled(tmp_path: Path, experiment: dict, visits: pd.DataFrame) -> tuple[dict, pd.DataFrame]:
    """An experiment with numbers that no float32 gradient survives, among those that are trained on."""
    visits.to_csv(tmp_path / "healthy.csv", index=False)
    experiment["evaluation"] = {"data": str(tmp_path / "healthy.csv")}
    visits.loc[visits["person"] % 7 == 3, ["age", "pressure"]] = 3.3e38
    experiment["data"] |= {"records_per_silo": 200, "numeric": {"age": {}, "pressure": {}}}
    experiment["data"]["silos"]["count"] = 3
    experiment["model"] = {"name": "mlp", "hidden": [8]}
    experiment["method"] = {"name": "higrad", "noise_multiplier": 1.0, "batches_per_round": 2, "sample_rate": 0.5}
    experiment["privacy"] = {"max_records_per_subject_and_silo": 10, "against": ["public"]}
    return experiment, visits


def test_only_the_data_holders_page_says_how_often(tmp_path, spoiled):
    experiment, frame = spoiled
    run = tacit.run(tacit.plan(experiment), frame=frame, out=tmp_path / "run")
    found = json.loads((run.path / "local.json").read_text())["not_finite"]
    assert found["times"] > 0
    assert found["what"] == "a record's gradient"
    assert "Counted as zero" in (run.path / "local.html").read_text()
    for file in ("result.json", "metrics.jsonl", "ledger.jsonl", "plan.toml", "report.html"):
        text = (run.path / file).read_text()
        assert "not_finite" not in text
        assert "Counted as zero" not in text
