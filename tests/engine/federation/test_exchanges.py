"""Exchanges of more than one phase, or more than silos and a server, on processes: the models of the simulator."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("nvflare")

from safetensors.numpy import load_file

from tacit.engine.federation.trial import PARTS, Trial
from tacit.engine.trees import _named_leaves
from tacit.privacy import Ledger

from . import worlds

pytestmark = pytest.mark.slow  # half a minute each

# noise that is next to none: people draw theirs in other groups than in the simulator
REPORTS = {"local_epsilon": 1e16, "value_range": 0.5, "local_epochs": 1, "local_learning_rate": 0.5}
CELLS = {
    "shuffled": {"name": "ss-simple", "batch_subjects": 60, **REPORTS},
    "pairwise": {"name": "dp-fedavg", "noise_multiplier": 2.0, "local_learning_rate": 0.1},
    "weighted": {"name": "uldp-avg", "noise_multiplier": 5.0, "weights": "records"},
}
# as many people as an exchange that seals or encrypts for everybody is quick with
SECTIONS = {
    "data": {"subjects": {"count": 60}},
    "privacy": {"max_silos_per_subject": 1},
}


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    made = Trial(tmp_path_factory.mktemp("exchanges"), worlds.POLICY, analyzer=True)
    made.prepare()
    with made.running():
        yield made


@pytest.mark.parametrize("exchange", CELLS)
def test_processes_and_the_simulator_learn_the_same_from_one_seed(trial, exchange):
    seed = 20 + list(CELLS).index(exchange)  # noise that is drawn twice protects only once: silos take a seed once
    content = worlds.experiment(seed=seed, exchange={"name": exchange}, **SECTIONS)
    content["method"] = CELLS[exchange]
    run = worlds.finished(trial, content, exchange)
    learned = load_file(run.path / "model.safetensors")
    expected = dict(_named_leaves(worlds.simulated(trial, content)))
    assert set(learned) == set(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(learned[name], np.asarray(values), atol=1e-6)
    assert max(np.abs(values).max() for values in learned.values()) > 1e-3
    for silo in PARTS:
        with Ledger(trial.home(silo) / "DATA.ledger.jsonl") as ledger:
            name = ledger.lines[-1]["run"]
            assert [line["round"] for line in ledger.lines if line["run"] == name] == [1, 2, 3]


def test_the_analyzer_is_asked_in_shuffled_runs_alone(trial):
    log = (trial.kit("analyzer").ours / "log.txt").read_text()
    assert log.count("asked   to run") == 1
    assert "ss-simple, shuffled, 3 rounds" in log
