"""A plan on a table, in every engine, and everything that leaves it in a round."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import jax
import numpy as np
import pandas as pd

from tacit.auditing.views import one_by_one
from tacit.crypto import Refused, Secret
from tacit.data import Federation
from tacit.engine.learner import learner
from tacit.engine.loop import Hooks
from tacit.engine.run import load_federation
from tacit.engine.simulate import Simulation
from tacit.exchange.post import SERVER, read_numbers, read_steps
from tacit.exchange.session import introduced
from tacit.families.gossip import worker
from tacit.families.gossip.kernels import noised
from tacit.families.shuffle.protocol import ANALYZER
from tacit.federation.protocol.messages import Desk, Message
from tacit.federation.protocol.sides import (
    AnalyzerSide,
    CoordinatorSide,
    RoundFailed,
    ServerKeys,
    SiloKeys,
    SiloSide,
    drive,
)
from tacit.federation.site.shard import SiloData, load_shard
from tacit.planning.plan import Plan
from tacit.privacy import Randomness
from tests.neighbours.worlds import SILOS

SECRET = b"the silos' common secret: tests."


@dataclass
class Seen:
    """What leaves in a run, round after round.

    public  ``[rounds, numbers]``: by what every round moves the released parameters
    each    ``[rounds, silos, numbers]``: what every silo sends, where it is sent as it is
    """

    public: np.ndarray
    each: np.ndarray | None = None


def flat(params: Any) -> np.ndarray:
    return np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(params)])


def released(plan: Plan, server: Any) -> np.ndarray:
    """All numbers that a server publishes. Of an adaptive clip, the number that moves with the count it follows."""
    numbers, adaptive = flat(server.params), getattr(plan.options, "adaptive_clip", None)
    return numbers if adaptive is None else np.append(numbers, -np.log(float(server.extra)) / adaptive.rate)


def noise_only(params: Any, levels: int) -> np.ndarray:
    """Which of the flat parameters belong to categories that no record has."""
    masks = []
    for leaf in jax.tree.leaves(params):
        mask = np.zeros(np.shape(leaf), bool)
        if mask.ndim and mask.shape[-1] > levels:
            mask[..., -(levels - 1) :] = True
        masks.append(mask.ravel())
    return np.concatenate(masks)


def simulation(plan: Plan, frame: pd.DataFrame) -> Simulation:
    """The simulator at the start of a plan, from the table on."""
    federation = load_federation(plan, frame)
    randomness = Randomness.from_seed(plan.experiment.seed)
    start = learner(plan.experiment.model, federation.labels, federation.train.features.shape[1:], randomness)
    return Simulation(plan, federation, start, randomness)


def simulated(plan: Plan, frame: pd.DataFrame, missing: Sequence[str] = ()) -> Seen:
    assert not missing, "no silo is missing in the simulator"
    sim = simulation(plan, frame)
    trusted = plan.method.info.pools or "server" in plan.method.info.trusts
    sees_each = plan.exchange.reveals.get("server") == "each" and not trusted
    public, each, before = [], [], released(plan, sim.server)
    for number in range(1, plan.rounds + 1):
        if sees_each:
            each.append(np.asarray(one_by_one(sim, "server", number), np.float64))
        sim.round(number)
        after = released(plan, sim.server)
        public.append(after - before)
        before = after
    return Seen(np.array(public), np.array(each) if each else None)


def gossiped(plan: Plan, frame: pd.DataFrame, missing: Sequence[str] = ()) -> Seen:
    """Nodes without a server: ``each`` is what every node sends before anything is averaged."""
    messages: list[np.ndarray] = []

    def sent(*moves: Any) -> Any:
        messages.append(noised(*moves))
        return messages[-1]

    with patch.object(worker, "noised", sent):
        seen = simulated(plan, frame, missing)
    return Seen(seen.public, np.array(messages) if messages else None)


def federated(plan: Plan, frame: pd.DataFrame, missing: Sequence[str] = ()) -> Seen | None:
    """A federation in one process: every silo loads a table of its own, messages are bytes. Silos that are ``missing``
    do not answer when they are asked for their work. None where the round is not released without them."""
    logging.getLogger("tacit.federation").setLevel(logging.ERROR)  # a missing silo is no news here
    identities, roster = introduced((*SILOS, ANALYZER))
    silos = {
        name: SiloSide(plan, name, shard(plan, frame, name), SiloKeys(identities[name], roster, Secret(SECRET)))
        for name in SILOS
    }
    parties: dict[str, SiloSide | AnalyzerSide] = {**silos}
    if plan.exchange.name == "shuffled":
        parties[ANALYZER] = AnalyzerSide(plan, ServerKeys(identities[ANALYZER], roster))
    public: list[np.ndarray] = []
    sent: dict[str, list[np.ndarray]] = {name: [] for name in SILOS}

    class Keeping(Hooks):
        def after_round(self, number: int, participants: int) -> None:
            public.append(released(plan, coordinator.server))

    coordinator = CoordinatorSide(plan, SILOS, ServerKeys(identities[SERVER], roster))

    def carry(told: dict[str, bytes]) -> dict[str, bytes | None]:
        answers: dict[str, bytes | None] = {}
        for party, message in told.items():
            working = Message.from_bytes(message, SERVER, 1 << 30).phase == "work"
            try:
                answer = parties[party].handle(message)
            except Refused:
                answers[party] = None
                continue
            if working and party in missing:
                answers[party] = None
                continue
            if working and plan.exchange.carries == "sum" and party in sent:
                sent[party].append(_update(answer, party, identities, roster, coordinator))
            answers[party] = answer
        return answers

    try:
        drive(coordinator, carry, Keeping())
    except RoundFailed:
        return None
    silos = plan.promise.facts.silos
    start = released(plan, plan.method.server.init(plan.server_step, coordinator.learner.params, silos))
    moved = np.diff(np.stack([start, *public]), axis=0)
    there = [parts for name, parts in sent.items() if name not in missing]
    each = np.stack(there, axis=1) if there and there[0] else None
    return Seen(moved, each)


def _update(answer: bytes, silo: str, identities: Any, roster: Any, coordinator: CoordinatorSide) -> np.ndarray:
    """The numbers of a silo's message, as the server reads them."""
    message = Message.from_bytes(answer, silo, 1 << 30)
    desk = Desk(message.run, SERVER, identities[SERVER], roster, message.round)
    content, step = desk.read(silo, "work", message.content), coordinator._silos.grid
    if step is not None:
        return read_steps(content, len(content) // 8, silo) * step
    return np.asarray(read_numbers(content, len(content) // 4, silo), np.float64)


def shard(plan: Plan, frame: pd.DataFrame, name: str) -> Federation:
    """A silo's own table, from its file on. A silo sees nothing of the others' tables: where its own is one that it has
    already loaded, for this plan, that is taken."""
    return _loaded(_Same(plan), name, frame[frame["site"] == name].to_csv(index=False))


@dataclass(frozen=True)
class _Same:
    """A plan that equals itself alone."""

    plan: Plan

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.plan is self.plan

    def __hash__(self) -> int:
        return id(self.plan)


@lru_cache(maxsize=64)
def _loaded(same: _Same, name: str, text: str) -> Federation:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "table.csv"
        file.write_text(text)
        data = SiloData(path=str(file), subjects="person", name=name)
        return load_shard(same.plan, name, data, Secret(SECRET)).federation


ENGINES: dict[str, Callable[..., Seen | None]] = {"simulator": simulated, "federation": federated}


# Streams that noise is drawn from, each with the number of its silo (or of the server, after all silos) as last place.
NOISY = ("noise", "batches")


@contextmanager
def other_noise(salt: int, known: Sequence[int] = ()) -> Iterator[None]:
    """All noise is drawn from other keys, but that of the silos that are ``known``."""
    drawn = Randomness.stream

    def stream(self: Randomness, purpose: str, *place: int) -> Any:
        salted = purpose in NOISY and (not place or place[-1] not in known)
        return drawn(self, f"{purpose} {salt}" if salted else purpose, *place)

    with patch.object(Randomness, "stream", stream):
        yield
