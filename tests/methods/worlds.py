"""Made federations, and plans for them that know no data: what the tests of private methods start from."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tacit
from tacit.data import Federation, Labels, Records
from tacit.engine.learner import learner
from tacit.engine.simulate import Simulation
from tacit.exchange.plain import Total
from tacit.kernels import Steps
from tacit.planning.plan import Plan
from tacit.privacy import Randomness

FEATURES = 4


def planned(method: dict, *, silos: int = 2, rounds: int = 1, seed: int | None = None, **sections: Any) -> Plan:
    """A plan on public facts alone. ``sections`` add to ``privacy``, ``data`` and ``train``, or are ``model`` and
    ``exchange``."""
    caps = {"max_records_per_subject_and_silo": 10, "max_silos_per_subject": 1, "over_silo_cap": "refuse"}
    privacy = {**caps, **sections.get("privacy", {})}
    data = {
        "silos": {"column": "silo", "count": silos},
        "subjects": {"column": "person", "count": 100},
        "records_per_silo": 2000,
        **sections.get("data", {}),
    }
    train = {"rounds": rounds, **sections.get("train", {})}
    experiment = {"data": data, "method": method, "train": train, "privacy": {k: v for k, v in privacy.items() if v}}
    experiment |= {name: sections[name] for name in ("model", "exchange") if name in sections}
    return tacit.plan(experiment if seed is None else {"seed": seed, **experiment})


def epsilon(plan: Plan, view: str) -> float:
    """What the plan proves against a view."""
    return next(g.epsilon for g in plan.guarantees() if str(g.view) == view)


def published(plan: Plan, view: str) -> Any:
    return next(g.as_published for g in plan.guarantees() if str(g.view) == view)


def federation(features, labels, subject, silo, silos: int, subjects: int | None = None) -> Federation:
    """Rows in any order as a federation of ``silos`` silos with a real-valued label."""
    subject, silo = np.asarray(subject, np.int64), np.asarray(silo, np.int32)
    rows = Records(np.asarray(features, np.float32), np.asarray(labels, np.float32), subject, silo).grouped()
    count = int(subject.max(initial=0)) + 1 if subjects is None else subjects
    names = tuple(f"silo {k + 1}" for k in range(silos))
    columns = tuple(f"x{i}" for i in range(rows.features.shape[1]))
    return Federation(rows, rows, Labels("real"), names, count, columns, "records")


def random_federation(rng: np.random.Generator, silos: int = 3, rows: int = 60, subjects: int = 8) -> Federation:
    """People of very different sizes anywhere; records of very different scales, some of which cannot be computed."""
    share = rng.dirichlet(np.full(subjects, 0.7))
    features = rng.normal(size=(rows, FEATURES)) * 10.0 ** rng.uniform(-2, 3, size=(rows, 1))
    labels = rng.normal(size=rows) * 10.0 ** rng.uniform(-2, 3, size=rows)
    for value in (np.inf, np.nan, 3e38, -3e38):
        features[rng.integers(rows), rng.integers(FEATURES)] = value
    labels[rng.integers(rows)] = rng.choice([np.inf, np.nan, 3e38, 1.0])
    return federation(
        features, labels, rng.choice(subjects, rows, p=share), rng.integers(silos, size=rows), silos, subjects
    )


def simulation(made: Federation, method: dict, seed: int = 1, rounds: int = 10, **sections: Any) -> Simulation:
    """A simulation of a plan for this federation, whose facts are declared with room to spare."""
    data = {
        "subjects": {"column": "person", "count": made.subject_count},
        "records_per_silo": 100,
        "task": "real",
        **sections.pop("data", {}),
    }
    privacy = {
        "max_records_per_subject_and_silo": len(made.train),
        "max_silos_per_subject": None,
        **sections.pop("privacy", {}),
    }
    model = sections.pop("model", {"name": "linear"})
    plan = planned(
        method, silos=made.silo_count, rounds=rounds, seed=seed, data=data, privacy=privacy, model=model, **sections
    )
    randomness = Randomness.from_seed(seed)
    start = learner(plan.experiment.model, made.labels, made.train.features.shape[1:], randomness)
    return Simulation(plan, made, start, randomness)


def before_noise(sim: Simulation, drawn: Any) -> np.ndarray:
    """The sum of all contributions that an exchange would add noise to."""
    worked = sim.work.do(drawn, sim.given(sim.broadcast))
    return np.sum([numbers(sim, total) for total in worked.totals], axis=0)


def numbers(sim: Simulation, total: Total) -> np.ndarray:
    """A sum as numbers, in double precision."""
    if not isinstance(total, Steps):
        return np.asarray(total, np.float64)
    assert sim.grid is not None
    return total.integers() * sim.grid


def weights(sim: Simulation) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(sim.model())])


def moved(sim: Simulation, value: float) -> None:
    """Every weight of the model at ``value``."""
    sim.server = sim.server._replace(params=jax.tree.map(lambda leaf: jnp.full_like(leaf, value), sim.server.params))
