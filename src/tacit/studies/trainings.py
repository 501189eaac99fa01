"""All trainings of a study, planned before any work: what each costs, and what is refused."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tacit.data import source_facts
from tacit.errors import TacitError, UserError, in_file, nearest
from tacit.federation.protocol.agreement import mark
from tacit.methods import find_method
from tacit.planning.experiment import Experiment, noise_keys
from tacit.planning.plan import Plan, plan
from tacit.planning.settings import read_toml
from tacit.studies.study_file import BASE, AxisOptions, ContenderOptions, StudyOptions, merged, put, without
from tacit.studies.trial import HeldOut, StudyTrial

# A contender that cannot have what is asked for is a result of a study; any other error is a mistake in its file.
REFUSALS = {"unreachable", "not-supported", "no-guarantee", "budget-exhausted"}
# seconds to compile a method, and operations a second of one process: rough, until trainings have been timed
COMPILING, OPERATIONS, UNKNOWN_RECORDS = 8.0, 2e9, 10_000


@dataclass(frozen=True)
class StudyTraining:
    """One training: a trial, and the setting of a contender's grid that it is about."""

    trial: StudyTrial
    cell: int
    candidate: int

    @property
    def role(self) -> str:
        return "result" if self.trial.held_out is None else "choice"

    @property
    def seed(self) -> int:
        return self.trial.plan.experiment.seed or 0

    @cached_property
    def key(self) -> str:
        """A hash of the plan and of what a study does with it. A table that was written again gives another."""
        made = self.trial.plan
        files = [made.data.path, made.experiment.evaluation.data]
        content = {
            "plan": mark(made),
            "files": [_state(made.path(name)) for name in files if name not in (None, "held-out", "none")],
            "held_out": None if self.trial.held_out is None else asdict(self.trial.held_out),
            "subjects": self.trial.subjects,
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def _state(path: Path) -> list[Any]:
    return [str(path), *((path.stat().st_size, path.stat().st_mtime_ns) if path.is_file() else ())]


@dataclass(frozen=True)
class Candidate:
    """A setting of a grid: its plan, and the plan under which it is judged."""

    settings: Mapping[str, Any]
    plan: Plan
    judged: Plan


@dataclass(frozen=True)
class StudyCell:
    """A contender at a point of the axes. ``refused``: settings of the grid that cannot be planned, with the reason."""

    number: int
    contender: str
    point: Mapping[str, Any]
    candidates: tuple[Candidate, ...] = ()
    refused: tuple[tuple[Mapping[str, Any], str], ...] = ()

    @property
    def has_choice(self) -> bool:
        return len(self.candidates) > 1


@dataclass(frozen=True)
class Planned:
    """A study before any work: its cells, and the metric that is compared."""

    options: StudyOptions
    folder: Path
    cells: tuple[StudyCell, ...]
    metric: str
    refused: tuple[StudyCell, ...] = field(default=())

    def choices(self, cell: StudyCell) -> list[StudyTraining]:
        """The trainings that choose a cell's setting; none where there is one setting."""
        choose = self.options.choose
        plans = enumerate(candidate.judged for candidate in cell.candidates if cell.has_choice)
        return self._trainings(cell, list(plans), choose.seeds, HeldOut(choose.share, choose.unit))

    def results(self, cell: StudyCell, candidate: int) -> list[StudyTraining]:
        """The trainings of a cell under one setting."""
        return self._trainings(cell, [(candidate, cell.candidates[candidate].plan)], self.options.seeds, None)

    def _trainings(
        self, cell: StudyCell, plans: list[tuple[int, Plan]], seeds: Sequence[int], held_out: HeldOut | None
    ) -> list[StudyTraining]:
        """A training for every plan and seed; made once, because their keys take time."""
        place = (cell.number, held_out is None, *(number for number, _ in plans))
        if place not in self._made:
            self._made[place] = [
                StudyTraining(StudyTrial(_seeded(made, seed), held_out, self.options.subjects), cell.number, number)
                for number, made in plans
                for seed in seeds
            ]
        return self._made[place]

    @cached_property
    def _made(self) -> dict[tuple[int, ...], list[StudyTraining]]:
        return {}

    @cached_property
    def expected(self) -> list[StudyTraining]:
        """All trainings, each once; where a setting is still to be chosen, under the first one."""
        everything = (t for cell in self.cells for t in (*self.choices(cell), *self.results(cell, 0)))
        return list({training.key: training for training in everything}.values())


def _seeded(made: Plan, seed: int) -> Plan:
    return replace(made, experiment=made.experiment.model_copy(update={"seed": seed}))


def planned(
    options: StudyOptions, folder: Path, report: Callable[[int, int], None] = lambda done, total: None
) -> Planned:
    """Every plan of a study; ``report`` gets how many of how many cells are planned.

    A cell that cannot be planned is listed as refused if its method cannot have what is asked for. Any other error, and
    a study without a single cell that can run, raises.
    """
    _check_axes(options)
    points = [dict(zip((axis.name for axis in options.axes), values, strict=True))
              for values in itertools.product(*(axis.points for axis in options.axes))]  # fmt: skip
    found: list[StudyCell] = []
    for contender, point in itertools.product(options.contenders, points):
        found.append(_cell(len(found), options, contender, point, folder))
        report(len(found), len(points) * len(options.contenders))
    running = tuple(cell for cell in found if cell.candidates)
    if not running:
        raise UserError("not-supported", "contenders", f"none can be trained: {found[0].refused[0][1]}", "change them")
    metric = options.metric or running[0].candidates[0].plan.headline
    for cell in running:
        _check(options, cell, metric)
    return Planned(options, folder, running, metric, tuple(cell for cell in found if not cell.candidates))


def _base(options: StudyOptions, folder: Path, point: Mapping[str, Any]) -> tuple[dict[str, Any], Path]:
    """The content of the base experiment at a point, and where its relative paths start."""
    given = point.get(BASE, options.experiment)
    if isinstance(given, dict):
        return given, folder
    file = folder / str(given)
    return read_toml(file, BASE), file.resolve().parent


def _cell(
    number: int,
    options: StudyOptions,
    contender: ContenderOptions,
    point: Mapping[str, Any],
    folder: Path,
) -> StudyCell:
    """A contender at one point, with every setting of its grid."""
    candidates, refused = [], []
    for settings in _grid(contender):
        try:
            with in_file(f"contender '{contender.name}'"):
                made = _plan(options, contender, point, settings, folder)
                elsewhere = {**point, **options.choose.at}
                judged = made if elsewhere == point else _plan(options, contender, elsewhere, settings, folder)
        except TacitError as error:
            if error.code not in REFUSALS:
                raise
            refused.append((settings, str(error)))
        else:
            candidates.append(Candidate(settings, made, judged))
    return StudyCell(number, contender.name, point, tuple(candidates), tuple(refused))


def _grid(contender: ContenderOptions) -> Iterator[dict[str, Any]]:
    for values in itertools.product(*contender.choices.values()):
        yield dict(zip(contender.choices, values, strict=True))


def _plan(
    options: StudyOptions,
    contender: ContenderOptions,
    point: Mapping[str, Any],
    settings: Mapping[str, Any],
    folder: Path,
) -> Plan:
    """The plan of a contender at a point under one setting of its grid: later settings replace earlier ones."""
    base, home = _base(options, folder, point)
    content = {**base, "method": contender.method, "seed": options.seeds[0]}
    if contender.model is not None:
        content["model"] = contender.model
    for axis in options.axes:
        content = _moved(content, axis, point[axis.name])
    for key in contender.remove:
        content = without(content, key)
    content = merged(content, contender.settings)
    for key, value in settings.items():
        content = put(content, key, value)
    return plan(content, folder=home)


def _moved(content: dict[str, Any], axis: AxisOptions, value: Any) -> dict[str, Any]:
    """The experiment at a value of an axis; unchanged where its method has no such key."""
    if axis.settings:
        return merged(content, axis.settings[value])
    if axis.name == BASE:
        return content
    if axis.key.startswith("method."):
        if not _takes(content["method"], axis.key):
            return content
        name = axis.key.removeprefix("method.")
        rivals = noise_keys() if name == "target_epsilon" else {"target_epsilon"} if name in noise_keys() else ()
        content = {**content, "method": {key: old for key, old in content["method"].items() if key not in rivals}}
    return put(content, axis.key, value)


def _takes(method: Mapping[str, Any], key: str) -> bool:
    """Whether a method has the key of an axis; a target epsilon is one of private methods alone."""
    kind = find_method(str(method.get("name")))
    known = {one.name for one in fields(kind)}
    return key.removeprefix("method.") in known and (key != "method.target_epsilon" or kind.info.private)


def _check_axes(options: StudyOptions) -> None:
    """Refuse an axis of a key that no contender has: it would change nothing."""
    for axis in options.axes:
        if axis.settings or not axis.key.startswith("method."):
            continue
        if not any(_takes(contender.method, axis.key) for contender in options.contenders):
            known = {one.name for contender in options.contenders
                     for one in fields(find_method(str(contender.method.get("name"))))}  # fmt: skip
            raise UserError("unknown-key", f"axes.{axis.name}", "no contender has this key", nearest(axis.name, known))


def _check(options: StudyOptions, cell: StudyCell, metric: str) -> None:
    """Refuse what a study cannot count or must not look at."""
    for candidate in cell.candidates:
        for made in (candidate.plan, candidate.judged):
            _check_releases(made.experiment)
    known = cell.candidates[0].plan.metric_names
    if metric not in known:
        raise UserError("unknown-name", "metric", f"'{metric}' is not a metric of this task", nearest(metric, known))
    if cell.has_choice:
        _check_choice(options, cell)


def _check_releases(experiment: Experiment) -> None:
    """Refuse what needs a ledger, and an experiment without held-out records."""
    if experiment.privacy.budget_file is not None:
        problem = "a study trains many times and keeps no ledger, so no budget can be counted"
        raise UserError("conflict", "privacy.budget_file", problem, "remove it from the experiment of the study")
    statuses = {"evaluation.status": experiment.evaluation.status, "data.standardize": experiment.data.standardize}
    for name, value in statuses.items():
        if value == "paid":
            problem = "'private' releases with noise, which a study has no ledger for"
            raise UserError("not-supported", name, problem, "use another value in the experiment of the study")
    if experiment.evaluation.data == "none":
        raise UserError("conflict", "evaluation.data", "'none' leaves nothing to compare", "hold records out")


def _check_choice(options: StudyOptions, cell: StudyCell) -> None:
    """Refuse a choice of settings that would see the people of the results."""
    for candidate in cell.candidates:
        for made in (candidate.plan, candidate.judged):
            tested = made.experiment.evaluation.data
            if tested == "held-out" and made.data.seed is None and not source_facts(made.data).own_test:
                problem = "is missing: each seed would hold out other people, and the choice would see those of results"
                raise UserError("missing", "data.seed", problem, "add data.seed = 0 to the experiment of the study")
        fixed = made.data == candidate.plan.data or source_facts(made.data).own_test
        if not fixed:
            problem = "an axis that changes [data] stays at one value, and other people may be held out there"
            raise UserError("conflict", "choose.at", problem, "leave that axis out of choose.at")


# ---- what it takes


def rough_seconds(training: StudyTraining) -> float:
    """A rough estimate of one training, without compiling: from the number of rounds, records and parameters."""
    made = training.trial.plan
    records = (made.promise.facts.records or UNKNOWN_RECORDS) * training.trial.subjects
    epochs = getattr(made.options, "local_epochs", None) or 1
    return 0.2 + made.rounds * (0.005 + 6.0 * records * epochs * (made.parameters or 1000) / OPERATIONS)
