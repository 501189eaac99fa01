"""A run from plan to folder: load, train, record, evaluate, keep, and reference methods for comparison."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
import pandas as pd

from tacit.data import Federation, check_silo_cap, describe, load, load_evaluation
from tacit.engine.charges import Charges, check_budget, check_goes_on
from tacit.engine.evaluate import Numbers, Scores, by_decile, release_constants, release_metrics
from tacit.engine.fingerprints import data_fingerprint, fingerprint
from tacit.engine.folder import (
    BASELINES,
    CHECKPOINT,
    CLOCK,
    DATA_KEY,
    ENCODER,
    LEDGER,
    LOCAL,
    METRICS,
    MODEL,
    NOT_EVALUATED,
    PERSONAL,
    PLAN,
    PRIVATE,
    RESULT,
    SHARE,
    Run,
    evaluation_due,
    free_folder,
    keep_packed,
    metrics_line,
    plan_content,
    read_encoder,
    read_json,
    read_metrics,
    summary,
    write_json,
)
from tacit.engine.learner import is_finite, learner, load_tree, save_tree, write_bytes
from tacit.engine.loop import (
    Clock,
    Constants,
    Diverged,
    Hooks,
    Interruption,
    RoundsEnded,
    Status,
    done_here,
    local,
    loop,
)
from tacit.engine.process_group import ALONE, ProcessGroup
from tacit.engine.simulate import Simulation
from tacit.engine.supervisor import MachinePlace, run_shared
from tacit.engine.useless_models import problems
from tacit.engine.worker import Worker
from tacit.errors import Forbidden, UserError
from tacit.kernels.stored import in_memory, on_disk
from tacit.names import load as find_by_name
from tacit.planning.experiment import located, read_experiment
from tacit.planning.plan import Plan
from tacit.privacy import Guarantee, Randomness

REFERENCES = ("silo-only", "pooled")
SILOS_ON_CURVES = 32  # with more silos, per-silo metrics are computed once, at the end
# What a resumed run may change: a budget is about what is still to come, and processes and files change no number. All
# else is about what was done already.
MAY_CHANGE = ("privacy.budget", "engine.processes", "engine.features")


class Progress(Protocol):
    """Shows how a run goes."""

    def begin(self, what: str, rounds: int, done: int) -> None: ...
    def advance(self, number: int, metrics: Numbers) -> None: ...
    def end(self) -> None: ...


class Silence:
    """No progress is shown."""

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
    baselines: bool | tuple[str, ...] = False,
    progress: Progress | None = None,
    randomness: Randomness | None = None,
    processes: ProcessGroup | None = None,
    coordinator: MachinePlace | None = None,
) -> Run:
    """Train as planned and leave a run folder; everything that can be refused is refused before the folder exists.

    ``baselines``: reference methods to compare with: each silo alone and all records pooled, or other names.
    ``processes``: this is the first of them; None: this process trains alone, or starts those that the plan asks for.
    ``coordinator``: the others are on other machines.
    """
    if processes is None and plan.experiment.engine.processes > 1:
        if frame is not None:
            fix = "write it to a Parquet file and set data.path"
            raise UserError("not-supported", "frame", "several processes read a table from a file", fix)
        options = {"out": out, "resume": resume, "baselines": baselines}
        folder = run_shared(plan, options, progress or Silence(), coordinator)
        assert folder is not None, "the first process has a folder"
        return Run.load(folder)
    processes = processes or ALONE
    place = _place(plan, out, resume)
    if resume is not None:
        check_goes_on(plan)
    references = baselines if isinstance(baselines, tuple) else REFERENCES if baselines else ()
    _check_references(plan, bool(references))
    if resume is None:
        check_budget(plan)
    federation = load_federation(plan, frame)
    _check_released_once(plan, federation)
    randomness = randomness or Randomness.from_seed(plan.experiment.seed)
    simulation = simulation_of(plan, federation, randomness, processes)
    clock = Clock(None if resume is None or not (place / CLOCK).is_file() else read_json(place / CLOCK, "--resume"))
    with clock("ledger"):
        records = fingerprint(federation)
        _check_same(plan, records, simulation)
    rounds = SimulatedRounds(plan, federation, simulation, clock)
    training = _Training(rounds, place, progress or Silence(), records)
    if resume is None:
        with clock("train"):
            simulation.prepare(1)
            jax.block_until_ready(simulation.state)  # what does not fit into memory fails before there is a folder
        _make_folder(place)
    with alone(place):
        finished = _trained(training, resume is not None, references)
    simulation.end()
    return finished


def take_part(plan: Plan, randomness: Randomness, processes: ProcessGroup) -> None:
    """The share of a process that is not the first: it writes nothing."""
    federation = load_federation(plan)
    simulation = simulation_of(plan, federation, randomness, processes)
    _check_same(plan, fingerprint(federation), simulation)
    if federation.unpaid is not None:
        columns = [0.0] * len(federation.unpaid.columns.numeric)
        constants = _told(processes, (columns, columns))
        simulation.feed(federation.standardized(*constants))
    simulation.share()


def _told(processes: ProcessGroup, constants: Constants) -> Constants:
    means, scales = jax.tree.map(float, processes.told(constants))
    return means, scales


def _check_same(plan: Plan, records: str, simulation: Simulation) -> None:
    """Refuse processes that have other settings, randomness or records than this one."""
    settings, processes = plan.experiment.spelled_out(), simulation.processes
    drawn = simulation.randomness.stream("processes").words(2).tolist()  # a use of its own: the key stays secret
    sections = [settings[name] for name in ("seed", "method", "exchange", "train", "model")]
    # noise and grid follow from the facts, which follow from [data] and [privacy]
    ours = [repr([drawn, plan.noise_multiplier, plan.promise.facts, plan.promise.unit, *sections]), records]
    digests = [hashlib.blake2b(text.encode(), digest_size=16).digest() for text in ours]
    own = np.frombuffer(b"".join(digests), np.uint32).reshape(2, 4)
    for place, theirs in enumerate(processes.gathered(own)):
        for what, mine, other in zip(("experiment", "data.path"), own, theirs, strict=True):
            if (mine != other).any():
                problem = f"process {place} has another one than process {processes.place}"
                raise UserError("mismatch", what, problem, "give all processes the same experiment file and table")


def _trained(training: _Training, resumed: bool, references: tuple[str, ...]) -> Run:
    """The run in its folder, new or resumed, and its references."""
    plan, federation, place = training.plan, training.federation, training.place
    with training.clock("ledger"):
        if not resumed:
            write_bytes(place / DATA_KEY, secrets.token_bytes(32), PRIVATE)
        if (place / DATA_KEY).is_file():  # runs of earlier versions have none
            training.data_fingerprint = data_fingerprint(federation, (place / DATA_KEY).read_bytes())
        if resumed:
            training.restore()
            shutil.rmtree(place / SHARE, ignore_errors=True)  # it is made again from what the run will have released
        elif federation.encoder is not None and federation.unpaid is None:
            write_json(place / ENCODER, federation.encoder.to_dict())
        keep_packed(place, plan.experiment)
        write_bytes(place / PLAN, plan.to_toml().encode())  # on resuming, too: the budget may be another
    if not resumed and federation.unpaid is not None:
        training.keep()  # whatever is written down from here on, the run can be resumed
    status = training.train()
    earlier = read_json(place / RESULT, "--resume")["baselines"] if (place / RESULT).is_file() else {}
    result = training.result(status) | {"baselines": earlier}
    write_json(place / LOCAL, training.local_picture(), PRIVATE)
    write_json(place / RESULT, result)
    if status == "finished":
        for name, scores in _references(training, references):
            # a reference that was interrupted leaves the run as it is, and says so
            result["baselines"] |= {name: scores.as_dict()} if scores else {}
            result["status"] = "finished" if scores else "stopped"
            write_json(place / RESULT, result)
    return Run.load(place)


def load_federation(plan: Plan, frame: pd.DataFrame | None = None) -> Federation:
    """The data of a plan: its source, caps applied, held-out records as ``[evaluation]`` says."""
    experiment, options = plan.experiment, plan.data
    tested_on = experiment.evaluation.data

    def capped(records: int | None) -> Federation:
        return load(
            options,
            frame=frame,
            seed=experiment.seed or 0,
            hold_out=tested_on == "held-out",
            max_records_per_subject_and_silo=records,
            max_silos_per_subject=experiment.privacy.max_silos_per_subject,
            over_silo_cap=experiment.privacy.over_silo_cap,
            room=on_disk if experiment.engine.features == "disk" else in_memory,
        )

    if experiment.engine.features == "disk":
        _check_on_disk(plan)

    if plan.records_kept == 0:
        most = plan.promise.facts.silos_of_a_subject
        problem = f"is less than one record for each of {most} silos"
        fix = "raise it, or lower privacy.max_silos_per_subject"
        raise UserError("out-of-range", "method.group_size", problem, fix)
    federation = capped(plan.records_kept)
    if getattr(plan.options, "group_size", None) == "median":  # a statistic of the data: the plan promises nothing
        median = int(np.median(np.unique(federation.train.subject, return_counts=True)[1]))
        federation = capped(max(1, median // plan.promise.facts.silos_of_a_subject))
    if tested_on == "held-out":
        return federation
    return replace(federation, held_out="none") if tested_on == "none" else _tested_on_file(plan, federation)


def _check_on_disk(plan: Plan) -> None:
    """Refuse work that takes all features into memory."""
    field, method = "engine.features", plan.method
    worker: type[Worker] = find_by_name(method.work.worker)
    if not worker.from_disk or method.info.gathers != "nothing":
        problem = f"{method.name} does not work subject by subject: it needs all features in memory"
        raise UserError("not-supported", field, problem, 'use "memory", or a method such as subject-sgd')
    if plan.data.standardize == "paid":
        problem = "private constants are computed in memory"
        raise UserError("not-supported", field, problem, 'use "memory", or declare the constants')


def _tested_on_file(plan: Plan, federation: Federation) -> Federation:
    """With the held-out records of ``[evaluation] data = "path"``, encoded as the training records are."""
    file, privacy = plan.path(plan.experiment.evaluation.data), plan.experiment.privacy
    train, test = federation.train, load_evaluation(file, plan.data, federation)
    if privacy.over_silo_cap == "refuse":
        subject, silo = np.append(train.subject, test.subject), np.append(train.silo, test.silo)
        check_silo_cap(subject, silo, privacy.max_silos_per_subject)
    return replace(federation, test=test)


class SimulatedRounds:
    """The rounds of a run in this process. ``federation``: the records as they are now."""

    def __init__(self, plan: Plan, federation: Federation, simulation: Simulation, clock: Clock) -> None:
        self.plan, self.federation, self.simulation, self.clock = plan, federation, simulation, clock
        self.done = 0

    @local
    def set_up(self, hooks: Hooks) -> None:
        """Features under private constants: released now, or, on resuming, those that were released before."""
        if self.federation.unpaid is None:
            return
        with self.clock("ledger"):
            constants = hooks.before_statistics()
            if constants is None:
                constants = release_constants(self.plan, self.federation, self.simulation.randomness)
                hooks.after_statistics(constants)
            constants = _told(self.simulation.processes, constants)
            self.federation = self.federation.standardized(*constants)
            if self.federation.held_out == "file":
                self.federation = _tested_on_file(self.plan, self.federation)
            self.simulation.feed(self.federation)

    @local
    def step(self, number: int) -> int:
        """One round; an interruption in the middle leaves the state before it.

        The device may still be at work when this returns: a reader of the state waits for it.
        """
        before = self.simulation.state
        try:
            with self.clock("train"):
                participants = self.simulation.round(number)
            self.clock.move(self.simulation.exchange_seconds, "train", "exchange")
        except KeyboardInterrupt:
            self.simulation.state = before
            raise
        self.done = number
        return participants

    @local
    def metrics(self) -> Scores:
        test = self.federation.test
        with self.clock("evaluate"):
            outputs = self.simulation.outputs(test.features, test.silo)
            return release_metrics(self.plan, outputs, test, self.simulation.randomness, self.done)

    def evaluate(self) -> Scores:
        """Metrics on the held-out records."""
        if self.plan.evaluation is not None or self.federation.held_out == "none":
            return NOT_EVALUATED  # the plan releases private metrics at the end alone, or none at all
        last = self.done == self.plan.rounds
        with self.clock("train"):
            jax.block_until_ready(self.simulation.state)
        with self.clock("evaluate"):
            return self.simulation.evaluate(self.federation, last or self.federation.silo_count <= SILOS_ON_CURVES)

    def is_finite(self) -> bool:
        return is_finite(self.simulation.learned)


class _Training(Hooks):
    """What a run in this process writes into its folder ``place``."""

    interruptible = True

    def __init__(self, rounds: SimulatedRounds, place: Path, progress: Progress, fingerprint: str) -> None:
        self.plan, self.rounds, self.simulation, self.clock = rounds.plan, rounds, rounds.simulation, rounds.clock
        self.place, self.progress, self.fingerprint = place, progress, fingerprint
        self.data_fingerprint: str | None = None
        self.released = 0  # the last round of which anything was written, by this process or before a crash
        self.scores: Scores | None = None
        self.history: list[dict[str, Any]] = []
        self.guarantees: tuple[Guarantee, ...] = ()
        self.shared: dict[str, Any] | None = None  # the budget file, and what others had spent of it

    @property
    def federation(self) -> Federation:
        return self.rounds.federation

    @property
    def done(self) -> int:
        return self.rounds.done

    def restore(self) -> None:
        """Go back to the last checkpoint; metrics that were written after it will be written again."""
        state, facts = load_tree(self.place / CHECKPOINT, self.simulation.state, "--resume")
        if facts.get("data") != self.fingerprint:
            raise UserError("changed", "data", "the records are not those that the run began with", "restore them")
        self.simulation.state = state
        self.rounds.done = int(facts["round"])
        lines = read_metrics(self.place / METRICS)
        self.released = max([self.done, *(line["round"] for line in lines)])
        self.history = [line for line in lines if line["round"] <= self.done]

    def train(self) -> str:
        """All rounds that are left, and how they ended (``RoundsEnded``); the folder is usable in every case."""
        self.progress.begin(self.plan.label, self.plan.rounds, self.done)
        try:
            with self.clock("ledger"):
                self._charges = Charges(self.plan, self.place / LEDGER)
            with self._charges as charges, Interruption() as self._stop:
                charges.check_covers(self.released)
                ended = done_here(loop(self.rounds, self))
                if ended.status != "diverged":
                    self._end(ended)
                with self.clock("ledger"):
                    self.guarantees, self.shared = charges.guarantees(), charges.shared()
                return ended.status
        finally:
            self.progress.end()

    # -- around the rounds

    def before_statistics(self) -> Constants | None:
        if not (self.place / ENCODER).is_file():
            self._charges.charge_once("statistics", 0)
            return None
        self._charges.check_covers(self.released, "statistics")
        return read_encoder(self.place / ENCODER, "--resume").columns.constants()

    def after_statistics(self, constants: Constants) -> None:
        assert self.federation.encoder is not None
        write_json(self.place / ENCODER, self.federation.encoder.with_constants(*constants).to_dict())

    def ready(self) -> None:
        if self.history:  # not before the ledger is checked: lines that go here may be the only trace of a release
            self._write_history()
        else:
            self._evaluate(participants=0)
            self.keep()

    def stops(self) -> bool:
        return self._stop.asked

    def before_round(self, number: int) -> None:
        with self.clock("ledger"):
            self._charges.charge(number)

    def after_round(self, number: int, participants: int) -> None:
        if evaluation_due(self.plan, number):
            self._evaluate(participants)
            with self.clock("evaluate"):
                if not self.rounds.is_finite():
                    raise Diverged("the model is no longer finite")
        self.progress.advance(number, self.scores.overall if self.scores else {})
        if number % self._checkpoint_every == 0:
            self.keep()

    def before_metrics(self, status: Status) -> bool:
        """Once; not where the run is to go on, or where others have used up the budget meanwhile."""
        if self._line.get("metrics") or status == "stopped":  # resumed at the end: released already
            return False
        try:
            with self.clock("ledger"):
                self._charges.charge_once("evaluation", self.done)
        except Forbidden:
            return False
        return True

    @property
    def _line(self) -> dict[str, Any]:
        """What is written about the last round; nothing where it was not evaluated."""
        return self.history[-1] if self.history and self.history[-1]["round"] == self.done else {}

    def _end(self, ended: RoundsEnded) -> None:
        """The metrics of the last model, and the files that a run ends with."""
        line = self._line
        if self.plan.evaluation is not None and line.get("metrics"):
            self.scores = Scores(line["metrics"], {}, line["standard_errors"])
        elif self.plan.evaluation is not None:
            self.scores = ended.metrics or NOT_EVALUATED
            if line:  # it had no metrics yet
                self.history = self.history[:-1]
                self._write_history()
            self._write_line(participants=0)
        elif not line:
            self._evaluate(participants=0)
        elif self.scores is None:  # resumed at the end: known already, but for the silos
            self.scores = self.rounds.evaluate()
        self.keep(is_last=True)
        self._keep_own()

    @property
    def _checkpoint_every(self) -> int:
        """As planned; every round where a repeated round would be another release (noise that no seed gives back)."""
        private = self.plan.method.private and self.plan.experiment.seed is None
        return 1 if private else self.plan.experiment.train.checkpoint_every

    def _evaluate(self, participants: int) -> None:
        self.scores = self.rounds.evaluate()
        self._write_line(participants)

    def _write_line(self, participants: int) -> None:
        assert self.scores is not None
        with self.clock("ledger"):
            # who takes part is secret where a guarantee counts on it
            shown = {} if self.plan.method.private else {"silos_in_round": participants}
            epsilons = self._charges.epsilons(self.done)
            line = metrics_line(self.done, self.clock.elapsed, epsilons, self.scores, shown)
            with (self.place / METRICS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            self.history.append(line)

    def _write_history(self) -> None:
        write_bytes(self.place / METRICS, "".join(json.dumps(line) + "\n" for line in self.history).encode())

    def keep(self, is_last: bool = False) -> None:
        """Checkpoint and model, each replaced in one step; a model that is not finite replaces nothing. A run that
        releases its last model alone writes no other."""
        with self.clock("train"):
            jax.block_until_ready(self.simulation.state)
        with self.clock("ledger"):
            if not self.rounds.is_finite():
                return
            place, facts = self.place, {"round": str(self.done), "data": self.fingerprint}
            save_tree(place / CHECKPOINT, self.simulation.state, facts, PRIVATE)
            shared = self.simulation.shared_model()
            if shared is not None and (is_last or not self.plan.method.info.releases_last):
                save_tree(place / MODEL, shared, {"round": str(self.done)})
            write_json(place / CLOCK, self.clock.seconds())

    def _keep_own(self) -> None:
        """The silos' own models, where there are any, once training is over: each is its silo's alone."""
        if self.plan.method.info.personal and self.rounds.is_finite():
            with self.clock("evaluate"):
                own = self.simulation.own_models()
            with self.clock("ledger"):
                save_tree(self.place / PERSONAL, own, {"round": str(self.done)}, PRIVATE)

    def local_picture(self) -> dict[str, Any]:
        """Exact numbers about the private data: for the data holder's eyes only."""
        test = self.federation.test
        found = self.simulation.outputs(test.features, test.silo)
        picture = {**describe(self.federation), "deciles": by_decile(self.simulation.learner.task, found, test)}
        method = self.plan.method
        if method.private:
            picture["not_finite"] = {"times": int(self.simulation.not_finite), "what": method.info.clips.split(",")[0]}
        if self.plan.evaluation is None:
            return picture
        return {**picture, "silo_metrics": self.simulation.evaluate(self.federation, per_silo=True).silos}

    def result(self, status: str) -> dict[str, Any]:
        """What ``--json`` prints and the report reads: nothing exact about the private data beyond the metrics."""
        return summary(
            self.plan,
            self.place,
            status,
            rounds=self.done,
            federation=self.federation,
            learner=self.simulation.learner,
            guarantees=self.guarantees,
            scores=self.scores or NOT_EVALUATED,
            seconds=self.clock.seconds(),
            shared=self.shared,
            fingerprint=self.data_fingerprint,
            warnings=self._problems(),
        )

    def _problems(self) -> list[str]:
        """What makes the model useless; nothing where held-out records are evaluated with noise alone."""
        if self.plan.evaluation is not None or not self.rounds.is_finite() or not len(self.federation.test):
            return []
        test, task = self.federation.test, self.simulation.learner.task
        loss = {"real": "rmse", "multilabel": "mean_log_loss"}.get(task.name, "log_loss")
        losses = [line["metrics"].get(loss) for line in self.history]
        return problems(task, self.simulation.outputs(test.features, test.silo), test, losses)


def simulation_of(
    plan: Plan, federation: Federation, randomness: Randomness, processes: ProcessGroup = ALONE
) -> Simulation:
    """The engine at the start of a plan."""
    model = plan.experiment.model
    start = None if model.init_from is None else plan.path(model.init_from)
    made = learner(model, federation.labels, federation.train.features.shape[1:], randomness, start)
    return Simulation(plan, federation, made, randomness, processes)


def _check_released_once(plan: Plan, federation: Federation) -> None:
    """Check what a plan assumed about the data when it accounted for constants and metrics."""
    if not plan.promise.once:
        return
    silos = plan.promise.facts.silos
    if not plan.method.info.pools and federation.silo_count != silos:
        problem = f"{silos} silos are promised and the data have {federation.silo_count}"
        raise UserError(
            "mismatch", "data.silos.count", problem, "private constants and metrics have noise in shares, one per silo"
        )
    if plan.evaluation is not None and plan.evaluation.apart and federation.held_out != "subjects":
        raise AssertionError(f"people are not held out as planned, but {federation.held_out}")


def _check_references(plan: Plan, wanted: bool) -> None:
    """Private metrics exclude other metrics of the same people."""
    if wanted and plan.evaluation is not None:
        problem = "'paid' does not allow references: their metrics have no noise"
        raise UserError("conflict", "evaluation.status", problem, "leave --baselines out, or use 'outside-guarantee'")


def _references(main: _Training, names: tuple[str, ...]) -> Iterator[tuple[str, Scores | None]]:
    """Each silo alone, and all records in one place: same model, same local work, same rounds. Or other methods.

    They are outside any guarantee and budget, as metrics on private records are. One that adds noise draws its own: the
    noise of the run itself, seen twice, would protect no subject.

    The scores of each; None where it was interrupted, after which no other is begun.
    """
    for name in names:
        if name == main.plan.method.name:
            continue
        changed, randomness = main.plan.with_method(name), main.simulation.randomness
        if changed.method.private:
            randomness = Randomness(randomness.stream(f"reference {name}").words(4).tobytes())
        folder = main.place / BASELINES / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        try:
            simulation = simulation_of(changed, main.federation, randomness)
            rounds = SimulatedRounds(changed, main.federation, simulation, Clock())
            training = _Training(rounds, folder, main.progress, main.fingerprint)
            stopped = training.train() == "stopped"
        except KeyboardInterrupt:
            stopped = True
        yield name, None if stopped else training.scores
        if stopped:
            return


def _place(plan: Plan, out: Path | None, resume: Path | None) -> Path:
    """Where the run lives: the folder to resume, the one asked for, or a new one under ``runs/``."""
    if resume is not None:
        if out is not None:
            raise UserError("conflict", "--out", "is given together with --resume", "a resumed run stays in its folder")
        return _resumable(plan, resume)
    if out is not None:
        if out.exists():
            raise UserError("exists-already", "--out", f"'{out}' exists", "name a new folder, or go on with --resume")
        return out
    return free_folder(plan.title)


def _resumable(plan: Plan, folder: Path) -> Path:
    """``folder``, if it holds a run of the same experiment with a checkpoint."""
    if not (folder / PLAN).is_file():
        problem = f"'{folder}' is no run folder"
        raise UserError("wrong-file", "--resume", problem, "name a folder that `tacit run` wrote")
    if not (folder / CHECKPOINT).is_file():
        problem = f"'{folder}' has no checkpoint yet"
        raise UserError("unfinished", "--resume", problem, "start a new run with --out")
    before, after = (
        _flat(located(experiment, plan.folder).spelled_out())
        for experiment in (read_experiment(plan_content(folder)), plan.experiment)
    )
    for key in sorted(before.keys() | after.keys()):
        if key not in MAY_CHANGE and before.get(key) != after.get(key):
            change = f"changed from {before.get(key)!r} to {after.get(key)!r} since the run began"
            raise UserError("changed", key, change, "restore it, or start a new run")
    return folder


def _make_folder(place: Path) -> None:
    try:
        place.mkdir(parents=True)
    except OSError as error:
        problem = f"'{place}' cannot be made ({error.strerror})"
        raise UserError("file-access", "--out", problem, "name another folder") from None


@contextmanager
def alone(place: Path, field: str = "--resume") -> Iterator[None]:
    """Keep other processes from working in the same folder; the lock ends with the process, however it ends."""
    descriptor = os.open(place, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            problem = f"another process is at work in '{place}'"
            raise UserError("in-use", field, problem, "wait until it has ended") from None
        yield
    finally:
        os.close(descriptor)


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested dictionary as one level of dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat.update(_flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return flat
