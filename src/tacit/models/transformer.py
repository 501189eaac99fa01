"""A small transformer: on the codes of a text, or on the columns of a table.

Every token is a code of the text with its place, or a column: its value times a vector of its own, plus another
(Gorishniy et al. 2021). Blocks normalise first (Xiong et al. 2020). Normalisation is within a token, so that no record
depends on another.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from tacit.errors import UserError
from tacit.models.model import Layer, Model, ModelKind, Params, count, dense, dense_init, glorot, he

TINY = 1e-5  # added to variances


def fits_rows(input_shape: tuple[int, ...]) -> bool:
    """Whether a record is a row ``[codes]`` or ``[columns]``."""
    return len(input_shape) == 1 and input_shape[0] >= 1


def transformer(
    input_shape: tuple[int, ...],
    outputs: int,
    *,
    vocabulary: int | None = None,
    width: int = 32,
    heads: int = 4,
    layers: int = 2,
    hidden: int = 64,
) -> Model:
    """``layers`` blocks of attention with ``heads`` heads and of two dense layers, on tokens of ``width`` numbers.

    ``x [b, tokens] -> [b, outputs]``. With ``vocabulary``, ``x`` are codes 0 .. vocabulary-1, and codes beyond it count
    as its last; without it, ``x`` are numbers, one for each column. The mean over tokens goes to the last layer. 17,569
    parameters on 10 columns with one output.
    """
    tokens, size, number = input_shape[0], count("width", width), count("layers", layers)
    parts, inner = count("heads", heads), count("hidden", hidden)
    codes = None if vocabulary is None else count("vocabulary", vocabulary)
    if size % parts:
        raise UserError("out-of-range", "model.heads", f"{parts} does not divide width {size}", "write heads = 4, say")

    def init(key: jax.Array) -> Params:
        of_tokens, of_places, of_last, *keys = jax.random.split(key, 3 + number)
        places = jax.random.normal(of_places, (tokens, size), jnp.float32)
        if codes is None:
            params: Params = {"columns": {"w": glorot(of_tokens, (tokens, size)), "b": 0.1 * places}}
        else:
            w = jax.random.normal(of_tokens, (codes, size), jnp.float32)
            params = {"embedding": {"w": w}, "places": {"w": 0.1 * places}}
        for i, of_block in enumerate(keys):
            params |= _block_init(f"layer{i}", of_block, size, inner)
        return params | {"last": _norm_init(size), "dense": dense_init(of_last, size, outputs, glorot)}

    def apply(params: Params, x: jax.Array) -> jax.Array:
        if codes is not None:
            h = params["embedding"]["w"][x.astype(jnp.int32)] + params["places"]["w"]
        elif jnp.issubdtype(x.dtype, jnp.integer):
            raise UserError("missing", "model.vocabulary", "records are texts of codes", "write the number of codes")
        else:
            h = x[..., None] * params["columns"]["w"] + params["columns"]["b"]
        for i in range(number):
            h = h + _attention(params[f"layer{i}_attention"], h, parts)
            layer = params[f"layer{i}_dense0"]
            h = h + dense(params[f"layer{i}_dense1"], jax.nn.relu(dense(layer, _normed(layer, h))))
        return dense(params["dense"], _normed(params["last"], h).mean(axis=1))

    return Model("transformer", init, apply)


TRANSFORMER = ModelKind(
    transformer,
    ("binary", "multiclass", "multilabel", "real"),
    "columns of a table, or texts of integer codes",
    fits_rows,
)


def _norm_init(size: int) -> Layer:
    return {"gain": jnp.ones(size, jnp.float32), "shift": jnp.zeros(size, jnp.float32)}


def _block_init(name: str, key: jax.Array, size: int, inner: int) -> Params:
    of_tokens, of_result, first, second = jax.random.split(key, 4)
    attention = {"w": glorot(of_tokens, (size, 3 * size)), "out": glorot(of_result, (size, size))}
    return {
        f"{name}_attention": attention | _norm_init(size),
        f"{name}_dense0": dense_init(first, size, inner, he) | _norm_init(size),
        f"{name}_dense1": dense_init(second, inner, size, glorot),
    }


def _normed(layer: Layer, x: jax.Array) -> jax.Array:
    """``x [..., size]`` with mean 0 and variance 1 in each token, times ``gain``, plus ``shift``."""
    centred = x - x.mean(axis=-1, keepdims=True)
    spread = jnp.square(centred).mean(axis=-1, keepdims=True)
    return centred * jax.lax.rsqrt(spread + TINY) * layer["gain"] + layer["shift"]


def _attention(layer: Layer, x: jax.Array, heads: int) -> jax.Array:
    """``x [b, tokens, size] -> [b, tokens, size]``: every token looks at all of its record."""
    asked, keys, values = jnp.split((_normed(layer, x) @ layer["w"]).reshape(*x.shape[:2], heads, -1), 3, axis=-1)
    weights = jax.nn.softmax(jnp.einsum("bthd,bshd->bhts", asked, keys) / math.sqrt(asked.shape[-1]), axis=-1)
    return jnp.einsum("bhts,bshd->bthd", weights, values).reshape(x.shape) @ layer["out"]
