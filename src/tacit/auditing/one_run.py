"""One training run with canaries, scored by what a view sees, and the lower bounds that follow.

rounds   the noisy sum of every round, as the server's step gets it: what all released models show together, and more
uploads  every silo's own update in every round: the server in the plain exchange, where noise is in every batch
final    the last model alone

Bounds are valid for any scores. Over rounds the score is the log-likelihood ratio of the accountant's event, for the
final model the number of the canary, for input canaries the loss of the final model.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from scipy.special import logsumexp

from tacit.auditing.bounds import (
    Array,
    Guesses,
    estimate_gaussian_epsilon,
    guess,
    guesses_to_make,
    one_run_epsilon,
    one_run_fdp_epsilon,
    one_run_p_value,
    one_run_refutes,
    proved_curve,
)
from tacit.auditing.canaries import LAYER, Planted
from tacit.auditing.mechanism import OnDone
from tacit.auditing.views import contributions
from tacit.engine.kernel import kernels, outputs
from tacit.engine.learner import Learner
from tacit.engine.loop import Clock, Hooks, done_here, loop
from tacit.engine.run import SimulatedRounds
from tacit.engine.simulate import Simulation, adding
from tacit.exchange.plain import Total
from tacit.kernels import ServerStep
from tacit.methods import ServerState
from tacit.methods.base import like
from tacit.models import Params
from tacit.privacy import (
    Composed,
    Event,
    Gaussian,
    GaussianMixture,
    PoissonSampled,
    Randomness,
    Repeated,
    View,
    account,
)
from tacit.privacy.accounting.gaussian import gaussian_mu
from tacit.privacy.proofs.subject_events import binomial

CONFIDENCE = 0.95
# confidence of ``refuted``, whatever that of the bounds
REFUTED = 0.999
# the most batches of a round that a score distinguishes
MOST_PARTS = 200


@dataclass(frozen=True)
class CanaryFinding:
    """The result of canaries of one kind and one observation for one claim."""

    kind: str  # gradient or input
    seen: str  # rounds, uploads or final
    view: str  # whose guarantee it is compared with
    canaries: int
    guesses: int
    right: int
    confidence: float
    delta: float
    proved: float  # for that view, at ``delta``
    epsilon: float  # lower bound: Steinke, Nasr, Jagielski 2023
    fdp_epsilon: float  # lower bound for mechanisms on a Gaussian curve: Mahloujifar, Melis, Chaudhuri 2024
    estimate: float  # of a Gaussian with the width of the scores: no bound
    refuted: bool  # the number of right guesses has a probability below 0.001 under what is proved


@dataclass(frozen=True)
class Watched:
    """Observations of the canaries' layer, and the model at the end."""

    rounds: Array  # [rounds, numbers]
    uploads: Array | None  # [rounds, silos, numbers]
    final: Array  # [numbers]
    model: Params


def train(planted: Planted, randomness: Randomness, on_done: OnDone | None = None) -> Watched:
    """All rounds of the plan with its canaries."""
    sim = Simulation(planted.plan, planted.federation, planted.learner, randomness)
    # a step of rate 1 shows the sum itself, whatever the server's optimiser does
    plain = kernels(
        sim.method, ServerStep(), planted.learner.objective, sim.facts, sim.noise, adding(sim.exchange), sim.grid
    ).aggregate
    sums: list[jax.Array] = []

    def watch(server: ServerState, totals: tuple[Total, ...], keys: Any) -> None:
        bare = server._replace(optimizer=())
        sums.append(plain(bare, totals, keys).params[LAYER]["w"] - server.params[LAYER]["w"])

    sim.watch = watch
    of = None if sim.method.clip is None else sim.method.clip.of
    sees_uploads = sim.method.info.place == "inside" and of in ("record", "batch") and not sim.method.info.pools
    uploads = []

    class Watching(Hooks):
        def before_round(self, number: int) -> None:
            if sees_uploads:
                uploads.append(_layer_of(contributions(sim, number), sim))

        def after_round(self, number: int, participants: int) -> None:
            if on_done is not None:
                jax.block_until_ready(sums[-1])
                on_done(number)

    done_here(loop(SimulatedRounds(planted.plan, planted.federation, sim, Clock()), Watching()))
    final = np.asarray(sim.server.params[LAYER]["w"], np.float64)
    seen = np.stack(jax.device_get(sums)).astype(np.float64)
    return Watched(seen, np.stack(uploads) if uploads else None, final, sim.model())


def _layer_of(vectors: np.ndarray, sim: Simulation) -> Array:
    """The canaries' numbers of every silo's contribution."""
    params = sim.server.params
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    layers = jax.vmap(lambda vector: like(vector, params)[LAYER]["w"])(vectors[:, :count])
    return np.asarray(layers, np.float64)


def audit_run(
    planted: Planted,
    base: Learner,
    randomness: Randomness,
    *,
    confidence: float = CONFIDENCE,
    on_done: OnDone | None = None,
) -> list[CanaryFinding]:
    """Train once and bound epsilon from below, for every observation."""
    watched = train(planted, randomness, on_done)
    promise = planted.plan.promise
    public = View.parse("public")
    per_round = promise.event(planted.unit, public)
    found = [
        _weighed(planted, "gradient", "rounds", public, score_rounds(planted, watched.rounds, per_round), confidence)
    ]
    if watched.uploads is not None:
        server = View.parse("server")
        scores = score_uploads(planted, watched.uploads, promise.event(planted.unit, server))
        found.append(_weighed(planted, "gradient", "uploads", server, scores, confidence))
    found.append(_weighed(planted, "gradient", "final", public, planted.pulls(watched.final)[0], confidence))
    if len(planted.input_coins):
        found.append(_weighed(planted, "input", "final", public, -_losses(planted, base, watched), confidence))
    return found


def _weighed(planted: Planted, kind: str, seen: str, view: View, scores: Array, confidence: float) -> CanaryFinding:
    promise = planted.plan.promise
    delta, event = promise.delta, promise.total(view, planted.plan.rounds)
    coins = planted.input_coins if kind == "input" else planted.coins
    proved = account(event, delta).epsilon
    # the claim decides the number of guesses, before any score is computed
    mu = gaussian_mu(min(proved, 30.0), delta)
    few = guess(scores, coins, guesses_to_make(len(coins), mu, delta, confidence))
    many = guess(scores, coins, guesses_to_make(len(coins), mu, delta, confidence, fdp=True))
    return CanaryFinding(
        kind=kind,
        seen=seen,
        view=str(view),
        canaries=len(coins),
        guesses=few.made,
        right=few.right,
        confidence=confidence,
        delta=delta,
        proved=proved,
        epsilon=one_run_epsilon(few, delta, confidence),
        fdp_epsilon=one_run_fdp_epsilon(many, delta, confidence),
        estimate=estimate_gaussian_epsilon(scores[coins], scores[~coins], delta),
        refuted=_refuted(few, many, event, proved, delta),
    )


def _refuted(few: Guesses, many: Guesses, event: Event, proved: float, delta: float) -> bool:
    """By the number at delta, or by the whole curve, each with half of the error."""
    if math.isinf(proved):
        return False
    half = (1 - REFUTED) / 2
    return one_run_p_value(few, proved, delta) < half or one_run_refutes(many, proved_curve(event), 1 - half)


# -- scores


def score_rounds(planted: Planted, updates: Array, event: Event) -> Array:
    """The log-likelihood ratio of every canary over all rounds; unused numbers show the noise."""
    pulled, blank = planted.pulls(updates)
    width = blank.std(axis=1, keepdims=True)
    if (width == 0).any():  # no noise at all: a canary whose number is not zero was there
        return np.asarray(pulled.sum(axis=0))
    ratio = log_ratio(event)
    return np.asarray(sum(ratio(row) for row in (pulled - blank.mean(axis=1, keepdims=True)) / width))


def score_uploads(planted: Planted, uploads: Array, event: Event) -> Array:
    """The same over the uploads of all silos in which a canary would be, ``uploads [rounds, silos, numbers]``: the
    attacker knows the canary and its silos."""
    silos = uploads.shape[1]
    each = np.stack([score_rounds(planted, uploads[:, silo], event) for silo in range(silos)], axis=1)
    return np.asarray(np.take_along_axis(each, planted.homes, axis=1).sum(axis=1))


def log_ratio(event: Event) -> Callable[[Array], Array]:
    """For one round's number in units of its noise: how much likelier it is with the unit than without, as a log.

    Of a round that is many batches, their sum is seen. For what is no Gaussian sum: the number itself.
    """
    match event:
        case Gaussian(sigma):
            return lambda z: z / sigma - 0.5 / sigma**2
        case PoissonSampled(rate, Gaussian(sigma)):
            return _mixture(np.array([0.0, 1 / sigma]), np.array([1 - rate, rate]))
        case GaussianMixture(sigma, amounts, chances):
            return _mixture(np.array(amounts) / sigma, np.array(chances))
        case Repeated(Repeated(inner, count), more):
            return log_ratio(Repeated(inner, count * more))
        case Repeated(PoissonSampled(rate, Gaussian(sigma)), count) if count <= MOST_PARTS:
            return _mixture(np.arange(count + 1) / (sigma * math.sqrt(count)), binomial(count, rate))
        case Composed((first,)):
            return log_ratio(first)
        case _:
            return lambda z: z


def _mixture(shifts: Array, chances: Array) -> Callable[[Array], Array]:
    kept = chances > 0
    shifts, chances = shifts[kept], chances[kept]

    def ratio(z: Array) -> Array:
        return np.asarray(logsumexp(np.multiply.outer(z, shifts) - shifts**2 / 2, axis=-1, b=chances))

    return ratio


def _losses(planted: Planted, base: Learner, watched: Watched) -> Array:
    """The mean loss of the final model on the records of each input canary."""
    rest = {name: layer for name, layer in watched.model.items() if name != LAYER}
    found = outputs(base.objective, rest, planted.inputs.features)
    assert base.task.losses is not None
    losses = np.asarray(base.task.losses(jax.numpy.asarray(found), jax.numpy.asarray(planted.inputs.labels)))
    return losses.reshape(len(planted.input_coins), planted.records_each).mean(axis=1).astype(np.float64)
