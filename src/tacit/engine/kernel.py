"""The compiled part of a round: local work of a group of silos, their sum, the server's step, the model's outputs.

Built once per (method, server step, exchange, objective) and compiled once per shape.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tacit.exchange import Plain
from tacit.learning import Arrays, Batches, Objective
from tacit.methods import Contribution, Method, ServerState, ServerStep, Total
from tacit.models import Params

# Rows per call of `outputs`: test sets of any size share one compiled shape.
OUTPUT_ROWS = 2048


class Kernels(NamedTuple):
    """Compiled functions of one experiment.

    work       (broadcast, frozen, states, arrays, batches, counts, total) -> (total, states), for stacked silos
    aggregate  (server, totals) -> server
    nobody     (server, frozen, arrays) -> the total before anybody contributed
    """

    work: Callable[..., tuple[Total, Any]]
    aggregate: Callable[[ServerState, tuple[Total, ...]], ServerState]
    nobody: Callable[..., Total]


@lru_cache(maxsize=64)
def kernels(method: Method, step: ServerStep, exchange: Plain, objective: Objective) -> Kernels:
    """The compiled functions; equal arguments share them, so that runs of one process compile once."""

    def local(
        broadcast: Any, frozen: Params, state: Any, arrays: Arrays, batches: Batches, count: jax.Array
    ) -> tuple[Contribution, Any]:
        return method.local(objective, broadcast, frozen, state, arrays, batches, count)

    def work(
        broadcast: Any, frozen: Params, states: Any, arrays: Arrays, batches: Batches, counts: jax.Array, total: Total
    ) -> tuple[Total, Any]:
        def one_silo(total: Total, silo: tuple[Any, Batches, jax.Array]) -> tuple[Total, Any]:
            contribution, state = local(broadcast, frozen, silo[0], arrays, silo[1], silo[2])
            return Total(*exchange.add(total, contribution)), state

        # A scan, not a vmap: every silo's loop runs exactly its own number of steps, and a sum is all that is kept.
        return jax.lax.scan(one_silo, total, (states, batches, counts))

    def nobody(server: ServerState, frozen: Params, arrays: Arrays) -> Total:
        one = Batches(np.zeros((1, 1), np.int32), np.zeros(1, np.int32), np.zeros((), np.int32))
        state = method.silo_state(server.params)
        shape = jax.eval_shape(local, method.broadcast(server), frozen, state, arrays, one, jnp.float32(0))[0]
        return Total(jnp.zeros(shape.vector.shape), jnp.zeros(()))

    def aggregate(server: ServerState, totals: tuple[Total, ...]) -> ServerState:
        vector, weight = sum(total.vector for total in totals), sum(total.weight for total in totals)
        return method.aggregate(step, server, Total(jnp.asarray(vector), jnp.asarray(weight)))

    return Kernels(
        jax.jit(work),
        jax.jit(aggregate),
        nobody,
    )


def outputs(objective: Objective, params: Params, features: np.ndarray) -> np.ndarray:
    """The model's outputs for all rows of ``features [rows, ...]``, in fixed-size pieces."""
    apply = _apply(objective)
    pieces = []
    for start in range(0, len(features), OUTPUT_ROWS):
        piece = features[start : start + OUTPUT_ROWS]
        padding = [(0, OUTPUT_ROWS - len(piece))] + [(0, 0)] * (features.ndim - 1)
        pieces.append(np.asarray(apply(params, np.pad(piece, padding)))[: len(piece)])
    return np.concatenate(pieces) if pieces else np.zeros((0, objective.task.outputs), np.float32)


@lru_cache(maxsize=64)
def _apply(objective: Objective) -> Callable[[Params, Any], jax.Array]:
    return jax.jit(objective.apply)
