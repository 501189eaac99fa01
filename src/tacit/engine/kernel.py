"""The compiled part of a round: local work of a group of silos, their sum, the server's step, the model's outputs.

Built once per (method, server step, exchange, objective) and compiled once per shape.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tacit.exchange import Exchange, Plain
from tacit.learning import Arrays, Objective, ServerStep, Work, power_of_two
from tacit.methods import Facts, Method, ServerState
from tacit.models import Params

# Largest number of rows per call of `outputs`; smaller pieces are padded to a power of two.
OUTPUT_ROWS = 2048


class Kernels(NamedTuple):
    """Compiled functions of one experiment.

    work       (broadcast, frozen, states, arrays, batches, counts, total) -> (total, states), for stacked silos
    each       (broadcast, frozen, states, arrays, batches, counts) -> (vectors, states): each silo's own contribution
    aggregate  (server, totals of the lanes, keys and weights of the noise) -> server; no noise where the exchange has
               added it
    nobody     (server, frozen, arrays, batches of nobody) -> the total before anybody contributed
    """

    work: Callable[..., tuple[jax.Array, Any]]
    each: Callable[..., tuple[jax.Array, Any]]
    aggregate: Callable[[ServerState, tuple[jax.Array, ...], Any], ServerState]
    nobody: Callable[[ServerState, Params, Arrays, Any], jax.Array]


@lru_cache(maxsize=64)
def kernels(method: Method, step: ServerStep, exchange: Exchange, objective: Objective, facts: Facts) -> Kernels:
    """The compiled functions; equal arguments share them, so that runs of one process compile once."""

    plain = exchange if isinstance(exchange, Plain) else Plain()

    def work(
        broadcast: Any,
        frozen: Params,
        states: Any,
        arrays: Arrays,
        batches: Any,
        counts: jax.Array,
        total: jax.Array,
    ) -> tuple[jax.Array, Any]:
        def one_silo(total: jax.Array, silo: tuple[Any, Any, jax.Array]) -> tuple[jax.Array, Any]:
            state, own, count = silo
            vector, state = method.local(Work(objective, frozen, arrays, own, count), broadcast, state)
            return plain.add(total, vector), state

        # A scan, not a vmap: every silo's loop runs exactly its own number of steps, and a sum is all that is kept.
        return jax.lax.scan(one_silo, total, (states, batches, counts))

    def each(
        broadcast: Any, frozen: Params, states: Any, arrays: Arrays, batches: Any, counts: jax.Array
    ) -> tuple[jax.Array, Any]:
        def one_silo(nothing: None, silo: tuple[Any, Any, jax.Array]) -> tuple[None, tuple[jax.Array, Any]]:
            state, own, count = silo
            return nothing, method.local(Work(objective, frozen, arrays, own, count), broadcast, state)

        return jax.lax.scan(one_silo, None, (states, batches, counts))[1]

    noise = method.sum_noise(facts) if exchange == plain else None

    def aggregate(server: ServerState, totals: tuple[jax.Array, ...], keys: Any) -> ServerState:
        total = reduce(plain.add, totals)
        return method.aggregate(step, server, total if noise is None else plain.noised(total, noise, *keys), facts)

    def nobody(server: ServerState, frozen: Params, arrays: Arrays, nothing: Any) -> jax.Array:
        def local(frozen: Params, arrays: Arrays, batches: Any, broadcast: Any, state: Any) -> jax.Array:
            return method.local(Work(objective, frozen, arrays, batches, jnp.float32(0)), broadcast, state)[0]

        state = method.silo_state(server.params)
        return jnp.zeros(jax.eval_shape(local, frozen, arrays, nothing, method.broadcast(server), state).shape)

    return Kernels(jax.jit(work), jax.jit(each), jax.jit(aggregate), nobody)


def outputs(objective: Objective, params: Params, features: np.ndarray) -> np.ndarray:
    """The model's outputs for all rows of ``features [rows, ...]``, as they are before ``prepare``."""
    found = _in_pieces(partial(_apply(objective), params), features)
    return np.concatenate(found) if found else np.zeros((0, objective.task.outputs), np.float32)


def prepared(objective: Objective, features: np.ndarray) -> np.ndarray:
    """What training works on: ``features [rows, ...]`` as the model wants them."""
    if objective.prepare is None or len(features) == 0:
        return features
    return np.concatenate(_in_pieces(_prepare(objective), features))


def _in_pieces(function: Callable[[Any], jax.Array], features: np.ndarray) -> list[np.ndarray]:
    """``function`` of all rows, in pieces of few different sizes."""
    pieces = []
    for start in range(0, len(features), OUTPUT_ROWS):
        piece = features[start : start + OUTPUT_ROWS]
        padding = [(0, power_of_two(len(piece)) - len(piece))] + [(0, 0)] * (features.ndim - 1)
        pieces.append(np.asarray(function(np.pad(piece, padding)))[: len(piece)])
    return pieces


@lru_cache(maxsize=64)
def _apply(objective: Objective) -> Callable[[Params, Any], jax.Array]:
    prepare = objective.prepare
    if prepare is None:
        return jax.jit(objective.apply)
    return jax.jit(lambda params, x: objective.apply(params, prepare(x)))


@lru_cache(maxsize=64)
def _prepare(objective: Objective) -> Callable[[Any], jax.Array]:
    assert objective.prepare is not None
    return jax.jit(objective.prepare)
