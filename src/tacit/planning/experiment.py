"""The experiment file: its sections as frozen values, each checked for itself.

What belongs together is checked where a plan is made of them (``tacit.planning.plan``).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError

from tacit.data import DataOptions, OverCap
from tacit.data.options import Respelled, Section, Share, Whole
from tacit.errors import Deprecated, InvalidSetting, UserError, nearest
from tacit.exchange import Exchange, find_exchange
from tacit.kernels import ServerOptimizer
from tacit.methods import METHODS, Options, find_method
from tacit.planning.settings import Count, Positive, SomeSection, changed, explained, read_toml
from tacit.privacy import Relation, Unit

Made = TypeVar("Made", bound=Options | Exchange)


class Named(Section):
    """A section about something with a name, which may have keys of its own."""

    model_config = ConfigDict(extra="allow", frozen=True)

    @property
    def numbers(self) -> dict[str, Any]:
        """The keys of what is named, such as ``hidden`` of a model."""
        return dict(self.model_extra or {})


class ModelOptions(Named):
    """``[model]``: a name, its numbers, and optionally a public starting point and layers that stay fixed."""

    name: str = "logistic"
    init_from: str | None = None
    freeze: tuple[str, ...] = ()


class TrainOptions(Section):
    """``[train]``: the rounds and the server's step."""

    rounds: Count = 100
    server_learning_rate: Positive = 1.0
    server_optimizer: ServerOptimizer = "sgd"
    evaluate_every: Count | None = None
    checkpoint_every: Count = 10


class PrivacyOptions(Section):
    """``[privacy]``: who is protected from whom, the caps that make it possible, and the budget."""

    delta: Share = 1e-5
    confirm_delta: bool = False
    unit: Unit | None = None
    relation: Relation | None = None
    against: tuple[str, ...] | None = Field(default=None, min_length=1)
    target: Literal["proved", "as-published"] = "proved"
    max_records_per_subject_and_silo: Count | None = None
    max_silos_per_subject: Count | None = None
    over_silo_cap: OverCap = "drop"
    budget: Positive | None = None
    budget_file: str | None = None
    statistics_noise_multiplier: Positive | None = None


class ExchangeOptions(Named):
    """``[exchange]``: how updates travel."""

    name: str = "plain"


class EvaluationOptions(Section):
    """``[evaluation]``: on what the metrics are computed, and what that says about the guarantee.

    With ``data = "none"`` all records are for training, and there are no metrics.

    The other keys go with ``status = "private"``: which metrics of the final model are released with noise, the largest
    loss of a record that counts, and the noise on their sums over the sensitivity for one subject.
    """

    data: str = "held-out"
    status: Annotated[Literal["public", "outside-guarantee", "private", "paid"], Respelled] = "outside-guarantee"
    noise_multiplier: Positive | None = None
    metrics: tuple[str, ...] | None = Field(default=None, min_length=1)
    loss_bound: Positive | None = None


class EngineOptions(Section):
    """``[engine]``: where it runs."""

    name: Literal["simulate"] = "simulate"


def _one_line(text: str) -> str:
    text = text.strip()
    if not text or len(text) > 1000 or not text.isprintable():
        raise InvalidSetting("invalid-value", "write one line of text, at most 1000 characters")
    return text


Line = Annotated[str, AfterValidator(_one_line)]
Lines = Annotated[tuple[Line, ...], Field(min_length=1)]


class GovernanceOptions(Section):
    """``[governance]``: who processes the data, why, and on what basis. The privacy sheet prints it; no epsilon depends
    on it. It is part of the plan that silos compare, so that a run for another purpose is another plan.

    ``tuning`` says how settings were chosen: ``none``, before any result on these records was known; ``private``, by
    results with noise that the ledger or budget file counts; ``not-accounted``, by other results on these records.
    """

    controllers: Lines | None = None
    purpose: Line | None = None
    legal_basis: Line | None = None
    data_categories: Lines | None = None
    recipients: Lines | None = None
    retention: Line | None = None
    contact: Line | None = None
    tuning: Literal["none", "private", "not-accounted"] | None = None


class Experiment(Section):
    """A whole experiment file."""

    title: str = "Untitled experiment"
    seed: Whole | None = None
    data: DataOptions = DataOptions()
    model: ModelOptions = ModelOptions()
    method: dict[str, Any] = Field(default_factory=lambda: {"name": "fedavg"})
    train: TrainOptions = TrainOptions()
    privacy: PrivacyOptions = PrivacyOptions()
    exchange: ExchangeOptions = ExchangeOptions()
    evaluation: EvaluationOptions = EvaluationOptions()
    engine: EngineOptions = EngineOptions()
    governance: GovernanceOptions = GovernanceOptions()

    def made_method(self) -> Options:
        """The options of the method as ``[method]`` describes it; a noise that is to be solved for is not known yet."""
        numbers = dict(self.method)
        if "max_grad_norm" in numbers:  # the name that Opacus gave it
            if "clip" in numbers:
                problem = "is another name of clip, which is given too"
                raise UserError("conflict", "method.max_grad_norm", problem, "keep one of them")
            numbers["clip"] = numbers.pop("max_grad_norm")
        name = numbers.pop("name", None)
        if name is None:
            raise UserError("missing", "method.name", "is missing", f"choose one of {', '.join(METHODS)}")
        made = _made(find_method(str(name)), "method", f"{name}", numbers)
        if "local_epochs" in numbers and numbers.get("batches_per_round") is not None:
            problem = "is given together with batches_per_round"
            raise UserError("conflict", "method.local_epochs", problem, "keep one of the two")
        return made

    def made_exchange(self, name: str | None = None) -> Exchange:
        """The exchange as ``[exchange]`` describes it; ``name`` stands in for a name that is not given."""
        given = self.exchange
        name = name if name is not None and "name" not in given.model_fields_set else given.name
        return _made(find_exchange(name), "exchange", f"the {name} exchange", given.numbers)

    def spelled_out(self) -> dict[str, Any]:
        """Every setting, with all defaults: two files that mean the same give the same."""
        method = self.made_method()
        numbers = {field.name: getattr(method, field.name) for field in fields(method)}
        exchange = self.made_exchange().options()
        return {**self.model_dump(), "method": {"name": method.info.name, **numbers}, "exchange": exchange}


def _made(kind: type[Made], section: str, name: str, numbers: Mapping[str, Any]) -> Made:
    """The options that ``[section]`` describes, checked against the fields of their class."""
    known = [field.name for field in fields(kind)]
    for key in numbers:
        if key not in known:
            problem = f"is not a key of {name}"
            raise UserError("unknown-key", f"{section}.{key}", problem, _right_key(key, known))
    try:
        made: Made = _adapter(kind).validate_python(numbers)
        return made
    except ValidationError as error:
        raise explained(error, Experiment, prefix=section) from None


_adapter: Callable[[Any], TypeAdapter[Any]] = lru_cache(TypeAdapter)


def _right_key(key: str, known: Sequence[str]) -> str:
    """What to write in place of an unknown key: it may belong to another section."""
    if key == "local_learning_rate":
        return "its silos take no steps of their own: set train.server_learning_rate"
    sections = {name: getattr(field.annotation, "model_fields", {}) for name, field in Experiment.model_fields.items()}
    homes = [name for name, keys in sections.items() if key in keys]
    return f"it belongs to another section: {homes[0]}.{key}" if homes else nearest(key, known)


# The keys of an experiment that are paths, by section.
_PATHS = {"data": ("path", "schema_"), "model": ("init_from",), "privacy": ("budget_file",), "evaluation": ("data",)}


def located(experiment: Experiment, folder: Path) -> Experiment:
    """The same experiment with absolute paths in place of those that start at ``folder``."""
    sections = {name: getattr(experiment, name) for name in _PATHS}
    moved = {name: _located(section, name, folder) for name, section in sections.items()}
    if ":" in experiment.model.name:
        moved["model"] = moved["model"].model_copy(update={"name": _located_model(experiment.model.name, folder)})
    changes = {name: section for name, section in moved.items() if section is not sections[name]}
    return experiment.model_copy(update=changes)


def located_data(options: DataOptions, folder: Path) -> DataOptions:
    """``[data]`` with absolute paths."""
    return _located(options, "data", folder)


def _located(section: SomeSection, name: str, folder: Path) -> SomeSection:
    given = {key: value for key in _PATHS[name] if (value := getattr(section, key)) not in (None, "held-out", "none")}
    paths = {key: os.path.abspath(path_from(folder, value)) for key, value in given.items()}
    return section.model_copy(update=paths) if paths else section


def _located_model(name: str, folder: Path) -> str:
    """A user's own model with the folder of its module, if that is the experiment's folder or the current one."""
    top = name.partition(":")[0].partition(".")[0]
    if "/" in top:
        return name
    homes = (home for home in (folder, Path.cwd()) if (home / f"{top}.py").is_file() or (home / top).is_dir())
    home = next(homes, None)
    return name if home is None else f"{os.path.abspath(home)}/{name}"


def path_from(folder: Path, name: str) -> Path:
    return folder / Path(name).expanduser()


def read_experiment(
    source: str | Path | Mapping[str, Any], changes: Sequence[str] = (), epsilon: float | None = None
) -> Experiment:
    """The sections of an experiment, each checked for itself; ``plan`` also checks what belongs together.

    ``epsilon`` is a target in place of the noise that the file gives.
    """
    content = dict(source) if isinstance(source, Mapping) else read_toml(Path(source), "experiment")
    for change in changes:
        content = changed(content, change)
    if not isinstance(source, Mapping):
        _note_old_spellings(content)
    try:
        found = Experiment.model_validate(content)
    except ValidationError as error:
        raise explained(error, Experiment, what="experiment") from None
    if epsilon is None:
        return found
    check_noisy(str(found.method.get("name")))
    method = {key: value for key, value in found.method.items() if key not in noise_keys()}
    return found.model_copy(update={"method": {**method, "target_epsilon": float(epsilon)}})


def check_noisy(method: str) -> None:
    """Refuse to solve for the noise of a method without noise."""
    if not find_method(method).info.private:
        problem = f"{method} adds no noise: there is nothing to solve for"
        raise UserError("not-private", "method.name", problem, "use a private method")


@lru_cache
def noise_keys() -> frozenset[str]:
    """Keys of [method] that say how much noise there is, in place of a target epsilon."""
    return frozenset(options.noise_key for options in METHODS.values() if options.noise_key is not None)


# settings with a value that has a new spelling, "private" instead of "paid"
_RESPELLED = (("data", "standardize"), ("evaluation", "status"))


def _note_old_spellings(content: Mapping[str, Any]) -> None:
    for section, key in _RESPELLED:
        if isinstance(found := content.get(section), Mapping) and found.get(key) == "paid":
            note = f'{section}.{key}: "paid" is deprecated and will be removed in the next release; write "private"'
            warnings.warn(note, Deprecated, stacklevel=3)


def respelled(content: dict[str, Any]) -> dict[str, Any]:
    """The content of an experiment file in the new spelling."""
    for section, key in _RESPELLED:
        if content.get(section, {}).get(key) == "paid":
            content = {**content, section: {**content[section], key: "private"}}
    return content
