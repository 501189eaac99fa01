"""What a federation of processes costs beyond the silos' own work, by size of the model and number of silos.

    python -m benchmarks.federation [--silos 3,8,16] [--sizes 100000,1000000,25000000] [--rounds 5] [--out FOLDER]

A server and silos on this machine, over TLS on the loopback interface; a made table of 40 records in every silo, so
that there is little to compute. Rounds of ``uldp-naive``, of which the first is left out (there kernels are compiled).

round      seconds from the end of a round to the end of the next, at the server
silo       of these, seconds in which a silo was at work on an answer, on average: training, noise, masks, its ledger
overhead   the rest: messages, waiting for others, the server's sums, its ledger, checkpoint and model on disk
phase      overhead over the number of messages that a silo is sent in a round
server MB  the most that the server's process for the run has held, beside what an idle one holds
silo MB    the same of the silo that held most
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil

from tacit.federation.demo import REQUESTER, Trial
from tacit.federation.requester import ask, follow
from tacit.planning.plan import plan
from tacit.transport.log import LOG

RECORDS, FEATURES = 40, 8
PHASES = {"plain": 1, "masked": 5}
POLICY = {
    "methods": ["uldp-naive"],
    "exchanges": list(PHASES),
    "epsilon_per_run": math.inf,
    "epsilon_in_total": math.inf,
    "least_records": 1,
    "silos_per_subject": 1,
    "metrics": False,
}
_PATIENCE = 600


def tables(silos: int) -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(0)
    made = {}
    for k in range(silos):
        values = rng.normal(size=(RECORDS, FEATURES))
        frame = pd.DataFrame({f"x{i}": values[:, i] for i in range(FEATURES)})
        made[f"silo{k:02d}"] = frame.assign(person=np.arange(RECORDS) + k * RECORDS, y=(values[:, 0] > 0).astype(int))
    return made


def experiment(silos: int, parameters: int, rounds: int, exchange: str) -> dict[str, Any]:
    """A network with two hidden layers of one size, which comes to about so many parameters."""
    width = round((math.sqrt((FEATURES + 3) ** 2 + 4 * parameters) - (FEATURES + 3)) / 2)
    return {
        "data": {
            "label": "y",
            "subjects": {"column": "person", "count": 10 * silos * RECORDS},
            "silos": {"count": silos},
            "numeric": {f"x{i}": {"mean": 0, "scale": 1} for i in range(FEATURES)},
        },
        "model": {"name": "mlp", "hidden": [width, width]},
        "method": {"name": "uldp-naive", "noise_multiplier": 5.0, "local_learning_rate": 0.01},
        "train": {"rounds": rounds, "evaluate_every": rounds},
        "privacy": {"max_silos_per_subject": 1},
        "exchange": {"name": exchange} | ({"precision": 1e-6} if exchange == "masked" else {}),
    }


@contextmanager
def watched(trial: Trial) -> Iterator[dict[str, float]]:
    """The most megabytes that processes for runs have held meanwhile, by whose they are."""
    most: dict[str, float] = {}
    over = threading.Event()

    def look() -> None:
        while not over.wait(0.3):
            for name, process in trial.processes.items():
                try:
                    held = sum(
                        child.memory_info().rss for child in psutil.Process(process.pid).children(recursive=True)
                    )
                except psutil.NoSuchProcess:
                    continue
                most[name] = max(most.get(name, 0.0), held / 2**20)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        over.set()
        thread.join()


def step(log: Path, pattern: str, rounds: slice) -> float:
    """Seconds from one round's line of a log to the next one's, on average, over these lines of the last run in it."""
    seconds = [float(found) for found in re.findall(pattern, log.read_text())][rounds]
    return (seconds[-1] - seconds[0]) / (len(seconds) - 1)


def measured(trial: Trial, parameters: int, rounds: int, exchange: str) -> dict[str, Any]:
    """One run."""
    content = experiment(len(trial.silos), parameters, rounds, exchange)
    planned, kit = plan(content), trial.kit(REQUESTER)
    load = os.getloadavg()[0]
    with watched(trial) as most:
        out = trial.folder / f"run-{exchange}-{parameters}-{time.monotonic_ns()}"
        run = follow(kit, ask(kit, planned, out, _PATIENCE), rounds, planned.label, retries=0)
    # a silo's line is written in the middle of a round, and counts the work before: the second is the first without
    # what was compiled
    first, second = slice(-rounds, -1), slice(1 - rounds, None)
    whole = step(trial.kit("server").ours / LOG, r"done    round \d+ of \d+ after ([0-9.]+) s", first)
    works = [step(trial.kit(silo).ours / LOG, r"after ([0-9.]+) s of work: line", second) for silo in trial.silos]
    work = sum(works) / len(works)
    return {
        "silos": len(trial.silos),
        "exchange": exchange,
        "parameters": run.result["model"]["parameters"],
        "round": whole,
        "silo": work,
        "overhead": whole - work,
        "phase": (whole - work) / PHASES[exchange],
        "server MB": most["server"],
        "silo MB": max(most[silo] for silo in trial.silos),
        "load": load,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--silos", default="3,8,16")
    parser.add_argument("--sizes", default="100000,1000000,25000000")
    parser.add_argument("--exchanges", default="plain,masked")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    file = options.out / "federation.json"
    rows: list[dict[str, Any]] = json.loads(file.read_text()) if file.is_file() else []
    for silos in map(int, options.silos.split(",")):
        with tempfile.TemporaryDirectory() as scratch:
            trial = Trial(Path(scratch), POLICY, tables=tables(silos))
            trial.prepare()
            with trial.running():
                for size in map(int, options.sizes.split(",")):
                    for exchange in options.exchanges.split(","):
                        row = measured(trial, size, options.rounds, exchange)
                        print(json.dumps(row), flush=True)
                        key = ("silos", "exchange", "parameters")
                        rows = [old for old in rows if any(old[name] != row[name] for name in key)] + [row]
                        write(rows, options.out)


def write(rows: list[dict[str, Any]], out: Path) -> None:
    """All rows that were ever measured here, the last one of each kind."""
    rows = sorted(rows, key=lambda row: (row["exchange"], row["silos"], row["parameters"]))
    out.mkdir(parents=True, exist_ok=True)
    (out / "federation.json").write_text(json.dumps(rows, indent=1) + "\n")
    lines = ["# What a federation of processes costs", "", f"{os.cpu_count()} cores; seconds a round."]
    lines += ["", "| " + " | ".join(rows[0]) + " |", "|---" * len(rows[0]) + "|"]
    lines += ["| " + " | ".join(_cell(name, value) for name, value in row.items()) + " |" for row in rows]
    (out / "federation.md").write_text("\n".join(lines) + "\n")


def _cell(name: str, value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if name.endswith("MB") else f"{value:.1f}" if name == "load" else f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    main()
