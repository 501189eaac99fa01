"""The experiment file that ``tacit init`` writes from a look at a table.

Everything that a file needs and only the table knows (counts, categories, classes, caps) is named in
``data.from_this_table``, so that each guarantee says that it depends on it. Constants for standardising are private
ones, unless the data holder asks for proposals to confirm.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tacit.data.look import MOST_CATEGORIES, ColumnLook, look
from tacit.data.table import Table, TextFormat, gaps, numbers_in, texts
from tacit.errors import UserError

# of a weighted exchange: what setup sends to a silo stays below the limit of the exchange
MOST_SLOTS = 16_000
_COMMENTS = {
    "method.weights": "every person has the same weight, in however many silos",
    "exchange.encrypted": "the simulator has all records anyway; remove it for a federation",
    "privacy.max_silos_per_subject": "a promise about the data, which a run checks",
}
CONFIRM = "confirm: must not come from private data"
# numbers that people write down: the first digits of a count that is rounded up
_ROUND = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
# the second class of a binary label, where one of its names is among these
_POSITIVE = {"1", "yes", "y", "true", "t", "positive", "pos", "case", "dead", "died", "ja", "si", "oui"}


def recipe(kind: str, epsilon: float, people: int, spread: Spread) -> dict[str, dict[str, Any]]:
    """How a model for a ``kind`` of label is learned: the sections other than [data]. Left out: what has a default.

    In a masked sum, a subject with records in k of at most m silos has the weight k / m, whatever the silos hold.
    Record weights give every subject the weight 1 and each of its records the same part; they cost about twice the
    noise, and who shares a slot shares its weight. They are better up to a mean k / m of .74 (docs/results.md). Setup
    of such weights sends 0.24 MB for each slot to each silo, and is not proposed for many people.
    """
    slots = 2 * people
    made: dict[str, dict[str, Any]] = {
        "model": {"name": "linear" if kind == "real" else "logistic"},
        "method": {"name": "subject-sgd", "target_epsilon": float(epsilon)},
        "privacy": {} if people < 100_000 else {"delta": 10.0 ** -math.ceil(math.log10(people) + 1e-9)},
        "exchange": {"name": "masked"},
    }
    if spread.typical / spread.most < 0.8 and slots <= MOST_SLOTS:
        made["method"]["weights"] = "records"
        made["exchange"] = {"name": "weighted", "slots": slots, "encrypted": False}
    elif spread.most < spread.silos:
        made["privacy"] |= {"max_silos_per_subject": spread.most, "over_silo_cap": "refuse"}
    return made


class Spread(NamedTuple):
    """How subjects are spread over silos: the number of silos, the most of one subject, and the mean over subjects."""

    silos: int
    most: int
    typical: float


@dataclass(frozen=True)
class Wanted:
    """What the data holder says: the columns with a role, epsilon, and suspects to use all the same.

    constants   propose constants from the table in place of private ones
    public      the counts and categories are public knowledge: not marked as read from the table
    """

    label: str
    subject: str | None
    silo: str
    epsilon: float = 4.0
    keep: tuple[str, ...] = ()
    constants: bool = False
    public: bool = False


@dataclass(frozen=True)
class Template:
    """An experiment file: its text, and what it says."""

    text: str
    columns: tuple[ColumnLook, ...]
    features: tuple[str, ...]
    left_out: Mapping[str, str]
    from_this_table: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        return {
            "columns": [column.as_dict() for column in self.columns],
            "features": list(self.features),
            "left_out": dict(self.left_out),
            "from_this_table": list(self.from_this_table),
        }


def template(table: Table, path: Path, folder: Path, text: TextFormat, wanted: Wanted) -> Template:
    """The file for a table at ``path``, to be written into ``folder``."""
    columns = look(table, wanted.label, wanted.subject, wanted.silo)
    known = {column.name: column for column in columns}
    _check(wanted, known)
    roles = {wanted.label, wanted.subject, wanted.silo}
    left_out = {c.name: c.suspect for c in columns if c.suspect and c.name not in wanted.keep and c.name not in roles}
    used = [column for column in columns if column.name not in roles and column.name not in left_out]
    numeric = [column for column in used if column.kind in ("number", "date")]
    categorical = [column for column in used if column.kind == "category"]
    if not numeric and not categorical:
        problem = f"every column of '{path.name}' is left out"
        raise UserError("empty", "TABLE", problem, "name columns to use all the same: --keep COLUMN")
    data = _data(table, path, folder, text, wanted, known)
    lines: dict[str, dict[str, tuple[Any, str]]] = {"data": data, "data.numeric": {}, "data.categorical": {}}
    for column in numeric:
        lines["data.numeric"][column.name] = _numeric(table, column, wanted.constants)
    for column in categorical:
        lines["data.categorical"][column.name] = list(column.categories), "" if wanted.public else CONFIRM
    if not numeric:
        data.pop("standardize", None)
    spread = _spread(table, wanted, data["silos"][0]["count"])
    made = recipe(_task(known[wanted.label])[0], wanted.epsilon, data["subjects"][0]["count"], spread)
    read = _read_from(data, bool(categorical), bool(numeric), made, wanted)
    if read:
        data["from_this_table"] = read, "remove a name once its value is confirmed to be public"
    lines |= {
        name: {key: (value, _COMMENTS.get(f"{name}.{key}", "")) for key, value in section.items()}
        for name, section in made.items()
    }
    head = [
        f"# Made by `tacit init` from {path.name}. Nothing here is read from the table again.",
        "# Values named in data.from_this_table were: guarantees hold only if these values are public.",
        *(["# Left out:"] if left_out else []),
        *(f"#   {name}: {reason}" for name, reason in left_out.items()),
    ]
    title = f"{wanted.label}, from {path.name}"
    features = tuple(column.name for column in used)
    return Template("\n".join([*head, "", f"title = {_value(title)}", *_written(lines)]) + "\n", columns, features,
                    left_out, tuple(read))  # fmt: skip


def _check(wanted: Wanted, known: Mapping[str, ColumnLook]) -> None:
    roles = [name for name in (wanted.label, wanted.subject, wanted.silo) if name]
    for option, name in (("--label", wanted.label), ("--subject", wanted.subject), ("--silo", wanted.silo)):
        if name is not None and roles.count(name) > 1:
            raise UserError("conflict", option, f"column '{name}' has two roles", "name three different columns")
    for name in wanted.keep:
        if name not in known or known[name].kind in ("text", "empty"):
            problem = f"column '{name}' is not there, or has neither numbers, dates nor categories"
            raise UserError("unknown-name", "--keep", problem, f"choose among {', '.join(known)}")


def _data(
    table: Table, path: Path, folder: Path, text: TextFormat, wanted: Wanted, known: Mapping[str, ColumnLook]
) -> dict[str, tuple[Any, str]]:
    """The keys of [data] with a comment each."""
    relative = os.path.relpath(path.resolve(), folder.resolve())
    made: dict[str, tuple[Any, str]] = {"path": (relative, "")}
    if text.encoding != TextFormat.encoding:
        made["encoding"] = text.encoding, ""
    if text.decimal != TextFormat.decimal:
        made["decimal"] = text.decimal, ""
    made["label"] = wanted.label, ""
    task, classes = _task(known[wanted.label])
    if task != "binary":
        made["task"] = task, ""
    if classes:
        made["classes"] = list(classes), "the second one is predicted" if task == "binary" else ""
    silos = known[wanted.silo].distinct
    if silos < 2:
        raise UserError(
            "too-few", "--silo", f"column '{wanted.silo}' has {silos} value", "a federation needs two silos"
        )
    count = rounded_up(table.rows if wanted.subject is None else known[wanted.subject].distinct)
    whose = {} if wanted.subject is None else {"column": wanted.subject}
    made["subjects"] = whose | {"count": count}, "people, rounded up" if whose else "every row is another person"
    made["silos"] = {"column": wanted.silo, "count": silos}, ""
    made["missing"] = "center", "a gap counts as the centre of its column"
    made["drop_missing"] = True, "rows without label, subject or silo are dropped"
    if not wanted.constants:
        made["standardize"] = "private", "constants are learned with noise, as part of epsilon"
    return made


def _task(label: ColumnLook) -> tuple[str, tuple[str, ...]]:
    """The task and, where they are not 0 and 1, the classes."""
    numbers = label.kind == "number"
    if label.distinct == 2:
        if numbers and (label.low, label.high) == (0, 1):
            return "binary", ()
        names = _names(label)
        return "binary", tuple(sorted(names, key=lambda name: (name.lower() in _POSITIVE, name)))
    whole = numbers and label.low == 0 and label.high == label.distinct - 1 and label.distinct <= 10
    if label.kind == "category" or whole:
        return "multiclass", _names(label)
    if numbers and label.distinct > 2:
        return "real", ()
    problem = f"column '{label.name}' ({label.kind}, {label.distinct} values) is no label"
    raise UserError("wrong-type", "--label", problem, f"name numbers, or 2 to {MOST_CATEGORIES} classes")


def _names(label: ColumnLook) -> tuple[str, ...]:
    if label.categories:
        return label.categories
    assert isinstance(label.low, float)
    assert isinstance(label.high, float)
    if label.distinct == 2:
        return f"{label.low:g}", f"{label.high:g}"
    return tuple(map(str, range(label.distinct)))


def _numeric(table: Table, column: ColumnLook, constants: bool) -> tuple[dict[str, Any], str]:
    made: dict[str, Any] = {"days_since": "2000-01-01"} if column.kind == "date" else {}
    comment = "a date" if column.kind == "date" else ""
    if constants and column.kind == "number":
        values = numbers_in(table.read(column.name))
        low, middle, high = np.nanquantile(values, [0.25, 0.5, 0.75])
        scale = (high - low) / 1.35 or float(np.nanstd(values)) or 1.0
        made |= {"mean": _public_looking(float(middle)), "scale": _public_looking(float(scale))}
        comment = f"{CONFIRM} ({column.low:g} to {column.high:g}, {column.missing:.0%} missing)"
    if column.missing:
        made["indicator"] = True
    return made, comment


def _spread(table: Table, wanted: Wanted, silos: int) -> Spread:
    if wanted.subject is None:
        return Spread(silos, 1, 1.0)
    who, where = texts(table.read(wanted.subject)), texts(table.read(wanted.silo))
    known = ~(gaps(who) | gaps(where))
    pairs = set(zip(who[known], where[known], strict=True))
    _, counts = np.unique([str(person) for person, _ in pairs], return_counts=True)
    return Spread(silos, int(counts.max(initial=1)), float(counts.mean()) if len(counts) else 1.0)


def _read_from(
    data: Mapping[str, Any], categorical: bool, numeric: bool, made: Mapping[str, Mapping[str, Any]], wanted: Wanted
) -> list[str]:
    """The settings whose values come from the table, by name. Which numeric columns there are, and which have an
    indicator, was decided by looking at them."""
    if wanted.public:
        return ["data.numeric"] if wanted.constants and numeric else []
    found = {
        "data.subjects.count": True,
        "data.silos.count": True,
        "data.classes": "classes" in data,
        "data.numeric": numeric,
        "data.categorical": categorical,
        "privacy.max_silos_per_subject": "max_silos_per_subject" in made["privacy"] and wanted.subject is not None,
        "exchange.name": wanted.subject is not None,
    }
    return [name for name, is_read in found.items() if is_read]


def rounded_up(count: int) -> int:
    """The next number that people would write down."""
    unit = 10 ** max(len(str(count)) - 1, 0)
    return next(math.ceil(first * unit) for first in _ROUND if first * unit >= count)


def _public_looking(value: float) -> float:
    """In one or two significant digits."""
    return float(f"{value:.1e}")


# --- as text


def _written(sections: Mapping[str, Mapping[str, tuple[Any, str]]]) -> list[str]:
    lines = []
    for name, keys in sections.items():
        if keys:
            lines += ["", f"[{name}]"]
            for key, (value, comment) in keys.items():
                line = f"{_key(key)} = {_value(value)}"
                lines += [f"# {comment}", line] if len(line) > 80 else [f"{line:<48} # {comment}" if comment else line]
    return lines


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        inside = ", ".join(f"{_key(key)} = {_value(entry)}" for key, entry in value.items())
        return f"{{ {inside} }}" if inside else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return json.dumps(value)
