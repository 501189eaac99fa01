"""One training of a study, in memory: no folder, no ledger, and a result of a few numbers."""

from __future__ import annotations

import sys
import time
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from tacit.data import Federation
from tacit.engine import load_federation
from tacit.engine.folder import plain_values
from tacit.engine.loop import Clock, Hooks, done_here, loop
from tacit.engine.run import SimulatedRounds, simulation_of
from tacit.planning.plan import Plan
from tacit.privacy import Randomness

MOST_KEPT = 4  # tables that a process keeps in memory, for the next training on the same records


@dataclass(frozen=True)
class HeldOut:
    """The part of the training subjects (or silos) that a choice of settings scores on."""

    share: float
    unit: str


@dataclass(frozen=True)
class StudyTrial:
    """What a process needs for one training. ``subjects``: the share of training subjects that take part."""

    plan: Plan
    held_out: HeldOut | None = None
    subjects: float = 1.0


class _Curve(Hooks):
    """Metrics as training goes on, where ``train.evaluate_every`` asks for them."""

    def __init__(self, rounds: SimulatedRounds) -> None:
        self.rounds, self.every = rounds, rounds.plan.experiment.train.evaluate_every
        self.found: list[dict[str, Any]] = []

    def after_round(self, number: int, participants: int) -> None:
        if self.every and number % self.every == 0:
            self.found.append({"round": number, "metrics": self.rounds.evaluate().overall})


def train(trial: StudyTrial) -> dict[str, Any]:
    """Train and score: metrics of the last model, the curve if there is one, seconds."""
    plan, begun = trial.plan, time.perf_counter()
    if ":" in plan.experiment.model.name and str(plan.folder) not in sys.path:
        sys.path.append(str(plan.folder))  # the user's own model
    federation = _federation(trial)
    randomness = Randomness.from_seed(plan.experiment.seed)
    rounds = SimulatedRounds(plan, federation, simulation_of(plan, federation, randomness), Clock())
    curve = _Curve(rounds)
    done_here(loop(rounds, curve))
    jax.block_until_ready(rounds.simulation.state)
    scores = rounds.evaluate().overall
    found = {"status": "finished" if rounds.is_finite() else "diverged", "metrics": scores, "curve": curve.found}
    return plain_values({**found, "seconds": round(time.perf_counter() - begun, 3)})


_kept: OrderedDict[str, Federation] = OrderedDict()


def _federation(trial: StudyTrial) -> Federation:
    """The records of a trial; the last few tables stay in memory."""
    plan = trial.plan
    privacy, seed = plan.experiment.privacy, plan.experiment.seed or 0
    key = repr((
        plan.data, plan.folder, plan.experiment.evaluation.data, seed if plan.data.seed is None else None,
        plan.records_kept, getattr(plan.options, "group_size", None), privacy.max_silos_per_subject,
        privacy.over_silo_cap,
    ))  # fmt: skip
    if key not in _kept:
        _kept[key] = load_federation(plan)
    _kept.move_to_end(key)
    while len(_kept) > MOST_KEPT:
        _kept.popitem(last=False)
    federation = _fewer(_kept[key], trial.subjects, seed)
    return federation if trial.held_out is None else _among_training(federation, trial.held_out, seed)


def _fewer(federation: Federation, share: float, seed: int) -> Federation:
    """With a share of the training subjects only."""
    if share == 1:
        return federation
    people = np.unique(federation.train.subject)
    kept = np.random.default_rng([seed, 6]).permutation(people)[: round(share * len(people))]
    return replace(federation, train=federation.train.take(np.isin(federation.train.subject, kept)))


def _among_training(federation: Federation, held_out: HeldOut, seed: int) -> Federation:
    """The training records alone: some of the subjects (or silos) are held out, and the records of the results are not
    there at all."""
    train = federation.train
    whose = train.silo if held_out.unit == "silo" else train.subject
    units = np.unique(whose)
    out = np.random.default_rng([seed, 5]).permutation(units)[: int(held_out.share * len(units) + 1e-9)]
    is_out = np.isin(whose, out)
    return replace(federation, train=train.take(~is_out), test=train.take(is_out), held_out="subjects")
