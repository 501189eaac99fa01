"""Comparisons of methods: settings chosen on training people only, results with other seeds.

A trial trains a plan in memory and scores it, once or as it goes. Settings of a method (clip, learning rate) come from
a small grid: they are judged on a fifth of the *training* people, held out with a seed of its own, and the best is then
run with other seeds. No choice has seen the people or records that results are tested on, where the data bring them or
``data.seed`` says who they are; where the seed of a run decides, it may have.
"""

from __future__ import annotations

import itertools
import math
import statistics
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

import tacit
from tacit.data import Federation
from tacit.engine import load_federation
from tacit.engine.learner import learner
from tacit.engine.simulate import Simulation
from tacit.models import higher_is_better
from tacit.planning.claims import cost
from tacit.planning.plan import Plan
from tacit.privacy import Randomness

CHOOSING_SEED = 1001  # never a seed of a result

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Contender:
    """A method in a comparison: its keys of ``[method]``, and the grid of numbers that are chosen for it.

    changes  settings outside ``[method]``, by their dotted names
    """

    label: str
    method: Settings
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    changes: Settings = field(default_factory=dict)


def planned(file: Path, contender: Contender, chosen: Settings, seed: int) -> Plan:
    """The plan of a contender under chosen numbers; names with a dot belong to other sections than ``[method]``."""
    method = {**contender.method, **{name: value for name, value in chosen.items() if "." not in name}}
    outside = {name: value for name, value in chosen.items() if "." in name}
    return changed(file, {**contender.changes, **outside}, seed, method)


def changed(file: Path, changes: Settings, seed: int, method: Settings | None = None) -> Plan:
    """The plan of a file with other settings, by their dotted names (a name without a dot is a whole section), and
    perhaps another ``[method]``."""
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    content["seed"] = seed
    if method is not None:
        content["method"] = dict(method)
    for name, value in changes.items():
        section, _, key = name.partition(".")
        content[section] = {**content.get(section, {}), key: value} if key else value
    return tacit.plan(content, folder=file.parent)


def trial(plan: Plan, federation: Federation) -> dict[str, float]:
    """Train and score, without a run folder."""
    return curve(plan, federation, (plan.rounds,))[plan.rounds]


def curve(plan: Plan, federation: Federation, points: Sequence[int]) -> dict[int, dict[str, float]]:
    """Train, and the metrics after the rounds of ``points``."""
    simulation, found = simulated(plan, federation), {}
    for number in range(1, plan.rounds + 1):
        simulation.round(number)
        if number in points:
            scores = simulation.evaluate(federation, False).overall
            found[number] = {name: value for name, value in scores.items() if value is not None}
    return found


def simulated(plan: Plan, federation: Federation) -> Simulation:
    """The engine at the start of a plan."""
    randomness = Randomness.from_seed(plan.experiment.seed)
    made = learner(plan.experiment.model, federation.labels, federation.train.features.shape[1:], randomness)
    return Simulation(plan, federation, made, randomness)


def epsilons(plan: Plan, points: Sequence[int]) -> list[tuple[float, float | None]]:
    """What the rounds up to each of ``points`` cost against the first view: proved, and by the paper's own account."""
    promise, found = plan.promise, []
    exposure = promise.exposure(promise.unit, promise.views[0])
    for number in points:
        claim = promise.options.build(replace(promise.facts, rounds=number)).claim
        published = claim.as_published(exposure, promise.delta)
        proved = cost(promise.total(exposure.view, number), promise.delta).epsilon
        found.append((proved, None if published is None else published.epsilon))
    return found


def without_strangers(federation: Federation, seed: int, unit: str = "subject") -> Federation:
    """The training people alone: a fifth of them are held out instead of those of the results. ``unit`` says who is a
    person: a subject, or a silo of its own."""
    whose = federation.train.silo if unit == "silo" else federation.train.subject
    people = np.unique(whose)
    out = np.random.default_rng([seed, 5]).permutation(people)[: len(people) // 5]
    held_out = np.isin(whose, out)
    return replace(federation, train=federation.train.take(~held_out), test=federation.train.take(held_out))


def judged(
    file: Path,
    contender: Contender,
    metric: str,
    unit: str = "subject",
    seeds: Sequence[int] = (CHOOSING_SEED,),
    load: Callable[[Plan], Federation] = load_federation,
) -> Iterator[tuple[float, Settings]]:
    """Every setting of the grid with its score on held-out training people, the mean over ``seeds``: the larger, the
    better. ``load`` makes the data of a plan."""
    names, sign = list(contender.grid), 1 if higher_is_better(metric) else -1
    read: list[tuple[Any, Federation]] = []  # data are read once, for a grid of learning rates
    for values in itertools.product(*contender.grid.values()):
        chosen, scores = dict(zip(names, values, strict=True)), []
        for seed in seeds:
            plan = planned(file, contender, chosen, seed)
            source = seed, plan.experiment.data, plan.experiment.privacy
            known = [federation for other, federation in read if other == source]
            if not known:
                known = [without_strangers(load(plan), seed, unit)]
                read = [(source, *known), *read][: len(seeds)]
            scores.append(sign * trial(plan, known[0]).get(metric, math.nan))
        score = statistics.mean(scores)
        yield (-math.inf if math.isnan(score) else score), chosen


def spread(values: Sequence[float | None], digits: int = 3) -> str:
    """The mean over seeds, and the deviation where there are several."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return "not finite"
    mean, wide = f"{statistics.mean(known):.{digits}f}", statistics.stdev(known) if len(known) > 1 else None
    return mean if wide is None else f"{mean} ± {wide:.{digits}f}"


def band(runs: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """One deviation below and above the mean, at every point; nothing where there is one seed only."""
    if len(runs[0]) < 2:
        return [], []
    pairs = [(statistics.mean(values), statistics.stdev(values)) for values in runs]
    return [mean - wide for mean, wide in pairs], [mean + wide for mean, wide in pairs]


def written_between(page: Path, name: str, lines: Sequence[str]) -> None:
    """Put ``lines`` into a Markdown page, in place of what stands between the marker ``name`` and its end."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name.split(':')[0]} -->"
    before, rest = page.read_text(encoding="utf-8").split(begin)
    after = rest.split(end, 1)[1]
    page.write_text("\n".join([before + begin, "", *lines, end + after]), encoding="utf-8")
