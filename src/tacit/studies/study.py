"""A study from its file to its page: plan, train, resume, write."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit import notebook
from tacit.engine import Progress, Silence
from tacit.engine.folder import plain_values, write_json
from tacit.engine.run import alone
from tacit.errors import UserError
from tacit.report.page import Html, Page
from tacit.studies.outcomes import (
    CellOutcome,
    Difference,
    Line,
    Log,
    cell_rows,
    chosen,
    differences,
    outcomes,
    result_rows,
    score,
    shown_value,
)
from tacit.studies.study_file import read_study
from tacit.studies.study_page import charts, page
from tacit.studies.study_workers import cores, workers
from tacit.studies.trainings import COMPILING, Planned, StudyTraining, planned, rough_seconds
from tacit.studies.trial import train

if TYPE_CHECKING:
    import pandas as pd

# the files of a study's folder
STUDY, TRAININGS, CSV, JSON, PAGE = "study.toml", "trainings.jsonl", "results.csv", "results.json", "study.html"


class Study:
    """A study file, its plans, and what its finished trainings found."""

    def __init__(
        self,
        file: str | Path,
        out: str | Path | None = None,
        report: Callable[[int, int], None] = lambda done, total: None,
    ) -> None:
        """Plan everything; no record is read. ``out``: the folder of the study, by default one in ``runs/``."""
        self.file = Path(file)
        self.path = Path("runs") / f"study-{self.file.stem}" if out is None else Path(out)
        self.planned: Planned = planned(read_study(self.file), self.file.resolve().parent, report)
        self._lines: dict[str, Line] | None = None
        self.trained = 0  # trainings that this object has run

    @property
    def title(self) -> str:
        """The title of the study."""
        return self.planned.options.title

    @property
    def metric(self) -> str:
        """The metric that is compared."""
        return self.planned.metric

    @property
    def lines(self) -> Mapping[str, Line]:
        """Finished trainings by the hash of their plan."""
        if self._lines is None:
            self._lines = Log(self.path / TRAININGS).lines
        return self._lines

    def run(self, jobs: int | None = None, scheduler: str | None = None, progress: Progress | None = None) -> None:
        """Train what is not finished yet, and write the results; an interruption keeps all finished trainings."""
        jobs = len(cores()) if jobs is None else jobs
        if jobs < 1:
            raise UserError("out-of-range", "--jobs", f"{jobs} is below 1", "give the number of processes")
        self._make_folder()
        with alone(self.path, "--out"):
            log = Log(self.path / TRAININGS)
            self._lines = log.lines
            shutil.copyfile(self.file, self.path / STUDY)
            shown = progress or Silence()
            shown.begin("trainings", len(self.planned.expected), self.finished)
            try:
                if self.missing():
                    with workers(jobs, scheduler) as executor:
                        self._train(executor, log, shown)
            finally:
                shown.end()
                self.write()

    def _make_folder(self) -> None:
        if self.path.exists() and not (self.path / STUDY).is_file() and any(self.path.iterdir()):
            raise UserError("wrong-file", "--out", f"'{self.path}' is no folder of a study", "name another folder")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            problem = f"'{self.path}' cannot be made ({error.strerror})"
            raise UserError("file-access", "--out", problem, "name another folder") from None

    def _train(self, executor: Executor, log: Log, progress: Progress) -> None:
        """Every missing training; the results of a cell begin when its setting is chosen."""
        running: dict[Future[dict[str, Any]], StudyTraining] = {}
        begun: set[str] = set()
        while True:
            for training in self.missing():
                if training.key not in begun:
                    begun.add(training.key)
                    running[executor.submit(train, training.trial)] = training
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                training = running.pop(future)
                log.append(training, future.result(), self._facts(training))
                self.trained += 1
                value = score(log.lines[training.key], self.metric)
                progress.advance(self.finished, {self.metric: value})

    def _facts(self, training: StudyTraining) -> dict[str, Any]:
        """What a line says about its training, in addition to what was found."""
        cell = self._cells[training.cell]
        settings = cell.candidates[training.candidate].settings
        facts = {"contender": cell.contender, "point": dict(cell.point), "settings": dict(settings)}
        made = training.trial.plan
        about = {"role": training.role, "seed": training.seed, "rounds": made.rounds, "tacit": version("tacit")}
        return plain_values({**facts, **about, "time": round(time.time())})

    @cached_property
    def _cells(self) -> dict[int, Any]:
        return {cell.number: cell for cell in self.planned.cells}

    # -- what is done, and what is left

    def missing(self) -> list[StudyTraining]:
        """The trainings that can begin now and are not finished, each once: those that choose first."""
        found: dict[str, StudyTraining] = {}
        for cell in self.planned.cells:
            best = chosen(self.planned, cell, self.lines)
            ready = self.planned.choices(cell) if best is None else self.planned.results(cell, best)
            found |= {training.key: training for training in ready if training.key not in self.lines}
        return sorted(found.values(), key=lambda training: training.role)

    @property
    def finished(self) -> int:
        """How many of the expected trainings are finished."""
        return len(self._everything().keys() & self.lines.keys())

    def _everything(self) -> dict[str, StudyTraining]:
        """All trainings by their key; where a setting is still to be chosen, under the first one."""
        found: dict[str, StudyTraining] = {}
        for cell in self.planned.cells:
            best = chosen(self.planned, cell, self.lines) or 0
            found |= {one.key: one for one in (*self.planned.choices(cell), *self.planned.results(cell, best))}
        return found

    def estimate_seconds(self, jobs: int | None = None) -> float:
        """A rough estimate of the time that is left: from trainings of the same contender that are finished, or from
        the size of the work."""
        timed: dict[str, list[float]] = {}
        for line in self.lines.values():
            timed.setdefault(line["contender"], []).append(line["seconds"] / line["rounds"])
        left, compiling = 0.0, set()
        for key, training in self._everything().items():
            name = self._cells[training.cell].contender
            if key in self.lines:
                continue
            if name in timed:
                left += statistics.median(timed[name]) * training.trial.plan.rounds
            else:
                left += rough_seconds(training)
                compiling.add(name)  # every process compiles for itself
        return COMPILING * len(compiling) + left / max(1, len(cores()) if jobs is None else jobs)

    def status(self, jobs: int | None = None) -> dict[str, Any]:
        """How far the study is, and what is refused; ``minutes_left`` is an estimate."""
        return {
            "title": self.title,
            "metric": self.metric,
            "folder": str(self.path),
            "trainings": len(self.planned.expected),
            "finished": self.finished,
            "minutes_left": round(self.estimate_seconds(jobs) / 60, 1),
            "cells": [
                {"contender": cell.contender, "point": {k: shown_value(v) for k, v in cell.point.items()},
                 "settings": len(cell.candidates), "proved epsilon": cell.candidates[0].plan.guarantees()[0].epsilon}
                for cell in self.planned.cells
            ],
            "refused": [
                {"contender": cell.contender, "point": dict(cell.point), "settings": dict(settings), "reason": reason}
                for cell in (*self.planned.refused, *self.planned.cells)
                for settings, reason in cell.refused
            ],
            "tuning": self.tuning,
        }  # fmt: skip

    @property
    def tuning(self) -> str:
        """How settings were chosen, in the words of ``governance.tuning``; public: on records that need no protection.

        ``not-accounted``: by results on private records, which the printed epsilon does not cover. ``not-stated``: the
        study chooses nothing, and its experiment does not say how its settings were chosen.
        """
        axes = self.planned.options.axes
        varied = [axis.name for axis in axes if axis.settings or axis.key.startswith(("method.", "train.", "model."))]
        if not any(cell.has_choice for cell in self.planned.cells):
            if set(varied) - {"epsilon", "noise_multiplier"}:  # the reader of the results chooses
                return "not-stated"
            return self.planned.cells[0].candidates[0].plan.experiment.governance.tuning or "not-stated"
        return "public" if self.planned.options.choose.records == "public" else "not-accounted"

    # -- results

    def outcomes(self) -> list[CellOutcome]:
        """All finished cells: contender, point, chosen setting, scores of every seed."""
        return outcomes(self.planned, self.lines)

    def differences(self) -> list[Difference]:
        """Every contender minus the reference, seed by seed."""
        options = self.planned.options
        return differences(self.outcomes(), options.reference or options.contenders[0].name)

    def frame(self) -> pd.DataFrame:
        """A row per training of the results: contender, axes, seed, metrics, epsilons, chosen settings."""
        import pandas as pd

        return pd.DataFrame(result_rows(self.outcomes()))

    def plot(self) -> Plot:
        """The plots of the page, for a notebook; ``save`` writes them as a page of their own."""
        return Plot(Page(self.title, "Study", "", charts(self), version=version("tacit")))

    def write(self) -> Path:
        """Write table, JSON and page of all finished cells; return the path of the page."""
        self.frame().to_csv(self.path / CSV, index=False)
        write_json(self.path / JSON, self.as_dict())
        return page(self).save(self.path / PAGE)

    def as_dict(self) -> dict[str, Any]:
        """Status, cells and differences, for JSON."""
        compared = [
            {"contender": d.contender, "reference": d.reference, "point": dict(d.point), "mean": d.mean, "low": d.low,
             "high": d.high, "differences": d.values}
            for d in self.differences()
        ]  # fmt: skip
        found: dict[str, Any] = plain_values(
            {**self.status(), "cells": cell_rows(self.outcomes()), "differences": compared}
        )
        return found


class Plot:
    """Plots that a notebook shows, in a frame of their own."""

    def __init__(self, drawn: Page) -> None:
        self._page = drawn

    def save(self, file: str | Path) -> Path:
        """Write the plots as one HTML file."""
        return self._page.save(Path(file))

    def _repr_html_(self) -> str:
        from html import escape

        shown = escape(self._page.render(), quote=True)
        return Html(f'<iframe srcdoc="{shown}" style="width:100%;height:720px;border:0"></iframe>')


def study(
    file: str | Path,
    *,
    out: str | Path | None = None,
    jobs: int | None = None,
    scheduler: str | None = None,
    progress: Progress | None = None,
) -> Study:
    """Run a study file and return the study: ``frame()``, ``differences()`` and ``plot()`` have its results.

    Finished trainings are kept in the folder ``out`` and never repeated: after an interruption, call it again. ``jobs``
    is the number of processes, by default that of cores; ``scheduler`` the address of a Dask scheduler to use instead.
    """
    found = Study(file, out)
    found.run(jobs, scheduler, progress or notebook.bars())
    return found
