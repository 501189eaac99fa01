"""The multi-layer perceptron."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax

from tacit.models import checks
from tacit.models.layers import ACTIVATIONS, INITIAL, dense, dense_init, flat, glorot
from tacit.models.model import Model, Params


def mlp(
    input_shape: tuple[int, ...], outputs: int, *, hidden: Sequence[int] = (64,), activation: str = "relu"
) -> Model:
    """Dense layers of ``hidden`` units each, then a linear one: ``x [b, ...] -> [b, outputs]``.

    ``tanh`` bounds what a record can do to a layer and often clips better than ``relu`` under noise.
    """
    sizes = (math.prod(input_shape), *checks.counts("hidden", hidden), outputs)
    act = ACTIVATIONS[checks.choice("activation", activation, tuple(ACTIVATIONS))]
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
