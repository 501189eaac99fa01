"""The plain exchange: every silo sends its weighted update to the server, which adds them up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from tacit.privacy import Reveals

Pair = tuple[jax.Array, jax.Array]


@dataclass(frozen=True)
class Plain:
    """No protection on the way: the server sees each silo's update, the others see the sum (the next model)."""

    name: ClassVar[str] = "plain"
    about: ClassVar[str] = "silos send their updates to the server as they are"
    reveals: ClassVar[Mapping[str, Reveals]] = {"public": "sum", "server": "each", "silo": "sum"}

    def add(self, total: Pair, contribution: Pair) -> Pair:
        """``total`` (weighted sum of vectors, sum of weights) with one silo's ``(vector [numbers], weight [])`` added.

        Runs inside the compiled round; a silo of weight 0 adds nothing, even where its vector is not finite.
        """
        vector, weight = contribution
        return total[0] + jnp.where(weight > 0, weight * vector, 0.0), total[1] + weight
