"""The privacy sheet of whole runs: fingerprints of the data, resumed runs, and the commands."""

from __future__ import annotations

import json
import os

import pytest

import tacit
from tacit.engine.fingerprints import data_fingerprint
from tacit.engine.run import load_federation
from tacit.planning.plan import plan
from tacit.report import signing, write_sheet
from tests.refusals import refuses


@pytest.fixture
def private(tmp_path, visits, experiment) -> dict:
    """DP-FedAvg on a table, without a seed."""
    visits.to_csv(tmp_path / "visits.csv", index=False)
    del experiment["seed"]
    experiment["data"] |= {"path": str(tmp_path / "visits.csv")}
    experiment["data"]["silos"]["count"] = 3
    experiment["method"] |= {"name": "dp-fedavg", "clip": 1.0, "noise_multiplier": 4.0}
    experiment["train"] = {"rounds": 3}
    experiment["privacy"] = {"unit": "silo", "against": ["public"]}
    return experiment


@pytest.fixture
def key(tmp_path):
    signing.new_key(tmp_path / "key")
    return signing.read_private_key(tmp_path / "key")


def test_the_fingerprint_of_the_data_is_keyed_and_checks_the_table(private, tmp_path, visits, key):
    first, second = (tacit.run(private, out=tmp_path / name) for name in ("first", "second"))
    found, other = (run.result["data"]["fingerprint"] for run in (first, second))
    assert found != other  # same records, other keys
    federation = load_federation(plan(private))
    assert found == data_fingerprint(federation, (first.path / "data.key").read_bytes())
    assert (first.path / "data.key").stat().st_mode & 0o777 == 0o600
    assert "data.key" not in os.listdir(first.path / "share")
    write_sheet(first.path, key=key)
    stated = signing.verify(first.path, key.public_key())
    assert stated["fingerprints"]["data_hmac"] == found
    signing.verify_data(first.path, stated)
    visits.loc[0, "age"] += 1
    visits.to_csv(tmp_path / "visits.csv", index=False)
    with refuses("not-verified", "data"):
        signing.verify_data(first.path, stated)
    with refuses("wrong-file", "--data"):
        signing.verify_data(first.path / "share", stated)


def test_a_resumed_run_shares_its_last_model_without_the_old_signature(private, tmp_path, key):
    def parts(folder):
        return [(folder / name).read_bytes() for name in ("model.safetensors", "ledger.jsonl")]

    one_round = plan(private | {"train": {"rounds": 1}}).guarantees()[0].epsilon
    stopped = tacit.run(private | {"privacy": private["privacy"] | {"budget": one_round * 1.01}}, out=tmp_path / "run")
    assert (stopped.result["status"], stopped.result["rounds"]) == ("budget", 1)
    write_sheet(stopped.path, key=key)
    before = parts(stopped.path / "share")
    resumed = tacit.run(private | {"privacy": private["privacy"] | {"budget": 100.0}}, resume=stopped.path)
    assert resumed.result["rounds"] == 3
    assert parts(resumed.path / "share") == parts(resumed.path) != before
    assert "sheet.sig" not in os.listdir(resumed.path) + os.listdir(resumed.path / "share")
    stated = json.loads((resumed.path / "sheet.json").read_text())
    assert stated["guarantees"][0]["epsilon"] == resumed.guarantees()[0]["epsilon"]
    assert resumed.result["data"]["fingerprint"] == stopped.result["data"]["fingerprint"]


def test_a_plan_with_values_of_its_own_table_is_not_signed_and_shares_nothing(private, tmp_path, key):
    private["data"]["from_this_table"] = ["data.silos.count"]
    assert plan(private).from_this_table == ("data.silos.count",)
    run = tacit.run(private, out=tmp_path / "run")
    with refuses("cannot-sign", "data.silos.count"):
        write_sheet(run.path, key=key)
    assert os.listdir(run.path / "share") == []
