"""The compiled part of a round: local work of a group of silos, their sum, the server's step, the model's outputs.

Built once per structure of (method, server step, noise) and objective, compiled once per shape. Public numbers (clip,
noise, rates, divisors) are arguments of what is compiled: runs that differ in them alone share it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tacit.exchange import Plain
from tacit.learning import Arrays, Objective, ServerStep, Work, power_of_two
from tacit.methods import Facts, Method, ServerState
from tacit.methods.method import Divisors, LocalResult
from tacit.models import Params
from tacit.privacy import Noise

# Largest number of rows per call of `outputs`; smaller pieces are padded to a power of two.
OUTPUT_ROWS = 2048


class Summed(NamedTuple):
    """What silos sent, added up, and what stays with them: how much was not finite and counted as zero
    (``LocalResult``)."""

    vector: jax.Array
    not_finite: jax.Array


class Worked(NamedTuple):
    """A round's local work: sums and numbers of what was not finite, both still to be added up, and what silos keep."""

    totals: tuple[jax.Array, ...]
    states: Any
    not_finite: tuple[jax.Array | int, ...]


class Kernels(NamedTuple):
    """Compiled functions of one experiment.

    work       (broadcast, frozen, states, arrays, batches, counts, so far) -> (summed, states), for stacked silos
    each       (broadcast, frozen, states, arrays, batches, counts) -> LocalResult, for stacked silos
    aggregate  (server, totals of the lanes, keys and weights of the noise) -> server; no noise where others have added
               it
    sent       (totals of the lanes, keys and weights of one silo's noise) -> what that silo sends: their sum, with its
               share of the noise
    nobody     (broadcast, frozen, state, arrays, batches of nobody) -> the sum before anybody contributed
    """

    work: Callable[..., tuple[Summed, Any]]
    each: Callable[..., LocalResult]
    aggregate: Callable[[ServerState, tuple[jax.Array, ...], Any], ServerState]
    sent: Callable[[tuple[jax.Array, ...], Any], jax.Array]
    nobody: Callable[[Any, Params, Any, Arrays, Any], Summed]


class Terms(NamedTuple):
    """The public terms of a round: a tree whose leaves are numbers."""

    method: Method
    step: ServerStep
    divisors: Divisors
    noise: Noise | None
    silos: int


@lru_cache(maxsize=64)
def kernels(method: Method, step: ServerStep, objective: Objective, facts: Facts, noise: Noise | None) -> Kernels:
    """The compiled functions of an experiment, which share what is compiled with all of the same structure. ``noise``
    is what ``aggregate`` (or ``sent``, a silo's share) adds to a sum."""
    numbers, structure = jax.tree.flatten(Terms(method, step, method.divisors(facts), noise, facts.silos))
    numbers = [jnp.float32(number) for number in numbers]
    return Kernels(*(partial(function, numbers) for function in _compiled(structure, objective)))


@lru_cache(maxsize=64)
def _compiled(structure: jax.tree_util.PyTreeDef, objective: Objective) -> tuple[Callable[..., Any], ...]:
    """The functions of ``Kernels``, which take the numbers of :class:`Terms` first."""
    plain = Plain()

    def with_numbers(numbers: list[jax.Array]) -> Terms:
        terms: Terms = jax.tree.unflatten(structure, numbers)
        return terms

    def local(
        numbers: list[jax.Array], broadcast: Any, frozen: Params, arrays: Arrays, silo: tuple[Any, Any, jax.Array]
    ) -> LocalResult:
        state, batches, count = silo
        found = with_numbers(numbers).method.local(Work(objective, frozen, arrays, batches, count), broadcast, state)
        return found._replace(not_finite=jnp.asarray(found.not_finite, jnp.int32))

    def work(
        numbers: list[jax.Array],
        broadcast: Any,
        frozen: Params,
        states: Any,
        arrays: Arrays,
        batches: Any,
        counts: jax.Array,
        so_far: Summed,
    ) -> tuple[Summed, Any]:
        def one_silo(so_far: Summed, silo: tuple[Any, Any, jax.Array]) -> tuple[Summed, Any]:
            found = local(numbers, broadcast, frozen, arrays, silo)
            return Summed(plain.add(so_far.vector, found.vector), so_far.not_finite + found.not_finite), found.state

        # A scan, not a vmap: every silo's loop runs exactly its own number of steps, and a sum is all that is kept.
        return jax.lax.scan(one_silo, so_far, (states, batches, counts))

    def each(
        numbers: list[jax.Array],
        broadcast: Any,
        frozen: Params,
        states: Any,
        arrays: Arrays,
        batches: Any,
        counts: jax.Array,
    ) -> LocalResult:
        def one_silo(nothing: None, silo: tuple[Any, Any, jax.Array]) -> tuple[None, LocalResult]:
            return nothing, local(numbers, broadcast, frozen, arrays, silo)

        return jax.lax.scan(one_silo, None, (states, batches, counts))[1]

    def aggregate(
        numbers: list[jax.Array], server: ServerState, totals: tuple[jax.Array, ...], keys: Any
    ) -> ServerState:
        method, step, divisors, noise, _ = with_numbers(numbers)
        total = reduce(plain.add, totals)
        total = total if noise is None else plain.noised(total, noise, *keys)
        return method.aggregate(step, server, total, divisors)

    def sent(numbers: list[jax.Array], totals: tuple[jax.Array, ...], keys: Any) -> jax.Array:
        terms = with_numbers(numbers)
        vector = reduce(plain.add, totals)
        return vector if terms.noise is None else plain.share(vector, terms.noise, terms.silos, *keys)

    def nobody(
        numbers: list[jax.Array], broadcast: Any, frozen: Params, state: Any, arrays: Arrays, nothing: Any
    ) -> Summed:
        found = jax.eval_shape(local, numbers, broadcast, frozen, arrays, (state, nothing, jnp.float32(0)))
        return Summed(jnp.zeros(found.vector.shape), jnp.int32(0))

    return jax.jit(work), jax.jit(each), jax.jit(aggregate), jax.jit(sent), nobody


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
