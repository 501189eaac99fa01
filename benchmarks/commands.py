"""The command line that the races share."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks import tables
from benchmarks.contest import Contestant, Stage, compete
from benchmarks.work import Race, data_folder


def run_race(race: Race, contestants: tuple[Contestant, ...]) -> None:
    """Parse, race, write, print the table."""
    parser = argparse.ArgumentParser(description=race.question)
    parser.add_argument("--data", help="folder with mnist.npz (default: the folder mnist of TACIT_DATA)")
    parser.add_argument("--peers-python", default=sys.executable, help="interpreter of the peers' environment")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tuning-runs", type=int, default=1, help="runs per setting before the race; 0: first setting")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds that one process may take")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    stage = Stage(data_folder(options.data), peers_python=options.peers_python, timeout=options.timeout)
    results = compete(race, contestants, stage, options.repeats, options.tuning_runs)
    sys.stdout.write(tables.write(results, options.out).read_text())
