"""The comparisons on docs/subject.md: contenders on worlds whose data are read once, as ``research/study.py`` says."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from tacit.data import Federation
from tacit.engine import load_federation
from tacit.errors import TacitError
from tacit.planning.plan import Plan

sys.path.append(str(Path(__file__).parents[2]))  # the folder of research/

from research.study import CHOOSING_SEED, Settings, changed, trial, without_strangers


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
    method = {**contender.method, **{name: value for name, value in chosen.items() if "." not in name}}
    outside = {name: value for name, value in chosen.items() if "." in name}
    changes = {**world.changes, **world.declared, **contender.changes, **outside}
    return changed(world.file, changes, seed, method)


def people_of(world: World, plan: Plan) -> Federation:
    """The data of a plan. Which are read depends on the file, its changes, the seed and the plan's caps alone."""
    privacy = plan.experiment.privacy
    caps = privacy.max_records_per_subject_and_silo, privacy.max_silos_per_subject
    return _loaded(world, plan.experiment.seed or 0, *caps)


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
        federation = without_strangers(people_of(world, plan), CHOOSING_SEED)
        score = trial(plan, federation).get(world.metric, math.nan)
        yield (-math.inf if math.isnan(score) else score), chosen


@lru_cache(maxsize=4)
def _loaded(world: World, seed: int, records: int | None, silos: int | None) -> Federation:
    caps = {"privacy.max_records_per_subject_and_silo": records, "privacy.max_silos_per_subject": silos}
    federation = load_federation(changed(world.file, {**world.changes, **caps}, seed))
    if world.people == 1:
        return federation
    people = np.unique(federation.train.subject)
    kept = np.random.default_rng([seed, 6]).permutation(people)[: round(world.people * len(people))]
    return replace(federation, train=federation.train.take(np.isin(federation.train.subject, kept)))
