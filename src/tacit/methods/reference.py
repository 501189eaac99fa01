"""What federated learning is compared with: each silo alone, and everything in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from tacit.kernels import ServerStep, Work, descend
from tacit.methods.averaging import SiloTraining, Training
from tacit.methods.base import (
    Claim,
    Divisors,
    Drawing,
    Facts,
    Info,
    LocalResult,
    LocalWork,
    Method,
    ServerRule,
    ServerState,
    part,
)
from tacit.models import Params


@dataclass(frozen=True)
class SiloOnly(SiloTraining):
    """Every silo trains a model of its own on its own records, and nothing travels."""

    info = Info(
        "silo-only", "each silo alone: nothing travels, every silo keeps its own model", "reference", personal=True
    )

    def build(self, facts: Facts) -> Method:
        work = Alone(rate=self.silo_sample_rate, training=self.training)
        return Method(self.info, work, Idle(), Claim(self.info, facts))


@part
class Alone(LocalWork):
    """A silo trains its own model on, and sends nothing."""

    training: Training

    def schedule(self, facts: Facts) -> Drawing:
        return self.training.schedule

    def state(self, params: Params) -> Any:
        return params

    def local(self, work: Work, broadcast: Any, state: Any) -> LocalResult:
        return LocalResult(jnp.zeros(0), descend(work, state, self.training.learning_rate))

    def own(self, work: Work, broadcast: Any, state: Any) -> Params:
        return state


@part
class Idle(ServerRule):
    """A server without a model."""

    def update(self, step: ServerStep, server: ServerState, total: jax.Array, divisors: Divisors) -> ServerState:
        return server

    def shared(self, server: ServerState) -> None:
        return None


@dataclass(frozen=True)
class Pooled(SiloTraining):
    """The ideal without privacy or walls: all records in one place, trained with the same local settings."""

    info = Info(
        "pooled",
        "all records in one place: the ideal that federation is measured against (no privacy)",
        "reference",
        gathers="all",
    )

    def build(self, facts: Facts) -> Method:
        return self.averaged(facts)
