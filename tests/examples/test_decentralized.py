"""The comparisons of docs/decentralized.md: their plans are valid without data, about the views that the page names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest


@pytest.fixture
def study(names_of) -> dict[str, Any]:
    return names_of("decentralized")


@pytest.mark.parametrize(("world", "unit"), [("PRACTICES", "silo"), ("DIGITS", "silo"), ("PEOPLE", "subject")])
def test_every_contender_is_a_plan_about_one_view_of_the_same_unit(study, world, unit):
    made = study[world]
    labels = {contender.label.partition(",")[0] for contender in made.contenders}
    assert labels >= {"central", "random walk", "local walk"}
    assert world == "PEOPLE" or labels >= {"gossip", "local"}
    for contender in made.contenders:
        noisy = replace(contender, method={**contender.method, "noise_multiplier": 5.0})
        plan = study["planned"](made.file, noisy, study["_first"](contender), made.seeds[0])
        assert (plan.promise.unit, plan.promise.relation, len(plan.promise.views)) == (unit, "zero-out", 1)
    assert not {0, 1, 2, study["judged"].__globals__["CHOOSING_SEED"]} & set(made.seeds)


def test_the_walk_over_digits_is_amplified(study):
    made = study["DIGITS"]
    walk = next(contender for contender in made.contenders if contender.label == "random walk")
    plan = study["planned"](made.file, replace(walk, method={**walk.method, "noise_multiplier": 5.0}), {}, 3)
    assert plan.promise.event("silo", plan.promise.views[0]).contracts
