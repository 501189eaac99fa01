"""Read a run folder.

:class:`RunFiles` holds what may be shared and nothing else: counts of private records that stand in ``result.json`` are
dropped here, and ``local.json`` is read by a function of its own. Numbers that are not finite become ``None``. The
ledger is read too: what was released, in the accountant's terms, is public.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit.errors import UserError
from tacit.privacy import Event, Ledger, LedgerError, spent
from tacit.privacy.statement import epsilon_text

if TYPE_CHECKING:
    from tacit.ledgers.recheck import Checked

Metrics = Mapping[str, float | None]
PRIVATE_COUNTS = {"records", "test_records", "subjects"}
AUDIT = "audit.json"


@dataclass(frozen=True)
class Evaluated:
    """The model after one round, on the test set and on each silo's part of it. Round 0 is before training.

    epsilon  what the rounds so far cost, by view; None where that is infinite
    """

    round: int
    seconds: float | None
    metrics: Metrics
    silos: Mapping[str, Metrics]
    epsilon: Metrics = field(default_factory=dict)


@dataclass(frozen=True)
class StatedAsPublished:
    """What the paper's own accounting would say, and whether that holds: ``yes``, ``only-if`` or ``no``."""

    epsilon: float
    valid: str
    reason: str


@dataclass(frozen=True)
class StatedGuarantee:
    """One guarantee. ``epsilon`` is ``math.inf`` if there is none."""

    unit: str
    view: str
    epsilon: float
    delta: float | None
    relation: str = ""
    sampling: str = ""
    accountant: str = ""
    assumptions: tuple[str, ...] = ()
    as_published: StatedAsPublished | None = None
    linked: float | None = None  # epsilon of a person with two unlinked identifiers; None in old folders

    @property
    def finite(self) -> bool:
        return math.isfinite(self.epsilon)


@dataclass(frozen=True)
class Baseline:
    """Results on the same data without a federation.

    over_silos  ranking metrics averaged over silos, each weighted by its test records; empty in old folders
    """

    metrics: Metrics
    silos: Mapping[str, Metrics]
    over_silos: Metrics = field(default_factory=dict)
    curve: tuple[Evaluated, ...] = ()


@dataclass(frozen=True)
class Released:
    """What the ledger says: how many ``releases``, what they ``spent`` by place, the hash of the last line
    (``head``), or why nothing can be read (``problem``)."""

    releases: int = 0
    spent: Mapping[str, Event] = field(default_factory=dict)
    head: str = ""
    problem: str | None = None


@dataclass(frozen=True)
class RunFiles:
    """A run, as far as it may be shared."""

    name: str
    title: str
    status: str
    rounds: int
    rounds_planned: int
    method: Mapping[str, Any]
    model: Mapping[str, Any]
    task: str
    headline: str
    higher_is_better: Mapping[str, bool]
    guarantees: tuple[StatedGuarantee, ...]
    noise_multiplier: float | None
    metrics: Metrics
    silos: Mapping[str, Metrics]
    silo_count: int | None
    baselines: Mapping[str, Baseline]
    curve: tuple[Evaluated, ...]
    seconds: Mapping[str, float]
    environment: Mapping[str, Any]
    seed: int | None
    evaluation: Mapping[str, Any]
    source: str
    over_silos: Metrics = field(default_factory=dict)
    clip: float | None = None
    noise_deviation: float | None = None
    budget_file: Mapping[str, Any] = field(default_factory=dict)
    released: Released = Released()
    audit: Mapping[str, Any] = field(repr=False, default_factory=dict)
    network: Mapping[str, Any] = field(repr=False, default_factory=dict)
    plan: str = field(repr=False, default="")
    shared: Baseline | None = None  # the one model for all silos, if silos also have models of their own
    correction: str = ""  # what a run of an earlier version printed, if that was too little

    @property
    def metric_names(self) -> list[str]:
        """Metrics that have a number somewhere, the headline first."""
        seen = dict.fromkeys([self.headline, *self.metrics, *(name for point in self.curve for name in point.metrics)])
        return [name for name in seen if self.has_number(name)]

    def has_number(self, metric: str) -> bool:
        return self.metrics.get(metric) is not None or any(p.metrics.get(metric) is not None for p in self.curve)

    def better(self, metric: str) -> int:
        """1 where more is better, -1 where less is."""
        return 1 if self.higher_is_better.get(metric, True) else -1

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
    if (path / "plan.toml").is_file() and not (path / "result.json").exists():
        problem = f"'{path}' has no result yet: the run was cut off"
        raise UserError("unfinished", "run", problem, f"finish it with `tacit run … --resume {path}`")
    result = _clean(_read_json(path / "result.json"))
    task = _mapping(result.get("task"))
    metrics = _metrics(result.get("metrics"))
    data = _mapping(result.get("data"))
    checked = _checked(path)
    return RunFiles(
        name=Path(str(result.get("run") or path)).name or path.name,
        title=str(result.get("title") or path.resolve().name),
        status=str(result.get("status") or "finished"),
        rounds=int(result.get("rounds") or 0),
        rounds_planned=int(result.get("rounds_planned") or result.get("rounds") or 0),
        method=_mapping(result.get("method")),
        model=_mapping(result.get("model")),
        task=str(task.get("name") or ""),
        headline=str(task.get("headline") or next(iter(metrics), "")),
        higher_is_better=_mapping(task.get("higher_is_better")),
        guarantees=tuple(_corrected(_guarantee(line), checked) for line in result.get("guarantees") or ()),
        correction=_correction(checked),
        noise_multiplier=_number(result.get("noise_multiplier")),
        metrics=metrics,
        silos=_silos(result.get("silos")),
        silo_count=data.get("silos"),
        baselines=_baselines(path, _mapping(result.get("baselines"))),
        curve=_curve(path / "metrics.jsonl", epsilons=checked is None),
        seconds={k: v for k, v in _mapping(result.get("seconds")).items() if v is not None},
        environment=_mapping(result.get("environment")),
        seed=result.get("seed"),
        evaluation=_mapping(result.get("evaluation")),
        source=str(data.get("source") or ""),
        over_silos=_metrics(result.get("over_silos")),
        clip=_number(result.get("clip")),
        noise_deviation=_number(result.get("noise_deviation")),
        budget_file=_mapping(result.get("budget_file")),
        released=_released(path / "ledger.jsonl", events=checked is None),
        audit=read_audit(path) if (path / AUDIT).is_file() else {},
        network=_mapping(result.get("network")),
        plan=_read_text(path / "plan.toml"),
        shared=_shared(result.get("shared")),
    )


def read_audit(path: Path) -> dict[str, Any]:
    """What ``tacit audit`` wrote into a folder."""
    return _clean(_read_json(path / AUDIT))


def read_local(path: Path) -> dict[str, Any] | None:
    """The exact numbers of the private data, where the run folder has them. For ``local.html`` only."""
    file = path / "local.json"
    return _clean(_read_json(file)) if file.exists() else None


def _read_json(file: Path) -> dict[str, Any]:
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
    return value


def _read_text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""


def _clean(value: Any) -> Any:
    """The same value with every number that is not finite replaced: infinity by ``"inf"``, NaN by ``None``."""
    if isinstance(value, float) and not math.isfinite(value):
        return "inf" if value == math.inf else None
    if isinstance(value, dict):
        return {key: _clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return value


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _metrics(value: Any) -> dict[str, float | None]:
    return {name: _number(item) for name, item in _mapping(value).items() if name not in PRIVATE_COUNTS}


def _silos(value: Any) -> dict[str, dict[str, float | None]]:
    return {name: _metrics(metrics) for name, metrics in _mapping(value).items()}


def _guarantee(line: dict[str, Any]) -> StatedGuarantee:
    published, linkage = line.get("as_published"), line.get("linkage")
    return StatedGuarantee(
        unit=str(line.get("unit") or ""),
        view=str(line.get("view") or ""),
        epsilon=_epsilon(line.get("epsilon")),
        delta=_number(line.get("delta")),
        relation=str(line.get("relation") or ""),
        sampling=str(line.get("sampling") or ""),
        accountant=str(line.get("accountant") or ""),
        assumptions=tuple(str(item) for item in line.get("assumptions") or ()),
        as_published=StatedAsPublished(
            _epsilon(published.get("epsilon")), str(published.get("valid") or ""), str(published.get("reason") or "")
        )
        if isinstance(published, dict)
        else None,
        linked=_epsilon(linkage.get("epsilon")) if isinstance(linkage, dict) else None,
    )


def _checked(path: Path) -> Checked | None:
    """The true cost of a run of the first accounting; None for a later run, or if its ledger cannot be read."""
    from tacit.ledgers.recheck import corrected

    try:
        return corrected(path)
    except (UserError, OSError, KeyError, ValueError, TypeError, AttributeError):
        return None  # the page then says that the ledger does not confirm the run


def _corrected(line: StatedGuarantee, checked: Checked | None) -> StatedGuarantee:
    found = (checked.epsilon or {}).get(line.view) if checked is not None else None
    if found is None or found.corrected is None or found.corrected <= line.epsilon:
        return line
    infinite = math.isinf(found.corrected)
    reason = ("nothing is proved about this version (TACIT-2026-01)",) if infinite else ()
    return replace(line, epsilon=found.corrected, assumptions=(*reason, *line.assumptions), linked=None)


def _correction(checked: Checked | None) -> str:
    if checked is None:
        return ""
    if checked.status == "not recomputed":
        return f"Its true cost could not be recomputed: {checked.reason}."
    known = (checked.epsilon or {}).items()
    higher = {view: each for view, each in known if each.corrected is not None and each.corrected > each.recorded}
    each = [f"{view}: {epsilon_text(costs.recorded)}" for view, costs in higher.items()]
    return f"It printed too small values ({', '.join(each)}). This page shows what is proved today."


def _epsilon(value: Any) -> float:
    """Infinity for a value that cannot be read."""
    number = _number(value)
    return math.inf if number is None else number


def _baselines(path: Path, final: dict[str, Any]) -> dict[str, Baseline]:
    """Baselines that have at least one number."""
    found = {
        name: Baseline(
            _metrics(_mapping(value).get("metrics")),
            _silos(_mapping(value).get("silos")),
            _metrics(_mapping(value).get("over_silos")),
            # a name in a JSON file is not a path: it may not lead out of the folder
            _curve(path / "baselines" / Path(name).name / "metrics.jsonl"),
        )
        for name, value in final.items()
    }
    return {name: baseline for name, baseline in found.items() if _any_number(baseline)}


def _shared(value: Any) -> Baseline | None:
    scores = _mapping(value)
    if not scores:
        return None
    return Baseline(_metrics(scores.get("metrics")), _silos(scores.get("silos")), _metrics(scores.get("over_silos")))


def _any_number(baseline: Baseline) -> bool:
    return any(value is not None for table in (baseline.metrics, *baseline.silos.values()) for value in table.values())


def _released(file: Path, events: bool) -> Released:
    """The ledger, its chain checked, with or without its events. A ledger that was altered or cannot be read confirms
    nothing."""
    if not file.is_file():
        return Released()
    try:
        with Ledger(file) as ledger:
            lines = ledger.lines
        places = dict.fromkeys(place for line in lines for place in line["events"])
        totals = {place: spent(lines, place) for place in places} if events else {}
        return Released(len(lines), totals, str(lines[-1]["hash"]) if lines else "")
    except LedgerError as error:
        return Released(problem=str(error))
    except (OSError, KeyError, ValueError, TypeError, AttributeError):
        return Released(problem="the ledger cannot be read")


def _curve(file: Path, epsilons: bool = True) -> tuple[Evaluated, ...]:
    """Evaluated rounds in order, with or without what each is said to have cost. A resumed run may write a round twice
    (the later line counts), a killed one may leave half a line (skipped)."""
    rounds: dict[int, Evaluated] = {}
    for line in _read_text(file).splitlines():
        try:
            entry = _clean(json.loads(line))
            rounds[int(entry["round"])] = Evaluated(
                int(entry["round"]),
                _number(entry.get("seconds")),
                _metrics(entry.get("metrics")),
                _silos(entry.get("silos")),
                {view: _number(value) for view, value in _mapping(entry.get("epsilon")).items()} if epsilons else {},
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return tuple(rounds[number] for number in sorted(rounds))
