"""Federated averaging and its relatives, without privacy: FedAvg, FedSGD, FedProx, SCAFFOLD.

Weights are record counts, and the divisor is their sum over the *participating* silos: a silo sends its update times
its count, and its count. A round in which nobody takes part changes nothing. These methods promise nothing about
privacy and say so; they are what the private ones are compared with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from tacit.kernels import ServerStep, Work, descend, tree_zeros
from tacit.kernels.descent import Direction, plain
from tacit.methods.method import (
    Divisors,
    Facts,
    LocalResult,
    LocalTraining,
    NotNegative,
    SampledSilos,
    ServerState,
)
from tacit.models import Params


@dataclass(frozen=True)
class Averaging(SampledSilos):
    """The server steps along the mean of what the silos send: a vector like the model, weighted by records."""

    def aggregate(self, step: ServerStep, server: ServerState, total: jax.Array, divisors: Divisors) -> ServerState:
        summed, weight = total[:-1], total[-1]
        update = like(summed / jnp.maximum(weight, 1.0), server.params)
        params, optimizer = step.apply(server.params, server.optimizer, update)
        return _if_anybody(weight, ServerState(params, optimizer), server)


@dataclass(frozen=True)
class FedAvg(LocalTraining, Averaging):
    """Every silo trains from the global model; the server averages the differences."""

    name = "fedavg"
    about = "silos train locally, the server averages (no privacy)"
    paper = "McMahan et al. 2017; [Slides]"

    def direction(self, anchor: Params) -> Direction:
        """What a silo descends along, given the model it was sent."""
        return plain

    def local(self, work: Work, broadcast: Any, state: Any) -> LocalResult:
        trained = descend(work, broadcast, self.local_learning_rate, self.direction(broadcast))
        return LocalResult(_weighted(work.records, minus(trained, broadcast)), state)


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a pull towards the global model: the local loss gains ``proximal / 2 * |theta - global|^2``."""

    name = "fedprox"
    about = "FedAvg with a pull towards the global model (no privacy)"
    paper = "Li et al. 2020; [Slides]"

    proximal: NotNegative = 0.1

    def direction(self, anchor: Params) -> Direction:
        def pulled(params: Params, gradient: Params) -> Params:
            return jax.tree.map(lambda g, p, a: g + self.proximal * (p - a), gradient, params, anchor)

        return pulled


@dataclass(frozen=True)
class FedSGD(Averaging):
    """Every silo sends the gradient of one batch; the server takes the step (``train.server_learning_rate``)."""

    name = "fedsgd"
    about = "silos send one gradient each, the server takes the step (no privacy)"
    paper = "McMahan et al. 2017; [Slides]"

    def local(self, work: Work, broadcast: Any, state: Any) -> LocalResult:
        # a step of rate 1 is the negated gradient
        stepped = descend(work, broadcast, 1.0)
        return LocalResult(_weighted(work.records, minus(stepped, broadcast)), state)


@dataclass(frozen=True)
class Scaffold(FedAvg):
    """FedAvg with control variates: every silo corrects its drift by ``c - c_k``.

    The gradient is taken at the *local* model (the slides print the global one). A silo's control variate moves to
    ``c_k - c + (theta - theta_k) / (L rate)`` (option II of the paper). The server's is the mean of all silos' control
    variates, weighted by records as the model is: it moves by the participants' weighted changes over *all* records.
    """

    name = "scaffold"
    about = "FedAvg with control variates against drift (no privacy)"
    paper = "Karimireddy et al. 2020; [Slides]"

    def silo_state(self, params: Params) -> Any:
        return tree_zeros(params)

    def init(self, step: ServerStep, params: Params, facts: Facts) -> ServerState:
        return ServerState(params, step.init(params), extra=tree_zeros(params))

    def broadcast(self, server: ServerState) -> Any:
        return server.params, server.extra

    def local(self, work: Work, broadcast: Any, state: Any) -> LocalResult:
        params, control = broadcast
        correction = minus(control, state)

        def corrected(params: Params, gradient: Params) -> Params:
            return jax.tree.map(jnp.add, gradient, correction)

        trained = descend(work, params, self.local_learning_rate, corrected)
        steps = work.batches.steps
        scale = 1.0 / (jnp.maximum(steps, 1) * self.local_learning_rate)
        drift = jax.tree.map(lambda p, t, c: (p - t) * scale - c, params, trained, control)
        change = jax.tree.map(lambda d: jnp.where(steps > 0, d, 0.0), drift)
        vector = _weighted(work.records, minus(trained, params), change)
        return LocalResult(vector, jax.tree.map(jnp.add, state, change))

    def divisors(self, facts: Facts) -> Divisors:
        return Divisors(beside=facts.records)

    def aggregate(self, step: ServerStep, server: ServerState, total: jax.Array, divisors: Divisors) -> ServerState:
        moves, weight = total[:-1], total[-1]
        summed, changes = jnp.split(moves, 2)
        update = like(summed / jnp.maximum(weight, 1.0), server.params)
        params, optimizer = step.apply(server.params, server.optimizer, update)
        shift = like(changes / divisors.beside, server.params)
        control = jax.tree.map(jnp.add, server.extra, shift)
        return _if_anybody(weight, ServerState(params, optimizer, control), server)


def _weighted(count: jax.Array, *trees: Params) -> jax.Array:
    """``[count * numbers of the trees, count]``: zeros for padding, even where training of nothing is not finite."""
    flat = jnp.concatenate([ravel_pytree(tree)[0] for tree in trees])
    return jnp.append(jnp.where(count > 0, count * flat, 0.0), count)


def _if_anybody(weight: jax.Array, after: ServerState, before: ServerState) -> ServerState:
    """``after``, unless nobody took part."""
    chosen: ServerState = jax.tree.map(lambda new, old: jnp.where(weight > 0, new, old), after, before)
    return chosen


def minus(left: Params, right: Params) -> Params:
    return jax.tree.map(jnp.subtract, left, right)


def like(vector: jax.Array, tree: Params) -> Params:
    """``vector`` cut into the shapes of ``tree``."""
    return ravel_pytree(tree)[1](vector)
