"""Communication graphs of nodes without a server, and the weights with which neighbours average.

A graph is a symmetric relation between nodes, made by networkx. Its nodes average by a matrix W of weights that is
symmetric and doubly stochastic, so that averaging keeps the mean and, on a connected graph, ends at it: after t steps
the distance to the mean has shrunk by (1 - gap)^t, gap = 1 - max(|lambda_2|, |lambda_n|) (Boyd et al. 2006). With
Chebyshev's polynomials T in place of powers it shrinks by 1 / T_t(1 / (1 - gap)), about 2 (1 - sqrt(2 gap))^t.

Everything here is public: graphs are drawn from a public seed, never from data.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse import csgraph
from scipy.sparse.linalg import eigsh

from tacit.privacy import Randomness
from tacit.privacy.invalid import InvalidArgument

Topology = Literal["ring", "torus", "hypercube", "exponential", "erdos-renyi", "small-world", "complete"]
WeightRule = Literal["metropolis", "maximum-degree"]
Acceleration = Literal["none", "chebyshev"]

Floats = npt.NDArray[np.floating]

# Random graphs are drawn again until they are connected, so often at most.
ATTEMPTS = 100
# From this share of all pairs on, a product with a full matrix is quicker than one with a sparse one.
DENSE = 0.1
# With more nodes than this, eigenvalues are found by iteration.
MOST_DECOMPOSED = 2500
# Weights in double precision add up to 1 within this.
ROUNDING = 1e-12
# Up to this many nodes the loss between all pairs is computed; beyond, local privacy is what is proved.
MOST_PAIRS = 128
# The root of every public choice of a graph.
_PUBLIC = Randomness(b"tacit: graphs without a server".ljust(32))


class NoSuchGraph(InvalidArgument):
    """There is no graph of this kind with this number of nodes, or none that is connected."""


@dataclass(frozen=True)
class GraphChoice:
    """A graph by name.

    topology   ring, torus (as square as it gets), hypercube, exponential (every node with those 1, 2, 4, … places on),
               erdos-renyi, small-world (Watts and Strogatz), complete
    nodes      how many
    degree     small-world: neighbours before rewiring (even)
    edge_rate  erdos-renyi: probability of an edge; small-world: of rewiring one
    seed       of everything that is drawn
    changing   drawn again in every round: random graphs as such, the others with their nodes in another order
    """

    topology: Topology
    nodes: int
    degree: int = 4
    edge_rate: float = 0.1
    seed: int = 0
    changing: bool = False

    def edges(self, number: int = 1) -> sparse.csr_array:
        """The pairs that exchange values in round ``number``: ``[nodes, nodes]``, 1 for a pair; NoSuchGraph where there
        is none."""
        number = number if self.changing else 1
        edges = _as_matrix(self._drawn(number), self.nodes)
        if not self.changing or self._is_random:
            return edges
        order = _PUBLIC.stream("order", self.seed, number).permutation(self.nodes)
        return sparse.csr_array(edges[order][:, order])

    @property
    def _is_random(self) -> bool:
        return self.topology in ("erdos-renyi", "small-world")

    def _drawn(self, number: int) -> Any:
        """The graph as networkx has it."""
        import networkx as nx  # takes a while, so only where it is needed

        _check_number(self.nodes)
        match self.topology:
            case "ring":
                return nx.cycle_graph(self.nodes)
            case "complete":
                return nx.complete_graph(self.nodes)
            case "torus":
                return nx.grid_2d_graph(*_sides(self.nodes), periodic=True)
            case "hypercube":
                if self.nodes & (self.nodes - 1):
                    raise NoSuchGraph(
                        "out-of-range", "nodes", f"a hypercube has a power of two of nodes, not {self.nodes}"
                    )
                return nx.hypercube_graph(self.nodes.bit_length() - 1)
            case "exponential":
                return nx.circulant_graph(self.nodes, [1 << k for k in range((self.nodes // 2).bit_length())])
        return self._connected(number)

    def _connected(self, number: int) -> Any:
        """The first of the random graphs of a round that is connected."""
        import networkx as nx

        if self.topology == "small-world" and not (2 <= self.degree < self.nodes and self.degree % 2 == 0):
            raise NoSuchGraph(
                "out-of-range",
                "degree",
                f"a small world of {self.nodes} needs an even degree from 2 on, not {self.degree}",
            )
        for attempt in range(ATTEMPTS):
            seed = _PUBLIC.integer("graph", self.seed, number, attempt) % 2**32
            if self.topology == "small-world":
                graph = nx.watts_strogatz_graph(self.nodes, self.degree, self.edge_rate, seed=seed)
            else:
                graph = nx.fast_gnp_random_graph(self.nodes, self.edge_rate, seed=seed)
            if nx.is_connected(graph):
                return graph
        raise NoSuchGraph(
            "out-of-range", "edge_rate", f"none of {ATTEMPTS} graphs with edge_rate {self.edge_rate:g} is connected"
        )


def _check_number(nodes: int) -> None:
    if nodes < 2:
        raise NoSuchGraph("out-of-range", "nodes", f"a network needs at least two nodes, not {nodes}")


def _sides(nodes: int) -> tuple[int, int]:
    """The sides of a torus, as equal as they can be."""
    for side in range(math.isqrt(nodes), 2, -1):
        if nodes % side == 0:
            return side, nodes // side
    raise NoSuchGraph(
        "out-of-range", "nodes", f"a torus has two sides of at least 3 nodes, which {nodes} is no product of"
    )


def _as_matrix(graph: Any, nodes: int) -> sparse.csr_array:
    import networkx as nx

    edges = sparse.csr_array(nx.to_scipy_sparse_array(graph, dtype=np.int8, format="csr"))
    edges.setdiag(0)
    edges.eliminate_zeros()
    if edges.shape != (nodes, nodes):
        raise AssertionError(f"a graph of {edges.shape[0]} nodes where {nodes} are asked for")
    return edges


@lru_cache(maxsize=32)
def mixing(choice: GraphChoice, rule: WeightRule = "metropolis", number: int = 1) -> Mixing:
    """The weights of a graph in round ``number``; those that do not change are made once."""
    if choice.topology == "complete":
        return Uniform(choice.nodes)
    return Mixing(weights_of(choice.edges(number), rule))


def weights_of(edges: sparse.csr_array, rule: WeightRule) -> sparse.csr_array:
    """W of a graph: for a pair 1 / (1 + the larger degree) of the two (Metropolis), or of all; the rest stays."""
    degrees = np.asarray(edges.sum(axis=1), np.float64).ravel()
    pairs = sparse.coo_array(edges)
    i, j = pairs.coords
    larger = np.maximum(degrees[i], degrees[j]) if rule == "metropolis" else np.full(len(i), degrees.max())
    between = sparse.coo_array((1 / (1 + larger), (i, j)), shape=edges.shape).tocsr()
    return sparse.csr_array(between + sparse.diags_array(1 - np.asarray(between.sum(axis=1)).ravel()))


class Mixing:
    """A matrix of weights by which nodes average with their neighbours: symmetric, doubly stochastic, checked."""

    def __init__(self, weights: sparse.csr_array) -> None:
        """ValueError for weights under which nodes would not keep their mean, or that are not symmetric."""
        self.weights = sparse.csr_array(weights)
        self.nodes = self.weights.shape[0]
        apart = abs(self.weights - self.weights.T)
        if self.weights.data.min(initial=0.0) < 0 or (apart.nnz and apart.max() > ROUNDING):
            raise InvalidArgument("out-of-range", "weights", "weights must be symmetric and not negative")
        for axis in (0, 1):
            if np.abs(np.asarray(self.weights.sum(axis=axis)) - 1).max() > ROUNDING * self.nodes:
                raise InvalidArgument("out-of-range", "weights", "the rows and columns of weights must each sum to 1")

    @cached_property
    def second(self) -> float:
        """The largest of |lambda_2|, …, |lambda_n|: by so much a step shrinks the distance to the mean."""
        if self.nodes <= MOST_DECOMPOSED:
            values = np.linalg.eigvalsh(self.weights.toarray())
        else:
            values = eigsh(self.weights, k=2, which="LM", v0=np.arange(1.0, self.nodes + 1), return_eigenvectors=False)
        return float(min(1.0, np.sort(np.abs(values))[-2]))

    @property
    def gap(self) -> float:
        """The spectral gap: 0 where the graph is not connected (or falls into two camps that only swap)."""
        return 1 - self.second

    def step(self, values: Floats) -> Floats:
        """One exchange: ``values [nodes, numbers]`` averaged with those of the neighbours."""
        return np.asarray(self._matrix(values.dtype) @ values)

    def gossip(self, values: Floats, steps: int, acceleration: Acceleration = "none") -> Floats:
        """``values [nodes, numbers]`` after ``steps`` exchanges."""
        for after in self.exchanges(values, steps, acceleration):  # noqa: B007
            pass
        return after

    def exchanges(self, values: Floats, steps: int, acceleration: Acceleration = "none") -> Iterator[Floats]:
        """The values before the first exchange, after it, and so on to the last. All but the last are what nodes send
        to their neighbours.

        Chebyshev's semi-iteration (Golub and Varga 1961): x_1 = W x_0 and x_(t+1) = w W x_t + (1 - w) x_(t-1), with
        w_2 = 1 / (1 - rho^2 / 2) and w_(t+1) = 1 / (1 - rho^2 w_t / 4), rho the second largest eigenvalue. Values
        after t exchanges are a polynomial of degree t in W, as plain powers are, and keep the mean.
        """
        before, now, over = values, values, 2.0
        rho2 = self.second**2 if acceleration == "chebyshev" else 0.0
        yield now
        for t in range(steps):
            after = self.step(now)
            if t and rho2:
                over = 1 / (1 - rho2 * over / 4)
                after = (over * after + (1 - over) * before).astype(values.dtype, copy=False)
            before, now = now, after
            yield now

    def _matrix(self, kind: np.dtype[Any]) -> Any:
        """The weights in single or double precision, sparse or full, whichever multiplies quicker."""
        if kind not in self._matrices:
            weights = self.weights.astype(kind)
            full = self.weights.nnz > DENSE * self.nodes**2
            self._matrices[kind] = weights.toarray() if full else weights
        return self._matrices[kind]

    @cached_property
    def _matrices(self) -> dict[np.dtype[Any], Any]:
        return {}

    def row(self, node: int, steps: int, acceleration: Acceleration = "none") -> npt.NDArray[np.float64]:
        """What a node has after ``steps`` exchanges, as weights ``[nodes]`` of all nodes' first values (W is
        symmetric, so this is what its own first value has become)."""
        first = np.zeros((self.nodes, 1))
        first[node] = 1.0
        return np.asarray(self.gossip(first, steps, acceleration), np.float64).ravel()

    @cached_property
    def distances(self) -> npt.NDArray[np.int64]:
        """How many exchanges it takes from one node to another: ``[nodes, nodes]``."""
        pairs = self.weights.copy()
        pairs.setdiag(0)
        pairs.eliminate_zeros()
        found = csgraph.shortest_path(pairs, unweighted=True)
        return np.where(np.isfinite(found), found, self.nodes).astype(np.int64)


class Uniform(Mixing):
    """All pairs of nodes, W = 1 / nodes: one exchange is the mean. The matrix is made only if asked for."""

    second = 0.0

    def __init__(self, nodes: int) -> None:
        _check_number(nodes)
        self.nodes = nodes

    @cached_property
    def weights(self) -> sparse.csr_array:
        return sparse.csr_array(np.full((self.nodes, self.nodes), 1 / self.nodes))

    def step(self, values: Floats) -> Floats:
        return np.broadcast_to(values.mean(axis=0), values.shape)
