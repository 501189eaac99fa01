"""A model of one's own: a linear map and a small correction to it.

A factory is given the shape of one record, how many outputs the task needs, and the other keys of ``[model]``. It
returns two pure functions: ``init(key) -> params`` and ``apply(params, x [records, ...]) -> [records, outputs]``.
``params`` is a dictionary of layers, each a dictionary of float32 arrays; a layer can be frozen by its name.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def residual(input_shape: tuple[int, ...], outputs: int, *, units: int = 16) -> tuple[Any, Any]:
    """``x w + tanh(x u) v``: starts as plain linear regression, because ``v`` starts at zero."""
    (features,) = input_shape

    def init(key: jax.Array) -> dict[str, Any]:
        return {
            "direct": {"w": jnp.zeros((features, outputs)), "b": jnp.zeros(outputs)},
            "inner": {"u": jax.random.normal(key, (features, units)) / features**0.5},
            "outer": {"v": jnp.zeros((units, outputs))},
        }

    def apply(params: dict[str, Any], x: jax.Array) -> jax.Array:
        direct = x @ params["direct"]["w"] + params["direct"]["b"]
        return direct + jnp.tanh(x @ params["inner"]["u"]) @ params["outer"]["v"]

    return init, apply
