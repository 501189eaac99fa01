"""Federated averaging and its relatives, without privacy: FedAvg, FedSGD, FedProx, SCAFFOLD; and two references.

Weights are record counts, and the divisor is their sum over the *participating* silos: a silo sends its update times
its count, and its count. A round in which no silo takes part changes nothing. These methods guarantee nothing and say
so; the private ones are compared with them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from tacit.kernels import Schedule, ServerStep, Work, descend, tree_zeros
from tacit.kernels.training import Direction, plain
from tacit.methods import option_keys as keys
from tacit.methods.base import (
    Claim,
    Divisors,
    Drawing,
    Facts,
    Info,
    LocalResult,
    LocalWork,
    Method,
    Options,
    ServerRule,
    ServerState,
    like,
    minus,
    part,
)
from tacit.models import Params


@part
class Training:
    """How a silo goes through its records: batches or passes, and the learning rate of its steps."""

    learning_rate: float
    batch_size: int | None = None
    batches: int | None = None
    epochs: int = 1

    @property
    def schedule(self) -> Schedule:
        return Schedule(self.batch_size, self.batches, self.epochs)


@dataclass(frozen=True)
class SiloTraining(Options):
    """Keys of methods without noise whose silos take several steps between two exchanges."""

    batch_size: keys.SiloBatch = 32
    silo_sample_rate: keys.SiloRate = 1.0
    local_epochs: keys.LocalEpochs = 1
    batches_per_round: keys.BatchesPerRound = None
    local_learning_rate: keys.LearningRate = 0.1

    def reference_numbers(self, step: ServerStep) -> dict[str, Any]:
        return training_numbers(self)

    def averaged(self, facts: Facts, proximal: float | None = None) -> Method:
        """Silos train, the server averages."""
        work = WeightedUpdate(rate=self.silo_sample_rate, training=training(self), proximal=proximal)
        return Method(self.info, work, WeightedMean(), Claim(self.info, facts))


def training(options: Any) -> Training:
    """The training that the keys of local training ask for."""
    return Training(
        learning_rate=options.local_learning_rate,
        batch_size=None if options.batch_size == "all" else options.batch_size,
        batches=options.batches_per_round,
        epochs=options.local_epochs,
    )


def training_numbers(options: Any) -> dict[str, Any]:
    """The keys of local training with their values."""
    keys = ("batch_size", "local_epochs", "batches_per_round", "local_learning_rate")
    return {key: getattr(options, key) for key in keys}


@part
class WeightedUpdate(LocalWork):
    """Local training from the global model; the difference, weighted by records.

    proximal  strength of a pull towards the global model; None: no pull
    """

    training: Training
    proximal: float | None = None

    def schedule(self, facts: Facts) -> Drawing:
        return self.training.schedule

    def direction(self, anchor: Params) -> Direction:
        """What a silo descends along, given the model it was sent."""
        if self.proximal is None:
            return plain

        def pulled(params: Params, gradient: Params) -> Params:
            return jax.tree.map(lambda g, p, a: g + self.proximal * (p - a), gradient, params, anchor)

        return pulled

    def local(self, work: Work, broadcast: Any, state: Any) -> LocalResult:
        trained = descend(work, broadcast, self.training.learning_rate, self.direction(broadcast))
        return LocalResult(_weighted(work.records, minus(trained, broadcast)), state)


@part
class WeightedMean(ServerRule):
    """The server steps along the mean of what the silos send: a vector like the model, weighted by records."""

    def update(self, step: ServerStep, server: ServerState, total: jax.Array, divisors: Divisors) -> ServerState:
        summed, weight = total[:-1], total[-1]
        return _if_any(weight, self.stepped(step, server, summed / jnp.maximum(weight, 1.0)), server)


@dataclass(frozen=True)
class FedAvg(SiloTraining):
    """Every silo trains from the global model; the server averages the differences."""

    info = Info("fedavg", "silos train locally, the server averages (no privacy)", "McMahan et al. 2017; [Slides]")

    def build(self, facts: Facts) -> Method:
        return self.averaged(facts)


@dataclass(frozen=True)
class FedProx(SiloTraining):
    """FedAvg with a pull towards the global model: the local loss gains ``proximal / 2 * |theta - global|^2``.

    proximal  strength of the pull towards the global model
    """

    info = Info("fedprox", "FedAvg with a pull towards the global model (no privacy)", "Li et al. 2020; [Slides]")

    proximal: keys.NotNegative = 0.1

    def build(self, facts: Facts) -> Method:
        return self.averaged(facts, self.proximal)


@dataclass(frozen=True)
class FedSGD(Options):
    """Every silo sends the gradient of one batch; the server takes the step (``train.server_learning_rate``)."""

    info = Info(
        "fedsgd",
        "silos send one gradient each, the server takes the step (no privacy)",
        "McMahan et al. 2017; [Slides]",
    )

    batch_size: keys.BatchSize = None
    silo_sample_rate: keys.SiloRate = 1.0

    def reference_numbers(self, step: ServerStep) -> dict[str, Any]:
        return one_batch_numbers(self, step)

    def build(self, facts: Facts) -> Method:
        work = WeightedUpdate(rate=self.silo_sample_rate, training=one_batch(self.batch_size))
        return Method(self.info, work, WeightedMean(), Claim(self.info, facts))


def one_batch(size: int | None) -> Training:
    """A step of learning rate 1 on one batch: the negated gradient."""
    return Training(learning_rate=1.0, batch_size=size, batches=1)


def one_batch_numbers(options: Any, step: ServerStep) -> dict[str, Any]:
    return {"batch_size": options.batch_size, "batches_per_round": 1, "local_learning_rate": step.rate}


@dataclass(frozen=True)
class Scaffold(SiloTraining):
    """FedAvg with control variates: every silo corrects its drift by ``c - c_k``."""

    info = Info(
        "scaffold", "FedAvg with control variates against drift (no privacy)", "Karimireddy et al. 2020; [Slides]"
    )

    def build(self, facts: Facts) -> Method:
        work = CorrectedUpdate(rate=self.silo_sample_rate, training=training(self))
        return Method(self.info, work, ControlMean(), Claim(self.info, facts), divisors=Divisors(extra=facts.records))


@part
class CorrectedUpdate(LocalWork):
    """The gradient is taken at the *local* model (the slides print the global one). A silo's control variate moves to
    ``c_k - c + (theta - theta_k) / (L rate)`` (option II of the paper)."""

    training: Training

    def schedule(self, facts: Facts) -> Drawing:
        return self.training.schedule

    def state(self, params: Params) -> Any:
        return tree_zeros(params)

    def local(self, work: Work, broadcast: Any, state: Any) -> LocalResult:
        params, control = broadcast
        correction = minus(control, state)

        def corrected(params: Params, gradient: Params) -> Params:
            return jax.tree.map(jnp.add, gradient, correction)

        rate = self.training.learning_rate
        trained = descend(work, params, rate, corrected)
        steps = work.batches.steps
        scale = 1.0 / (jnp.maximum(steps, 1) * rate)
        drift = jax.tree.map(lambda p, t, c: (p - t) * scale - c, params, trained, control)
        change = jax.tree.map(lambda d: jnp.where(steps > 0, d, 0.0), drift)
        vector = _weighted(work.records, minus(trained, params), change)
        return LocalResult(vector, jax.tree.map(jnp.add, state, change))


@part
class ControlMean(ServerRule):
    """The server's control variate is the mean of all silos' control variates, weighted by records as the model is: it
    moves by the participants' weighted changes over *all* records."""

    def init(self, step: ServerStep, params: Params, silos: int) -> ServerState:
        return ServerState(params, step.init(params), extra=tree_zeros(params))

    def broadcast(self, server: ServerState) -> Any:
        return server.params, server.extra

    def update(self, step: ServerStep, server: ServerState, total: jax.Array, divisors: Divisors) -> ServerState:
        moves, weight = total[:-1], total[-1]
        summed, changes = jnp.split(moves, 2)
        shift = like(changes / divisors.extra, server.params)
        control = jax.tree.map(jnp.add, server.extra, shift)
        return _if_any(weight, self.stepped(step, server, summed / jnp.maximum(weight, 1.0), control), server)


# -- what federated learning is compared with: each silo alone, and everything in one place --------------------------


@dataclass(frozen=True)
class SiloOnly(SiloTraining):
    """Every silo trains a model of its own on its own records, and nothing travels."""

    info = Info(
        "silo-only", "each silo alone: nothing travels, every silo keeps its own model", "reference", personal=True
    )

    def build(self, facts: Facts) -> Method:
        work = Alone(rate=self.silo_sample_rate, training=training(self))
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


def _weighted(count: jax.Array, *trees: Params) -> jax.Array:
    """``[count * numbers of the trees, count]``: zeros for padding, even where training of nothing is not finite."""
    flat = jnp.concatenate([ravel_pytree(tree)[0] for tree in trees])
    return jnp.append(jnp.where(count > 0, count * flat, 0.0), count)


def _if_any(weight: jax.Array, after: ServerState, before: ServerState) -> ServerState:
    """``after``, unless no silo took part."""
    chosen: ServerState = jax.tree.map(lambda new, old: jnp.where(weight > 0, new, old), after, before)
    return chosen
