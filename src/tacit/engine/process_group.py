"""The processes that share one training: what they tell each other, through JAX's own distributed runtime.

Every process reads the same table and draws the same people. It computes its share of a round; the shares are gathered
in one call and added up in the first process, which alone keeps the model, the ledger and the run folder. Words of 32
bits travel as they are: a sum of numbers that are zero elsewhere would make 0 of -0. ``psum_scatter`` is not used: on
CPUs it returns wrong numbers (jax-ml/jax#40830).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import jax
import numpy as np

Tree = TypeVar("Tree")
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class ProcessGroup:
    """The ``place`` of this process among ``count`` of them; one process is a group, too, that tells nothing."""

    place: int = 0
    count: int = 1

    def gathered(self, tree: Tree) -> tuple[Tree, ...]:
        """The trees of all processes, in their order; all have one structure and the same shapes."""
        if self.count == 1:
            return (tree,)
        from jax.experimental.multihost_utils import process_allgather

        return tuple(_tree(words, tree) for words in np.asarray(process_allgather(_words(tree))))

    def told(self, tree: Tree) -> Tree:
        """The tree of the first process; the others give one of the same shapes."""
        if self.count == 1:
            return tree
        from jax.experimental.multihost_utils import broadcast_one_to_all

        return _tree(np.asarray(broadcast_one_to_all(_words(tree))), tree)

    def shared(self, lanes: list[Any]) -> list[Any]:
        """What this process does of ``lanes``."""
        return lanes[self.place :: self.count]


ALONE = ProcessGroup()


def join(address: str, group: ProcessGroup) -> None:
    """Connect this process with the others of its group, before anything else is done with JAX.

    The first process listens at ``address``. On one machine, everything is bound to the loopback interface.
    """
    host = address.rpartition(":")[0]
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        address,
        group.count,
        group.place,
        cluster_detection_method="deactivate",
        coordinator_bind_address=address if group.place == 0 else None,
    )
    if host == LOOPBACK:
        _stay_on_loopback()


def _stay_on_loopback() -> None:
    """Gloo listens where the name of the machine points to, unless it is told: JAX has no setting for it."""
    from jax._src import distributed, xla_bridge
    from jax._src.lib import _jax

    collectives = _jax.make_gloo_tcp_collectives(
        distributed_client=distributed.global_state.client, hostname=LOOPBACK, interface=None
    )
    made = partial(xla_bridge.make_cpu_client, collectives)
    xla_bridge.register_backend_factory("cpu", made, priority=0, fail_quietly=False)


def _words(tree: Any) -> np.ndarray:
    """All numbers of a tree as words of 32 bits ``[words]``; numbers of 64 bits are two."""
    leaves = [np.ascontiguousarray(leaf).reshape(-1) for leaf in jax.tree.leaves(tree)]
    assert all(leaf.dtype.itemsize % 4 == 0 for leaf in leaves), "whole words are sent"
    return np.concatenate([leaf.view(np.uint32) for leaf in leaves])


def _tree(words: np.ndarray, like: Tree) -> Tree:
    leaves, structure = jax.tree.flatten(jax.tree.map(np.asarray, like))
    parts = np.split(words, np.cumsum([leaf.nbytes // 4 for leaf in leaves])[:-1])
    found = (part.copy().view(leaf.dtype).reshape(leaf.shape) for part, leaf in zip(parts, leaves, strict=True))
    made: Tree = jax.tree.unflatten(structure, found)
    return made
