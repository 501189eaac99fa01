"""Run folders as the engine writes them, made up: six hospitals, and every part may be changed or left out."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HOSPITALS = ["Northfield General", "St. Brigid", "Harbour Clinic", "Lakeside", "University Hospital", "Old Mill"]
HIGHER = {"auc": True, "accuracy": True, "f1": True, "log_loss": False}
PLAN = """\
title = "Any doctor visit within a year"

[data]
source = "randhie"
silos = { column = "site" }

[model]
name = "mlp"
hidden = [32]

[method]
name = "fedavg"
local_epochs = 2
local_learning_rate = 0.05

[train]
rounds = 100
"""
NOTHING = {
    "unit": "subject", "relation": "zero-out", "view": "public", "sampling": "none", "epsilon": "inf", "delta": None,
    "accountant": "none", "assumptions": [], "as_published": None,
}  # fmt: skip
PUBLIC = NOTHING | {
    "epsilon": 2.3074, "delta": 1e-5, "sampling": "poisson, rate 0.1", "accountant": "pld",
    "assumptions": ["at most 200 records per person and silo", "at most 3 silos per person"],
    "as_published": {"epsilon": 1.12, "valid": "no", "reason": "counts a person's silos as independent people"},
}  # fmt: skip


def scores(auc: float) -> dict[str, float]:
    return {"auc": auc, "accuracy": 0.3 + 0.6 * auc, "f1": 0.2 + 0.7 * auc, "log_loss": 1.2 - 0.85 * auc}


def curve(final: float, silos: dict[str, float], rounds: int, seed: int) -> list[dict[str, Any]]:
    noise = random.Random(seed)
    lines = []
    for number in range(rounds + 1):
        grown = 1 - math.exp(-6 * number / max(rounds, 1))

        def at(value: float, spread: float, grown: float = grown) -> dict[str, float]:
            return scores(0.5 + (value - 0.5) * grown + noise.gauss(0, spread) * (grown < 0.98))

        lines.append(
            {
                "round": number,
                "seconds": 1.7 + 0.11 * number,
                "silos_in_round": len(silos),
                "metrics": at(final, 0.003),
                "silos": {name: at(value, 0.008) for name, value in silos.items()},
            }
        )
    return lines


def make(
    path: Path,
    *,
    names: list[str] = HOSPITALS,
    rounds: int = 100,
    together: float = 0.812,
    alone: float | None = 0.764,
    pooled: float | None = 0.826,
    local: bool = True,
    **changes: Any,
) -> Path:
    """Write a run folder; ``changes`` replace parts of ``result.json``, and a part that is ``None`` is left out."""
    noise = random.Random(11)
    path.mkdir(parents=True)
    shift = {name: noise.gauss(0, 0.03) for name in names}
    finals = {"": together, "silo-only": alone, "pooled": pooled}
    values = {
        kind: {name: base + shift[name] + noise.gauss(0, 0.004) for name in names}
        for kind, base in finals.items()
        if base is not None
    }
    lines = {kind: curve(finals[kind] or 0, silos, rounds, 3) for kind, silos in values.items()}
    last = {kind: line[-1] for kind, line in lines.items()}
    result: dict[str, Any] = {
        "title": "Any doctor visit within a year",
        "run": f"/srv/secret-place/{path.name}",
        "status": "finished",
        "rounds": rounds,
        "rounds_planned": rounds,
        "method": {
            "name": "fedavg",
            "about": "Silos train locally; the server averages their models by number of records.",
            "paper": "McMahan et al. 2017",
        },
        "model": {"name": "mlp", "parameters": 12_737},
        "task": {"name": "binary", "headline": "auc", "higher_is_better": HIGHER},
        "guarantees": [NOTHING, NOTHING | {"view": "server"}],
        "noise_multiplier": None,
        "metrics": last[""]["metrics"],
        "silos": {name: m | {"test_records": 7919 + i} for i, (name, m) in enumerate(last[""]["silos"].items())},
        "test_records": {name: 800 + 10 * i for i, name in enumerate(names)},
        "baselines": {k: {"metrics": v["metrics"], "silos": v["silos"]} for k, v in last.items() if k},
        "seconds": {"compile": 3.21, "train": 11.4, "evaluate": 1.9, "exchange": 0.042, "total": 97.3},
        "environment": {
            "tacit": "0.1.0", "python": "3.11.9", "jax": "0.6.2", "numpy": "2.2.0", "platform": "Linux", "cores": 2,
        },
        "seed": None,
        "evaluation": {"status": "outside-guarantee", "held_out": "subjects"},
        "data": {"source": "randhie", "silos": len(names)},
    }  # fmt: skip
    result = {key: value for key, value in (result | changes).items() if value is not None}
    (path / "result.json").write_text(json.dumps(result))
    (path / "plan.toml").write_text(PLAN)
    for kind, entries in lines.items():
        folder = path / "baselines" / kind if kind else path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    if local:
        (path / "local.json").write_text(json.dumps(exact(names)))
    return path


def exact(names: list[str], classes: int = 0) -> dict[str, Any]:
    """Private numbers that stand nowhere else: no metric of the run is as small, no count as large."""
    noise = random.Random(5)
    n = len(names)
    return {
        "records": 31_557_013,
        "test_records": 31_901_117,
        "subjects": 31_201_731,
        "silos": [
            {
                "name": name,
                "records": 310_007 + 1013 * i * i,
                "subjects": 31_013 + 7 * i,
                "test_records": 7919 + i,
                "label": [noise.randrange(31_000, 99_000) for _ in range(classes)] if classes else 0.31337 + 0.01 * i,
            }
            for i, name in enumerate(names)
        ],
        "records_per_subject": {
            "records": list(range(1, 90)),
            "subjects": [round(313_131 / k**1.3) for k in range(1, 90)],
        },
        "silos_per_subject": {"silos": [1, 2, 3], "subjects": [31_100_031, 310_317, 31_311]},
        "overlap": [[31_013 + 7 * i if i == j else 3100 + 131 * abs(i - j) for j in range(n)] for i in range(n)],
        "deciles": [
            {
                "decile": d,
                "subjects": 31_731 + d,
                "records": 31_900 + 317 * d,
                "metrics": dict.fromkeys(HIGHER, 0.3131 + 0.011 * d),
            }
            for d in range(1, 11)
        ],
    }


@pytest.fixture(scope="session")
def make_at() -> Callable[..., Path]:
    """``make_at(path, rounds=3, ...)`` writes a run folder for several tests."""
    return make


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    """``make_run("name", rounds=3, ...)`` writes a run folder and returns its path."""
    return lambda name="run", **settings: make(tmp_path / name, **settings)


@pytest.fixture
def finite() -> list[dict[str, Any]]:
    """Guarantees of a private run: finite for the public, none against the server."""
    return [dict(PUBLIC), NOTHING | {"view": "server"}]


@pytest.fixture
def private_numbers() -> Callable[[Path], set[str]]:
    """Every number of a run's ``local.json``, as it is stored and as a page would write it."""

    def collect(value: Any) -> set[str]:
        if isinstance(value, dict):
            return set().union(*(collect(item) for item in value.values()))
        if isinstance(value, list):
            return set().union(*(collect(item) for item in value))
        if isinstance(value, int | float) and abs(value) >= 1000:
            return {str(value), f"{value:,}"}
        return {str(value), f"{value:.4f}"} if isinstance(value, float) else set()

    return lambda run: collect(json.loads((run / "local.json").read_text()))
