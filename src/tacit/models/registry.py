"""From a name in an experiment file to a model: built in, of an installed package, or of the user's own.

An installed package adds a :class:`ModelKind` as an entry point of the group ``tacit.models`` (``tacit.names``). A
model of the user's own is named ``"package.module:factory"``.

A factory is ``(input_shape, outputs, **numbers) -> Model``; ``input_shape`` is the shape of one record, ``outputs`` how
many numbers the task needs (``task_for(kind, classes).outputs``), ``numbers`` the other keys of ``[model]``. A user's
own factory may return a plain pair ``(init, apply)``; its module is installed, or lies in the working directory, or in
a folder that is part of the name: ``"/folder/package.module:factory"``.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from tacit.errors import UserError, nearest
from tacit.models.images import cnn, edges, fits_edges, fits_images
from tacit.models.lstm import fits_texts, lstm
from tacit.models.model import Model, cox, linear, logistic, mlp
from tacit.models.tasks import check_kind
from tacit.names import find

Factory = Callable[..., Any]


def _any_shape(input_shape: tuple[int, ...]) -> bool:
    return min(input_shape, default=1) >= 1


@dataclass(frozen=True)
class ModelKind:
    """A model with a name: its factory, the kinds of label that it is for, and the records that it takes."""

    factory: Factory
    tasks: tuple[str, ...]
    takes: str = "records of any shape"
    fits: Callable[[tuple[int, ...]], bool] = _any_shape
    codes: bool = False  # records are integer codes, which columns of a table are not


MODELS: Mapping[str, ModelKind] = MappingProxyType(
    {
        "logistic": ModelKind(logistic, ("binary", "multiclass")),
        "linear": ModelKind(linear, ("real",)),
        "mlp": ModelKind(mlp, ("binary", "multiclass", "real", "survival")),
        "cnn": ModelKind(
            cnn,
            ("binary", "multiclass"),
            "images [height, width] or [height, width, channels] of at least 16 x 16",
            fits_images,
        ),
        "edges": ModelKind(
            edges, ("binary", "multiclass"), "greyscale images [height, width] of at least 8 x 8", fits_edges
        ),
        "lstm": ModelKind(lstm, ("multiclass",), "texts [characters] of integer codes", fits_texts, codes=True),
        "cox": ModelKind(cox, ("survival",)),
    }
)


def build(name: str, input_shape: tuple[int, ...], outputs: int, **numbers: Any) -> Model:
    """The model called ``name`` for records of ``input_shape``, with ``numbers`` from the experiment file.

    Raises :class:`~tacit.errors.UserError` for an unknown name, unknown or wrong numbers, records that the model cannot
    take, and a factory of the user's own that cannot be loaded or does not give a model.
    """
    input_shape = tuple(int(size) for size in input_shape)
    known = _kind(name)
    _check_keys(name, known.factory, numbers)
    if not known.fits(input_shape):
        fitting = [other for other, kind in MODELS.items() if kind.fits(input_shape) and other != name]
        problem = f"{name} takes {known.takes}, but a record here has shape {list(input_shape)}"
        fix = f"models that take it: {', '.join(fitting) or 'none, records are empty'}"
        raise UserError("not-supported", "model.name", problem, fix)
    if is_built_in(name):
        model: Model = known.factory(input_shape, outputs, **numbers)
        return model
    return _checked(name, known.factory, input_shape, outputs, numbers)


def is_built_in(name: str) -> bool:
    """Whether the model is part of Tacit; the code of any other comes from elsewhere."""
    return name in MODELS


def check_options(name: str, **numbers: Any) -> None:
    """Refuse unknown keys of ``[model]`` before any data is read."""
    _check_keys(name, _kind(name).factory, numbers)


def check_fit(name: str, task_kind: str, *, is_table: bool = False) -> None:
    """Refuse a model that is not made for this kind of label, or for columns of a table; a factory of the user's own is
    trusted."""
    check_kind(task_kind)
    if ":" in name:
        return
    kind = _kind(name)
    if task_kind not in kind.tasks:
        fitting = [other for other in MODELS if task_kind in MODELS[other].tasks]
        problem = f"{name} is for {' or '.join(kind.tasks)} labels, these are {task_kind}"
        raise UserError("not-supported", "model.name", problem, f"models for {task_kind} labels: {', '.join(fitting)}")
    if is_table and kind.codes:
        fitting = [other for other in MODELS if task_kind in MODELS[other].tasks and other in ("logistic", "mlp")]
        problem = f"{name} takes {kind.takes}, not columns of a table"
        raise UserError("not-supported", "model.name", problem, f"use {fitting[0]}")


def _kind(name: str) -> ModelKind:
    if ":" in name:
        return ModelKind(_load(name), (), fits=lambda shape: True)
    return find("tacit.models", MODELS, name, "model.name", ModelKind)


def _check_keys(name: str, factory: Factory, numbers: Mapping[str, Any]) -> None:
    """Refuse keys that a factory does not name beyond shape and outputs, and miss those that it has no default for."""
    try:
        parameters = list(inspect.signature(factory).parameters.values())
    except ValueError:  # some builtins have no signature
        return
    known = {p.name: p.default for p in parameters[2:] if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    takes_any = any(p.kind == p.VAR_KEYWORD for p in parameters)
    for key in numbers:
        if key not in known and not takes_any:
            hint = nearest(key, known) if known else "remove it: this model has no numbers to set"
            raise UserError("unknown-key", f"model.{key}", f"'{name}' has no such number", hint)
    for key, default in known.items():
        if default is inspect.Parameter.empty and key not in numbers:
            problem = f"missing, and '{name}' has no default for it"
            raise UserError("missing", f"model.{key}", problem, f"add {key} to [model]")


# --- a factory that is not part of Tacit ---


def _checked(
    name: str, factory: Factory, input_shape: tuple[int, ...], outputs: int, numbers: Mapping[str, Any]
) -> Model:
    try:
        made = factory(input_shape, outputs, **numbers)
    except UserError:
        raise
    except Exception as error:
        raise _own(name, f"raised {_say(error)}", "correct the factory or the numbers it is given") from error
    if isinstance(made, tuple) and len(made) == 2 and all(map(callable, made)):
        made = Model(name, *made)
    if not isinstance(made, Model):
        raise _own(name, f"returned {type(made).__name__}", "return a tacit.models.Model or a pair (init, apply)")
    _check_shapes(made, name, input_shape, outputs)
    return made


def _load(name: str) -> Factory:
    """The factory of the user's own; its folder is importable only meanwhile, and never hides an installed module."""
    module_path, _, attribute = name.partition(":")
    folder, _, module_name = module_path.rpartition("/")
    folder = folder or os.getcwd()
    sys.path.append(folder)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        problem = f"module '{module_name}' cannot be imported ({_say(error)})"
        raise _own(name, problem, "install it or start from its folder") from error
    finally:
        sys.path.remove(folder)
    factory: Factory | None = getattr(module, attribute, None)
    if not callable(factory):
        public = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise _own(name, f"module '{module_name}' has no function '{attribute}'", nearest(attribute, public))
    return factory


def _check_shapes(model: Model, name: str, input_shape: tuple[int, ...], outputs: int) -> None:
    """Trace a user's model once, without computing: its parameters and its outputs have to have the right form."""
    try:
        params = jax.eval_shape(model.init, jax.random.key(0))
    except Exception as error:
        raise _own(name, f"init raised {_say(error)}", "init takes a key and gives parameters") from error
    leaves = jax.tree.leaves(params)
    if not isinstance(params, dict) or not leaves:
        raise _own(name, "init gave no dictionary of layers", "give layers by name, each a dictionary of arrays")
    wrong = [str(leaf.dtype) for leaf in leaves if leaf.dtype != jnp.float32]
    if wrong:
        raise _own(name, f"init gave {wrong[0]} parameters", "use float32 throughout")
    try:
        shape = _output_shape(model, params, input_shape)
    except Exception as error:
        problem = f"apply, on records of shape {list(input_shape)}, raised {_say(error)}"
        raise _own(name, problem, "apply takes params and x [records, ...]") from error
    if shape != (2, outputs):
        raise _own(name, f"apply gave shape {list(shape)} for 2 records", f"give [records, {outputs}]")


def _output_shape(model: Model, params: Any, input_shape: tuple[int, ...]) -> tuple[int, ...]:
    def of(dtype: Any) -> tuple[int, ...]:
        shape = jax.eval_shape(lambda p: model.apply(p, jnp.zeros((2, *input_shape), dtype)), params).shape
        return tuple(shape)

    try:
        return of(jnp.float32)
    except TypeError:  # texts are integer codes, which is not known from a shape
        return of(jnp.int32)


def _say(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _own(name: str, problem: str, fix: str) -> UserError:
    return UserError("invalid-model", "model.name", f"'{name}': {problem}", fix)
