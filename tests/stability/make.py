"""Write the numbers that no change of structure may change: ``python -m tests.stability.make``.

Three files are written beside this module. ``plans.json``: 200 random plans with their guarantees, and those of every
experiment file below ``examples/``. ``models.json``: the model of a seeded run for each cell of method and exchange.
``ledger.jsonl``: the lines that runs wrote, with every kind of event that a run can write.

Run it only when a number changes for a stated reason, and commit the difference together with that reason.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tacit
from tacit.errors import TacitError
from tests.made import experiment, visits

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
FILES = sorted(set(EXAMPLES.rglob("*.toml")) - set(EXAMPLES.glob("studies/*.toml")))  # a study is no experiment
PLANS, SEED = 200, 19

NOISY = {"clip": [0.5, 1.0], "noise_multiplier": [0.7, 1.0, 2.0, 5.0]}
ADAPTIVE = {"adaptive_clip": [None, None, {"quantile": 0.6, "count_noise": 4.0}]}
SILOS = {"silo_sample_rate": [1.0, 1.0, 0.5]}
BATCH = {"sample_rate": [0.02, 0.1, 1.0], "batches_per_round": [1, 3]}
PEOPLE = {"subject_sample_rate": [1.0, 0.1, 0.5]}
WEIGHTS = {"weights": ["uniform", "uniform", "capped", "records-phantom"], "weight_cap": [None, 4]}
REPORTS = {"local_epsilon": [1.0, 4.0, 8.0], "value_range": [0.5], "epochs": [1, 4], "batch_subjects": [100, 500]}
PERSONAL = NOISY | ADAPTIVE | SILOS
NODES = NOISY | {"nodes": ["silos", "subjects"]}
# the keys of [method] and the values that a random plan chooses from; None leaves a key out
CHOICES: dict[str, dict[str, list[Any]]] = {
    "fedavg": {},
    "scaffold": {},
    "dp-fedavg": PERSONAL,
    "dp-fedsgd": PERSONAL,
    "central-group": NOISY | ADAPTIVE | {"sample_rate": [0.02, 0.1]},
    "pooled-dp-sgd": NOISY | ADAPTIVE | BATCH,
    "local-record": NOISY | ADAPTIVE | BATCH,
    "local-group": NOISY | ADAPTIVE | BATCH | {"group_cap": [None, 2], "noise": ["constant", "as-published"]},
    "higrad": NOISY | ADAPTIVE | BATCH,
    "user-ldp": NOISY | BATCH,
    "subject-sgd": NOISY | ADAPTIVE | PEOPLE | {"records_per_subject": [None, 3], "clip_first": [False, True]},
    "uldp-avg": NOISY | ADAPTIVE | PEOPLE | WEIGHTS | {"correlated_noise": [None, None, {"bands": 4}]},
    "uldp-sgd": NOISY | ADAPTIVE | PEOPLE | WEIGHTS | {"disclose_counts": [None, True]},
    "uldp-naive": NOISY | SILOS,
    "uldp-group": NOISY | ADAPTIVE | BATCH | {"group_size": [3, 8]},
    "fine-tune": PERSONAL,
    "mean-regularized": PERSONAL,
    "graph-regularized": PERSONAL,
    "per-fedavg": PERSONAL,
    "pfedme": PERSONAL,
    "fedem": PERSONAL,
    "ss-simple": REPORTS,
    "ss-double": REPORTS | {"index_rate": [0.2, 0.5], "index_sampling": ["fixed", "bernoulli"], "padding": [None, 400]},
    "ss-topk": REPORTS | {"index_rate": [0.2, 0.5], "padding": [None, 400]},
    "ldp-laplace": REPORTS,
    "ldp-gaussian": REPORTS,
    "gossip-sgd": {},
    "muffliato-sgd": NODES | {"topology": ["ring", "complete", "grid"], "gossip_steps": [1, 3], "adopt": [None, True]},
    "random-walk": NODES | {"walk_steps": [20, 200]},
    "local-walk": NODES | {"walk_steps": [20, 200]},
}
EXCHANGES: dict[str, dict[str, list[Any]]] = {
    "plain": {},
    "direct": {},
    "masked": {"drop_outs": [None, 1], "colluding": [None, 1]},
    "weighted": {
        "protocol": ["paillier"],
        "key_bits": [2048],
        "index": [None, "list"],
        "hidden_sampling": [None, True],
    },
    "shuffled": {"sealed": [None, False], "linked": [None, True]},
    "pairwise": {"graph": [None, "complete"], "drop_outs": [None, 1], "pairwise_multiplier": [None, 10.0]},
}
PRIVACY: dict[str, list[Any]] = {
    "unit": [None, None, "record", "subject", "silo"],
    "relation": [None, None, "replace"],
    "delta": [1e-5, 1e-6],
    "max_records_per_subject_and_silo": [4, 20],
    "max_silos_per_subject": [None, 1, 2],
    "over_silo_cap": [None, None, "refuse"],
}


def main() -> None:
    plans = {**dict(example_plans()), **dict(random_plans())}
    write("plans", plans)
    write("models", dict(models()))
    write_ledger(plans)


def write(name: str, content: Any) -> None:
    (HERE / f"{name}.json").write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


def read(name: str) -> Any:
    return json.loads((HERE / f"{name}.json").read_text())


# -- plans


def example_plans() -> Iterator[tuple[str, Any]]:
    for file in FILES:
        name = str(file.relative_to(EXAMPLES))
        yield name, {"guarantees": guarantees(tacit.plan(file))}


def random_plans() -> Iterator[tuple[str, Any]]:
    rng = random.Random(SEED)
    found = 0
    while found < PLANS:
        made = random_experiment(rng)
        try:
            plan = tacit.plan(made)
        except TacitError:
            continue
        found += 1
        yield f"random {found}", {"experiment": made, "guarantees": guarantees(plan)}


def random_experiment(rng: random.Random) -> dict[str, Any]:
    from tacit.methods import METHODS
    from tacit.planning.claims import exchanges_for

    name = rng.choice(list(CHOICES))
    exchange = rng.choice([found for found in exchanges_for(METHODS[name].info) if found in EXCHANGES])
    silos = rng.choice([3, 10])
    return {
        "data": {
            "label": "ill",
            "subjects": {"column": "person", "count": rng.choice([500, 2000])},
            "silos": {"column": "clinic", "count": silos},
            "records_per_silo": rng.choice([500, 2000]),
            "numeric": {f"x{k}": {"mean": 0, "scale": 1} for k in range(5)},
        },
        "model": {"name": "logistic"},
        "method": {"name": name, **chosen(rng, CHOICES[name])},
        "exchange": {} if exchange == "direct" else {"name": exchange, **chosen(rng, EXCHANGES[exchange])},
        "privacy": chosen(rng, PRIVACY),
        "train": {} if name.startswith(("ss-", "ldp-")) else {"rounds": rng.choice([1, 8, 40])},
    }


def chosen(rng: random.Random, choices: dict[str, list[Any]]) -> dict[str, Any]:
    values = {key: rng.choice(options) for key, options in choices.items()}
    return {key: value for key, value in values.items() if value is not None}


def guarantees(plan: Any) -> list[dict[str, Any]]:
    """What a plan guarantees, in numbers and names; no prose."""
    found = []
    for one in plan.guarantees():
        published = one.as_published
        found.append(
            {
                "unit": one.unit,
                "relation": one.relation,
                "view": str(one.view),
                "delta": one.delta,
                "epsilon": number(one.epsilon),
                "published": None if published is None else [number(published.epsilon), published.valid],
            }
        )
    return found


def number(value: float) -> float | str:
    return "inf" if math.isinf(value) else value


# -- ledgers


def write_ledger(plans: dict[str, Any]) -> None:
    """A line per method, with the events of a plan for its own unit."""
    from tacit.privacy import Ledger

    (HERE / "ledger.jsonl").unlink(missing_ok=True)
    done: set[str] = set()
    with Ledger(HERE / "ledger.jsonl") as ledger:
        for name, plan in plans.items():
            if "experiment" not in plan or (method := plan["experiment"]["method"]["name"]) in done:
                continue
            made = tacit.plan(plan["experiment"])
            unit = made.promise.unit
            events = {place: event for place, event in made.events().items() if place.startswith(f"{unit}/")}
            ledger.append(run=name, party="server", round=1, mechanism=method, step=1, events=events)
            done.add(method)


# -- models


# the exchanges as they were when models were stored
CARRIED = {"weighted": {"protocol": "paillier", "key_bits": 2048}}


def models() -> Iterator[tuple[str, Any]]:
    import tempfile

    from tests.engine.federated import METHODS, planned

    for method, exchange in cells(METHODS):
        with tempfile.TemporaryDirectory() as folder:
            made = planned(experiment(), method, exchange, exchange=CARRIED.get(exchange, {}))
            yield f"{method} {exchange}", flat(tacit.run(made, frame=visits(), out=Path(folder) / "run"))


def cells(methods: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Every method in its first exchange, and one method of its own in each other exchange. Exact ties decide what
    ss-topk sends: its model differs from processor to processor."""
    from tacit.methods import METHODS as ALL
    from tacit.planning.claims import exchanges_for

    yield from ((name, exchanges_for(ALL[name].info)[0]) for name in methods if name != "ss-topk")
    yield from (("subject-sgd", "masked"), ("uldp-avg", "masked"), ("uldp-avg", "weighted"), ("dp-fedavg", "pairwise"))


def flat(run: Any) -> list[float]:
    """The shared model of a run as one list of numbers; of a run without one, what a silo's own model predicts."""
    import numpy as np
    from safetensors.numpy import load_file

    file = run.path / "model.safetensors"
    if not file.is_file():
        return [float(value) for value in np.ravel(run.predict(visits().head(10), silo="north"))]
    tree = load_file(file)
    return [float(value) for key in sorted(tree) for value in np.ravel(tree[key])]


if __name__ == "__main__":
    main()
