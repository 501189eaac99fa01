"""What finished trainings found: the file that keeps them, tables of them, and differences between contenders."""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy import stats

from tacit.errors import UserError
from tacit.models import higher_is_better
from tacit.privacy import Guarantee
from tacit.studies.trainings import Planned, StudyCell, StudyTraining

CONFIDENCE = 0.95
Line = dict[str, Any]


class Log:
    """A line of JSON for every finished training, by its key. A line that a crash cut off is dropped."""

    def __init__(self, file: Path) -> None:
        self.file, self.lines = file, dict[str, Line]()
        content = file.read_bytes() if file.is_file() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            with file.open("r+b") as opened:
                opened.truncate(len(whole))
        for number, text in enumerate(whole.splitlines(), start=1):
            try:
                line = json.loads(text)
                self.lines[line["key"]] = line
            except (ValueError, KeyError, TypeError):
                problem = f"line {number} of '{file}' is not a finished training"
                raise UserError("file-damaged", "trainings.jsonl", problem, "remove that line") from None

    def append(self, training: StudyTraining, found: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
        """Keep a finished training: it is on disk when this returns."""
        line = {"key": training.key, **facts, **found}
        with self.file.open("ab") as opened:
            opened.write(json.dumps(line).encode() + b"\n")
            opened.flush()
            os.fsync(opened.fileno())
        self.lines[training.key] = line


def score(line: Line | None, metric: str) -> float:
    """The metric of a finished training; not a number where it diverged or is undefined."""
    value = None if line is None or line["status"] != "finished" else line["metrics"].get(metric)
    return math.nan if value is None else float(value)


def chosen(planned: Planned, cell: StudyCell, lines: Mapping[str, Line]) -> int | None:
    """The best setting of a cell by its mean over the seeds of the choice; None while trainings are missing."""
    if not cell.has_choice:
        return 0
    sign = 1 if higher_is_better(planned.metric) else -1
    scores: dict[int, list[float]] = {}
    for training in planned.choices(cell):
        if training.key not in lines:
            return None
        scores.setdefault(training.candidate, []).append(sign * score(lines[training.key], planned.metric))
    means = {number: statistics.mean(values) for number, values in scores.items()}
    return max(means, key=lambda number: -math.inf if math.isnan(means[number]) else means[number])


@dataclass(frozen=True)
class CellOutcome:
    """A cell of which all trainings are finished.

    candidate  the setting that was chosen
    lines      a finished training for each seed of the results
    judged     the score of every setting of the grid; empty where there was nothing to choose
    """

    cell: StudyCell
    candidate: int
    lines: tuple[Line, ...]
    judged: tuple[tuple[Mapping[str, Any], float], ...]
    metric: str

    @property
    def settings(self) -> Mapping[str, Any]:
        return self.cell.candidates[self.candidate].settings

    @property
    def guarantee(self) -> Guarantee:
        """That of one training, against the first view."""
        return self.cell.candidates[self.candidate].plan.guarantees()[0]

    @property
    def scores(self) -> list[float]:
        """The metric of every seed."""
        return [score(line, self.metric) for line in self.lines]

    @property
    def mean(self) -> float | None:
        """The mean over seeds; None where a training diverged."""
        return None if any(map(math.isnan, self.scores)) else statistics.mean(self.scores)

    @property
    def deviation(self) -> float | None:
        """The standard deviation over seeds."""
        return None if self.mean is None or len(self.scores) < 2 else statistics.stdev(self.scores)


def outcomes(planned: Planned, lines: Mapping[str, Line]) -> list[CellOutcome]:
    """All finished cells."""
    found = []
    for cell in planned.cells:
        best = chosen(planned, cell, lines)
        keys = [] if best is None else [training.key for training in planned.results(cell, best)]
        if best is None or not all(key in lines for key in keys):
            continue
        scored: dict[int, list[float]] = {}
        for training in planned.choices(cell):
            scored.setdefault(training.candidate, []).append(score(lines[training.key], planned.metric))
        judged = tuple((cell.candidates[k].settings, statistics.mean(values)) for k, values in scored.items())
        found.append(CellOutcome(cell, best, tuple(lines[key] for key in keys), judged, planned.metric))
    return found


@dataclass(frozen=True)
class Difference:
    """A contender minus the reference at the same point, seed by seed: mean and interval of the mean, if there are
    two seeds or more."""

    contender: str
    reference: str
    point: Mapping[str, Any]
    values: tuple[float, ...]
    mean: float
    low: float | None
    high: float | None


def differences(found: Sequence[CellOutcome], reference: str) -> list[Difference]:
    """Every other contender against the reference, where both have finished."""
    bases = {_place(one.cell): one for one in found if one.cell.contender == reference}
    listed = []
    for one in found:
        base = bases.get(_place(one.cell))
        if base is None or one is base or one.mean is None or base.mean is None:
            continue
        values = tuple(mine - theirs for mine, theirs in zip(one.scores, base.scores, strict=True))
        listed.append(Difference(one.cell.contender, reference, one.cell.point, values, *interval(values)))
    return listed


def interval(values: Sequence[float]) -> tuple[float, float | None, float | None]:
    """Mean, and its confidence interval by Student's t."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return mean, None, None
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def _place(cell: StudyCell) -> str:
    return repr(dict(cell.point))


# ---- rows


def result_rows(found: Iterable[CellOutcome]) -> list[dict[str, Any]]:
    """A row per training of the results."""
    return [
        {
            "contender": one.cell.contender,
            **{name: shown_value(value) for name, value in one.cell.point.items()},
            "seed": line["seed"],
            "status": line["status"],
            **line["metrics"],
            **epsilons(one),
            **{f"chosen {key}": value for key, value in one.settings.items()},
            "seconds": line["seconds"],
        }
        for one in found
        for line in one.lines
    ]


def epsilons(one: CellOutcome) -> dict[str, Any]:
    """What one training costs: proved, and by the account of the method's paper."""
    guarantee = one.guarantee
    published = guarantee.as_published
    return {
        "proved epsilon": guarantee.epsilon,
        "published epsilon": None if published is None else published.epsilon,
        "at delta": guarantee.delta if guarantee.finite else None,
        "unit": str(guarantee.unit),
        "view": str(guarantee.view),
    }


def cell_rows(found: Iterable[CellOutcome]) -> list[dict[str, Any]]:
    """A row per cell: mean and deviation over seeds, epsilons, chosen settings."""
    return [
        {
            "contender": one.cell.contender,
            "point": {name: shown_value(value) for name, value in one.cell.point.items()},
            "mean": one.mean,
            "deviation": one.deviation,
            "seeds": len(one.lines),
            **epsilons(one),
            "settings": dict(one.settings),
            "judged": [{**settings, one.metric: value} for settings, value in one.judged],
        }
        for one in found
    ]


def shown_value(value: Any) -> Any:
    """A value of an axis in a cell of a table."""
    return value if isinstance(value, str | int | float) else json.dumps(value)
