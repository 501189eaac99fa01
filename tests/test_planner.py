"""What a plan says before any record is read."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import tacit
from tacit import report
from tacit.planning import preview as planner
from tacit.planning import sweep as sweeper
from tacit.privacy import Gaussian, PoissonSampled, Repeated, account
from tacit.ui.main import main
from tests.refusals import refuses


def content(**changes: Any) -> dict[str, Any]:
    """Six sites of the built-in data, whole silos protected by a trusted server."""
    sections: dict[str, Any] = {
        "title": "Visits",
        "data": {"source": "randhie"},
        "model": {"name": "logistic"},
        "method": {"name": "dp-fedavg", "clip": 0.5, "noise_multiplier": 2.0, "silo_sample_rate": 0.5},
        "train": {"rounds": 10},
    }
    for key, value in changes.items():
        sections[key] = value if isinstance(value, str | int) else {**sections.get(key, {}), **value}
    return sections


def plan(**changes: Any) -> tacit.Plan:
    return tacit.plan(content(**changes))


def test_the_promise_is_that_of_the_first_view_that_binds():
    assert planner.outlook(plan()).promise.startswith("Adding or removing everything that any one silo holds changes")
    against_server = plan(privacy={"against": ["server", "public"]})
    assert planner.outlook(against_server).promise.startswith("Nothing is promised about what the server can learn")


def test_noise_stands_beside_the_largest_sum_that_clipping_allows():
    noise = planner.noise_to_signal(plan())
    assert noise is not None
    assert (noise.multiplier, noise.std, noise.solved) == (2.0, 1.0, False)
    assert noise.parameters == 23
    assert noise.norm == pytest.approx(math.sqrt(23))
    assert noise.units == "3 of 6 silos on average"
    assert noise.largest == 1.5
    assert noise.ratio == pytest.approx(math.sqrt(23) / 1.5)


def test_layers_that_stay_fixed_carry_no_noise():
    model = {"name": "mlp", "hidden": [4]}
    whole = plan(model=model).parameters
    assert plan(model=model | {"freeze": ["layer0"]}).parameters == whole - (22 * 4 + 4)


def test_a_method_without_noise_has_none_and_promises_nothing():
    made = tacit.plan({**content(), "method": {"name": "fedavg"}})
    outlook = planner.outlook(made)
    assert outlook.noise is None
    assert outlook.promise.startswith("Nothing is promised")
    assert outlook.rounds_within_budget is None


def test_a_budget_allows_as_many_rounds_as_cost_no_more_than_it():
    def epsilon(rounds: int) -> float:
        return account(Repeated(PoissonSampled(0.5, Gaussian(2.0)), rounds), 1e-5).epsilon

    budget = (epsilon(6) + epsilon(7)) / 2
    assert planner.rounds_within_budget(plan(privacy={"budget": budget})) == 6
    assert planner.rounds_within_budget(plan(privacy={"budget": 100.0})) == 10
    assert planner.rounds_within_budget(plan(privacy={"budget": epsilon(1) / 2})) == 0


# ---- a person in many silos


def sixteen_silos(against: tuple[str, ...] = ("server",), **method: Any) -> tacit.Plan:
    return tacit.plan(
        {
            "data": {
                "silos": {"column": "silo", "count": 16},
                "subjects": {"column": "person", "count": 500},
                "records_per_silo": 4000,
            },
            "method": {
                "name": "higrad",
                "sample_rate": 0.02,
                "batches_per_round": 2,
                "noise_multiplier": 4.0,
                **method,
            },
            "train": {"rounds": 25},
            "privacy": {"max_records_per_subject_and_silo": 10, "unit": "subject", "against": list(against)},
        }
    )


def test_silos_allow_r_over_s_rounds_and_the_papers_root_stands_beside_it():
    made = sixteen_silos()
    found = planner.over_silos(made)
    assert found is not None
    assert (found.silos, found.alone, found.proved, found.published) == (16, 400, 25, 100)
    one_silo = Repeated(PoissonSampled(1 - 0.98**10, Gaussian(4.0)), 2)
    assert account(Repeated(one_silo, found.alone), 1e-5).epsilon == pytest.approx(found.epsilon, rel=0.02)
    assert account(Repeated(one_silo, 16 * found.published), 1e-5).epsilon == pytest.approx(
        found.published_epsilon, rel=0.02
    )
    assert found.published_epsilon > 1.8 * found.epsilon
    for text in ("16 silos", "400", "25 (R/s, proved)", "100 (R/sqrt(s), [SubjectDP-2])", "one more release"):
        assert text in found.words


def test_one_batch_a_round_adds_up_for_the_server_though_the_public_sees_only_the_sum():
    found = planner.over_silos(sixteen_silos(("public", "server"), batches_per_round=1))
    assert found is not None
    one_silo = PoissonSampled(1 - 0.98**10, Gaussian(4.0))
    assert account(Repeated(one_silo, found.alone), 1e-5).epsilon == pytest.approx(found.epsilon, rel=0.02)
    assert planner.over_silos(sixteen_silos(("public",), batches_per_round=1)) is None


def test_silos_that_do_not_add_up_one_by_one_say_nothing():
    assert planner.over_silos(sixteen_silos(name="uldp-group", group_size=16)) is None
    people = {**content(), "method": {"name": "subject-sgd", "noise_multiplier": 4.0}}
    assert planner.over_silos(tacit.plan(people)) is None


def test_the_plan_command_prints_both_numbers(tmp_path, monkeypatch, capsys):
    (tmp_path / "e.toml").write_text(sixteen_silos().to_toml())
    monkeypatch.setattr(sys, "argv", ["tacit", "plan", str(tmp_path / "e.toml")])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "25 (R/s, proved), not 100 (R/sqrt(s), [SubjectDP-2])" in said


# ---- sweeps


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (["rounds=10,100"], {"train.rounds": (10, 100)}),
        (["rounds=10:200"], {"train.rounds": (10, 20, 50, 100, 200)}),
        (["clip=0.05:1"], {"method.clip": (0.05, 0.1, 0.2, 0.5, 1)}),
        (["rounds=10,100,clip=0.5,1"], {"train.rounds": (10, 100), "method.clip": (0.5, 1)}),
        (["rounds=10,100", "delta=1e-5,1e-6"], {"train.rounds": (10, 100), "privacy.delta": (1e-5, 1e-6)}),
        (["train.rounds=1e3"], {"train.rounds": (1000,)}),
    ],
)
def test_a_sweep_is_written_as_people_write_it(texts, values):
    found = {axis.key: axis.values for axis in sweeper.axes(texts, "dp-fedavg")}
    assert found == values


@pytest.mark.parametrize(
    ("text", "code"),
    [
        *((text, "malformed") for text in ("rounds", "rounds=", "rounds=ten", "rounds=10:1", "=3")),
        ("rouds=10", "unknown-name"),
        ("rounds=1,rounds=2", "duplicate"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_a_users_mistake(text, code):
    with refuses(code, "--sweep"):
        sweeper.axes([text], "dp-fedavg")


def test_a_target_needs_more_noise_for_more_rounds_and_keeps_its_epsilon():
    target = {"name": "dp-fedavg", "clip": 0.5, "target_epsilon": 2.0, "silo_sample_rate": 0.5}
    sweep = sweeper.sweep({**content(), "method": target}, ["rounds=10,40,clip=0.5,1"], Path())
    assert sweep.solves == "noise_multiplier"
    noise = {point.values: point.noise_multiplier for point in sweep.points}
    assert noise[40, 0.5] > noise[10, 0.5] == noise[10, 1]
    assert all(1.9 < point.epsilon <= 2.0 for point in sweep.points)
    assert {point.values: point.std for point in sweep.points}[10, 1] == noise[10, 1]


def test_given_noise_costs_more_with_more_rounds():
    told: list[tuple[int, int]] = []
    sweep = sweeper.sweep(content(), ["rounds=5,10,20"], Path(), report=lambda done, total: told.append((done, total)))
    assert sweep.solves == "epsilon"
    epsilons = [point.epsilon for point in sweep.points]
    assert epsilons == sorted(epsilons)
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_whoever_sweeps_the_target_leaves_the_files_noise_aside():
    sweep = sweeper.sweep(content(), ["epsilon=1,4"], Path())
    assert sweep.points[0].noise_multiplier > sweep.points[1].noise_multiplier
    assert sweep.target is None


def test_what_cannot_be_swept_is_refused():
    with refuses("not-private", "method.name"):
        sweeper.sweep({**content(), "method": {"name": "fedavg"}}, ["rounds=1,2"], Path())
    with refuses("too-many", "--sweep"):
        sweeper.sweep(content(), [f"rounds={','.join(map(str, range(1, 500)))}"], Path())


def test_a_sweep_is_drawn_with_a_line_per_combination(tmp_path):
    sweep = sweeper.sweep(content(), ["rounds=5,10,20", "silo_sample_rate=0.5,1"], Path())
    page = report.sweep_page(sweep, tmp_path / "sweep.html").read_text()
    assert "silo_sample_rate 0.5" in page
    figures = [json.loads(found) for found in re.findall(r'data-chart="">(.*?)</script>', page)]
    assert figures
    for figure in figures:
        first, second = figure["series"]
        assert (first["x"], second["x"]) == ([5, 10, 20], None)  # the second has the places of the first
        assert len(first["y"]) == len(second["y"]) == 3
