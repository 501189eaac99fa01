from __future__ import annotations

import tomllib
import warnings
from importlib.resources import files
from pathlib import Path

import pytest
import tomli_w

from tacit.errors import Deprecated
from tacit.federation.protocol.agreement import mark
from tacit.planning.experiment import Experiment
from tacit.planning.plan import plan
from tests.refusals import refuses


@pytest.mark.parametrize(
    ("content", "code", "field", "names"),
    [
        ({"titel": "x"}, "unknown-key", "titel", ["'title'"]),
        ({"train": {"round": 3}}, "unknown-key", "train.round", ["'rounds'"]),
        ({"train": {"rounds": 0}}, "out-of-range", "train.rounds", ["0", "1"]),
        ({"train": {"rounds": "many"}}, "wrong-type", "train.rounds", ["'many'", "integer"]),
        ({"train": {"rounds": 2.5}}, "wrong-type", "train.rounds", ["2.5"]),
        ({"train": {"rounds": "10"}}, "wrong-type", "train.rounds", ["'10'", "integer"]),
        ({"train": {"rounds": True}}, "wrong-type", "train.rounds", ["True", "integer"]),
        ({"train": {"server_learning_rate": float("inf")}}, "out-of-range", "train.server_learning_rate", []),
        ({"seed": True}, "wrong-type", "seed", ["True"]),
        ({"method": {"name": "fedavg", "batch_size": "8"}}, "wrong-type", "method.batch_size", ["'8'"]),
        ({"privacy": {"against": []}}, "too-few", "privacy.against", ["1"]),
        ({"evaluation": {"status": "paid"}}, "missing", "evaluation.noise_multiplier", []),
        ({"train": {"server_optimizer": "sdg"}}, "unknown-name", "train.server_optimizer", ["'sdg'", "'sgd'"]),
        ({"governance": {"purpose": " "}}, "invalid-value", "governance.purpose", ["one line"]),
        ({"governance": {"purpose": "two\nlines"}}, "invalid-value", "governance.purpose", []),
        ({"governance": {"controllers": []}}, "too-few", "governance.controllers", []),
        ({"governance": {"controllers": "A"}}, "wrong-type", "governance.controllers", []),
        ({"governance": {"tuning": "unpaid"}}, "unknown-name", "governance.tuning", ["'not-accounted'"]),
        ({"governance": {"legal_bases": "x"}}, "unknown-key", "governance.legal_bases", ["'legal_basis'"]),
        ({"data": {"silos": {"colum": "x"}}}, "unknown-key", "data.silos.colum", ["'column'"]),
        ({"data": {"test_fraction": 1.5}}, "out-of-range", "data.test_fraction", ["1.5"]),
        ({"data": {"subjects": 7}}, "wrong-type", "data.subjects", ["7"]),
        ({"data": {"silos": {"column": "x", "alpha": 2.0}}}, "no-effect", "data.silos", ["alpha", "assign"]),
        (
            {"data": {"subjects": {"assign": "uniform", "count": 3, "alpha": 2.0}}},
            "no-effect",
            "data.subjects",
            ["alpha"],
        ),
        ({"method": {"name": "fedagv"}}, "unknown-name", "method.name", ["'fedagv'", "'fedavg'"]),
        ({"method": {}}, "missing", "method.name", []),
        ({"method": {"name": "fedavg", "batchsize": 3}}, "unknown-key", "method.batchsize", ["'batch_size'"]),
        ({"method": {"name": "fedavg", "batch_size": 0}}, "out-of-range", "method.batch_size", ["0"]),
        ({"method": {"name": "fedavg", "silo_sample_rate": 1.2}}, "out-of-range", "method.silo_sample_rate", ["1.2"]),
        (
            {"method": {"name": "fedavg", "local_learning_rate": "x"}},
            "wrong-type",
            "method.local_learning_rate",
            ["'x'"],
        ),
        ({"method": {"name": "fedsgd", "local_epochs": 3}}, "unknown-key", "method.local_epochs", ["batch_size"]),
        (
            {"method": {"name": "fedavg", "local_epochs": 3, "batches_per_round": 2}},
            "conflict",
            "method.local_epochs",
            ["batches_per_round"],
        ),
        ({"model": {"name": "logistc"}}, "unknown-name", "model.name", ["'logistic'"]),
        ({"model": {"name": "mlp", "hiden": [3]}}, "unknown-key", "model.hiden", ["'hidden'"]),
        ({"model": {"name": "cox"}, "data": {"task": "binary"}}, "not-supported", "model.name", ["cox", "binary"]),
        ({"exchange": {"name": "masked"}}, "not-supported", "exchange.name", ["masked", "plain"]),
        ({"exchange": {"name": "plane"}}, "unknown-name", "exchange.name", ["plane", "plain"]),
        ({"engine": {"name": "cloud"}}, "unknown-name", "engine.name", ["cloud", "simulate"]),
        ({"privacy": {"against": ["everyone"]}}, "unknown-name", "privacy.against", ["everyone", "server+silos:2"]),
        ({"privacy": {"delta": 0}}, "out-of-range", "privacy.delta", ["0"]),
        ({"privacy": {"unit": "user"}}, "unknown-name", "privacy.unit", ["'user'", "'subject'"]),
        ({"train": 3}, "wrong-type", "train", ["3"]),
        ({"privacy": {"against": "public"}}, "wrong-type", "privacy.against", ["'public'", "list"]),
        (
            {"method": {"name": "fedsgd", "local_learning_rate": 0.1}},
            "unknown-key",
            "method.local_learning_rate",
            ["train.server_learning_rate"],
        ),
        ({"method": {"name": "fedavg", "rounds": 3}}, "unknown-key", "method.rounds", ["train.rounds"]),
        ({"data": {"label": {"time": "days", "evnt": "dead"}}}, "unknown-key", "data.label.evnt", ["'event'"]),
        ({"evaluation": {"status": "public"}}, "conflict", "evaluation.status", ["'public'", "evaluation.data"]),
        (
            {"model": {"name": "lstm"}, "data": {"task": "multiclass", "classes": 3, "numeric": ["age"]}},
            "not-supported",
            "model.name",
            ["lstm", "logistic"],
        ),
    ],
)
def test_a_mistake_is_named_with_its_field_value_and_fix(content, code, field, names):
    with refuses(code, field, names=names):
        plan(content)


@pytest.mark.parametrize(
    ("change", "code"), [("train.rounds", "malformed"), ("title.x=3", "invalid-value"), ("=3", "malformed")]
)
def test_a_malformed_change_is_refused(change, code):
    with refuses(code, "--set", names=[change.partition("=")[0]]):
        plan({"title": "t"}, [change])


def test_a_change_replaces_what_the_file_says():
    changes = ["train.rounds=7", "model.name=mlp", "model.hidden=[3, 4]", "title=Two words"]
    made = plan({"train": {"rounds": 5}}, changes)
    assert made.rounds == 7
    assert made.experiment.model.numbers == {"hidden": [3, 4]}
    assert made.title == "Two words"


def test_a_plan_written_as_toml_is_the_same_plan(experiment):
    made = plan(experiment)
    again = plan(tomllib.loads(made.to_toml()))
    assert again.experiment == made.experiment
    assert again.options == made.options


GOVERNANCE = {
    "controllers": ["St. Brigid", "Harbour Clinic"], "purpose": "predict doctor visits", "legal_basis": "Art. 9(2)(j)",
    "data_categories": ["visits"], "recipients": ["the public"], "retention": "10 years", "contact": "dpo@example.org",
    "tuning": "none",
}  # fmt: skip


def test_governance_is_part_of_the_plan_that_silos_compare_and_changes_no_guarantee(experiment):
    bare, made = plan(experiment), plan(experiment | {"governance": GOVERNANCE})
    again = plan(tomllib.loads(made.to_toml()))
    assert again.experiment.governance == made.experiment.governance
    assert made.guarantees() == bare.guarantees()
    other = plan(experiment | {"governance": GOVERNANCE | {"purpose": "set prices"}})
    assert len({mark(bare), mark(made), mark(other)}) == 3
    assert mark(again) == mark(made)
    assert mark(plan(experiment | {"governance": {}})) != mark(made)


def test_a_budget_that_a_method_cannot_keep_is_forbidden():
    with refuses("no-guarantee", "privacy.budget") as caught:
        plan({"privacy": {"budget": 3.0}})
    assert caught.value.exit_code == 3


def test_a_plan_needs_no_data():
    made = plan({"data": {"source": "table", "path": "nowhere.csv", "label": "y"}})
    assert {str(guarantee.view) for guarantee in made.guarantees()} == {"public", "server", "silo"}


def test_missing_and_broken_files_are_refused(tmp_path):
    with refuses("file-not-found", "experiment"):
        plan(tmp_path / "none.toml")
    (tmp_path / "broken.toml").write_text("title = ")
    with refuses("file-damaged", "experiment"):
        plan(tmp_path / "broken.toml")


def test_every_section_of_the_contract_is_known():
    sections = {"title", "seed", "data", "model", "method", "train", "privacy", "exchange", "evaluation", "engine"}
    sections |= {"governance"}
    assert set(Experiment.model_fields) == sections


def test_a_written_plan_means_the_same_files_wherever_it_lies(tmp_path, experiment, monkeypatch):
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    (home / "mine.py").write_text((Path(__file__).parent / "models" / "own_models.py").read_text())
    experiment["data"] |= {"path": "visits.csv"}
    experiment["model"] = {"name": "mine:scaled", "init_from": "../start.safetensors"}
    experiment["privacy"] = {"budget_file": "shared.budget"}
    experiment["evaluation"] = {"data": "test.csv"}
    (home / "e.toml").write_text(tomli_w.dumps(experiment))
    (elsewhere / "plan.toml").write_text(plan(home / "e.toml").to_toml())
    monkeypatch.chdir(elsewhere)
    again = plan("plan.toml").experiment
    assert again.data.path == str(home / "visits.csv")
    assert again.model.name == f"{home}/mine:scaled"
    assert again.model.init_from == str(tmp_path / "start.safetensors")
    assert again.privacy.budget_file == str(home / "shared.budget")
    assert again.evaluation.data == str(home / "test.csv")


def test_private_is_the_new_spelling_of_paid_and_hashes_stay():
    content = tomllib.loads((files("tacit") / "try.toml").read_text())
    assert content["evaluation"]["status"] == "private"
    new = plan(content).experiment
    old = plan(content | {"evaluation": content["evaluation"] | {"status": "paid"}}).experiment
    assert new.spelled_out() == old.spelled_out()
    assert new.model_dump_json() == old.model_dump_json()
    assert new.evaluation.status == "paid"  # as in results and ledgers of earlier versions


def test_the_old_spelling_in_a_file_is_noted_and_tacit_writes_the_new_one(tmp_path):
    file = tmp_path / "e.toml"
    file.write_text(plan(Path(str(files("tacit") / "try.toml"))).to_toml())
    assert 'status = "private"' in file.read_text()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan(file)
    file.write_text(file.read_text().replace('"private"', '"paid"'))
    with pytest.warns(Deprecated):
        plan(file)
