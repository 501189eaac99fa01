"""Methods under the shuffled exchange: sealed and open rounds alike, batches in the ledger, budgets, resuming."""

from __future__ import annotations

import json

import numpy as np
import pytest

import tacit
from tacit.engine.simulate import Simulation
from tacit.exchange import Session
from tacit.families.shuffle.exchange import OpenSession
from tacit.kernels import each_person
from tacit.planning.plan import plan
from tests.exchange.test_masked_training import simulation, weights
from tests.refusals import refuses

NUMBERS = {
    "ss-simple": {},
    "ss-double": {"index_rate": 0.5, "padding": 40},
    "ss-topk": {"index_rate": 0.5, "padding": 40, "index_privacy": "strongest"},
}


def shuffled(experiment: dict, name: str = "ss-double", exchange: dict | None = None, **numbers) -> dict:
    facts = {"subjects": {"column": "person", "count": 64}, "silos": {"column": "clinic", "count": 3}}
    method = {"name": name, "local_epsilon": 8.0, "local_learning_rate": 0.5, **NUMBERS.get(name, {}), **numbers}
    return experiment | {
        "data": experiment["data"] | facts,
        "method": {key: value for key, value in method.items() if value is not None},
        "exchange": {"name": "shuffled", "sealed": False, **(exchange or {})},
    }


@pytest.mark.parametrize("name", NUMBERS)
def test_sealed_rounds_learn_what_open_rounds_learn(name, experiment, visits):
    open_, sealed = (simulation(shuffled(experiment, name, {"sealed": sealed}), visits) for sealed in (False, True))
    for number in (1, 2):
        open_.round(number)
        sealed.round(number)
        np.testing.assert_allclose(weights(sealed), weights(open_), atol=1e-5)
    assert isinstance(open_._session, OpenSession)
    assert isinstance(sealed._session, Session)
    assert np.abs(weights(open_)).max() > 1e-3


@pytest.mark.parametrize("name", [*NUMBERS, "ldp-laplace", "ldp-gaussian"])
def test_with_hardly_any_noise_the_model_is_that_of_the_people_alone(name, experiment, visits):
    """The mean over all 64 of everybody's clipped update; four have no records. All numbers are sent."""
    everything = {"local_epsilon": 1e12, "value_range": 0.05, "padding": None, "index_privacy": None}
    sparse = {"index_rate": 1.0} if name in ("ss-double", "ss-topk") else {}
    made = shuffled(experiment, name, **everything, **sparse)
    if name.startswith("ldp"):
        made["exchange"] = {"name": "plain"}
    run = simulation(made, visits)
    before, drawn = weights(run), run.work.draw(1)
    assert (len(drawn.present), len(drawn.without)) == (len(set(run.federation.train.subject)), 64 - len(drawn.present))
    updates = []
    for lane in drawn.lanes:
        local = each_person(
            run.learner.objective, run.frozen, run.arrays, run.server.params, lane, run.method.work.learning, np.inf
        )
        updates += [found.vectors for found in local]
    expected = np.clip(np.concatenate(updates), -0.05, 0.05).sum(axis=0) / 64
    run.round(1)
    np.testing.assert_allclose(weights(run) - before, expected, atol=1e-6)
    assert 1e-3 < np.abs(expected).max() < 0.05


def test_a_person_is_one_encoder_whatever_silos_hold_its_records(experiment, visits):
    elsewhere = visits.assign(clinic=np.random.default_rng(0).permutation(visits["clinic"]))
    together = simulation(shuffled(experiment, "ss-simple", local_epsilon=1e9), elsewhere)
    apart = simulation(shuffled(experiment, "ss-simple", local_epsilon=1e9), visits)
    for run in (together, apart):
        run.round(1)
    np.testing.assert_allclose(weights(apart), weights(together), atol=1e-5)


def test_more_people_than_declared_are_refused(experiment, visits):
    made = shuffled(experiment)
    made["data"] = made["data"] | {"subjects": {"column": "person", "count": 40}}
    with refuses("mismatch", "data.subjects.count"):
        simulation(made, visits)


def test_batches_part_people_once_for_all(experiment, visits):
    run = simulation(shuffled(experiment, batch_subjects=20), visits)
    batches = [run.work.draw(number) for number in (1, 2, 3)]
    people = [np.concatenate([batch.present, batch.without]) for batch in batches]
    assert sorted(np.concatenate(people)) == list(range(64))
    assert sorted(len(own) for own in people) == [21, 21, 22]
    again = simulation(shuffled(experiment, batch_subjects=20) | {"seed": 6}, visits).work
    for number, own in zip((4, 5, 6), people, strict=True):  # whatever the seed, epoch after epoch
        assert set(own) == set(np.concatenate(again.draw(number)[2:]))


def test_the_ledger_knows_batches_and_only_epochs_add_up(experiment, visits, tmp_path):
    made = shuffled(experiment, "ss-double", batch_subjects=20, epochs=2) | {"train": {}}
    run = tacit.run(tacit.plan(made), frame=visits, out=tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    assert [line["people"] for line in lines] == [f"batch {k} of 3" for k in (1, 2, 3, 1, 2, 3)]
    planned = {str(g.view): g.epsilon for g in tacit.plan(made).guarantees()}
    spent = {g["view"]: g["epsilon"] for g in run.result["guarantees"]}
    assert spent == planned
    epsilons = [line["epsilon"]["analyzer"] for line in map(json.loads, (tmp_path / "run" / "metrics.jsonl").open())]
    assert epsilons[1] == epsilons[2] == epsilons[3] < epsilons[4] == epsilons[6]


def test_a_budget_counts_turns_of_a_batch(experiment, visits, tmp_path):
    made = shuffled(experiment, "ss-double", batch_subjects=20, epochs=3) | {"train": {}}
    one = {
        str(g.view): g.epsilon
        for g in tacit.plan(shuffled(experiment, batch_subjects=20, epochs=1) | {"train": {}}).guarantees()
    }
    made["privacy"] = {"budget": one["analyzer"] * 1.05, "against": ["analyzer"]}
    run = tacit.run(tacit.plan(made), frame=visits, out=tmp_path / "run")
    assert run.result["status"] == "budget"
    assert run.result["rounds"] == 3


def test_with_paid_metrics_of_the_same_people_nobody_is_apart(experiment):
    made = shuffled(experiment, "ss-double", batch_subjects=20, epochs=1) | {"train": {}}
    assert plan(made).promise.people(1) == "batch 1 of 3"
    held_out = made | {"evaluation": {"status": "paid", "noise_multiplier": 10.0}}
    assert plan(held_out).promise.people(1) == "batch 1 of 3"  # other people
    bounds = {"age": {"low": 0, "high": 100}, "pressure": {"low": 50, "high": 250}}
    data = made["data"] | {"standardize": "paid", "numeric": bounds}
    paid = plan(made | {"data": data})
    assert paid.promise.people(1) is None
    assert paid.promise.participations(3) == 3


class KilledError(Exception):
    """Instead of a process that is killed."""


@pytest.mark.parametrize("sealed", [False, True])
def test_resuming_with_a_seed_ends_where_the_uninterrupted_run_ends(sealed, experiment, visits, tmp_path, monkeypatch):
    """Cut off in the second epoch of three batches of people, after the ledger's line and before the release."""
    train = {"train": {"checkpoint_every": 1}}
    made = shuffled(experiment, "ss-topk", {"sealed": sealed}, batch_subjects=20, epochs=2) | train
    whole = tacit.run(tacit.plan(made), frame=visits, out=tmp_path / "whole")
    round_ = Simulation.round

    def cut_off(self, number):
        if number == 5:
            raise KilledError
        return round_(self, number)

    with monkeypatch.context() as patched:
        patched.setattr(Simulation, "round", cut_off)
        with pytest.raises(KilledError):
            tacit.run(tacit.plan(made), frame=visits, out=tmp_path / "cut")
    assert not (tmp_path / "cut" / "result.json").exists()
    resumed = tacit.run(tacit.plan(made), frame=visits, resume=tmp_path / "cut")
    assert (whole.path / "model.safetensors").read_bytes() == (resumed.path / "model.safetensors").read_bytes()
    assert whole.result["guarantees"] == resumed.result["guarantees"]
    lines = [json.loads(line) for line in (resumed.path / "ledger.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3, 4, 5, 6]


def test_the_report_of_a_shuffled_run_names_its_views(experiment, visits, tmp_path):
    made = shuffled(experiment, "ss-double", {"sealed": True}) | {"train": {"rounds": 1}}
    run = tacit.run(tacit.plan(made), frame=visits, out=tmp_path / "run")
    page = run.report.read_text()
    assert "analyzer" in page
    assert run.result["seconds"]["exchange"] > 0
