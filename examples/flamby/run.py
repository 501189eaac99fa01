"""FLamby's heart disease and TCGA-BRCA tasks: one command, one table.

    TACIT_DATA=… python examples/flamby/run.py                      prints the tables
    TACIT_DATA=… python examples/flamby/run.py docs/results.md      also writes them between the page's markers

Runs the eight experiment files beside this script with five seeds each, for the rounds that stand in them. Nothing is
selected here: the settings come from choose.py, which sees training records only, and the model of the last round is
the one that is scored. Every run with FedAvg also trains its two references, each silo alone and all records pooled.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tacit

HERE = Path(__file__).parent
SEEDS = range(5)
BEGIN, END = "<!-- flamby: written by examples/flamby/run.py -->", "<!-- /flamby -->"

# experiment file -> what the silos' features are scaled with
FILES = {
    "heart-fedavg": "public constants",
    "heart-fedadam": "public constants",
    "heart-per-silo-fedavg": "each silo's own",
    "heart-per-silo-fedadam": "each silo's own",
    "tcga-brca-fedavg": "public constants",
    "tcga-brca-fedadam": "public constants",
    "tcga-brca-per-silo-fedavg": "each silo's own",
    "tcga-brca-per-silo-fedadam": "each silo's own",
}
METHODS = {"fedavg": "FedAvg", "fedadam": "FedAdam"}
REFERENCES = {"pooled": "pooled", "silo-only": "each silo alone"}
# What FLamby prints, by task, method and scaling. FLamby scales by silo, pooled records all alike.
PRINTED = {
    ("heart", "FedAvg", "each silo's own"): ".748",
    ("heart", "FedAdam", "each silo's own"): ".779",
    ("heart", "pooled", "public constants"): ".795",
    ("tcga-brca", "FedAdam", "public constants"): ".842",
}


@dataclass
class Row:
    """A line of the table: the headline metric of five runs, over all test records and by silo."""

    task: str
    method: str
    scaling: str
    overall: list[float] = field(default_factory=list)
    silos: dict[str, list[float]] = field(default_factory=dict)

    def add(self, metric: str, scores: dict[str, Any]) -> None:
        """One more seed."""
        self.overall.append(scores["metrics"][metric])
        for name, numbers in scores["silos"].items():
            self.silos.setdefault(name, []).append(numbers[metric])

    @property
    def silo_means(self) -> list[float]:
        """The mean over silos, seed by seed."""
        return [statistics.mean(values) for values in zip(*self.silos.values(), strict=True)]


def main(page: Path | None) -> None:
    begun = time.monotonic()
    rows: list[Row] = []
    for file, scaling in FILES.items():
        rows += rows_of(file, scaling)
        print(f"{file}: {time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    text = "\n".join(tables(rows))
    print(text)
    if page is not None:
        page.write_text(between_markers(page.read_text(encoding="utf-8"), text), encoding="utf-8")


def rows_of(file: str, scaling: str) -> list[Row]:
    """Five seeds of one experiment file: its own row, and those of its references where it is FedAvg's."""
    task, method = file.replace("-per-silo", "").rsplit("-", 1)
    own = Row(task, METHODS[method], scaling)
    references = {name: Row(task, words, scaling) for name, words in REFERENCES.items()} if method == "fedavg" else {}
    for seed in SEEDS:
        with tempfile.TemporaryDirectory() as folder:
            plan = tacit.plan(HERE / f"{file}.toml", [f"seed={seed}"])
            run = tacit.run(plan, out=Path(folder) / "run", baselines=bool(references))
        metric = run.result["task"]["headline"]
        own.add(metric, run.result)
        for name, row in references.items():
            row.add(metric, run.result["baselines"][name])
    return [own, *references.values()]


def in_order(rows: list[Row]) -> list[Row]:
    """By scaling as they come, and within it federated methods first."""
    order = [*METHODS.values(), *REFERENCES.values()]
    return sorted(rows, key=lambda row: (row.scaling != "public constants", order.index(row.method)))


def tables(rows: list[Row]) -> list[str]:
    """The results as Markdown: a table per task, and the settings."""
    lines = []
    for task, title in (("heart", "Heart disease: test accuracy"), ("tcga-brca", "TCGA-BRCA: C-index on test records")):
        mine = in_order([row for row in rows if row.task == task])
        silos = list(mine[0].silos)
        header = ["method", "scaling", "all test records", "mean of silos", "FLamby prints", *silos]
        cells = [header, ["---"] * len(header), *(row_cells(row) for row in mine)]
        lines += [f"### {title}", "", *(f"| {' | '.join(row)} |" for row in cells), ""]
    return [*lines, "### Settings", "", *settings()]


def row_cells(row: Row) -> list[str]:
    printed = PRINTED.get((row.task, row.method, row.scaling), "–")
    silos = [f"{statistics.mean(values):.3f}" for values in row.silos.values()]
    return [row.method, row.scaling, spread(row.overall), spread(row.silo_means), printed, *silos]


def spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.3f} ± {statistics.stdev(values):.3f}"


def settings() -> list[str]:
    """What stands in the experiment files."""
    header = ["experiment file", "batch", "local epochs", "local rate", "server", "server rate", "rounds"]
    cells = [header, ["---"] * len(header)]
    for file in FILES:
        plan = tacit.plan(HERE / f"{file}.toml")
        method, train = plan.options, plan.experiment.train
        numbers = (method.local_epochs, method.local_learning_rate, train.server_optimizer, train.server_learning_rate)
        batch = "whole silo" if method.batch_size is None else method.batch_size
        cells.append([f"`{file}.toml`", *map(str, (batch, *numbers, train.rounds))])
    return [*(f"| {' | '.join(row)} |" for row in cells), ""]


def between_markers(page: str, text: str) -> str:
    """``page`` with ``text`` in place of what stands between the markers."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{text}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
