"""A linear model on a scattering transform: fixed wavelets, no learned features.

Tramer and Boneh 2021 show that a linear model on such features is better than a network that is trained privately on
few records. The transform is that of Bruna and Mallat 2013: moduli of wavelet transforms, twice, averaged. Every number
is fixed by formula and computed record by record, so that the features cost no privacy.
"""

from __future__ import annotations

import math
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np

from tacit.errors import UserError
from tacit.models.images import GAIN, fits_edges
from tacit.models.model import Model, ModelKind, affine, count

TOGETHER = 16  # images that are transformed in one pass: memory does not grow with their number
TINY = 1e-5  # added to variances


def scattering(input_shape: tuple[int, ...], outputs: int, *, scales: int = 2, directions: int = 8) -> Model:
    """Softmax regression on first- and second-order scattering: ``x [b, h, w] -> logits [b, outputs]``; starts at zero.

    Wavelets of ``scales`` sizes in ``directions`` directions give 1 + scales * directions + directions^2 * scales *
    (scales - 1) / 2 channels, each averaged over squares of 2^scales pixels. The directions of one wavelet are
    normalised together, within a record. 39,700 parameters on 28 x 28 images with ten classes.
    """
    sizes, turns = count("scales", scales), count("directions", directions)
    cell = 2**sizes
    rows, cols = (side // cell for side in input_shape[:2])
    if min(rows, cols) < 1:
        problem = f"2^{sizes} pixels do not fit into an image of {list(input_shape[:2])}"
        raise UserError("out-of-range", "model.scales", problem, "lower it")
    sides = (rows * cell + 2 * cell, cols * cell + 2 * cell)
    down, across = (_averages(side, cell) for side in sides)
    waves = _wavelets(sides, sizes, turns)
    channels = 1 + sizes * turns + turns**2 * sizes * (sizes - 1) // 2
    features = channels * rows * cols
    scale = GAIN / math.sqrt(features)

    def described(x: jax.Array) -> jax.Array:
        return jax.lax.map(one, x.reshape(-1, *input_shape[:2]).astype(jnp.float32), batch_size=TOGETHER)

    def one(image: jax.Array) -> jax.Array:
        image = jnp.pad(image[: rows * cell, : cols * cell], cell, mode="symmetric")
        spectrum = jnp.fft.fft2(image)
        found = [averaged(image)]
        for size in range(sizes):
            first = jnp.abs(jnp.fft.ifft2(spectrum * waves[size]))  # [directions, …]
            found += [averaged(first)]
            for wider in range(size + 1, sizes):
                found += [averaged(jnp.abs(jnp.fft.ifft2(jnp.fft.fft2(first)[:, None] * waves[wider])))]
        return scale * jnp.concatenate([_normal(part).ravel() for part in found])

    def averaged(part: jax.Array) -> jax.Array:
        return down @ part @ across.T

    return affine("scattering", features, outputs, prepare=described)


SCATTERING = ModelKind(
    scattering, ("binary", "multiclass", "multilabel"), "greyscale images [height, width] of at least 8 x 8", fits_edges
)


def _normal(part: jax.Array) -> jax.Array:
    """``[..., directions, rows, cols]`` with mean 0 and variance 1 over the last three axes."""
    axes = range(max(-3, -part.ndim), 0)
    centred = part - part.mean(axis=tuple(axes), keepdims=True)
    return centred * jax.lax.rsqrt(jnp.square(centred).mean(axis=tuple(axes), keepdims=True) + TINY)


def _bell(sides: tuple[int, int], width: float, angle: float, slant: float, frequency: float) -> np.ndarray:
    """A Gaussian of standard deviation ``width`` along ``angle`` and ``width / slant`` across it, with a wave of
    ``frequency`` along ``angle``; mass 1 without the wave. The image is periodic. ``[height, width]``, complex."""
    total = np.zeros(sides, complex)
    pixels = np.meshgrid(*(np.arange(side) for side in sides), indexing="ij")
    for turns in product(range(-2, 3), repeat=2):
        rows, cols = (place + turn * side for place, turn, side in zip(pixels, turns, sides, strict=True))
        along = rows * math.cos(angle) + cols * math.sin(angle)
        across = cols * math.cos(angle) - rows * math.sin(angle)
        envelope = np.exp(-(along**2 + (slant * across) ** 2) / (2 * width**2))
        total += envelope * np.exp(1j * frequency * along)
    return total * slant / (2 * math.pi * width**2)


def _averages(side: int, cell: int) -> jax.Array:
    """Gaussian means around every cell's first pixel, without the cells at both ends: ``[cells - 2, side]``."""
    width = 0.4 * cell
    away = np.arange(cell, side - cell, cell)[:, None] - np.arange(side)
    copies = [np.exp(-((away + turn * side) ** 2) / (2 * width**2)) for turn in range(-2, 3)]
    return jnp.asarray(np.sum(copies, axis=0) / (math.sqrt(2 * math.pi) * width), jnp.float32)


def _wavelets(sides: tuple[int, int], scales: int, directions: int) -> list[jax.Array]:
    """For every scale the spectra of Morlet wavelets, ``[directions, height, width]``: waves with mean 0."""

    def spectrum(scale: int, turn: int) -> np.ndarray:
        numbers = (0.8 * 2**scale, math.pi * turn / directions, 4 / directions)
        wave, bell = (_bell(sides, *numbers, frequency) for frequency in (0.75 * math.pi / 2**scale, 0.0))
        return np.fft.fft2(wave - bell * wave.sum() / bell.sum()).real

    return [jnp.asarray([spectrum(scale, turn) for turn in range(directions)], jnp.float32) for scale in range(scales)]
