"""Planning before training: what a plan promises, how large its noise is beside what it hides, and what other numbers
would cost.

Everything here is public and known before any record is read. A sweep solves the same plan for many numbers: the noise
that a target epsilon needs, or the epsilon of a given noise.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from tacit.errors import UserError, nearest
from tacit.exchange.base import PlanPart
from tacit.methods import METHODS, find_method
from tacit.planning.claims import Once, beside, cost
from tacit.planning.experiment import read_experiment
from tacit.planning.plan import Plan, plan
from tacit.privacy import Event, Guarantee, Ledger, LedgerError, Repeated, View, spent
from tacit.privacy.ledger import place
from tacit.privacy.proofs.weight_shifts import shared_slots
from tacit.privacy.statement import rounded_up, sentence

MOST_POINTS = 400

# Short names of the numbers that people sweep most; any other name without a dot is a key of [method].
SHORT = {"rounds": "train.rounds", "delta": "privacy.delta", "epsilon": "method.target_epsilon"}

Content = dict[str, Any]


# -- what a plan says --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NoiseToSignal:
    """The noise on one sum, beside the largest sum that clipping allows.

    multiplier    standard deviation over clip, or over as many clips as the method says
    solved        the multiplier was solved for, not given
    std           standard deviation of the noise on every number of the sum
    place         who adds it
    parameters    how many numbers the sum has; None where the shape of the data is not publicly known
    norm          the noise's typical l2 norm: std times the root of ``parameters``
    units         how many clipped contributions a sum has on average, in words and as a number; None where not public
    largest       the largest norm of their sum: number times clip, if all of them pointed the same way
    """

    multiplier: float
    solved: bool
    clip: float
    std: float
    place: str
    clips: str
    parameters: int | None
    norm: float | None
    units: str | None
    count: float | None
    largest: float | None

    @property
    def origin(self) -> str:
        """Where the standard deviation comes from, in words: for some methods, more than one clip is the measure."""
        times = self.std / (self.multiplier * self.clip) if self.multiplier else 1.0
        more = "" if math.isclose(times, 1.0) else f" x {times:.4g}"
        return f"multiplier x clip ({self.clip:g}){more}"

    @property
    def ratio(self) -> float | None:
        """Noise over signal: the noise's norm over the largest norm of the sum."""
        return self.norm / self.largest if self.norm is not None and self.largest else None

    def as_dict(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)} | {"ratio": self.ratio}


def noise_text(value: float) -> str:
    """A noise multiplier in four digits, rounded up: whoever types it in gets no larger epsilon."""
    return f"{rounded_up(value, 4):.4g}"


@dataclass(frozen=True)
class PaidOnce:
    """What a plan releases once, beside its rounds: its noise over its sensitivity, and the largest epsilon over the
    views that bind, by itself; it is part of the guarantees. ``apart``: about people who are not trained on."""

    mechanism: str
    noise_multiplier: float
    epsilon: float
    apart: bool

    def as_dict(self) -> dict[str, Any]:
        alone = self.epsilon if math.isfinite(self.epsilon) else "inf"
        return {field.name: getattr(self, field.name) for field in fields(self)} | {"epsilon": alone}


@dataclass(frozen=True)
class OverSilos:
    """How many rounds the same noise and epsilon allow where every silo that holds a subject's records adds to the loss
    ([SubjectDP-2], horizontal composition; specification 1.2).

    silos              so many may hold records of one subject
    alone              rounds if one silo held all of them: R
    proved             R / silos, which are the plan's rounds: every round of every silo is a release about the subject,
                       and the same number of releases costs the same
    published          R / sqrt(silos), as theorem 3.10 of [SubjectDP-2] has it: epsilon grows with about the root of
                       the number of releases, but that does not make them fewer
    epsilon            of ``proved`` rounds, the largest over the views that bind
    published_epsilon  what is proved about ``published`` rounds
    """

    silos: int
    alone: int
    proved: int
    published: int
    epsilon: float
    published_epsilon: float

    def as_dict(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def words(self) -> str:
        """The two numbers side by side, and why they differ."""
        return (
            f"One subject may have records in {self.silos} silos. At this noise, epsilon {self.epsilon:.3g} allows one "
            f"silo alone {self.alone:,} rounds; all {self.silos} together {self.proved:,} (R/s, proved), not "
            f"{self.published:,} (R/sqrt(s), [SubjectDP-2]):"
            " each round of each silo is one more release about the subject."
            f" That the loss grows with the root of their number makes them no fewer; {self.published:,} rounds are "
            f"proved to cost {self.published_epsilon:.3g}."
        )


@dataclass(frozen=True)
class Slots:
    """The slots of an exchange in which subjects may share one.

    slots   how many there are
    shared  the expected share of subjects who share theirs with another
    """

    slots: int
    shared: float

    def as_dict(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def words(self) -> str:
        return f"{self.shared:.3g} of the subjects are expected to share one of the {self.slots:,} slots with another."


@dataclass(frozen=True)
class Outlook:
    """A plan in numbers and words: what ``tacit plan`` prints."""

    plan: Plan
    guarantees: tuple[Guarantee, ...]
    promise: str
    noise: NoiseToSignal | None
    budget: float | None
    rounds_within_budget: int | None
    paid: tuple[PaidOnce, ...] = ()
    over_silos: OverSilos | None = None
    network: PlanPart | None = None
    pairs: PlanPart | None = None
    slots: Slots | None = None

    def as_dict(self) -> dict[str, Any]:
        return {
            "title": self.plan.title,
            "method": self.plan.method.name,
            "noise_multiplier": self.plan.noise_multiplier,
            "local_epsilon": self.plan.local_epsilon,
            "guarantees": [guarantee.as_dict() for guarantee in self.guarantees],
            "promise": self.promise,
            "noise": None if self.noise is None else self.noise.as_dict(),
            "rounds_within_budget": self.rounds_within_budget,
            "paid": [paid.as_dict() for paid in self.paid],
            "over_silos": None if self.over_silos is None else self.over_silos.as_dict(),
            "network": None if self.network is None else self.network.as_dict(),
            "pairs": None if self.pairs is None else self.pairs.as_dict(),
            "slots": None if self.slots is None else self.slots.as_dict(),
        }


def outlook(made: Plan) -> Outlook:
    """What a plan promises, at what noise, and how many of its rounds its budget allows."""
    guarantees, parts = made.guarantees(), made.exchange.plan_parts(made.promise)
    bound = [guarantee for guarantee in guarantees if guarantee.view in made.promise.against]
    return Outlook(
        made,
        guarantees,
        sentence((bound or list(guarantees))[0]),
        noise_to_signal(made),
        made.experiment.privacy.budget,
        rounds_within_budget(made),
        paid_once(made),
        over_silos(made),
        parts.get("network"),
        parts.get("pairs"),
        slots(made),
    )


def slots(made: Plan) -> Slots | None:
    """The slots of an exchange in which subjects may share one; None for others."""
    exchange, subjects = made.exchange, made.promise.facts.subjects
    if exchange.index != "slots" or subjects is None:
        return None
    count = exchange.slot_count(subjects)
    return Slots(count, shared_slots(subjects, count))


def paid_once(made: Plan) -> tuple[PaidOnce, ...]:
    """What is released once and paid for."""
    promise = made.promise

    def alone(once: Once) -> float:
        return promise.worst(lambda view: promise.once_event(once, promise.unit, view))

    return tuple(PaidOnce(once.mechanism, once.noise_multiplier, alone(once), once.apart) for once in promise.once)


def over_silos(made: Plan) -> OverSilos | None:
    """What horizontal composition costs a plan; None where a subject's silos do not add up one by one."""
    promise, method = made.promise, made.method
    silos, rounds = promise.facts.silos_of_a_subject, promise.facts.rounds
    if not method.info.sums_up or promise.unit != "subject" or silos == 1:
        return None
    # who sees only the sum of one batch per silo learns a little less, and does not decide
    events = [promise.event(promise.unit, view) for view in promise.against]
    if not any(isinstance(event, Repeated) and event.count == silos for event in events):
        return None
    published = math.floor(rounds * silos / math.sqrt(silos))
    return OverSilos(
        silos,
        alone=rounds * silos,
        proved=rounds,
        published=published,
        epsilon=promise.planned_epsilon(),
        published_epsilon=promise.worst(lambda view: promise.total(view, published)),
    )


def noise_to_signal(made: Plan) -> NoiseToSignal | None:
    """The noise of a plan beside the largest sum that it hides; None for a method without noise."""
    method = made.method
    if method.noise is None:
        return None
    std, bound = method.noise.in_a_round, method.bound
    parameters = None if made.parameters is None else made.parameters * method.copies
    expected = method.contributions
    count = None if expected is None else expected.number
    return NoiseToSignal(
        multiplier=std / bound if made.noise_multiplier is None else made.noise_multiplier,
        solved=made.options.noise_key not in made.experiment.method,
        clip=bound,
        std=std,
        place=method.info.adds,
        clips=method.info.clips,
        parameters=parameters,
        norm=None if parameters is None else std * math.sqrt(parameters),
        units=None if expected is None else expected.words,
        count=count,
        largest=None if count is None else count * bound,
    )


def rounds_within_budget(made: Plan) -> int | None:
    """How many of the planned rounds the budget allows, beside what others have spent of its file; None without one."""
    from tacit.privacy import calibrate_rounds

    privacy, promise = made.experiment.privacy, made.promise
    if privacy.budget is None:
        return None
    lines = _lines(made.path(privacy.budget_file)) if privacy.budget_file is not None else []
    most = promise.facts.rounds
    for view in promise.against:
        before = spent(lines, place(promise.unit, view, promise.relation))

        def after(rounds: int, before: Event = before, view: View = view) -> Event:
            return beside(before, promise.total(view, promise.participations(rounds)))

        if cost(after(1), promise.delta).epsilon > privacy.budget:
            return 0
        if cost(after(most), promise.delta).epsilon > privacy.budget:
            most = calibrate_rounds(after, privacy.budget, promise.delta, most=most)
    return most


def _lines(file: Path) -> list[dict[str, Any]]:
    if not file.is_file():
        return []
    try:
        with Ledger(file) as ledger:
            return ledger.lines
    except LedgerError as error:
        problem = str(error)
        raise UserError("ledger-damaged", "privacy.budget_file", problem, "restore the ledger from a backup") from None


# -- sweeps ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Axis:
    """One number that is swept: as it was written, its key in the experiment file, its values."""

    name: str
    key: str
    values: tuple[float, ...]


@dataclass(frozen=True)
class Point:
    """The plan at one choice of all swept numbers; ``epsilon`` is the largest over the views that bind."""

    values: tuple[float, ...]
    noise_multiplier: float
    std: float
    epsilon: float
    ratio: float | None


@dataclass(frozen=True)
class Sweep:
    """What other numbers would cost.

    solves         ``noise_multiplier`` for a target epsilon, or ``epsilon`` at given noise
    delta, target  None where they are swept themselves
    """

    title: str
    method: str
    unit: str
    against: tuple[str, ...]
    delta: float | None
    axes: tuple[Axis, ...]
    solves: str
    target: float | None
    points: tuple[Point, ...]
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        names = [axis.name for axis in self.axes]
        rows = [
            {
                **dict(zip(names, point.values, strict=True)),
                "noise_multiplier": point.noise_multiplier,
                "standard_deviation": point.std,
                "epsilon": point.epsilon if math.isfinite(point.epsilon) else "inf",
                "noise_to_signal": point.ratio,
            }
            for point in self.points
        ]
        return {
            "title": self.title,
            "method": self.method,
            "solves": self.solves,
            "target": self.target,
            "points": rows,
        }


def axes(texts: Sequence[str], method: str) -> tuple[Axis, ...]:
    """The numbers to sweep, as people write them.

    ``rounds=10,100,1000``        these values
    ``rounds=10:1000``            1-2-5 steps from one to the other: 10, 20, 50, 100, …
    ``rounds=10,100,clip=0.5,1``  two of them at once; several texts do the same
    """
    written: dict[str, list[str]] = {}
    for text in texts:
        name = ""
        for part in text.replace(";", ",").split(","):
            head, equals, value = part.partition("=")
            if equals:
                name, part = head.strip(), value
                if name in written:
                    raise UserError("duplicate", "--sweep", f"'{name}' is swept twice", "give all its values at once")
                written[name] = []
            if not name or not part.strip():
                problem = f"'{text}' has no form name=values"
                raise UserError("malformed", "--sweep", problem, "write for example rounds=10,100,1000")
            written[name].append(part.strip())
    return tuple(Axis(name, _key(name, method), _values(name, parts)) for name, parts in written.items())


def _key(name: str, method: str) -> str:
    if "." in name:
        return name
    known = {field.name for field in fields(find_method(method))}
    if name not in SHORT and name not in known:
        problem = f"'{name}' is no number of {method}"
        raise UserError("unknown-name", "--sweep", problem, nearest(name, {*SHORT, *known}))
    return SHORT.get(name, f"method.{name}")


def _values(name: str, parts: Iterable[str]) -> tuple[float, ...]:
    values: list[float] = []
    for part in parts:
        try:
            ends = [_number(end) for end in part.split(":")]
        except ValueError:
            problem = f"{name}: '{part}' is no number"
            raise UserError("malformed", "--sweep", problem, "write numbers, or from:to") from None
        if len(ends) == 1:
            values += ends
        elif len(ends) == 2 and 0 < ends[0] < ends[1]:
            values += _steps(*ends)
        else:
            problem = f"{name}: '{part}' is no range"
            raise UserError("malformed", "--sweep", problem, "write from:to, both above 0, such as 10:1000")
    return tuple(dict.fromkeys(values))


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return int(value) if value.is_integer() and "." not in text and "e-" not in text.lower() else value


def _steps(low: float, high: float) -> list[float]:
    """1, 2, 5, 10, 20, … between two ends, which are always among them."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    decades = [_number(f"{lead}e{power}" if power < 0 else str(lead * 10**power))
               for power in range(first, last + 1) for lead in (1, 2, 5)]  # fmt: skip
    return [low, *(value for value in decades if low < value < high), high]


def read_content(experiment: Path, changes: Sequence[str] = (), epsilon: float | None = None) -> Content:
    """The experiment as a dictionary, with a target epsilon in place of its noise where one is asked for."""
    content = read_experiment(experiment, changes).model_dump(by_alias=True, exclude_unset=True)
    if epsilon is not None:
        method = dict(content.get("method") or {"name": "fedavg"})
        _refuse_without_noise(str(method.get("name")))
        for key in noise_keys():
            method.pop(key, None)
        content["method"] = method | {"target_epsilon": float(epsilon)}
    return content


def sweep(
    content: Mapping[str, Any],
    texts: Sequence[str],
    folder: Path,
    told: Callable[[int, int], None] = lambda done, total: None,
) -> Sweep:
    """The plan at every combination of the swept numbers; ``told`` hears how many of how many are done."""
    began = time.perf_counter()
    method = str((content.get("method") or {}).get("name"))
    _refuse_without_noise(method)
    chosen = axes(texts, method)
    combinations = list(itertools.product(*(axis.values for axis in chosen)))
    if len(combinations) > MOST_POINTS:
        problem = f"{len(combinations)} combinations are more than {MOST_POINTS}"
        raise UserError("too-many", "--sweep", problem, "give fewer values")
    keys = {axis.key for axis in chosen}
    content = _without_rival(content, keys)
    points: list[Point] = []
    solved = False
    for values in combinations:
        changes = [f"{axis.key}={value!r}" for axis, value in zip(chosen, values, strict=True)]
        made = plan(content, changes, folder)
        noise = noise_to_signal(made)
        assert noise is not None, "methods without noise are refused above"
        solved = noise.solved
        points.append(Point(values, noise.multiplier, noise.std, made.promise.planned_epsilon(), noise.ratio))
        told(len(points), len(combinations))
    return Sweep(
        title=made.title,
        method=method,
        unit=made.promise.unit,
        against=tuple(str(view) for view in made.promise.against),
        delta=None if "privacy.delta" in keys else made.promise.delta,
        axes=chosen,
        solves="noise_multiplier" if solved else "epsilon",
        target=None if "method.target_epsilon" in keys else made.experiment.method.get("target_epsilon"),
        points=tuple(points),
        seconds=time.perf_counter() - began,
    )


def _refuse_without_noise(method: str) -> None:
    if not find_method(method).info.private:
        problem = f"{method} adds no noise: there is nothing to solve for"
        raise UserError("not-private", "method.name", problem, "use a private method")


@lru_cache
def noise_keys() -> frozenset[str]:
    """Keys of [method] that say how much noise there is, in place of a target epsilon."""
    return frozenset(options.noise_key for options in METHODS.values() if options.noise_key is not None)


def _without_rival(content: Mapping[str, Any], keys: set[str]) -> Content:
    """Whoever sweeps the noise does not want the file's target, and the other way round."""
    swept = {key.removeprefix("method.") for key in keys}
    dropped = (noise_keys() if "target_epsilon" in swept else set()) | (
        {"target_epsilon"} if swept & noise_keys() else set()
    )
    method = {key: value for key, value in dict(content.get("method") or {}).items() if key not in dropped}
    return {**content, "method": method}
