"""How the comparisons on docs/subject.md are made: settings from training people only, then seeds that were not used.

A trial trains a plan in memory and scores it. Settings of a method (clip, learning rate, rounds) come from a small
grid: they are judged on a fifth of the *training* people, held out with a seed of its own, and the best is then run
with other seeds on people or records that no choice has seen.
"""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import tacit
from tacit.config import Plan
from tacit.data import Federation
from tacit.engine import load_federation
from tacit.engine.learner import learner
from tacit.engine.simulate import Simulation
from tacit.errors import TacitError
from tacit.privacy import Randomness

CHOOSING_SEED = 1001  # never a seed of a result

Settings = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class World:
    """What methods are compared on: an experiment file, and what differs from it. What was read stays with the object.

    changes   settings by their dotted names; a contender's own come after them
    declared  the same, for what is only promised about the data and does not change which are read
    people    the share of training people who are there at all
    """

    file: Path
    metric: str
    changes: Settings = field(default_factory=dict)
    declared: Settings = field(default_factory=dict)
    people: float = 1.0


@dataclass(frozen=True, eq=False)
class Contender:
    """A method in a comparison: its keys of ``[method]``, the grid of numbers that are chosen for it, and settings
    outside ``[method]`` by their dotted names. ``holds`` says for which epsilon the target is meant."""

    label: str
    holds: str
    method: Settings
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    changes: Settings = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What a contender reached: the metric per seed, what is proved and what its paper says, or why it did not run."""

    contender: Contender
    scores: tuple[float, ...] = ()
    proved: float = math.inf
    published: float | None = None
    unit: str = ""
    chosen: Settings = field(default_factory=dict)
    refused: str = ""


def planned(world: World, contender: Contender, chosen: Settings, seed: int) -> Plan:
    """The plan of a contender under chosen numbers; names with a dot belong to other sections than ``[method]``."""
    content = _content(world.file)
    content["method"] = {**contender.method, **{name: value for name, value in chosen.items() if "." not in name}}
    outside = {name: value for name, value in chosen.items() if "." in name}
    return _plan(world, content, {**world.changes, **world.declared, **contender.changes, **outside}, seed)


def people_of(world: World, plan: Plan) -> Federation:
    """The data of a plan. Which are read depends on the file, its changes and the seed alone."""
    return _loaded(world, plan.experiment.seed or 0)


def trial(plan: Plan, federation: Federation) -> dict[str, float]:
    """Train and score, without a run folder."""
    simulation = simulated(plan, federation)
    for number in range(1, plan.rounds + 1):
        simulation.round(number)
    return {name: value for name, value in simulation.evaluate(federation, False).overall.items() if value is not None}


def simulated(plan: Plan, federation: Federation) -> Simulation:
    randomness = Randomness.from_seed(plan.experiment.seed)
    made = learner(plan.experiment.model, federation.labels, federation.train.features.shape[1:], randomness)
    return Simulation(plan, federation, made, randomness)


def compete(world: World, contender: Contender, seeds: Sequence[int]) -> Outcome:
    """Choose on training people, then run every seed."""
    try:
        chosen = choose(world, contender)
    except TacitError as error:
        return Outcome(contender, refused=str(error))
    return repeat(world, contender, chosen, seeds)


def choose(world: World, contender: Contender) -> Settings:
    """The best of the grid on held-out training people."""
    if all(len(values) == 1 for values in contender.grid.values()):
        return {name: values[0] for name, values in contender.grid.items()}
    return max(_judged(world, contender), key=lambda pair: pair[0])[1]


def repeat(world: World, contender: Contender, chosen: Settings, seeds: Sequence[int]) -> Outcome:
    """Every seed under chosen settings."""
    scores = []
    for seed in seeds:
        plan = planned(world, contender, chosen, seed)
        scores.append(trial(plan, people_of(world, plan)).get(world.metric, math.nan))
    guarantee = plan.guarantees()[0]
    published = guarantee.as_published.epsilon if guarantee.as_published else None
    return Outcome(contender, tuple(scores), guarantee.epsilon, published, guarantee.unit, chosen)


def _judged(world: World, contender: Contender) -> Iterator[tuple[float, Settings]]:
    """Every setting of the grid with its score on held-out training people."""
    names = list(contender.grid)
    for values in itertools.product(*contender.grid.values()):
        chosen = dict(zip(names, values, strict=True))
        plan = planned(world, contender, chosen, CHOOSING_SEED)
        federation = _without_strangers(people_of(world, plan), CHOOSING_SEED)
        score = trial(plan, federation).get(world.metric, math.nan)
        yield (-math.inf if math.isnan(score) else score), chosen


def _content(file: Path) -> dict[str, Any]:
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _plan(world: World, content: dict[str, Any], changes: Settings, seed: int) -> Plan:
    content["seed"] = seed
    for name, value in changes.items():
        section, key = name.split(".", 1)
        content[section] = {**content.get(section, {}), key: value}
    return tacit.plan(content, folder=world.file.parent)


@lru_cache(maxsize=4)
def _loaded(world: World, seed: int) -> Federation:
    federation = load_federation(_plan(world, _content(world.file), world.changes, seed))
    if world.people == 1:
        return federation
    people = np.unique(federation.train.subject)
    kept = np.random.default_rng([seed, 6]).permutation(people)[: round(world.people * len(people))]
    return replace(federation, train=federation.train.take(np.isin(federation.train.subject, kept)))


def _without_strangers(federation: Federation, seed: int) -> Federation:
    """The training people alone: a fifth of them are held out instead of those of the results."""
    people = np.unique(federation.train.subject)
    out = np.random.default_rng([seed, 5]).permutation(people)[: len(people) // 5]
    held_out = np.isin(federation.train.subject, out)
    return replace(federation, train=federation.train.take(~held_out), test=federation.train.take(held_out))
