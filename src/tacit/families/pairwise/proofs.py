"""Privacy of noise that silos share in pairs (GOPA) (specification 6.1).

The view is some silos. What they see is Gaussian, and the cost is exact, for those that are named: ``mu`` is the shift
of the view's Gaussian in standard deviations, and the event is ``Gaussian(1 / mu)``. Nothing is claimed for coalitions
that are not named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import csgraph

from tacit.privacy.accounting.gaussian import smallest_integer
from tacit.privacy.invalid import InvalidArgument
from tacit.privacy.randomness import Stream

Floats = npt.NDArray[np.float64]


class PairwiseNoise(NamedTuple):
    """What a coalition learns in one round of GOPA (Sabater, Bellet, Ramon 2022) about one silo outside it.

    mu          sqrt(max_k [Sigma^-1]_kk) over the honest silos k, for a shift of 1
    isolated    honest silos that share no pairwise noise with another honest one: they have local privacy only
    connected   whether the honest silos are connected to each other; if not, each part is protected by its own sum only
    """

    mu: float
    isolated: tuple[int, ...]
    connected: bool


def gopa(
    edges: npt.NDArray[np.bool_], coalition: Collection[int], independent_std: float, pairwise_std: float
) -> PairwiseNoise:
    """The exact cost for the silos outside ``coalition``; ``edges`` [silos, silos] says who shares pairwise noise.

    Each silo sends value + N(0, independent_std^2) + sum of its pairwise noises, N(0, pairwise_std^2) each, which
    cancel in the sum. A coalition knows its own noises; the messages of the others have covariance
    Sigma = independent_std^2 I + pairwise_std^2 L_H, with L_H the Laplacian of the edges among them.
    """
    honest, laplacian = _honest(edges, coalition)
    parts, labels = csgraph.connected_components(laplacian, directed=False)
    isolated = tuple(int(honest[k]) for k in np.flatnonzero(np.diag(laplacian) == 0)) if honest.size > 1 else ()
    mu = math.inf
    if independent_std > 0:
        eigenvalues, vectors = _eigenbasis(laplacian, labels)
        shrunk = _shrunk(eigenvalues, independent_std, pairwise_std)
        mu = math.sqrt(float((vectors**2 * shrunk).sum(axis=1).max())) / independent_std
    return PairwiseNoise(mu, isolated, bool(parts == 1))


def _eigenbasis(laplacian: Floats, labels: npt.NDArray[np.int32]) -> tuple[Floats, Floats]:
    """Eigenvalues, ascending, and eigenvectors (columns) of a Laplacian whose connected parts are ``labels``.

    The null space is known: one indicator per part, with the eigenvalue 0, which a numerical decomposition would return
    as 1e-15 and a large pairwise noise would turn into noise that is not there. The others are decreased by more than
    their rounding error (backward stability: 8 n units of the norm), so that noise is never overstated, but not below
    4 / n^2, which the algebraic connectivity of a connected graph of n nodes exceeds (Mohar 1991: 4 / (n diameter)).
    """
    nodes = labels.size
    values, vectors = np.zeros(nodes), np.zeros((nodes, nodes))
    column = 0
    members = [np.flatnonzero(labels == part) for part in range(int(labels.max()) + 1)]
    for inside in members:
        vectors[inside, column] = 1 / math.sqrt(inside.size)
        column += 1
    for inside in members:
        if inside.size == 1:
            continue
        found, directions = np.linalg.eigh(laplacian[np.ix_(inside, inside)])
        rounding = 8 * inside.size * np.finfo(float).eps * found[-1]
        stop = column + inside.size - 1
        values[column:stop] = np.maximum(found[1:] - rounding, 4 / inside.size**2)
        vectors[inside, column:stop] = directions[:, 1:]
        column = stop
    order = np.argsort(values, kind="stable")
    return values[order], vectors[:, order]


def _shrunk(eigenvalues: Floats, independent_std: float, pairwise_std: float) -> Floats:
    """independent_std^2 over the variance in every direction: 1 / (1 + (pairwise_std / independent_std)^2 lambda)."""
    shrunk = np.ones(eigenvalues.size)
    if independent_std < math.inf:
        noisy = eigenvalues > 0
        with np.errstate(over="ignore"):
            shrunk[noisy] = 1 / (1 + np.square(np.float64(pairwise_std) / independent_std) * eigenvalues[noisy])
    return shrunk


def k_out_orders(silos: int, stream: Stream) -> npt.NDArray[np.int64]:
    """For every silo all others, in the order in which it picks them: ``[silos, silos - 1]``."""
    orders = [[other for other in stream.permutation(silos) if other != silo] for silo in range(silos)]
    return np.array(orders, dtype=np.int64).reshape(silos, silos - 1)


def k_out(orders: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.bool_]:
    """The graph in which every silo shares noise with the first ``count`` of its order, and with those that picked
    it."""
    silos = len(orders)
    edges = np.zeros((silos, silos), dtype=np.bool_)
    edges[np.arange(silos)[:, None], orders[:, :count]] = True
    return np.asarray(edges | edges.T, dtype=np.bool_)


def fewest(enough: Callable[[int], bool], most: int) -> int | None:
    """The smallest number from 0 to ``most`` that is enough, where all larger ones are, too; None where none is."""
    return smallest_integer(enough, 0, most) if enough(most) else None


def gopa_choice(
    edges: npt.NDArray[np.bool_], coalition: Collection[int], central_std: float, kappa: float = 20.0
) -> tuple[float, float]:
    """(independent, pairwise) standard deviations that make the sum about as noisy as a trusted server's would be.

    s_eta = central_std / sqrt(n_H), s_Delta^2 = kappa n_H s_eta^2 / lambda_2(L_H) (specification 6.1). Infinite
    pairwise noise where the honest silos are not connected. What it costs is what :func:`gopa` says.
    """
    honest, laplacian = _honest(edges, coalition)
    independent = central_std / math.sqrt(honest.size)
    labels = csgraph.connected_components(laplacian, directed=False)[1]
    second = float(_eigenbasis(laplacian, labels)[0][1]) if honest.size > 1 else 0.0
    if second == 0:
        return independent, math.inf
    return independent, math.sqrt(kappa * honest.size / second) * independent


def _honest(edges: npt.NDArray[np.bool_], coalition: Collection[int]) -> tuple[npt.NDArray[np.int64], Floats]:
    """(the silos outside the coalition, the Laplacian of the edges among them)."""
    edges = np.asarray(edges, dtype=np.bool_)
    if edges.ndim != 2 or edges.shape[0] != edges.shape[1] or not np.array_equal(edges, edges.T):
        raise InvalidArgument("mismatch", "edges", "edges must be a symmetric square matrix")
    honest = np.array([silo for silo in range(edges.shape[0]) if silo not in set(coalition)], dtype=np.int64)
    if honest.size == 0:
        raise InvalidArgument("missing", "honest", "the coalition leaves no honest silo")
    among = edges[np.ix_(honest, honest)].astype(np.float64)
    np.fill_diagonal(among, 0.0)
    return honest, np.diag(among.sum(axis=1)) - among
