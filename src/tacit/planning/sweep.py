"""The same plan for other numbers: the noise that a target epsilon needs, or the epsilon of a given noise."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tacit.errors import UserError, nearest
from tacit.methods import find_method
from tacit.planning.experiment import Experiment, check_noisy, noise_keys
from tacit.planning.plan import plan
from tacit.planning.preview import noise_to_signal

MOST_POINTS = 400

# Short names of the numbers that people sweep most; any other name without a dot is a key of [method].
SHORT = {"rounds": "train.rounds", "delta": "privacy.delta", "epsilon": "method.target_epsilon"}


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


def sweep(
    source: Experiment | Mapping[str, Any],
    texts: Sequence[str],
    folder: Path,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> Sweep:
    """The plan at every combination of the swept numbers; ``report`` gets how many of how many are done."""
    began = time.perf_counter()
    content = source.model_dump(by_alias=True, exclude_unset=True) if isinstance(source, Experiment) else source
    method = str((content.get("method") or {}).get("name"))
    check_noisy(method)
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
        report(len(points), len(combinations))
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


def _without_rival(content: Mapping[str, Any], keys: set[str]) -> dict[str, Any]:
    """The experiment without the target if the noise is swept, and without the noise if the target is."""
    swept = {key.removeprefix("method.") for key in keys}
    dropped = (noise_keys() if "target_epsilon" in swept else set()) | (
        {"target_epsilon"} if swept & noise_keys() else set()
    )
    method = {key: value for key, value in dict(content.get("method") or {}).items() if key not in dropped}
    return {**content, "method": method}
