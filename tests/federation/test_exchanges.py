"""Every method with every exchange on processes: the models of the simulator, from one seed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("nvflare")

from safetensors.numpy import load_file

from tacit.engine.learner import _named_leaves
from tacit.federation.demo import PARTS, Trial, parted
from tacit.methods import METHODS as ALL
from tacit.planning.claims import exchanges_for
from tacit.privacy import Ledger
from tests.engine.federated import EXCHANGES, METHODS, NOT_IN_PAIRS

from . import worlds

pytestmark = pytest.mark.slow  # half a minute each

ROWS = 300  # of every silo's table: little to load, few shapes to compile
# Under ss-topk a person reports the largest half of an update. In the built-in table a column is often exactly as far
# from its constants as another one, or as 1, which stands beside the bias: whether the last digit then puts the one or
# the other first, no seed says. With these constants nothing is equally large.
NO_TIES = {
    "age": {"mean": 25.1, "scale": 17.3},
    "log_income": {"mean": 8.7, "scale": 1.23},
    "mental_health": {"mean": 75.2, "scale": 12.7},
    "chronic_diseases": {"mean": 11.3, "scale": 7.1},
}
# In silo-only nothing is released but silos' own models, which stay with them.
CELLS = [
    (method, exchange)
    for method in METHODS
    if method != "silo-only"
    for exchange in EXCHANGES
    if exchange in exchanges_for(ALL[method].info)
]


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    policy = {**worlds.POLICY, "methods": sorted(METHODS)}
    tables = {silo: table.head(ROWS) for silo, table in parted().items()}
    made = Trial(tmp_path_factory.mktemp("exchanges"), policy, analyzer=True, tables=tables)
    made.prepare()
    with made.running():
        yield made


@pytest.mark.parametrize(("method", "exchange"), CELLS)
def test_processes_and_the_simulator_learn_the_same_from_one_seed(trial, method, exchange):
    seed = 20 + CELLS.index((method, exchange))  # noise that is drawn twice protects only once: silos take a seed once
    content = asked_for(method, exchange, seed)
    before = {silo: written(trial, silo) for silo in PARTS}
    run = worlds.finished(trial, content, f"{method}-{exchange}")
    learned = load_file(run.path / "model.safetensors")
    expected = {name: np.asarray(values) for name, values in _named_leaves(worlds.simulated(trial, content))}
    assert set(learned) == set(expected)
    furthest = max(np.abs(learned[name] - values).max() for name, values in expected.items())
    keep(method, exchange, float(furthest))
    assert furthest <= 1e-6
    assert max(np.abs(values).max() for values in learned.values()) > 1e-3
    for silo in PARTS:
        with Ledger(trial.home(silo) / "DATA.ledger.jsonl") as ledger:
            new = ledger.lines[before[silo] :]
        assert [line["round"] for line in new if line["round"]] == [1, 2, 3]  # round 0 tells how many records there are


def test_the_analyzer_is_asked_in_shuffled_runs_alone(trial):
    log = (trial.kit("analyzer").ours / "log.txt").read_text()
    asked = [line for line in log.splitlines() if "asked   to run" in line]
    assert asked
    assert all(", shuffled, 3 rounds" in line for line in asked)


def asked_for(method: str, exchange: str, seed: int) -> dict:
    """The experiment of a cell. Exchanges that seal or encrypt for everybody have few people."""
    numbers = dict(METHODS[method])
    if exchange == "weighted":
        numbers["weights"] = "records-phantom"
    if exchange == "pairwise":
        numbers = {key: value for key, value in numbers.items() if key not in NOT_IN_PAIRS}
    few = exchange in ("weighted", "shuffled") or ALL[method].noise_key == "local_epsilon"
    content = worlds.experiment(
        seed=seed,
        data={"subjects": {"count": 60 if few else 400}, "records_per_silo": ROWS},
        train={"server_learning_rate": 1.0},
        privacy={"max_silos_per_subject": 1 if few else 3},
        exchange=EXCHANGES[exchange],
    )
    content["method"] = {"name": method, **numbers}
    if method == "ss-topk":
        content["data"]["numeric"] = NO_TIES
    return content


def written(trial: Trial, silo: str) -> int:
    """How many releases a silo's ledger has; the line with its id is none."""
    file = trial.home(silo) / "DATA.ledger.jsonl"
    if not file.is_file():
        return 0
    with Ledger(file) as ledger:
        return len(ledger.lines)


def keep(method: str, exchange: str, furthest: float) -> None:
    """Write down how far apart the two were, where somebody wants to know."""
    if (file := os.environ.get("TACIT_CELLS")) is not None:
        with Path(file).open("a", encoding="utf-8") as lines:
            lines.write(json.dumps({"method": method, "exchange": exchange, "furthest": furthest}) + "\n")
