"""Federations in one process for tests: every party with its own keys, messages carried as bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd

from tacit.crypto import Refused, Secret
from tacit.data import Federation
from tacit.engine.learner import learner
from tacit.engine.loop import Hooks
from tacit.engine.run import load_federation
from tacit.engine.simulate import Simulation
from tacit.exchange import EXCHANGES as ALL_EXCHANGES
from tacit.exchange import places_of
from tacit.exchange.post import SERVER
from tacit.exchange.session import introduced
from tacit.families.shuffle.protocol import ANALYZER
from tacit.federation.protocol.sides import (
    AnalyzerSide,
    CoordinatorSide,
    Outcome,
    ServerKeys,
    SiloKeys,
    SiloSide,
    drive,
)
from tacit.methods import METHODS as ALL
from tacit.planning.plan import Plan, plan
from tacit.privacy import Randomness

ROUNDS = 3
# Every method with numbers that make something happen: noise, sampling, batches.
NOISY = {"clip": 0.5, "noise_multiplier": 1.0}
BATCHES = {**NOISY, "sample_rate": 0.1, "batches_per_round": 2, "local_learning_rate": 0.3}
PEOPLE = {**NOISY, "subject_sample_rate": 0.5}
# People who report for themselves: in the simulator they draw in other groups, so their noise is next to none here.
EXACT = {"local_epsilon": 1e16, "value_range": 0.5, "local_epochs": 2, "local_learning_rate": 0.5, "batch_subjects": 20}
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"batch_size": 16, "local_learning_rate": 0.5, "silo_sample_rate": 0.7},
    "fedprox": {"batch_size": 16, "local_learning_rate": 0.5},
    "fedsgd": {"batch_size": 16},
    "scaffold": {"batch_size": 16, "local_learning_rate": 0.5},
    "silo-only": {"batch_size": 16, "local_learning_rate": 0.5},
    "subject-sgd": {**PEOPLE, "records_per_subject": 3},
    "uldp-avg": {**NOISY, "local_epochs": 2, "local_learning_rate": 0.5},
    "uldp-sgd": {**PEOPLE, "adaptive_clip": {"quantile": 0.6, "count_noise": 1.0}},
    "uldp-naive": {**NOISY, "local_learning_rate": 0.5, "silo_sample_rate": 0.7},
    "uldp-group": {**BATCHES, "group_size": 12},
    "higrad": BATCHES,
    "local-group": {**BATCHES, "group_cap": 2},
    "local-record": BATCHES,
    "user-ldp": BATCHES,
    "central-group": {**NOISY, "sample_rate": 0.1},
    "dp-fedavg": {**NOISY, "local_learning_rate": 0.5, "silo_sample_rate": 0.7},
    "fine-tune": {**NOISY, "batch_size": 16, "local_learning_rate": 0.5},
    "per-fedavg": {**NOISY, "batch_size": 16, "local_learning_rate": 0.1},
    "pfedme": {**NOISY, "batch_size": 16, "local_learning_rate": 0.5},
    "mean-regularized": {**NOISY, "batch_size": 16, "local_learning_rate": 0.5, "personal_weight": 0.5},
    "graph-regularized": {**NOISY, "batch_size": 16, "local_learning_rate": 0.5, "personal_weight": 0.5},
    "fedem": {**NOISY, "batch_size": 16, "local_learning_rate": 0.5},
    "dp-fedsgd": {**NOISY, "adaptive_clip": {"quantile": 0.5, "count_noise": 1.0}},
    "ss-simple": EXACT,
    "ss-double": {**EXACT, "index_rate": 1.0, "index_sampling": "fixed"},
    # the accountant of ss-topk wants a table of losses: less of everything
    "ss-topk": {**EXACT, "index_rate": 0.5, "local_epsilon": 1e5, "value_range": 0.002},
    "ldp-laplace": EXACT,
    "ldp-gaussian": EXACT,
}
# any other method that runs in a federation: its defaults, and noise where it adds some
METHODS |= {
    name: {} if kind.noise_key is None else NOISY
    for name, kind in ALL.items()
    if name not in METHODS and not kind.info.pools and not kind.info.serverless
}
EXCHANGES: dict[str, dict[str, Any]] = {
    name: {"name": name} for name, kind in ALL_EXCHANGES.items() if kind.carries != "neighbours"
}
# with noise that cancels in pairs all silos take part, and no count is made beside the sum
NOT_IN_PAIRS = ("silo_sample_rate", "adaptive_clip")


def planned(experiment: dict[str, Any], method: str, carried: str = "plain", /, **sections: Any) -> Plan:
    """A plan of three rounds on the made table; ``sections`` add to those of the experiment."""
    numbers = METHODS[method] | ({"weights": "records-phantom"} if carried == "weighted" else {})
    if carried == "pairwise":
        numbers = {key: value for key, value in numbers.items() if key not in NOT_IN_PAIRS}
    facts = {
        "subjects": {"column": "person", "count": 60},
        "silos": {"column": "clinic", "count": 3},
        "records_per_silo": 200,
    }
    made = experiment | {
        "data": experiment["data"] | facts,
        "method": {"name": method, **numbers},
        "exchange": EXCHANGES[carried],
        "train": {"rounds": ROUNDS},
        "privacy": {"max_records_per_subject_and_silo": 4},
    }
    if ALL[method].noise_key == "local_epsilon":
        made["privacy"] = {"max_silos_per_subject": 1}
    for name, section in sections.items():
        made[name] = section if not isinstance(section, dict) else made.get(name, {}) | section
    return plan(made)


def one_silo(federation: Federation, k: int) -> Federation:
    """What silo ``k`` holds by itself: its training and held-out rows, as the only silo."""
    here = [rows.silo == k for rows in (federation.train, federation.test)]
    train, test = (
        replace(rows.take(mine), silo=np.zeros(int(mine.sum()), np.int32))
        for rows, mine in zip((federation.train, federation.test), here, strict=True)
    )
    unpaid = federation.unpaid
    if unpaid is not None:
        parts = [
            replace(part, rows=part.rows[mine], silo=part.silo[mine])
            for part, mine in zip((unpaid.train, unpaid.test), here, strict=True)
        ]
        unpaid = replace(unpaid, train=parts[0], test=parts[1])
    return replace(federation, train=train, test=test, silo_names=(federation.silo_names[k],), unpaid=unpaid)


class Parties:
    """A coordinator and its silos. ``harm(silo, phase number, answer)`` may change or drop what a silo answers."""

    def __init__(self, made: Plan, federation: Federation | dict[str, Federation], **options: Any) -> None:
        if isinstance(federation, Federation):
            federation = {name: one_silo(federation, k) for k, name in enumerate(federation.silo_names)}
        self.plan, self.names = made, tuple(federation)
        identities, roster = introduced((*self.names, ANALYZER))
        for name, liar in options.pop("liars", {}).items():
            identities = {**identities, name: liar(identities[name])}
        common = Secret.random()
        hook, memory = options.pop("before_release", None), options.pop("memory", None)
        self.silos = {
            name: SiloSide(
                made,
                name,
                federation[name],
                SiloKeys(identities[name], roster, common),
                **({} if hook is None else {"before_release": hook(name)}),
                memory=None if memory is None else _folder(memory, name),
            )
            for name in self.names
        }
        self.analyzer: AnalyzerSide | None = None
        if made.exchange.name == "shuffled":
            self.analyzer = AnalyzerSide(made, ServerKeys(identities[ANALYZER], roster))
        self.hooks = Hooks()
        for name in ("before_statistics", "after_statistics"):
            if name in options:
                setattr(self.hooks, name, options.pop(name))
        self.coordinator = CoordinatorSide(made, self.names, ServerKeys(identities[SERVER], roster), **options)
        self.steps = 0

    def run(self, harm: Callable[[str, int, bytes], bytes | None] = lambda silo, step, answer: answer) -> Outcome:
        def carry(told: Mapping[str, bytes]) -> dict[str, bytes | None]:
            self.steps += 1
            answers: dict[str, bytes | None] = {}
            for silo, message in told.items():
                try:
                    answers[silo] = harm(silo, self.steps, self._handler(silo).handle(message))
                except Refused:
                    answers[silo] = None
            return answers

        return drive(self.coordinator, carry, self.hooks)

    def _handler(self, party: str) -> SiloSide | AnalyzerSide:
        if party != ANALYZER:
            return self.silos[party]
        assert self.analyzer is not None
        return self.analyzer


def _folder(memory: Path, name: str) -> Path:
    (memory / name).mkdir(exist_ok=True)
    return memory / name


def parties(made: Plan, frame: pd.DataFrame, **options: Any) -> Parties:
    return Parties(made, loaded(made, frame), **options)


def loaded(made: Plan, frame: pd.DataFrame) -> Federation:
    """The records of a plan; where people report for themselves, each in the silo to which the place belongs."""
    federation = load_federation(made, frame)
    if made.options.noise_key != "local_epsilon":
        return federation
    place = places_of(federation.train.subject, made.promise.facts.subjects)
    train = replace(federation.train, silo=place % federation.silo_count).grouped()
    return replace(federation, train=train)


def simulated(made: Plan, frame: pd.DataFrame, rounds: int = ROUNDS) -> Simulation:
    """The same plan in the simulator, after so many rounds."""
    return simulation_of(made, loaded(made, frame), rounds)


def simulation_of(made: Plan, federation: Federation, rounds: int = ROUNDS) -> Simulation:
    """A plan in the simulator on these records, after so many rounds."""
    randomness = Randomness.from_seed(made.experiment.seed)
    shape = federation.train.features.shape[1:]
    simulation = Simulation(
        made, federation, learner(made.experiment.model, federation.labels, shape, randomness), randomness
    )
    for number in range(1, rounds + 1):
        simulation.round(number)
    return simulation


def flat(model: Any) -> np.ndarray:
    return np.concatenate([np.zeros(0), *(np.ravel(leaf) for leaf in jax.tree.leaves(model))])
