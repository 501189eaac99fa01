"""What surveys say and how far off they are, on the built-in table: the tables and the picture of docs/survey.md.

    python examples/survey/run.py docs/survey.md

Every question is asked many times, each time with noise of its own, which only a study on public data may do.
"""

from __future__ import annotations

import argparse
import math
import sys
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
import pandas as pd

from research.plots import Curve, Panel, curves
from tacit.families.survey.questions import CentralMean, CentralShares, LocalMean, LocalShares, Question
from tacit.privacy import Randomness
from tacit.report.page import RUN_STYLES

sys.path.append(str(Path(__file__).parents[2]))  # the folder of research/

from research.study import written_between

EPSILONS = (0.1, 0.3, 1.0, 3.0)
TIMES = 200
LOW, HIGH = 0.0, 65.0  # ages in the study


def people() -> tuple[pd.DataFrame, np.ndarray]:
    """The built-in table and whose each of its rows is."""
    with as_file(files("tacit.data") / "builtin" / "randhie.parquet") as file:
        table = pd.read_parquet(file)
    return table, table["person"].to_numpy()


def questions(epsilon: float) -> dict[str, tuple[str, Question]]:
    """By name: the column, and the question."""
    return {
        "a doctor in a year, central": ("any_visit", CentralShares(2, epsilon)),
        "a doctor in a year, local": ("any_visit", LocalShares(2, epsilon)),
        "age, central": ("age", CentralMean(LOW, HIGH, epsilon)),
        "age, local": ("age", LocalMean(LOW, HIGH, epsilon)),
    }


def measured(question: Question, values: np.ndarray, subject: np.ndarray, truth: float) -> tuple[float, float, float]:
    """Of many surveys: the mean estimate, the root mean squared error, and the mean stated standard error."""
    randomness = Randomness.from_seed(0)
    found = [question.release(values, subject, randomness.stream("survey", n)) for n in range(TIMES)]
    estimates = np.array([one.estimate[-1] for one in found])
    stated = float(np.mean([one.standard_error[-1] for one in found]))
    return float(estimates.mean()), float(np.sqrt(np.mean((estimates - truth) ** 2))), stated


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    page: Path = parser.parse_args().page
    table, subject = people()
    own = table.groupby("person")[["any_visit", "age"]].mean()
    rows, errors = [], {name: ([], []) for name in questions(1.0)}
    for epsilon in EPSILONS:
        for name, (column, question) in questions(epsilon).items():
            truth = float(own[column].clip(LOW, HIGH).mean())
            mean, error, stated = measured(question, table[column].to_numpy(), subject, truth)
            errors[name][0].append(stated)
            errors[name][1].append(error)
            rows.append(f"| {name} | {epsilon:g} | {truth:.4f} | {mean:.4f} | {error:.2g} | {stated:.2g} |")
    panels = []
    for topic, title in (("a doctor in a year", "Share with a visit"), ("age", "Mean age")):
        lines = []
        for place in ("central", "local"):
            stated, real = errors[f"{topic}, {place}"]
            first = 0 if place == "central" else 2
            lines.append(Curve(f"{place}, stated", RUN_STYLES[first], EPSILONS, stated))
            lines.append(Curve(f"{place}, measured", RUN_STYLES[first + 1], EPSILONS, real))
        panels.append(Panel(f"{title}: standard error", "epsilon", lines, log_x=True, log_y=True))
    folder = page.parent / page.stem
    folder.mkdir(exist_ok=True)
    spoken = "Standard errors of surveys over epsilon, stated and measured; the numbers are in the table."
    (folder / "errors.svg").write_text(curves(panels, spoken), encoding="utf-8")
    count = len(own)
    head = [
        "| question | epsilon | true | mean estimate | measured error | stated error |",
        "|---|---|---|---|---|---|",
    ]
    off = math.ceil(math.sqrt(count))
    said = f"{count:,} people of RAND HIE, {TIMES} surveys each; the square root of their number is {off}."
    lines = [f"![{spoken}]({page.stem}/errors.svg)", "", said, "", *head, *rows, ""]
    written_between(page, "errors: written by examples/survey/run.py", lines)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
