"""Settings that are left out, compared with settings chosen by hand and with no privacy, at proved subject epsilon 4.

    TACIT_DATA=… python -m research.first_results.run              train what is missing, then print the table
    TACIT_DATA=… python -m research.first_results.run --only heart     one data set
    TACIT_DATA=… python -m research.first_results.run --constants      constants, with each data set left out in turn
    TACIT_DATA=… python -m research.first_results.run --weights        record weights, 1 / m, a lot, declared caps

Every training is a line of ``trainings.jsonl``; a command that was stopped continues there. Data are split with
``data.seed = 0``. Constants of the rule and settings by hand are chosen on a fifth of the *training* people with seeds
of their own (``research.study``); results have seeds 0 … 4 and people that no choice has seen. Nothing declares in how
many silos a subject can be: ``recipe`` of ``tacit init`` gets the number of silos.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tacit
from research.study import CHOOSING_SEED, spread, trial, without_strangers
from tacit.data import Federation
from tacit.engine import load_federation
from tacit.planning.plan import Plan
from tacit.planning.template import Spread, recipe
from tacit.planning.verdict import verdict

KEPT = Path(__file__).with_name("trainings.jsonl")
SEEDS = range(5)
VIEWS = ["public", "server", "silo"]


class World(NamedTuple):
    data: Mapping[str, Any]
    metric: str = "auc"
    model: str = "logistic"


PEOPLE_1000 = {"assign": "zipf", "count": 1000, "alpha": 0.5}
WORLDS = {
    "heart": World({"source": "heart", "subjects": {**PEOPLE_1000, "count": 200}}),
    "randhie": World({"source": "randhie"}),
    "creditcard": World(
        {"source": "creditcard", "subjects": PEOPLE_1000, "silos": {"assign": "zipf", "count": 5, "alpha": 2.0}}
    ),
    "insteval": World({"source": "insteval", "categorical": {"lecturer": []}}),
    "diabetes130": World({"source": "diabetes130"}),
    "writers": World(
        {"source": "mnist", "subjects": {"column": "writer"}, "silos": {"assign": "uniform", "count": 16}},
        "accuracy",
        "edges",
    ),
}

Settings = dict[str, dict[str, Any]]


def experiment(world: World, sections: Settings, seed: int) -> Settings:
    model = {"name": world.model}
    return {"seed": seed, "data": {**world.data, "seed": 0}, "model": model, **sections}  # type: ignore[dict-item]


@cache
def people(name: str) -> tuple[Federation, int, Spread]:
    """The records, the declared number of people, and how they are spread over silos where no cap is declared."""
    plan = tacit.plan(experiment(WORLDS[name], {"method": {"name": "subject-sgd", "target_epsilon": 4.0}}, 0))
    federation, facts = load_federation(plan), plan.promise.facts
    pairs = np.unique(np.stack([federation.train.subject, federation.train.silo]), axis=1)
    typical = pairs.shape[1] / len(np.unique(federation.train.subject))
    assert facts.subjects is not None
    return federation, facts.subjects, Spread(facts.silos, facts.silos, typical)


def default(name: str, views: list[str] = VIEWS) -> Settings:
    """What ``tacit init`` writes where no cap is declared."""
    _, count, over = people(name)
    return weighted(name, views) if recipe("binary", 4.0, count, over)["exchange"]["name"] == "weighted" else capped({})


def weighted(name: str, views: list[str] = VIEWS) -> Settings:
    """Record weights, added up in the clear with the noise of the encrypted exchange."""
    exchange = {"name": "weighted", "slots": 2 * people(name)[1], "encrypted": False}
    method = {"name": "subject-sgd", "target_epsilon": 4.0, "weights": "records"}
    return {"method": method, "exchange": exchange, "privacy": {"against": views}}


def capped(method: Mapping[str, Any]) -> Settings:
    """Weights 1 / m. A masked sum is added up in the clear: its noise for all views is that of the public view in the
    plain exchange where no cap is declared, and the simulator is ten times as fast."""
    own = {"name": "subject-sgd", "target_epsilon": 4.0, **method}
    return {"method": own, "exchange": {"name": "plain"}, "privacy": {"against": ["public"]}}


def changed(settings: Settings, step: float, rounds: int = 40, **method: Any) -> Settings:
    train = {"server_learning_rate": step, "rounds": rounds, "server_optimizer": "momentum"}
    return {**settings, "train": train, "method": {**settings["method"], **method}}


def by_hand(name: str) -> Iterator[Settings]:
    """The grid: steps along directions, a clip, more rounds, and the other weights."""
    _, count, _ = people(name)
    own = default(name)
    if name not in ("writers", "insteval"):  # a training takes more than half a minute there
        yield from (changed(own, step) for step in (1.0, 10.0))
        yield changed(own, 8.0, clip=0.5)
    if name == "diabetes130":
        yield from (changed(own, step) for step in (24.0, 80.0, 240.0))
        yield changed(own, 40.0, clip=0.5)  # docs/subject.md
    if name == "insteval":
        yield changed(own, 40.0, clip=0.1)  # docs/subject.md
    if name == "writers":
        yield changed(own, 12.0, 80, clip=0.1)  # examples/subject/writers.toml
    elif count < 10_000:
        yield changed(capped({}), 3.0)
    yield changed(own, 3.0)
    yield changed(own, 10.0, clip=0.5)


class Rule(NamedTuple):
    """Constants of the rule, those of Tacit by default.

    little_noise  noise over signal up to which gradients are clipped
    clip_rate     the server's rate with that clip
    """

    little_noise: float = 0.01
    clip_rate: float = 10.0


RULES = [Rule(), Rule(clip_rate=3.0), Rule(little_noise=0.0)]


def by_rule(name: str, rule: Rule) -> Settings:
    """The settings of a data set by a rule with these constants."""
    own = default(name)
    clips = _ratio(name) <= rule.little_noise
    return changed(own, rule.clip_rate, clip=0.5) if clips else changed(own, 3.0)


@cache
def _ratio(name: str) -> float:
    found = verdict(tacit.plan(experiment(WORLDS[name], changed(default(name), 3.0), 0)))
    assert found is not None
    return found.ratio


def validation(name: str, rule: Rule, limit: list[int]) -> float:
    """On held-out training people; three splits of the smaller data sets."""
    seeds = [CHOOSING_SEED + k for k in range(3 if name in ("heart", "randhie") else 1)]
    scores = [trained(name, by_rule(name, rule), seed, limit) for seed in seeds]
    return statistics.mean(score for score in scores if score is not None)


def left_out_in_turn(limit: list[int]) -> None:
    """For each data set: the constants that are best on the other five, and their scores on its test people."""
    print("| left out | noise over signal | little noise, rate with clip | score with them |")
    print("|---|---|---|---|")
    for name in WORLDS:
        others = [other for other in WORLDS if other != name]
        rule = max(RULES, key=lambda one: sum(validation(other, one, limit) for other in others))
        same = by_rule(name, rule) == by_rule(name, Rule())
        scores = [trained(name, default(name) if same else by_rule(name, rule), seed, limit) for seed in SEEDS]
        constants = ", ".join(f"{value:g}" for value in rule)
        print(f"| {name} | {_ratio(name):.2g} | {constants} | {_known(scores)} |", flush=True)


def _known(scores: Sequence[float | None]) -> str:
    """Mean and deviation of the seeds that were trained."""
    known = [score for score in scores if score is not None]
    if len(known) == len(scores):
        return spread(known)
    return f"{spread(known)} ({len(known)} of {len(scores)} seeds)" if known else "not run"


def by_lot(federation: Federation, silos: int) -> Federation:
    """Every subject's records in one silo alone, which a key draws whether or not it has records there."""
    train = federation.train
    found, place = np.unique(train.subject, return_inverse=True)
    home = np.random.default_rng(11).integers(silos, size=len(found))
    return replace(federation, train=train.take(home[place] == train.silo))


CAPS = {"heart": 2, "randhie": 1, "creditcard": 4, "insteval": 6, "diabetes130": 2}


def compared_weights(limit: list[int]) -> None:
    """Record weights, 1 / m over all silos, one silo by lot, and declared caps, each with the noise for all views."""
    print("| data | record weights | 1 / m, no cap | one silo by lot | declared cap |")
    print("|---|---|---|---|---|")
    for name, cap in CAPS.items():
        rows = {"capped": capped({})} | ({} if name == "diabetes130" else {"records": weighted(name)})  # too many slots
        for label, most in (("lot", 1), ("cap", cap)):
            own = capped({"noise_multiplier": _masked_noise(name, most)})
            del own["method"]["target_epsilon"]
            rows[label] = {**own, "privacy": {**own["privacy"], "max_silos_per_subject": most}}
        cells = [
            _known([trained(name, rows[label], seed, limit, label) for seed in SEEDS]) if label in rows else "–"
            for label in ("records", "capped", "lot", "cap")
        ]
        print(f"| {name} | {' | '.join(cells)} (m = {cap}) |", flush=True)


def _masked_noise(name: str, most: int) -> float:
    """The noise multiplier of a masked sum with this cap, at epsilon 4 against all views."""
    own = capped({})
    privacy = {"against": VIEWS, "max_silos_per_subject": most, "over_silo_cap": "refuse"}
    found = tacit.plan(experiment(WORLDS[name], {**own, "exchange": {"name": "masked"}, "privacy": privacy}, 0))
    assert found.noise_multiplier is not None
    return found.noise_multiplier


def without_privacy() -> list[Settings]:
    return [
        {"method": {"name": "fedavg", "batch_size": 64, "local_learning_rate": rate}, "train": {"rounds": 20}}
        for rate in (0.1, 0.5, 3.0)
    ]


def spelled_out(name: str, settings: Settings) -> Settings:
    """With what the rule sets: a key of ``trainings.jsonl`` does not depend on today's constants."""
    if "train" in settings:
        return settings
    found = _plan(name, json.dumps(settings)).experiment
    step = {"server_learning_rate": found.train.server_learning_rate, "server_optimizer": found.train.server_optimizer}
    return {**settings, "method": dict(found.method), "train": {"rounds": found.train.rounds, **step}}


@cache
def _plan(name: str, settings: str) -> Plan:
    return tacit.plan(experiment(WORLDS[name], json.loads(settings), 0))


def trained(name: str, settings: Settings, seed: int, limit: list[int], spread_by: str = "") -> float | None:
    """The score of a training, from the file where it is known; None where the limit is reached. ``spread_by`` is how
    subjects come to have few silos: by lot, or by a cap that drops records of further silos."""
    parts = [name, spelled_out(name, settings), seed, *([spread_by] if spread_by in ("lot", "cap") else [])]
    key = json.dumps(parts, sort_keys=True)
    found = known()
    if key in found:
        return found[key]
    if limit[0] <= 0:
        return None
    limit[0] -= 1
    world, begun = WORLDS[name], time.monotonic()
    federation = people(name)[0]
    if seed >= CHOOSING_SEED:
        federation = without_strangers(federation, seed)
    plan = tacit.plan(experiment(world, settings, seed))
    if spread_by == "lot":
        federation = by_lot(federation, plan.promise.facts.silos)
    elif spread_by == "cap":
        federation = load_federation(plan)
    score = trial(plan, federation).get(world.metric, float("nan"))
    found[key] = score
    epsilon = max(g.epsilon for g in plan.guarantees()) if "target_epsilon" in settings["method"] else None
    line = {"key": key, "score": score, "epsilon": epsilon, "seconds": round(time.monotonic() - begun, 1)}
    with KEPT.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    print(key, f"{score:.4f} {line['seconds']} s", file=sys.stderr, flush=True)
    return score


@cache
def known() -> dict[str, float]:
    lines = KEPT.read_text(encoding="utf-8").splitlines() if KEPT.is_file() else []
    return {one["key"]: one["score"] for one in map(json.loads, lines)}


def chosen(name: str, grid: list[Settings], limit: list[int]) -> Settings:
    """The best on held-out training people."""
    scored = [(trained(name, one, CHOOSING_SEED, limit), one) for one in grid]
    known = [(score, one) for score, one in scored if score is not None]
    return max(known, key=lambda pair: pair[0])[1] if known else next(iter(grid))


def results(name: str, limit: list[int]) -> dict[str, list[float | None]]:
    """Scores of all seeds, by column."""
    columns = {"default": default(name), "public": default(name, ["public"])}
    found = {label: [trained(name, one, seed, limit) for seed in SEEDS] for label, one in columns.items()}
    for label, grid in (("none", without_privacy()), ("chosen", list(by_hand(name)))):
        best = chosen(name, grid, limit)
        print(name, label, json.dumps(best), file=sys.stderr)
        found[label] = [trained(name, best, seed, limit) for seed in SEEDS]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=WORLDS, action="append")
    parser.add_argument("--limit", type=int, default=10_000, help="stop after this many new trainings")
    parser.add_argument("--constants", action="store_true", help="choose constants with each data set left out in turn")
    parser.add_argument("--weights", action="store_true", help="compare weights")
    options = parser.parse_args()
    limit = [options.limit]
    if options.constants or options.weights:
        (left_out_in_turn if options.constants else compared_weights)(limit)
        return
    labels = ("default", "public", "chosen", "none")
    print("| data | default, all views | default, public alone | chosen by hand | no privacy | chosen - default |")
    print("|---|---|---|---|---|---|")
    for name in options.only or WORLDS:
        found = results(name, limit)
        pairs = [
            (a, b) for a, b in zip(found["chosen"], found["default"], strict=True) if a is not None and b is not None
        ]
        gap = f"{statistics.mean(a - b for a, b in pairs):+.3f}" if pairs else "–"
        cells = " | ".join(_known(found[label]) for label in labels)
        print(f"| {name} | {cells} | {gap} |", flush=True)


if __name__ == "__main__":
    main()
