"""What a view sees of a round, as numbers, in many independent runs: the input of attacks.

public             the model after the round (and the clip, where it moves)
server             in the plain exchange, what each silo sends: its contribution, with its noise; where people protect
                   what they send, what each person sends
silo               the model, and the share of the noise that the last silo has drawn
shuffler+analyzer  what each person sends

The engine computes the rounds: it draws, clips, weights and adds noise. Runs differ only by the number of their round,
and so in coins and noise. If every run has the same shape, many of them are one compiled call of the engine's kernels
(:func:`at_once`); a test compares it with rounds one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from tacit.engine.kernel import Kernels
from tacit.engine.silo_work import inputs
from tacit.engine.simulate import Simulation
from tacit.engine.worker import Given
from tacit.exchange import Grid
from tacit.exchange.plain import SUM_NOISE, Total
from tacit.kernels import Arrays, gaussian, nonce_words, power_of_two
from tacit.methods import Method, ServerState

Parts = list[Any]

VIEWS = ("public", "server", "silo", "shuffler+analyzer")

# step of the grid on which the contributions of subjects are added up: far below any clip
FINE = 1e-9


def one_by_one(sim: Simulation, view: str, number: int) -> Parts:
    """What ``view`` sees of round ``number``, which is then done."""
    if sim.method.info.gathers == "places" and view in ("server", "shuffler+analyzer"):
        return [sim.work.messages(sim.work.draw(number), sim.given(sim.broadcast))]
    if view == "server":
        return [vector + share for vector, share in zip(contributions(sim, number), _shares(sim, number), strict=True)]
    sim.round(number)
    seen = _public(sim.method, sim.server)
    return [seen] if view == "public" else [seen, _shares(sim, number)[-1]]


def at_once(sim: Simulation, view: str, numbers: Sequence[int]) -> np.ndarray | None:
    """What ``view`` sees of these rounds, each from the state that the simulation is in: ``[rounds, numbers]``. None
    where rounds have different shapes (people or silos are sampled) or sums are not taken inside the compiled round.
    """
    work, works_by = sim.work, sim.work.works_by
    if not sim.exchange.compiled or works_by is None:  # nodes without a server are neither
        return None
    if works_by == "subject":
        if not work.draws_all_always or sim.noise is None:
            return None
        if view == "server":
            parts = contributions(sim, numbers[0])
            return np.stack([np.ravel(parts + _shares(sim, number)) for number in numbers])
        totals = sim.worked(numbers[0], work.draw(numbers[0])).totals
        seen = np.asarray(_aggregated(sim.kernels, sim.method)(sim.server, totals, _stacked(sim, numbers)))
    else:
        if sim.method.work.rate < 1:
            return None
        drawn = [work.draw(number) for number in numbers]
        groups = jax.tree.map(lambda *leaves: np.stack(leaves), *drawn)
        nothing = work.nothing(sim.given(sim.broadcast))
        function = _silo_rounds(sim.kernels, sim.method, "server" if view == "server" else "public")
        keys = _stacked(sim, numbers)
        seen = np.asarray(function(sim.server, sim.frozen, _padded(sim.arrays), sim.states, nothing, groups, keys))
        if view == "server":  # by lane and group: back to the order of silos
            places = np.concatenate([group.places for lane in drawn[0] for group in lane])
            silos = sim.federation.silo_count
            seen = seen[:, [int(np.flatnonzero(places == silo)[0]) for silo in range(silos)]]
            return (seen + np.stack([_shares(sim, number) for number in numbers])).reshape(len(numbers), -1)
    if view == "public":
        return seen
    return np.concatenate([seen, np.stack([_shares(sim, number)[-1] for number in numbers])], axis=1)


def contributions(sim: Simulation, number: int) -> np.ndarray:
    """Every silo's contribution in a round ``[silos, numbers]``, before the exchange adds anything."""
    drawn = sim.work.draw(number)
    if sim.work.works_by == "subject":
        found = sim.work.integers(drawn, sim.given(sim.broadcast), Grid(FINE))
        return np.asarray(found.parts) * FINE
    sums: dict[int, np.ndarray] = {}
    for group in (group for lane in drawn for group in lane):
        sent = sim.kernels.each(*inputs(sim.given(sim.broadcast), group)).vector
        sums |= dict(zip(group.places.tolist(), np.asarray(sent), strict=True))
    nothing = np.zeros_like(next(iter(sums.values())))
    return np.stack([sums.get(k, nothing) for k in range(sim.federation.silo_count)])


def _padded(arrays: Arrays) -> Arrays:
    """With unused rows up to a power of two: worlds with and without a unit share a compilation."""
    more = power_of_two(len(arrays.labels)) - len(arrays.labels)
    return Arrays(*(jnp.pad(array, [(0, more)] + [(0, 0)] * (array.ndim - 1)) for array in arrays))


def _public(method: Method, server: ServerState) -> jax.Array:
    """The model as numbers, and the clip if it is adaptive."""
    model = ravel_pytree(server.params)[0]
    moves = method.clip is not None and method.clip.adaptive is not None
    return jnp.append(model, server.extra) if moves else model


def _shares(sim: Simulation, number: int) -> np.ndarray:
    """Every silo's own share of the noise on the sum ``[silos, numbers]``; zeros where noise is not in shares."""
    silos, noise = sim.federation.silo_count, sim.noise
    if noise is None or noise.place != "shares":
        return np.zeros((silos, 1))
    count = sim.numbers(sim.broadcast)
    return np.asarray(_normals(*sim.keys(number), count)) * (noise.std / math.sqrt(silos))


@partial(jax.jit, static_argnums=2)
def _normals(keys: jax.Array, weights: jax.Array, count: int) -> jax.Array:
    """Every silo's normals of a round and of those before it, as the noise weighs them: ``[silos, count]``."""
    draw = jax.vmap(jax.vmap(lambda key: gaussian(key, nonce_words(SUM_NOISE), (count,))))
    return jnp.tensordot(weights, draw(keys[:, :-1]), 1)


def _stacked(sim: Simulation, numbers: Sequence[int]) -> Any:
    """Keys of the noise of these rounds: every leaf ``[rounds, …]``."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *(sim.keys(number) for number in numbers))


# -- the engine's kernels over many rounds, compiled once


@lru_cache(maxsize=64)
def _aggregated(kernels: Kernels, method: Method) -> Callable[..., jax.Array]:
    """One sum, many draws of noise."""

    def many(server: ServerState, totals: tuple[Total, ...], keys: jax.Array) -> jax.Array:
        return jax.lax.map(lambda own: _public(method, kernels.aggregate(server, totals, own)), keys)

    return jax.jit(many)


@lru_cache(maxsize=64)
def _silo_rounds(kernels: Kernels, method: Method, view: str) -> Callable[..., jax.Array]:
    """Many draws of batches. The server sees each silo's contribution, ``[rounds, silos and padding, numbers]``; other
    views the model after sums and noise."""

    def many(
        server: ServerState, frozen: Any, arrays: Any, states: Any, nothing: Any, groups: Any, keys: Any
    ) -> jax.Array:
        given = partial(inputs, Given(method.server.broadcast(server), frozen, arrays, states))

        def sent(drawn: Any) -> jax.Array:
            lanes, _ = drawn
            return jnp.concatenate([kernels.each(*given(group)).vector for lane in lanes for group in lane])

        def model(drawn: Any) -> jax.Array:
            lanes, own = drawn
            totals = []
            for lane in lanes:
                summed = nothing
                for group in lane:
                    summed, _ = kernels.work(*given(group), summed)
                totals.append(summed.vector)
            return _public(method, kernels.aggregate(server, tuple(totals), own))

        return jax.lax.map(sent if view == "server" else model, (groups, keys))

    return jax.jit(many)
