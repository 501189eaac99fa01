"""What is publicly declared about data: the ``[data]`` section of an experiment file, its columns and its labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from tacit.data.table import TextFormat, as_name
from tacit.errors import InvalidSetting, UserError
from tacit.planning.settings import Count, Positive, read_toml
from tacit.privacy.mechanisms.spreads import LARGEST_VALUE

Name = Annotated[str, BeforeValidator(as_name)]
# "private" is the documented spelling of "paid": plan hashes and results of earlier versions have the old one
Respelled = AfterValidator(lambda value: "paid" if value == "private" else value)


# Numbers that no method or exchange has; the others are in ``planning.settings``.
Whole = Annotated[int, Field(strict=True)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Share = Annotated[float, Field(strict=True, gt=0, lt=1)]


def _day(value: Any) -> Any:
    """A date of TOML, or the text of one, as text."""
    return (value if isinstance(value, date) else date.fromisoformat(value)).isoformat()


Day = Annotated[str, BeforeValidator(_day)]


class Section(BaseModel):
    """Base of all sections: frozen, and unknown keys are an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NumericColumn(Section):
    """Public facts about one numeric column: ``(value - mean) / scale`` is what the model sees.

    mean        public constant that is subtracted from each value
    scale       public constant by which the difference is divided
    missing     replaces a missing value, on the scale of the table
    low         public lower bound for standardize = "private"; smaller values count as the bound
    high        public upper bound for standardize = "private"; larger values count as the bound
    indicator   add a feature that is 1 where the value is missing
    days_since  public date (YYYY-MM-DD); the column holds dates, and its value is the number of days after this
                date
    """

    mean: Number = 0.0
    scale: Positive = 1.0
    missing: Number | None = None
    low: Number | None = None
    high: Number | None = None
    indicator: bool = False
    days_since: Day | None = None

    @model_validator(mode="after")
    def _bounds_in_order(self) -> Self:
        if self.low is not None and self.high is not None and not self.low < self.high:
            raise InvalidSetting(
                "conflict", f"low = {self.low:g} is not below high = {self.high:g}; exchange or widen them"
            )
        return self


class _Assignable(Section):
    """Something that a column of the table says, or that is assigned for a study; never both."""

    column: str | None = None
    count: Count | None = None
    assign: str | None = None

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if self.assign and self.column:
            raise InvalidSetting(
                "conflict", f"column = '{self.column}' and assign = '{self.assign}' exclude each other; give one"
            )
        if self.assign and self.count is None:
            raise InvalidSetting("missing", f"assign = '{self.assign}' needs a count; add count = ...")
        if self.assign in (None, "uniform", "labels") and "alpha" in self.model_fields_set:
            where = f"with assign = '{self.assign}'" if self.assign else "without assign"
            raise InvalidSetting("no-effect", f"alpha has no effect {where}; remove it")
        return self


class SubjectOptions(_Assignable):
    """Whose row it is: a ``column`` of the table, or assigned for a study.

    column  column that identifies the subject of each row; without it, each row is a subject of its own
    count   public upper bound on the number of subjects in all silos
    assign  for studies: the law by which subjects are assigned to records; excludes column
    alpha   exponent of the laws zipf and power
    """

    assign: Literal["uniform", "zipf", "power"] | None = None
    alpha: Positive = 0.5


class SiloOptions(_Assignable):
    """Where a row lives: a ``column`` of the table, or assigned for a study.

    column  column that names the silo of each row
    count   public number of silos
    assign  for studies: the law by which records are assigned to silos; excludes column
    alpha   exponent of zipf and power, concentration of dirichlet
    labels  assign = "labels": largest number of different labels in a silo
    """

    assign: Literal["uniform", "zipf", "power", "labels", "dirichlet"] | None = None
    alpha: Positive = 2.0
    labels: Count = 2

    @property
    def by_label(self) -> bool:
        """Whether a row's label decides where it lives."""
        return self.assign in ("labels", "dirichlet")

    @model_validator(mode="after")
    def _numbers_in_use(self) -> Self:
        if self.assign != "labels" and "labels" in self.model_fields_set:
            raise InvalidSetting("no-effect", "labels has no effect without assign = 'labels'; remove it")
        return self


class SurvivalLabel(Section):
    """Survival data have two label columns.

    time   column with the time to the event or to the end of observation; times are above 0
    event  column that is 1 where the event happened and 0 where observation ended before
    """

    time: str
    event: str


# the column of labels, or several; None where none is named
Label = str | SurvivalLabel | tuple[str, ...] | None


class DataOptions(Section):
    """Where the records come from and what is publicly known about them.

    source              where records come from: a table, or a named source such as randhie or mnist
    path                file of the table, or folder of a named source; relative to the experiment file
    label               column that is predicted; for survival a table with time and event; for multilabel a list of
                        columns of 0 and 1
    task                kind of label; survival if label is a table, multilabel if it is a list, otherwise binary
    classes             public number or names of the classes; required for multiclass
    subjects            whose row it is
    silos               where a row lives
    labels_per_subject  for studies: largest number of different labels of an assigned subject
    test_fraction       share of subjects (or of records, without a column of subjects) that is held out
    standardize         which constants scale numeric columns: those of the file (declared), released with noise
                        (private), computed by each silo without a guarantee (per-silo), or none
    numeric             names of numeric columns, or a table with public constants for each of them
    categorical         table of categorical columns with their public categories
    schema              public TOML file with numeric and categorical, in place of the two keys
    missing             what to do with a missing number: refuse the table, or put it at the declared mean (center)
    drop_missing        drop rows with missing values that no other setting fills
    encoding            character encoding of a text file
    decimal             decimal sign of a text file
    records_per_silo    public number of records of each silo, one number or a list; private methods divide batches
                        by it
    window_stride       source shakespeare: characters between the starts of two windows
    seed                seed for reading, splitting and assigning; by default that of the experiment, or 0
    from_this_table     settings that were read from this private table, such as data.subjects.count; every
                        guarantee then holds only if they are public
    """

    source: str = "table"
    path: str | None = None
    label: str | SurvivalLabel | Annotated[tuple[str, ...], Field(min_length=2)] | None = None
    task: Literal["binary", "multiclass", "multilabel", "real", "survival"] | None = None
    classes: Count | tuple[Name, ...] | None = None
    subjects: SubjectOptions = SubjectOptions()
    silos: SiloOptions = SiloOptions()
    labels_per_subject: Count | None = None
    test_fraction: Share = 0.2
    standardize: Annotated[Literal["declared", "private", "per-silo", "none", "paid"], Respelled] = "declared"
    numeric: tuple[str, ...] | dict[str, NumericColumn] | None = None
    categorical: dict[str, tuple[Name, ...]] = Field(default_factory=dict)
    # `schema` in the file; the trailing underscore keeps clear of a pydantic method
    schema_: str | None = Field(default=None, alias="schema")
    missing: Literal["refuse", "center"] = "refuse"
    drop_missing: bool = False
    encoding: str = "utf-8"
    decimal: Literal[".", ","] = "."
    records_per_silo: Count | tuple[Count, ...] | None = None
    window_stride: Count = 1
    seed: Whole | None = None
    from_this_table: tuple[str, ...] = ()

    @property
    def text(self) -> TextFormat:
        """How a text file of this table is written."""
        return TextFormat(self.encoding, self.decimal)

    @property
    def assigned_together(self) -> bool:
        """Whether the subject or silo of a record depends on other records. Equal rows that are assigned to subjects
        are distinguished by their order: without one, the next one takes its subject."""
        return self.subjects.assign is not None or self.silos.by_label

    @model_validator(mode="after")
    def _one_declaration_of_columns(self) -> Self:
        if self.schema_ and (self.numeric is not None or self.categorical):
            raise InvalidSetting(
                "conflict", "schema excludes numeric and categorical; declare the columns in one place"
            )
        if isinstance(self.numeric, tuple) and len(set(self.numeric)) < len(self.numeric):
            raise InvalidSetting("duplicate", "a column is named twice in numeric; name every column once")
        return self


# --- labels ---

BINARY = ("0", "1")


@dataclass(frozen=True)
class Labels:
    """What a label is: ``kind`` is binary, multiclass, multilabel, real or survival; ``classes`` are the public class
    names, of multilabel the columns."""

    kind: str
    classes: tuple[str, ...] = ()

    KINDS = ("binary", "multiclass", "multilabel", "real", "survival")


def declared_labels(options: DataOptions) -> Labels:
    """What kind of label the experiment declares; binary 0/1 where it says nothing."""
    form = "survival" if isinstance(options.label, SurvivalLabel) else "binary"
    kind = options.task or ("multilabel" if isinstance(options.label, tuple) else form)
    if (kind == "multilabel") != isinstance(options.label, tuple):
        problem = f"a {kind} task cannot use {options.label!r}"
        fix = "name two or more columns in a list" if kind == "multilabel" else "name one column"
        raise UserError("wrong-type", "data.label", problem, fix)
    given = options.classes
    classes = tuple(map(str, range(given))) if isinstance(given, int) else given or ()
    if kind == "multiclass" and not classes:
        problem = "a multiclass task has no classes"
        raise UserError("missing", "data.classes", problem, "give their number or their names")
    if kind == "binary":
        classes = classes or BINARY
        if len(classes) != 2:
            problem = f"a binary task has 2 classes, not {len(classes)}"
            raise UserError("conflict", "data.classes", problem, 'set data.task = "multiclass"')
    elif kind != "multiclass" and classes:
        raise UserError("no-effect", "data.classes", f"a {kind} task has no classes", "leave data.classes out")
    if kind == "multilabel" and isinstance(options.label, tuple):
        classes = options.label
    if len(set(classes)) < len(classes):
        problem, field = f"one is named twice in {list(classes)}", "label" if kind == "multilabel" else "classes"
        raise UserError("duplicate", f"data.{field}", problem, "name each once")
    return Labels(kind, classes)


# --- feature columns ---


@dataclass(frozen=True)
class Columns:
    """The declared feature columns: numeric ones with public constants, categorical ones with their categories."""

    numeric: Mapping[str, NumericColumn] = field(default_factory=dict)
    categorical: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One name per feature, in order: numeric columns, their indicators, then ``column=category``."""
        dummies = (f"{name}={category}" for name, categories in self.categorical.items() for category in categories)
        return (*self.numeric, *(f"{name} is missing" for name in self.indicators), *dummies)

    @property
    def indicators(self) -> tuple[str, ...]:
        """The numeric columns with a feature that says whether a value is missing."""
        return tuple(name for name, column in self.numeric.items() if column.indicator)

    @property
    def width(self) -> int:
        """How many features there are."""
        return len(self.numeric) + len(self.indicators) + sum(map(len, self.categorical.values()))

    @property
    def unbounded(self) -> bool:
        """Whether no numeric column has a public bound: private constants then come from a grid of powers of two."""
        columns = self.numeric.values()
        return bool(columns) and all(column.low is None and column.high is None for column in columns)

    def checked(self) -> Columns:
        """The same, or an error: every column is declared once, every categorical one has distinct categories."""
        for name, categories in self.categorical.items():
            if not categories or len(set(categories)) < len(categories):
                problem = f"column '{name}' has no category or one of them twice"
                raise UserError("duplicate", "data.categorical", problem, "name each category once")
            if name in self.numeric:
                raise UserError("duplicate", "data.numeric", f"column '{name}' is categorical too", "declare it once")
        return self

    def bounds(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The public bounds, low and high, of every numeric column; an error names the first column without them."""
        if not self.numeric:
            problem = "there is no numeric column to standardize"
            fix = "declare data.numeric with low and high, or use 'declared'"
            raise UserError("missing", "data.standardize", problem, fix)
        lows, highs = [], []
        for name, column in self.numeric.items():
            if column.low is None or column.high is None:
                missing = " and no ".join(key for key in ("low", "high") if getattr(column, key) is None)
                fix = 'standardize = "private" takes bounds of all columns ({ low = …, high = … }), or of none'
                raise UserError("missing", "data.numeric", f"column '{name}' has no {missing}", fix)
            lows.append(column.low)
            highs.append(column.high)
        return tuple(lows), tuple(highs)

    def with_constants(self, means: Sequence[float], scales: Sequence[float]) -> Columns:
        """The same columns with other constants, one of each per numeric column."""
        fresh = {
            name: column.model_copy(update={"mean": float(mean), "scale": float(scale)})
            for (name, column), mean, scale in zip(self.numeric.items(), means, scales, strict=True)
        }
        return replace(self, numeric=fresh)

    def constants(self) -> tuple[list[float], list[float]]:
        """Means and scales, one of each per numeric column."""
        columns = self.numeric.values()
        return [column.mean for column in columns], [column.scale for column in columns]

    def scaled_by_bounds(self) -> Columns:
        """Constants that put the public bounds at -1 and 1: nothing is learned from the data."""
        if self.unbounded:
            return self.with_constants([0.0] * len(self.numeric), [LARGEST_VALUE] * len(self.numeric))
        low, high = (np.array(ends) for ends in self.bounds())
        return self.with_constants((low / 2 + high / 2).tolist(), (high / 2 - low / 2).tolist())


def declared_columns(options: DataOptions) -> Columns | None:
    """The feature columns that the experiment (or its public schema file) declares; None where it declares none."""
    if options.schema_ is not None:
        return _read_schema(options.schema_)
    if options.numeric is None:
        return Columns({}, options.categorical) if options.categorical else None
    if isinstance(options.numeric, dict):
        return Columns(options.numeric, options.categorical)
    return Columns({name: NumericColumn() for name in options.numeric}, options.categorical)


def _read_schema(path: str) -> Columns:
    file = Path(path)
    content = read_toml(file, "data.schema")
    try:
        numeric = TypeAdapter(dict[str, NumericColumn]).validate_python(content.pop("numeric", {}))
        categorical = TypeAdapter(dict[str, tuple[Name, ...]]).validate_python(content.pop("categorical", {}))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(step) for step in first["loc"])
        problem = f"'{file.name}' at {place}: {first['msg']}"
        raise UserError("invalid-value", "data.schema", problem, "correct the entry") from error
    if content:
        unknown = next(iter(content))
        problem = f"'{file.name}' has an unknown key '{unknown}'"
        raise UserError("unknown-key", "data.schema", problem, "keep [numeric] and [categorical]")
    return Columns(numeric, categorical)
