"""``kill -9`` at random moments: whatever was released is written down, and resuming ends at the total that is owed.

Without a seed a round that is made again is another release: at most one extra line per kill, never a line too few.
With a seed it is the same release: exactly the uninterrupted total, and the same model to the last bit. The same holds
in the budget file that the runs share.

A few kills are part of every test run; the 200 that are asked for run with ``-m slow``.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import shutil
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import tacit
from tacit.engine import read_metrics
from tacit.engine.learner import load_arrays
from tacit.privacy import Ledger, View, account, spent
from tacit.privacy.ledger import place as place_of

DELTA = 1e-5
PLACE = place_of("silo", View("public"), "zero-out")
LONGEST = 300.0  # seconds that a process may take before the test gives up

# Processes are forked from one that has imported everything and started no JAX: most of a start is importing.
FORKS = multiprocessing.get_context("forkserver")
PRELOADED = ["tacit.ui.main", "tacit.api", "tacit.planning.claims", "dp_accounting", "sklearn.metrics"]
FORKS.set_forkserver_preload(PRELOADED)


def command(log: Path, arguments: list[str]) -> None:
    """``tacit …`` in a process of its own, its words in ``log``."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.argv = ["tacit", *arguments]
    tacit.ui.main.main()


@dataclass
class Victim:
    """A run folder that is begun, killed, resumed and killed again; and what an onlooker has seen of it."""

    file: Path
    out: Path
    shared: Path
    seeded: bool
    rounds: int
    kills: int = 0
    seen: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))

    def start(self) -> Any:
        if self.out.exists() and not (self.out / "checkpoint.safetensors").exists():
            # killed before there was anything to go on from: then nothing was charged either
            assert not (self.out / "ledger.jsonl").exists() or not self.lines()
            shutil.rmtree(self.out)
        where = ["--resume" if self.out.exists() else "--out", str(self.out)]
        process = FORKS.Process(target=command, args=(self.log, ["run", str(self.file), *where]))
        process.start()
        return process

    @property
    def log(self) -> Path:
        return self.out.with_suffix(".log")

    def progress(self) -> Any:
        """Changes as soon as a process has begun to train."""
        try:
            found = (self.out / "metrics.jsonl").stat()
            return found.st_ino, found.st_size, found.st_mtime_ns
        except OSError:
            return None

    def kill_somewhere(self, chance: random.Random) -> bool:
        """Begin or go on, and kill at a random moment; False if the run had ended before."""
        before, process = self.progress(), self.start()
        if chance.random() < 0.85:  # in the middle of the rounds; otherwise anywhere, most often while it is starting
            end = time.monotonic() + LONGEST
            while self.progress() == before and process.is_alive():
                assert time.monotonic() < end, self.log.read_text()
                time.sleep(0.002)
            process.join(chance.uniform(0, 0.4))
        else:
            process.join(chance.uniform(0, 3))
        process.kill()
        process.join(LONGEST)
        if process.exitcode == -9:
            self.kills += 1
            return True
        assert process.exitcode in (0, 3), self.log.read_text()
        return False

    def finish(self) -> int:
        process = self.start()
        process.join(LONGEST)
        assert process.exitcode in (0, 3), self.log.read_text()
        return int(process.exitcode)

    # -- what is found afterwards

    def lines(self) -> list[dict[str, Any]]:
        return verified(self.out / "ledger.jsonl")

    def shared_lines(self) -> list[dict[str, Any]]:
        names = {line["run"] for line in self.lines()}
        return [line for line in verified(self.shared) if line["run"] in names]

    def check(self) -> None:
        """Everything that can be seen in the folder is written down, in the ledger and in the budget file."""
        if not (self.out / "checkpoint.safetensors").exists():
            return
        self.look()
        own, shared = self.lines(), self.shared_lines()
        assert len({line["run"] for line in own}) <= 1
        for lines in (own, shared):
            charged = Counter(line["round"] for line in lines)
            for number, releases in self.seen.items():
                assert len(releases) <= charged[number], f"round {number} was released more often than written down"
            if self.seeded:
                assert set(charged.values()) <= {1}
            assert sum(charged.values()) <= len(charged) + self.kills
        assert len(shared) <= len(own)
        self.check_epsilons(own)

    def look(self) -> None:
        """Note every release that lies in the folder: lines of metrics, the model, the checkpoint."""
        metrics = read_metrics(self.out / "metrics.jsonl")
        assert [line["round"] for line in metrics] == list(range(len(metrics)))
        for line in metrics[1:]:
            self.seen[line["round"]].add(json.dumps(line["metrics"]))
        for name in ("model.safetensors", "checkpoint.safetensors"):
            if (self.out / name).exists():
                _, facts = load_arrays(self.out / name, "test")
                number = int(facts["round"])
                assert number == 0 or number in self.seen, f"{name} of round {number} has no line of metrics"

    def check_epsilons(self, lines: list[dict[str, Any]]) -> None:
        """What metrics say was spent is what the ledger's beginning costs, never falls, and covers the last release."""
        metrics = read_metrics(self.out / "metrics.jsonl")
        told = [line["epsilon"]["public"] for line in metrics]
        assert told == sorted(told)
        for line in (metrics[-1], metrics[len(metrics) // 2]):
            until = [entry for entry in lines if entry["round"] <= line["round"]]
            assert line["epsilon"]["public"] == epsilon(until)
            assert len(until) >= line["round"]
        assert epsilon(lines) >= told[-1]


def verified(path: Path) -> list[dict[str, Any]]:
    """The lines of a ledger, its chain checked on a copy: what a crash left is for the next run to mend."""
    if not path.exists():  # killed before the first charge; whatever was released would now be missed
        return []
    copy = path.with_name(f"copy of {path.name}")
    shutil.copyfile(path, copy)
    try:
        with Ledger(copy) as ledger:
            return ledger.lines
    finally:
        copy.unlink()


def epsilon(lines: list[dict[str, Any]]) -> float:
    return account(spent(lines, PLACE), DELTA).epsilon


def written(folder: Path, visits, experiment: dict, **privacy: Any) -> Path:
    """A small private experiment with many short rounds, as a file."""
    if not (folder / "visits.csv").exists():
        visits.to_csv(folder / "visits.csv", index=False)
    experiment["data"] |= {"path": "visits.csv", "silos": {"column": "clinic", "count": 3}}
    numbers = {"clip": 1.0, "noise_multiplier": 20.0, "batches_per_round": 1}
    experiment["method"] = {"name": "dp-fedavg", "batch_size": 16, "local_learning_rate": 0.5, **numbers}
    experiment["train"] |= {"evaluate_every": 1, "checkpoint_every": 7}
    experiment["privacy"] = {"unit": "silo", "against": ["public"], "delta": DELTA, **privacy}
    file = folder / f"{len(list(folder.glob('*.toml')))}.toml"
    file.write_text(tacit.plan(experiment, folder=file.parent).to_toml())
    return file


@pytest.mark.parametrize("seeded", [False, True], ids=["without-a-seed", "with-a-seed"])
@pytest.mark.parametrize("kills", [3, pytest.param(100, marks=pytest.mark.slow)])
def test_killed_runs_have_written_down_all_they_released_and_end_at_what_is_owed(
    tmp_path, visits, experiment, seeded, kills
):
    rounds, chance, victims = 60 if kills < 10 else 400, random.Random(kills), []
    shared = tmp_path / "visits.budget"

    def victim() -> Victim:
        if seeded:
            experiment["seed"] = 100 + len(victims)
        else:
            experiment.pop("seed", None)
        experiment["train"] = {"rounds": rounds}
        file = written(tmp_path, visits, experiment, budget=1000.0, budget_file=shared.name)
        return Victim(file, tmp_path / f"run{len(victims)}", shared, seeded, rounds)

    while sum(one.kills for one in victims) < kills:
        if not victims or (victims[-1].out / "result.json").exists():
            victims.append(victim())
        victims[-1].kill_somewhere(chance)
        victims[-1].check()
    for one in victims:
        assert one.finish() == 0
        one.check()
        assert Counter(line["round"] for line in one.lines()).keys() == set(range(1, rounds + 1))
        assert rounds <= len(one.shared_lines()) <= len(one.lines()) <= rounds + (0 if seeded else one.kills)
        result = tacit.Run.load(one.out).result
        assert result["status"] == "finished"
        assert result["guarantees"][0]["epsilon"] == pytest.approx(epsilon(one.lines()))
        if seeded:
            alone = uninterrupted(one, tmp_path)
            assert model_hash(one.out) == model_hash(alone)
            assert epsilon(one.lines()) == epsilon(one.shared_lines()) == epsilon(verified(alone / "ledger.jsonl"))
    extra = sum(len(one.lines()) - rounds for one in victims)
    print(f"{kills} kills of {len(victims)} runs of {rounds} rounds: {extra} rounds were charged twice")


def uninterrupted(one: Victim, folder: Path) -> Path:
    """The same experiment from beginning to end, for itself."""
    plan = tacit.plan(one.file)
    privacy = plan.experiment.privacy.model_copy(update={"budget_file": None})
    changed = plan.experiment.model_copy(update={"privacy": privacy}).model_dump(exclude_unset=True, by_alias=True)
    changed["privacy"].pop("budget_file")
    changed["data"]["path"] = str(folder / "visits.csv")
    return tacit.run(changed, out=one.out.with_name(f"{one.out.name} alone")).path


def model_hash(folder: Path) -> str:
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


@pytest.mark.parametrize("turns", [1, pytest.param(20, marks=pytest.mark.slow)])
def test_two_runs_at_once_never_exceed_the_budget_that_they_share_even_when_killed(tmp_path, visits, experiment, turns):
    experiment.pop("seed")
    experiment["train"] = {"rounds": 100_000}
    budget, chance = 2.0 if turns == 1 else 9.0, random.Random(turns)
    for attempt in range(5):
        shared = tmp_path / f"visits{attempt}.budget"
        file = written(tmp_path, visits, experiment, budget=budget, budget_file=shared.name)
        runs = [Victim(file, tmp_path / f"{name}{attempt}", shared, False, 100_000) for name in ("one", "two")]
        killed_in_turns(runs, turns, chance, budget)
        if sum(one.kills for one in runs) == 2 * turns:
            break  # on a busy machine one of them may have spent the budget before the other one was there to kill
    else:
        pytest.fail("the budget was spent too early, five times: nothing was left to kill")
    check_that_all_is_used(runs, budget)


def killed_in_turns(runs: list[Victim], turns: int, chance: random.Random, budget: float) -> None:
    shared = runs[0].shared
    for _ in range(turns):
        beside = runs[0].start()
        runs[1].kill_somewhere(chance)
        beside.kill()
        beside.join(LONGEST)
        runs[0].kills += beside.exitcode == -9
        for one in runs:
            one.check()
        assert epsilon(verified(shared)) <= budget
        runs.reverse()


def check_that_all_is_used(runs: list[Victim], budget: float) -> None:
    """Both go on to the end: all of the budget is used, and not a round more."""
    shared = runs[0].shared
    both = [one.start() for one in runs]
    for process in both:
        process.join(LONGEST)
    assert [process.exitcode for process in both] == [3, 3]
    lines = verified(shared)
    assert epsilon(lines) <= budget < epsilon([*lines, lines[-1]])
    for one in runs:
        one.check()
        done = tacit.Run.load(one.out).result
        assert done["status"] == "budget"
        assert done["rounds"] <= len(one.shared_lines()) <= len(one.lines()) <= done["rounds"] + one.kills
    assert len(lines) == sum(len(one.shared_lines()) for one in runs)
    print(f"{sum(one.kills for one in runs)} kills, {len(lines)} rounds of epsilon {epsilon(lines):.4f} of {budget:g}")
    before = [path.read_bytes() for path in (shared, runs[0].out / "ledger.jsonl")]
    assert runs[0].finish() == 3
    assert [path.read_bytes() for path in (shared, runs[0].out / "ledger.jsonl")] == before
