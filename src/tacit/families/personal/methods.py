"""Personal models: every silo learns a model for its own records, and what it shares makes all of them better.

    mean-regularized    own models, each pulled towards their mean (Hanzely and Richtarik 2020)
    graph-regularized   own models, each pulled towards its relatives', given or learned (Smith et al. 2017;
                        Vanhaesebrouck et al. 2017)
    per-fedavg          one model that is good after one step on a silo's own records (Fallah et al. 2020)
    pfedme              one model near which every silo's own one lies (Dinh et al. 2020)
    fedem               several models, of which every silo has its own mixture (Marfoq et al. 2021)
    fine-tune           one private model, and afterwards a few steps on a silo's own records

What is learned in a silo for itself (``own``, and the state between rounds) never leaves it. What leaves is one vector
a round, the silo's whole upload, clipped as a whole and with the same weight for every silo; the trusted server adds
noise and divides by a public constant (``central``).

Formal guarantee (specification 6, row S17). Zeroing one silo out takes its clipped vector away and changes no other
silo's: what the others send depends on their own records, their own memory and what was released before. So one round
is a Poisson-sampled Gaussian of multiplier ``noise_multiplier`` for a view that sees only what is released. A silo's
memory depends on the rounds in which it took part. Given everything released so far, its coin of this round is fresh,
and it adds, with probability q, some vector of norm at most ``clip``, whatever its memory holds: mixtures of such
vectors are dominated by one of norm ``clip``, and rounds compose. Subjects and records: as in ``central``. The
guarantee is about what is released: a silo's own model was made from its records without noise and stays in the silo.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from tacit.errors import UserError
from tacit.families.personal.kernels import (
    Order,
    em_descend,
    fitted_weights,
    learned_relations,
    meta_gradient,
    mixed_outputs,
    proximal_point,
    smoothing,
    towards,
)
from tacit.kernels import Objective, Schedule, ServerStep, Work, descend, walk
from tacit.kernels.training import stepped
from tacit.methods import option_keys as keys
from tacit.methods.base import (
    ContributionCount,
    Divisors,
    Drawing,
    Facts,
    Method,
    ServerRule,
    ServerState,
    difference,
    part,
)
from tacit.methods.central import CentralTraining, Upload, central, silo_info
from tacit.models import Params

Made = TypeVar("Made", bound=Upload)

# How different the components of a mixture are at the start: enough to separate, little compared with what they learn.
SPREAD = 0.02
# EM steps in which a silo fits its weights to the components that it was sent.
WEIGHT_STEPS = 5


def upload_of(kind: type[Made], options: CentralTraining, **numbers: Any) -> Made:
    """An upload of this kind; fields that not all uploads have are ``numbers``, or options of the same name."""
    given = options.common | numbers
    return kind(
        **{field.name: getattr(options, field.name) for field in fields(kind) if field.name not in given}, **given
    )


# -- one model, adapted in every silo ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class FineTune(CentralTraining):
    """DP-FedAvg, after which every silo trains on from the global model by itself.

    personal_epochs  shuffled passes over a silo's own records, from the global model
    """

    info = silo_info(
        "fine-tune",
        "DP-FedAvg, after which every silo trains the global model on for itself",
        "[Slides]; McMahan et al. 2018",
        personal=True,
    )

    personal_epochs: keys.Count = 5

    def build(self, facts: Facts) -> Method:
        return central(self.info, upload_of(TunedUpload, self), facts)


@part
class TunedUpload(Upload):
    """Local training; a silo's own model is the global one, trained on."""

    personal_epochs: int

    def own_schedule(self, facts: Facts) -> Drawing:
        return Schedule(self.training.batch_size, epochs=self.personal_epochs)

    def own(self, work: Work, broadcast: Any, state: Any) -> Params:
        return descend(work, broadcast[0], self.training.learning_rate)


@dataclass(frozen=True)
class PerFedAvg(CentralTraining):
    """A model from which one step on a silo's own records goes far.

    inner_learning_rate  alpha
    order                ``first-order``, or ``hessian-vector``: with the Hessian, at about twice the cost
    adaptation_steps     steps that make the own model; 1 in the paper
    """

    info = silo_info(
        "per-fedavg",
        "a global model that is good after one step on a silo's own records",
        "Fallah et al. 2020; [Slides]",
        personal=True,
    )

    inner_learning_rate: keys.NotNegative = 0.05
    order: Order = "first-order"
    adaptation_steps: keys.Count = 1

    def build(self, facts: Facts) -> Method:
        return central(self.info, upload_of(MetaUpload, self), facts)


@part
class MetaUpload(Upload):
    """The server minimises ``sum_k F_k(theta - alpha grad F_k(theta))``. Every local step takes three batches, see
    :func:`meta_gradient`. A silo's own model is the global one after some steps of rate alpha on all its records; with
    alpha = 0 it is the global model, and the method is DP-FedAvg."""

    inner_learning_rate: float
    order: Order
    adaptation_steps: int

    def upload(self, work: Work, shared: Params, state: Any) -> tuple[jax.Array, Any]:
        def gradient(own: Params, t: jax.Array) -> Params:
            inner, outer, curvature = (partial(work.gradient, t=3 * t + part) for part in range(3))
            return meta_gradient(inner, outer, curvature, own, self.inner_learning_rate, self.order)

        return difference(walk(work, shared, self.training.learning_rate, gradient), shared), state

    def own(self, work: Work, broadcast: Any, state: Any) -> Params:
        def step(_: jax.Array, own: Params) -> Params:
            return stepped(own, work.gradient(own, 0), self.inner_learning_rate)

        return jax.lax.fori_loop(0, self.adaptation_steps, step, broadcast[0])


@dataclass(frozen=True)
class PFedMe(CentralTraining):
    """Own models near a global one: every silo's loss is its Moreau envelope, ``min_x F_k(x) + lambda/2 |x - w|^2``.

    personal_weight      lambda
    inner_learning_rate  rate of the steps that find x
    inner_steps          how many they are
    """

    info = silo_info(
        "pfedme",
        "own models near a global one, which learns from where they go",
        "Dinh et al. 2020; [Slides]",
        personal=True,
    )

    local_learning_rate: keys.LearningRate = 0.05
    personal_weight: keys.NotNegative = 15.0
    inner_learning_rate: keys.Positive = 0.05
    inner_steps: keys.Count = 5

    def build(self, facts: Facts) -> Method:
        return central(self.info, upload_of(EnvelopeUpload, self), facts)


@part
class EnvelopeUpload(Upload):
    """The gradient of the envelope is ``lambda (w - x)`` at the minimiser x, the own model. Every local step finds x
    for one batch by some proximal gradient steps from where it was, and moves the silo's copy of w along the gradient.
    As lambda goes to infinity, x goes to w and the method to DP-FedAvg; with lambda = 0 every silo trains alone."""

    personal_weight: float
    inner_learning_rate: float
    inner_steps: int

    def state(self, params: Params) -> Any:
        return params

    def upload(self, work: Work, shared: Params, state: Any) -> tuple[jax.Array, Any]:
        def step(t: jax.Array, models: tuple[Params, Params]) -> tuple[Params, Params]:
            centre, own = models
            own = self._near(work, t, own, centre)
            rate = self.training.learning_rate * self.personal_weight
            return jax.tree.map(lambda w, x: w - rate * (w - x), centre, own), own

        moved, own = jax.lax.fori_loop(0, work.batches.steps, step, (shared, state))
        return difference(moved, shared), own

    def own(self, work: Work, broadcast: Any, state: Any) -> Params:
        return self._near(work, 0, state, broadcast[0])

    def _near(self, work: Work, t: jax.Array | int, own: Params, centre: Params) -> Params:
        gradient = partial(work.gradient, t=t)
        return proximal_point(gradient, own, centre, self.personal_weight, self.inner_learning_rate, self.inner_steps)


# -- own models that pull at each other --------------------------------------------------------------------------------


def pull(options: MeanRegularized | GraphRegularized) -> float:
    """The length of a round's implicit step of a quadratic penalty of strength lambda: ``sum_k F_k(theta_k)`` plus the
    penalty.

    In a round every silo first takes the penalty's implicit step, then trains on its own loss. The implicit step has
    the length of the training, rate times steps, so that the two balance where the penalised loss is least; silos that
    count in passes over their records (``local_epochs``) take rate times passes.
    """
    steps = options.local_epochs if options.batches_per_round is None else options.batches_per_round
    return options.local_learning_rate * steps * options.personal_weight


@dataclass(frozen=True)
class MeanRegularized(CentralTraining):
    """Own models with the penalty ``lambda/2 sum_k |theta_k - mean|^2``: L2GD in rounds, with exact steps to the mean.

    personal_weight  lambda
    """

    info = silo_info(
        "mean-regularized",
        "own models, each pulled towards the mean of all",
        "Hanzely and Richtarik 2020; [Slides]",
        personal=True,
    )

    personal_weight: keys.NotNegative = 1.0

    def build(self, facts: Facts) -> Method:
        return central(self.info, upload_of(PulledUpload, self, strength=pull(self)), facts)


@part
class PulledUpload(Upload):
    """The server keeps the mean, to which every silo sends what its own training changed; the pull to the mean moves
    the mean by nothing. Without a pull every silo trains alone; with an infinite one it is DP-FedAvg."""

    strength: float

    def state(self, params: Params) -> Any:
        return params

    def upload(self, work: Work, shared: Params, state: Any) -> tuple[jax.Array, Any]:
        start = towards(state, shared, self.strength)
        trained = descend(work, start, self.training.learning_rate)
        return difference(trained, start), trained

    def own(self, work: Work, broadcast: Any, state: Any) -> Params:
        return towards(state, broadcast[0], self.strength)


Relations = Literal["complete", "ring", "learned"] | tuple[tuple[keys.NotNegative, ...], ...]


@dataclass(frozen=True)
class GraphRegularized(CentralTraining):
    """Own models with the penalty ``lambda/2 sum_{k<l} W_kl |theta_k - theta_l|^2`` over a graph of silos.

    The server keeps a copy of every silo's model, noise included, and smooths them over the graph: an exact step of the
    penalty for all of them together. A silo puts its own, exact model in the place of its copy. All copies are public,
    so that relations can be learned from them at no further cost. There is no averaging against the noise other than
    over relatives: it takes far more silos, or less privacy, than one mean does.

    A contribution is a vector for all silos' models, zero but for the silo's own part, which is clipped to ``clip``.

    personal_weight  lambda
    relations        ``complete`` (all 1/K, the mean's pull), ``ring`` (both neighbours 1/2), ``learned``, or a
                     symmetric matrix of numbers that are not negative
    temperature      ``learned`` only: how far relatives may be apart, over the mean squared distance of all models
    """

    info = silo_info(
        "graph-regularized",
        "own models, each pulled towards those of its relatives; relations given or learned",
        "Smith et al. 2017; Vanhaesebrouck et al. 2017; [Slides]",
        personal=True,
    )

    personal_weight: keys.NotNegative = 1.0
    relations: Relations = "complete"
    temperature: keys.Positive = 0.2

    def resolve(self, facts: Facts) -> Facts:
        if isinstance(self.relations, str):
            return facts
        size = facts.silos
        if len(self.relations) != size or any(len(row) != size for row in self.relations):
            problem = f"is not a matrix of {size} rows of {size} numbers"
            raise UserError("malformed", "method.relations", problem, "one row per silo")
        if any(self.relations[k][j] != self.relations[j][k] for k in range(size) for j in range(k)):
            fix = "relations are mutual: correct the matrix"
            raise UserError("invalid-value", "method.relations", "is not symmetric", fix)
        return facts

    def build(self, facts: Facts) -> Method:
        work = CopyUpload(**self.common)
        graph = Copies(clip=work.clip, strength=pull(self), relations=self.relations, temperature=self.temperature)
        return central(
            self.info,
            work,
            facts,
            server=graph,
            divisors=Divisors(1.0, self.silo_sample_rate * facts.silos),
            contributions=ContributionCount(self.silo_sample_rate, 1, "silos in each silo's part of the sum"),
            copies=facts.silos,
        )


@part
class CopyUpload(Upload):
    """A silo trains its own model; silos know which of the server's copies is theirs."""

    def state(self, params: Params) -> Any:
        return params, jnp.int32(0)

    def states(self, params: Params, silos: int) -> Any:
        own, _ = super().states(params, silos)
        return own, jnp.arange(silos, dtype=jnp.int32)

    def _start(self, shared: Any, state: Any) -> Params:
        """The smoothed copy of the silo's model, with the model itself in the place of its copy."""
        copies, smoothed, of_own = shared
        own, k = state
        return jax.tree.map(lambda s, x, c: s[k] + of_own[k] * (x - c[k]), smoothed, own, copies)

    def upload(self, work: Work, shared: Any, state: Any) -> tuple[jax.Array, Any]:
        copies, k = shared[0], state[1]
        start = self._start(shared, state)
        trained = descend(work, start, self.training.learning_rate)
        own_part = jax.tree.map(lambda c, new, old: jnp.zeros_like(c).at[k].set(new - old), copies, trained, start)
        return ravel_pytree(own_part)[0], (trained, k)

    def own(self, work: Work, broadcast: Any, state: Any) -> Params:
        return self._start(broadcast[0], state)


@part
class Copies(ServerRule):
    """The server keeps a copy of every silo's model, every leaf ``[silos, …]``, and smooths them over a graph."""

    strength: float
    relations: str | tuple[tuple[float, ...], ...]
    temperature: float

    def init(self, step: ServerStep, params: Params, silos: int) -> ServerState:
        copies = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (silos, *leaf.shape)), params)
        return super().init(step, copies, silos)

    def shared(self, server: ServerState) -> Params:
        return jax.tree.map(lambda leaf: leaf.mean(axis=0), server.params)

    def broadcast(self, server: ServerState) -> Any:
        """The copies, the copies smoothed over the graph, and what of its own copy each silo has in that."""
        matrix = self._smoothing(server.params)
        return (server.params, _applied(matrix, server.params), jnp.diag(matrix)), server.extra

    def update(self, step: ServerStep, server: ServerState, total: jax.Array, divisors: Divisors) -> ServerState:
        smoothed = _applied(self._smoothing(server.params), server.params)
        return super().update(step, server._replace(params=smoothed), total, divisors)

    def _smoothing(self, copies: Params) -> jax.Array:
        leaves = jax.tree.leaves(copies)
        size = len(leaves[0])
        if self.relations == "learned":
            rows = jnp.concatenate([leaf.reshape(size, -1) for leaf in leaves], axis=1)
            relations = learned_relations(rows, self.temperature)
        elif self.relations == "complete":
            relations = jnp.full((size, size), 1 / size)
        elif self.relations == "ring":
            relations = (jnp.roll(jnp.eye(size), 1, axis=1) + jnp.roll(jnp.eye(size), -1, axis=1)) / 2
        else:
            relations = jnp.array([jnp.stack([jnp.asarray(w, jnp.float32) for w in row]) for row in self.relations])
        return smoothing(relations, self.strength)


def _applied(matrix: jax.Array, copies: Params) -> Params:
    """Every leaf ``[silos, …]`` with its rows averaged as ``matrix [silos, silos]`` says."""
    return jax.tree.map(lambda leaf: jnp.tensordot(matrix, leaf, 1), copies)


# -- mixtures ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FedEM(CentralTraining):
    """Several models for all silos, of which every silo has its own mixture.

    components  how many
    """

    info = silo_info(
        "fedem",
        "several models for all silos, each silo with its own mixture of them",
        "Marfoq et al. 2021; [Slides]",
        personal=True,
    )

    components: keys.Count = 3

    @property
    def record_losses(self) -> str | None:
        return "name"

    def build(self, facts: Facts) -> Method:
        work = upload_of(MixedUpload, self)
        server = Components(clip=work.clip, components=self.components)
        return central(self.info, work, facts, server=server, copies=self.components)


@part
class MixedUpload(Upload):
    """Silos send what their records change in all components, clipped together; their weights stay with them, see
    ``kernels``."""

    components: int

    def state(self, params: Params) -> Any:
        return _equal(self.components)

    def upload(self, work: Work, shared: Params, state: Any) -> tuple[jax.Array, Any]:
        components = shared["components"]
        trained, weights = em_descend(work, components, state, self.training.learning_rate)
        return difference(trained, components), weights

    def own(self, work: Work, broadcast: Any, state: Any) -> Params:
        components = broadcast[0]["components"]
        return _mixture(components, fitted_weights(work, components, state, WEIGHT_STEPS))


@part
class Components(ServerRule):
    """The server keeps all components; the global model mixes them in equal parts."""

    components: int

    def init(self, step: ServerStep, params: Params, silos: int) -> ServerState:
        """The first component is the starting point, the others are a little apart, by public numbers."""
        flat, unflat = ravel_pytree(params)
        moves = SPREAD * jax.random.normal(jax.random.key(0), (self.components, flat.size)).at[0].set(0.0)
        return super().init(step, {"components": jax.vmap(unflat)(flat + moves)}, silos)

    def shared(self, server: ServerState) -> Params:
        return _mixture(server.params["components"], _equal(self.components))

    @staticmethod
    def outputs(objective: Objective, model: Params, features: jax.Array) -> jax.Array:
        frozen = {name: layer for name, layer in model.items() if name not in ("components", "mixture")}
        found = jax.vmap(lambda component: objective.apply({**component, **frozen}, features))(model["components"])
        return mixed_outputs(objective.task, found, model["mixture"]["weights"])


def _equal(components: int) -> jax.Array:
    return jnp.full(components, 1 / components)


def _mixture(components: Params, weights: jax.Array) -> Params:
    return {"components": components, "mixture": {"weights": weights}}
