"""Memory of training factors of low rank on a frozen BERT-like model, by its size and by the number of people.

``python -m benchmarks.frozen_memory [--people 64 256 1024] [--units 64 128 256]``

One round of ``subject-sgd`` on everyone, a text of eight tokens each, proved epsilon 4, in one child process per cell.
Needs ``tacit[torch]`` and ``transformers``; nothing is downloaded.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TOKENS, VOCABULARY = 8, 30
LAYERS = {64: 6, 128: 6, 256: 6}


def experiment(people: int, units: int) -> dict[str, Any]:
    """One round on ``people``, each with one text."""
    return {
        "title": "Frozen numbers",
        "seed": 1,
        "data": {
            "label": "y",
            "numeric": [f"t{i}" for i in range(TOKENS)],
            "standardize": "none",
            "subjects": {"column": "person", "count": people},
            "silos": {"assign": "uniform", "count": 2},
        },
        "model": {
            "name": "tests.models.modules.hugging:text",
            "units": units,
            "layers": LAYERS[units],
            "vocabulary": VOCABULARY,
            "low_rank": {"layers": ["*query.weight", "*value.weight"], "rank": 4},
            "train": ["*classifier*"],
        },
        "method": {"name": "subject-sgd", "target_epsilon": 4.0, "clip": 1.0},
        "train": {"rounds": 1},
        "privacy": {"max_records_per_subject_and_silo": 1, "max_silos_per_subject": 1},
        "evaluation": {"data": "none"},
    }


def measured(people: int, units: int) -> dict[str, Any]:
    """One run in this process, and its peak."""
    import numpy as np
    import pandas as pd

    import tacit
    from tacit.models import parameter_count
    from tacit.planning.plan import model_and_form

    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.integers(0, VOCABULARY, (people, TOKENS)), columns=[f"t{i}" for i in range(TOKENS)])
    table["person"], table["y"] = np.arange(people), (table["t0"] < VOCABULARY // 2).astype(int)
    content = experiment(people, units)
    plan = tacit.plan(content)
    numbers, trained = parameter_count(model_and_form(plan)[0]), plan.parameters or 0
    with tempfile.TemporaryDirectory() as folder:
        tacit.run(content, table, out=Path(folder) / "run")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"people": people, "frozen": numbers - trained, "trained": trained, "peak_mb": round(peak)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--people", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--units", type=int, nargs="+", default=sorted(LAYERS), choices=sorted(LAYERS))
    parser.add_argument("--cell", type=int, nargs=2, metavar=("PEOPLE", "UNITS"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.cell:
        print(json.dumps(measured(*given.cell)))
        return
    print("| frozen numbers | trained | people | peak memory, MB |\n|---:|---:|---:|---:|")
    for units in given.units:
        for people in given.people:
            command = [sys.executable, "-m", "benchmarks.frozen_memory", "--cell", str(people), str(units)]
            done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
            found = json.loads(done.stdout.splitlines()[-1])
            print("| {frozen:,} | {trained:,} | {people:,} | {peak_mb:,} |".format(**found), flush=True)


if __name__ == "__main__":
    main()
