"""A model: a pair of pure functions.

``init(key) -> params`` and ``apply(params, x) -> outputs``; ``params`` is a dictionary of layers, each a dictionary of
arrays, so that a layer can be frozen by its name. Optimisers, batches and privacy are elsewhere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

Params = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Model:
    """A named pair of pure functions.

    init     ``key -> params``
    apply    ``(params, x [records, ...]) -> outputs [records, outputs]``
    prepare  what is computed of records once and for all, before ``apply`` sees them: ``[records, ...] -> [records,
             ...]``, record by record and fixed by formula; None: nothing
    """

    name: str
    init: Callable[[jax.Array], Params]
    apply: Callable[[Params, jax.Array], jax.Array]
    prepare: Callable[[jax.Array], jax.Array] | None = None


def layer_names(model: Model | Params) -> tuple[str, ...]:
    """Names of the layers that may be frozen, in their natural order (``layer2`` before ``layer10``)."""
    return tuple(sorted(_shapes(model), key=_natural))


def parameter_count(model: Model | Params) -> int:
    """How many numbers the model learns; of a :class:`Model` without computing its initial values."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(_shapes(model)))


def _shapes(model: Model | Params) -> Params:
    return jax.eval_shape(model.init, jax.random.key(0)) if isinstance(model, Model) else model


def _natural(name: str) -> list[tuple[str, int]]:
    return [(word, int(number or 0)) for word, number in re.findall(r"(\D+)(\d*)", name)]
