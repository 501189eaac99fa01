"""The study file: its sections as frozen values, and settings put into the content of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from tacit.data.options import Section, Share
from tacit.errors import InvalidSetting
from tacit.planning.settings import Natural, Rate, read_section
from tacit.planning.sweep import SHORT

# Short names of what studies vary most; a name without a dot is otherwise a key of [method].
BASE = "experiment"  # the axis of base experiments
SHORT_NAMES = {
    BASE: BASE,
    **SHORT,
    "subjects": "data.subjects.count",
    "silos": "data.silos.count",
    "model": "model.name",
}


class AxisOptions(Section):
    """What a study varies.

    name      a setting: epsilon, rounds, delta, subjects, silos, model, a key of the method, or a dotted key; or
              experiment, for paths of experiment files; with settings, any name
    values    its values
    settings  table of settings for each named value, for an axis that changes several settings at once
    """

    name: str
    values: tuple[Any, ...] = ()
    settings: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if bool(self.values) == bool(self.settings):
            raise InvalidSetting("conflict", "an axis has either values or settings; give one of them")
        if len({repr(value) for value in self.values}) < len(self.values):
            raise InvalidSetting("duplicate", "a value is given twice; give each value once")
        return self

    @property
    def key(self) -> str:
        """The dotted key of the experiment file."""
        return self.name if "." in self.name else SHORT_NAMES.get(self.name, f"method.{self.name}")

    @property
    def points(self) -> tuple[Any, ...]:
        """The values, or the names of the settings."""
        return self.values or tuple(self.settings)


class ContenderOptions(Section):
    """A method in a comparison.

    name      name in tables and plots
    method    the section [method] of this contender, in place of that of the experiment
    model     the section [model] of this contender, in place of that of the experiment
    settings  other settings, as tables; a quoted dotted key replaces a whole value
    remove    dotted keys of the experiment that this contender does not have
    grid      values to choose from, by key; a key without a dot is a key of the method
    """

    name: str = Field(min_length=1)
    method: dict[str, Any]
    model: dict[str, Any] | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    remove: tuple[str, ...] = ()
    grid: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _lists(self) -> Self:
        for key, values in flat(self.grid).items():
            if not isinstance(values, list) or not values:
                raise InvalidSetting("wrong-type", f"grid.{key} is not a list with values; write {key} = [1.0, 2.0]")
        return self

    @property
    def choices(self) -> dict[str, list[Any]]:
        """The grid by dotted keys."""
        return {key if "." in key else f"method.{key}": values for key, values in flat(self.grid).items()}


class ChooseOptions(Section):
    """How settings of a grid are chosen: by training on a part of the training subjects and scoring on the others.

    seeds    seeds of the trainings that choose; none of them is a seed of a result
    share    share of the training subjects that the choice scores on
    unit     what is held out for the choice: subjects, or whole silos
    at       axes that stay at one value while settings are chosen; otherwise each point of the axes has its own choice
    records  whether the records are private: then the choice is not covered by the printed epsilon
    """

    seeds: tuple[Natural, ...] = Field(default=(1001,), min_length=1)
    share: Share = 0.2
    unit: Literal["subject", "silo"] = "subject"
    at: dict[str, Any] = Field(default_factory=dict)
    records: Literal["private", "public"] = "private"


class StudyOptions(Section):
    """A whole study file.

    title       title of the study
    experiment  the base: path of an experiment file, or its content as a table; required unless it is an axis
    seeds       seeds of the results; every contender is trained with each of them
    metric      metric that is compared and by which settings are chosen; by default the headline of the experiment
    reference   contender that the others are compared with; by default the first
    subjects    share of the training subjects that take part, drawn with the seed of the training
    axes        what is varied; every combination of their values is a point
    contenders  the methods that are compared
    choose      how settings are chosen
    """

    title: str
    experiment: str | dict[str, Any] | None = None
    seeds: tuple[Natural, ...] = Field(default=(0, 1, 2), min_length=1)
    metric: str | None = None
    reference: str | None = None
    subjects: Rate = 1.0
    axes: tuple[AxisOptions, ...] = ()
    contenders: tuple[ContenderOptions, ...] = Field(min_length=1)
    choose: ChooseOptions = ChooseOptions()

    @model_validator(mode="after")
    def _names(self) -> Self:
        for what, names in (
            ("contenders", [contender.name for contender in self.contenders]),
            ("axes", [axis.name for axis in self.axes]),
            ("seeds", list(self.seeds)),
        ):
            if len(set(names)) < len(names):
                raise InvalidSetting("duplicate", f"{what} has the same entry twice; give each once")
        if (self.experiment is None) == all(axis.name != BASE for axis in self.axes):
            raise InvalidSetting("conflict", "experiment is either a key of the study or an axis; give one of them")
        if set(self.seeds) & set(self.choose.seeds):
            raise InvalidSetting("conflict", "choose.seeds has a seed of the results; choose with another seed")
        if self.reference is not None and self.reference not in {one.name for one in self.contenders}:
            raise InvalidSetting("unknown-name", f"reference '{self.reference}' is no contender; name one of them")
        points = {axis.name: axis.points for axis in self.axes}
        for name, value in self.choose.at.items():
            if value not in points.get(name, ()):
                raise InvalidSetting("unknown-name", f"choose.at.{name} is no value of an axis; name one of its values")
        return self


def read_study(file: Path) -> StudyOptions:
    """The sections of a study file, each checked for itself."""
    return read_section(file, StudyOptions, "study")


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one level of dotted keys."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def merged(content: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """``content`` with other settings: tables are merged key by key, a dotted key is set as a whole."""
    for key, value in settings.items():
        before = content.get(key)
        if "." in key:
            content = put(content, key, value)
        elif isinstance(value, dict) and isinstance(before, dict):
            content = {**content, key: merged(before, value)}
        else:
            content = {**content, key: value}
    return content


def put(content: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """``content`` with the value of a dotted key."""
    head, _, rest = key.partition(".")
    return {**content, head: put(dict(content.get(head) or {}), rest, value) if rest else value}


def without(content: dict[str, Any], key: str) -> dict[str, Any]:
    """``content`` without a dotted key; the same where it has none."""
    head, _, rest = key.partition(".")
    if not rest or not isinstance(content.get(head), dict):
        return {name: value for name, value in content.items() if name != head or rest}
    return {**content, head: without(content[head], rest)}
