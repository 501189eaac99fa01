"""The plain exchange: every silo sends its contribution to the server, which adds them up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import jax

from tacit.privacy import Reveals


@dataclass(frozen=True)
class Plain:
    """No protection on the way: the server sees each silo's contribution, the others see the sum (the next model)."""

    name: ClassVar[str] = "plain"
    about: ClassVar[str] = "silos send their updates to the server as they are"
    reveals: ClassVar[Mapping[str, Reveals]] = {"public": "sum", "server": "each", "silo": "sum"}

    def add(self, total: jax.Array, vector: jax.Array) -> jax.Array:
        """``total`` with one silo's contribution, or another partial sum, added. Runs inside the compiled round."""
        return total + vector
