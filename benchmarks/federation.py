"""What a federation of processes costs beyond the silos' own work, by size of the model.

    python -m benchmarks.federation [--sizes 16,4000] [--rounds 10]

A server and three silos on this machine, masked exchange, over TLS on the loopback interface. A round's overhead is its
time at the server minus the average time that silos were at work in it: messages, waiting, ledgers, the server's step.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from pathlib import Path

import psutil

from tacit.config import plan
from tacit.engine.federation.requester import ask, follow
from tacit.engine.federation.trial import PARTS, REQUESTER, Trial


def measured(trial: Trial, hidden: int, rounds: int) -> dict[str, float]:
    """One run with a hidden layer of that size."""
    planned = plan(
        {
            "data": {"source": "randhie", "subjects": {"count": 50000}, "silos": {"count": 3}},
            "model": {"name": "mlp", "hidden": [hidden]},
            "method": {"name": "uldp-avg", "noise_multiplier": 5.0},
            "train": {"rounds": rounds, "evaluate_every": rounds},
            "privacy": {"max_records_per_subject_and_silo": 5},
            "exchange": {"name": "masked"},
        }
    )
    kit = trial.kit(REQUESTER)
    run = follow(kit, ask(kit, planned, trial.folder / f"run-{hidden}"), rounds, planned.label)
    first, last = (json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines())
    logs = [(trial.kit(silo).ours / "log.txt").read_text() for silo in PARTS]
    worked = [float(re.findall(r"and ([0-9.]+) s of work", log)[-1]) for log in logs]
    begun = [float(re.findall(r"set up  after ([0-9.]+) s of work", log)[-1]) for log in logs]
    round_seconds = (last["seconds"] - first["seconds"]) / rounds
    silo_seconds = sum(end - start for end, start in zip(worked, begun, strict=True)) / len(worked) / rounds
    return {
        "parameters": run.result["model"]["parameters"],
        "round": round_seconds,
        "silo": silo_seconds,
        "overhead": round_seconds - silo_seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", default="16,4000")
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        trial = Trial(Path(scratch), {"epsilon_per_run": float("inf"), "epsilon_in_total": float("inf")})
        trial.prepare()
        with trial.running():
            memory = {
                name: psutil.Process(process.pid).memory_info().rss / 2**20 for name, process in trial.processes.items()
            }
            print("| parameters | s per round | of it silos at work | overhead |")
            print("|---|---|---|---|")
            for size in options.sizes.split(","):
                one = measured(trial, int(size), options.rounds)
                print(
                    f"| {one['parameters']:,} | {one['round']:.2f} | {one['silo']:.2f} | {one['overhead']:.2f} |",
                    flush=True,
                )
            print("idle processes, MB:", {name: round(size) for name, size in memory.items()})


if __name__ == "__main__":
    main()
