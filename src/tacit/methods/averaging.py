"""Federated averaging and its relatives, without privacy: FedAvg, FedSGD, FedProx, SCAFFOLD.

Weights are record counts, and the divisor is their sum over the *participating* silos. These methods promise nothing
about privacy and say so; they are what the private ones are compared with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp
from annotated_types import Ge
from jax.flatten_util import ravel_pytree

from tacit.learning import Arrays, Batches, Objective, descend, tree_zeros
from tacit.learning.descent import Direction, plain
from tacit.methods.method import Contribution, LocalTraining, Method, ServerState, ServerStep, Total
from tacit.models import Params


@dataclass(frozen=True)
class Averaging(Method):
    """The server steps along the mean of what the silos send: a vector like the model, weighted by records."""

    def aggregate(self, step: ServerStep, server: ServerState, total: Total) -> ServerState:
        update = _like(total.mean(), server.params)
        return ServerState(*step.apply(server.params, server.optimizer, update))


@dataclass(frozen=True)
class FedAvg(LocalTraining, Averaging):
    """Every silo trains from the global model; the server averages the differences."""

    name = "fedavg"
    about = "silos train locally, the server averages (no privacy)"
    paper = "McMahan et al. 2017; slides 001"

    def direction(self, anchor: Params) -> Direction:
        """What a silo descends along, given the model it was sent."""
        return plain

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
        rate, way = self.local_learning_rate, self.direction(broadcast)
        trained = descend(objective, broadcast, frozen, arrays, batches, rate, way)
        return Contribution(_flat(_minus(trained, broadcast)), count), state


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a pull towards the global model: the local loss gains ``proximal / 2 * |theta - global|^2``."""

    name = "fedprox"
    about = "FedAvg with a pull towards the global model (no privacy)"
    paper = "Li et al. 2020; slides 001"

    proximal: Annotated[float, Ge(0)] = 0.1

    def direction(self, anchor: Params) -> Direction:
        def pulled(params: Params, gradient: Params) -> Params:
            return jax.tree.map(lambda g, p, a: g + self.proximal * (p - a), gradient, params, anchor)

        return pulled


@dataclass(frozen=True)
class FedSGD(Averaging):
    """Every silo sends the gradient of one batch; the server takes the step (``train.server_learning_rate``)."""

    name = "fedsgd"
    about = "silos send one gradient each, the server takes the step (no privacy)"
    paper = "McMahan et al. 2017; slides 001"

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
        # a step of rate 1 is the negated gradient; a silo that is padding takes none
        stepped = descend(objective, broadcast, frozen, arrays, batches, 1.0)
        return Contribution(_flat(_minus(stepped, broadcast)), count), state


@dataclass(frozen=True)
class Scaffold(FedAvg):
    """FedAvg with control variates: every silo corrects its drift by ``c - c_k``.

    The gradient is taken at the *local* model (the slides print the global one). A silo's control variate moves to
    ``c_k - c + (theta - theta_k) / (L rate)`` (option II of the paper). The server's moves by the silos' mean change
    times the public sampling rate, so that it follows the mean over *all* silos.
    """

    name = "scaffold"
    about = "FedAvg with control variates against drift (no privacy)"
    paper = "Karimireddy et al. 2020; slides 001"

    def silo_state(self, params: Params) -> Any:
        return tree_zeros(params)

    def init(self, step: ServerStep, params: Params) -> ServerState:
        return ServerState(params, step.init(params), extra=tree_zeros(params))

    def broadcast(self, server: ServerState) -> Any:
        return server.params, server.extra

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
        params, control = broadcast
        correction = _minus(control, state)

        def corrected(params: Params, gradient: Params) -> Params:
            return jax.tree.map(jnp.add, gradient, correction)

        trained = descend(objective, params, frozen, arrays, batches, self.local_learning_rate, corrected)
        scale = 1.0 / (jnp.maximum(batches.steps, 1) * self.local_learning_rate)
        drift = jax.tree.map(lambda p, t, c: (p - t) * scale - c, params, trained, control)
        change = jax.tree.map(lambda d: jnp.where(batches.steps > 0, d, 0.0), drift)
        vector = jnp.concatenate([_flat(_minus(trained, params)), _flat(change)])
        return Contribution(vector, count), jax.tree.map(jnp.add, state, change)

    def aggregate(self, step: ServerStep, server: ServerState, total: Total) -> ServerState:
        update, change = jnp.split(total.mean(), 2)
        params, optimizer = step.apply(server.params, server.optimizer, _like(update, server.params))
        control = jax.tree.map(
            lambda c, d: c + self.silo_sample_rate * d, server.extra, _like(change, server.params)
        )
        return ServerState(params, optimizer, control)


def _minus(left: Params, right: Params) -> Params:
    return jax.tree.map(jnp.subtract, left, right)


def _flat(tree: Params) -> jax.Array:
    return ravel_pytree(tree)[0]


def _like(vector: jax.Array, tree: Params) -> Params:
    """``vector`` cut into the shapes of ``tree``."""
    return ravel_pytree(tree)[1](vector)
