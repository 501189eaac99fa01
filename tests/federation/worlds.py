"""Federations of real processes for tests."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from tacit.data import Federation, Records
from tacit.engine import Run
from tacit.engine.learner import learner
from tacit.engine.simulate import Simulation
from tacit.exchange import EXCHANGES
from tacit.federation.demo import PARTS, REQUESTER, Trial
from tacit.federation.protocol.agreement import in_their_places
from tacit.federation.protocol.messages import Message
from tacit.federation.request import travelling, write_job
from tacit.federation.requester import Asked, ask, follow
from tacit.federation.site.shard import load_shard, read_silo_data
from tacit.models import Params
from tacit.planning.plan import Plan, plan
from tacit.privacy import Randomness
from tests.engine.federated import Parties

# everything that the tests of this folder ask for
POLICY = {
    "methods": ["uldp-avg", "subject-sgd", "local-record", "fedavg", "ss-simple", "dp-fedavg"],
    "exchanges": [name for name, kind in EXCHANGES.items() if kind.carries != "neighbours"],
    "unit": "record",
    "against": ["public"],
    "epsilon_per_run": float("inf"),
    "epsilon_in_total": float("inf"),
    "seeds": True,
}


def travelled(text: str) -> str:
    """An experiment (TOML) as it travels."""
    return json.dumps(tomllib.loads(text))


def experiment(**changes: object) -> dict:
    """A few rounds of a small model on the built-in table."""
    base: dict = {
        "title": "test",
        "data": {"source": "randhie", "subjects": {"count": 50000}, "silos": {"count": 3}, "records_per_silo": 5400},
        "model": {"name": "logistic"},
        "method": {"name": "uldp-avg", "noise_multiplier": 5.0},
        "train": {"rounds": 3, "server_learning_rate": 10.0},
        "privacy": {"max_records_per_subject_and_silo": 5, "max_silos_per_subject": 3},
        "exchange": {"name": "masked"},
    }
    for key, value in changes.items():
        base[key] = {**base[key], **value} if isinstance(value, dict) else value
    return base


def write_request(folder: Path, run: str) -> None:
    """A job that asks for a run."""
    write_job(folder, travelling(plan(experiment())), run, 1, tuple(PARTS), 20)


@contextmanager
def federation(folder: Path, **policy: object) -> Iterator[Trial]:
    """Server and silos, running."""
    trial = Trial(folder, {**POLICY, **policy})
    trial.prepare()
    with trial.running():
        yield trial


def asked(trial: Trial, content: dict, name: str, patience: int = 60) -> tuple[Plan, Asked]:
    planned = plan(content)
    return planned, ask(trial.kit(REQUESTER), planned, trial.folder / name, patience)


def finished(trial: Trial, content: dict, name: str, *, patience: int = 60, told: list[str] | None = None) -> Run:
    """The run of an experiment on the federation."""
    planned, request = asked(trial, content, name, patience)
    tell = (lambda line: None) if told is None else told.append
    return follow(trial.kit(REQUESTER), request, planned.rounds, planned.label, tell=tell)


def simulated(trial: Trial, content: dict) -> Params:
    """The model for everybody of the same experiment in the simulator, on what the silos hold."""
    planned = plan(content)
    joined = united(held(trial, planned))
    randomness = Randomness.from_seed(planned.experiment.seed)
    made = learner(planned.experiment.model, joined.labels, joined.train.features.shape[1:], randomness)
    simulation = Simulation(planned, joined, made, randomness)
    for number in range(1, planned.rounds + 1):
        simulation.round(number)
    shared = simulation.shared_model() if planned.method.info.personal else simulation.model()
    assert shared is not None
    return shared


def held(trial: Trial, planned: Plan) -> list[Federation]:
    """What every silo holds. People who report for themselves have the numbers that are those of their silo."""
    shards = [
        load_shard(
            planned, silo, read_silo_data(trial.home(silo) / "DATA.toml"), trial.kit(silo).pseudonyms()
        ).federation
        for silo in trial.silos
    ]
    if planned.options.noise_key != "local_epsilon":
        return shards
    people = planned.promise.facts.subjects
    return [in_their_places(shard, k, len(shards), people) for k, shard in enumerate(shards)]


def said(trial: Trial, content: dict) -> tuple[bytes, list[bytes]]:
    """All that silos answer in the same experiment, where messages are carried by hand, and the updates in it, which
    its seed makes those of the run; a plain exchange."""
    planned = plan(content)
    parties = Parties(planned, united(held(trial, planned)))
    answers: list[bytes] = []

    def heard(silo: str, step: int, answer: bytes) -> bytes:
        answers.append(answer)
        return answer

    parties.run(heard)
    size = 4 * parties.coordinator._numbers
    messages = [Message.from_bytes(answer, "", 1 << 30) for answer in answers]
    return b"".join(answers), [m.content[-size:] for m in messages if m.phase == "work"]


def united(shards: list[Federation]) -> Federation:
    """What silos hold, in one place."""

    def rows(part: str) -> Records:
        parts: list[Records] = [getattr(shard, part) for shard in shards]
        silo = np.concatenate([np.full(len(one), k, np.int32) for k, one in enumerate(parts)])
        columns = (np.concatenate([getattr(one, name) for one in parts]) for name in ("features", "labels", "subject"))
        return Records(*columns, silo)

    names = tuple(shard.silo_names[0] for shard in shards)
    return replace(shards[0], train=rows("train").grouped(), test=rows("test"), silo_names=names)
