"""What a view gets to see of a round, as numbers: what attacks start from.

public   the model after the round (and the clip, where it moves)
server   in the plain exchange, what each silo sends: its contribution, with its noise
silo     the model, and the share of the noise that the silo itself has drawn

Rounds are run by the engine; nothing here computes an update or draws noise in its place. What a silo sends in shares
is put together from the engine's own parts, because a simulator adds them all at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from tacit.engine.people_work import PeopleWork
from tacit.engine.silo_work import SiloWork
from tacit.engine.simulate import Simulation
from tacit.exchange import Grid
from tacit.exchange.plain import SUM_NOISE
from tacit.learning import gaussian, key_words, nonce_words
from tacit.methods.method import Adaptive
from tacit.models import parameter_count

Seen = Callable[[Simulation, int], list[jax.Array | np.ndarray]]

# The step of the grid on which a silo's contribution is put together from people's: far below any clip.
FINE = 1e-9


def public(sim: Simulation, number: int) -> list[jax.Array | np.ndarray]:
    """The model that a round leaves behind, and the clip where it follows the data."""
    sim.round(number)
    clip = [sim.server.extra] if isinstance(sim.method, Adaptive) and sim.method.adaptive_clip is not None else []
    return [ravel_pytree(sim.server.params)[0], *clip]


def server(sim: Simulation, number: int) -> list[jax.Array | np.ndarray]:
    """What each silo sends in a round of the plain exchange."""
    return [vector + _share(sim, number, silo) for silo, vector in enumerate(contributions(sim, number))]


def silo(sim: Simulation, number: int) -> list[jax.Array | np.ndarray]:
    """What the last silo knows afterwards: the model, and the noise that is its own."""
    return [*public(sim, number), _share(sim, number, sim.federation.silo_count - 1)]


VIEWS: dict[str, Seen] = {"public": public, "server": server, "silo": silo}


def contributions(sim: Simulation, number: int) -> np.ndarray:
    """Every silo's contribution in a round ``[silos, numbers]``, before the exchange adds anything."""
    drawn = sim.work.draw(number)
    if isinstance(sim.work, PeopleWork):
        vectors, _ = sim.work.each(drawn, sim.server, sim.frozen, sim.arrays, sim.states, Grid(FINE))
        return vectors * FINE
    assert isinstance(sim.work, SiloWork)
    broadcast = sim.method.broadcast(sim.server)
    found: dict[int, np.ndarray] = {}
    for group in (group for lane in drawn for group in lane):
        states = jax.tree.map(partial(_at, group.places), sim.states)
        vectors, _ = sim.kernels.each(broadcast, sim.frozen, states, sim.arrays, group.batches, group.counts)
        found |= dict(zip(group.places.tolist(), np.asarray(vectors), strict=True))
    nobody = np.zeros_like(next(iter(found.values())))
    return np.stack([found.get(k, nobody) for k in range(sim.federation.silo_count)])


def _at(places: np.ndarray, leaf: jax.Array) -> jax.Array:
    return leaf.at[places].get(mode="clip")


def _share(sim: Simulation, number: int, silo: int) -> Any:
    """A silo's own share of the noise on the sum; nothing where noise is not in shares."""
    noise = sim.noise
    if noise is None or noise.place != "shares":
        return np.zeros(1)
    key = jnp.asarray(key_words(sim.randomness.stream("noise", number, silo)))
    count = sim.work.numbers if isinstance(sim.work, PeopleWork) else parameter_count(sim.server.params)
    return _normals(key, count) * (noise.std / math.sqrt(sim.federation.silo_count))


@partial(jax.jit, static_argnums=1)
def _normals(key: jax.Array, count: int) -> jax.Array:
    return gaussian(key, nonce_words(SUM_NOISE), (count,))
