"""The plain exchange: every silo sends its contribution to the server, which adds them up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from tacit.errors import UserError
from tacit.exchange.base import Exchange, Keys, ServerRole, SiloRole
from tacit.exchange.post import Terms, read_numbers, read_steps, write_numbers, write_steps
from tacit.exchange.sums import LARGEST_STEPS, REACH, SumFacts
from tacit.kernels.exact_sums import FINEST, Steps, doublings, noise_steps
from tacit.kernels.noise import gaussian, nonce_words
from tacit.privacy import Noise, Reveals, View
from tacit.privacy.randomness import Stream
from tacit.privacy.terms import FLOATING_POINT

PROTOCOL, UPDATE = "tacit-plain-1", "update"
# The use of a round's key for the noise on a sum; local work uses other numbers.
SUM_NOISE = 0
jax.tree_util.register_dataclass(Noise, data_fields=["std"], meta_fields=["place", "weights"])
# the least standard deviation of a party's noise, in steps of the grid of a sum
LEAST_STEPS = 8.0
# a sum on a grid, or in floating point
Total = Steps | jax.Array
# What several silos together, or silos and the server together, see of an exchange is what the stronger of them sees.
STANDS_FOR = {"silos": "silo", "server+silos": "server"}


@dataclass(frozen=True)
class Plain(Exchange):
    """No protection on the way: the server sees each silo's contribution, the others see the sum (the next model)."""

    name: ClassVar[str] = "plain"
    about: ClassVar[str] = "silos send their updates to the server as they are"
    carries = "sum"
    adds = frozenset({"shares", "once"})
    carries_once = True
    reveals: ClassVar[Mapping[str, Reveals]] = {"public": "sum", "server": "each", "silo": "sum"}

    def reveals_to(self, view: View) -> Reveals | None:
        return self.reveals.get(STANDS_FOR.get(view.kind, view.kind))

    def assumptions(self, view: View, silos: int) -> tuple[str, ...]:
        return (FLOATING_POINT,)

    def check(self, facts: SumFacts) -> None:
        """Refuse (UserError) sums that do not fit 64 bits, and noise too small for the grid on which sums are taken."""
        if facts.noise is None or facts.bound == 0:
            return
        step, share = self.step(facts), self._share(facts)
        if facts.noise.place == "shares" and 0 < share < LEAST_STEPS * step:  # one draw alone may be of any size
            problem = f"a party's noise has {share / step:.2g} steps of the grid of a sum, {LEAST_STEPS:g} are needed"
            raise UserError("out-of-range", "method.noise_multiplier", problem, "use more noise, or 0")
        widest = facts.largest + REACH * facts.noise.in_a_round
        if widest / step >= LARGEST_STEPS:
            problem = f"sums up to {widest:.1e} in steps of {step:.1e} have more than {LARGEST_STEPS:.1e} steps"
            raise UserError("out-of-range", "method.clip", problem, "use a larger noise_multiplier, or fewer people")

    def step(self, facts: SumFacts) -> float:
        """The step of the grid on which contributions are added up: a public number.

        The finest one, doubled until a party's noise reaches every step (``exact_sums``).
        """
        finest = facts.bound * FINEST
        noise = facts.noise
        weights = 0.0 if noise is None else sum(abs(weight) for weight in noise.weights)
        return finest * 2.0 ** doublings(self._share(facts) * weights, finest)

    def _share(self, facts: SumFacts) -> float:
        """The standard deviation of one party's noise."""
        if facts.noise is None:
            return 0.0
        return facts.noise.std / (math.sqrt(facts.silos) if facts.noise.place == "shares" else 1.0)

    # -- the parties

    def terms(self, run: str, silos: Sequence[str], numbers: int, facts: SumFacts) -> PlainTerms:
        noise = facts.noise
        return PlainTerms(run, tuple(silos), numbers, noise is not None and noise.std > 0, facts.complete)

    def server(self, terms: PlainTerms, keys: Keys) -> PlainServer:
        return PlainServer(terms, keys)

    def silo(self, terms: PlainTerms, keys: Keys, members: None) -> PlainSilo:
        return PlainSilo(PROTOCOL, terms, keys)

    # -- the sum, inside the compiled round

    def add(self, total: Total, vector: Total) -> Total:
        """Integers where sums are taken on a grid; numbers where nothing is promised, or where noise is in them."""
        if isinstance(total, Steps):
            assert isinstance(vector, Steps)
            return total.plus(vector)
        assert not isinstance(vector, Steps)
        return total + vector

    def noised(self, total: Steps, step: jax.Array | float, noise: Noise, keys: jax.Array, weights: jax.Array) -> Steps:
        """A trusted server's noise, or the sum of the silos' equal shares of the variance.

        ``keys [rounds, silos + 1, 8]`` are those of this round and of the ones before, as far as the noise reaches
        back, and ``weights [rounds]`` what their normals count (0 before the first round).
        """
        silos = keys.shape[1] - 1
        if noise.place == "once":
            return total.added(noise_steps(_normals(keys[:, silos], weights, total.low.shape), noise.std, step))

        def add_share(k: jax.Array, sum_: Steps) -> Steps:
            return self.share(sum_, step, noise, silos, keys[:, k], weights)

        return jax.lax.fori_loop(0, silos, add_share, total)

    def share(
        self,
        vector: Steps,
        step: jax.Array | float,
        noise: Noise,
        silos: int | jax.Array,
        keys: jax.Array,
        weights: jax.Array,
    ) -> Steps:
        """``vector`` with the noise of one of that many silos, from its own ``keys [rounds, 8]``.

        The sum of rounded Gaussians of at least LEAST_STEPS steps is, up to 2^-900 in total variation, the rounding of
        their sum with independent uniform numbers added: what samples of densities miss of their integrals is below
        exp(-pi^2 LEAST_STEPS^2) (Poisson summation).
        """
        std = noise.std / jnp.sqrt(jnp.float32(silos))
        return vector.added(noise_steps(_normals(keys, weights, vector.low.shape), std, step))

    def released(self, total: jax.Array) -> jax.Array:
        """What the server works with, of the sum ``[numbers]`` with all of its noise; a variant may change it.

        Simulator and federation both call it, inside the compiled round. It sees no records and no part of a single
        silo: it is post-processing, so that every guarantee of the plain exchange stays.
        """
        return total


@dataclass(frozen=True)
class PlainTerms(Terms):
    """How many numbers an update has, whether they are steps of a grid, and whether no silo may be missing."""

    numbers: int
    on_grid: bool
    complete: bool
    longest: ClassVar[int] = 0


class PlainSilo(SiloRole):
    """Sends its update, with its share of the noise if it adds one, as it is. The carrier signs it."""

    signs = False
    releases = (UPDATE,)

    def begin(self, number: int, contribution: Total, noise: Stream, preface: bytes = b"") -> bytes:
        self._made = UPDATE
        if isinstance(contribution, Steps):
            return write_steps(contribution.integers())
        return write_numbers(np.asarray(contribution))


class PlainServer(ServerRole):
    """Adds up the updates that arrive. Where a guarantee counts on the noise of all silos, none may be missing: the sum
    of the others would have less noise than the ledger says."""

    signs = False
    terms: PlainTerms

    def __init__(self, terms: PlainTerms, keys: Keys) -> None:
        super().__init__(PROTOCOL, terms, keys)
        self._updates: dict[str, np.ndarray] = {}

    @property
    def least(self) -> int:
        return len(self.terms.silos) if self.terms.complete else 1

    def begin(self, number: int, stream: Stream | None = None, preface: bytes = b"") -> None:
        self._begin(number, UPDATE)
        self._updates = {}

    def _opened(self, phase: str, sender: str, message: bytes) -> bytes:
        return message

    def _read(self, phase: str, sender: str, content: bytes) -> None:
        read = read_steps if self.terms.on_grid else read_numbers
        self._updates[sender] = read(content, self.terms.numbers, sender)

    def _next(self, phase: str) -> tuple[str | None, dict[str, bytes]]:
        updates = [*self._updates.values()]
        if self.terms.on_grid:
            self.total = Steps.of(np.sum(updates, axis=0, dtype=np.int64))
        else:
            self.total = np.sum(updates, axis=0, dtype=np.float64)
        return None, {}


def _normals(keys: jax.Array, weights: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """One party's noise, of standard deviation 1 where a round's normals are weighted by 1."""

    def add_round(j: jax.Array, sum_: jax.Array) -> jax.Array:
        return sum_ + weights[j] * gaussian(keys[j], nonce_words(SUM_NOISE), shape)

    return jax.lax.fori_loop(0, len(keys), add_round, jnp.zeros(shape))
