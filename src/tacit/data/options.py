"""The ``[data]`` section of an experiment file, as a validated, public value."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from tacit.data.cells import as_name
from tacit.errors import InvalidSetting

Name = Annotated[str, BeforeValidator(as_name)]
# "private" is the documented spelling of "paid": plan hashes and results of earlier versions have the old one
Respelled = AfterValidator(lambda value: "paid" if value == "private" else value)


# Numbers as they are meant: no text that looks like one, no true for 1, nothing infinite.
Whole = Annotated[int, Field(strict=True)]
Count = Annotated[int, Field(strict=True, ge=1)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(strict=True, gt=0, lt=1)]


class Section(BaseModel):
    """Base of all sections: frozen, and unknown keys are an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NumericColumn(Section):
    """Public facts about one numeric column: ``(value - mean) / scale`` is what the model sees.

    ``missing`` stands in for a missing value, on the scale of the table. ``low`` and ``high`` are public bounds, which
    ``standardize = "private"`` needs: values beyond them count as the bound when constants are computed.
    """

    mean: Number = 0.0
    scale: Positive = 1.0
    missing: Number | None = None
    low: Number | None = None
    high: Number | None = None

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
        if not self.assign and "alpha" in self.model_fields_set:
            raise InvalidSetting("no-effect", "alpha has no effect without assign; remove it, or add assign = ...")
        if self.assign == "uniform" and "alpha" in self.model_fields_set:
            raise InvalidSetting("no-effect", "alpha has no effect with assign = 'uniform'; remove it")
        return self


class SubjectOptions(_Assignable):
    """Whose row it is: a ``column`` of the table, or assigned for a study."""

    assign: Literal["uniform", "zipf", "power"] | None = None
    alpha: Positive = 0.5


class SiloOptions(_Assignable):
    """Where a row lives: a ``column`` of the table, or assigned for a study; ``labels`` goes with assign "labels"."""

    assign: Literal["uniform", "zipf", "power", "labels", "dirichlet"] | None = None
    alpha: Positive = 2.0
    labels: Count = 2

    @property
    def by_label(self) -> bool:
        """Whether a row's label decides where it lives."""
        return self.assign in ("labels", "dirichlet")

    @model_validator(mode="after")
    def _numbers_in_use(self) -> Self:
        if self.assign == "labels" and "alpha" in self.model_fields_set:
            raise InvalidSetting("no-effect", "alpha has no effect with assign = 'labels'; remove it")
        if self.assign != "labels" and "labels" in self.model_fields_set:
            raise InvalidSetting("no-effect", "labels has no effect without assign = 'labels'; remove it")
        return self


class SurvivalLabel(Section):
    """Survival data have two label columns."""

    time: str
    event: str


class DataOptions(Section):
    """Where the records come from and what is publicly known about them; see the documentation's ``data`` page."""

    source: str = "table"
    path: str | None = None
    label: str | SurvivalLabel | None = None
    task: Literal["binary", "multiclass", "real", "survival"] | None = None
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
    records_per_silo: Count | tuple[Count, ...] | None = None
    window_stride: Count = 1
    seed: Whole | None = None

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
