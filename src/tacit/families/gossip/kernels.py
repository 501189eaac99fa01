"""Kernels of nodes without a server: noise before the first exchange, and a noisy walk from node to node.

Noise is ChaCha20's (``noise``): under one round's key, every node or step has a nonce of its own.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.flatten_util import ravel_pytree

from tacit.kernels.exact_sums import FINEST, clipped, doublings, noise_steps
from tacit.kernels.noise import gaussian, nonce_words
from tacit.kernels.training import Arrays, Objective, rows
from tacit.models import Convexity, Params

# The uses of a round's key: noise on what nodes send, and on the steps of a walk.
NODE_NOISE, STEP_NOISE = 1, 2
# Rows per pass over a visited node: always the largest of these that it has left, in the end the smallest, padded.
# Whatever the others have.
WALK_ROWS = 1024, 128, 16
# About this many normals are drawn at once: enough for full speed, few enough for the cache.
NORMALS_AT_ONCE = 1 << 17


def node_step(clip: float, deviation: float) -> float:
    """The public step of the grid on which a node's update and its noise are added up (``kernels.exact_sums``)."""
    finest = clip * FINEST
    return finest * 2.0 ** doublings(deviation, finest)


def noised(moves: npt.NDArray[np.int64], step: float, deviation: float, key: np.ndarray) -> npt.NDArray[np.float64]:
    """What nodes' models move by, ``[nodes, numbers]``: ``moves`` in whole steps, each with independent normals of a
    standard deviation, rounded to steps. Node k's are those of nonce k.

    Whatever is added to these numbers, with whatever rounding, comes after the noise.
    """
    nodes, numbers = moves.shape
    noisy = moves + np.asarray(_node_noise(nodes, numbers, deviation, step, key), np.int64)
    return noisy.astype(np.float64) * step


@partial(jax.jit, static_argnums=(0, 1))
def _node_noise(nodes: int, numbers: int, deviation: float, step: float, key: jax.Array) -> jax.Array:
    def one(node: jax.Array) -> jax.Array:
        return noise_steps(gaussian(key, nonce_words(NODE_NOISE, 0, node), (numbers,)), deviation, step)

    at_once = max(1, min(nodes, NORMALS_AT_ONCE // max(1, numbers)))
    return jax.lax.map(one, jnp.arange(nodes), batch_size=at_once)


def contracting_weights(arrays: Arrays, convexity: Convexity, clip: float, rate: float) -> jax.Array:
    """For every record the largest weight of its loss, up to 1, under which its gradient has norm at most ``clip`` and
    a step of ``rate`` along it brings no two models further apart: ``[records]``.

    For outputs z = A (x, 1) the loss has a gradient of norm at most slope |(x, 1)| and a smoothness of at most
    curvature |(x, 1)|^2, for every A. A step of at most 2 / smoothness on a convex loss is a contraction. Both hold for
    means of such losses.
    """
    flat = arrays.features.reshape(len(arrays.features), -1).astype(jnp.float32)
    size = 1 + jnp.square(flat).sum(axis=1)
    steepest = clip / (convexity.slope * jnp.sqrt(size))
    longest = 2 / (rate * convexity.curvature * size)
    return jnp.minimum(1.0, jnp.minimum(steepest, longest))


class Walk(NamedTuple):
    """A piece of a walk: the nodes that are visited, by the rows that they hold.

    starts  ``[steps]`` int32, the first row of each
    counts  ``[steps]`` int32, how many rows it has
    """

    starts: jax.Array
    counts: jax.Array


@partial(jax.jit, static_argnames=("objective",))
def walked(
    objective: Objective,
    frozen: Params,
    arrays: Arrays,
    weights: jax.Array,
    params: Params,
    walk: Walk,
    rate: jax.Array,
    clip: jax.Array,
    deviation: jax.Array,
    key: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """The model after a walk, as one vector, and how many gradients were not finite and counted as zero.

    At every node ``theta -= rate (clipped(gradient) + deviation normals)``, with the gradient of the mean over the
    node's rows of ``weights [records]`` times their losses; zero for a node without rows. Rows are added up in passes
    of WALK_ROWS: in what order depends on the node's own number of rows alone.
    """
    start, unravel = ravel_pytree(params)

    def gradient(theta: jax.Array, first: jax.Array, count: jax.Array) -> jax.Array:
        def part(width: int, i: jax.Array, total: jax.Array) -> jax.Array:
            places = i * width + jnp.arange(width)
            inside = places < count
            # padding repeats the node's own last row: an overflow in another node's row would spoil this gradient
            index = first + jnp.minimum(places, count - 1)
            return total + jax.grad(loss)(theta, index, inside)

        total, done = jnp.zeros_like(theta), jnp.zeros_like(count)
        for width in WALK_ROWS:
            passes = (count + (width - 1 if width == WALK_ROWS[-1] else 0)) // width
            total = jax.lax.fori_loop(done // width, passes, partial(part, width), total)
            done = passes * width
        return total / jnp.maximum(count, 1)

    def loss(theta: jax.Array, index: jax.Array, inside: jax.Array) -> jax.Array:
        assert objective.task.losses is not None
        outputs = objective.apply({**unravel(theta), **frozen}, rows(arrays.features, index))
        losses = objective.task.losses(jnp.where(inside[:, None], outputs, 0.0), arrays.labels[index])
        return jnp.sum(jnp.where(inside, weights[index] * losses, 0.0))

    def step(
        state: tuple[jax.Array, jax.Array], visit: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array], None]:
        theta, not_finite = state
        number, first, count = visit
        found = gradient(theta, first, count)
        normals = gaussian(key, nonce_words(STEP_NOISE, number), theta.shape)
        theta = theta - rate * (clipped(found, clip) + deviation * normals)
        return (theta, not_finite + ~jnp.isfinite(found).all()), None

    visits = (jnp.arange(len(walk.starts)), walk.starts, walk.counts)
    return jax.lax.scan(step, (start, jnp.int32(0)), visits)[0]
