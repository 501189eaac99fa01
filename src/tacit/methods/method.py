"""What a method is: a frozen dataclass of public numbers with a few pure functions.

Private data only ever enters as call arguments. The functions below work on one silo and take arrays, so an engine may
vectorise them over silos, and the same code runs in the simulator and on a federation:

    server = method.init(step, params)
    broadcast = method.broadcast(server)
    vector, silo_state = method.local(work, broadcast, silo_state)      in every participating silo
    server = method.aggregate(step, server, total, facts)               sees a sum of vectors, never a silo

A silo's contribution is one flat vector; whatever must be added up (an update times its weight, the weight itself, a
control variate) is a part of it. The exchange owns the step from contributions to their total.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
from pydantic import Field

from tacit.learning import Schedule, ServerStep, Work
from tacit.models import Params
from tacit.privacy import Event, Guarantee, Unit, Unprotected, View, unprotected

Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=1)]
Rate = Annotated[float, Field(strict=True, gt=0, le=1)]


@dataclass(frozen=True)
class Facts:
    """What the server knows about the federation as a whole: how many silos and how many training records there are."""

    silos: int
    records: int


class ServerState(NamedTuple):
    """The server's memory: trainable parameters, the optimiser's memory, and what else a method keeps."""

    params: Params
    optimizer: Any
    extra: Any = ()


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

    @property
    def schedule(self) -> Schedule:
        """How a silo goes through its records in a round: one batch."""
        return Schedule(self.batch_size, steps=1)

    def local(self, work: Work, broadcast: Any, state: Any) -> tuple[jax.Array, Any]:
        """One silo's local work: its contribution ``[numbers]``, and its next state."""
        raise NotImplementedError

    # -- what happens at the server

    def init(self, step: ServerStep, params: Params) -> ServerState:
        return ServerState(params, step.init(params))

    def broadcast(self, server: ServerState) -> Any:
        """What every participating silo is sent."""
        return server.params

    def aggregate(self, step: ServerStep, server: ServerState, total: jax.Array, facts: Facts) -> ServerState:
        """The next server state, from the sum of contributions alone."""
        raise NotImplementedError

    # -- what is promised

    def event(self, unit: Unit, view: View) -> Event:
        """What one round releases to a view, in the accountant's terms; unprotected unless a method proves better."""
        return Unprotected(self._no_noise)

    def guarantees(self, unit: Unit, views: tuple[View, ...], delta: float) -> tuple[Guarantee, ...]:
        """What each view learns about one unit over a whole run."""
        return unprotected(unit, views, delta, self._no_noise)

    @property
    def _no_noise(self) -> str:
        return f"{self.name} adds no noise: nothing bounds what a model reveals"

    def reference_numbers(self, step: ServerStep) -> dict[str, Any]:
        """Keys of ``[method]`` under which a reference does the same local work."""
        return {"batch_size": self.batch_size, "batches_per_round": 1, "local_learning_rate": step.rate}


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

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.batch_size, self.batches_per_round, self.local_epochs)

    def reference_numbers(self, step: ServerStep) -> dict[str, Any]:
        keys = ("batch_size", "local_epochs", "batches_per_round", "local_learning_rate")
        return {key: getattr(self, key) for key in keys}
