"""Privacy without a server: pairwise noise (GOPA), a walking token, gossip (specification 6.1 to 6.3).

In all three the view is some nodes of the network. In the first and the last what they see is Gaussian, and the cost is
exact, for the nodes that are named: ``mu`` is the shift of the view's Gaussian in standard deviations, and the event is
``Gaussian(1 / mu)``. Nothing is claimed for coalitions that are not named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.sparse import csgraph

from tacit.privacy.accounting.events import Event, Gaussian, Nothing, RandomWalk, Unprotected
from tacit.privacy.bisection import smallest_integer
from tacit.privacy.invalid import InvalidArgument
from tacit.privacy.randomness import Stream

Floats = npt.NDArray[np.float64]


def gaussian_event(mu: float) -> Event:
    """The event of a Gaussian view that moves by ``mu`` standard deviations."""
    if mu == 0:
        return Nothing()
    return Unprotected("no noise hides this change from the view") if math.isinf(mu) else Gaussian(1 / mu)


# --- pairwise noise (GOPA) -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PairwiseNoise:
    """What a coalition learns in one round of GOPA (Sabater, Bellet, Ramon 2022) about one silo outside it.

    mu          sensitivity times sqrt(max_k [Sigma^-1]_kk) over the honest silos k
    bound       in closed form, sensitivity sqrt(1/(n_H s_eta^2) + 1/(s_eta^2 + s_Delta^2 lambda_2)), for comparison
    isolated    honest silos that share no pairwise noise with another honest one: they have local privacy only
    connected   whether the honest silos are connected to each other; if not, each part is protected by its own sum only
    """

    mu: float
    bound: float
    isolated: tuple[int, ...]
    connected: bool

    def event(self) -> Event:
        return gaussian_event(self.mu)


def gopa(
    edges: npt.NDArray[np.bool_],
    coalition: Collection[int],
    independent_std: float,
    pairwise_std: float,
    sensitivity: float = 1.0,
) -> PairwiseNoise:
    """The exact cost for the silos outside ``coalition``; ``edges`` [silos, silos] says who shares pairwise noise.

    Each silo sends value + N(0, independent_std^2) + sum of its pairwise noises, N(0, pairwise_std^2) each, which
    cancel in the sum. A coalition knows its own noises; the messages of the others have covariance
    Sigma = independent_std^2 I + pairwise_std^2 L_H, with L_H the Laplacian of the edges among them.
    """
    honest, laplacian = _honest(edges, coalition)
    parts, labels = csgraph.connected_components(laplacian, directed=False)
    isolated = tuple(int(honest[k]) for k in np.flatnonzero(np.diag(laplacian) == 0)) if honest.size > 1 else ()
    connected = bool(parts == 1)
    if independent_std == 0:
        return PairwiseNoise(math.inf, math.inf, isolated, connected)
    eigenvalues, vectors = _eigenbasis(laplacian, labels)
    shrunk = _shrunk(eigenvalues, independent_std, pairwise_std)
    scale = sensitivity / independent_std
    mu = scale * math.sqrt(float((vectors**2 * shrunk).sum(axis=1).max()))
    # the eigenvalues that are 0 come first, one for each part
    bound = 1 / honest.size + (float(shrunk[1]) if honest.size > 1 else 1.0)
    return PairwiseNoise(mu, scale * math.sqrt(bound), isolated, connected)


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


def gopa_subject_mu(
    edges: npt.NDArray[np.bool_],
    coalition: Collection[int],
    independent_std: float,
    pairwise_std: float,
    contributions: npt.ArrayLike,
) -> float:
    """mu of one subject that moves the value of silo k by ``contributions[k]`` (the coalition's do not count)."""
    honest, laplacian = _honest(edges, coalition)
    shift = np.asarray(contributions, dtype=np.float64)[honest]
    if not shift.any():
        return 0.0
    if independent_std == 0:
        return math.inf
    eigenvalues, vectors = _eigenbasis(laplacian, csgraph.connected_components(laplacian, directed=False)[1])
    along = vectors.T @ shift
    return math.sqrt(float(along**2 @ _shrunk(eigenvalues, independent_std, pairwise_std))) / independent_std


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


# --- gossip ----------------------------------------------------------------------------------------------------------

# directions whose remainder lies between these, relative to one, are neither clearly zero nor clearly nonzero
_NOTHING, _SOMETHING = 1e-13, 1e-9


def gossip_exposure(
    mixing: npt.ArrayLike, steps: int, observers: Collection[int], published: npt.ArrayLike | None = None
) -> Floats:
    """[Pi]_uu for every node u: the share of u's change that the ``observers`` together see, in ``steps`` exchanges.

    Every node adds N(0, sigma^2) to its value once and then all average with the matrix W (``mixing``, rows sum to 1,
    or any polynomial of full degree in it per step, such as Chebyshev's: the same space). An observer v knows its own
    noise and sees the rows (W^t)_w for its neighbours w and t < steps. All of these are linear in the same noises, so
    the view's privacy loss is Gaussian with mu = (Delta / sigma) sqrt([Pi]_uu), Pi the projector on the space of the
    rows seen; 1 is local privacy. The space is built by block Arnoldi steps (W times the directions that are new,
    orthogonalised twice); where a new direction is not clearly above rounding, every node is given 1. So it is
    also where weights are that small, or where a node is within reach of the rows and yet not in what was kept of them.

    ``published [rows, nodes]``: what all nodes also see, such as one node's value after the last exchange, as
    weights of the first values.
    """
    weights = _square(mixing)
    nodes = weights.shape[0]
    seen = set(observers)
    if steps > 0:
        seen |= {int(w) for v in observers for w in np.flatnonzero(weights[v])}
    between = weights[~np.eye(nodes, dtype=np.bool_)]
    if steps > 1 and ((between != 0) & (np.abs(between) < _SOMETHING)).any():
        return np.ones(nodes)
    # an observer's own rows follow from its noise and its neighbours' rows one step before: they may be counted in
    basis = moving = np.eye(nodes)[:, sorted(seen)]
    within = np.isin(np.arange(nodes), sorted(seen))
    dropped = False
    for _ in range(steps - 1):
        within |= (weights[within] != 0).any(axis=0)
        found = _new_directions(basis, weights.T @ moving)
        if found is None:
            return np.ones(nodes)
        dropped |= found.shape[1] < moving.shape[1]
        moving = found
        if moving.shape[1] == 0:
            break
        basis = np.concatenate([basis, moving], axis=1)
    if published is not None:
        rows = np.atleast_2d(np.asarray(published, dtype=np.float64)).T
        found = _new_directions(basis, rows / np.linalg.norm(rows, axis=0))
        if found is None:
            return np.ones(nodes)
        within |= (rows != 0).any(axis=1)
        dropped |= found.shape[1] < rows.shape[1]
        basis = np.concatenate([basis, found], axis=1)
    exposure = np.minimum((basis**2).sum(axis=1), 1.0)
    # a weight on a path, however faint, shows the node: a direction that was dropped may have been its only one
    if dropped and (exposure[within] < _SOMETHING**2).any():
        return np.ones(nodes)
    return np.asarray(exposure, dtype=np.float64)


def _new_directions(basis: Floats, candidates: Floats) -> Floats | None:
    """An orthonormal basis of what ``candidates`` (columns) add to ``basis``; None where rounding hides whether one
    of them adds anything."""
    for _ in range(2):
        candidates = candidates - basis @ (basis.T @ candidates)
    directions, sizes, _ = np.linalg.svd(candidates, full_matrices=False)
    if ((sizes > _NOTHING) & (sizes < _SOMETHING)).any():
        return None
    return np.asarray(directions[:, sizes >= _SOMETHING], dtype=np.float64)


def published_exposure(published: npt.ArrayLike) -> Floats:
    """[Pi]_uu for every node u where one value is all that is seen: ``published [nodes]`` are its weights of the first
    values, each with noise of its own. At best 1 / nodes, as with a trusted server."""
    row = np.asarray(published, dtype=np.float64)
    return np.asarray(row**2 / (row**2).sum(), dtype=np.float64)


def gossip_event(
    mixing: npt.ArrayLike,
    steps: int,
    noise_multiplier: float,
    node: int,
    observers: Collection[int],
    published: npt.ArrayLike | None = None,
) -> Event:
    """The event of ``node`` against ``observers`` together; ``noise_multiplier`` is sigma / Delta."""
    if node in observers:
        return Unprotected("a node knows its own value")
    exposure = float(gossip_exposure(mixing, steps, observers, published)[node])
    return gaussian_event(math.sqrt(exposure) / noise_multiplier if noise_multiplier > 0 else math.inf)


def as_published_gossip(mixing: npt.ArrayLike, steps: int, observer: int, first: int = 0) -> Floats:
    """The published stand-in for [Pi]_uu (Cyffers et al. 2022, "Muffliato"), for every u.

    The sum over t in first .. steps-1 and over the neighbours w of (W^t)_wu^2 / ||(W^t)_w||^2 (the authors' code has
    ``first = 1``). It adds divergences of messages that share the same noise: not a bound.
    """
    weights = _square(mixing)
    neighbours = [w for w in np.flatnonzero(weights[observer]) if w != observer]
    power = np.linalg.matrix_power(weights, first)
    total = np.zeros(weights.shape[0])
    for _ in range(first, steps):
        rows = power[neighbours]
        total += (rows**2 / (rows**2).sum(axis=1, keepdims=True)).sum(axis=0)
        power = power @ weights
    return total


def _square(mixing: npt.ArrayLike) -> Floats:
    weights = np.asarray(mixing, dtype=np.float64)
    if weights.ndim != 2 or weights.shape[0] != weights.shape[1]:
        raise InvalidArgument("wrong-length", "gossip", "the gossip matrix must be square")
    if not np.allclose(weights.sum(axis=1), 1.0):
        raise InvalidArgument("out-of-range", "gossip", "the rows of a gossip matrix sum to 1")
    return weights


# --- a random walk ---------------------------------------------------------------------------------------------------


def as_published_random_walk_rdp(event: RandomWalk, order: float, delta: float, factor: float = 2.0) -> float:
    """The published bound (Cyffers, Bellet 2022, after the authors' code), with the steps that v sees directly.

    With N_u = ceil(1.2 steps / nodes) visits of u: factor alpha Delta^2/(2 sigma^2) N_u ln(nodes)/nodes, valid while
    alpha (alpha - 1) Delta^2 / (2 sigma^2) <= 1, and ceil(2 N_u/nodes + sqrt(6 N_u ln(1/delta)/nodes)) visits at the
    local cost. Several steps of u between two of v add up coherently, which it leaves out.
    """
    local = order / (2 * event.noise_multiplier**2)
    if (order - 1) * local > 1:
        return math.inf
    visits = math.ceil(1.2 * event.steps / event.nodes)
    spotted = math.ceil(2 * visits / event.nodes + math.sqrt(6 * visits * math.log(1 / delta) / event.nodes))
    return local * (factor * visits * math.log(event.nodes) / event.nodes + spotted)
