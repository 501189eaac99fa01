"""A linear model on histograms of oriented gradients, which are fixed and not learned from data.

A private sum pays for every number of the model, so few and telling features beat many raw pixels. These are fixed by
formula (Dalal and Triggs 2005, simplified): where, and in which direction, does brightness change?
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp

from tacit.errors import UserError
from tacit.models import checks
from tacit.models.model import Model, Params

# Contrast below which a patch counts as empty, for pixels of about unit deviation.
SOFTENING = 5.0
# Brings features to a norm of a few units, whatever their number.
GAIN = 4.0


def fits_edges(input_shape: tuple[int, ...]) -> bool:
    """Whether a record is a greyscale image ``[h, w]`` or ``[h, w, 1]`` with room for two cells a side."""
    return len(input_shape) in (2, 3) and min(input_shape[:2]) >= 8 and input_shape[2:] in ((), (1,))


def edges(input_shape: tuple[int, ...], outputs: int, *, cell: int = 4, directions: int = 8) -> Model:
    """Softmax regression on oriented gradients: ``x [b, h, w] -> logits [b, outputs]``; starts at zero.

    Brightness changes in ``directions`` directions are added up in windows of 2 x 2 cells (``cell`` pixels a side) and
    divided by the window's contrast. 2,890 parameters on 28 x 28 images with ten classes.
    """
    cell, directions = checks.count("cell", cell), checks.count("directions", directions)
    rows, cols = (side // cell for side in input_shape[:2])
    if min(rows, cols) < 2:
        problem = f"{cell} leaves less than two cells a side of an image of {list(input_shape[:2])}"
        raise UserError("out-of-range", "model.cell", problem, "lower it")
    features = (rows - 1) * (cols - 1) * directions
    scale = GAIN / math.sqrt(features)
    angles = jnp.arange(directions) * (2 * math.pi / directions)

    def init(key: jax.Array) -> Params:
        del key
        return {"layer0": {"w": jnp.zeros((outputs, features), jnp.float32), "b": jnp.zeros(outputs, jnp.float32)}}

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

    def apply(params: Params, x: jax.Array) -> jax.Array:
        layer = params["layer0"]
        result: jax.Array = x @ layer["w"].T + layer["b"]
        return result

    return Model("edges", init, apply, prepare=described)
