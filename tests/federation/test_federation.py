"""A federation of real processes over mutually authenticated TLS."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("nvflare")

from safetensors.numpy import load_file

from tacit.engine.learner import _named_leaves
from tacit.federation.demo import PARTS, REQUESTER
from tacit.privacy import Ledger
from tests.refusals import refuses

from . import worlds
from .relay import Relay


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    with worlds.federation(tmp_path_factory.mktemp("federation")) as running:
        yield running


def test_a_whole_federation_in_one_command(tmp_path):
    command = [sys.executable, "-m", "tacit", "federation", "try", "--out", str(tmp_path / "try"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["status"] == "finished"
    assert told["rounds"] == 30
    assert {line["view"]: line["epsilon"] for line in told["guarantees"]}["server"] <= 4.0
    assert told["metrics"]["accuracy"] > 0.6
    assert Path(told["report"]).is_file()
    for silo in ("north", "south", "west"):
        with Ledger(tmp_path / "try" / "silos" / silo / "DATA.ledger.jsonl") as ledger:
            assert [line["round"] for line in ledger.lines] == [*range(1, 31), 30]
            assert ledger.lines[-1]["mechanism"] == "evaluation"


@pytest.mark.parametrize(
    ("method", "exchange"),
    [
        ({"name": "uldp-avg", "noise_multiplier": 5.0}, "masked"),
        ({"name": "local-record", "noise_multiplier": 1.0, "sample_rate": 0.02}, "plain"),
    ],
    ids=["uldp-avg-masked", "local-record-plain"],
)
def test_federation_and_simulator_learn_the_same_from_one_seed(trial, method, exchange):
    # a sum on the grid is exact; a plain one is in single precision, whose last digits a larger step would multiply
    seed, step = (7, 10.0) if exchange == "masked" else (8, 1.0)
    content = worlds.experiment(seed=seed, exchange={"name": exchange}, train={"server_learning_rate": step})
    content["method"] = method
    run = worlds.finished(trial, content, f"agree-{exchange}")
    learned = load_file(run.path / "model.safetensors")
    expected = dict(_named_leaves(worlds.simulated(trial, content)))
    assert set(learned) == set(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(learned[name], np.asarray(values), rtol=0, atol=1e-6)
    assert max(np.abs(values).max() for values in learned.values()) > 1e-3


def test_a_run_that_a_policy_forbids_ends_with_the_names_of_rule_and_silo(trial):
    content = worlds.experiment()
    content["method"] = {"name": "uldp-sgd", "noise_multiplier": 5.0}
    with refuses("policy-forbids", "policy", names=["north"]):
        worlds.finished(trial, content, "forbidden")


def test_what_travels_is_encrypted(tmp_path):
    """A relay sees everything that passes between the server and the others in a whole run: neither a planted value nor
    an update, nor words of the protocol, all of which are in what the parties say to each other."""
    trial = worlds.Trial(tmp_path, worlds.POLICY)
    trial.prepare()
    planted = 71.23456
    table = pd.read_parquet(trial.home("north") / "visits.parquet").astype({"mental_health": float})
    table.loc[:50, "mental_health"] = planted
    table.to_parquet(trial.home("north") / "visits.parquet", index=False)
    content = worlds.experiment(seed=11, exchange={"name": "plain"})
    said, updates = worlds.said(trial, content)
    words = [b"uldp-avg", b"tacit-federation-1", b"tacit-message", b"mental_health"]
    assert len(updates) == 9
    assert all(form in said for form in (*updates, words[1]))
    with Relay(keeps=True) as relay:
        relay.between(trial, *PARTS, REQUESTER)
        with trial.running():
            run = worlds.finished(trial, content, "run")
    assert run.result["status"] == "finished"
    seen = bytes(relay.seen)
    assert len(seen) > 300_000
    assert not any(form in seen for form in (*updates, *words))
    numbers = (np.float32(planted), np.float64(planted), np.float32((planted - 75) / 12))
    assert not any(form in seen for form in (str(planted).encode(), *(number.tobytes() for number in numbers)))
    model = load_file(run.path / "model.safetensors")
    assert not any(values.tobytes() in seen for values in model.values())
