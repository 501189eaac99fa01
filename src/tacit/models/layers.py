"""Parts of models: initial values, dense layers, activations.

A layer is a dictionary ``{"w": [in, out], "b": [out]}``; a model's parameters are a dictionary of named layers.
No layer keeps running statistics (batch normalisation): they would leave a silo without being clipped or noised.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

Layer = dict[str, jax.Array]

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {"relu": jax.nn.relu, "tanh": jnp.tanh}


def he(key: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """Normal with variance 2/in: keeps the scale of signals through ReLU (He et al. 2015). ``[in, out]``."""
    return math.sqrt(2.0 / shape[0]) * jax.random.normal(key, shape, jnp.float32)


def glorot(key: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """Uniform with variance 2/(in+out): for linear and tanh layers (Glorot and Bengio 2010). ``[in, out]``."""
    bound = math.sqrt(6.0 / sum(shape))
    return jax.random.uniform(key, shape, jnp.float32, -bound, bound)


Initial = Callable[[jax.Array, tuple[int, int]], jax.Array]
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
