"""Ledgers of the first accounting: what their runs cost, found again from the plans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from typer.testing import CliRunner

from tacit.engine.charges import events
from tacit.engine.folder import Run, plan_content
from tacit.ledgers.recheck import ADVISORIES, check
from tacit.planning.plan import plan
from tacit.privacy import Event, Gaussian, Ledger, PoissonSampled, Repeated
from tacit.privacy.accounting.account import account
from tacit.privacy.ledger import ACCOUNTING, _sealed, place
from tacit.report.run_files import read_run
from tacit.report.sheet import ledger_problem
from tacit.ui.main import app
from tests.refusals import refuses

ROUNDS = 100
BY_RECORDS = {"name": "uldp-avg", "noise_multiplier": 5.0, "weights": "records"}
AVG = {"name": "uldp-avg", "noise_multiplier": 5.0}


def experiment(method: dict[str, Any], exchange: dict[str, Any], subjects: int = 2, **privacy: Any) -> dict[str, Any]:
    """With so few subjects that rounding does not show, unless told otherwise."""
    return {
        "data": {
            "silos": {"column": "silo", "count": 5},
            "subjects": {"column": "person", "count": subjects},
            "records_per_silo": 2000,
        },
        "method": method,
        "exchange": exchange,
        "train": {"rounds": ROUNDS},
        "privacy": {"max_records_per_subject_and_silo": 20, "unit": "subject", **privacy},
    }


def ledger(
    file: Path,
    run: str,
    mechanism: str,
    by_view: dict[str, Event],
    rounds: int = ROUNDS,
    party: str = "server",
    more: dict[str, Any] | None = None,
) -> None:
    """Lines as the first version wrote them, after those that are there."""
    before = file.read_text().splitlines() if file.exists() else []
    previous = json.loads(before[-1])["hash"] if before else "0" * 64
    told = {place("subject", view, "zero-out"): event.as_dict() for view, event in by_view.items()} | (more or {})
    with file.open("a") as lines:
        for number in range(1, rounds + 1):
            body = {"run": run, "party": party, "round": number, "mechanism": mechanism, "step": number}
            line = _sealed({**body, "joint": False, "events": told}, previous)
            previous = line["hash"]
            lines.write(json.dumps(line, sort_keys=True) + "\n")


def folder(
    path: Path, content: dict[str, Any], by_view: dict[str, Event], *, federated: bool = False, run: str = "a"
) -> Path:
    path.mkdir()
    (path / "plan.toml").write_text(tomli_w.dumps(content))
    if not federated:
        (path / "local.json").write_text("{}")
    ledger(path / "ledger.jsonl", run, content["method"]["name"], by_view)
    return path


def checked(path: Path) -> tuple[str, dict[str, tuple[float, float]]]:
    (found,), _ = check([path])
    return found.status, {view: (each.recorded, each.corrected) for view, each in found.epsilon.items()}


def test_weights_of_all_records_cost_a_silo_s_view_more_than_was_recorded(tmp_path):
    told = {"public": Gaussian(5.0), "server": Gaussian(5.0), "silo": Gaussian(5.0 * 0.8**0.5)}
    status, costs = checked(folder(tmp_path / "run", experiment(BY_RECORDS, {"name": "weighted"}), told))
    assert status == "under-counted"
    assert costs["silo"] == pytest.approx((11.48, 22.91), abs=5e-3)
    assert costs["public"] == pytest.approx((9.997, 9.997), abs=1e-3)


@pytest.mark.parametrize(("accounting", "weights"), [(None, "records-phantom"), (3, "records-phantom"), (4, "records")])
def test_record_weights_of_an_earlier_plan_keep_their_meaning(tmp_path, accounting, weights):
    """Until accounting 3, "records" was n / (1 + N)."""
    made = experiment({**BY_RECORDS, "disclose_counts": True}, {"name": "plain"})
    run = folder(tmp_path / "run", made, {"public": Gaussian(5.0)})
    if accounting is not None:
        (run / "ledger.jsonl").unlink()
        later(run / "ledger.jsonl", accounting)
    later(run / "ledger.jsonl", ACCOUNTING, rounds=1)  # resumed with this version
    (run / "result.json").write_text("{}")
    assert plan_content(run)["method"]["weights"] == weights
    assert Run.load(run).experiment.method["weights"] == weights
    assert check([run])[0][0].status != "not recomputed"


@pytest.mark.parametrize(("accounting", "protocol"), [(3, "paillier"), (4, None)])
def test_the_weighted_exchange_of_an_earlier_plan_keeps_its_protocol(tmp_path, accounting, protocol):
    run = folder(tmp_path / "run", experiment(BY_RECORDS, {"name": "weighted"}), {"public": Gaussian(5.0)})
    (run / "ledger.jsonl").unlink()
    later(run / "ledger.jsonl", accounting)
    assert plan_content(run)["exchange"].get("protocol") == protocol


def test_a_plan_of_a_run_without_releases_is_read_as_it_is(tmp_path):
    run = folder(tmp_path / "run", experiment(BY_RECORDS, {"name": "weighted"}), {})
    (run / "ledger.jsonl").unlink()
    assert plan_content(run)["method"]["weights"] == "records"


def test_subjects_of_a_federation_who_could_share_a_number_cost_two_clips(tmp_path):
    told = {"public": Gaussian(5.0), "server": Gaussian(5.0), "silo": Gaussian(5.0 * 0.8**0.5)}
    made = experiment(AVG, {"name": "masked"}, against=["public"])
    status, costs = checked(folder(tmp_path / "run", made, told, federated=True))
    assert status == "under-counted"
    assert costs["public"] == pytest.approx((9.997, 24.382), abs=1e-3)
    status, costs = checked(folder(tmp_path / "simulated", made, told))
    assert (status, costs["public"]) == ("ok", pytest.approx((9.997, 9.997), abs=1e-3))


def test_noise_of_missing_silos_is_not_counted(tmp_path):
    """The public may have seen the part of one silo alone: as much as the server sees."""
    method = {"name": "higrad", "noise_multiplier": 2.0, "sample_rate": 0.01, "batches_per_round": 1}
    made = experiment(method, {"name": "plain"}, against=["public", "server"])
    promise = plan(made).promise
    told = {view: events(promise)[place("subject", view, "zero-out")] for view in ("public", "server")}
    status, costs = checked(folder(tmp_path / "run", made, told, federated=True))
    assert status == "under-counted"
    assert costs["public"][1] == costs["server"][1] > costs["public"][0]


@pytest.mark.parametrize(
    ("method", "exchange", "adds"), [(AVG, "plain", True), (AVG, "masked", True), (BY_RECORDS, "weighted", False)]
)
def test_sums_in_single_precision_cost_the_rounding_of_all_subjects(tmp_path, method, exchange, adds):
    """1,000 subjects in up to 5 silos: 2 * 5005 * 2^-24 * 1000 = .597 clips."""
    made = experiment(method, {"name": exchange}, subjects=1000, against=["public"])
    status, costs = checked(folder(tmp_path / "run", made, {"public": Gaussian(5.0)}))
    exact = account(Repeated(Gaussian(5.0 / (1.597 if adds else 1.0)), ROUNDS), 1e-5).epsilon
    assert (status, costs["public"][1]) == ("under-counted" if adds else "ok", pytest.approx(exact, rel=1e-3))


def test_sums_of_batches_in_single_precision_cost_the_rounding_of_a_batch(tmp_path):
    method = {"name": "local-record", "noise_multiplier": 2.0, "sample_rate": 0.25, "batches_per_round": 1}
    made = experiment(method, {"name": "plain"}, unit="record", against=["server"])
    exact = events(plan(made).promise)[place("record", "server", "zero-out")]
    run = folder(tmp_path / "run", made, {})
    (run / "ledger.jsonl").unlink()
    told = {place("record", "server", "zero-out"): exact.as_dict()}
    ledger(run / "ledger.jsonl", "a", "local-record", {}, more=told)
    status, costs = checked(run)
    assert status == "under-counted"
    assert 1.001 < costs["server"][1] / costs["server"][0] < 1.05


@pytest.mark.parametrize(
    ("method", "privacy", "view"),
    [
        ({**AVG, "correlated_noise": {"groups": 4, "bands": 4}}, {}, "public"),  # turns by rank
        (AVG, {"max_silos_per_subject": 2}, "silo"),  # a cap over silos
    ],
)
def test_what_depended_on_who_is_present_has_no_bound(tmp_path, method, privacy, view):
    told = {"public": Gaussian(5.0), "server": Gaussian(5.0), "silo": Gaussian(5.0)}
    made = experiment(method, {"name": "plain"}, against=[view], **privacy)
    status, costs = checked(folder(tmp_path / "run", made, told))
    assert (status, costs[view][1]) == ("under-counted", float("inf"))


def test_noise_that_was_solved_for_is_that_of_the_run(tmp_path):
    made = experiment({"name": "uldp-avg", "target_epsilon": 4.0}, {"name": "plain"}, against=["public"])
    run = folder(tmp_path / "run", made, {"public": PoissonSampled(1.0, Gaussian(5.0))})
    assert check([run])[0][0].status == "not recomputed"
    (run / "result.json").write_text(json.dumps({"noise_multiplier": 5.0}))
    assert checked(run) == ("ok", {"public": pytest.approx((9.997, 9.997), abs=1e-3)})


def test_lines_of_a_budget_file_need_the_folder_of_their_run(tmp_path):
    told = {"public": Gaussian(5.0)}
    run = folder(tmp_path / "run", experiment(AVG, {"name": "masked"}, against=["public"]), told, federated=True)
    budget = tmp_path / "budget.jsonl"
    ledger(budget, "a", "uldp-avg", told)
    ledger(budget, "b", "uldp-avg", told)
    alone = {found.run: found.status for found in check([budget])[0]}
    assert alone == {"a": "not recomputed", "b": "not recomputed"}
    both = {(Path(found.ledger).name, found.run): found.status for found in check([budget, run])[0]}
    assert both[("budget.jsonl", "a")] == both[("ledger.jsonl", "a")] == "under-counted"
    assert both[("budget.jsonl", "b")] == "not recomputed"
    with refuses("wrong-file", "ledger"):
        check([tmp_path / "nothing.jsonl"])


def test_a_silo_s_own_ledger_is_recomputed_from_what_replacing_a_subject_costs(tmp_path):
    file = tmp_path / "visits.ledger.jsonl"
    told = {"public": Gaussian(5.0), "server": Gaussian(5.0)}
    replaced = {place("subject", view, "replace"): Gaussian(2.5).as_dict() for view in told}
    ledger(file, "a", "uldp-avg", told, party="north", more=replaced)
    assert checked(file) == (
        "under-counted",
        {view: pytest.approx((9.997, 24.382), abs=1e-3) for view in ("public", "server")},
    )


def test_new_lines_say_which_accounting_wrote_them(tmp_path):
    file = tmp_path / "ledger.jsonl"
    ledger(file, "old", "uldp-avg", {"public": Gaussian(5.0)}, rounds=2)  # stays readable, and is gone on with
    with Ledger(file) as book:
        event = {place("subject", "public", "zero-out"): Gaussian(5.0)}
        book.append(run="new", party="server", round=1, mechanism="uldp-avg", step=1, events=event)
        assert [line.get("accounting") for line in book.lines] == [None, None, ACCOUNTING]
    assert {found.run: found.status for found in check([file])[0]} == {"old": "not recomputed", "new": "ok"}


def later(file: Path, accounting: int, run: str = "a", party: str = "server", rounds: int = ROUNDS) -> None:
    """Lines of a later accounting, after those that are there."""
    before = file.read_text().splitlines() if file.exists() else []
    previous = json.loads(before[-1])["hash"] if before else "0" * 64
    told = {place("subject", view, "zero-out"): Gaussian(5.0).as_dict() for view in ("public", "server")}
    with file.open("a") as lines:
        for number in range(1, rounds + 1):
            body = {"run": run, "party": party, "round": number, "mechanism": "uldp-avg", "step": number}
            line = _sealed({**body, "joint": False, "accounting": accounting, "events": told}, previous)
            previous = line["hash"]
            lines.write(json.dumps(line, sort_keys=True) + "\n")


NAMES = tuple(advisory.name for advisory in ADVISORIES)


@pytest.mark.parametrize(
    ("accounting", "yes", "no"), [(1, NAMES[:1], NAMES[1:]), (2, (), NAMES[1:]), (ACCOUNTING, (), ())]
)
def test_advisories_that_are_not_checked_are_named(tmp_path, accounting, yes, no):
    made = experiment(AVG, {"name": "masked"}, against=["public"])
    run = folder(tmp_path / "run", made, {"public": Gaussian(5.0)})
    if accounting > 1:
        (run / "ledger.jsonl").unlink()
        later(run / "ledger.jsonl", accounting)
    (found,), _ = check([run])
    assert (found.status, found.checked, found.not_checked) == ("ok", yes, no)
    assert found.epsilon["public"].recorded == pytest.approx(9.997, abs=1e-3)
    shown = CliRunner().invoke(app, ["ledger", "check", str(run)])
    assert shown.exit_code == 0
    assert all(name in shown.stdout for name in NAMES)
    pages = [advisory.page for advisory in ADVISORIES if advisory.page in shown.stdout]
    assert pages == [advisory.page for advisory in ADVISORIES if advisory.name in no]
    told = json.loads(CliRunner().invoke(app, ["ledger", "check", str(run), "--json"]).stdout)["runs"][0]
    assert (tuple(told["checked"]), tuple(told["not_checked"])) == (yes, no)


def test_an_advisory_is_about_accountings_that_were_and_has_a_page():
    pages = Path(__file__).parents[1] / "docs" / "advisories"
    of_security = {"TACIT-2026-05", "TACIT-2026-06", "TACIT-2026-07"}  # says nothing about what a run cost
    assert {*NAMES, *of_security} == {page.stem for page in pages.glob("TACIT-*.md")}
    assert all(1 < advisory.corrected_in <= ACCOUNTING for advisory in ADVISORIES)


def test_a_run_has_a_title_and_the_causes_of_what_it_cost(tmp_path):
    made = experiment(AVG, {"name": "masked"}, against=["public"]) | {"title": "Visits"}
    run = folder(tmp_path / "run", made, {"public": Gaussian(5.0)}, federated=True)
    (found,), _ = check([run])
    assert (found.title, found.lines, found.reason.split(":")[0]) == ("Visits", ROUNDS, "F3")
    shown = CliRunner().invoke(app, ["ledger", "check", str(run)]).stdout
    assert all(word in shown for word in (str(run), "Visits", "9.998", "24.39", "F3"))


def test_the_total_of_a_ledger_with_several_runs_is_told(tmp_path):
    file = tmp_path / "visits.ledger.jsonl"
    later(file, ACCOUNTING, "a", "north")
    later(file, ACCOUNTING, "b", "north", 2)
    runs, (total,) = check([file])
    assert [(each.run, each.lines) for each in runs] == [("a", ROUNDS), ("b", 2)]
    both = account(Repeated(Gaussian(5.0), ROUNDS + 2), 1e-5).epsilon
    assert (total.runs, total.lines, total.place) == (2, ROUNDS + 2, "subject/zero-out")
    assert total.epsilon["public"].recorded == pytest.approx(both, rel=1e-6)
    told = json.loads(CliRunner().invoke(app, ["ledger", "check", str(file), "--json"]).stdout)
    assert told["ledgers"][0]["epsilon"]["server"]["recorded"] == pytest.approx(both, rel=1e-6)


def test_the_command_exits_with_3_where_a_run_was_under_counted(tmp_path):
    told = {"public": Gaussian(5.0)}
    made = experiment(AVG, {"name": "masked"}, against=["public"])
    wrong, right = folder(tmp_path / "wrong", made, told, federated=True), folder(tmp_path / "right", made, told)
    found = CliRunner().invoke(app, ["ledger", "check", str(wrong), "--json"])
    assert found.exit_code == 3
    (line,) = json.loads(found.stdout)["runs"]
    assert line["status"] == "under-counted"
    assert line["epsilon"]["public"]["corrected"] == pytest.approx(24.382, abs=1e-3)
    assert CliRunner().invoke(app, ["ledger", "check", str(right)]).exit_code == 0
    shown = CliRunner().invoke(app, ["ledger", "check", str(wrong), str(right)])
    lines = shown.stdout.splitlines()
    assert (shown.exit_code, len(lines)) == (3, 2 + len(ADVISORIES))
    assert [str(path) in line for path, line in zip((wrong, right), lines, strict=False)] == [True, True]


def test_a_report_shows_the_corrected_number(tmp_path):
    made = experiment(AVG, {"name": "masked"}, against=["public"])
    run = folder(tmp_path / "run", made, {"public": Gaussian(5.0)}, federated=True)
    printed = plan(made).guarantees()[0].as_dict() | {"epsilon": 9.9973}
    (run / "result.json").write_text(json.dumps({"guarantees": [printed], "noise_multiplier": 5.0}))
    read = read_run(run)
    assert read.guarantees[0].epsilon == pytest.approx(24.382, abs=1e-3)
    assert read.correction
    assert not read.released.spent  # limits of attacks come from the corrected number, not from recorded events
    assert ledger_problem(read) is None  # the ledger is whole; what it recorded was too little


def test_a_corrected_report_shows_no_epsilon_of_single_rounds(tmp_path):
    made = experiment(AVG, {"name": "masked"}, against=["public"])
    run = folder(tmp_path / "run", made, {"public": Gaussian(5.0)}, federated=True)
    (run / "result.json").write_text(json.dumps({"guarantees": [], "noise_multiplier": 5.0}))
    (run / "metrics.jsonl").write_text(json.dumps({"round": 1, "metrics": {}, "epsilon": {"public": 9.0}}) + "\n")
    assert [point.epsilon for point in read_run(run).curve] == [{}]
    (run / "ledger.jsonl").unlink()
    later(run / "ledger.jsonl", ACCOUNTING)
    assert [point.epsilon for point in read_run(run).curve] == [{"public": 9.0}]
