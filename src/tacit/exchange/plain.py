"""The plain exchange: every silo sends its contribution to the server, which adds them up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from tacit.exchange.sums import SumFacts
from tacit.learning.noise import gaussian, nonce_words
from tacit.privacy import Index, Noise, Reveals, View

# The use of a round's key for the noise on a sum; local work uses other numbers.
SUM_NOISE = 0
jax.tree_util.register_dataclass(Noise, data_fields=["std"], meta_fields=["place", "weights"])
FLOATS = "noise is drawn in floating point; its least significant bits are not covered"
# What several silos together, or silos and the server together, see of an exchange is what the stronger of them sees.
STANDS_FOR = {"silos": "silo", "server+silos": "server"}


@dataclass(frozen=True)
class Plain:
    """No protection on the way: the server sees each silo's contribution, the others see the sum (the next model)."""

    name: ClassVar[str] = "plain"
    about: ClassVar[str] = "silos send their updates to the server as they are"
    index: ClassVar[Index | None] = None
    reveals: ClassVar[Mapping[str, Reveals]] = {"public": "sum", "server": "each", "silo": "sum"}

    def reveals_to(self, view: View) -> Reveals | None:
        return self.reveals.get(STANDS_FOR.get(view.kind, view.kind))

    def assumptions(self, view: View, silos: int) -> tuple[str, ...]:
        return (FLOATS,)

    def check(self, facts: SumFacts) -> None:
        """Any numbers will do."""

    def add(self, total: jax.Array, vector: jax.Array) -> jax.Array:
        return total + vector

    def noised(self, total: jax.Array, noise: Noise, keys: jax.Array, weights: jax.Array) -> jax.Array:
        """A trusted server's noise, or the sum of the silos' equal shares of the variance.

        ``keys [rounds, silos + 1, 8]`` are those of this round and of the ones before, as far as the noise reaches
        back, and ``weights [rounds]`` what their normals count (0 before the first round).
        """
        silos = keys.shape[1] - 1
        if noise.place == "once":
            return total + noise.std * _normals(keys[:, silos], weights, total.shape)

        def add_share(k: jax.Array, sum_: jax.Array) -> jax.Array:
            return self.share(sum_, noise, silos, keys[:, k], weights)

        return jax.lax.fori_loop(0, silos, add_share, total)

    def share(
        self, vector: jax.Array, noise: Noise, silos: int | jax.Array, keys: jax.Array, weights: jax.Array
    ) -> jax.Array:
        """``vector`` with the noise of one of so many silos, from its own ``keys [rounds, 8]``."""
        return vector + noise.std / jnp.sqrt(jnp.float32(silos)) * _normals(keys, weights, vector.shape)


def _normals(keys: jax.Array, weights: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """One party's noise, of standard deviation 1 where a round's normals are weighted by 1."""

    def add_round(j: jax.Array, sum_: jax.Array) -> jax.Array:
        return sum_ + weights[j] * gaussian(keys[j], nonce_words(SUM_NOISE), shape)

    return jax.lax.fori_loop(0, len(keys), add_round, jnp.zeros(shape))
