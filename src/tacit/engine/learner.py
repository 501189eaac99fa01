"""From ``[model]`` and the shape of the data to what is trained: model, task, starting point, frozen layers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from tacit.data import Labels
from tacit.engine.trees import is_finite, load_tree
from tacit.errors import UserError, nearest
from tacit.kernels import Objective, split_frozen
from tacit.models import Model, Params, Task, build, check_fit, is_built_in, parameter_count, task_for
from tacit.planning.experiment import ModelOptions
from tacit.privacy import Randomness


@dataclass(frozen=True)
class Learner:
    """What is trained: ``objective`` over the trainable ``params``, beside the ``frozen`` layers."""

    objective: Objective
    params: Params
    frozen: Params

    @property
    def task(self) -> Task:
        return self.objective.task

    @property
    def parameters(self) -> int:
        return parameter_count(self.params)


def learner(
    options: ModelOptions,
    labels: Labels,
    input_shape: tuple[int, ...],
    randomness: Randomness,
    start: Path | None = None,
) -> Learner:
    """The model of ``[model]`` for these labels and features: at random, or where the public file ``start`` stands."""
    check_fit(options.name, labels.kind)
    task = task_for(labels.kind, len(labels.classes))
    model = _model(options.name, input_shape, task.outputs, options.numbers)
    # compiled as one piece, which is quicker than layer by layer; another model need not be traceable
    init = jax.jit(model.init) if is_built_in(options.name) else model.init
    params = init(jax.random.key(randomness.integer("model")))
    for layer in options.freeze:
        if layer not in params:
            problem = f"'{layer}' is no layer of {options.name}"
            raise UserError("unknown-name", "model.freeze", problem, nearest(layer, params))
    if start is not None:
        params, _ = load_tree(start, params, "model.init_from")
        if not is_finite(params):
            problem = f"'{start.name}' holds numbers that are not finite"
            raise UserError("not-finite", "model.init_from", problem, "use another file")
    if set(options.freeze) == set(params):
        raise UserError("empty", "model.freeze", "names every layer", "leave at least one to be trained")
    return Learner(Objective(model.apply, task, model.prepare), *split_frozen(params, options.freeze))


def _model(name: str, input_shape: tuple[int, ...], outputs: int, numbers: dict[str, Any]) -> Model:
    """One model object per description, so that everything compiled for it is found again."""
    key = (name, input_shape, outputs, repr(sorted(numbers.items())))
    if key not in _models:
        _models[key] = build(name, input_shape, outputs, **numbers)
    return _models[key]


_models: dict[tuple[str, tuple[int, ...], int, str], Model] = {}
