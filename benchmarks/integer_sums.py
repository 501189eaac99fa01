"""What sums on a grid cost: rounds of the simulator with this code and with an earlier commit, in turns.

    git worktree add ../before COMMIT
    python -m benchmarks.integer_sums --before ../before

The third contestant is this code with sums and noise in single precision, planted at run time: what the integers alone
cost. All run in processes of their own, which wait for each other: one round each, the order reversed every time. What
counts is the processor time of a round, and the median of the ratios of neighbouring rounds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent.parent
RESULT = HERE / "benchmarks" / "results" / "integer_sums.md"


class Case(NamedTuple):
    """``people`` with ``records`` each, of ``features`` numbers, in two silos; ``rounds`` are one measurement."""

    what: str
    method: dict[str, Any]
    model: dict[str, Any]
    people: int
    records: int
    features: int
    rounds: int


BATCHES = {"clip": 1.0, "noise_multiplier": 1.0, "batches_per_round": 8, "local_learning_rate": 0.01}
PEOPLE = {"clip": 0.5, "noise_multiplier": 1.0}
LINEAR, SMALL, WIDE = {"name": "linear"}, {"name": "mlp", "hidden": [64, 32]}, {"name": "mlp", "hidden": [64]}
CASES = {
    "people, linear 784": Case(
        "10,000 people, one gradient each", {"name": "subject-sgd", **PEOPLE}, LINEAR, 10_000, 2, 784, 2
    ),
    "people, mlp 30-64-32": Case(
        "1,000 people, one local epoch", {"name": "uldp-avg", **PEOPLE}, SMALL, 1000, 25, 30, 8
    ),
    "people, mlp 30-64-32, 30 epochs": Case(
        "1,000 people, 30 local epochs", {"name": "uldp-avg", **PEOPLE, "local_epochs": 30}, SMALL, 1000, 25, 30, 1
    ),
    "records, linear 784": Case(
        "2 silos, 8 batches of 512", {"name": "local-record", "sample_rate": 0.125, **BATCHES}, LINEAR, 8192, 1, 784, 4
    ),
    "records, mlp 784-64": Case(
        "2 silos, 8 batches of 512", {"name": "local-record", "sample_rate": 0.125, **BATCHES}, WIDE, 8192, 1, 784, 2
    ),
    "records, mlp 784-64, 4,096": Case(
        "2 silos, 8 batches of 2,048", {"name": "local-record", "sample_rate": 0.5, **BATCHES}, WIDE, 8192, 1, 784, 1
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="a checkout of the commit to compare with")
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--work", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--floats", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        if options.floats:
            plant_floats()
        work(CASES[options.work])
        return
    if options.before is None:
        parser.error("--before is required")
    rows = [f"| {name} | {case.what} | {compared(name, options)} |" for name, case in CASES.items()]
    head = [
        "# Sums on a grid: processor time of a round, over that of the commit before",
        "",
        f"Medians of {options.repeat} pairs in turns. `python -m benchmarks.integer_sums --before PATH`",
        "",
        "Over floats: the ratio to the same code with sums and noise in single precision, so the integers' own cost.",
        "",
        "| work | round | before, seconds | ratio | quartiles | over floats | quartiles |",
        "|---|---|---|---|---|---|---|",
    ]
    RESULT.write_text("\n".join([*head, *rows]) + "\n")
    print(RESULT.read_text())


def compared(name: str, options: argparse.Namespace) -> str:
    """Columns of the table: seconds of a round before, and how the ratios are spread."""
    workers = [started(name, options.before.resolve()), started(name, HERE), started(name, HERE, "--floats")]
    times: list[list[float]] = [[] for _ in workers]
    for turn in range(options.repeat):
        for which in (0, 1, 2) if turn % 2 == 0 else (2, 1, 0):
            worker = workers[which]
            assert worker.stdin is not None
            assert worker.stdout is not None
            print("go", file=worker.stdin, flush=True)
            times[which].append(float(worker.stdout.readline()))
    for worker in workers:
        worker.communicate()
    before, after, floats = times
    columns = f"{median(before) / CASES[name].rounds:.4f} | {spread(after, before)} | {spread(after, floats)}"
    print(name, columns, file=sys.stderr)
    return columns


def spread(times: list[float], others: list[float]) -> str:
    ratios = [one / other for one, other in zip(times, others, strict=True)]
    low, middle, high = quantiles(ratios, n=4)
    return f"{middle:.3f} | {low:.3f} to {high:.3f}"


def started(name: str, tree: Path, *more: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": f"{tree / 'src'}"}
    command = [sys.executable, str(Path(__file__).resolve()), "--work", name, *more]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)


def plant_floats() -> None:
    """Let everything that is counted in whole steps be floating-point numbers: a word of 32 bits instead of two, and no
    rounding. Nothing of it is private."""
    import jax.numpy as jnp

    from tacit.engine import simulate
    from tacit.kernels import Steps

    planted = {
        "toward_zero": lambda numbers, scale=1.0: numbers * scale,
        "noise_steps": lambda normals, std, step: normals * (std / step),
        "steps_of_chunk": lambda factors, vectors: jnp.dot(factors, vectors, precision="highest"),
    }
    assert simulate  # everything that uses them is imported by now
    for module in [module for name, module in sys.modules.items() if name.startswith("tacit.")]:
        for name in planted.keys() & vars(module).keys():
            setattr(module, name, planted[name])
    none = jnp.zeros(0)
    methods = {
        "zeros": classmethod(lambda cls, shape: cls(jnp.zeros(shape), none)),
        "added": lambda self, steps: Steps(self.low + steps, none),
        "plus": lambda self, other: Steps(self.low + other.low, none),
        "followed_by": lambda self, other: Steps(jnp.append(self.low, other.low), none),
        "coarser": lambda self, doublings: Steps(jnp.ldexp(self.low, -doublings), none),
        "numbers": lambda self, step: self.low * step,
    }
    for name, method in methods.items():
        setattr(Steps, name, method)


def work(case: Case) -> None:
    """For every line that comes in: some rounds, and the processor time that they took."""
    import jax
    import numpy as np

    import tacit
    from tacit.data import Federation, Labels, Records
    from tacit.engine.learner import learner
    from tacit.engine.simulate import Simulation
    from tacit.privacy import Randomness

    rng = np.random.default_rng(0)
    rows = case.people * case.records
    person = np.repeat(np.arange(case.people, dtype=np.int32), case.records)
    features = rng.normal(size=(rows, case.features)).astype(np.float32)
    train = Records(features, rng.normal(size=rows).astype(np.float32), person, (person % 2).astype(np.int32)).grouped()
    columns = tuple(f"x{i}" for i in range(case.features))
    made = Federation(train, train.take(np.arange(1)), Labels("real"), ("a", "b"), case.people, columns, "records")
    plan = tacit.plan(
        {
            "seed": 1,
            "data": {
                "silos": {"column": "silo", "count": 2},
                "subjects": {"column": "person", "count": case.people},
                "records_per_silo": rows // 2,
                "task": "real",
            },
            "model": case.model,
            "method": case.method,
            "train": {"rounds": 10_000},
            "privacy": {"max_records_per_subject_and_silo": case.records, "max_silos_per_subject": 1},
        }
    )
    randomness = Randomness.from_seed(1)
    start = learner(plan.experiment.model, made.labels, features.shape[1:], randomness)
    sim, number = Simulation(plan, made, start, randomness), 0
    for _ in range(3):
        number += 1
        sim.round(number)
    jax.block_until_ready(sim.server)
    for _ in sys.stdin:
        begun = time.process_time()
        for _ in range(case.rounds):
            number += 1
            sim.round(number)
        jax.block_until_ready(sim.server)
        print(time.process_time() - begun, flush=True)


if __name__ == "__main__":
    main()
