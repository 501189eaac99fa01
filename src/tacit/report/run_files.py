"""Read a run folder.

:class:`RunFiles` holds what may be shared and nothing else: counts of private records that stand in ``result.json`` are
dropped here, except the rounded numbers of test records, which stand next to metrics without noise. ``local.json`` is
read by a function of its own. Numbers that are not finite become ``None``. The ledger is read too: what was released,
in the accountant's terms, is public.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, InstanceOf, ValidationError

from tacit.engine.folder import plain_values
from tacit.errors import UserError
from tacit.privacy import Event, Ledger, LedgerError, spent
from tacit.privacy.terms import epsilon_text

if TYPE_CHECKING:
    from tacit.ledgers.recheck import Checked

PRIVATE_COUNTS = {"records", "test_records", "subjects"}
AUDIT = "audit.json"
UNREADABLE = "the ledger cannot be read"


# ---- values of files that may be of any version: what is missing or of another type is empty


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _metrics(value: Any) -> dict[str, float | None]:
    return {name: _number(item) for name, item in _mapping(value).items() if name not in PRIVATE_COUNTS}


def _counts(value: Any) -> dict[str, int]:
    return {name: int(number) for name, item in _mapping(value).items() if (number := _number(item)) is not None}


def epsilon_of(value: Any) -> float:
    """Infinity for a value that cannot be read."""
    number = _number(value)
    return math.inf if number is None else number


Text = Annotated[str, BeforeValidator(lambda value: str(value or ""))]
Number = Annotated[float | None, BeforeValidator(_number)]
Epsilon = Annotated[float, BeforeValidator(epsilon_of)]
Facts = Annotated[Mapping[str, Any], BeforeValidator(_mapping)]
Metrics = Annotated[Mapping[str, float | None], BeforeValidator(_metrics)]
Silos = Annotated[Mapping[str, Metrics], BeforeValidator(_mapping)]


class _Read(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Evaluated(_Read):
    """The model after one round, on the test set and on each silo's part of it. Round 0 is before training."""

    round: int
    seconds: Number = None
    metrics: Metrics = {}
    silos: Silos = {}
    epsilon: Metrics = {}  # what the rounds so far cost, by view; None where that is infinite


class StatedAsPublished(_Read):
    """What the paper's own accounting would say, and whether that holds: ``yes``, ``only-if`` or ``no``."""

    epsilon: Epsilon = math.inf
    valid: Text = ""
    reason: Text = ""


class StatedGuarantee(_Read):
    """One guarantee. ``epsilon`` is ``math.inf`` if there is none, or if it cannot be read."""

    unit: Text = ""
    view: Text = ""
    epsilon: Epsilon = math.inf
    delta: Number = None
    relation: Text = ""
    sampling: Text = ""
    accountant: Text = ""
    assumptions: Annotated[tuple[Text, ...], BeforeValidator(lambda value: tuple(value or ()))] = ()
    as_published: Annotated[
        StatedAsPublished | None, BeforeValidator(lambda value: value if isinstance(value, dict) else None)
    ] = None
    valid: Text = "yes"  # or "only-if": an assumption is not confirmed
    linkage: Facts = {}  # of a person with two unlinked identifiers; empty in old folders

    @property
    def finite(self) -> bool:
        return math.isfinite(self.epsilon)

    @property
    def linked(self) -> float | None:
        return epsilon_of(self.linkage.get("epsilon")) if self.linkage else None


class StoredScores(_Read):
    """Results of a model, or of models of each silo."""

    metrics: Metrics = {}
    silos: Silos = {}
    over_silos: Metrics = {}  # ranking metrics averaged over silos, weighted by test records; empty in old folders
    curve: tuple[Evaluated, ...] = ()


@dataclass(frozen=True)
class Released:
    """What the ledger says."""

    releases: int = 0
    spent: Mapping[str, Event] = field(default_factory=dict)  # by place
    head: str = ""  # hash of the last line
    problem: str | None = None  # why nothing can be read


class RunFiles(StoredScores):
    """A run, as far as it may be shared."""

    name: Text
    title: Text
    status: Text
    rounds: int = 0
    rounds_planned: int
    method: Facts = {}
    model: Facts = {}
    task: Text = ""
    headline: Text = ""
    higher_is_better: Facts = {}
    guarantees: tuple[InstanceOf[StatedGuarantee], ...] = ()
    noise_multiplier: Number = None
    silo_count: int | None = None
    baselines: Mapping[str, InstanceOf[StoredScores]] = {}
    seconds: Metrics = {}
    environment: Facts = {}
    seed: int | None = None
    evaluation: Facts = {}
    source: Text = ""
    clip: Number = None
    noise_deviation: Number = None
    budget_file: Facts = {}
    released: InstanceOf[Released] = Released()
    audit: Facts = {}
    network: Facts = {}
    date: Text = ""  # when the run ended; empty in old folders
    people: int | None = None  # the declared number of subjects
    data_fingerprint: Text = ""
    plan: str = ""
    warnings: tuple[Text, ...] = ()  # why the model may be useless
    shared: StoredScores | None = None  # the one model for all silos, if silos also have models of their own
    test_records: Annotated[Mapping[str, int], BeforeValidator(_counts)] = {}  # by silo, rounded; 0: fewer than 10
    correction: str = ""  # what a run of an earlier version printed, if that was too little

    @property
    def metric_names(self) -> list[str]:
        """Metrics that have a number somewhere, the headline first."""
        seen = dict.fromkeys([self.headline, *self.metrics, *(name for point in self.curve for name in point.metrics)])
        return [name for name in seen if self.has_number(name)]

    def has_number(self, metric: str) -> bool:
        every = [self.metrics, *(point.metrics for point in self.curve)]
        return any(metrics.get(metric) is not None for metrics in every)

    def better(self, metric: str) -> int:
        """1 where more is better, -1 where less is."""
        return 1 if self.higher_is_better.get(metric, True) else -1

    @property
    def private(self) -> bool:
        """Whether any guarantee is finite."""
        return any(line.finite for line in self.guarantees)

    @property
    def label(self) -> str:
        """The method in a few words."""
        return str(self.method.get("label") or self.method.get("name") or "")

    @property
    def settings(self) -> dict[str, Any]:
        """The experiment file as it was run; empty where it cannot be read."""
        try:
            return tomllib.loads(self.plan)
        except tomllib.TOMLDecodeError:
            return {}

    @property
    def budget(self) -> float | None:
        """The epsilon that the run had to stay within."""
        return _number(_mapping(self.settings.get("privacy")).get("budget"))

    @property
    def from_this_table(self) -> tuple[str, ...]:
        """The settings that were read from the private table, as ``Plan.from_this_table`` gives them."""
        return tuple(_mapping(self.settings.get("data")).get("from_this_table") or ())

    @property
    def governance(self) -> dict[str, Any]:
        """The section ``[governance]`` of the experiment."""
        return _mapping(self.settings.get("governance"))

    @property
    def seen_across_silos(self) -> int | None:
        """The cap on a subject's silos that the simulator kept by looking at the records of all silos together; None
        without one, and in a federation."""
        cap = _mapping(self.settings.get("privacy")).get("max_silos_per_subject")
        simulated = self.evaluation.get("held_out") != "elsewhere"
        return cap if isinstance(cap, int) and simulated and cap < (self.silo_count or 0) else None

    def against(self, view: str) -> StatedGuarantee | None:
        """The finite guarantee against a view."""
        return next((line for line in self.guarantees if line.view == view and line.finite), None)

    @property
    def test_data(self) -> dict[str, Any]:
        """Settings that decide the test records: runs that differ in them cannot be ranked by their metrics."""
        settings = self.settings
        data = {"source": self.source, "window_stride": 1} | _mapping(settings.get("data"))
        evaluation = _mapping(settings.get("evaluation")).get("data", "held-out")
        by_chance = self.evaluation.get("held_out") in ("subjects", "records")
        drawn = data.get("seed", settings.get("seed", 0)) if by_chance else None
        keys = ("source", "path", "label", "task", "classes", "subjects", "silos", "test_fraction", "window_stride")
        return {
            **{f"data.{key}": data.get(key) for key in keys},
            "evaluation.data": evaluation,
            "seed": drawn,
            "silos": self.silo_count,
            "task": self.task,
        }


def read_run(path: Path) -> RunFiles:
    """Everything of a run folder that a shareable page may use."""
    try:
        return _read_run(path)
    except ValidationError as error:
        key = ".".join(map(str, error.errors()[0]["loc"]))
        problem = f"'{path / 'result.json'}' has a malformed value: {key}"
        raise UserError("file-damaged", "run", problem, "restore the file, or run the experiment again") from None


def _read_run(path: Path) -> RunFiles:
    if (path / "plan.toml").is_file() and not (path / "result.json").exists():
        problem = f"'{path}' has no result yet: the run was cut off"
        raise UserError("unfinished", "run", problem, f"finish it with `tacit run … --resume {path}`")
    result = {key: value for key, value in read_object(path / "result.json").items() if value is not None}
    task, data = _mapping(result.get("task")), _mapping(result.get("data"))
    lines, unreadable = read_ledger(path / "ledger.jsonl")
    checked = _true_cost(path, lines)
    baselines = {
        # a name in a JSON file is not a path: it may not lead out of the folder
        name: StoredScores(
            **_mapping(value) | {"curve": _curve(path / "baselines" / Path(name).name / "metrics.jsonl")}
        )
        for name, value in _mapping(result.get("baselines")).items()
    }
    return RunFiles(
        **result
        | {
            "name": Path(str(result.get("run") or path)).name or path.name,
            "title": result.get("title") or path.resolve().name,
            "status": result.get("status") or "finished",
            "rounds_planned": result.get("rounds_planned") or result.get("rounds") or 0,
            "task": task.get("name"),
            "headline": task.get("headline") or next(iter(_metrics(result.get("metrics"))), ""),
            "higher_is_better": task.get("higher_is_better"),
            "guarantees": [_corrected(StatedGuarantee(**line), checked) for line in result.get("guarantees") or ()],
            "correction": _correction(checked),
            "silo_count": data.get("silos"),
            "source": data.get("source"),
            "people": data.get("declared_people"),
            "data_fingerprint": data.get("fingerprint"),
            "baselines": {name: scores for name, scores in baselines.items() if _any_number(scores)},
            "curve": _curve(path / "metrics.jsonl", epsilons=checked is None),
            "seconds": {key: value for key, value in _mapping(result.get("seconds")).items() if value is not None},
            "released": _released(lines, unreadable, events=checked is None),
            "audit": read_object(path / AUDIT) if (path / AUDIT).is_file() else {},
            "plan": _read_text(path / "plan.toml"),
            "shared": _mapping(result.get("shared")) or None,
        }
    )


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object of a file, with every number that is not finite replaced: infinity by ``"inf"``, NaN by None."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except OSError:
        problem = f"'{file.parent}' has no readable {file.name}"
        raise UserError("wrong-file", "run", problem, "give a folder of `tacit run`") from None
    except ValueError as error:
        problem = f"'{file}' is not valid JSON ({error})"
        raise UserError("file-damaged", "run", problem, "run the experiment again") from None
    if not isinstance(value, dict):
        raise UserError("file-damaged", "run", f"'{file}' does not hold an object", "run the experiment again")
    return _mapping(plain_values(value))


def _read_text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""


def _true_cost(path: Path, lines: Sequence[Mapping[str, Any]]) -> Checked | None:
    """What a run with lines of the first accounting cost; None for a later run, and if it printed no less."""
    if not (path / "plan.toml").is_file() or all(line.get("accounting", 1) > 1 for line in lines):
        return None
    from tacit.ledgers.recheck import check

    try:
        *_, found = check([path])[0]
        return found if found.status != "ok" else None
    except (UserError, OSError, KeyError, ValueError, TypeError, AttributeError):
        return None  # the page then says that the ledger does not confirm the run


def _corrected(line: StatedGuarantee, checked: Checked | None) -> StatedGuarantee:
    found = checked.epsilon.get(line.view) if checked is not None else None
    if found is None or found.corrected is None or found.corrected <= line.epsilon:
        return line
    infinite = math.isinf(found.corrected)
    reason = ("nothing is proved about this version (TACIT-2026-01)",) if infinite else ()
    changes = {"epsilon": found.corrected, "assumptions": (*reason, *line.assumptions), "linkage": {}}
    return line.model_copy(update=changes)


def _correction(checked: Checked | None) -> str:
    if checked is None:
        return ""
    if checked.status == "not recomputed":
        return f"Its true cost could not be recomputed: {checked.reason}."
    known = checked.epsilon.items()
    higher = {view: each for view, each in known if each.corrected is not None and each.corrected > each.recorded}
    each = [f"{view}: {epsilon_text(costs.recorded)}" for view, costs in higher.items()]
    return f"It printed too small values ({', '.join(each)}). This page shows what is proved today."


def _any_number(scores: StoredScores) -> bool:
    return any(value is not None for table in (scores.metrics, *scores.silos.values()) for value in table.values())


def read_ledger(file: Path) -> tuple[list[dict[str, Any]], str | None]:
    """The lines of the ledger, its chain checked, and why there are none. A ledger that was altered or cannot be read
    confirms nothing."""
    if not file.is_file():
        return [], None
    try:
        with Ledger(file) as ledger:
            return ledger.lines, None
    except LedgerError as error:
        return [], str(error)
    except (OSError, KeyError, ValueError, TypeError, AttributeError):
        return [], UNREADABLE


def _released(lines: Sequence[Mapping[str, Any]], problem: str | None, events: bool) -> Released:
    """With or without the events of the lines."""
    try:
        places = dict.fromkeys(place for line in lines for place in line["events"])
        totals = {place: spent(lines, place) for place in places} if events else {}
        return Released(len(lines), totals, str(lines[-1]["hash"]) if lines else "", problem)
    except (KeyError, ValueError, TypeError, AttributeError):
        return Released(problem=UNREADABLE)


def _curve(file: Path, epsilons: bool = True) -> tuple[Evaluated, ...]:
    """Evaluated rounds in order, with or without what each is said to have cost. A resumed run may write a round twice
    (the later line counts), a killed one may leave half a line (skipped)."""
    rounds: dict[int, Evaluated] = {}
    for line in _read_text(file).splitlines():
        try:
            point = Evaluated(**plain_values(json.loads(line)) | ({} if epsilons else {"epsilon": {}}))
        except (ValueError, TypeError):
            continue
        rounds[point.round] = point
    return tuple(rounds[number] for number in sorted(rounds))
