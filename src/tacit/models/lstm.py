"""A stacked LSTM for the next character of a text, with two linear layers at the end, as in paper 004.

The paper gives no sizes. The defaults (embedding 8, two layers as in the LEAF benchmark, 64 units where that has 256)
keep the model small, because the noise of private learning grows with the number of parameters; ``hidden = 256`` is the
benchmark's.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from tacit.models import checks
from tacit.models.layers import Layer, dense, dense_init, glorot, he
from tacit.models.model import Model, Params


def fits_texts(input_shape: tuple[int, ...]) -> bool:
    """Whether a record is a sequence of codes ``[characters]``."""
    return len(input_shape) == 1 and input_shape[0] >= 1


def lstm(
    input_shape: tuple[int, ...],
    outputs: int,
    *,
    vocabulary: int | None = None,
    embedding: int = 8,
    hidden: int = 64,
    layers: int = 2,
    dense_units: int = 32,
) -> Model:
    """Embedding, ``layers`` LSTMs of ``hidden`` units, two dense layers on the last state.

    ``x [b, characters]`` int codes 0 .. vocabulary-1 ``-> logits [b, outputs]``. The vocabulary is what is predicted
    (``outputs``) unless it is given. Codes beyond it count as its last.
    """
    codes = outputs if vocabulary is None else checks.count("vocabulary", vocabulary)
    width, units = checks.count("embedding", embedding), checks.count("hidden", hidden)
    depth, narrow = checks.count("layers", layers), checks.count("dense_units", dense_units)

    def init(key: jax.Array) -> Params:
        keys = jax.random.split(key, depth + 3)
        params: Params = {"embedding": {"w": jax.random.normal(keys[0], (codes, width), jnp.float32)}}
        for i in range(depth):
            params[f"layer{i}"] = cell_init(keys[1 + i], width if i == 0 else units, units)
        params[f"layer{depth}"] = dense_init(keys[-2], units, narrow, he)
        params[f"layer{depth + 1}"] = dense_init(keys[-1], narrow, outputs, glorot)
        return params

    def apply(params: Params, x: jax.Array) -> jax.Array:
        h = params["embedding"]["w"][x.astype(jnp.int32).T]
        for i in range(depth):
            h = run_cell(params[f"layer{i}"], h)
        h = jax.nn.relu(dense(params[f"layer{depth}"], h[-1]))
        return dense(params[f"layer{depth + 1}"], h)

    return Model("lstm", init, apply)


def cell_init(key: jax.Array, inputs: int, units: int) -> Layer:
    """``{"w": [in + units, 4 units], "b": [4 units]}``, gates side by side: input, forget, candidate, output.

    The forget gate starts open (bias 1), so that gradients reach the beginning of a text.
    """
    of_input, of_state = jax.random.split(key)
    w = jnp.concatenate([glorot(of_input, (inputs, 4 * units)), glorot(of_state, (units, 4 * units))])
    return {"w": w, "b": jnp.zeros((4 * units,), jnp.float32).at[units : 2 * units].set(1.0)}


def run_cell(layer: Layer, x: jax.Array) -> jax.Array:
    """States of one layer: ``x [time, b, in] -> [time, b, units]``. The inputs of all steps are one matrix product."""
    units = layer["b"].shape[0] // 4
    inputs = x.shape[-1]
    w_x, w_h = layer["w"][:inputs], layer["w"][inputs:]

    def step(carry: tuple[jax.Array, jax.Array], z_x: jax.Array) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        h, c = carry
        i, f, g, o = jnp.split(z_x + h @ w_h, 4, axis=-1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    start = jnp.zeros((x.shape[1], units), jnp.float32)
    return jax.lax.scan(step, (start, start), x @ w_x + layer["b"])[1]
