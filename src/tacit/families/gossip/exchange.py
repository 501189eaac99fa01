"""The direct exchange: nodes send to each other, and there is no server.

A guarantee has one number for a view: the largest over all nodes. Most nodes lose less, the further away another node
is; :class:`Network` says how much. It is public, as all of a plan is.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from tacit.exchange.base import Exchange, PlanPart
from tacit.families.gossip.graphs import MOST_PAIRS
from tacit.families.gossip.methods import GossipClaim, GossipWork
from tacit.planning.claims import Promise
from tacit.privacy import Reveals, View
from tacit.privacy.accounting.gaussian import gaussian_epsilon
from tacit.privacy.terms import FLOATING_POINT

# With more nodes than this neither edges nor pairs are listed.
MOST_LISTED = 64


@dataclass(frozen=True)
class Direct(Exchange):
    """Nodes send their values to neighbours as they are; the public sees the model that a run keeps."""

    name: ClassVar[str] = "direct"
    about: ClassVar[str] = "no server: nodes send to their neighbours, as the method says"
    carries = "neighbours"
    adds = frozenset()
    reveals: ClassVar[Mapping[str, Reveals]] = {"public": "sum", "neighbour": "messages"}

    def reveals_to(self, view: View) -> Reveals | None:
        return "messages" if view.kind == "coalition" else self.reveals.get(view.kind)

    def plan_parts(self, promise: Any) -> dict[str, PlanPart]:
        found = network(promise)
        return {} if found is None else {"network": found}

    def assumptions(self, view: View, silos: int) -> tuple[str, ...]:
        return (FLOATING_POINT,)


@dataclass(frozen=True)
class AtDistance:
    """Epsilon between nodes at one distance in steps: the largest, the mean, and over how many pairs."""

    distance: int
    pairs: int
    largest: float
    mean: float


@dataclass(frozen=True)
class Network:
    """A graph, and what its nodes lose to each other over all rounds.

    gap          the spectral gap of its weights: in an exchange the distance to the mean shrinks by 1 - gap
    edges        who talks to whom; empty where there are too many nodes to list
    epsilons     from node u (row) to node v, infinity on the diagonal: a node knows its own; empty where there are too
                 many nodes to list, or nothing is promised
    by_distance  the same by the number of steps between them
    """

    topology: str
    nodes: int
    gap: float
    edges: tuple[tuple[int, int], ...]
    epsilons: tuple[tuple[float, ...], ...] = ()
    by_distance: tuple[AtDistance, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        pairs = [[value if math.isfinite(value) else "inf" for value in row] for row in self.epsilons]
        return {**asdict(self), "edges": [list(edge) for edge in self.edges], "epsilons": pairs}

    @property
    def words(self) -> str:
        """The network in a sentence or two."""
        graph = f"{self.nodes} nodes on a graph of kind '{self.topology}', spectral gap {self.gap:.3g}."
        if not self.by_distance:
            return graph
        listed = ", ".join(f"{at.largest:.3g} at {at.distance}" for at in self.by_distance[:8])
        return f"{graph} Largest epsilon by steps between two nodes: {listed}."


def network(promise: Promise) -> Network | None:
    """The network of a promise; None for methods that have none, or where the number of nodes is not declared."""
    work, claim = promise.method.work, promise.method.claim
    if not isinstance(work, GossipWork) or not 0 < work.graph.nodes <= MOST_PAIRS:
        return None
    graph = work.graph
    mixing = graph.network()
    listed = mixing.nodes <= MOST_LISTED
    pairs = np.argwhere(np.triu(mixing.distances == 1)) if listed else ()
    edges = tuple((int(u), int(v)) for u, v in pairs)
    relation = promise.exposure(promise.unit, View.parse("neighbour")).relation
    mu = None
    if isinstance(claim, GossipClaim) and not promise.leaks:
        mu = claim.between_nodes(promise.unit, relation)
    if mu is None:
        return Network(graph.topology, mixing.nodes, mixing.gap, edges)
    epsilons = _epsilons(mu, promise.delta)
    np.fill_diagonal(epsilons, math.inf)
    rows = tuple(map(tuple, epsilons.tolist())) if listed else ()
    return Network(graph.topology, mixing.nodes, mixing.gap, edges, rows, _by_distance(epsilons, mixing.distances))


def _by_distance(epsilons: np.ndarray, distances: np.ndarray) -> tuple[AtDistance, ...]:
    found = []
    for distance in range(1, int(distances.max()) + 1):
        there = epsilons[distances == distance]
        if there.size:
            found.append(AtDistance(distance, there.size, float(there.max()), float(there.mean())))
    return tuple(found)


def _epsilons(mu: np.ndarray, delta: float) -> np.ndarray:
    """Epsilon of many Gaussian views; those that differ by less than a thousandth share the larger one's."""
    shared = 1.001 ** np.ceil(np.log(np.maximum(mu, 1e-12)) / math.log(1.001))
    values, places = np.unique(shared, return_inverse=True)
    return np.array([gaussian_epsilon(float(value), delta) for value in values])[places].reshape(mu.shape)
