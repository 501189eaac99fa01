"""A small residual network without statistics of batches: group normalisation and weight standardisation.

Batch normalisation couples the records of a batch, so that no record's gradient could be bounded. Groups of channels
are normalised within a record instead (Wu and He 2018), and kernels have mean 0 and variance 1/in (Qiao et al. 2019),
the choice of De et al. 2022 for private training of images.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import jax
import jax.numpy as jnp

from tacit.errors import UserError
from tacit.models.images import convolved, fits_images
from tacit.models.model import Layer, Model, ModelKind, Params, count, counts, dense, dense_init, glorot

SIDE = 3  # of every kernel
TINY = 1e-5  # added to variances


def resnet(
    input_shape: tuple[int, ...],
    outputs: int,
    *,
    channels: Sequence[int] = (16, 32, 64),
    blocks: int = 1,
    groups: int = 8,
) -> Model:
    """A convolution, ``blocks`` residual blocks for each number of ``channels``, the mean over places, a dense layer.

    ``x [b, h, w]`` or ``[b, h, w, c] -> logits [b, outputs]``. A block is two 3 x 3 convolutions, each after a
    normalisation in ``groups`` and a ReLU; the first of a stage halves the side, but for the first stage. 77,562
    parameters on 28 x 28 greyscale images with ten classes.
    """
    widths, number, parts = counts("channels", channels), count("blocks", blocks), count("groups", groups)
    if any(width % parts for width in widths):
        problem = f"{parts} does not divide all of {list(widths)}"
        raise UserError("out-of-range", "model.groups", problem, f"write groups = {math.gcd(*widths)}, say")
    depth = input_shape[2] if len(input_shape) == 3 else 1
    # every block: its name, channels in and out, stride
    stages = [(1, widths[0], widths[0]), *((2, before, after) for before, after in pairwise(widths))]
    each = [
        (f"block{stage}_{i}", into if i == 0 else out, out, stride if i == 0 else 1)
        for stage, (stride, into, out) in enumerate(stages)
        for i in range(number)
    ]

    def init(key: jax.Array) -> Params:
        keys = iter(jax.random.split(key, 3 * len(each) + 2))
        params: Params = {"stem": {"w": _kernel(next(keys), depth, widths[0])}}
        for name, into, out, _ in each:
            first, second, across = next(keys), next(keys), next(keys)
            params[name] = {"w0": _kernel(first, into, out), "w1": _kernel(second, out, out)}
            params[name] |= {"gain0": jnp.ones(into), "shift0": jnp.zeros(into)}
            params[name] |= {"gain1": jnp.ones(out), "shift1": jnp.zeros(out)}
            if into != out:
                params[name]["across"] = glorot(across, (into, out))
        params["last"] = {"gain": jnp.ones(widths[-1]), "shift": jnp.zeros(widths[-1])}
        return params | {"dense": dense_init(next(keys), widths[-1], outputs, glorot)}

    def apply(params: Params, x: jax.Array) -> jax.Array:
        x = x.reshape(-1, *input_shape[:2], depth).astype(jnp.float32)
        x = _convolution(params["stem"]["w"], x, 1)
        for name, _, _, stride in each:
            x = _block(params[name], x, stride, parts)
        last = params["last"]
        x = jax.nn.relu(group_norm(x, last["gain"], last["shift"], parts))
        return dense(params["dense"], x.mean(axis=(1, 2)))

    return Model("resnet", init, apply)


RESNET = ModelKind(
    resnet,
    ("binary", "multiclass", "multilabel", "real"),
    "images [height, width] or [height, width, channels] of at least 16 x 16",
    fits_images,
)


def _block(layer: Layer, x: jax.Array, stride: int, groups: int) -> jax.Array:
    h = jax.nn.relu(group_norm(x, layer["gain0"], layer["shift0"], groups))
    past = x[:, ::stride, ::stride]
    if "across" in layer:
        past = h[:, ::stride, ::stride] @ layer["across"]
    h = _convolution(layer["w0"], h, stride)
    h = jax.nn.relu(group_norm(h, layer["gain1"], layer["shift1"], groups))
    return past + _convolution(layer["w1"], h, 1)


def group_norm(x: jax.Array, gain: jax.Array, shift: jax.Array, groups: int) -> jax.Array:
    """``x [b, h, w, c]`` with mean 0 and variance 1 in each of ``groups`` groups of channels of a record, times
    ``gain [c]``, plus ``shift [c]``."""
    parts = x.reshape(*x.shape[:-1], groups, -1)
    mean = parts.mean(axis=(1, 2, 4), keepdims=True)
    spread = jnp.square(parts - mean).mean(axis=(1, 2, 4), keepdims=True)
    return ((parts - mean) * jax.lax.rsqrt(spread + TINY)).reshape(x.shape) * gain + shift


def _kernel(key: jax.Array, into: int, out: int) -> jax.Array:
    """``[9 in, out]``; its scale does not matter, because kernels are standardised."""
    size = SIDE * SIDE * into
    return jax.random.normal(key, (size, out), jnp.float32) / math.sqrt(size)


def _convolution(w: jax.Array, x: jax.Array, stride: int) -> jax.Array:
    """A 3 x 3 convolution with zeros around ``x [b, h, w, c]``, by patches and a matrix product (as in ``cnn``)."""
    centred = w - w.mean(axis=0)
    kernel = centred * jax.lax.rsqrt(jnp.square(centred).sum(axis=0) + TINY)
    height, width = x.shape[1:3]
    x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    rows = [x[:, i : i + height : stride] for i in range(SIDE)]
    patches = [row[:, :, j : j + width : stride] for row in rows for j in range(SIDE)]
    return convolved({"w": kernel, "b": jnp.zeros(())}, jnp.concatenate(patches, axis=-1))
