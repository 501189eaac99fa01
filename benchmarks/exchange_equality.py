"""The same sums whichever way updates travel: [ULDP-FL]'s data, without noise, and the noise that is added.

    python -m benchmarks.exchange_equality [--only NAME,NAME] [--out FOLDER]      needs TACIT_DATA

uldp-avg with the weights n / N on HeartDisease, TcgaBrca (the paper's benchmark of the protocol), Creditcard with a
small model, and the writers of MNIST with a CNN in 16 silos. Counts are disclosed in the plain and the masked exchange
and hidden in the weighted one, which uses the protocol lattice with a list, so that no two people share a slot.

sum     without noise, the largest difference of any number of a round's sum from the sum of the same people's clipped
        vectors times their weights in double precision, and what is promised. masked: a person's part in each silo is
        rounded, so precision times those parts. weighted: precision times people, and 2^-24 times records, since f(N)
        is rounded down to a multiple of 2^-24
model   the largest difference of any parameter from a run with the plain exchange
noise   its standard deviation over that which the ledger says, over all numbers of the rounds with noise, and the
        standard error of such a figure
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
from tacit.families.weighting.lattice import WEIGHT_BITS
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
    "MNIST": {
        "data": {
            "source": "mnist",
            "subjects": {"column": "writer", "count": 539},
            "silos": {"assign": "uniform", "count": 16},
        },
        "model": {"name": "cnn"},
        "privacy": {"max_records_per_subject_and_silo": 20},
    },
}
# rounds without noise, and with noise; a model of many numbers needs few
ROUNDS = {"HeartDisease": (3, 30), "TcgaBrca": (3, 30), "Creditcard": (3, 8), "MNIST": (1, 1)}
PRECISION = 1e-8
EXCHANGES: dict[str, dict[str, Any]] = {
    "plain": {"name": "plain"},
    "masked": {"name": "masked", "precision": PRECISION},
    "weighted": {"name": "weighted", "precision": PRECISION, "index": "list"},
}


def made(name: str, exchange: str, sigma: float) -> Plan:
    method = {"name": "uldp-avg", "clip": 1.0, "weights": "records", "disclose_counts": exchange != "weighted"}
    numbers = {"noise_multiplier": sigma, "local_epochs": 2, "local_learning_rate": 0.1}
    return plan(
        {
            "seed": 1,
            **DATA[name],
            "method": method | numbers,
            "exchange": EXCHANGES[exchange],
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
    for number in range(1, rounds + 1):
        drawn = work.draw(number)
        contributed = work.integers(drawn, simulation.given(simulation.broadcast), fine).parts
        exact.append(fine.numbers(np.sum(contributed, axis=0)))
        simulation.round(number)
        models.append(np.asarray(ravel_pytree(simulation.server.params)[0], np.float64))
    return given, exact, models


def row(name: str) -> dict:
    rounds, noisy = ROUNDS[name]
    plain = started(made(name, "plain", 0.0))
    _, _, models = sums_of(plain, rounds)
    people, records = DATA[name]["data"]["subjects"]["count"], len(plain.federation.train.subject)
    assert isinstance(plain.work, PeopleWork)
    parts = len(plain.work._subject)
    result: dict[str, object] = {"data": name, "numbers": len(models[0]), "people": people}
    result |= {"silos": plain.federation.silo_count, "records": records, "parts of people in silos": parts}
    promised = {"masked": parts * PRECISION, "weighted": people * PRECISION + records * 2.0**-WEIGHT_BITS}
    for exchange in promised:
        result[f"{exchange}: promised"] = promised[exchange]
        given, exact, own = sums_of(started(made(name, exchange, 0.0)), rounds)
        result[f"{exchange}: sum"] = max(float(np.abs(a - b).max()) for a, b in zip(given, exact, strict=True))
        result[f"{exchange}: model"] = max(float(np.abs(a - b).max()) for a, b in zip(own, models, strict=True))
        given, exact, _ = sums_of(started(made(name, exchange, 100.0)), noisy)
        noise = (np.array(given) - np.array(exact)) / 100.0
        result[f"{exchange}: noise"] = float(np.std(noise))
        result[f"{exchange}: its standard error"] = 1 / (2 * noise.size) ** 0.5
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(DATA))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    chosen = parser.parse_args()
    place = chosen.out / "exchange_equality.json"
    found = {own["data"]: own for own in json.loads(place.read_text())} if place.is_file() else {}
    for name in chosen.only.split(","):
        found[name] = row(name)
        print(json.dumps(found[name], indent=1), flush=True)
    rows = [found[name] for name in DATA if name in found]
    lines = [
        "# The same sums whichever way they travel",
        "",
        "`TACIT_DATA=… python -m benchmarks.exchange_equality`; its text says what the columns are.",
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
