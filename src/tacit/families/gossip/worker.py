"""Local work of nodes without a server (``methods.decentralized``): gossip in rounds, and a walk."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from tacit.data import Federation
from tacit.engine.kernel import Worked
from tacit.engine.silo_work import Group, SiloWork
from tacit.engine.worker import Given, Worker
from tacit.families.gossip.kernels import Walk, contracting_weights, node_step, noised, walked
from tacit.kernels import Arrays, Schedule, key_words
from tacit.kernels.exact_sums import toward_zero

if TYPE_CHECKING:
    from tacit.engine.simulate import LocalSilos


class Gathering(NamedTuple):
    """A round of gossip: its number, and the local work of its nodes."""

    number: int
    lanes: list[list[Group]]


class NodeWork(Worker):
    """Every node trains from its own model, adds its noise if it has any, and averages with its neighbours.

    People who share a place are a node together. Where something is promised, each of them trains from the node's model
    and is clipped apart, and the node moves by the sum: one of them more or less moves it by at most one clip.
    """

    def __init__(self, site: LocalSilos) -> None:
        method, facts, federation = site.method, site.facts, site.federation
        self.method, self.facts, self.randomness = method, facts, site.randomness
        self._place, marks = np.arange(federation.silo_count), None
        if method.info.gathers == "subjects" and method.private:
            self._place = np.repeat(self._place, [len(silo.subjects) for silo in federation.silos])
            marks = np.concatenate([np.zeros(0, np.int64), *(silo.subjects for silo in federation.silos)])
            federation = _apart(federation)
        self.nodes = SiloWork(site, federation, most_at_once=NODES_AT_ONCE, marks=marks)
        self._always: list[list[Group]] | None = None

    def draw(self, number: int) -> Gathering:
        """What every node looks at; where that is all that it has, it is laid out once."""
        if self._always is not None:
            return Gathering(number, self._always)
        lanes = self.nodes.draw(number)
        schedule = self.nodes.schedule
        if self.method.work.rate == 1 and isinstance(schedule, Schedule) and schedule.size is None:
            self._always = lanes
        return Gathering(number, lanes)

    def participants(self, drawn: Gathering) -> int:
        if self.method.private:  # how many people share a place is not released
            return round(self.method.work.rate * self.method.work.graph.nodes)
        return self.nodes.participants(drawn.lanes)

    def do(self, drawn: Gathering, given: Given) -> Worked:
        """``states [nodes, parameters]`` after a round, and the one model that is kept of them."""
        method, states = self.method, given.states
        own = states[self._place]
        _, moved, not_finite = self.nodes.do(drawn.lanes, given._replace(states=own))
        if not method.private:
            trained = states.at[self._place].add(moved - own)
        else:  # what came back is the clipped updates, of all nodes
            deviation = method.noise.std
            step = node_step(method.clip.norm, deviation)
            moves = np.zeros(states.shape, np.int64)
            np.add.at(moves, self._place, np.asarray(toward_zero(moved, 1 / step), np.int64))
            key = key_words(self.randomness.stream("noise", drawn.number))
            trained = states + noised(moves, step, deviation, key).astype(np.float32)
        graph = method.work.graph
        network = graph.network(drawn.number)
        averaged = network.gossip(np.asarray(trained), graph.steps, graph.acceleration)
        kept = jnp.asarray(graph.kept(averaged))
        if graph.adopt:
            return Worked((kept,), jnp.broadcast_to(kept, trained.shape), not_finite)
        return Worked((kept,), jnp.asarray(averaged), not_finite)


def _apart(federation: Federation) -> Federation:
    """The same records with every person of every node apart, in the order of nodes and then of keys."""
    train, silos = federation.train, federation.silos
    counts = np.concatenate([np.zeros(0, int), *(np.diff(silo.offsets) for silo in silos)])
    one = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    return replace(federation, train=replace(train, silo=one), silo_names=("",) * len(counts))


# Nodes per compiled call: they are many and small.
NODES_AT_ONCE = 256


class WalkWork(Worker):
    """A model goes from node to random node."""

    def __init__(self, site: LocalSilos) -> None:
        self.method, self.facts = site.method, site.facts
        self.objective, self.randomness = site.learner.objective, site.randomness
        silos = site.federation.silos
        self._starts = np.array([silo.start for silo in silos], np.int32)
        self._counts = np.array([len(silo) for silo in silos], np.int32)
        self._weights = self._weighted(site.arrays)
        self._weighed = site.arrays

    def _weighted(self, arrays: Arrays) -> Any:
        """Weights under which every step contracts; 1 where nothing would make it."""
        if self.facts.convex is None:
            return jnp.ones(len(arrays.labels))
        return contracting_weights(arrays, self.facts.convex, self.method.clip.norm, self.method.work.learning_rate)

    def draw(self, number: int) -> tuple[int, np.ndarray]:
        """Who is visited: each next node is uniform over all of them, the one that is visited included."""
        path = self.randomness.stream("walk", number).integers(len(self._starts), self.method.work.steps)
        return number, path

    def participants(self, drawn: tuple[int, np.ndarray]) -> int:
        """All nodes are in the walk; which of them it has come to is secret."""
        return len(self._starts)

    def do(self, drawn: tuple[int, np.ndarray], given: Given) -> Worked:
        (number, path), (broadcast, frozen, arrays, states) = drawn, given
        if arrays is not self._weighed:  # other features of the same rows, under constants released meanwhile
            self._weights, self._weighed = self._weighted(arrays), arrays
        method = self.method
        numbers = (method.work.learning_rate, method.clip.norm, method.noise.std)
        model, not_finite = walked(
            self.objective,
            frozen,
            arrays,
            self._weights,
            broadcast,
            Walk(jnp.asarray(self._starts[path]), jnp.asarray(self._counts[path])),
            *(jnp.float32(value) for value in numbers),
            key_words(self.randomness.stream("noise", number)),
        )
        return Worked((model,), states, (not_finite,))
