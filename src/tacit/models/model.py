"""What a model is, the layers that it is made of, and the models of dense layers.

A model is a pair of pure functions, ``init(key) -> params`` and ``apply(params, x) -> outputs``. ``params`` is a
dictionary of layers, each a dictionary of arrays such as ``{"w": [in, out], "b": [out]}``: a layer can be frozen by its
name. No layer keeps running statistics (batch normalisation): they would leave a silo without being clipped or noised.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tacit.errors import UserError, nearest

Params = dict[str, Any]
Layer = dict[str, jax.Array]
Initial = Callable[[jax.Array, tuple[int, int]], jax.Array]


@dataclass(frozen=True, eq=False)
class Model:
    """A named pair of pure functions.

    init     ``key -> params``
    apply    ``(params, x [records, ...]) -> outputs [records, outputs]``
    prepare  what is computed of records once and for all, before ``apply`` sees them: ``[records, ...] -> [records,
             ...]``, record by record and fixed by formula; None: nothing
    """

    name: str
    init: Callable[[jax.Array], Params]
    apply: Callable[[Params, jax.Array], jax.Array]
    prepare: Callable[[jax.Array], jax.Array] | None = None


def parameter_count(model: Model | Params) -> int:
    """How many numbers the model learns; of a :class:`Model` without computing its initial values."""
    params = jax.eval_shape(model.init, jax.random.key(0)) if isinstance(model, Model) else model
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


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
# p - e_y is at most sqrt(2), and diag(p) - p p^T is at most 1/2. Squared error has no bound on its slope. ``edges`` is
# logistic regression on features that it prepares itself.
_LOGISTIC = {"binary": Convexity(1.0, 0.25), "multiclass": Convexity(math.sqrt(2), 0.5)}


def convexity(model: str, kind: str) -> Convexity | None:
    """The bounds for a model by name and a kind of label; None where there are none, or none that is known."""
    return _LOGISTIC.get(kind) if model in ("logistic", "edges") else None


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
