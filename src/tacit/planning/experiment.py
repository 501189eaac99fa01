"""The experiment file: its sections as frozen values, each checked for itself.

What belongs together is checked where a plan is made of them (``tacit.planning.plan``).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from tacit.data import DataOptions, OverCap
from tacit.data.options import Count, Positive, Respelled, Section, Share, Whole
from tacit.errors import Deprecated, UserError, nearest
from tacit.kernels import ServerOptimizer
from tacit.methods import METHODS, Options, find_method
from tacit.planning.settings import changed, explained, read_toml
from tacit.privacy import Index, Relation, Unit


class ModelOptions(Section):
    """``[model]``: a name, its numbers, and optionally a public starting point and layers that stay fixed."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str = "logistic"
    init_from: str | None = None
    freeze: tuple[str, ...] = ()

    @property
    def numbers(self) -> dict[str, Any]:
        """The model's own keys, such as ``hidden``."""
        return dict(self.model_extra or {})


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


class ExchangeOptions(Section):
    """``[exchange]``: how updates travel. Which of the numbers an exchange takes, its own class says."""

    name: str = "plain"
    drop_outs: Annotated[int, Field(strict=True, ge=0)] = 0
    colluding: Annotated[int, Field(strict=True, ge=0)] = 0
    precision: Positive = 1e-8
    key_bits: Count = 3072
    hidden_sampling: bool = False
    index: Index = "slots"
    slots: Count | None = None
    sealed: bool = True
    linked: bool = False
    graph: Literal["k-out", "ring", "complete", "erdos-renyi"] = "k-out"
    peers: Count | None = None
    pairwise_multiplier: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] | None = None
    honest: Annotated[float, Field(strict=True, gt=0, le=1)] = 1.0
    graph_seed: Annotated[int, Field(strict=True, ge=0)] = 0

    @property
    def numbers(self) -> dict[str, Any]:
        """What the file says, beyond the name."""
        return {key: getattr(self, key) for key in self.model_fields_set if key != "name"}


class EvaluationOptions(Section):
    """``[evaluation]``: on what the metrics are computed, and what that says about the guarantee.

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

    name: str = "simulate"


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

    def made_method(self) -> Options:
        """The options of the method as ``[method]`` describes it; a noise that is to be solved for is not known yet."""
        return _method(self.method)

    def spelled_out(self) -> dict[str, Any]:
        """Every setting, with the method's defaults too: two files that mean the same give the same."""
        method = self.made_method()
        numbers = {field.name: getattr(method, field.name) for field in fields(method)}
        return {**self.model_dump(), "method": {"name": method.info.name, **numbers}}


def located(experiment: Experiment, folder: Path) -> Experiment:
    """The same experiment with absolute paths in place of those that start at ``folder``."""

    moved = {}
    for name, keys in _PATHS.items():
        section = getattr(experiment, name)
        given = {key: value for key in keys if (value := getattr(section, key)) not in (None, "held-out")}
        paths = {key: os.path.abspath(path_from(folder, value)) for key, value in given.items()}
        if name == "model" and ":" in section.name:
            paths["name"] = _located_model(section.name, folder)
        if paths:
            moved[name] = section.model_copy(update=paths)
    return experiment.model_copy(update=moved)


# The keys of an experiment that are paths, by section.
_PATHS = {"data": ("path", "schema_"), "model": ("init_from",), "privacy": ("budget_file",), "evaluation": ("data",)}


def _located_model(name: str, folder: Path) -> str:
    """A model of the user's own with the folder of its module, where it lies beside the file or where we are."""
    top = name.partition(":")[0].partition(".")[0]
    if "/" in top:
        return name
    homes = (home for home in (folder, Path.cwd()) if (home / f"{top}.py").is_file() or (home / top).is_dir())
    home = next(homes, None)
    return name if home is None else f"{os.path.abspath(home)}/{name}"


def path_from(folder: Path, name: str) -> Path:
    return folder / Path(name).expanduser()


def located_data(options: DataOptions, folder: Path) -> DataOptions:
    paths = {key: getattr(options, key) for key in ("path", "schema_")}
    return options.model_copy(
        update={key: str(path_from(folder, path)) for key, path in paths.items() if path is not None}
    )


def read_experiment(source: str | Path | Mapping[str, Any], changes: Sequence[str] = ()) -> Experiment:
    """The sections of an experiment, each checked for itself; ``plan`` also checks what belongs together."""
    content = dict(source) if isinstance(source, Mapping) else read_toml(Path(source), "experiment")
    for change in changes:
        content = changed(content, change)
    if not isinstance(source, Mapping):
        _note_old_spellings(content)
    try:
        return Experiment.model_validate(content)
    except ValidationError as error:
        raise explained(error, Experiment, what="experiment") from None


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


def _method(section: Mapping[str, Any]) -> Options:
    """The options of ``[method]``, its numbers checked against its fields."""
    numbers = dict(section)
    if "max_grad_norm" in numbers:  # the name that Opacus gave it
        if "clip" in numbers:
            problem = "is another name of clip, which is given too"
            raise UserError("conflict", "method.max_grad_norm", problem, "keep one of them")
        numbers["clip"] = numbers.pop("max_grad_norm")
    name = numbers.pop("name", None)
    if name is None:
        raise UserError("missing", "method.name", "is missing", f"choose one of {', '.join(METHODS)}")
    kind = find_method(str(name))
    known = {field.name for field in fields(kind)}
    for key in numbers:
        if key not in known:
            raise UserError("unknown-key", f"method.{key}", f"is not a key of {name}", _method_key(key, known))
    if "local_epochs" in numbers and numbers.get("batches_per_round") is not None:
        problem = "is given together with batches_per_round"
        raise UserError("conflict", "method.local_epochs", problem, "keep one of the two")
    try:
        return TypeAdapter(kind).validate_python(numbers)
    except ValidationError as error:
        raise explained(error, Experiment, prefix="method") from None


def _method_key(key: str, known: set[str]) -> str:
    """What to do about a key that a method does not have: it may belong to another section."""
    if key == "local_learning_rate":
        return "its silos take no steps of their own: set train.server_learning_rate"
    sections: dict[str, type[Section]] = {
        "train": TrainOptions,
        "privacy": PrivacyOptions,
        "exchange": ExchangeOptions,
        "data": DataOptions,
    }
    homes = [name for name, section in sections.items() if key in section.model_fields]
    return f"it belongs to another section: {homes[0]}.{key}" if homes else nearest(key, known)
