"""Privacy of gossip, and the published bound of a random walk (specification 6.3 and 6.2).

The view is some nodes of the network. In gossip what they see is Gaussian, and the cost is exact, for the nodes that
are named: ``mu`` is the shift of the view's Gaussian in standard deviations, and the event is ``Gaussian(1 / mu)``.
Nothing is claimed for coalitions that are not named. What a walk costs is in ``random_walk``.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from tacit.privacy.accounting.events import Event, Gaussian, Nothing, RandomWalk, Unprotected
from tacit.privacy.invalid import InvalidArgument

Floats = npt.NDArray[np.float64]


# directions whose remainder lies between these, relative to one, are neither clearly zero nor clearly nonzero
_NOTHING, _SOMETHING = 1e-13, 1e-9


def gaussian_event(mu: float) -> Event:
    """The event of a Gaussian view that moves by ``mu`` standard deviations."""
    if mu == 0:
        return Nothing()
    return Unprotected("no noise hides this change from the view") if math.isinf(mu) else Gaussian(1 / mu)


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


def as_published_gossip(mixing: npt.ArrayLike, steps: int, observer: int) -> Floats:
    """The published stand-in for [Pi]_uu (Cyffers et al. 2022, "Muffliato"), for every u.

    The sum over t in 0 .. steps-1 and over the neighbours w of (W^t)_wu^2 / ||(W^t)_w||^2 (the authors' code begins
    with t = 1). It adds divergences of messages that share the same noise: not a bound.
    """
    weights = _square(mixing)
    neighbours = [w for w in np.flatnonzero(weights[observer]) if w != observer]
    power = np.eye(weights.shape[0])
    total = np.zeros(weights.shape[0])
    for _ in range(steps):
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


def as_published_random_walk_rdp(event: RandomWalk, order: float, delta: float) -> float:
    """The published bound (Cyffers, Bellet 2022, after the authors' code), with the steps that v sees directly.

    With N_u = ceil(1.2 steps / nodes) visits of u: 2 alpha Delta^2/(2 sigma^2) N_u ln(nodes)/nodes, valid while
    alpha (alpha - 1) Delta^2 / (2 sigma^2) <= 1, and ceil(2 N_u/nodes + sqrt(6 N_u ln(1/delta)/nodes)) visits at the
    local cost. Several steps of u between two of v add up coherently, which it leaves out.
    """
    local = order / (2 * event.noise_multiplier**2)
    if (order - 1) * local > 1:
        return math.inf
    visits = math.ceil(1.2 * event.steps / event.nodes)
    spotted = math.ceil(2 * visits / event.nodes + math.sqrt(6 * visits * math.log(1 / delta) / event.nodes))
    return local * (2 * visits * math.log(event.nodes) / event.nodes + spotted)
