"""Settings that are left out, compared with settings chosen by hand and with no privacy, at proved subject epsilon 4.

    TACIT_DATA=… python -m research.first_results.run              train what is missing, then print the table
    TACIT_DATA=… python -m research.first_results.run --only heart     one data set

Every training is a line of ``trainings.jsonl``; a command that was stopped continues there. Data are split with
``data.seed = 0``. Constants of the rule and settings by hand are chosen on a fifth of the *training* people with a seed
of its own (``research.study``); results have seeds 0 … 4 and people that no choice has seen. Nothing declares in how
many silos a subject can be: ``recipe`` of ``tacit init`` gets the number of silos.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tacit
from research.study import CHOOSING_SEED, spread, trial, without_strangers
from tacit.data import Federation
from tacit.engine import load_federation
from tacit.planning.template import Spread, recipe

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
    """What ``tacit init`` writes where no cap is declared. A masked sum is added up in the clear: with weights 1 / m,
    its noise for all views is that of the public view in the plain exchange, and the simulator is ten times as fast."""
    _, count, over = people(name)
    made = recipe("binary", 4.0, count, over)
    if made["exchange"]["name"] == "masked":
        return capped({})
    return {"method": made["method"], "exchange": made["exchange"], "privacy": {"against": views}}


def capped(method: Mapping[str, Any]) -> Settings:
    own = {"name": "subject-sgd", "target_epsilon": 4.0, **method}
    return {"method": own, "exchange": {"name": "plain"}, "privacy": {"against": ["public"]}}


def changed(settings: Settings, step: float, rounds: int = 40, **method: Any) -> Settings:
    train = {"server_learning_rate": step, "rounds": rounds, "server_optimizer": "momentum"}
    return {**settings, "train": train, "method": {**settings["method"], **method}}


def by_hand(name: str) -> Iterator[Settings]:
    """The grid: steps along directions, a clip, more rounds, and the other weights."""
    _, count, _ = people(name)
    own, is_capped = default(name), "weights" not in default(name)["method"]
    if name not in ("writers", "insteval"):  # a training takes more than half a minute there
        yield from (changed(own, step) for step in (1.0, 10.0))
        yield changed(own, 8.0, clip=0.5)
    if name == "diabetes130":
        yield from (changed(own, step) for step in (24.0, 80.0, 240.0))
    if name == "writers":
        yield changed(own, 12.0, 80, clip=0.1)  # examples/subject/writers.toml
    elif not is_capped:
        yield changed(capped({}), 3.0)
    elif count < 10_000:
        weighted = {"name": "weighted", "slots": 2 * count, "encrypted": False}
        other = {"method": {**own["method"], "weights": "records"}, "exchange": weighted}
        yield changed({**other, "privacy": {"against": VIEWS}}, 3.0)
    yield own


def without_privacy() -> list[Settings]:
    return [
        {"method": {"name": "fedavg", "batch_size": 64, "local_learning_rate": rate}, "train": {"rounds": 20}}
        for rate in (0.1, 0.5, 3.0)
    ]


def trained(name: str, settings: Settings, seed: int, limit: list[int]) -> float | None:
    """The score of a training, from the file where it is known; None where the limit is reached."""
    key = json.dumps([name, settings, seed], sort_keys=True)
    found = known()
    if key in found:
        return found[key]
    if limit[0] <= 0:
        return None
    limit[0] -= 1
    world, begun = WORLDS[name], time.monotonic()
    federation = people(name)[0]
    if seed == CHOOSING_SEED:
        federation = without_strangers(federation, seed)
    plan = tacit.plan(experiment(world, settings, seed))
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


def chosen(name: str, grid: Iterator[Settings] | list[Settings], limit: list[int]) -> Settings:
    """The best on held-out training people."""
    scored = [(trained(name, one, CHOOSING_SEED, limit), one) for one in grid]
    return max(((score, one) for score, one in scored if score is not None), key=lambda pair: pair[0])[1]


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
    options = parser.parse_args()
    limit = [options.limit]
    labels = ("default", "public", "chosen", "none")
    print("| data | default, all views | default, public alone | chosen by hand | no privacy | chosen - default |")
    print("|---|---|---|---|---|---|")
    for name in options.only or WORLDS:
        found = results(name, limit)
        means = [statistics.mean(s for s in found[k] if s is not None) for k in ("chosen", "default")]
        cells = " | ".join(spread(found[label]) for label in labels)
        print(f"| {name} | {cells} | {means[0] - means[1]:+.3f} |", flush=True)


if __name__ == "__main__":
    main()
