"""Columns to features and labels, and the records of a run.

Declared numbers in, float32 out, nothing learned from the data unless asked for.

``standardize = "declared"`` uses public constants, ``"none"`` leaves numbers as they are, ``"per-silo"`` computes each
silo's mean and deviation from its own training rows (which is a use of private data: it has no finite guarantee).
``"paid"`` (documented as "private") waits for constants that are released with noise within the guarantee; until then
columns are scaled by their public bounds. Categories are always declared.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.data.options import (
    BINARY,
    Columns,
    DataOptions,
    Label,
    Labels,
    NumericColumn,
    SurvivalLabel,
    declared_columns,
)
from tacit.data.table import Table, days_in, from_frame, gaps, is_date, match_names, numbers_in, refuse_rows, texts
from tacit.errors import Note, Problems, UserError, nearest
from tacit.kernels.stored import ROWS_AT_ONCE, Room, forget, in_memory

if TYPE_CHECKING:
    import pandas as pd

# with private constants from a grid, values farther from the centre than this many scales count as that far
FARTHEST = 10.0
# what looks like an identifier: by its name, or by so large a share of different values among so many rows
IDENTIFIER = re.compile(
    r"(?:^|[_\W])(?:id|uuid|guid|ssn|mrn|nr|nbr|email|phone)$|nummer$|(?-i:(?<=[a-z])I[Dd]$)", re.IGNORECASE
)
ALMOST_ALL = 0.95
FEWEST_TO_JUDGE = 50


@dataclass(frozen=True)
class Part:
    """Some rows of a table, in the wanted order, each with the number of its silo and the key of its subject: arrays
    ``[part]``."""

    rows: np.ndarray | slice
    silo: np.ndarray | None = None
    subject: np.ndarray | None = None

    def pieces(self, length: int) -> Iterator[tuple[slice, np.ndarray | slice, np.ndarray | None]]:
        """The part in pieces: places in it, their rows of the table, and their silos."""
        for first in range(0, length, ROWS_AT_ONCE):
            piece = slice(first, first + ROWS_AT_ONCE)
            rows = piece if isinstance(self.rows, slice) else self.rows[piece]
            yield piece, rows, None if self.silo is None else self.silo[piece]


@dataclass(frozen=True)
class FeatureEncoder:
    """Turns raw rows into features ``[rows, features]`` float32; frozen, public unless ``per_silo`` is set.

    ``per_silo[column]`` holds the means and the scales of a numeric column, one per silo of ``silo_names``.
    """

    columns: Columns
    standardize: str = "declared"
    missing: str = "refuse"
    silo_column: str | None = None
    silo_names: tuple[str, ...] = ()
    per_silo: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] | None = None

    @property
    def feature_names(self) -> tuple[str, ...]:
        return self.columns.feature_names

    def encode(self, frame: pd.DataFrame) -> np.ndarray:
        """Features ``[rows, features]`` of a new frame, with the checks and constants of the training table."""
        table = from_frame(frame)
        silo = self._silo_of(table) if self.standardize == "per-silo" else None
        return self.encode_parts(table, [Part(slice(None), silo)])[0]

    def encode_parts(self, table: Table, parts: Sequence[Part], room: Room = in_memory) -> list[np.ndarray]:
        """Features of several parts of one table; each column is read once and no wide intermediate is made."""
        width = self.columns.width
        lengths = [table.rows if isinstance(part.rows, slice) else len(part.rows) for part in parts]
        outputs = [room(length, width) for length in lengths]
        problems = Problems()
        first, indicators = len(self.columns.numeric), self.columns.indicators
        for j, name in enumerate(self.columns.numeric):
            with problems.noted():
                values = self._numbers(table, name)
                for part, output in zip(parts, outputs, strict=True):
                    for piece, rows, silo in part.pieces(len(output)):
                        output[piece, j] = self._standardized(name, values[rows], silo)
                    forget(output)
        for name in indicators:
            missing = gaps(table.column(name, "data.numeric"))
            for part, output in zip(parts, outputs, strict=True):
                output[:, first + indicators.index(name)] = missing[part.rows]
        first += len(indicators)
        for name, categories in self.columns.categorical.items():
            with problems.noted():
                codes = self._codes(table, name)
                for part, output in zip(parts, outputs, strict=True):
                    mine = codes[part.rows]
                    known = np.flatnonzero(mine >= 0)  # a missing category stays all-zero
                    output[known, first + mine[known]] = 1.0
            first += len(categories)
        problems.check()
        return outputs

    def check(self, table: Table, problems: Problems) -> None:
        """Note what is wrong with the feature columns of a table, without making features."""
        for name in self.columns.numeric:
            with problems.noted():
                self._numbers(table, name)
        for name in self.columns.categorical:
            with problems.noted():
                self._codes(table, name)

    def lacking(self, table: Table) -> np.ndarray:
        """Mask ``[rows]`` of rows that have a gap in a feature for which no rule says what to do."""
        found = np.zeros(table.rows, bool)
        if self.missing == "refuse":
            for name, column in self.columns.numeric.items():
                if column.missing is None and name in table.names:
                    found |= gaps(table.read(name))
            for name in self.columns.categorical:
                if name in table.names:
                    found |= gaps(table.read(name))
        return found

    def numbers(self, table: Table, part: Part) -> np.ndarray:
        """The numeric columns of some rows as they are, ``[part, columns]`` float64: stand-ins filled in, NaN where a
        value is missing otherwise. Private."""
        columns = [self._numbers(table, name)[part.rows].astype(np.float64) for name in self.columns.numeric]
        return np.stack(columns, axis=1)

    def with_constants(self, means: Sequence[float], scales: Sequence[float]) -> FeatureEncoder:
        """The same with constants that were released, one mean and one scale per numeric column."""
        return replace(self, columns=self.columns.with_constants(means, scales))

    def fitted(self, table: Table, train: Part) -> FeatureEncoder:
        """With each silo's own mean and deviation (n - 1 in the divisor, 1 where it is zero) of its training rows."""
        if self.standardize != "per-silo" or train.silo is None:
            return self
        silos = len(self.silo_names)
        fits = {
            name: _moments(self._numbers(table, name)[train.rows], train.silo, silos) for name in self.columns.numeric
        }
        return replace(self, per_silo=fits)

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return {
            "numeric": {name: column.model_dump() for name, column in self.columns.numeric.items()},
            "categorical": {name: list(categories) for name, categories in self.columns.categorical.items()},
            "standardize": self.standardize,
            "missing": self.missing,
            "silo_column": self.silo_column,
            "silo_names": list(self.silo_names),
            "per_silo": self.per_silo and {name: [list(m), list(s)] for name, (m, s) in self.per_silo.items()},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> FeatureEncoder:
        """The inverse of :meth:`to_dict`."""
        numeric = {name: NumericColumn(**column) for name, column in values["numeric"].items()}
        categorical = {name: tuple(categories) for name, categories in values["categorical"].items()}
        per_silo = values["per_silo"] and {k: (tuple(m), tuple(s)) for k, (m, s) in values["per_silo"].items()}
        return cls(
            Columns(numeric, categorical),
            values["standardize"],
            values["missing"],
            values["silo_column"],
            tuple(values["silo_names"]),
            per_silo,
        )

    def _numbers(self, table: Table, name: str) -> np.ndarray:
        """One numeric column ``[rows]`` as floats, declared stand-ins filled in; NaN only where it will be centred."""
        values = as_numbers(table.column(name, "data.numeric"), name, self.columns.numeric[name].days_since)
        fix = "replace the values or drop the rows"
        refuse_rows("not-finite", "data.numeric", np.isinf(values), name, "infinite", fix)
        missing = np.isnan(values)
        if not missing.any():
            return values
        stand_in = self.columns.numeric[name].missing
        if stand_in is not None:
            return np.where(missing, stand_in, values)
        if self.missing == "refuse":
            fix = "set data.missing = \"center\", declare the column's own 'missing' value, or set data.drop_missing"
            refuse_rows("missing-values", "data.numeric", missing, name, "missing", fix)
        return values

    @property
    def limited(self) -> bool:
        """Whether numeric features end at ``FARTHEST``."""
        return self.standardize == "paid" and self.columns.unbounded

    def _standardized(self, name: str, values: np.ndarray, silo: np.ndarray | None) -> np.ndarray:
        """``(values - mean) / scale`` as float32 ``[part]``; a value that is still missing lands on the centre."""
        mean, scale = self._constants(name, silo)
        with np.errstate(over="ignore"):
            exact = (values.astype(np.float64) - mean) / scale
            if self.limited:
                exact = np.clip(exact, -FARTHEST, FARTHEST)
            result = exact.astype(np.float32)
        if np.isinf(result).any():
            problem = f"column '{name}' exceeds the range of float32"
            raise UserError("out-of-range", "data.numeric", problem, "declare a larger scale")
        center = self.columns.numeric[name].mean if self.standardize == "none" else 0.0
        return np.nan_to_num(result, copy=False, nan=center)

    def _constants(self, name: str, silo: np.ndarray | None) -> tuple[float | np.ndarray, float | np.ndarray]:
        if self.per_silo is not None and silo is not None:
            means, scales = self.per_silo[name]
            return np.asarray(means)[silo], np.asarray(scales)[silo]
        if self.standardize in ("declared", "paid"):
            return self.columns.numeric[name].mean, self.columns.numeric[name].scale
        return 0.0, 1.0

    def _codes(self, table: Table, name: str) -> np.ndarray:
        """One categorical column ``[rows]`` as positions in its categories, -1 where it is missing."""
        categories = self.columns.categorical[name]
        codes, unknown = match_names(table.column(name, "data.categorical"), categories)
        if unknown is not None:
            others = int(((codes < 0) & ~gaps(table.read(name))).sum())
            problem = f"column '{name}' has values outside its declared categories in {others} rows ('{unknown}')"
            fix = f"add it to data.categorical.{name} or replace it in the table"
            raise UserError("undeclared-value", "data.categorical", problem, fix)
        if self.missing == "refuse":
            fix = 'set data.missing = "center" or data.drop_missing, or give the gap a category of its own'
            refuse_rows("missing-values", "data.categorical", codes < 0, name, "missing", fix)
        return codes

    def _silo_of(self, table: Table) -> np.ndarray:
        if self.silo_column is None:
            problem = "per-silo constants of assigned silos do not apply to new rows"
            raise UserError("not-supported", "data.standardize", problem, 'use standardize = "declared"')
        codes, unknown = match_names(table.column(self.silo_column, "data.silos.column"), self.silo_names)
        if unknown is not None or (codes < 0).any():
            problem = f"silo '{unknown}' was not there in training" if unknown is not None else "a row has no silo"
            raise UserError("undeclared-value", "data.silos.column", problem, nearest(str(unknown), self.silo_names))
        return codes


@dataclass(frozen=True)
class Unpaid:
    """The numeric columns of a table, of which noisy constants have still to be released (``standardize = "paid"``)."""

    table: Table
    encoder: FeatureEncoder
    train: Part
    test: Part

    @property
    def columns(self) -> Columns:
        """The numeric columns, with their public bounds if they have any."""
        return self.encoder.columns

    def values(self) -> np.ndarray:
        """``[training records, columns]`` as they are, NaN where missing: private."""
        return self.encoder.numbers(self.table, self.train)

    def encoded(self, means: Sequence[float], scales: Sequence[float]) -> tuple[FeatureEncoder, list[np.ndarray]]:
        """The encoder with released constants, and the features of training and held-out rows."""
        encoder = self.encoder.with_constants(means, scales)
        return encoder, encoder.encode_parts(self.table, [self.train, self.test])


def feature_columns(table: Table, options: DataOptions, taken: set[str]) -> Columns:
    """The declared columns; where no numeric one is, every column that is not ``taken``: they must be numbers then, and
    not look like identifiers. A note lists them."""
    columns = declared_columns(options) or Columns()
    if options.numeric is None and options.schema_ is None:
        rest = [name for name in table.names if name not in taken and name not in columns.categorical]
        named = [name for name in rest if looks_like_identifier(name, table.read(name))]
        if named:
            problem = f"is not given, and {', '.join(map(repr, named))} would be a feature and looks like an identifier"
            fix = 'name the columns to use: numeric = ["…", "…"]'
            raise UserError("missing", "data.numeric", problem, fix)
        if rest:
            warnings.warn(f"data.numeric is not given: features are {', '.join(rest)}", Note, stacklevel=2)
        columns = Columns({name: NumericColumn() for name in rest}, columns.categorical)
    if not columns.width:
        problem = "there is no feature column"
        raise UserError("empty", "data.numeric", problem, "add columns other than label, subject and silo")
    return columns


def looks_like_identifier(name: str, values: np.ndarray) -> bool:
    """Whether a column seems to name rows or people: an id by its name, or whole numbers or texts of which almost all
    are different."""
    if IDENTIFIER.search(name):
        return True
    known = texts(values)[~gaps(values)]
    if len(known) < FEWEST_TO_JUDGE or len(set(known)) < ALMOST_ALL * len(known):
        return False
    numbers = numbers_in(known)
    numbers = numbers[~np.isnan(numbers)]
    whole = (numbers == np.floor(numbers)) & (np.abs(numbers) < 2**53)
    return bool(whole.all()) and not any(map(is_date, known[:FEWEST_TO_JUDGE]))


def column_numbers(values: np.ndarray, days_since: str | None = None) -> np.ndarray:
    """A numeric column ``[rows]`` as floats, NaN where a cell is missing or no number (or no date)."""
    return numbers_in(values) if days_since is None else days_in(values, days_since)


def as_numbers(values: np.ndarray, name: str, days_since: str | None = None) -> np.ndarray:
    """Any numeric column ``[rows]`` as float32 or float64, missing values as NaN; text that is no number is refused."""
    numbers = column_numbers(values, days_since)
    unread = np.flatnonzero(np.isnan(numbers) & ~gaps(values))
    if unread.size:
        found, what = texts(values[unread[:1]])[0], "numeric" if days_since is None else "a date"
        problem = f"column '{name}' is not {what} in {unread.size} rows (it has '{found}')"
        fix = f"declare its categories: data.categorical.{name} = [...], or leave it out of data.numeric"
        if is_date(str(found)):
            fix = f"turn dates into days: data.numeric.{name} = {{ days_since = 2020-01-01 }}, or leave it out"
        raise UserError("wrong-type", "data.numeric", problem, fix)
    return numbers


def _moments(values: np.ndarray, silo: np.ndarray, silos: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    means, scales = [], []
    for k in range(silos):
        mine = values[silo == k].astype(np.float64)
        mine = mine[~np.isnan(mine)]
        deviation = float(mine.std(ddof=1)) if len(mine) > 1 else 0.0
        means.append(float(mine.mean()) if len(mine) else 0.0)
        scales.append(deviation if deviation > 0 else 1.0)
    return tuple(means), tuple(scales)


# --- labels ---

NO_LABEL = "set data.drop_missing = true, or drop the rows without a label"


def read_labels(table: Table, label: Label, labels: Labels) -> np.ndarray:
    """The label column as ``[rows]`` int32 classes or float32 numbers, or ``[rows, 2]`` float32 (time, event), or
    ``[rows, labels]`` float32 of 0 and 1."""
    if label is None:
        raise UserError("missing", "data.label", "no label column is named", "set data.label to the column to predict")
    form = {"survival": SurvivalLabel, "multilabel": tuple}.get(labels.kind, str)
    if not isinstance(label, form):
        others = {"survival": "{ time = ..., event = ... }", "multilabel": "a list of two or more columns"}
        wanted = others.get(labels.kind, "the name of one column")
        problem = f"a {labels.kind} task cannot use {label!r}"
        raise UserError("wrong-type", "data.label", problem, f"set data.label to {wanted}")
    if isinstance(label, SurvivalLabel):
        return _survival(table, label)
    if isinstance(label, tuple):
        yes_or_no = Labels("binary", BINARY)
        columns = [_classes(table.column(name, "data.label"), name, yes_or_no) for name in label]
        return np.stack(columns, axis=1).astype(np.float32)
    values = table.column(label, "data.label")
    if labels.kind == "real":
        return _label_numbers(values, label).astype(np.float32)
    return _classes(values, label, labels)


def _label_numbers(values: np.ndarray, name: str) -> np.ndarray:
    """Label values ``[rows]`` as finite floats; text is refused in the label's own name."""
    try:
        numbers = as_numbers(values, name)
    except UserError as error:
        fix = "name a numeric column, or set data.task and data.classes"
        raise UserError(error.code, "data.label", error.problem, fix) from error
    refuse_rows("missing-values", "data.label", ~np.isfinite(numbers), name, "missing or infinite", NO_LABEL)
    return numbers


def _classes(values: np.ndarray, name: str, labels: Labels) -> np.ndarray:
    codes, unknown = match_names(values, labels.classes)
    if unknown is not None:
        others = int(((codes < 0) & ~gaps(values)).sum())
        problem = f"column '{name}' has labels outside {_short(labels.classes)} in {others} rows ('{unknown}')"
        fix = "declare data.task and data.classes, or correct the table"
        raise UserError("undeclared-value", "data.label", problem, fix)
    refuse_rows("missing-values", "data.label", codes < 0, name, "missing", NO_LABEL)
    return codes


def _survival(table: Table, label: SurvivalLabel) -> np.ndarray:
    time = _label_numbers(table.column(label.time, "data.label.time"), label.time)
    event = _classes(table.column(label.event, "data.label.event"), label.event, Labels("binary", BINARY))
    refuse_rows("out-of-range", "data.label.time", time <= 0, label.time, "not positive", "give times above 0")
    return np.column_stack([time, event]).astype(np.float32)


def _short(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:6])
    return f"{shown}, … ({len(names)} in all)" if len(names) > 6 else shown


# --- records: three views of one set of arrays, never copies ---


@dataclass(frozen=True)
class Records:
    """Rows with their owner and their home, as parallel arrays.

    features  ``[records, ...]`` float32 (int32 for text: character codes)
    labels    ``[records]`` int32 (classes) or float32 (real); ``[records, 2]`` float32 (time, event) for survival;
              ``[records, labels]`` float32 for multilabel
    subject   ``[records]`` int64, the key of the person whose row it is: 64 bits of a hash of the identifier, which do
              not depend on who else is there. No number of a person, and no index
    silo      ``[records]`` int32, where it lives: 0 .. silos-1
    """

    features: np.ndarray
    labels: np.ndarray
    subject: np.ndarray
    silo: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, index: np.ndarray | slice) -> Records:
        """The rows at ``index`` (positions, a mask or a slice; a slice makes views)."""
        return Records(self.features[index], self.labels[index], self.subject[index], self.silo[index])

    def grouped(self) -> Records:
        """The same rows ordered by silo, then subject, then their original order."""
        order = np.lexsort((self.subject, self.silo))
        if np.array_equal(order, np.arange(len(order))):
            return self
        return self.take(order)


@dataclass(frozen=True)
class Silo:
    """One organisation's rows: ``start:stop`` of the federation's training arrays, grouped by subject.

    ``subjects[i]`` owns rows ``offsets[i]:offsets[i + 1]`` (absolute positions).
    """

    name: str
    start: int
    stop: int
    subjects: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Federation:
    """Everything an engine needs to know about the data of one run.

    ``train`` is grouped by silo and subject; ``subject_count`` subjects have training or held-out rows. ``labels`` says
    what kind of label the rows carry. ``held_out`` says how
    ``test`` was separated: whole ``subjects``, single ``records``, ``given`` by the source, ``file``, or ``none``.
    Where columns are ``unpaid``, features are scaled by public bounds until :meth:`standardized` gets constants that
    were released.
    """

    train: Records
    test: Records
    labels: Labels
    silo_names: tuple[str, ...]
    subject_count: int
    feature_names: tuple[str, ...]
    held_out: str
    encoder: FeatureEncoder | None = field(default=None, repr=False)
    unpaid: Unpaid | None = field(default=None, repr=False)

    def standardized(self, means: Sequence[float], scales: Sequence[float]) -> Federation:
        """The same rows under released constants, one mean and one scale per numeric column."""
        assert self.unpaid is not None, "there is nothing to pay for"
        encoder, features = self.unpaid.encoded(means, scales)
        train, test = (replace(rows, features=x) for rows, x in zip((self.train, self.test), features, strict=True))
        return replace(self, train=train, test=test, encoder=encoder, unpaid=None)

    def among(self, names: Sequence[str], k: int) -> Federation:
        """The rows of one silo in its place ``k`` among others of whose rows it knows nothing."""
        train, test = (replace(rows, silo=np.full(len(rows), k, np.int32)) for rows in (self.train, self.test))
        return replace(self, train=train, test=test, silo_names=tuple(names))

    @property
    def silo_count(self) -> int:
        return len(self.silo_names)

    @cached_property
    def silos(self) -> tuple[Silo, ...]:
        """The silos as views of ``train``, in the order of ``silo_names``."""
        bounds = np.searchsorted(self.train.silo, np.arange(self.silo_count + 1))
        return tuple(self._silo(k, int(bounds[k]), int(bounds[k + 1])) for k in range(self.silo_count))

    def _silo(self, k: int, start: int, stop: int) -> Silo:
        subjects, first = np.unique(self.train.subject[start:stop], return_index=True)
        offsets = np.append(first + start, stop).astype(np.int64)
        return Silo(self.silo_names[k], start, stop, subjects, offsets)
