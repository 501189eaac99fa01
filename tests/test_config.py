from __future__ import annotations

import tomllib
import warnings
from importlib.resources import files
from pathlib import Path

import pytest
import tomli_w

from tacit.config import plan
from tacit.errors import Deprecated, Forbidden, UserError
from tacit.experiment import Experiment


def refusal(content: dict, *changes: str) -> str:
    """The one line with which an experiment is refused."""
    with pytest.raises(UserError) as caught:
        plan(content, changes)
    line = str(caught.value)
    assert "\n" not in line
    return line


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ({"titel": "x"}, ["titel", "did you mean 'title'"]),
        ({"train": {"round": 3}}, ["train.round", "did you mean 'rounds'"]),
        ({"train": {"rounds": 0}}, ["train.rounds", "0", "greater than or equal to 1"]),
        ({"train": {"rounds": "many"}}, ["train.rounds", "'many'", "integer"]),
        ({"train": {"rounds": 2.5}}, ["train.rounds", "2.5"]),
        ({"train": {"rounds": "10"}}, ["train.rounds", "'10'", "integer"]),
        ({"train": {"rounds": True}}, ["train.rounds", "True", "integer"]),
        ({"train": {"server_learning_rate": float("inf")}}, ["train.server_learning_rate", "finite"]),
        ({"seed": True}, ["seed", "True"]),
        ({"method": {"name": "fedavg", "batch_size": "8"}}, ["method.batch_size", "'8'"]),
        ({"privacy": {"against": []}}, ["privacy.against", "at least 1"]),
        ({"evaluation": {"status": "paid"}}, ["evaluation.noise_multiplier", "is missing"]),
        ({"train": {"server_optimizer": "sdg"}}, ["train.server_optimizer", "'sdg'", "'sgd'"]),
        ({"data": {"silos": {"colum": "x"}}}, ["data.silos.colum", "did you mean 'column'"]),
        ({"data": {"test_fraction": 1.5}}, ["data.test_fraction", "1.5", "less than 1"]),
        ({"data": {"subjects": 7}}, ["data.subjects", "7"]),
        ({"data": {"silos": {"column": "x", "alpha": 2.0}}}, ["data.silos", "alpha", "add assign"]),
        ({"data": {"subjects": {"assign": "uniform", "count": 3, "alpha": 2.0}}}, ["data.subjects", "alpha", "remove"]),
        ({"method": {"name": "fedagv"}}, ["method.name", "'fedagv'", "did you mean 'fedavg'"]),
        ({"method": {}}, ["method.name", "missing"]),
        ({"method": {"name": "fedavg", "batchsize": 3}}, ["method.batchsize", "did you mean 'batch_size'"]),
        ({"method": {"name": "fedavg", "batch_size": 0}}, ["method.batch_size", "0", "greater"]),
        ({"method": {"name": "fedavg", "silo_sample_rate": 1.2}}, ["method.silo_sample_rate", "1.2"]),
        ({"method": {"name": "fedavg", "local_learning_rate": "x"}}, ["method.local_learning_rate", "'x'", "number"]),
        ({"method": {"name": "fedsgd", "local_epochs": 3}}, ["method.local_epochs", "fedsgd", "batch_size"]),
        (
            {"method": {"name": "fedavg", "local_epochs": 3, "batches_per_round": 2}},
            ["method.local_epochs", "keep one"],
        ),
        ({"model": {"name": "logistc"}}, ["model.name", "logistc", "did you mean 'logistic'"]),
        ({"model": {"name": "mlp", "hiden": [3]}}, ["model.hiden", "did you mean 'hidden'"]),
        ({"model": {"name": "cox"}, "data": {"task": "binary"}}, ["model.name", "cox", "binary"]),
        ({"exchange": {"name": "masked"}}, ["exchange.name", "masked", "plain"]),
        ({"exchange": {"name": "plane"}}, ["exchange.name", "plane", "plain"]),
        ({"engine": {"name": "cloud"}}, ["engine.name", "cloud", "simulate"]),
        ({"privacy": {"against": ["everyone"]}}, ["privacy.against", "everyone", "public"]),
        ({"privacy": {"delta": 0}}, ["privacy.delta", "0"]),
        ({"privacy": {"unit": "user"}}, ["privacy.unit", "'user'", "'subject'"]),
        ({"train": 3}, ["train", "3", "write a table of keys"]),
        ({"privacy": {"against": "public"}}, ["privacy.against", "'public'", "write a list"]),
        ({"privacy": {"against": ["everyone"]}}, ["privacy.against", "such as public, server, silo, silos:2"]),
        (
            {"method": {"name": "fedsgd", "local_learning_rate": 0.1}},
            ["method.local_learning_rate", "train.server_learning_rate"],
        ),
        ({"method": {"name": "fedavg", "rounds": 3}}, ["method.rounds", "train.rounds"]),
        ({"data": {"label": {"time": "days", "evnt": "dead"}}}, ["data.label.evnt", "did you mean 'event'"]),
        ({"evaluation": {"status": "public"}}, ["evaluation.status", "'public'", "evaluation.data"]),
        (
            {"model": {"name": "lstm"}, "data": {"task": "multiclass", "classes": 3, "numeric": ["age"]}},
            ["model.name", "lstm takes texts", "not columns of a table", "use logistic"],
        ),
    ],
)
def test_a_mistake_is_named_with_its_field_value_and_fix(content, names):
    line = refusal(content)
    for name in names:
        assert name in line


@pytest.mark.parametrize(
    ("change", "names"),
    [("train.rounds", ["--set", "a.b=value"]), ("title.x=3", ["--set", "title.x"]), ("=3", ["--set"])],
)
def test_a_malformed_change_is_refused(change, names):
    line = refusal({"title": "t"}, change)
    assert all(name in line for name in names)


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


def test_a_budget_that_a_method_cannot_keep_is_forbidden():
    with pytest.raises(Forbidden, match="infinite") as caught:
        plan({"privacy": {"budget": 3.0}})
    assert caught.value.exit_code == 3


def test_a_plan_needs_no_data():
    made = plan({"data": {"source": "table", "path": "nowhere.csv", "label": "y"}})
    assert {str(guarantee.view) for guarantee in made.guarantees()} == {"public", "server", "silo"}


def test_missing_and_broken_files_are_refused(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        plan(tmp_path / "none.toml")
    (tmp_path / "broken.toml").write_text("title = ")
    with pytest.raises(UserError, match="no valid TOML"):
        plan(tmp_path / "broken.toml")


def test_every_section_of_the_contract_is_known():
    sections = {"title", "seed", "data", "model", "method", "train", "privacy", "exchange", "evaluation", "engine"}
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
