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


class LowRankOptions(Section):
    """Which matrices get factors of low rank, which are trained in place of them.

    layers  names of layers or parameters, with * for any characters
    rank    rank of the factors
    """

    layers: tuple[str, ...] = Field(min_length=1)
    rank: Count = 4


class ModelOptions(Named):
    """``[model]``: a name, its numbers, and optionally a public starting point and layers that stay fixed.

    name           a built-in model, packed, or package.module:factory for a model of your own
    init_from      file with public starting values of the same shape: safetensors, or a state_dict of PyTorch
    train          names of the layers or parameters that are trained, with * for any characters; all if left out
    freeze         names of layers or parameters that are not trained, with * for any characters
    low_rank       train factors of low rank in place of these matrices, and nothing else but what train names
    convert        replace BatchNorm of a PyTorch module by GroupNorm
    dropout        train a module of your own with its dropout, with a key per record; otherwise dropout is off
    class_weights  factor on the loss of a record, one for each class; declared, not counted from private records
    loss           package.module:function, the loss of one record from its outputs and label; simulator only
    """

    name: str = "logistic"
    init_from: str | None = None
    train: tuple[str, ...] = ()
    freeze: tuple[str, ...] = ()
    low_rank: LowRankOptions | None = None
    convert: bool = False
    dropout: bool = False
    class_weights: tuple[Positive, ...] | None = None
    loss: str | None = None


class TrainOptions(Section):
    """``[train]``: the rounds and the server's step.

    rounds                number of exchanges between silos and server
    server_learning_rate  learning rate of the server's step; 1 with sgd is plain averaging
    server_optimizer      how the server applies the averaged update
    evaluate_every        rounds between two evaluations; by default a hundredth of the rounds
    checkpoint_every      rounds between two checkpoints
    """

    rounds: Count = 100
    server_learning_rate: Positive = 1.0
    server_optimizer: ServerOptimizer = "sgd"
    evaluate_every: Count | None = None
    checkpoint_every: Count = 10


class PrivacyOptions(Section):
    """``[privacy]``: who is protected from whom, the caps that make it possible, and the budget.

    delta                             delta of every printed guarantee; choose a value well below 1 / subjects
    confirm_delta                     accept a delta above 1 / sqrt(subjects), which is refused otherwise
    unit                              who is protected; by default the first unit of the method
    relation                          how neighbouring tables differ: the records of a unit are set to zero (zero-
                                      out) or replaced by others (replace); by default that of the method
    against                           views against which target_epsilon and budget hold, such as public, server or
                                      silo; by default all views of the exchange that the method does not trust
    target                            which epsilon target_epsilon means: the proved one, or the one that the paper
                                      of the method states
    max_records_per_subject_and_silo  cap on the records of a subject in a silo; further records are not used
    max_silos_per_subject             cap on the silos in which a subject has records
    over_silo_cap                     what happens to a subject in more silos than the cap: drop records of further
                                      silos, or refuse the data
    budget                            largest epsilon over all views of against; a run stops before it exceeds it
    budget_file                       file that shares the budget among all runs on the same data
    statistics_noise_multiplier       standardize = "private": noise of the released constants, divided by their
                                      sensitivity; by default it follows from the declared counts
    """

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
    """``[exchange]``: how updates travel.

    name  how updates travel; see the keys of exchanges
    """

    name: str = "plain"


class EvaluationOptions(Section):
    """``[evaluation]``: on what the metrics are computed, and what that says about the guarantee.

    data              records for metrics: held-out, none (all records are for training), or the path of a table
                      with the same columns
    status            whether metrics are public, outside the guarantee, or released with noise (private)
    noise_multiplier  status = "private": noise on the sums of metrics, divided by the sensitivity for one subject
    metrics           status = "private": metrics of the final model that are released
    headline          metric that is shown first and judged by; its default depends on the kind of label
    loss_bound        status = "private": largest loss of a record that counts; required for rmse
    """

    data: str = "held-out"
    status: Annotated[Literal["public", "outside-guarantee", "private", "paid"], Respelled] = "outside-guarantee"
    noise_multiplier: Positive | None = None
    metrics: tuple[str, ...] | None = Field(default=None, min_length=1)
    headline: str | None = None
    loss_bound: Positive | None = None


class EngineOptions(Section):
    """``[engine]``: where it runs.

    name       the simulator
    processes  processes that share one training; the model is the same, bit for bit, for any number of them
    features   where the features of a table are kept: in memory, or in a temporary file (disk) for tables that are
               larger than memory
    """

    name: Literal["simulate"] = "simulate"
    processes: Count = 1
    features: Literal["memory", "disk"] = "memory"


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

    controllers      who decides about the processing, one line each
    purpose          what the model is for
    legal_basis      on what basis the data are processed
    data_categories  kinds of personal data, one line each
    recipients       who receives the model or the report, one line each
    retention        how long run folder and data are kept
    contact          whom subjects can contact
    tuning           how settings were chosen: before any result on these records was known (none), by results with
                     noise that the ledger or budget file counts (private), or by other results on these records
                     (not-accounted)
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
    """A whole experiment file.

    title  title of the experiment; names the run folder and the report
    seed   makes a run reproducible, for studies; without it, randomness comes from the operating system
    """

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
    if experiment.model.name == "packed" and isinstance(path := experiment.model.numbers.get("path"), str):
        path = os.path.abspath(path_from(folder, path))
        moved["model"] = moved["model"].model_copy(update={"path": path})
    own = {key: getattr(experiment.model, key) for key in ("name", "loss")}
    if code := {key: _located_code(name, folder) for key, name in own.items() if name is not None and ":" in name}:
        moved["model"] = moved["model"].model_copy(update=code)
    changes = {name: section for name, section in moved.items() if section is not sections[name]}
    return experiment.model_copy(update=changes)


def located_data(options: DataOptions, folder: Path) -> DataOptions:
    """``[data]`` with absolute paths."""
    return _located(options, "data", folder)


def _located(section: SomeSection, name: str, folder: Path) -> SomeSection:
    given = {key: value for key in _PATHS[name] if (value := getattr(section, key)) not in (None, "held-out", "none")}
    paths = {key: os.path.abspath(path_from(folder, value)) for key, value in given.items()}
    return section.model_copy(update=paths) if paths else section


def _located_code(name: str, folder: Path) -> str:
    """Code of the user's own with the folder of its module, if that is the experiment's folder or the current one."""
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
