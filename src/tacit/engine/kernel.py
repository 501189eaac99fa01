"""The compiled part of a round: local work of a group of silos, their sum, the server's step, the model's outputs.

Built once per structure of (work, server rule, server step, noise) and objective, compiled once per shape. Public
numbers (clip, noise, rates, divisors) are arguments of what is compiled: runs that differ in them alone share it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache, partial, reduce
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from tacit.exchange import Plain
from tacit.exchange.plain import Total
from tacit.kernels import Arrays, Objective, ServerStep, Steps, Work
from tacit.kernels.exact_sums import toward_zero
from tacit.methods import Facts, Method, ServerState
from tacit.methods.base import Divisors, LocalResult, LocalWork, ServerRule
from tacit.models import Params
from tacit.privacy import Noise

# Rows per call of `outputs` and `prepared`; fewer are padded. Always as many: what is computed of a row depends, in its
# last digits, on the length of the array in which it stands, and so would on how many rows there are.
OUTPUT_ROWS = 256
# The same of `own_outputs`: rows of one silo, and pieces per call.
OWN_ROWS, PIECES_TOGETHER = 32, 8
# Lanes of work side by side, each with its own sum. A constant, not the number of cores, so that the order of additions
# is always the same (the compiler may still round differently on another machine).
LANES = 2

Lane = TypeVar("Lane")
Result = TypeVar("Result")


class Summed(NamedTuple):
    """What silos sent, added up, and what stays with them: how much was not finite and counted as zero
    (``LocalResult``)."""

    vector: Total
    not_finite: jax.Array


class Worked(NamedTuple):
    """A round's local work: sums and numbers of what was not finite, both still to be added up, and what silos keep."""

    totals: tuple[Total, ...]
    states: Any
    not_finite: tuple[jax.Array | int, ...]


class Kernels(NamedTuple):
    """Compiled functions of one experiment.

    work       (broadcast, frozen, states, arrays, batches, counts, used, so far) -> (summed, states), for stacked silos
               of which the leading ``used`` are real
    each       (broadcast, frozen, states, arrays, batches, counts, used) -> LocalResult with numbers, the same way
    aggregate  (server, totals of the lanes, keys and weights of the noise) -> server; no noise where others have added
               it
    sent       (totals of the lanes, keys and weights of one silo's noise) -> what that silo sends: their sum, with its
               share of the noise
    zeros      (broadcast, frozen, state, arrays, batches of an empty silo) -> the sum before any silo contributed
    own        (broadcast, frozen, states, arrays, batches, counts, used) -> the silos' own models, every leaf [silos,
               …]
    """

    work: Callable[..., tuple[Summed, Any]]
    each: Callable[..., Any]
    aggregate: Callable[[ServerState, tuple[Total, ...], Any], ServerState]
    sent: Callable[[tuple[Total, ...], Any], Total]
    zeros: Callable[[Any, Params, Any, Arrays, Any], Summed]
    own: Callable[..., Params]


class RoundNumbers(NamedTuple):
    """The public terms of a round: a tree whose leaves are numbers."""

    work: LocalWork
    server: ServerRule
    step: ServerStep
    divisors: Divisors
    noise: Noise | None
    silos: int
    grid: float | None


@lru_cache(maxsize=64)
def kernels(
    method: Method,
    step: ServerStep,
    objective: Objective,
    facts: Facts,
    noise: Noise | None,
    plain: Plain,
    grid: float | None,
) -> Kernels:
    """The compiled functions of an experiment, which share what is compiled with all of the same structure. ``noise``
    is what ``aggregate`` (or ``sent``, a silo's share) adds to a sum, as ``plain`` adds; ``grid`` is the step of the
    grid on which sums are taken, None where they are in floating point."""
    numbers, structure = jax.tree.flatten(
        RoundNumbers(method.work, method.server, step, method.divisors, noise, facts.silos, grid)
    )
    numbers = [jnp.float32(number) for number in numbers]
    return Kernels(*(partial(function, numbers) for function in _compiled(structure, objective, plain)))


@lru_cache(maxsize=64)
def _compiled(structure: jax.tree_util.PyTreeDef, objective: Objective, plain: Plain) -> tuple[Callable[..., Any], ...]:
    """The functions of ``Kernels``, in their order, which take the numbers of :class:`RoundNumbers` first."""

    def with_numbers(numbers: list[jax.Array]) -> RoundNumbers:
        terms: RoundNumbers = jax.tree.unflatten(structure, numbers)
        return terms

    def local(
        numbers: list[jax.Array], broadcast: Any, frozen: Params, arrays: Arrays, silo: tuple[Any, Any, jax.Array]
    ) -> LocalResult:
        (state, batches, count), terms = silo, with_numbers(numbers)
        found = terms.work.local(Work(objective, frozen, arrays, batches, count, terms.grid), broadcast, state)
        vector, grid = found.vector, terms.grid
        if grid is not None and not isinstance(vector, Steps):
            vector = Steps.zeros(vector.shape).added(toward_zero(vector, 1 / grid))
        return found._replace(vector=vector, not_finite=jnp.asarray(found.not_finite, jnp.int32))

    def as_numbers(numbers: list[jax.Array], total: Total) -> jax.Array:
        grid = with_numbers(numbers).grid
        if not isinstance(total, Steps):
            return total
        assert grid is not None
        return total.numbers(grid)

    def work(numbers: list[jax.Array], *given: Any) -> tuple[Summed, Any]:
        broadcast, frozen, states, arrays, batches, counts, used, so_far = given

        def one_silo(so_far: Summed, silo: tuple[Any, Any, jax.Array]) -> tuple[Summed, Any]:
            found = local(numbers, broadcast, frozen, arrays, silo)
            return Summed(plain.add(so_far.vector, found.vector), so_far.not_finite + found.not_finite), found.state

        return _one_by_one(one_silo, so_far, (states, batches, counts), used)

    def each(numbers: list[jax.Array], *given: Any) -> LocalResult:
        broadcast, frozen, states, arrays, batches, counts, used = given

        def one_silo(nothing: None, silo: tuple[Any, Any, jax.Array]) -> tuple[None, LocalResult]:
            found = local(numbers, broadcast, frozen, arrays, silo)
            return nothing, found._replace(vector=as_numbers(numbers, found.vector))

        return _one_by_one(one_silo, None, (states, batches, counts), used)[1]

    def aggregate(numbers: list[jax.Array], server: ServerState, totals: tuple[Total, ...], keys: Any) -> ServerState:
        _, rule, step, divisors, noise, _, grid = with_numbers(numbers)
        total = reduce(plain.add, totals)
        if noise is not None:
            assert isinstance(total, Steps)
            assert grid is not None
            total = plain.noised(total, grid, noise, *keys)
        return rule.update(step, server, plain.released(as_numbers(numbers, total)), divisors)

    def sent(numbers: list[jax.Array], totals: tuple[Total, ...], keys: Any) -> Total:
        terms = with_numbers(numbers)
        vector = reduce(plain.add, totals)
        if terms.noise is None:
            return vector
        assert isinstance(vector, Steps)
        assert terms.grid is not None
        return plain.share(vector, terms.grid, terms.noise, terms.silos, *keys)

    def zeros(
        numbers: list[jax.Array], broadcast: Any, frozen: Params, state: Any, arrays: Arrays, empty: Any
    ) -> Summed:
        found = jax.eval_shape(local, numbers, broadcast, frozen, arrays, (state, empty, jnp.float32(0)))
        return Summed(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), found.vector), jnp.int32(0))

    def own(numbers: list[jax.Array], *given: Any) -> Params:
        broadcast, frozen, states, arrays, batches, counts, used = given
        part = with_numbers(numbers).work

        def one_silo(nothing: None, silo: tuple[Any, Any, jax.Array]) -> tuple[None, Params]:
            state, batches, count = silo
            return nothing, part.own(Work(objective, frozen, arrays, batches, count), broadcast, state)

        return _one_by_one(one_silo, None, (states, batches, counts), used)[1]

    return jax.jit(work), jax.jit(each), jax.jit(aggregate), jax.jit(sent), zeros, jax.jit(own)


def _one_by_one(
    one_silo: Callable[[Any, Any], tuple[Any, Any]], so_far: Any, silos: Any, used: jax.Array
) -> tuple[Any, Any]:
    """``(so far, silo) -> (so far, found)`` for the leading ``used`` of stacked silos: the last "so far", and all that
    was found, stacked; zeros for padding.

    Not a vmap: every silo's loop runs exactly its own number of steps, and a sum is all that is kept. Not a scan: how
    many silos there are is data, not shape, so that padding costs nothing and every silo goes through the same code
    whatever other silos are in the call.
    """

    def at(i: jax.Array | int) -> Any:
        return jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, i, keepdims=False), silos)

    def step(i: jax.Array, state: tuple[Any, Any]) -> tuple[Any, Any]:
        so_far, found = one_silo(state[0], at(i))
        put = partial(jax.lax.dynamic_update_index_in_dim, index=i, axis=0)
        return so_far, jax.tree.map(put, state[1], found)

    silos = jax.tree.map(jnp.asarray, silos)
    width = len(jax.tree.leaves(silos)[0])
    shapes = jax.eval_shape(lambda so_far: one_silo(so_far, at(0))[1], so_far)
    nothing = jax.tree.map(lambda leaf: jnp.zeros((width, *leaf.shape), leaf.dtype), shapes)
    return jax.lax.fori_loop(0, used, step, (so_far, nothing))


Apply = Callable[[Objective, Params, jax.Array], jax.Array]


def outputs(
    objective: Objective, params: Params, features: np.ndarray, apply: Apply = ServerRule.outputs
) -> np.ndarray:
    """The model's outputs for all rows of ``features [rows, ...]``, as they are before ``prepare``; ``apply`` is the
    ``outputs`` of its method."""
    found = _in_pieces(partial(_apply(objective, apply), params), features)
    return np.concatenate(found) if found else np.zeros((0, objective.task.outputs), np.float32)


def own_outputs(
    objective: Objective, models: Params, features: np.ndarray, silo: np.ndarray, apply: Apply
) -> np.ndarray:
    """The same of every row's own silo: ``models`` have leaves ``[silos, …]``, ``silo [rows]`` says whose a row is.

    Rows go through the model in pieces of one silo each, all of one size.
    """
    result = np.zeros((len(features), objective.task.outputs), np.float32)
    order = np.argsort(silo, kind="stable")
    silos, first, counts = np.unique(silo[order], return_index=True, return_counts=True)
    pieces = -(-counts // OWN_ROWS)
    nth = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    whose = np.repeat(np.arange(len(silos)), pieces)
    # what is missing in a silo's last piece is its last row again
    within = np.minimum(nth[:, None] * OWN_ROWS + np.arange(OWN_ROWS), counts[whose, None] - 1)
    rows = order[first[whose, None] + within]
    together = _apply_each(objective, apply)
    for start in range(0, len(rows), PIECES_TOGETHER):
        # the last call may lack pieces: its last one stands in for them
        part = np.minimum(np.arange(start, start + PIECES_TOGETHER), len(rows) - 1)
        result[rows[part]] = np.asarray(together(models, silos[whose[part]], features[rows[part]]))
    return result


def prepared(objective: Objective, features: np.ndarray) -> np.ndarray:
    """What training works on: ``features [rows, ...]`` as the model wants them."""
    if objective.prepare is None or len(features) == 0:
        return features
    return np.concatenate(_in_pieces(_prepare(objective), features))


def _in_pieces(function: Callable[[Any], jax.Array], features: np.ndarray) -> list[np.ndarray]:
    """``function`` of all rows, in pieces of one size."""
    pieces = []
    for start in range(0, len(features), OUTPUT_ROWS):
        piece = features[start : start + OUTPUT_ROWS]
        padding = [(0, OUTPUT_ROWS - len(piece))] + [(0, 0)] * (features.ndim - 1)
        pieces.append(np.asarray(function(np.pad(piece, padding)))[: len(piece)])
    return pieces


@lru_cache(maxsize=64)
def _apply(objective: Objective, apply: Apply) -> Callable[[Params, Any], jax.Array]:
    return jax.jit(_prepared_apply(objective, apply))


@lru_cache(maxsize=64)
def _apply_each(objective: Objective, apply: Apply) -> Callable[[Params, Any, Any], jax.Array]:
    """For stacked models ``[silos, …]``, and features ``[pieces, rows, …]`` of silos ``[pieces]``."""
    one = _prepared_apply(objective, apply)

    def each(models: Params, silos: Any, features: Any) -> jax.Array:
        return jax.lax.map(lambda of: one(jax.tree.map(lambda leaf: leaf[of[0]], models), of[1]), (silos, features))

    return jax.jit(each)


def _prepared_apply(objective: Objective, apply: Apply) -> Callable[[Params, Any], jax.Array]:
    prepare = objective.prepare or (lambda x: x)
    return lambda params, x: apply(objective, params, prepare(x))


@lru_cache(maxsize=64)
def _prepare(objective: Objective) -> Callable[[Any], jax.Array]:
    assert objective.prepare is not None
    return jax.jit(objective.prepare)


class Lanes:
    """Does work in lanes, side by side."""

    def __init__(self) -> None:
        self._begun: set[str] = set()

    def run(self, work: Callable[[Lane], Result], lanes: Sequence[Lane], kind: str = "") -> list[Result]:
        """``work`` of every lane, the first in this thread. The first work of a ``kind`` is done one lane after the
        other, so that what they have in common is compiled once."""
        if kind not in self._begun:
            self._begun.add(kind)
            return [work(lane) for lane in lanes]
        if not lanes:
            return []
        others = [_threads().submit(work, lane) for lane in lanes[1:]]
        return [work(lanes[0]), *(other.result() for other in others)]


@cache
def _threads() -> ThreadPoolExecutor:
    """Threads that hand the lanes after the first to the device: work from one thread runs one after the other."""
    return ThreadPoolExecutor(LANES - 1, thread_name_prefix="tacit-lane")
