"""Graphs without a server: weights keep the mean, and gossip comes to it as fast as the spectral gap says."""

from __future__ import annotations

import math
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from tacit.families.gossip.graphs import GraphChoice, Mixing, NoSuchGraph, Topology, mixing, weights_of
from tacit.privacy.invalid import InvalidArgument
from tests.refusals import refuses

NODES = 16  # a square, a power of two, and even


def choice(topology: str, nodes: int = NODES, **numbers) -> GraphChoice:
    return GraphChoice(topology, nodes, **{"edge_rate": 0.3, **numbers})


@pytest.mark.parametrize("topology", get_args(Topology))
@pytest.mark.parametrize("rule", ["metropolis", "maximum-degree"])
def test_weights_are_symmetric_and_doubly_stochastic_on_the_edges_of_a_connected_graph(topology, rule):
    edges = choice(topology).edges().toarray()
    weights = mixing(choice(topology), rule).weights.toarray()
    np.testing.assert_array_equal(edges, edges.T)
    np.testing.assert_allclose(weights, weights.T, atol=1e-15)
    np.testing.assert_allclose(weights.sum(axis=0), 1, atol=1e-14)
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-14)
    assert (weights >= 0).all()
    off = ~np.eye(NODES, dtype=bool)
    np.testing.assert_array_equal((weights > 0)[off], (edges > 0)[off])
    assert mixing(choice(topology), rule).gap > 1e-3


@pytest.mark.parametrize(
    ("topology", "gap"),
    [
        # eigenvalues in closed form: of degree d all weights are 1 / (d + 1)
        ("ring", 2 / 3 * (1 - math.cos(2 * math.pi / NODES))),
        ("torus", 2 / 5 * (1 - math.cos(2 * math.pi / 4))),
        ("hypercube", 2 / 5),
        ("complete", 1.0),
    ],
)
def test_the_spectral_gap_is_the_one_of_the_books(topology, gap):
    found = mixing(choice(topology))
    assert found.gap == pytest.approx(gap, rel=1e-9)


@pytest.mark.parametrize("topology", get_args(Topology))
def test_gossip_converges_to_the_mean_at_the_rate_of_the_gap(topology):
    network = mixing(choice(topology))
    values = np.random.default_rng(0).normal(size=(NODES, 3))
    mean = values.mean(axis=0)
    start = np.linalg.norm(values - mean)
    for steps, after in enumerate(network.exchanges(values, 12)):
        np.testing.assert_allclose(after.mean(axis=0), mean, atol=1e-12)
        assert np.linalg.norm(after - mean) <= (1 - network.gap) ** steps * start * (1 + 1e-9) + 1e-12
    # and no faster: along the slowest direction the rate is met
    eigenvalues, vectors = np.linalg.eigh(network.weights.toarray())
    slowest = vectors[:, [np.argsort(np.abs(eigenvalues))[-2]]]
    left = np.linalg.norm(network.gossip(slowest, 5))
    assert left == pytest.approx((1 - network.gap) ** 5, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("topology", ["ring", "torus", "small-world"])
def test_chebyshev_keeps_the_mean_and_shrinks_by_its_polynomial(topology):
    network = mixing(choice(topology))
    values = np.random.default_rng(1).normal(size=(NODES, 3))
    mean, start = values.mean(axis=0), np.linalg.norm(values - values.mean(axis=0))
    steps = 12
    after = network.gossip(values, steps, "chebyshev")
    np.testing.assert_allclose(after.mean(axis=0), mean, atol=1e-12)
    bound = start / math.cosh(steps * math.acosh(1 / (1 - network.gap)))
    assert np.linalg.norm(after - mean) <= bound * (1 + 1e-9)
    assert bound < (1 - network.gap) ** steps * start


def test_rows_are_what_a_node_has_of_everybodys_first_values():
    network = mixing(choice("small-world"))
    values = np.random.default_rng(2).normal(size=(NODES, 2))
    for acceleration in ("none", "chebyshev"):
        after = network.gossip(values, 4, acceleration)
        np.testing.assert_allclose(network.row(5, 4, acceleration) @ values, after[5], atol=1e-12)


@settings(deadline=None, max_examples=25)
@given(st.integers(3, 30), st.floats(0.3, 1.0), st.integers(0, 1000), st.sampled_from(["metropolis", "maximum-degree"]))
def test_weights_of_any_graph_keep_the_mean(nodes, rate, seed, rule):
    edges = GraphChoice("erdos-renyi", nodes, edge_rate=rate, seed=seed).edges()
    network = Mixing(weights_of(edges, rule))
    values = np.random.default_rng(seed).normal(size=(nodes, 2)).astype(np.float32)
    np.testing.assert_allclose(network.gossip(values, 5).mean(axis=0), values.mean(axis=0), atol=1e-5)


def test_weights_that_lose_the_mean_are_refused():
    with refuses("out-of-range", "weights", InvalidArgument):
        Mixing(sparse.csr_array(np.full((3, 3), 0.3)))
    with refuses("out-of-range", "weights", InvalidArgument):
        Mixing(sparse.csr_array(np.roll(np.eye(3), 1, axis=1)))


@pytest.mark.parametrize(
    "impossible",
    [
        choice("torus", 13),
        choice("hypercube", 12),
        choice("ring", 1),
        choice("erdos-renyi", 40, edge_rate=0.01),
        choice("small-world", 10, degree=3),
    ],
)
def test_graphs_that_do_not_exist_are_refused(impossible):
    with pytest.raises(NoSuchGraph):
        impossible.edges()


@pytest.mark.parametrize("topology", ["ring", "erdos-renyi"])
def test_a_changing_graph_is_another_one_of_its_kind_every_round(topology):
    moving = choice(topology, changing=True)
    first, second, again = (moving.edges(number).toarray() for number in (1, 2, 1))
    assert (first != second).any()
    np.testing.assert_array_equal(first, again)
    if topology == "ring":
        np.testing.assert_array_equal(first.sum(axis=1), 2)
    fixed = choice(topology)
    np.testing.assert_array_equal(fixed.edges(1).toarray(), fixed.edges(2).toarray())


def test_distances_are_steps():
    distances = mixing(choice("ring")).distances
    assert distances[0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 7, 6, 5, 4, 3, 2, 1]
