"""Regularisation between models: proximal steps towards a centre, a mean, or the neighbours in a graph.

All of them are implicit steps, the exact minimiser of a quadratic penalty: they are stable for any strength and end, as
the strength goes to infinity, exactly where the penalty wants them.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from tacit.models import Params


def towards(params: Params, centre: Params, strength: float | jax.Array) -> Params:
    """``argmin_x |x - params|^2 + strength |x - centre|^2 = (params + strength centre) / (1 + strength)``."""
    share = strength / (1 + strength)
    return jax.tree.map(lambda p, c: p + share * (c - p), params, centre)


def proximal_point(
    gradient: Callable[[Params], Params],
    start: Params,
    centre: Params,
    weight: float | jax.Array,
    rate: float | jax.Array,
    steps: int,
) -> Params:
    """``argmin_x f(x) + weight/2 |x - centre|^2`` by ``steps`` proximal gradient steps from ``start`` (the inner
    problem of Dinh, Tran, Nguyen 2020, "pFedMe"): along ``gradient`` of f with ``rate``, then implicitly towards the
    centre."""

    def step(_: jax.Array, own: Params) -> Params:
        moved = jax.tree.map(lambda p, g: p - rate * g, own, gradient(own))
        return towards(moved, centre, rate * weight)

    return jax.lax.fori_loop(0, steps, step, start)


def smoothing(relations: jax.Array, strength: float | jax.Array) -> jax.Array:
    """``(I + strength L)^-1 [n, n]``, L the Laplacian of ``relations [n, n]``: applied to rows X it gives
    ``argmin_Y |Y - X|^2 + strength sum_{k<l} W_kl |Y_k - Y_l|^2`` (Smith et al. 2017; Vanhaesebrouck et al. 2017).

    Its rows sum to 1 and no entry is negative: every row becomes an average of all rows, and with growing strength the
    mean of those that are connected. With all relations 1/n it is the pull towards the mean.
    """
    size = len(relations)
    linked = relations * (1 - jnp.eye(size))
    laplacian = jnp.diag(linked.sum(axis=1)) - linked
    return jnp.linalg.inv(jnp.eye(size) + strength * laplacian)


def learned_relations(rows: jax.Array, temperature: float | jax.Array) -> jax.Array:
    """Relations ``[n, n]`` of models ``[n, numbers]``: which are near each other.

    Row k minimises ``sum_l W_kl |x_k - x_l|^2 + T sum_l W_kl ln W_kl`` over probabilities, T the ``temperature`` times
    the mean squared distance: W_kl is proportional to exp(-distance^2 / T). Made symmetric at the end.
    """
    size = len(rows)
    squares = jnp.square(rows).sum(axis=1)
    distances = jnp.maximum(squares[:, None] + squares[None] - 2 * rows @ rows.T, 0.0)
    others = 1 - jnp.eye(size)
    mean = (distances * others).sum() / max(size * (size - 1), 1)
    logs = jnp.where(others > 0, -distances / jnp.maximum(temperature * mean, 1e-30), -jnp.inf)
    shares = jax.nn.softmax(logs, axis=1)
    return (shares + shares.T) / 2
