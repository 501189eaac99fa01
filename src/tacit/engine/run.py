"""A run from plan to folder: load, train, write down, evaluate, keep, and the references beside it."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import platform
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
import pandas as pd

from tacit.config import Plan, read_experiment
from tacit.data import Federation, describe, load, load_evaluation
from tacit.engine.charges import Charges, check_budget
from tacit.engine.clock import Clock
from tacit.engine.evaluate import Numbers, Scores, by_decile
from tacit.engine.folder import (
    BASELINES,
    CHECKPOINT,
    CLOCK,
    ENCODER,
    LEDGER,
    LOCAL,
    METRICS,
    MODEL,
    PLAN,
    RESULT,
    Run,
    read_json,
    read_metrics,
    write_json,
)
from tacit.engine.interrupt import Interruption
from tacit.engine.learner import learner
from tacit.engine.simulate import Simulation
from tacit.engine.trees import is_finite, load_tree, save_tree, write_bytes
from tacit.errors import Forbidden, UserError
from tacit.models import higher_is_better
from tacit.privacy import Guarantee, Randomness

REFERENCES = ("silo-only", "pooled")
EVALUATIONS = 100  # at most so many points on a curve, unless the plan says otherwise
SILOS_ON_CURVES = 32  # with more silos, per-silo metrics are computed once, at the end


class Progress(Protocol):
    """Who is told how a run goes."""

    def begin(self, what: str, rounds: int, done: int) -> None: ...
    def advance(self, number: int, metrics: Numbers) -> None: ...
    def end(self) -> None: ...


class Silence:
    """Nobody is told."""

    def begin(self, what: str, rounds: int, done: int) -> None:
        pass

    def advance(self, number: int, metrics: Numbers) -> None:
        pass

    def end(self) -> None:
        pass


def run(
    plan: Plan,
    *,
    frame: pd.DataFrame | None = None,
    out: Path | None = None,
    resume: Path | None = None,
    baselines: bool = False,
    progress: Progress | None = None,
) -> Run:
    """Train as planned and leave a run folder; everything that can be refused is refused before the folder exists."""
    place = _place(plan, out, resume)
    if resume is None:
        check_budget(plan)
    federation = load_federation(plan, frame)
    randomness = Randomness.from_seed(plan.experiment.seed)
    simulation = _simulation(plan, federation, randomness)
    clock = Clock(None if resume is None or not (place / CLOCK).is_file() else read_json(place / CLOCK, "--resume"))
    training = _Training(plan, federation, simulation, clock, progress or Silence(), _fingerprint(federation))
    if resume is None:
        simulation.prepare(1)
        _make_folder(place)
        write_bytes(place / PLAN, plan.to_toml().encode())
        if federation.encoder is not None:
            write_json(place / ENCODER, federation.encoder.to_dict())
    else:
        training.restore(place)
    status = training.train(place)
    earlier = read_json(place / RESULT, "--resume")["baselines"] if (place / RESULT).is_file() else {}
    result = training.result(place, status) | {"baselines": earlier}
    write_json(place / LOCAL, training.local_picture())
    write_json(place / RESULT, result)
    if baselines and status == "finished":
        for name, scores in _references(training, place, randomness):
            # a reference that was interrupted leaves the run as it is, and says so
            result["baselines"] |= {name: scores.as_dict()} if scores else {}
            result["status"] = "finished" if scores else "stopped"
            write_json(place / RESULT, result)
    return Run.load(place)


def load_federation(plan: Plan, frame: pd.DataFrame | None = None) -> Federation:
    """The data of a plan: its source, caps applied, held-out records as ``[evaluation]`` says."""
    experiment, options = plan.experiment, plan.data
    own_file = experiment.evaluation.data != "held-out"

    def capped(records: int | None) -> Federation:
        return load(
            options,
            frame=frame,
            seed=experiment.seed or 0,
            hold_out=not own_file,
            max_records_per_subject_and_silo=records,
            max_silos_per_subject=experiment.privacy.max_silos_per_subject,
        )

    if plan.records_kept == 0:
        most = plan.promise.facts.silos_of_a_subject
        problem = f"is less than one record for each of {most} silos"
        raise UserError("method.group_size", problem, "raise it, or lower privacy.max_silos_per_subject")
    federation = capped(plan.records_kept)
    if getattr(plan.method, "group_size", None) == "median":  # a statistic of the data: the plan promises nothing
        median = int(np.median(np.unique(federation.train.subject, return_counts=True)[1]))
        federation = capped(max(1, median // plan.promise.facts.silos_of_a_subject))
    if not own_file:
        return federation
    return replace(federation, test=load_evaluation(plan.path(experiment.evaluation.data), options, federation))


@dataclass
class _Training:
    """The loop over rounds, and what it leaves behind."""

    plan: Plan
    federation: Federation
    simulation: Simulation
    clock: Clock
    progress: Progress
    fingerprint: str
    done: int = 0
    scores: Scores | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    guarantees: tuple[Guarantee, ...] = ()

    def restore(self, place: Path) -> None:
        """Go back to the last checkpoint; metrics that were written after it will be written again."""
        state, facts = load_tree(place / CHECKPOINT, self.simulation.state, "--resume")
        if facts.get("data") != self.fingerprint:
            raise UserError("data", "the records are not those that the run began with", "restore them")
        self.simulation.state = state
        self.done = int(facts["round"])
        self.history = [line for line in read_metrics(place / METRICS) if line["round"] <= self.done]
        write_bytes(place / METRICS, "".join(json.dumps(line) + "\n" for line in self.history).encode())

    def train(self, place: Path) -> str:
        """All rounds that are left. Returns how it ended, and leaves a usable folder in every case.

        finished   all rounds are done
        stopped    the person at the keyboard interrupted
        budget     the next round would exceed the privacy budget
        diverged   the model is no longer finite; the last finite checkpoint is kept
        """
        self.progress.begin(self.plan.label, self.plan.rounds, self.done)
        try:
            with Charges(self.plan, place / LEDGER) as charges, Interruption() as wish:
                status = self._rounds(place, charges, wish)
                self.guarantees = charges.guarantees()
                return status
        finally:
            self.progress.end()

    def _rounds(self, place: Path, charges: Charges, wish: Interruption) -> str:
        every = self._checkpoint_every
        if charges.last_round < self.done:
            problem = f"the ledger ends at round {charges.last_round}, the checkpoint at round {self.done}"
            raise UserError("--resume", problem, "restore the ledger from a backup")
        exhausted = False
        try:
            if self.done == 0:
                self._evaluate(place, charges, participants=0)
                self._keep(place)
            while self.done < self.plan.rounds and not wish.asked:
                try:
                    participants = self._round(self.done + 1, charges)
                except Forbidden:
                    exhausted = True
                    break
                if self._due(self.done):
                    self._evaluate(place, charges, participants)
                    if not is_finite(self.simulation.model()):
                        return "diverged"
                self.progress.advance(self.done, self.scores.overall if self.scores else {})
                if self.done % every == 0:
                    self._keep(place)
        except KeyboardInterrupt:
            pass  # the second Ctrl-C; the state is that of the last whole round
        status = "finished" if self.done == self.plan.rounds else "budget" if exhausted else "stopped"
        if not self.history or self.history[-1]["round"] != self.done:
            self._evaluate(place, charges, participants=0)
        elif self.scores is None:  # resumed at the end: known already, but for the silos
            self.scores = self._score()
        self._keep(place)
        return status

    @property
    def _checkpoint_every(self) -> int:
        """As planned; every round where a repeated round would be another release (noise that no seed gives back)."""
        private = self.plan.method.private and self.plan.experiment.seed is None
        return 1 if private else self.plan.experiment.train.checkpoint_every

    def _round(self, number: int, charges: Charges) -> int:
        """One round, written down before it begins; an interruption in the middle leaves the state before it.

        The device may still be at work when this returns: whoever looks at the state waits for it.
        """
        before = self.simulation.state
        try:
            charges.charge(number)
            with self.clock("train"):
                participants = self.simulation.round(number)
            self.clock.move(self.simulation.exchange_seconds, "train", "exchange")
        except KeyboardInterrupt:
            self.simulation.state = before
            raise
        self.done = number
        return participants

    def _due(self, number: int) -> bool:
        chosen = self.plan.experiment.train.evaluate_every
        every = chosen if chosen is not None else -(-self.plan.rounds // EVALUATIONS)
        return number % every == 0 or number == self.plan.rounds

    def _score(self) -> Scores:
        last = self.done == self.plan.rounds
        with self.clock("train"):
            jax.block_until_ready(self.simulation.state)
        with self.clock("evaluate"):
            return self.simulation.evaluate(self.federation, last or self.federation.silo_count <= SILOS_ON_CURVES)

    def _evaluate(self, place: Path, charges: Charges, participants: int) -> None:
        self.scores = self._score()
        line = {
            "round": self.done,
            "seconds": round(self.clock.elapsed, 3),
            "silos_in_round": participants,
            "epsilon": charges.epsilons(),
            **self.scores.as_dict(),
        }
        with (place / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self.history = [*self.history, line]

    def _keep(self, place: Path) -> None:
        """Checkpoint and model, each replaced in one step; a model that is not finite replaces nothing."""
        if not is_finite(self.simulation.model()):
            return
        facts = {"round": str(self.done), "data": self.fingerprint}
        save_tree(place / CHECKPOINT, self.simulation.state, facts)
        save_tree(place / MODEL, self.simulation.model(), {"round": str(self.done)})
        write_json(place / CLOCK, self.clock.seconds())

    def local_picture(self) -> dict[str, Any]:
        """Exact numbers about the private data: for the data holder's eyes only."""
        test = self.federation.test
        found = self.simulation.outputs(test.features, test.silo)
        return {**describe(self.federation), "deciles": by_decile(self.simulation.learner.task, found, test)}

    def result(self, place: Path, status: str) -> dict[str, Any]:
        """What ``--json`` prints and the report reads: nothing exact about the private data beyond the metrics."""
        assert self.scores is not None
        experiment, task = self.plan.experiment, self.simulation.learner.task
        return {
            "title": experiment.title,
            "run": str(place),
            "status": status,
            "rounds": self.done,
            "rounds_planned": self.plan.rounds,
            "method": {
                "name": self.plan.method.name,
                "label": self.plan.label,
                "about": self.plan.method.about,
                "paper": self.plan.method.paper,
            },
            "model": {"name": experiment.model.name, "parameters": self.simulation.learner.parameters},
            "task": {
                "name": task.name,
                "headline": task.headline,
                "higher_is_better": {name: higher_is_better(name) for name in task.metrics},
            },
            "guarantees": [guarantee.as_dict() for guarantee in self.guarantees],
            "noise_multiplier": self.plan.noise_multiplier,
            "clip": getattr(self.plan.method, "clip", None),
            "metrics": self.scores.overall,
            "silos": self.scores.silos,
            "seconds": self.clock.seconds(),
            "environment": _environment(),
            "seed": experiment.seed,
            "evaluation": {"status": experiment.evaluation.status, "held_out": self.federation.held_out},
            "data": {"source": experiment.data.source, "silos": self.federation.silo_count},
            "personal": list(self.federation.silo_names) if self.plan.method.personal else [],
            "inputs": {
                "shape": list(self.federation.train.features.shape[1:]),
                "dtype": str(self.federation.train.features.dtype),
                "labels": {
                    "kind": self.federation.labels.kind,
                    "classes": list(self.federation.labels.classes),
                },
            },
        }


def _simulation(plan: Plan, federation: Federation, randomness: Randomness) -> Simulation:
    model = plan.experiment.model
    start = None if model.init_from is None else plan.path(model.init_from)
    made = learner(model, federation.labels, federation.train.features.shape[1:], randomness, start)
    return Simulation(plan, federation, made, randomness)


def _references(main: _Training, place: Path, randomness: Randomness) -> Iterator[tuple[str, Scores | None]]:
    """Each silo alone, and all records in one place: same model, same local work, same rounds.

    The scores of each; None where it was interrupted, after which no other is begun.
    """
    for name in REFERENCES:
        if name == main.plan.method.name:
            continue
        changed = main.plan.with_method(name)
        folder = place / BASELINES / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            simulation = _simulation(changed, main.federation, randomness)
            training = _Training(changed, main.federation, simulation, Clock(), main.progress, main.fingerprint)
            stopped = training.train(folder) == "stopped"
        except KeyboardInterrupt:
            stopped = True
        yield name, None if stopped else training.scores
        if stopped:
            return


def _place(plan: Plan, out: Path | None, resume: Path | None) -> Path:
    """Where the run lives: the folder to resume, the one asked for, or a new one under ``runs/``."""
    if resume is not None:
        if out is not None:
            raise UserError("--out", "is given together with --resume", "a resumed run stays in its folder")
        return _resumable(plan, resume)
    if out is not None:
        if out.exists():
            raise UserError("--out", f"'{out}' exists", "name a new folder, or go on with --resume")
        return out
    slug = re.sub(r"[^a-z0-9]+", "-", plan.title.lower())[:60].strip("-") or "run"
    candidates = (Path("runs") / (slug if n == 1 else f"{slug}-{n}") for n in itertools.count(1))
    return next(folder for folder in candidates if not folder.exists())


def _resumable(plan: Plan, folder: Path) -> Path:
    """``folder``, if it holds a run of the same experiment with a checkpoint."""
    if not (folder / PLAN).is_file():
        raise UserError("--resume", f"'{folder}' is no run folder", "name a folder that `tacit run` wrote")
    if not (folder / CHECKPOINT).is_file():
        raise UserError("--resume", f"'{folder}' has no checkpoint yet", "start the experiment anew with --out")
    before = _flat(read_experiment(folder / PLAN).model_dump())
    after = _flat(plan.experiment.model_dump())
    for key in sorted(before.keys() | after.keys()):
        if before.get(key) != after.get(key):
            change = f"changed from {before.get(key)!r} to {after.get(key)!r} since the run began"
            raise UserError(key, change, "restore it, or start a new run")
    return folder


def _make_folder(place: Path) -> None:
    try:
        place.mkdir(parents=True)
    except OSError as error:
        problem = f"'{place}' cannot be made ({error.strerror})"
        raise UserError("--out", problem, "name another folder") from None


def _fingerprint(federation: Federation) -> str:
    """A hash of the training records, by which a resumed run knows that they are the same."""
    digest = hashlib.blake2b(digest_size=16)
    train = federation.train
    for array in (train.features, train.labels, train.subject, train.silo):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested dictionary as one level of dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return flat


def _environment() -> dict[str, Any]:
    return {
        "tacit": version("tacit"),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "numpy": np.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
    }
