"""The comparison of docs/subject.md: nobody is tested on whom a setting was chosen with, and every method can run."""

from __future__ import annotations

import math
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The runner's names and those of its worlds; other examples have modules of the same names."""
    monkeypatch.delitem(sys.modules, "worlds", raising=False)
    monkeypatch.setattr(sys, "path", [str(EXAMPLES / "subject"), *sys.path])
    names = runpy.run_path(str(EXAMPLES / "subject" / "run.py"))
    return SimpleNamespace(**names, worlds=sys.modules["worlds"])


def test_no_setting_is_chosen_with_people_that_results_are_tested_on(runner):
    world = runner.World(EXAMPLES / "subject" / "randhie.toml", "auc")

    def people(seed: int) -> tuple[set[bytes], set[bytes]]:
        """Training and held-out rows under a seed, by what they say."""
        federation = runner.people_of(world, runner.planned(world, runner.FEDAVG, {}, seed))
        parts = (federation.train, federation.test)
        return tuple({row.tobytes() for row in np.column_stack([part.features, part.labels])} for part in parts)

    chosen_with, _ = people(runner.worlds.CHOOSING_SEED)
    for seed in runner.SEEDS:
        _, tested = people(seed)
        # different people may say the same, but hardly ever
        assert len(tested & chosen_with) < 0.1 * len(tested)


def test_only_what_a_seed_need_not_change_is_fixed(runner):
    for name in ("randhie", "insteval", "diabetes130", "shakespeare"):
        plans = [runner.worlds.changed(EXAMPLES / "subject" / f"{name}.toml", {}, seed) for seed in runner.SEEDS]
        assert {plan.experiment.data.seed for plan in plans} == {0}
        assert {plan.experiment.seed for plan in plans} == set(runner.SEEDS)


def test_the_papers_noise_exists_for_every_group_that_is_let_into_a_batch(runner):
    for world in (runner.WRITERS, runner.FEW):
        contenders = [c for c in (*runner.ALL, *runner.FEW_CONTENDERS) if c.method.get("noise") == "as-published"]
        assert contenders
        for contender in contenders:
            plan = runner.planned(world, contender, {"clip": 0.5}, 0)
            assert all(map(math.isfinite, plan.method.work.noise_levels(plan.promise.facts)))


def test_a_rival_may_keep_fewer_records_and_then_its_data_have_no_more(runner):
    world = runner.World(EXAMPLES / "subject" / "randhie.toml", "auc")
    assert min(runner.HIGRAD.grid["privacy.max_records_per_subject_and_silo"]) == 2
    chosen = {"clip": 0.5, "train.rounds": 2, "privacy.max_records_per_subject_and_silo": 2}
    for contender, most in ((runner.HIGRAD, 2), (runner.SUBJECT_SGD, 5)):
        plan = runner.planned(world, contender, chosen if most == 2 else {}, 0)
        train = runner.people_of(world, plan).train
        assert np.unique(np.column_stack([train.subject, train.silo]), axis=0, return_counts=True)[1].max() == most
