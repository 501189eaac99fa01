"""What a method is: a frozen dataclass of public numbers with a few pure functions.

Private data only ever enters as call arguments. The functions below work on one silo and take arrays, so an engine may
vectorise them over silos, and the same code runs in the simulator and on a federation:

    server = method.init(params)
    broadcast = method.broadcast(server)
    contribution, silo_state = method.local(objective, broadcast, silo_state, …)      in every participating silo
    server = method.aggregate(server, total)                                           sees a sum, never a silo

The exchange owns the step from contributions to their total.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from annotated_types import Ge, Gt, Le

from tacit.learning import OPTIMIZERS, Arrays, Batches, Objective, shuffled
from tacit.models import Params
from tacit.privacy import Guarantee, Stream, Unit, View, unprotected

Positive = Annotated[float, Gt(0)]
Count = Annotated[int, Ge(1)]
Rate = Annotated[float, Gt(0), Le(1)]


class Contribution(NamedTuple):
    """What one silo adds to the sum: ``vector [numbers]`` and the weight it carries."""

    vector: jax.Array
    weight: jax.Array


class Total(NamedTuple):
    """What the server sees: the weighted sum of vectors and the sum of weights, over the participating silos."""

    vector: jax.Array
    weight: jax.Array

    def mean(self) -> jax.Array:
        """The weighted mean over the participating silos; zero where nobody took part."""
        return jnp.where(self.weight > 0, self.vector / jnp.maximum(self.weight, 1e-30), 0.0)


class ServerState(NamedTuple):
    """The server's memory: trainable parameters, the optimiser's state, and what else a method keeps."""

    params: Params
    optimizer: Any
    extra: Any = ()


@dataclass(frozen=True)
class ServerStep:
    """How the server turns a mean update into the next model: an optimiser by name, and its rate."""

    optimizer: str = "sgd"
    rate: float = 1.0

    def init(self, params: Params) -> Any:
        return self._transform().init(params)

    def apply(self, params: Params, state: Any, update: Params) -> tuple[Params, Any]:
        """The next parameters and optimiser state; ``update`` points where the silos want to go."""
        gradient = jax.tree.map(jnp.negative, update)
        change, state = self._transform().update(gradient, state, params)
        return optax.apply_updates(params, change), state

    def _transform(self) -> optax.GradientTransformation:
        return OPTIMIZERS[self.optimizer](self.rate)


@dataclass(frozen=True)
class Method:
    """Base of every method that a server orchestrates; the fields are the keys of ``[method]``.

    batch_size        records per local batch; left out: all of a silo's records in one batch
    silo_sample_rate  public Poisson rate at which a silo enters a round
    """

    name: ClassVar[str]
    about: ClassVar[str]
    paper: ClassVar[str]
    units: ClassVar[tuple[Unit, ...]] = ("subject", "record", "silo")
    clips: ClassVar[str] = "nothing"
    noise: ClassVar[str] = "none"
    exchanges: ClassVar[tuple[str, ...]] = ("plain",)
    personal: ClassVar[bool] = False  # each silo keeps and uses a model of its own
    pools: ClassVar[bool] = False  # all records are moved to one place first: a reference, not federated learning

    batch_size: Count | None = None
    silo_sample_rate: Rate = 1.0

    # -- what happens in a silo

    def silo_state(self, params: Params) -> Any:
        """What a silo keeps between rounds, at the start (nothing, unless a method says otherwise)."""
        return ()

    def batches(self, start: int, count: int, stream: Stream) -> Batches:
        """This round's local work of a silo whose records are rows ``start .. start+count-1``: one batch."""
        return shuffled(start, count, size=self.batch_size, steps=1, epochs=1, stream=stream)

    def local(
        self,
        objective: Objective,
        broadcast: Any,
        frozen: Params,
        state: Any,
        arrays: Arrays,
        batches: Batches,
        count: jax.Array,
    ) -> tuple[Contribution, Any]:
        """One silo's local work: its contribution, and its next state. ``count`` is its number of records."""
        raise NotImplementedError

    # -- what happens at the server

    def init(self, step: ServerStep, params: Params) -> ServerState:
        return ServerState(params, step.init(params))

    def broadcast(self, server: ServerState) -> Any:
        """What every participating silo is sent."""
        return server.params

    def aggregate(self, step: ServerStep, server: ServerState, total: Total) -> ServerState:
        """The next server state, from the sum alone."""
        raise NotImplementedError

    # -- what is promised

    def guarantees(self, unit: Unit, views: tuple[View, ...], delta: float) -> tuple[Guarantee, ...]:
        """What each view learns about one unit; infinity unless a method proves better."""
        return unprotected(unit, views, delta, f"{self.name} adds no noise: nothing bounds what a model reveals")


@dataclass(frozen=True)
class LocalTraining(Method):
    """Methods whose silos take several steps between two exchanges.

    local_epochs         shuffled passes over a silo's records
    batches_per_round    instead of local_epochs: exactly so many batches
    local_learning_rate  rate of the silos' own steps
    """

    local_epochs: Count = 1
    batches_per_round: Count | None = None
    local_learning_rate: Positive = 0.1

    def batches(self, start: int, count: int, stream: Stream) -> Batches:
        return shuffled(
            start, count, size=self.batch_size, steps=self.batches_per_round, epochs=self.local_epochs, stream=stream
        )
