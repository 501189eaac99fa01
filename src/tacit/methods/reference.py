"""What federated learning is compared with: each silo alone, and everything in one place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from tacit.kernels import ServerStep, Work, descend
from tacit.methods.averaging import FedAvg
from tacit.methods.method import Divisors, LocalResult, LocalTraining, ServerState
from tacit.models import Params


@dataclass(frozen=True)
class SiloOnly(LocalTraining):
    """Nobody joins: every silo trains a model of its own on its own records, and nothing travels."""

    name = "silo-only"
    about = "each silo alone: nothing travels, every silo keeps its own model"
    paper = "reference"
    personal = True

    def silo_state(self, params: Params) -> Any:
        return params

    def local(self, work: Work, broadcast: Any, state: Any) -> LocalResult:
        return LocalResult(jnp.zeros(0), descend(work, state, self.local_learning_rate))

    def shared(self, server: ServerState) -> None:
        return None

    def own(self, work: Work, broadcast: Any, state: Any) -> Params:
        return state

    def aggregate(self, step: ServerStep, server: ServerState, total: jax.Array, divisors: Divisors) -> ServerState:
        return server


@dataclass(frozen=True)
class Pooled(FedAvg):
    """The ideal without privacy or walls: all records in one place, trained with the same local settings."""

    name = "pooled"
    about = "all records in one place: the ideal that federation is measured against (no privacy)"
    paper = "reference"
    pools = True
