"""What a model is, the layers that it is made of, the models of dense layers, and models by name.

A model is a pair of pure functions, ``init(key) -> params`` and ``apply(params, x) -> outputs``. ``params`` is a
dictionary of layers, each a dictionary of arrays such as ``{"w": [in, out], "b": [out]}``: a layer can be frozen by its
name. No layer keeps running statistics (batch normalisation): they would leave a silo without being clipped or noised.

A factory is ``(input_shape, outputs, **numbers) -> Model``; ``input_shape`` is the shape of one record, ``outputs`` how
many numbers the task needs (``task_for(kind, classes).outputs``), ``numbers`` the other keys of ``[model]``. A package
adds a :class:`ModelKind` as an entry point of the group ``tacit.models`` (``tacit.names``). A factory of the user's own
is named ``"package.module:factory"`` and may return a plain pair ``(init, apply)``; its module is installed, or lies in
the working directory, or in a folder that is part of the name: ``"/folder/package.module:factory"``.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tacit.errors import UserError, nearest
from tacit.models.own_code import invalid, load_own, said
from tacit.models.tasks import check_kind
from tacit.names import BuiltIn, find

Params = dict[str, Any]
Layer = dict[str, jax.Array]
Initial = Callable[[jax.Array, tuple[int, int]], jax.Array]
Factory = Callable[..., Any]
# a number of a factory that Tacit sets unless the user does: for modules that draw their initial values themselves
SEED = "seed"
# the name among parameters of the key that units are dropped out with, uint32 [2]; where it is missing, none are
DROPOUT = "dropout:key"


@dataclass(frozen=True, eq=False)
class Model:
    """A named pair of pure functions.

    init     ``key -> params``
    apply    ``(params, x [records, ...]) -> outputs [records, outputs]``
    prepare  what is computed of records once and for all, before ``apply`` sees them: ``[records, ...] -> [records,
             ...]``, record by record and fixed by formula; None: nothing
    fixed    names of params that are never trained: buffers of a module of another framework
    module   ``params -> module`` of the framework that the model comes from; None: of none
    training  ``apply`` in the mode in which the factory returned the module; None where there are no modes
    takes    the type of the numbers of a record, where it is known
    idle     the module has dropout, and it is off
    drops     ``apply`` drops out units where ``params`` hold a key of that name (:data:`DROPOUT`)
    """

    name: str
    init: Callable[[jax.Array], Params]
    apply: Callable[[Params, jax.Array], jax.Array]
    prepare: Callable[[jax.Array], jax.Array] | None = None
    fixed: frozenset[str] = frozenset()
    module: Callable[[Params], Any] | None = None
    training: Callable[[Params, jax.Array], jax.Array] | None = None
    drops: bool = False
    idle: bool = False
    takes: Any = jnp.float32


@dataclass(frozen=True)
class Handling:
    """How a module of another framework is taken.

    convert  replace batch normalisation by group normalisation
    dropout  train with dropout, with a key per record; otherwise it is off
    """

    convert: bool = False
    dropout: bool = False


AS_IT_IS = Handling()


@dataclass(frozen=True)
class ModelKind:
    """A model with a name: its factory, the kinds of label that it is for, and the records that it takes.

    codes  records are integer codes, which columns of a table are not
    """

    factory: Factory
    tasks: tuple[str, ...]
    takes: str = "records of any shape"
    fits: Callable[[tuple[int, ...]], bool] = lambda shape: min(shape, default=1) >= 1
    codes: bool = False


def parameter_count(model: Model | Params) -> int:
    """How many numbers the model learns; of a :class:`Model` without computing its initial values."""
    params = shapes(model) if isinstance(model, Model) else model
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


def is_float32(layer: Any) -> bool:
    """Whether all arrays of a layer are of single precision, as everything that is trained must be."""
    return all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(layer))


def shapes(model: Model) -> Params:
    """The shapes of a model's parameters: traced, or, where ``init`` cannot be traced, from initial values."""
    try:
        return jax.eval_shape(model.init, jax.random.key(0))
    except Exception:  # needs a concrete key, or reads a file
        found = model.init(jax.random.key(0))
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), found)


# --- layers ---


def he(key: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """Normal with variance 2/in: keeps the scale of signals through ReLU (He et al. 2015). ``[in, out]``."""
    return math.sqrt(2.0 / shape[0]) * jax.random.normal(key, shape, jnp.float32)


def glorot(key: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """Uniform with variance 2/(in+out): for linear and tanh layers (Glorot and Bengio 2010). ``[in, out]``."""
    bound = math.sqrt(6.0 / sum(shape))
    return jax.random.uniform(key, shape, jnp.float32, -bound, bound)


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {"relu": jax.nn.relu, "tanh": jnp.tanh}
INITIAL: dict[str, Initial] = {"relu": he, "tanh": glorot}


def dense_init(key: jax.Array, inputs: int, outputs: int, initial: Initial) -> Layer:
    """A dense layer with weights from ``initial`` and a bias of 0."""
    return {"w": initial(key, (inputs, outputs)), "b": jnp.zeros((outputs,), jnp.float32)}


def dense(layer: Layer, x: jax.Array) -> jax.Array:
    """``x w + b``: ``[..., in] -> [..., out]``."""
    return x @ layer["w"] + layer["b"]


def flat(x: jax.Array) -> jax.Array:
    """Records as rows of float32: ``[b, ...] -> [b, features]``."""
    return x.reshape(x.shape[0], -1).astype(jnp.float32)


# --- numbers of [model] ---


def count(key: str, value: Any) -> int:
    """``value`` if it is a whole number of at least 1."""
    if not _is_count(value):
        problem = f"{value!r} is not a whole number of at least 1"
        raise UserError("out-of-range", f"model.{key}", problem, f"write {key} = 32, say")
    return int(value)


def counts(key: str, value: Any, length: int | None = None) -> tuple[int, ...]:
    """``value`` as a tuple of whole numbers of at least 1, ``length`` of them if that is given."""
    values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    if not values or not all(map(_is_count, values)) or (length is not None and len(values) != length):
        wanted = "one or more" if length is None else str(length)
        example = ", ".join(["64"] if length is None else ["16"] * length)
        problem = f"{value!r} is not a list of {wanted} whole numbers of at least 1"
        raise UserError("out-of-range", f"model.{key}", problem, f"write {key} = [{example}], say")
    return tuple(int(v) for v in values)


def activation_named(name: Any) -> Callable[[jax.Array], jax.Array]:
    """The activation that ``model.activation`` names."""
    if name not in ACTIVATIONS:
        raise UserError("unknown-name", "model.activation", f"unknown value {name!r}", nearest(str(name), ACTIVATIONS))
    return ACTIVATIONS[name]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


# --- models that are one linear map of the features; all start at zero ---


class Convexity(NamedTuple):
    """Of a loss that is convex in the outputs of a model that is linear in its parameters, over all outputs and labels:

    slope      the largest norm of its gradient by the outputs
    curvature  the largest eigenvalue of its second derivative by the outputs
    """

    slope: float
    curvature: float


# By model and kind of label. Sigmoid cross-entropy: |p - y| <= 1, p (1 - p) <= 1/4. Softmax cross-entropy: the norm of
# p - e_y is at most sqrt(2), and diag(p) - p p^T is at most 1/2. Squared error has no bound on its slope. ``edges`` and
# ``scattering`` are logistic regression on features that they prepare themselves.
_LOGISTIC = {"binary": Convexity(1.0, 0.25), "multiclass": Convexity(math.sqrt(2), 0.5)}


def convexity(model: str, kind: str, class_weights: Sequence[float] | None = None) -> Convexity | None:
    """The bounds for a model by name, a kind of label, and what losses are multiplied with; None where there are none,
    or none that is known."""
    found = _LOGISTIC.get(kind) if model in ("logistic", "edges", "scattering") else None
    if found is None or class_weights is None:
        return found
    largest = max(class_weights)
    return Convexity(largest * found.slope, largest * found.curvature)


def affine(name: str, features: int, outputs: int, prepare: Callable[[jax.Array], jax.Array] | None = None) -> Model:
    """``x w^T + b`` on records as rows, or on what ``prepare`` makes of them: ``x [b, ...] -> [b, outputs]``."""

    def init(key: jax.Array) -> Params:
        del key
        return {"layer0": {"w": jnp.zeros((outputs, features), jnp.float32), "b": jnp.zeros(outputs, jnp.float32)}}

    def apply(params: Params, x: jax.Array) -> jax.Array:
        # one long row per output: for few outputs the gradient is written 1.6 times faster than [features, outputs]
        layer = params["layer0"]
        result: jax.Array = flat(x) @ layer["w"].T + layer["b"]
        return result

    return Model(name, init, apply, prepare)


def logistic(input_shape: tuple[int, ...], outputs: int) -> Model:
    """Logistic (one output) or softmax (several) regression: ``x [b, ...] -> logits [b, outputs]``."""
    return affine("logistic", math.prod(input_shape), outputs)


def linear(input_shape: tuple[int, ...], outputs: int) -> Model:
    """Linear regression: ``x [b, ...] -> [b, outputs]``."""
    return affine("linear", math.prod(input_shape), outputs)


def cox(input_shape: tuple[int, ...], outputs: int) -> Model:
    """Cox regression's log risk ``x w``: ``x [b, ...] -> [b, outputs]``.

    Without a bias: a constant cancels in the partial likelihood, so that its gradient would be nothing but noise.
    """

    def init(key: jax.Array) -> Params:
        del key
        return {"layer0": {"w": jnp.zeros((math.prod(input_shape), outputs), jnp.float32)}}

    def apply(params: Params, x: jax.Array) -> jax.Array:
        w: jax.Array = params["layer0"]["w"]
        return flat(x) @ w

    return Model("cox", init, apply)


# --- the multi-layer perceptron ---


def mlp(
    input_shape: tuple[int, ...], outputs: int, *, hidden: Sequence[int] = (64,), activation: str = "relu"
) -> Model:
    """Dense layers of ``hidden`` units each, then a linear one: ``x [b, ...] -> [b, outputs]``.

    ``tanh`` bounds what a record can do to a layer and often clips better than ``relu`` under noise.
    """
    sizes = (math.prod(input_shape), *counts("hidden", hidden), outputs)
    act = activation_named(activation)
    last = len(sizes) - 2

    def init(key: jax.Array) -> Params:
        keys = jax.random.split(key, last + 1)
        initials = [INITIAL[activation]] * last + [glorot]
        return {f"layer{i}": dense_init(keys[i], sizes[i], sizes[i + 1], initials[i]) for i in range(last + 1)}

    def apply(params: Params, x: jax.Array) -> jax.Array:
        x = flat(x)
        for i in range(last):
            x = act(dense(params[f"layer{i}"], x))
        return dense(params[f"layer{last}"], x)

    return Model("mlp", init, apply)


# --- models by name ---

LOGISTIC = ModelKind(logistic, ("binary", "multiclass", "multilabel"))
LINEAR = ModelKind(linear, ("real",))
MLP = ModelKind(mlp, ("binary", "multiclass", "multilabel", "real", "survival"))
COX = ModelKind(cox, ("survival",))
MODELS: BuiltIn[ModelKind] = BuiltIn(
    {
        "logistic": "tacit.models.model:LOGISTIC",
        "linear": "tacit.models.model:LINEAR",
        "mlp": "tacit.models.model:MLP",
        "cnn": "tacit.models.images:CNN",
        "edges": "tacit.models.images:EDGES",
        "resnet": "tacit.models.resnet:RESNET",
        "scattering": "tacit.models.scattering:SCATTERING",
        "lstm": "tacit.models.recurrent:LSTM",
        "gru": "tacit.models.recurrent:GRU",
        "transformer": "tacit.models.transformer:TRANSFORMER",
        "cox": "tacit.models.model:COX",
        "packed": "tacit.models.packed_model:KIND",
    }
)


def build(
    name: str, input_shape: tuple[int, ...], outputs: int, handling: Handling = AS_IT_IS, /, **numbers: Any
) -> Model:
    """The model called ``name`` for records of ``input_shape``, with ``numbers`` from the experiment file.

    UserError for an unknown name, unknown or wrong numbers, records that the model cannot take, and a factory of the
    user's own that cannot be loaded or does not give a model.
    """
    input_shape = tuple(int(size) for size in input_shape)
    check_options(name, **numbers)
    known = _kind(name)
    if not known.fits(input_shape):
        fitting = [other for other, kind in MODELS.items() if kind.fits(input_shape) and other != name]
        problem = f"{name} takes {known.takes}, but a record here has shape {list(input_shape)}"
        fix = f"models that take it: {', '.join(fitting) or 'none, records are empty'}"
        raise UserError("not-supported", "model.name", problem, fix)
    if is_built_in(name):
        _check_handling(handling, name)
        model: Model = known.factory(input_shape, outputs, **numbers)
        return model
    return _checked(name, known.factory, input_shape, outputs, handling, numbers)


def _check_handling(handling: Handling, name: str) -> None:
    """Refuse settings for modules where the model is none."""
    for key in ("convert", "dropout"):
        if getattr(handling, key):
            problem = f"'{name}' is not a module of another framework"
            raise UserError("no-effect", f"model.{key}", problem, "leave it out")


def is_built_in(name: str) -> bool:
    """Whether the model is part of Tacit; the code of any other comes from elsewhere."""
    return name in MODELS


def check_options(name: str, **numbers: Any) -> None:
    """Refuse keys of ``[model]`` that the factory does not know, and miss those that it has no default for."""
    try:
        parameters = list(inspect.signature(_kind(name).factory).parameters.values())
    except ValueError:  # some builtins have no signature
        return
    known = {p.name: p.default for p in parameters[2:] if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}
    takes_any = any(p.kind == p.VAR_KEYWORD for p in parameters)
    for key in numbers:
        if key not in known and not takes_any:
            hint = nearest(key, known) if known else "remove it: this model has no numbers to set"
            raise UserError("unknown-key", f"model.{key}", f"'{name}' has no such number", hint)
    for key, default in known.items():
        if default is inspect.Parameter.empty and key not in numbers and key != SEED:
            problem = f"missing, and '{name}' has no default for it"
            raise UserError("missing", f"model.{key}", problem, f"add {key} to [model]")


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
        return ModelKind(load_own(name, "model.name"), (), fits=lambda shape: True)
    return find("tacit.models", MODELS, name, "model.name", ModelKind)


# --- a factory that is not part of Tacit ---


def _checked(
    name: str,
    factory: Factory,
    input_shape: tuple[int, ...],
    outputs: int,
    handling: Handling,
    numbers: Mapping[str, Any],
) -> Model:
    from tacit.models.adapters import from_modules  # these import this module
    from tacit.models.rewriting import rewritten

    def make(seed: int) -> Any:
        drawn = {SEED: seed} if _takes_seed(factory) else {}
        return factory(input_shape, outputs, **drawn | dict(numbers))

    try:
        made = make(0)
    except UserError:
        raise
    except Exception as error:
        raise invalid(name, f"raised {said(error)}", "correct the factory or the numbers it is given") from error
    model = from_modules(name, made, make, input_shape, outputs, handling)
    if model is None:
        _check_handling(handling, name)
        model = Model(name, *made) if isinstance(made, tuple) and len(made) == 2 and all(map(callable, made)) else made
    if not isinstance(model, Model):
        raise invalid(name, f"returned {type(made).__name__}", "return a module, a Model or a pair (init, apply)")
    _check_shapes(model, name, input_shape, outputs)
    _check_apart(model, name, input_shape)
    fast = rewritten(model.apply)
    prepare = None if model.prepare is None else _each(model.prepare)
    return replace(model, apply=lambda params, x: _each(partial(fast, params))(x), prepare=prepare)


def _each(function: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    """``function`` of ``[records, ...]``, computed record by record: whatever it does, no record changes what it gives
    for another one."""
    return jax.vmap(lambda record: function(record[None])[0])


def _takes_seed(factory: Factory) -> bool:
    try:
        return SEED in inspect.signature(factory).parameters
    except ValueError:  # some builtins have no signature
        return False


def _check_shapes(model: Model, name: str, input_shape: tuple[int, ...], outputs: int) -> None:
    """Trace a user's model once, without computing: its parameters and its outputs have to have the right form."""
    try:
        params = shapes(model)
    except Exception as error:
        raise invalid(name, f"init raised {said(error)}", "init takes a key and gives parameters") from error
    leaves = jax.tree.leaves(params)
    if not isinstance(params, dict) or not leaves:
        raise invalid(name, "init gave no dictionary of layers", "give layers by name, each a dictionary of arrays")
    if not any(is_float32(layer) for top, layer in params.items() if top not in model.fixed):
        raise invalid(name, f"init gave {leaves[0].dtype} parameters", "use float32 for what is trained")
    try:
        shape = _output_shape(model, params, input_shape)
    except Exception as error:
        problem = f"apply, on records of shape {list(input_shape)}, raised {said(error)}"
        raise invalid(name, problem, "apply takes params and x [records, ...]") from error
    if shape != (2, outputs):
        raise invalid(name, f"apply gave shape {list(shape)} for 2 records", f"give [records, {outputs}]")


def _check_apart(model: Model, name: str, input_shape: tuple[int, ...]) -> None:
    """Refuse a model whose outputs for a record depend on the other records of a batch: a clip of what one record or
    subject contributes would bound nothing. ``apply`` of ``prepare`` on random batches is compared with ``vmap`` on
    single records: in evaluation mode, in the mode of the module as it was returned, and with dropout if that is on."""
    prepare = model.prepare or (lambda x: x)
    params = model.init(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (4, *input_shape), jnp.float32)
    try:
        jax.eval_shape(lambda p: model.apply(p, prepare(x)), params)
    except Exception:  # texts are integer codes: of any vocabulary, 0 and 1 are two
        x = (x > 0).astype(jnp.int32)
    modes = [(model.apply, params)]
    if model.training is not None:
        modes.append((model.training, params))
    if model.drops:
        modes.append((model.apply, {**params, DROPOUT: jnp.zeros(2, jnp.uint32)}))
    for apply, given in modes:
        for batch in (x, x[::-1] if x.dtype == jnp.int32 else 3 * x[::-1]):
            if not _is_apart(apply, prepare, given, batch):
                problem = "the outputs for a record depend on the other records of a batch, as those of BatchNorm do"
                fix = "use GroupNorm, set model.convert = true (PyTorch), or return the module in evaluation mode"
                raise invalid(name, problem, fix)


def _is_apart(
    apply: Callable[[Params, jax.Array], jax.Array],
    prepare: Callable[[jax.Array], jax.Array],
    params: Params,
    x: jax.Array,
) -> bool:
    together = apply(params, prepare(x))
    try:
        apart = _each(lambda record: apply(params, prepare(record)))(x)
    except ValueError:  # batch normalisation of a single record
        return False
    return bool(jnp.allclose(together, apart, rtol=1e-4, atol=1e-4))


def _output_shape(model: Model, params: Any, input_shape: tuple[int, ...]) -> tuple[int, ...]:
    def of(dtype: Any) -> tuple[int, ...]:
        prepare = model.prepare or (lambda x: x)
        shape = jax.eval_shape(lambda p: model.apply(p, prepare(jnp.zeros((2, *input_shape), dtype))), params).shape
        return tuple(shape)

    try:
        return of(jnp.float32)
    except TypeError:  # texts are integer codes, which is not known from a shape
        return of(jnp.int32)
