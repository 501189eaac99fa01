"""Settings of pairwise noise for a target, and gossip between all pairs of nodes (specification 6.1 and 6.3)."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from tacit.families.gossip.proofs import gossip_exposure
from tacit.families.pairwise.proofs import fewest, gopa, k_out, k_out_orders
from tacit.privacy.accounting.gaussian import bisect, doubled
from tacit.privacy.randomness import Stream

Floats = npt.NDArray[np.float64]


def gopa_pairwise_std(
    edges: npt.NDArray[np.bool_],
    coalition: Collection[int],
    independent_std: float,
    target_mu: float,
    sensitivity: float = 1.0,
) -> float:
    """The smallest pairwise standard deviation (to 1e-6, from above) with mu <= ``target_mu``; infinity if none is.

    More pairwise noise only ever helps, but never below what the sum itself gives away.
    """

    def suffices(std: float) -> bool:
        return sensitivity * gopa(edges, coalition, independent_std, std).mu <= target_mu

    if suffices(0.0):
        return 0.0
    ends = doubled(suffices, max(independent_std, 1e-300), 1e6 * independent_std)
    return math.inf if ends is None else bisect(suffices, *ends, relative=1e-6)[1]


def gopa_neighbours(
    silos: int,
    coalition: Collection[int],
    independent_std: float,
    pairwise_std: float,
    target_mu: float,
    stream: Stream,
    sensitivity: float = 1.0,
) -> tuple[int, npt.NDArray[np.bool_]] | None:
    """The smallest m, and the graph, for which "everyone picks m others" drawn from ``stream`` reaches ``target_mu``.

    The graphs of one stream are nested (m + 1 picks begin with the m picks before), and more edges only help, so that
    bisection finds the smallest. None where even all pairs do not reach it.
    """
    orders = k_out_orders(silos, stream)

    def enough(count: int) -> bool:
        return sensitivity * gopa(k_out(orders, count), coalition, independent_std, pairwise_std).mu <= target_mu

    found = fewest(enough, silos - 1)
    return None if found is None else (found, k_out(orders, found))


def gossip_mu(
    mixing: npt.ArrayLike, steps: int, sigma: float, sensitivity: float = 1.0, published: npt.ArrayLike | None = None
) -> Floats:
    """mu of node u against observer v, for all pairs: an array [u, v]; a node knows its own value (infinity there)."""
    weights = np.asarray(mixing, dtype=np.float64)
    nodes = weights.shape[0]
    if sigma == 0:
        return np.full((nodes, nodes), math.inf)
    exposure = np.stack([gossip_exposure(weights, steps, (v,), published) for v in range(nodes)], axis=1)
    np.fill_diagonal(exposure, math.inf)
    return np.asarray(sensitivity / sigma * np.sqrt(exposure), dtype=np.float64)
