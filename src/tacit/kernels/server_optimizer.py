"""The server's step: what is done with an averaged update.

``sgd`` with rate 1 is FedAvg; the others treat the negated update as a gradient, as in Reddi et al. 2021, "Adaptive
Federated Optimization", algorithm 2: FedAdagrad, FedYogi, FedAdam. With update d, memory m and v (from 0 and tau^2):

    m = beta1 m + (1 - beta1) d
    v = v + d^2                                     adagrad
    v = v - (1 - beta2) d^2 sign(v - d^2)           yogi
    v = beta2 v + (1 - beta2) d^2                   adam
    params += rate m / (sqrt(v) + tau)

``momentum`` is ``m = beta1 m + d; params += rate m``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp

from tacit.models import Params

ServerOptimizer = Literal["sgd", "momentum", "adam", "yogi", "adagrad"]
SERVER_OPTIMIZERS: tuple[ServerOptimizer, ...] = get_args(ServerOptimizer)

BETA1, BETA2, TAU = 0.9, 0.99, 1e-3  # Reddi et al. 2021, section 5 and appendix D


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ServerStep:
    """How the server turns a mean update into the next model: an optimiser by name, and its rate, which may be
    traced."""

    optimizer: ServerOptimizer = field(default="sgd", metadata={"static": True})
    rate: float = 1.0

    def init(self, params: Params) -> Any:
        """The optimiser's memory before the first step: nothing, m, or (m, v)."""
        if self.optimizer == "sgd":
            return ()
        first = jax.tree.map(jnp.zeros_like, params)
        if self.optimizer == "momentum":
            return first
        return first, jax.tree.map(lambda leaf: jnp.full_like(leaf, TAU**2), params)

    def apply(self, params: Params, memory: Any, update: Params) -> tuple[Params, Any]:
        """The next parameters and memory; ``update`` points where the silos want to go."""
        if self.optimizer == "sgd":
            return _moved(params, update, self.rate), ()
        if self.optimizer == "momentum":
            m = jax.tree.map(lambda m, d: BETA1 * m + d, memory, update)
            return _moved(params, m, self.rate), m
        m = jax.tree.map(lambda m, d: BETA1 * m + (1 - BETA1) * d, memory[0], update)
        v = jax.tree.map(self._second, memory[1], update)
        direction = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + TAU), m, v)
        return _moved(params, direction, self.rate), (m, v)

    def _second(self, v: jax.Array, d: jax.Array) -> jax.Array:
        square = jnp.square(d)
        if self.optimizer == "adagrad":
            return v + square
        if self.optimizer == "yogi":
            return v - (1 - BETA2) * square * jnp.sign(v - square)
        return BETA2 * v + (1 - BETA2) * square


def _moved(params: Params, direction: Params, rate: float) -> Params:
    moved: Params = jax.tree.map(lambda p, d: p + rate * d, params, direction)
    return moved
