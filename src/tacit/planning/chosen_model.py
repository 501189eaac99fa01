"""The model and the task that ``[model]`` asks for."""

from __future__ import annotations

from fnmatch import fnmatchcase

from tacit.data import Labels, SourceFacts
from tacit.errors import UserError, nearest
from tacit.models import Model, Params, Task, build, check_fit, check_options, parameter_count, shapes, task_for
from tacit.models.low_rank import is_factor, with_low_rank
from tacit.models.model import Handling, is_float32
from tacit.planning.experiment import ModelOptions


def chosen_task(options: ModelOptions, labels: Labels) -> Task:
    """The task for these labels, with the loss of ``[model]``."""
    return task_for(labels.kind, len(labels.classes), options.class_weights, options.loss)


def chosen_model(options: ModelOptions, input_shape: tuple[int, ...], outputs: int) -> Model:
    """One model object per description, so that everything compiled for it is found again."""
    handling = Handling(options.convert, options.dropout)
    thin, numbers = options.low_rank, options.numbers
    key = (options.name, input_shape, outputs, handling, repr(thin), repr(sorted(numbers.items())))
    if key not in _models:
        made = build(options.name, input_shape, outputs, handling, **numbers)
        _models[key] = made if thin is None else with_low_rank(made, thin.layers, thin.rank)
    return _models[key]


_models: dict[object, Model] = {}


def check_model(options: ModelOptions, facts: SourceFacts) -> None:
    """Refuse a model that does not fit what is publicly known about the data, or whose numbers make no sense."""
    check_fit(options.name, facts.labels.kind, is_table=facts.columns is not None)
    check_options(options.name, **options.numbers)
    task = chosen_task(options, facts.labels)
    if facts.feature_shape is not None:
        chosen_model(options, facts.feature_shape, task.outputs)


def parameters_of(options: ModelOptions, facts: SourceFacts) -> int | None:
    """How many numbers are learned, where the shape of a record is publicly known; frozen layers are not counted."""
    if facts.feature_shape is None:
        return None
    model = chosen_model(options, facts.feature_shape, chosen_task(options, facts.labels).outputs)
    params = shapes(model)
    frozen = frozen_names(options, params, model.fixed)
    return parameter_count({name: layer for name, layer in params.items() if name not in frozen})


def dropout_note(options: ModelOptions, facts: SourceFacts) -> str | None:
    """What to know about a module with dropout, where the shape of a record is publicly known."""
    if facts.feature_shape is None or ":" not in options.name or options.dropout:
        return None
    model = chosen_model(options, facts.feature_shape, chosen_task(options, facts.labels).outputs)
    return "The dropout of this module is off. Set model.dropout = true to train with it." if model.idle else None


def frozen_names(options: ModelOptions, params: Params, fixed: frozenset[str]) -> tuple[str, ...]:
    """Which of the layers or parameters at the top of ``params`` are not trained; ``fixed`` ones never are. With
    ``low_rank``, the factors are trained, and what ``train`` names in addition."""
    free = [name for name in params if name not in fixed]
    for key, patterns in (("train", options.train), ("freeze", options.freeze)):
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in free):
                problem = f"'{pattern}' is no layer or parameter of {options.name}"
                raise UserError("unknown-name", f"model.{key}", problem, nearest(pattern, free))
    trained = [name for name in free if is_factor(name) or any(fnmatchcase(name, one) for one in options.train)]
    if not options.train and options.low_rank is None:
        trained = free
    trained = [name for name in trained if not any(fnmatchcase(name, one) for one in options.freeze)]
    if not trained:
        key = "freeze" if options.freeze else "train"
        raise UserError("empty", f"model.{key}", "no layer is trained", "leave at least one to be trained")
    if wrong := [name for name in trained if not is_float32(params[name])]:
        problem = f"'{wrong[0]}' is not of float32"
        raise UserError("invalid-model", "model.name", problem, "use float32 for what is trained, or freeze it")
    return tuple(name for name in params if name not in trained)
