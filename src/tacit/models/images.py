"""Models for images: a small convolutional network, and a linear model on oriented gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from tacit.errors import UserError
from tacit.models.model import (
    INITIAL,
    Layer,
    Model,
    ModelKind,
    Params,
    activation_named,
    affine,
    count,
    counts,
    dense,
    dense_init,
    glorot,
)

# --- the convolutional network ---


def fits_images(input_shape: tuple[int, ...]) -> bool:
    """Whether a record is an image ``[h, w]`` or ``[h, w, channels]`` that two strided convolutions can look at."""
    return len(input_shape) in (2, 3) and min(input_shape) >= 1 and min(input_shape[:2]) >= 16


def cnn(
    input_shape: tuple[int, ...],
    outputs: int,
    *,
    channels: Sequence[int] = (16, 32),
    hidden: int = 32,
    activation: str = "relu",
) -> Model:
    """Two convolutions (8x8 with padding 3, then 4x4; both at stride 2), each with 2x2 max-pooling, two dense layers.

    ``x [b, h, w]`` or ``[b, h, w, c] -> logits [b, outputs]``. The small network on which private learning is usually
    shown; 26,010 parameters on 28 x 28 greyscale images with ten classes. Kernels ``w [size*size*in, out]`` are ordered
    by row, column, channel.

    Convolutions are written as patches and a matrix product. Training many people or silos at once means weights that
    differ per person, and there a convolution proper falls back to a slow path (6-8 times slower in a loop over people
    on a CPU), while a matrix product stays a matrix product.
    """
    first, second = counts("channels", channels, length=2)
    units = count("hidden", hidden)
    act = activation_named(activation)
    initial = INITIAL[activation]
    depth = input_shape[2] if len(input_shape) == 3 else 1
    flat = math.prod(_size(_size(side + 6, 8), 4) for side in input_shape[:2]) * second

    def init(key: jax.Array) -> Params:
        keys = jax.random.split(key, 4)
        return {
            "layer0": dense_init(keys[0], 64 * depth, first, initial),
            "layer1": dense_init(keys[1], 16 * first, second, initial),
            "layer2": dense_init(keys[2], flat, units, initial),
            "layer3": dense_init(keys[3], units, outputs, glorot),
        }

    def apply(params: Params, x: jax.Array) -> jax.Array:
        x = x.reshape(-1, *input_shape[:2], depth).astype(jnp.float32)
        x = jnp.pad(x, ((0, 0), (3, 3), (3, 3), (0, 0)))
        # pooling before the activation: both are monotone, so the order is free, and there is less to activate
        x = act(max_pool(convolved(params["layer0"], patches(x, 8))))
        x = act(max_pool(convolved(params["layer1"], patches(x, 4))))
        x = act(dense(params["layer2"], x.reshape(x.shape[0], flat)))
        return dense(params["layer3"], x)

    return Model("cnn", init, apply)


CNN = ModelKind(
    cnn,
    ("binary", "multiclass", "multilabel"),
    "images [height, width] or [height, width, channels] of at least 16 x 16",
    fits_images,
)


def patches(x: jax.Array, size: int) -> jax.Array:
    """Every ``size x size`` patch (``size`` even) at stride 2 as a row: ``[b, h, w, c] -> [b, h', w', size*size*c]``.

    At stride 2, a patch consists of whole pairs of columns and whole pairs of rows. Joining pairs first makes all
    slices contiguous and few: ``size/2`` for the columns and as many for the rows, not ``size*size`` strided ones.
    """
    rows, cols = ((side - size) // 2 + 1 for side in x.shape[1:3])
    height, width = 2 * rows + size - 2, 2 * cols + size - 2  # what the patches cover
    b, c, pairs = x.shape[0], x.shape[3], range(size // 2)
    x = x[:, :height, :width].reshape(b, height, width // 2, 2 * c)
    x = jnp.concatenate([x[:, :, j : j + cols] for j in pairs], axis=-1)
    x = x.reshape(b, height // 2, 2, cols, size * c).swapaxes(2, 3).reshape(b, height // 2, cols, 2 * size * c)
    return jnp.concatenate([x[:, i : i + rows] for i in pairs], axis=-1)


def convolved(layer: Layer, x: jax.Array) -> jax.Array:
    """``x w + b`` for many rows and few columns: ``[..., in] -> [..., out]``.

    The same as ``dense``, with a faster gradient: of the two ways to write the gradient of ``w``, a tall matrix product
    ``[in, rows] [rows, out]`` and a wide one ``[out, rows] [rows, in]``, the wide one takes half the time on a CPU (a
    step of the whole network a fifth less). The barrier keeps the compiler from turning it back.
    """
    transposed = jax.lax.optimization_barrier(layer["w"].T)
    return x @ transposed.T + layer["b"]


def max_pool(x: jax.Array) -> jax.Array:
    """Maximum over 2x2 neighbours at stride 1: ``[b, h, w, c] -> [b, h-1, w-1, c]``."""
    x = jnp.maximum(x[:, 1:], x[:, :-1])
    return jnp.maximum(x[:, :, 1:], x[:, :, :-1])


def _size(side: int, kernel: int) -> int:
    """Side after a convolution of ``kernel`` at stride 2 and the pooling after it."""
    return (side - kernel) // 2 + 1 - 1


# --- oriented gradients ---

# Contrast below which a patch counts as empty, for pixels of about unit deviation.
SOFTENING = 5.0
# Brings features to a norm of a few units, whatever their number.
GAIN = 4.0


def fits_edges(input_shape: tuple[int, ...]) -> bool:
    """Whether a record is a greyscale image ``[h, w]`` or ``[h, w, 1]`` with room for two cells a side."""
    return len(input_shape) in (2, 3) and min(input_shape[:2]) >= 8 and input_shape[2:] in ((), (1,))


def edges(input_shape: tuple[int, ...], outputs: int, *, cell: int = 4, directions: int = 8) -> Model:
    """Softmax regression on histograms of oriented gradients: ``x [b, h, w] -> logits [b, outputs]``; starts at zero.

    A private sum pays for every number of the model, so few and telling features beat many raw pixels. These are fixed
    by formula (Dalal and Triggs 2005, simplified): where, and in which direction, does brightness change?

    Brightness changes in ``directions`` directions are added up in windows of 2 x 2 cells (``cell`` pixels a side) and
    divided by the window's contrast. 2,890 parameters on 28 x 28 images with ten classes.
    """
    cell, directions = count("cell", cell), count("directions", directions)
    rows, cols = (side // cell for side in input_shape[:2])
    if min(rows, cols) < 2:
        problem = f"{cell} leaves less than two cells a side of an image of {list(input_shape[:2])}"
        raise UserError("out-of-range", "model.cell", problem, "lower it")
    features = (rows - 1) * (cols - 1) * directions
    scale = GAIN / math.sqrt(features)
    angles = jnp.arange(directions) * (2 * math.pi / directions)

    def described(x: jax.Array) -> jax.Array:
        x = x.reshape(-1, *input_shape[:2]).astype(jnp.float32)
        across = jnp.pad(x[:, :, 2:] - x[:, :, :-2], ((0, 0), (0, 0), (1, 1)))
        down = jnp.pad(x[:, 2:] - x[:, :-2], ((0, 0), (1, 1), (0, 0)))
        along = jax.nn.relu(across[..., None] * jnp.cos(angles) + down[..., None] * jnp.sin(angles))
        along = along[:, : rows * cell, : cols * cell]
        cells = along.reshape(-1, rows, cell, cols, cell, directions).sum((2, 4))
        windows = cells[:, 1:] + cells[:, :-1]
        windows = windows[:, :, 1:] + windows[:, :, :-1]
        contrast = jnp.sqrt(jnp.square(windows).sum(-1, keepdims=True) + SOFTENING)
        return scale * (windows / contrast).reshape(len(x), features)

    return affine("edges", features, outputs, prepare=described)


EDGES = ModelKind(
    edges, ("binary", "multiclass", "multilabel"), "greyscale images [height, width] of at least 8 x 8", fits_edges
)
