"""Models that are one linear map of the features: logistic, linear and Cox regression.

All start at zero. They differ in the task that they belong to, and Cox has no bias: a constant cancels in the partial
likelihood, so that its gradient would be nothing but noise.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tacit.models.layers import flat
from tacit.models.model import Model, Params


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
_CONVEX = {(model, kind): bounds for model in ("logistic", "edges") for kind, bounds in _LOGISTIC.items()}


def convexity(model: str, kind: str) -> Convexity | None:
    """The bounds for a model by name and a kind of label; None where there are none, or none that is known."""
    return _CONVEX.get((model, kind))


def logistic(input_shape: tuple[int, ...], outputs: int) -> Model:
    """Logistic (one output) or softmax (several) regression: ``x [b, ...] -> logits [b, outputs]``."""
    return _affine("logistic", input_shape, outputs)


def linear(input_shape: tuple[int, ...], outputs: int) -> Model:
    """Linear regression: ``x [b, ...] -> [b, outputs]``."""
    return _affine("linear", input_shape, outputs)


def cox(input_shape: tuple[int, ...], outputs: int) -> Model:
    """Cox regression's log risk ``x w``: ``x [b, ...] -> [b, outputs]``."""
    features = math.prod(input_shape)

    def init(key: jax.Array) -> Params:
        del key
        return {"layer0": {"w": jnp.zeros((features, outputs), jnp.float32)}}

    def apply(params: Params, x: jax.Array) -> jax.Array:
        w: jax.Array = params["layer0"]["w"]
        return flat(x) @ w

    return Model("cox", init, apply)


def _affine(name: str, input_shape: tuple[int, ...], outputs: int) -> Model:
    features = math.prod(input_shape)

    def init(key: jax.Array) -> Params:
        del key
        return {"layer0": {"w": jnp.zeros((outputs, features), jnp.float32), "b": jnp.zeros(outputs, jnp.float32)}}

    def apply(params: Params, x: jax.Array) -> jax.Array:
        # one long row per output: for few outputs the gradient is written 1.6 times faster than [features, outputs]
        layer = params["layer0"]
        result: jax.Array = flat(x) @ layer["w"].T + layer["b"]
        return result

    return Model(name, init, apply)
