"""Budgets bind before a round begins, alone and over runs; ledgers that do not add up are refused."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import tacit
from tacit.engine import read_metrics
from tacit.engine.charges import Charges
from tacit.engine.learner import load_arrays, save_tree
from tacit.engine.run import Silence
from tacit.engine.run import run as train
from tacit.planning import preview as planner
from tacit.privacy import Composed, Gaussian, Ledger, LedgerError, Repeated, View, account, spent
from tacit.privacy.ledger import place
from tacit.privacy.proofs.correlated_noise import sensitivity
from tacit.report.run_files import RunFiles, read_run
from tacit.report.sheet import ledger_problem, section_of
from tacit.ui.main import main
from tests.refusals import refuses

DELTA = 1e-5
ROUND = Gaussian(4.0)  # one round of the experiment below, for a whole silo
SEVEN = 2.8  # allows seven such rounds, not eight
PUBLIC = place("silo", View("public"), "zero-out")


def cost(event) -> float:
    return account(event, DELTA).epsilon


def test_the_numbers_above_are_right():
    assert cost(Repeated(ROUND, 7)) <= SEVEN < cost(Repeated(ROUND, 8))


@pytest.fixture
def private(experiment) -> dict:
    """DP-FedAvg with a trusted server, 12 rounds, no seed."""
    del experiment["seed"]
    experiment["data"]["silos"]["count"] = 3
    experiment["method"] |= {"name": "dp-fedavg", "clip": 1.0, "noise_multiplier": 4.0}
    experiment["train"] = {"rounds": 12, "evaluate_every": 1}
    experiment["privacy"] = {"unit": "silo", "delta": DELTA, "against": ["public"]}
    return experiment


def lines_of(path: Path) -> list[dict[str, Any]]:
    with Ledger(path) as ledger:
        return ledger.lines


def rounds_in(path: Path) -> list[int]:
    return [line["round"] for line in lines_of(path)]


# -- one run -----------------------------------------------------------------------------------------------------------


def test_a_run_stops_before_its_budget_is_exceeded_and_keeps_the_last_permitted_model(
    tmp_path, visits, private, monkeypatch, capsys
):
    visits.to_csv(tmp_path / "visits.csv", index=False)
    private["data"]["path"] = "visits.csv"
    private["privacy"] |= {"budget": SEVEN, "against": ["silos:2", "public"]}
    (tmp_path / "e.toml").write_text(tacit.plan(private, folder=tmp_path).to_toml())
    for where in ("--out", "--resume"):  # resuming refuses again, and charges nothing
        monkeypatch.setattr(sys, "argv", ["tacit", "run", str(tmp_path / "e.toml"), where, str(tmp_path / "run")])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 3
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert "privacy.budget" in said
        run = tacit.Run.load(tmp_path / "run")
        assert run.result["status"] == "budget"
        assert run.result["rounds"] == 7
        assert rounds_in(run.path / "ledger.jsonl") == [1, 2, 3, 4, 5, 6, 7]
        assert [row["epsilon"] for row in run.guarantees()] == [pytest.approx(cost(Repeated(ROUND, 7)))] * 2
        assert [line["round"] for line in read_metrics(run.path / "metrics.jsonl")] == list(range(8))
    assert load_arrays(run.path / "model.safetensors", "test")[1] == {"round": "7"}
    assert len(run.predict(visits)) == len(visits)
    assert run.report.is_file()


def test_a_budget_below_one_round_is_refused_before_a_folder_exists(tmp_path, private, go):
    with refuses("budget-exhausted", "privacy.budget"):
        go(private, budget=0.5)
    assert list(tmp_path.iterdir()) == []


def test_epsilon_in_the_metrics_never_falls_and_is_what_the_ledger_s_beginning_costs(private, go):
    private["method"]["silo_sample_rate"] = 0.5
    run = go(private, against=["public", "silo"])
    lines, metrics = lines_of(run.path / "ledger.jsonl"), read_metrics(run.path / "metrics.jsonl")
    assert metrics[0]["epsilon"] == {"public": 0, "silo": 0}
    assert all("silos_in_round" not in line for line in metrics)  # the coins that epsilon counts on are nobody's
    for view in ("public", "silo"):
        where = place("silo", View(view), "zero-out")
        told = [line["epsilon"][view] for line in metrics]
        assert told == [cost(spent(lines[: line["round"]], where)) for line in metrics]
        assert told == sorted(told)


def test_the_page_finds_in_the_ledger_what_the_guarantees_say(private, go):
    run = go(private, relation="replace")
    assert ledger_problem(read_run(run.path)) is None
    run.result["guarantees"][0]["epsilon"] = 0.1
    (run.path / "result.json").write_text(json.dumps(run.result))
    assert "more than the 0.1" in str(ledger_problem(read_run(run.path)))


def test_a_budget_may_bind_what_the_paper_says_instead_of_what_is_proved(tmp_path, private, go):
    private["method"] |= {"name": "local-record", "sample_rate": 0.1, "noise_multiplier": 1.0}
    private["method"].pop("batch_size", None)
    private["data"]["records_per_silo"] = 200
    private["privacy"] |= {"unit": "record", "target": "as-published"}
    whole = tacit.plan(private, folder=tmp_path).promise
    budget = whole.published_epsilon(5)
    assert whole.published_epsilon(4) < budget < whole.published_epsilon(6)
    run = go(private, budget=budget)
    assert rounds_in(run.path / "ledger.jsonl") == [1, 2, 3, 4, 5]
    published = run.guarantees()[0]["as_published"]
    assert published["epsilon"] == pytest.approx(budget)  # of the rounds that were, not of those that were planned


def test_published_numbers_of_several_runs_are_not_added_up(tmp_path, private):
    private["privacy"] |= {"target": "as-published", "budget": 5.0, "budget_file": "shared.budget"}
    with refuses("not-supported", "privacy.budget_file"):
        tacit.plan(private, folder=tmp_path)


def test_a_budget_may_be_changed_on_resuming_and_nothing_else_may(private, go, tmp_path):
    assert go(private, budget=SEVEN).result["rounds"] == 7
    with refuses("changed", "privacy.delta"):
        go(private, resume=True, budget=SEVEN, delta=1e-4)
    lowered = go(private, resume=True, budget=2.0)
    assert (lowered.result["status"], lowered.result["rounds"]) == ("budget", 7)
    raised = go(private, resume=True, budget=10.0)
    assert raised.result["status"] == "finished"
    assert rounds_in(raised.path / "ledger.jsonl") == list(range(1, 13))
    assert raised.experiment.privacy.budget == 10.0
    rounds = [line["round"] for line in read_metrics(raised.path / "metrics.jsonl")]
    assert rounds == list(range(13))


def test_references_are_outside_the_budget_and_never_share_the_noise_of_the_run(tmp_path, visits, private):
    """With a seed and the same settings a reference would otherwise be the run's own noise once more."""
    private |= {"seed": 3, "train": {"rounds": 2}}
    private["privacy"] |= {"budget": SEVEN, "budget_file": "visits.budget"}
    plan = tacit.plan(private, folder=tmp_path)
    run = train(plan, frame=visits, out=tmp_path / "run", baselines=("pooled", "dp-fedsgd"))
    assert run.result["baselines"].keys() == {"pooled", "dp-fedsgd"}
    assert rounds_in(tmp_path / "visits.budget") == rounds_in(run.path / "ledger.jsonl") == [1, 2]
    models = [run.path / "baselines" / "dp-fedsgd", run.path]
    reference, own = (load_arrays(folder / "model.safetensors", "test")[0] for folder in models)
    # two steps of at most 1/3 each cannot lead further apart than this, noise of deviation 4/3 can
    assert max(abs(own[name] - reference[name]).max() for name in own) > 4 / 3


# -- ledgers that were lost, cut, torn or changed ----------------------------------------------------------------------


def test_a_torn_last_line_is_dropped_and_the_run_goes_on(tmp_path, private, go):
    run = go(private, budget=SEVEN, budget_file="visits.budget")
    for path in (run.path / "ledger.jsonl", tmp_path / "visits.budget"):
        whole = path.read_bytes()
        path.write_bytes(whole + whole.splitlines()[-1][:-3])
    go(private, resume=True, budget=10.0, budget_file="visits.budget")
    for path in (run.path / "ledger.jsonl", tmp_path / "visits.budget"):
        assert rounds_in(path) == list(range(1, 13))


@pytest.mark.parametrize("damage", ["missing", "cut", "edited", "line removed", "emptied"])
@pytest.mark.parametrize("which", ["run/ledger.jsonl", "visits.budget"])
def test_a_ledger_that_lacks_a_released_round_is_refused(tmp_path, private, go, which, damage):
    go(private, budget=SEVEN, budget_file="visits.budget")
    path = tmp_path / which
    lines = path.read_text().splitlines(keepends=True)
    changed = {
        "cut": lines[:-1],
        "edited": [line.replace("dp-fedavg", "dp-fedsgd") for line in lines],
        "line removed": lines[:2] + lines[3:],
        "emptied": [],
    }
    if damage == "missing":
        path.unlink()
    else:
        path.write_text("".join(changed[damage]))
    model = (tmp_path / "run" / "model.safetensors").read_bytes()
    field = "--resume" if "run" in which else "privacy.budget_file"
    for _ in range(2):  # the first refusal does not pave the way for a second try
        with refuses("ledger-damaged" if damage in ("edited", "line removed") else "ledger-mismatch", field):
            go(private, resume=True, budget=20.0, budget_file="visits.budget")
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == model


def test_metrics_of_a_round_that_the_ledger_lacks_are_noticed_too(private, go, tmp_path):
    """A checkpoint may lie behind what was released: with a seed it is written only every few rounds."""
    run = go(private)
    checkpoint = run.path / "checkpoint.safetensors"
    arrays, facts = load_arrays(checkpoint, "test")
    save_tree(checkpoint, arrays, {**facts, "round": "9"})
    ledger = run.path / "ledger.jsonl"
    ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:10]))
    for _ in range(2):  # the first refusal leaves the trace in place
        with refuses("ledger-mismatch", "--resume"):
            go(private, resume=True)


def test_a_ledger_that_vanishes_or_shrinks_while_it_is_used_is_noticed(tmp_path, private):
    plan = tacit.plan({**private, "privacy": {**private["privacy"], "budget_file": "visits.budget"}}, folder=tmp_path)
    shared = tmp_path / "visits.budget"
    with Charges(plan, tmp_path / "ledger.jsonl") as charges:
        charges.charge(1)
        shared.rename(tmp_path / "elsewhere")
        with refuses("ledger-damaged", "privacy.budget_file"):
            charges.charge(2)
        shared.write_bytes((tmp_path / "elsewhere").read_bytes())
        with refuses("ledger-damaged", "privacy.budget_file"):
            charges.charge(2)
    with Ledger(shared) as ledger:
        os.truncate(shared, 0)
        with refuses("moved", kind=LedgerError):
            ledger.refresh()
    assert rounds_in(tmp_path / "ledger.jsonl") == [1]


@pytest.mark.parametrize("which", ["run/ledger.jsonl", "visits.budget"])
def test_a_round_that_cannot_be_written_down_is_not_released(tmp_path, visits, private, which):
    class Vandal(Silence):
        def advance(self, number: int, metrics: Any) -> None:
            if number == 3:
                (tmp_path / which).rename(tmp_path / "elsewhere")

    private["privacy"]["budget_file"] = "visits.budget"
    plan = tacit.plan(private, folder=tmp_path)
    with refuses("ledger-damaged", "--resume" if "run" in which else "privacy.budget_file", names=[Path(which).name]):
        train(plan, frame=visits, out=tmp_path / "run", progress=Vandal())
    assert [line["round"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [0, 1, 2, 3]
    assert load_arrays(tmp_path / "run" / "model.safetensors", "test")[1] == {"round": "3"}
    (tmp_path / "elsewhere").rename(tmp_path / which)
    assert train(plan, frame=visits, resume=tmp_path / "run").result["status"] == "finished"
    assert rounds_in(tmp_path / "visits.budget") == list(range(1, 13))


@pytest.mark.parametrize("seed", [None, 3])
def test_a_crash_between_the_two_ledgers_is_made_up_for(tmp_path, private, seed):
    """The run's own line is there, the budget file's is not, and nothing was released."""
    more = {} if seed is None else {"seed": seed}
    shared = {**private["privacy"], "budget": SEVEN, "budget_file": "visits.budget"}
    plan = tacit.plan({**private, "privacy": shared, **more}, folder=tmp_path)
    own, file = tmp_path / "ledger.jsonl", tmp_path / "visits.budget"
    with Charges(plan, own) as charges:
        charges.charge(1)
        charges.charge(2)
    file.write_bytes(file.read_bytes().splitlines(keepends=True)[0] + b'{"events": {')
    with Charges(plan, own) as charges:
        charges.check_covers(1)
        charges.charge(2)
        charges.charge(3)
    assert rounds_in(own) == ([1, 2, 2, 3] if seed is None else [1, 2, 3])
    assert rounds_in(file) == [1, 2, 3]


def test_two_processes_do_not_work_in_one_folder(private, go):
    run = go(private, budget=SEVEN)
    descriptor = os.open(run.path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        with refuses("in-use", "--resume"):
            go(private, resume=True, budget=10.0)
    finally:
        os.close(descriptor)


# -- budgets over runs -------------------------------------------------------------------------------------------------


def test_what_one_run_spent_another_one_cannot(tmp_path, private, go):
    """Three rounds of one, then four of another, then nothing; a refused round is written down nowhere."""
    shared = {"budget": SEVEN, "budget_file": "visits.budget"}
    private["train"]["rounds"] = 3
    assert go(private, "first", **shared).result["status"] == "finished"
    private["train"]["rounds"] = 12
    expected = tacit.plan({**private, "privacy": {**private["privacy"], **shared}}, folder=tmp_path)
    assert planner.rounds_within_budget(expected) == 4
    second = go(private, "second", **shared)
    assert (second.result["status"], second.result["rounds"]) == ("budget", 4)
    ledgers = [second.path / "ledger.jsonl", tmp_path / "visits.budget"]
    assert [len(lines_of(path)) for path in ledgers] == [4, 7]
    before = [path.read_bytes() for path in ledgers]
    again = go(private, "second", resume=True, **shared)
    assert (again.result["status"], again.result["rounds"]) == ("budget", 4)
    assert [path.read_bytes() for path in ledgers] == before
    with refuses("budget-exhausted", "privacy.budget"):
        go(private, "third", **shared)
    assert not (tmp_path / "third").exists()
    assert cost(spent(lines_of(tmp_path / "visits.budget"), PUBLIC)) <= SEVEN


def test_runs_of_different_noise_add_up(tmp_path, private, go):
    private["train"]["rounds"] = 2
    go(private, "first", budget_file="visits.budget")
    private["method"] |= {"noise_multiplier": 3.0, "silo_sample_rate": 0.5}
    private["train"]["rounds"] = 40
    second = go(private, "second", budget=SEVEN, budget_file="visits.budget")
    lines = lines_of(tmp_path / "visits.budget")
    assert second.result["status"] == "budget"
    assert len(lines) == 2 + second.result["rounds"]
    assert cost(spent(lines, PUBLIC)) <= SEVEN < cost(spent([*lines, lines[-1]], PUBLIC))


@pytest.mark.parametrize("kind", ["fedavg", "no noise", "per-silo standardising"])
def test_a_run_without_a_finite_guarantee_leaves_nothing_of_a_budget(tmp_path, visits, private, kind):
    """It may run where it has no budget of its own, and is written down; it may not where it has one."""
    other = json.loads(json.dumps(private))
    other["train"]["rounds"] = 1
    if kind == "fedavg":
        other["method"] = {"name": "fedavg"}
    elif kind == "no noise":
        other["method"]["noise_multiplier"] = 0.0
    else:
        other["data"] |= {"standardize": "per-silo", "numeric": ["age", "pressure"]}
    other["privacy"]["budget_file"] = private["privacy"]["budget_file"] = "visits.budget"
    train(tacit.plan(other, folder=tmp_path), frame=visits, out=tmp_path / "other")
    private["privacy"]["budget"] = 100.0
    with refuses("budget-exhausted", "privacy.budget"):
        train(tacit.plan(private, folder=tmp_path), frame=visits, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with refuses("no-guarantee", "privacy.budget"):
        tacit.plan({**other, "privacy": {**other["privacy"], "budget": 100.0}})


def test_relations_and_views_have_totals_of_their_own(tmp_path, private, go):
    """What costs Gaussian(4) when a silo is zeroed out costs Gaussian(2) when it is replaced."""
    private["train"]["rounds"] = 1
    go(private, "first", budget_file="visits.budget")
    private["method"]["noise_multiplier"] = 8.0  # replaced: Gaussian(4)
    both = cost(Composed((Gaussian(2.0), ROUND)))
    for name, relation, budget in (("second", "replace", both * 1.001), ("third", "replace", both * 0.999)):
        settings = {"relation": relation, "budget": budget, "budget_file": "visits.budget", "against": ["silo"]}
        if name == "second":
            assert go(private, name, **settings).result["status"] == "finished"
        else:
            with refuses("budget-exhausted", "privacy.budget"):
                go(private, name, **settings)


def test_a_view_that_an_earlier_run_did_not_speak_of_counts_as_unprotected(tmp_path, private, go):
    private["train"]["rounds"] = 1
    go(private, "first", budget_file="visits.budget")
    with refuses("budget-exhausted", "privacy.budget"):
        go(private, "second", budget=100.0, budget_file="visits.budget", against=["silos:2"])


def test_one_budget_file_takes_a_seed_from_one_run_only(tmp_path, private, go):
    """Two runs with one seed draw the same noise, and their difference shows what it should hide."""
    private["train"]["rounds"] = 2
    go({**private, "seed": 3}, "first", budget_file="visits.budget")
    with refuses("seed-reused", "seed"):
        go({**private, "seed": 3}, "second", budget_file="visits.budget")
    assert not (tmp_path / "second").exists()
    go({**private, "seed": 4}, "third", budget_file="visits.budget")
    go(private, "fourth", budget_file="visits.budget")
    go({**private, "seed": 3}, "first", resume=True, budget_file="visits.budget")
    assert rounds_in(tmp_path / "visits.budget") == [1, 2] * 3


def test_a_budget_file_that_cannot_be_made_is_refused_before_a_folder_exists(tmp_path, private, go):
    (tmp_path / "folder").mkdir()
    for name, code in (("none/visits.budget", "file-not-found"), ("folder", "file-access")):
        for budget in ({"budget": SEVEN}, {}):
            with refuses(code, "privacy.budget_file"):
                go(private, budget_file=name, **budget)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_parties_that_each_release_jointly_are_all_counted(tmp_path):
    with Ledger(tmp_path / "ledger.jsonl") as ledger:
        for party in ("north", "south"):
            for step in (1, 2):
                events = {PUBLIC: Gaussian(5.0 - step)}
                ledger.append(run="r", party=party, round=step, mechanism="tree", step=step, events=events, joint=True)
        assert spent(ledger.lines, PUBLIC) == Composed((Gaussian(3.0), Gaussian(3.0)))


# -- noise that is correlated over rounds ------------------------------------------------------------------------------


@pytest.fixture
def turns(experiment) -> dict:
    """ULDP-AVG in two groups with noise of three bands, six rounds, no seed."""
    del experiment["seed"]
    experiment["data"]["silos"]["count"] = 3
    experiment["data"]["subjects"]["count"] = 200
    noise = {"noise_multiplier": 4.0, "correlated_noise": {"groups": 2, "bands": 3}}
    experiment["method"] = {"name": "uldp-avg", **noise}
    experiment["train"] = {"rounds": 6, "evaluate_every": 1}
    experiment["privacy"] = {"delta": DELTA, "against": ["public"]}
    return experiment


def test_correlated_noise_is_charged_whole_with_the_first_round(tmp_path, turns, go):
    run = go(turns, budget_file="visits.budget")
    whole = Gaussian(4.0 / sensitivity(3, 2, 6))
    where = place("subject", View("public"), "zero-out")
    for path in (run.path / "ledger.jsonl", tmp_path / "visits.budget"):
        lines = lines_of(path)
        assert [(line["round"], line["joint"]) for line in lines] == [(number, True) for number in range(1, 7)]
        assert cost(spent(lines[:1], where)) == cost(spent(lines, where)) == pytest.approx(cost(whole))
    told = [line["epsilon"]["public"] for line in read_metrics(run.path / "metrics.jsonl")]
    assert told == [0] + [pytest.approx(cost(whole))] * 6
    assert run.guarantees()[0]["epsilon"] == pytest.approx(cost(whole))


def test_a_budget_allows_all_rounds_of_correlated_noise_or_none(tmp_path, turns, go):
    whole = cost(Gaussian(4.0 / sensitivity(3, 2, 6)))
    with refuses("budget-exhausted", "privacy.budget"):
        go(turns, budget=0.99 * whole)
    assert list(tmp_path.iterdir()) == []
    run = go(turns, budget=1.01 * whole)
    assert (run.result["status"], run.result["rounds"]) == ("finished", 6)


def test_correlated_noise_goes_on_with_a_seed_and_not_without(turns, go):
    go(turns, "lost")
    with refuses("cannot-resume", "--resume"):
        go(turns, "lost", resume=True)
    seeded = {**turns, "seed": 5}
    run = go(seeded, "kept")
    again = go(seeded, "kept", resume=True)
    assert again.guarantees()[0]["epsilon"] == run.guarantees()[0]["epsilon"]
    assert rounds_in(run.path / "ledger.jsonl") == list(range(1, 7))


# -- what it takes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 3])
def test_a_charge_late_in_a_long_run_costs_what_an_early_one_does(tmp_path, private, seed, monkeypatch):
    """Counted in function calls, which no other work on the machine changes."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    more = {} if seed is None else {"seed": seed}
    private["method"]["noise_multiplier"] = 400.0
    private["train"]["rounds"] = 10_000
    shared = {**private["privacy"], "budget": 5.0, "budget_file": "visits.budget"}
    plan = tacit.plan({**private, "privacy": shared, **more}, folder=tmp_path)

    def calls(charges: Charges, first: int) -> int:
        seen = Counter()
        sys.setprofile(lambda frame, event, what: seen.update([event]))
        try:
            for number in range(first, first + 20):
                charges.charge(number)
        finally:
            sys.setprofile(None)
        return seen["call"] + seen["c_call"]

    with Charges(plan, tmp_path / "ledger.jsonl") as charges:
        charges.charge(1)  # looks ahead: how many rounds are allowed
        early = calls(charges, 2)
        for number in range(22, 1000):
            charges.charge(number)
        late = calls(charges, 1000)
    assert early > 20 * 10
    assert late < 1.1 * early  # tens of times as many where every line is read again


def test_a_run_without_noise_says_so_in_short_lines_and_leaves_nothing_for_others(tmp_path, private, go):
    shared = {"budget_file": "visits.budget"}
    without = {**private, "method": {"name": "fedavg"}, "privacy": {}, "train": {"rounds": 2}}
    go(without, "plain", **shared)
    assert all(len(line) < 500 for line in (tmp_path / "visits.budget").read_text().splitlines())
    with refuses("budget-exhausted", "privacy.budget"):
        go(private, "private", budget=50.0, **shared)


def test_the_seconds_of_a_run_add_up(private, go):
    seconds = go(private).result["seconds"]
    assert seconds.keys() == {"compile", "train", "evaluate", "exchange", "ledger", "total"}
    parts = sum(value for name, value in seconds.items() if name != "total")
    assert parts == pytest.approx(seconds["total"], rel=0.1)


def test_the_sheet_says_what_others_spent_of_a_shared_budget(private, go):
    shared = {"budget": SEVEN, "budget_file": "visits.budget"}
    private["train"]["rounds"] = 3
    alone = read_run(go(private, "first", **shared).path)
    assert "no other run was in it" in sheet_page(alone)
    second = read_run(go(private, "second", **shared).path)
    found = second.budget_file["epsilon"]["public"]
    assert found["others"] == pytest.approx(cost(Repeated(ROUND, 3)))
    assert found["all"] == pytest.approx(cost(Repeated(ROUND, 6)))
    said = sheet_page(second)
    assert "visits.budget, shared with 1 other run" in said
    assert "standard deviation 4 on every number of a sum" in said


def sheet_page(run: RunFiles) -> str:
    return str(section_of(run))
