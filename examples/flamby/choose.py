"""Settings for the FLamby tasks, chosen on training records only.

    TACIT_DATA=… python examples/flamby/choose.py

Held-out records are never looked at. The training records of a task are dealt into three folds (silo and label
balanced, fixed seed); every setting of a small grid is trained on two folds and judged on the third, three times. The
setting with the best mean wins; where two are equal, the one that stands first in the grid. Judged by log-loss for
heart disease (smoother than accuracy on so few records) and by the C-index over all records for TCGA-BRCA.

Writes the eight experiment files beside this script, and `choice.md` with every mean.
"""

from __future__ import annotations

import itertools
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import tacit
from tacit.data import DataOptions, Federation, load
from tacit.engine import run as train

HERE = Path(__file__).parent
FOLDS = 3
SEED = 0
ROUNDS = (10, 20, 50, 100)  # read off one run of 100 rounds

Setting = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """A FLamby task: where its labels and silos stand in a frame, and how settings are judged."""

    name: str
    title: str
    model: str
    silo_column: str
    label_columns: tuple[str, ...]
    metric: str
    higher_is_better: bool
    batch_sizes: tuple[int | None, ...]  # None: all records of a silo in one batch


TASKS = (
    Task("heart", "Heart disease, four hospitals", "logistic", "hospital", ("y",), "log_loss", False, (8, 32)),
    Task(
        *("tcga-brca", "Breast cancer survival, six regions", "cox", "region", ("days", "death"), "c_index", True),
        (32, None),  # a Cox batch compares patients with each other: it must hold several deaths
    ),
)

FEDAVG = {"local_epochs": (1, 5), "local_learning_rate": (0.01, 0.1, 0.3), "server_learning_rate": (1.0,)}
FEDADAM = {"local_epochs": (1,), "local_learning_rate": (0.01, 0.1), "server_learning_rate": (0.01, 0.03, 0.1)}
OPTIMIZERS = {"fedavg": ("sgd", FEDAVG), "fedadam": ("adam", FEDADAM)}


def main() -> None:
    begun = time.monotonic()
    lines = ["# Cross-validated choice of settings", "", "Written by `choose.py`, from training records only.", ""]
    for task, standardize in itertools.product(TASKS, ("declared", "per-silo")):
        folds = deal(training_frame(task), task)
        for name in OPTIMIZERS:
            table = judged(task, standardize, name, folds)
            best = table.iloc[0].to_dict()
            file = HERE / f"{task.name}{'' if standardize == 'declared' else '-per-silo'}-{name}.toml"
            file.write_text(experiment_file(task, standardize, name, best, file.name), encoding="utf-8")
            print(f"{file.name:32} {best}", flush=True)
            lines += section(file.name, task, table)
    (HERE / "choice.md").write_text("\n".join(lines), encoding="utf-8")
    print(f"{time.monotonic() - begun:.0f} seconds; see {HERE / 'choice.md'}")


def training_frame(task: Task) -> pd.DataFrame:
    """The training records of a task as raw columns: what stands in the file, gaps filled by the source's rule."""
    federation = load(DataOptions(source=task.name, standardize="none"))
    records = federation.train
    frame = pd.DataFrame(records.features, columns=list(federation.feature_names))
    frame[list(task.label_columns)] = records.labels.reshape(len(records), -1)
    frame[task.silo_column] = silo_names(federation)
    frame["pid"] = records.subject
    return frame


def silo_names(federation: Federation) -> np.ndarray:
    return np.array(federation.silo_names, dtype=object)[federation.train.silo]


def deal(frame: pd.DataFrame, task: Task) -> list[pd.DataFrame]:
    """One frame per fold; ``split`` marks the rows to judge on. Dealt like cards, silo by silo and label by label."""
    lot = np.random.default_rng(SEED).permutation(len(frame))
    shuffled = frame.iloc[lot].sort_values([task.silo_column, task.label_columns[-1]], kind="stable")
    hand = np.arange(len(frame)) % FOLDS
    return [shuffled.assign(split=(hand == fold).astype(int)) for fold in range(FOLDS)]


def judged(task: Task, standardize: str, name: str, folds: list[pd.DataFrame]) -> pd.DataFrame:
    """Every setting with its mean over the folds, best first."""
    optimizer, grid = OPTIMIZERS[name]
    rows = []
    for values in itertools.product(task.batch_sizes, *grid.values()):
        setting = dict(zip(("batch_size", *grid), values, strict=True))
        curves = [curve(task, standardize, optimizer, setting, fold) for fold in folds]
        means = pd.concat(curves, axis=1).mean(axis=1)
        rows += [{**setting, "rounds": rounds, task.metric: float(means[rounds])} for rounds in ROUNDS]
    return pd.DataFrame(rows, dtype=object).sort_values(
        task.metric, ascending=not task.higher_is_better, kind="stable", ignore_index=True
    )


def curve(task: Task, standardize: str, optimizer: str, setting: Setting, fold: pd.DataFrame) -> pd.Series:
    """The judging metric after the rounds of ``ROUNDS``, of one setting on one fold."""
    content = experiment(task, standardize, optimizer, {**setting, "rounds": max(ROUNDS)})
    content["seed"], content["train"]["evaluate_every"] = SEED, min(ROUNDS)
    with tempfile.TemporaryDirectory() as folder:
        run = train(tacit.plan(content), frame=fold, out=Path(folder) / "run")
        return run.history().set_index("round")[task.metric].loc[list(ROUNDS)]


def experiment(task: Task, standardize: str, optimizer: str, setting: Setting) -> dict[str, Any]:
    """The experiment of a setting, as a dictionary."""
    local = {key: setting[key] for key in ("batch_size", "local_epochs", "local_learning_rate")}
    return {
        "data": {"source": task.name, "standardize": standardize},
        "model": {"name": task.model},
        "method": {"name": "fedavg", **{key: value for key, value in local.items() if value is not None}},
        "train": {
            "rounds": setting["rounds"],
            "server_optimizer": optimizer,
            "server_learning_rate": setting["server_learning_rate"],
        },
    }


def experiment_file(task: Task, standardize: str, name: str, setting: Setting, file: str) -> str:
    """The experiment file of a chosen setting."""
    content = experiment(task, standardize, OPTIMIZERS[name][0], setting)
    words = {"fedavg": "FedAvg", "fedadam": "FedAdam"}[name]
    scaling = "public constants" if standardize == "declared" else "per-silo scaling"
    lines = [
        f"# tacit run examples/flamby/{file} --baselines",
        "# Settings: choose.py, by cross-validation on training records. Needs TACIT_DATA.",
        f'title = "{task.title}: {words}, {scaling}"',
        "seed = 0",
    ]
    for section_name, values in content.items():
        lines += ["", f"[{section_name}]", *(f"{key} = {toml(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def section(file: str, task: Task, table: pd.DataFrame) -> list[str]:
    """A Markdown table of the whole grid, best first."""
    shown = table.assign(**{task.metric: [f"{value:.4f}" for value in table[task.metric]]})
    rows = [["all" if value is None else str(value) for value in row] for row in shown.itertuples(index=False)]
    header = [str(column).replace("_", " ") for column in shown.columns]
    cells = [header, ["---"] * len(header), *rows]
    return [f"## {file}", "", *(f"| {' | '.join(row)} |" for row in cells), ""]


if __name__ == "__main__":
    main()
