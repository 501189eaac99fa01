"""What an exchange is: how contributions become a sum, what each view gets to see of them, and who adds noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Protocol

import jax

from tacit.privacy import Noise, Reveals, View


class Exchange(Protocol):
    """A frozen value of public numbers.

    reveals  for each kind of view that the exchange speaks of, what it sees
    """

    name: ClassVar[str]
    about: ClassVar[str]
    reveals: ClassVar[Mapping[str, Reveals]]

    def __hash__(self) -> int: ...

    def reveals_to(self, view: View) -> Reveals | None:
        """What a view sees; None where the exchange knows no such view."""

    def add(self, total: jax.Array, vector: jax.Array) -> jax.Array:
        """``total`` with one silo's contribution, or another partial sum, added. Runs inside the compiled round."""

    def noised(self, total: jax.Array, noise: Noise, keys: jax.Array) -> jax.Array:
        """The sum with its noise. ``keys [silos, 8]``: each silo's key of this round; the last one is the server's."""
