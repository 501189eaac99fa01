"""How much memory a million records take: load a table, allocate subjects and silos, run one round of FedAvg.

``python -m benchmarks.memory_million [--records 1000000] [--features 30] [--limit-gb 4] [--out benchmarks/results]``

The table is made by one child process, the run measured in another: on Linux a child's peak starts at what its parent
held when it was started, so this process stays small and imports nothing heavy. Exit 1 if the peak is over the limit.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NAME = "memory_million"


def make_table(path: Path, records: int, features: int) -> None:
    """A parquet table with normal features ``x0 … xn`` (float64) and a binary label ``y``, written in pieces."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = np.random.default_rng(0)
    truth = rng.normal(size=features)
    names = [f"x{i}" for i in range(features)]
    schema = pa.schema([*((name, pa.float64()) for name in names), ("y", pa.int64())])
    with pq.ParquetWriter(path, schema) as file:
        for start in range(0, records, 100_000):
            x = rng.normal(size=(min(100_000, records - start), features))
            y = (x @ truth + rng.logistic(size=len(x)) > 0).astype(np.int64)
            file.write_table(pa.table([*(pa.array(column) for column in x.T), pa.array(y)], schema=schema))


def experiment(table: Path, features: int) -> dict[str, Any]:
    """One round of FedAvg over ten thousand subjects in ten silos."""
    return {
        "title": "A million records",
        "seed": 1,
        "data": {
            "source": "table",
            "path": str(table),
            "label": "y",
            "task": "binary",
            "classes": 2,
            "numeric": [f"x{i}" for i in range(features)],
            "standardize": "none",
            "test_fraction": 0.1,
            "subjects": {"assign": "zipf", "count": 10_000, "alpha": 0.5},
            "silos": {"assign": "zipf", "count": 10, "alpha": 2.0},
        },
        "model": {"name": "logistic"},
        "method": {"name": "fedavg", "batch_size": 100, "local_epochs": 1, "local_learning_rate": 0.1},
        "train": {"rounds": 1},
    }


def run_measured(table: Path, features: int) -> dict[str, float]:
    """Load, allocate, one round; seconds and peak of this process."""
    start = time.perf_counter()
    import tacit

    with tempfile.TemporaryDirectory() as folder:
        tacit.run(experiment(table, features), out=Path(folder) / "run")
    return {"seconds": time.perf_counter() - start, "peak_gb": peak_bytes() / 2**30}


def peak_bytes() -> int:
    """Largest resident set of this process so far; Linux counts in kilobytes, macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if platform.system() == "Darwin" else peak * 1024


def in_child(step: str, table: Path, options: argparse.Namespace) -> str:
    """Run one step in a process of its own; the last line that it prints."""
    command = [sys.executable, "-m", f"benchmarks.{NAME}", "--step", step, "--table", str(table)]
    command += ["--records", str(options.records), "--features", str(options.features)]
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{step} failed with exit code {done.returncode}")
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""


def measure(options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "million.parquet"
        in_child("table", table, options)
        size = table.stat().st_size / 2**30
        measured = json.loads(in_child("run", table, options))
    return {"records": options.records, "features": options.features, "table_gb": size, **measured}


def write(result: dict[str, Any], limit: float, folder: Path) -> str:
    """JSON and a Markdown table; returns the table."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{NAME}.json").write_text(json.dumps({**result, "limit_gb": limit}, indent=1) + "\n")
    page = (
        "# Memory: load, allocate and one round of FedAvg\n\n"
        "| records | features | table on disk, GB | peak memory, GB | limit, GB | seconds |\n"
        "|---|---|---|---|---|---|\n"
        f"| {result['records']:,} | {result['features']} | {result['table_gb']:.2f} | {result['peak_gb']:.2f} "
        f"| {limit:g} | {result['seconds']:.1f} |\n"
    )
    (folder / f"{NAME}.md").write_text(page)
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description="Peak memory of one round over a large table")
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--features", type=int, default=30)
    parser.add_argument("--limit-gb", type=float, default=4.0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--step", choices=("table", "run"), help=argparse.SUPPRESS)
    parser.add_argument("--table", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step == "table":
        make_table(options.table, options.records, options.features)
    elif options.step == "run":
        sys.stdout.write("\n" + json.dumps(run_measured(options.table, options.features)) + "\n")
    else:
        result = measure(options)
        sys.stdout.write(write(result, options.limit_gb, options.out))
        raise SystemExit(0 if result["peak_gb"] < options.limit_gb else 1)


if __name__ == "__main__":
    main()
