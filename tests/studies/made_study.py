"""A small study on the built-in table, and the command that runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import tomli_w

EXPERIMENT = {
    "data": {"source": "randhie", "seed": 0, "records_per_silo": 2700},
    "model": {"name": "logistic"},
    "train": {"rounds": 2},
    "privacy": {"max_records_per_subject_and_silo": 5, "max_silos_per_subject": 1, "against": ["public"]},
}


def study(**changes: Any) -> dict[str, Any]:
    """Two methods over two amounts of noise, with a choice of settings: 12 trainings."""
    return {
        "title": "A small study",
        "experiment": EXPERIMENT,
        "seeds": [0, 1],
        "metric": "auc",
        "axes": [{"name": "noise_multiplier", "values": [1.0, 4.0]}],
        "contenders": [
            {
                "name": "subject-sgd",
                "method": {"name": "subject-sgd", "clip": 0.5},
                "grid": {"train": {"server_learning_rate": [0.5, 2.0]}},
            },
            {"name": "fedavg", "method": {"name": "fedavg"}, "grid": {"local_learning_rate": [0.01, 0.1]}},
        ],
        **changes,
    }


def written(folder: Path, **changes: Any) -> Path:
    """The file of a small study."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "small.toml"
    file.write_text(tomli_w.dumps(study(**changes)), encoding="utf-8")
    return file


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "tacit", "study", *map(str, arguments)]


def ran(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*arguments), capture_output=True, text=True, check=False)
