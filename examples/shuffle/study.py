"""How the comparisons on docs/shuffle.md are made: contenders, their plans, curves over epochs, one number chosen.

What is chosen for each contender is how far the server steps; it is judged on a fifth of the *training* people, held
out with a seed of its own. Everything else is the same for all, or the paper's.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import tacit
from tacit.config import Plan
from tacit.data import Federation
from tacit.engine import load_federation
from tacit.engine.learner import learner
from tacit.engine.simulate import Simulation
from tacit.privacy import Randomness

FILE = Path(__file__).parent / "flame.toml"
CHOOSING_SEED, CHOOSING_EPOCHS = 1001, 4  # never a seed of a result
PEOPLE, NUMBERS, DELTA = 1000, 7850, 5e-6
LOCAL = {"local_epochs": 5, "local_learning_rate": 0.1}
RANGE = 0.03  # C
STEPS = (0.01, 0.03, 0.1, 0.3)  # in units of C: what one number moves by if everybody agrees

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Contender:
    """A method in a comparison.

    method    its keys of ``[method]``
    rates     server rates to choose from
    trusts    whom people have to trust
    view      whom its epsilon is about
    people    where people are: "encoders", or "silos" of one person each
    """

    label: str
    method: Settings
    rates: Sequence[float]
    trusts: str
    view: str = "analyzer"
    people: str = "encoders"


def shuffled(label: str, name: str, **numbers: Any) -> Contender:
    """One of FLAME's protocols."""
    method = {"name": name, "value_range": RANGE, **LOCAL, **numbers}
    return Contender(label, method, [step / RANGE for step in STEPS], "shuffler and analyzer not to collude")


def local(label: str, name: str, **numbers: Any) -> Contender:
    """Everybody adds noise alone."""
    method = {"name": name, "value_range": RANGE, **LOCAL, **numbers}
    return Contender(label, method, [step / RANGE for step in STEPS], "nobody", "server")


def trusted(label: str, **numbers: Any) -> Contender:
    """DP-FL: a trusted analyzer adds Gaussian noise to the sum of clipped updates."""
    method = {"name": "dp-fedavg", "clip": 1.0, **LOCAL, **numbers}
    return Contender(label, method, (0.1, 0.3, 1.0, 3.0), "the analyzer", "public", "silos")


def open_() -> Contender:
    """NP-FL: no privacy."""
    return Contender("not private", {"name": "fedavg", **LOCAL}, (1.0, 2.0, 4.0), "everybody", "public", "silos")


def planned(contender: Contender, rate: float, epochs: int, seed: int = 0) -> Plan:
    """The plan of a contender for so many epochs: with 1,000 people, an epoch is a round."""
    content = tomllib.loads(FILE.read_text(encoding="utf-8"))
    shuffles = contender.view == "analyzer"
    privacy = {"delta": DELTA, "against": [contender.view], "relation": "replace"}
    data = content["data"]
    if contender.people == "silos":
        data = data | {"silos": {"assign": "uniform", "count": PEOPLE}}
        privacy["unit"] = "silo"
    return tacit.plan(
        content
        | {
            "seed": seed,
            "data": data,
            "method": dict(contender.method),
            "train": {"rounds": epochs, "server_learning_rate": rate},
            "privacy": privacy,
            "exchange": content["exchange"] if shuffles else {"name": "plain"},
        },
        folder=FILE.parent,
    )


def calibrated(contender: Contender, epsilon: float, epochs: int) -> Contender:
    """The contender with the least noise that keeps a *proved* epsilon over so many epochs against its view."""
    noise = ("local_epsilon", "noise_multiplier", "target_epsilon")
    method = {key: value for key, value in contender.method.items() if key not in noise}
    solved = planned(replace(contender, method=method | {"target_epsilon": epsilon}), 1.0, epochs)
    if solved.local_epsilon is not None:
        return replace(contender, method=method | {"local_epsilon": solved.local_epsilon})
    return replace(contender, method=method | {"noise_multiplier": solved.noise_multiplier})


def epsilons(contender: Contender, epochs: int) -> tuple[float, float | None]:
    """(proved, as published) against the contender's view, over so many epochs."""
    guarantee = planned(contender, 1.0, epochs).guarantees()[0]
    return guarantee.epsilon, guarantee.as_published.epsilon if guarantee.as_published else None


def curve(plan: Plan, federation: Federation) -> list[float]:
    """Accuracy on held-out records after every round."""
    randomness = Randomness.from_seed(plan.experiment.seed)
    made = learner(plan.experiment.model, federation.labels, federation.train.features.shape[1:], randomness)
    simulation = Simulation(plan, federation, made, randomness)
    found = []
    for number in range(1, plan.rounds + 1):
        simulation.round(number)
        found.append(float(simulation.evaluate(federation, False).overall["accuracy"] or math.nan))
    return found


def chosen_rate(contender: Contender, epochs: int) -> float:
    """The server rate that does best on held-out training people after so many epochs, or a few of them."""
    federation = without_strangers(loaded(contender.people, CHOOSING_SEED), CHOOSING_SEED)
    few = min(epochs, CHOOSING_EPOCHS)
    plans = {rate: planned(contender, rate, few, CHOOSING_SEED) for rate in contender.rates}
    return max(plans, key=lambda rate: curve(plans[rate], federation)[-1])


@cache
def loaded(people: str, seed: int) -> Federation:
    """MNIST parted among 1,000 people, by a seed."""
    contender = open_() if people == "silos" else shuffled("", "ss-simple", local_epsilon=1.0)
    return load_federation(planned(contender, 1.0, 1, seed))


def without_strangers(federation: Federation, seed: int) -> Federation:
    """The training people alone: records of a fifth of them are held out instead of those of the results."""
    whose = federation.train.silo if federation.silo_count == PEOPLE else federation.train.subject
    out = np.random.default_rng([seed, 5]).permutation(PEOPLE)[: PEOPLE // 5]
    held_out = np.isin(whose, out)
    return replace(federation, train=federation.train.take(~held_out), test=federation.train.take(held_out))
