"""Constants and metrics that a run pays for: written down before they exist, once, within budgets, through kills."""

from __future__ import annotations

import json
import math
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import chi2

import tacit
from tacit.engine import evaluate, load_federation, read_metrics
from tacit.engine import run as running
from tacit.engine.evaluate import SCORES
from tacit.engine.learner import load_arrays
from tacit.planning import preview as planner
from tacit.planning.plan import Plan
from tacit.privacy import Gaussian, Ledger, Moments, Randomness, View, account, spent
from tacit.privacy.ledger import place
from tacit.privacy.mechanisms.spreads import Spreads
from tests.refusals import refuses

engine = import_module("tacit.engine.run")  # by its full name: the package has a function of that name
DELTA = 1e-5
PUBLIC = place("subject", View("public"), "zero-out")
METRICS = {"status": "paid", "noise_multiplier": 6.0}


@pytest.fixture
def paying(experiment) -> dict:
    """Everybody is protected, constants and metrics are paid for; no seed."""
    del experiment["seed"]
    experiment["data"] |= {
        "standardize": "paid",
        "numeric": {"age": {"low": 0, "high": 100}, "pressure": {"low": 60, "high": 200}},
        "silos": {"column": "clinic", "count": 3},
        "subjects": {"column": "person", "count": 60},
    }
    experiment["method"] = {"name": "uldp-avg", "noise_multiplier": 4.0, "local_learning_rate": 0.5}
    experiment["privacy"] = {"delta": DELTA, "against": ["public"]}
    experiment["evaluation"] = dict(METRICS)
    return experiment


def lines_of(path: Path) -> list[dict[str, Any]]:
    with Ledger(path) as ledger:
        return ledger.lines


def mechanisms(path: Path) -> list[tuple[int, str]]:
    return [(line["round"], line["mechanism"]) for line in lines_of(path)]


def whole(rounds: int) -> list[tuple[int, str]]:
    return [(0, "statistics"), *((number, "uldp-avg") for number in range(1, rounds + 1)), (rounds, "evaluation")]


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


# -- written down first, used afterwards -------------------------------------------------------------------------------


def test_every_line_is_on_disk_before_what_it_is_about_is_computed(paying, go, tmp_path, monkeypatch):
    seen = []

    def watched(name: str):
        release = getattr(engine, name)

        def released(*arguments: Any) -> Any:
            seen.append((name, mechanisms(tmp_path / "run" / "ledger.jsonl")[-1][1]))
            seen.append(("encoder", (tmp_path / "run" / "encoder.json").exists()))
            return release(*arguments)

        monkeypatch.setattr(engine, name, released)

    watched("release_constants")
    watched("release_metrics")
    run = go(paying)
    assert seen == [
        ("release_constants", "statistics"), ("encoder", False), ("release_metrics", "evaluation"), ("encoder", True),
    ]  # fmt: skip
    assert mechanisms(run.path / "ledger.jsonl") == whole(4)
    assert [line.get("people") for line in lines_of(run.path / "ledger.jsonl")] == [None] * 5 + ["held-out"]


def test_a_run_promises_what_its_plan_did_and_its_ledger_adds_up_to_it(paying, go):
    run = go(paying, against=["public", "server", "silo"])
    planned = {str(g.view): g.epsilon for g in tacit.plan(run.path / "plan.toml").guarantees()}
    lines = lines_of(run.path / "ledger.jsonl")
    for row in run.guarantees():
        assert row["epsilon"] == pytest.approx(planned[row["view"]])
        event = spent(lines, place("subject", View.parse(row["view"]), "zero-out"))
        assert row["epsilon"] == account(event, DELTA).epsilon
    steps = [line["epsilon"]["public"] for line in read_metrics(run.path / "metrics.jsonl")]
    assert steps[0] == account(Gaussian(10.0), DELTA).epsilon
    assert steps == sorted(steps)


def test_encoder_holds_released_constants_only_and_features_and_predictions_use_them(paying, go, visits, monkeypatch):
    fed = []
    feed = engine.Simulation.feed
    monkeypatch.setattr(engine.Simulation, "feed", lambda self, data: (fed.append(data), feed(self, data)))
    run = go(paying)
    stored = json.loads((run.path / "encoder.json").read_text())
    (federation,) = fed
    for name, column in stored["numeric"].items():
        exact = visits[name]
        assert abs(column["mean"] - exact.mean()) > 1e-6
        assert abs(column["scale"] - exact.std()) > 1e-6
        assert (column["low"], column["high"]) == tuple(paying["data"]["numeric"][name].values())
    assert federation.encoder.to_dict() == stored
    rows = (visits["age"] - stored["numeric"]["age"]["mean"]) / stored["numeric"]["age"]["scale"]
    assert set(np.float32(federation.train.features[:, 0])) <= set(rows.to_numpy().astype(np.float32))
    assert len(run.predict(visits)) == len(visits)


def test_a_method_without_noise_may_pay_for_constants_all_the_same(paying, go):
    paying["method"], paying["evaluation"] = {"name": "fedavg"}, {}
    run = go(paying, against=None)
    assert mechanisms(run.path / "ledger.jsonl")[0] == (0, "statistics")
    assert {row["epsilon"] for row in run.guarantees()} == {"inf"}


def test_a_file_of_test_records_is_encoded_with_the_released_constants(paying, go, visits, tmp_path):
    visits.to_csv(tmp_path / "test.csv", index=False)
    paying["evaluation"] |= {"data": "test.csv", "noise_multiplier": 1e-3, "metrics": ["accuracy"]}
    run = go(paying)
    expected = visits.assign(right=run.predict(visits)["prediction"] == visits["ill"])
    by_silo = expected.groupby(["person", "clinic"])["right"].mean()  # a third of a person for each silo
    assert run.metrics["accuracy"] == pytest.approx(by_silo.mean(), abs=1e-3)
    assert lines_of(run.path / "ledger.jsonl")[-1].get("people") is None  # they may be training people, too


# -- the noise ---------------------------------------------------------------------------------------------------------


def loaded(experiment: dict, visits: pd.DataFrame, **changes: Any) -> tuple[Plan, Any]:
    plan = tacit.plan({**experiment, **changes})
    return plan, load_federation(plan, visits)


@pytest.mark.parametrize("bounded", [True, False])
@pytest.mark.parametrize(("exchange", "draws"), [({}, 300), ({"name": "masked", "drop_outs": 1}, 12)])
def test_sums_carry_the_noise_that_is_paid_for(paying, visits, exchange, draws, bounded):
    """Chi-square of the released sums around the exact ones, error probability 1e-6; and the estimates' errors."""
    if not bounded:
        paying["data"] |= {"numeric": ["age", "pressure"]}
        paying["privacy"] |= {"statistics_noise_multiplier": 10.0}
        draws = min(draws, 12)
    plan, federation = loaded(paying, visits, exchange=exchange)
    unpaid, train = federation.unpaid, federation.train
    query = evaluate.constants_query(plan, unpaid.columns)
    assert isinstance(query, Moments if bounded else Spreads)
    assert query.event() == Gaussian(plan.statistics.noise_multiplier)
    exact = query.total(unpaid.values(), train.subject, train.silo)
    found = [
        evaluate._noisy_sum(
            plan, query, unpaid.values(), train, evaluate._streams(plan, Randomness.from_seed(i), "statistics")
        )
        for i in range(draws)
    ]
    # one drop-out and one curious silo of three: shares of (3 - 1) / (3 (3 - 1 - 1)) instead of 1 / 3
    more = math.sqrt(2) if exchange else 1.0
    assert [noise for _, noise in found] == pytest.approx([10.0 * more] * draws)
    squares = sum(float(((noisy - exact) ** 2).sum()) for noisy, _ in found) / (query.sigma * more) ** 2
    low, high = chi2.ppf([5e-7, 1 - 5e-7], draws * len(exact))
    assert low < squares < high


def test_constants_and_metrics_come_near_the_truth_with_many_people_or_little_noise(paying, visits, go):
    paying["privacy"] |= {"statistics_noise_multiplier": 1e-5}
    paying["evaluation"] |= {"noise_multiplier": 1e-5, "loss_bound": 3.0}
    run = go(paying)
    federation = load_federation(tacit.plan(paying), visits)
    ages = pd.DataFrame({"age": federation.unpaid.values()[:, 0], "who": federation.train.subject,
                         "where": federation.train.silo})  # fmt: skip
    stored = json.loads((run.path / "encoder.json").read_text())["numeric"]["age"]
    parts = ages.groupby(["who", "where"])["age"]
    assert stored["mean"] == pytest.approx(parts.mean().mean(), abs=1e-3)
    second = parts.agg(lambda some: (some**2).mean()).mean()
    assert stored["scale"] == pytest.approx(math.sqrt(second - parts.mean().mean() ** 2), abs=1e-3)
    rest = visits[~visits["age"].isin(ages["age"])]
    shown = run.predict(rest)
    truth = np.where(rest["ill"] == 1, shown["probability"], 1 - shown["probability"])
    scores = rest.assign(accuracy=shown["prediction"] == rest["ill"], log_loss=np.minimum(-np.log(truth), 3.0))
    for name in ("accuracy", "log_loss"):
        expected = scores.groupby(["person", "clinic"])[name].mean().mean()
        assert run.metrics[name] == pytest.approx(expected, abs=1e-3)


def test_scores_of_classes_and_of_numbers():
    logits = np.array([[2.0, 0.0, -1.0], [0.0, 900.0, 0.0], [0.0, 0.0, 0.0]])
    labels = np.array([0, 2, 1])
    assert evaluate.SCORES["accuracy"](logits, labels, 1.0).tolist() == [1, 0, 0]
    losses = [math.log(math.exp(2) + 1 + math.exp(-1)) - 2, 4.0, math.log(3)]
    assert evaluate.SCORES["log_loss"](logits, labels, 4.0) == pytest.approx(losses)
    binary = evaluate.SCORES["log_loss"](np.array([[3.0], [-800.0], [1.0]]), np.array([1, 1, 0]), 4.0)
    assert binary == pytest.approx([math.log1p(math.exp(-3)), 4.0, math.log1p(math.e)])
    assert evaluate.SCORES["rmse"](np.array([[3.0], [9.0]]), np.array([1.0, 1.0]), 10.0).tolist() == [4.0, 10.0]
    assert evaluate._rooted(4.0, 0.4) == (2.0, pytest.approx(0.1))
    assert evaluate._rooted(-1.0, 0.09) == (0.0, pytest.approx(0.3))


# -- metrics at the end, and nowhere else ------------------------------------------------------------------------------


def test_nothing_but_noisy_final_metrics_leaves_the_data_holder(paying, tmp_path, visits):
    paying["seed"] = 3  # which of the exact metrics have many digits depends on the model
    run = tacit.run(tacit.plan(paying), visits, out=tmp_path / "run")
    assert set(run.metrics) == {"accuracy", "log_loss"}
    assert run.result["silos"] == {}
    assert set(run.result["evaluation"]["standard_errors"]) == set(run.metrics)
    lines = read_metrics(run.path / "metrics.jsonl")
    assert [line["round"] for line in lines] == list(range(5))
    assert all(line["metrics"] == {} == line["silos"] for line in lines[:-1])
    assert lines[-1]["metrics"] == run.metrics
    assert lines[-1]["standard_errors"] == run.result["evaluation"]["standard_errors"]
    assert run.history()["accuracy"].isna().tolist() == [True] * 4 + [False]
    local = json.loads((run.path / "local.json").read_text())
    assert set(local["silo_metrics"]) == {"north", "south", "west"}
    exact = [value for silo in local["silo_metrics"].values() for value in silo.values() if value is not None]
    exact = [value for value in exact if len(str(value)) > 10]  # 0.66 may stand anywhere, by chance
    assert len(exact) >= 6
    page = run.report.read_text()
    for file in ("result.json", "metrics.jsonl", "encoder.json"):
        assert not any(str(value) in (run.path / file).read_text() for value in exact)
    assert "the guarantee covers their release" in page
    assert "Standard error of its noise" in page


def test_an_interrupted_run_has_no_metrics_until_it_is_finished(paying, visits, tmp_path):
    class Impatient(engine.Silence):
        def advance(self, number: int, metrics: Any) -> None:
            if number == 2:
                raise KeyboardInterrupt

    plan = tacit.plan(paying)
    stopped = running(plan, frame=visits, out=tmp_path / "run", progress=Impatient())
    assert (stopped.result["status"], stopped.metrics) == ("stopped", {})
    assert mechanisms(stopped.path / "ledger.jsonl") == whole(2)[:-1]
    finished = running(plan, frame=visits, resume=tmp_path / "run")
    assert set(finished.metrics) == {"accuracy", "log_loss"}
    assert mechanisms(finished.path / "ledger.jsonl") == whole(4)
    assert [line["round"] for line in read_metrics(finished.path / "metrics.jsonl")] == list(range(5))


def test_the_width_of_a_masked_sum_follows_from_the_declared_number_of_people_alone(paying):
    paying["method"] = {"name": "uldp-naive", "noise_multiplier": 4.0}
    paying["exchange"] = {"name": "masked"}
    plan = tacit.plan(paying)
    assert evaluate.masked_sum(plan, evaluate.metrics_query(plan)).people == 60
    del paying["data"]["subjects"]["count"]
    with refuses("missing", "data.subjects.count"):
        tacit.plan(paying)


def test_references_beside_metrics_that_are_paid_for_are_refused(paying, visits, tmp_path):
    with refuses("conflict", "evaluation.status"):
        running(tacit.plan(paying), frame=visits, out=tmp_path / "run", baselines=True)
    paying["evaluation"] = {}
    run = running(tacit.plan(paying), frame=visits, out=tmp_path / "run", baselines=("fedavg",))
    assert run.result["baselines"]["fedavg"]["metrics"]["accuracy"] is not None
    assert mechanisms(run.path / "baselines" / "fedavg" / "ledger.jsonl")[0][1] == "fedavg"  # the same constants


# -- resuming ----------------------------------------------------------------------------------------------------------


def test_a_finished_run_is_resumed_without_another_release(paying, go):
    first = go(paying)
    kept = {name: (first.path / name).read_bytes() for name in ("encoder.json", "ledger.jsonl", "metrics.jsonl")}
    again = go(paying, resume=True)
    assert again.metrics == first.metrics
    assert again.result["evaluation"] == first.result["evaluation"]
    assert kept == {name: (again.path / name).read_bytes() for name in kept}


@pytest.mark.parametrize("seeded", [False, True])
@pytest.mark.parametrize("release", ["release_constants", "release_metrics"])
def test_a_kill_before_a_release_is_kept_costs_one_more_of_it_at_most(paying, go, monkeypatch, seeded, release):
    """Between the line and the release: without a seed it is made, and charged, once more; with one it is the same."""
    if seeded:
        paying["seed"] = 3
        undisturbed = go(paying, "undisturbed")
    with monkeypatch.context() as patched:
        patched.setattr(engine, release, lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            go(paying, budget_file="visits.budget")
    run = go(paying, resume=True, budget_file="visits.budget")
    line = whole(4)[0 if release == "release_constants" else -1]
    expected = sorted(whole(4) + ([] if seeded else [line]))
    for ledger in (run.path / "ledger.jsonl", run.path.parent / "visits.budget"):
        assert sorted(mechanisms(ledger)) == expected
    assert account(spent(lines_of(run.path / "ledger.jsonl"), PUBLIC), DELTA).epsilon == run.guarantees()[0]["epsilon"]
    if seeded:
        assert run.metrics == undisturbed.metrics
        for name in ("encoder.json", "model.safetensors"):
            assert (run.path / name).read_bytes() == (undisturbed.path / name).read_bytes()


def test_a_kill_after_the_constants_are_kept_costs_nothing(paying, go, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(engine.Simulation, "feed", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            go(paying)
    constants = (tmp_path / "run" / "encoder.json").read_bytes()
    run = go(paying, resume=True)
    assert (run.path / "encoder.json").read_bytes() == constants
    assert mechanisms(run.path / "ledger.jsonl") == whole(4)


def test_constants_without_their_line_are_not_gone_on_with(paying, go, tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(engine.Simulation, "feed", lambda *_: (_ for _ in ()).throw(Killed))
        with pytest.raises(Killed):
            go(paying)
    (tmp_path / "run" / "ledger.jsonl").unlink()
    with refuses("ledger-mismatch", "--resume"):
        go(paying, resume=True)


# -- budgets -----------------------------------------------------------------------------------------------------------


def test_a_budget_stops_training_in_time_for_the_metrics(paying, go, tmp_path, visits):
    """People are in both here (assigned, held out by record), so that metrics and rounds share the budget."""
    paying["data"]["subjects"] = {"assign": "uniform", "count": 60}
    paying["train"]["rounds"] = 12
    plan = tacit.plan(paying)
    assert not plan.evaluation.apart
    budget = account(plan.promise.total(View("public"), 3), DELTA).epsilon + 1e-6
    allowed = tacit.plan({**paying, "privacy": {**paying["privacy"], "budget": budget}})
    assert planner.rounds_within_budget(allowed) == 3
    run = go(paying, budget=budget)
    assert (run.result["status"], run.result["rounds"]) == ("budget", 3)
    assert set(run.metrics) == {"accuracy", "log_loss"}
    assert mechanisms(run.path / "ledger.jsonl") == whole(3)
    assert run.guarantees()[0]["epsilon"] <= budget
    more = go(paying, resume=True, budget=2 * budget)  # another model, other metrics, other noise: paid for again
    rounds = more.result["rounds"]
    assert rounds > 3
    evaluations = [line for line in mechanisms(more.path / "ledger.jsonl") if line[1] == "evaluation"]
    assert evaluations == [(3, "evaluation"), (rounds, "evaluation")]
    assert more.guarantees()[0]["epsilon"] <= 2 * budget


def test_what_is_paid_for_counts_in_a_shared_budget(paying, go, tmp_path):
    go(paying, "first", budget_file="visits.budget")
    lines = lines_of(tmp_path / "visits.budget")
    assert [(line["round"], line["mechanism"]) for line in lines] == whole(4)
    used = account(spent(lines, PUBLIC), DELTA).epsilon
    assert used == pytest.approx(tacit.plan(paying).guarantees()[0].epsilon)
    with refuses("budget-exhausted", "privacy.budget"):
        go(paying, "second", budget_file="visits.budget", budget=used * 1.0001)
    assert not (tmp_path / "second").exists()
    with refuses("budget-exhausted", "privacy.budget"):
        go(paying, "third", budget=account(Gaussian(6.0), DELTA).epsilon * 0.99)


def test_metrics_that_others_left_nothing_for_are_not_released(paying, go, tmp_path, monkeypatch):
    """Somebody else writes into the shared file while this run trains."""
    budget = tacit.plan(paying).guarantees()[0].epsilon * 1.2
    charge = engine.Charges.charge

    def crowded(self: Any, number: int) -> None:
        charge(self, number)
        if number == 4:
            events = {where: Gaussian(2.0) for where in lines_of(tmp_path / "visits.budget")[0]["events"]}
            with Ledger(tmp_path / "visits.budget") as other:
                other.append(run="other", party="server", round=1, mechanism="m", step=1, events=events)

    monkeypatch.setattr(engine.Charges, "charge", crowded)
    run = go(paying, budget_file="visits.budget", budget=budget)
    assert (run.result["status"], run.metrics) == ("finished", {})
    assert (4, "evaluation") not in mechanisms(run.path / "ledger.jsonl")


def test_a_plan_says_what_is_paid_for(paying, capsys, tmp_path, monkeypatch):
    from tacit.ui import console, main

    (tmp_path / "e.toml").write_text(tacit.plan(paying, folder=tmp_path).to_toml())
    monkeypatch.setattr("sys.argv", ["tacit", "plan", str(tmp_path / "e.toml")])
    monkeypatch.setattr(console, "console", console.Console(markup=False, width=200))
    with pytest.raises(SystemExit):
        main.main()
    said = capsys.readouterr().out
    assert "Released once: constants for standardising, noise multiplier 10, epsilon 0.34" in said
    assert "Released once: metrics of the final model, noise multiplier 6, epsilon 0.5" in said
    assert "about held-out people only" in said
    shown = planner.outlook(tacit.plan(tmp_path / "e.toml")).as_dict()["paid"]
    assert [(row["mechanism"], row["apart"]) for row in shown] == [("statistics", False), ("evaluation", True)]


# -- choosing settings -------------------------------------------------------------------------------------------------


def test_choosing_settings_runs_as_the_documentation_says(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text()
    (code,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.S) if "tempfile" in block)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "docs/privacy.md", "exec"), {"__name__": "example"})
    one, best = map(float, re.findall(r"[:,] (?:epsilon )?(\d+\.\d+)", capsys.readouterr().out))
    assert 0 < one < best < 2 * one
    assert load_arrays(tmp_path / "best.safetensors", "best")[0]  # a model, and nothing of the run that it is from
    (line,) = lines_of(tmp_path / "visits.budget")
    assert line["mechanism"] == "selection"
    assert {path.name for path in tmp_path.iterdir()} == {"best.safetensors", "visits.budget"}


def test_scores_of_records_end_at_their_bound():
    squares = SCORES["rmse"](np.array([[1e300], [0.0]]), np.array([0.0, 0.5]), 2.0)
    assert squares == pytest.approx([2.0, 0.25])
    assert SCORES["log_loss"](np.array([[-1e4], [1e4]]), np.array([1, 1]), 3.0) == pytest.approx([3.0, 0.0])
    assert SCORES["accuracy"](np.array([[-1.0], [1.0]]), np.array([1, 1]), 1.0).tolist() == [0.0, 1.0]
