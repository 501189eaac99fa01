"""The same sums whichever way updates travel: [ULDP-FL]'s data, without noise, and the noise that is added.

    python -m benchmarks.exchange_equality [--only NAME,NAME] [--out FOLDER]      needs TACIT_DATA

uldp-avg with the weights n / N on HeartDisease, TcgaBrca (the paper's benchmark of the protocol), Creditcard with a
small model, and the writers of MNIST with a CNN in 16 silos. Counts are disclosed in the plain and the masked exchange
and hidden in the weighted one, which uses the protocol lattice with a list, so that no two people share a slot.

"MNIST on processes" is the same CNN, packed for tables of 784 columns, on a federation of a server and five silos, each
with its own process, over TLS on the loopback interface. A federation has no list: identifiers of writers are chosen
so that no two share a slot. One round, and the server's step is the sum itself, so that the model tells the sum.

sum     without noise, the largest difference of any number of a round's sum from the sum of the same people's clipped
        vectors times their weights in double precision, and what is promised. masked: a person's part in each silo is
        rounded, so precision times those parts. weighted: precision times people, and 2^-24 times records, since f(N)
        is rounded down to a multiple of 2^-24
model   the largest difference of any parameter from a run with the plain exchange
noise   its standard deviation over that which the ledger says, over all numbers of the rounds with noise, and the
        standard error of such a figure
seconds on processes: from the request to the end of the run, without noise and with it
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jax.flatten_util import ravel_pytree
from safetensors.numpy import load_file

from tacit.data import Federation
from tacit.engine.learner import learner
from tacit.engine.people_work import PeopleWork
from tacit.engine.run import load_federation
from tacit.engine.simulate import Simulation
from tacit.exchange import Grid, Session
from tacit.families.weighting.lattice import WEIGHT_BITS
from tacit.federation.demo import Trial
from tacit.federation.site.shard import pseudonyms
from tacit.models.images import cnn
from tacit.models.packing import pack
from tacit.planning.plan import Plan, plan
from tacit.privacy import Randomness
from tacit.privacy.randomness import shares
from tests.federation.worlds import finished, held, united

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

PROCESSES, PIXELS, SILOS, SIGMA = "MNIST on processes", [f"p{i}" for i in range(784)], 5, 100.0
POLICY = {
    "methods": ["uldp-avg"],
    "exchanges": ["weighted"],
    "against": ["public"],
    "epsilon_per_run": math.inf,
    "epsilon_in_total": math.inf,
    "least_records": 1,
    "silos_per_subject": SILOS,
    "models": "packed",
    "most_memory": 100_000,
    "seeds": True,
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


def started(planned: Plan, federation: Federation | None = None) -> Simulation:
    federation, randomness = federation or load_federation(planned), Randomness.from_seed(1)
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


# -- on processes


def written(people: int) -> pd.DataFrame:
    """The digits of the first writers, with their silo; pixels as the source scales them."""
    train = load_federation(made("MNIST", "plain", 0.0)).train
    table = pd.DataFrame(train.features.reshape(len(train.features), -1), columns=PIXELS)
    silo = np.random.default_rng(1).integers(SILOS, size=len(table))
    return table.assign(person=train.subject, y=train.labels, silo=silo)[train.subject < people]


def chosen(trial: Trial, people: int) -> dict[int, str]:
    """An identifier for each writer, such that each has a slot alone."""
    secret, taken, names = trial.kit(trial.silos[0]).pseudonyms(), set(), {}
    for person in range(people):
        for attempt in count():
            name = f"{person}-{attempt}"
            (slot,) = shares(pseudonyms(np.array([name]), secret), people).tolist()
            if slot not in taken:
                break
        taken.add(slot)
        names[person] = name
    return names


def asked(people: int, records: int, model: Path, exchange: str, sigma: float) -> dict[str, Any]:
    method = {"name": "uldp-avg", "clip": 1.0, "weights": "records", "disclose_counts": exchange != "weighted"}
    numbers = {"noise_multiplier": sigma, "local_epochs": 2, "local_learning_rate": 0.1}
    content = {
        "data": {
            "label": "y",
            "task": "multiclass",
            "classes": list(range(10)),
            "numeric": {name: {"mean": 0, "scale": 1} for name in PIXELS},
            "subjects": {"column": "person", "count": people},
            "silos": {"count": SILOS},
            "records_per_silo": records,
            "test_fraction": 1e-9,
        },
        "model": {"name": "packed", "path": str(model)},
        "method": method | numbers,
        "train": {"rounds": 1, "server_learning_rate": float(people * SILOS)},
        "privacy": {"max_records_per_subject_and_silo": 100},
        "exchange": {"name": exchange} | ({"precision": PRECISION} if exchange == "weighted" else {}),
    }
    return content | ({"seed": 1} if sigma == 0 else {})


def on_processes(people: int) -> dict[str, Any]:
    table = written(people)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (model := folder / "cnn.tacit").write_bytes(pack(cnn((28, 28), 10), (len(PIXELS),), 10, seed=1).content)
        tables = {f"silo{k}": part.drop(columns="silo") for k, part in table.groupby("silo")}
        trial = Trial(folder / "federation", POLICY, tables=tables)
        trial.prepare()
        names = chosen(trial, people)
        for silo, part in tables.items():
            renamed = part.assign(person=part.person.map(names))
            renamed.to_parquet(trial.home(silo) / "visits.parquet", index=False)
        most = max(map(len, tables.values()))
        planned = plan(asked(people, most, model, "plain", 0.0))
        simulation = started(planned, united(held(trial, planned)))
        assert isinstance(simulation.work, PeopleWork)
        parts, records = len(simulation.work._subject), len(simulation.federation.train.subject)
        start = np.asarray(ravel_pytree(simulation.server.params)[0], np.float64)
        _, (exact,), (plain,) = sums_of(simulation, 1)
        found, seconds = [], []
        with trial.running():
            for sigma in (0.0, SIGMA):
                begin = time.monotonic()
                run = finished(trial, asked(people, most, model, "weighted", sigma), f"run-{sigma}", patience=3000)
                seconds.append(time.monotonic() - begin)
                found.append(_vector(load_file(run.path / "model.safetensors")))
                print(f"noise {sigma:g}: {seconds[-1]:.0f} s", flush=True)
    noise = (found[1] - start - exact) / SIGMA
    return {
        "data": PROCESSES,
        "numbers": len(exact),
        "people": people,
        "silos": SILOS,
        "records": records,
        "parts of people in silos": parts,
        "weighted: promised": people * PRECISION + records * 2.0**-WEIGHT_BITS,
        "weighted: sum": float(np.abs(found[0] - start - exact).max()),
        "weighted: model": float(np.abs(found[0] - plain).max()),
        "weighted: noise": float(np.std(noise)),
        "weighted: its standard error": 1 / (2 * noise.size) ** 0.5,
        "seconds": [round(one) for one in seconds],
    }


def _vector(leaves: dict[str, np.ndarray]) -> np.ndarray:
    """Saved parameters in the order in which a tree of layers is made flat."""
    return np.concatenate([leaves[name].ravel() for name in sorted(leaves)]).astype(np.float64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join([*DATA, PROCESSES]))
    parser.add_argument("--writers", type=int, default=539, help="on processes; fewer for a quick look")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    place = options.out / "exchange_equality.json"
    found = {own["data"]: own for own in json.loads(place.read_text())} if place.is_file() else {}
    for name in options.only.split(","):
        found[name] = on_processes(options.writers) if name == PROCESSES else row(name)
        print(json.dumps(found[name], indent=1), flush=True)
    rows = [found[name] for name in [*DATA, PROCESSES] if name in found]
    columns = list(dict.fromkeys(key for own in rows for key in own))
    lines = [
        "# The same sums whichever way they travel",
        "",
        "`TACIT_DATA=… python -m benchmarks.exchange_equality`; its text says what the columns are.",
        "",
        "| " + " | ".join(columns) + " |",
        "|---" * len(columns) + "|",
    ]
    for own in rows:
        cells = (own.get(key, "–") for key in columns)
        lines.append("| " + " | ".join(f"{v:.3g}" if isinstance(v, float) else str(v) for v in cells) + " |")
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "exchange_equality.md").write_text("\n".join(lines) + "\n")
    place.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
