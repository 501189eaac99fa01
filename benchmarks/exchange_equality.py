"""The same sums whichever way updates travel: [ULDP-FL]'s data, without noise, and the noise that is added.

    python -m benchmarks.exchange_equality [--rounds 3] [--only NAME,NAME] [--out FOLDER]      needs TACIT_DATA

uldp-avg with record weights on HeartDisease, TcgaBrca (the paper's benchmark of the protocol) and Creditcard with a
small model, in the masked (counts disclosed) and the weighted exchange.

sum     without noise, the largest difference of any number of a round's sum from the sum of the same people's clipped
        vectors times their weights in double precision, and what is promised: in the weighted exchange (people +
        silos) x precision; in the masked one a person's part in each silo is rounded, so precision times those parts
model   the largest difference of any parameter from a run with the plain exchange, which adds in single precision
noise   its standard deviation over that which the ledger says, over all numbers of 30 rounds (of 8 where there are more
        than 100 numbers), and the standard error of such a figure
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from jax.flatten_util import ravel_pytree

from tacit.engine.learner import learner
from tacit.engine.people_work import PeopleWork
from tacit.engine.run import load_federation
from tacit.engine.simulate import Simulation
from tacit.exchange import Grid, Session
from tacit.planning.plan import Plan, plan
from tacit.privacy import Randomness

DATA: dict[str, dict[str, Any]] = {
    "HeartDisease": {
        "data": {"source": "heart", "subjects": {"assign": "zipf", "count": 50, "alpha": 0.5}},
        "model": {"name": "logistic"},
        "privacy": {"max_records_per_subject_and_silo": 60},
    },
    "TcgaBrca": {
        "data": {"source": "tcga-brca", "subjects": {"assign": "zipf", "count": 50, "alpha": 0.5}},
        "model": {"name": "cox"},
        "privacy": {"max_records_per_subject_and_silo": 60},
    },
    "Creditcard": {
        "data": {
            "source": "creditcard",
            "subjects": {"assign": "zipf", "count": 100, "alpha": 0.5},
            "silos": {"assign": "zipf", "count": 5, "alpha": 2.0},
        },
        "model": {"name": "mlp", "hidden": [4]},
        "privacy": {"max_records_per_subject_and_silo": 99},
    },
}


def made(name: str, exchange: str, sigma: float) -> Plan:
    method = {"name": "uldp-avg", "clip": 1.0, "weights": "records", "disclose_counts": exchange != "weighted"}
    numbers = {"noise_multiplier": sigma, "local_epochs": 2, "local_learning_rate": 0.1}
    return plan(
        {
            "seed": 1,
            **DATA[name],
            "method": method | numbers,
            "exchange": {"name": exchange},
            "train": {"rounds": 1000},
        }
    )


def started(planned: Plan) -> Simulation:
    federation, randomness = load_federation(planned), Randomness.from_seed(1)
    shape = federation.train.features.shape[1:]
    start = learner(planned.experiment.model, federation.labels, shape, randomness)
    return Simulation(planned, federation, start, randomness)


def sums_of(simulation: Simulation, rounds: int) -> tuple[list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """Of every round the sum as the exchange gives it, the sum in double precision, and the model after it."""
    given: list[np.ndarray] = []
    exact: list[np.ndarray] = []
    models: list[np.ndarray] = []
    plain = Session.__dict__.get("unwatched", Session.sum)

    def watched(self: Any, *args: Any, **options: Any) -> np.ndarray:
        given.append(plain(self, *args, **options))
        return given[-1]

    Session.unwatched, Session.sum = plain, watched
    work, fine = simulation.work, Grid(1e-14)
    assert isinstance(work, PeopleWork)
    weights = {(s, u): w for s, u, w in zip(work._silo, work._subject, work._weights, strict=True)}
    for number in range(1, rounds + 1):
        drawn = work.draw(number)
        people = work.subjects(drawn, simulation.given(simulation.broadcast), fine).parts
        exact.append(
            sum(
                weights[silo, place] * fine.numbers(vector)
                for silo, own in enumerate(people)
                for place, vector in zip(own.places, own.vectors, strict=True)
            )
        )
        simulation.round(number)
        models.append(np.asarray(ravel_pytree(simulation.server.params)[0], np.float64))
    return given, exact, models


def row(name: str, rounds: int) -> dict:
    plain = started(made(name, "plain", 0.0))
    _, _, models = sums_of(plain, rounds)
    people = DATA[name]["data"]["subjects"]["count"]
    silos = plain.federation.silo_count
    assert isinstance(plain.work, PeopleWork)
    parts = len(plain.work._subject)
    result: dict[str, object] = {"data": name, "numbers": len(models[0]), "people": people, "silos": silos}
    result["parts of people in silos"] = parts
    for exchange, rounded in (("masked", parts), ("weighted", people + silos)):
        result[f"{exchange}: promised"] = rounded * 1e-8
        given, exact, own = sums_of(started(made(name, exchange, 0.0)), rounds)
        result[f"{exchange}: sum"] = max(float(np.abs(a - b).max()) for a, b in zip(given, exact, strict=True))
        result[f"{exchange}: model"] = max(float(np.abs(a - b).max()) for a, b in zip(own, models, strict=True))
        given, exact, _ = sums_of(started(made(name, exchange, 100.0)), 30 if len(models[0]) <= 100 else 8)
        noise = (np.array(given) - np.array(exact)) / 100.0
        result[f"{exchange}: noise"] = float(np.std(noise))
        result[f"{exchange}: its standard error"] = 1 / (2 * noise.size) ** 0.5
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join(DATA))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    chosen = parser.parse_args()
    place = chosen.out / "exchange_equality.json"
    found = {own["data"]: own for own in json.loads(place.read_text())} if place.is_file() else {}
    for name in chosen.only.split(","):
        found[name] = row(name, chosen.rounds)
        print(json.dumps(found[name], indent=1), flush=True)
    rows = [found[name] for name in DATA if name in found]
    lines = [
        "# The same sums whichever way they travel",
        "",
        "| " + " | ".join(rows[0]) + " |",
        "|---" * len(rows[0]) + "|",
    ]
    for own in rows:
        lines.append("| " + " | ".join(f"{v:.3g}" if isinstance(v, float) else str(v) for v in own.values()) + " |")
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "exchange_equality.md").write_text("\n".join(lines) + "\n")
    place.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
