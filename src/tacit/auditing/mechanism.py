"""Audit of the mechanism: thousands of runs of one round (or a few) with and without a unit, against what is proved.

Every run is the engine's own round on a small federation (:mod:`tacit.auditing.cases`): drawing, clipping, weighting,
noise, the server's step. Every run has its own round numbers, and so its own coins and noise.

The attack is learned, not written per method: two scores are fitted on half of the runs, a linear one (along the
difference of the means, whitened) and the log-likelihood ratio of two normal distributions, which also detects noise
whose width depends on the data or that cancels between numbers. The better one and its threshold are chosen there and
counted on the other half, so that no choice affects the confidence of the bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from tacit.auditing.bounds import (
    Array,
    Rates,
    best_attack,
    gaussian_mu,
    hockey_stick_epsilon,
    proved_curve,
    rates_at,
    refutes,
)
from tacit.auditing.cases import Case
from tacit.auditing.views import at_once, one_by_one
from tacit.data import Federation
from tacit.engine.learner import learner
from tacit.engine.simulate import Simulation
from tacit.planning.plan import Plan
from tacit.privacy import Event, Randomness, View
from tacit.privacy.accounting.gaussian import gaussian_epsilon

Score = Callable[[Array], Array]
OnDone = Callable[[int], None]  # gets the number of runs or rounds that are done

CONFIDENCE = 0.999
RUNS = 2000
# number of runs in one compiled call, or handed to the device before results are fetched
TOGETHER = 250
# directions with a smaller share of the largest spread are noise-free at the precision of float32
_RIDGE = 1e-10


def claim_of(case: Case, view: str) -> Event:
    """What the plan of a case proves about everything that a view sees in its rounds."""
    return case.plan.promise.total(View.parse(view), case.plan.rounds)


def audit_mechanism(
    case: Case,
    view: str = "public",
    *,
    runs: int = RUNS,
    randomness: Randomness | None = None,
    on_done: OnDone | None = None,
    broken: Callable[[Plan], Plan] | None = None,
) -> Finding:
    """Run the case ``runs`` times with the unit and as often without it, and test what its plan proves with what
    ``view`` saw.

    ``broken`` changes the plan that is run, not the one whose claim is tested: this is how tests break Tacit.
    """
    randomness = randomness or Randomness()
    run = case.plan if broken is None else broken(case.plan)
    seen = [
        observed(run, federation, view, runs, world, randomness, on_done)
        for world, federation in enumerate((case.present, case.without(view)))
    ]
    return weigh(seen[0], seen[1], claim_of(case, view), case.plan.promise.delta, CONFIDENCE)


def observed(
    plan: Plan,
    federation: Federation,
    view: str,
    runs: int,
    world: int,
    randomness: Randomness,
    on_done: OnDone | None = None,
) -> np.ndarray:
    """What ``view`` sees in ``runs`` independent runs of all rounds of a plan: ``[runs, numbers]``."""
    sim = simulation(plan, federation, randomness)
    start, pieces = sim.state, []
    for first in range(0, runs, TOGETHER):
        # the two worlds share a key and differ by their round numbers
        own = [(2 * run + world) * plan.rounds + 1 for run in range(first, first + TOGETHER)]
        seen = at_once(sim, view, own) if plan.rounds == 1 else None
        if seen is None:
            seen = _one_after_the_other(sim, start, view, own[: runs - first], plan.rounds)
        pieces.append(seen[: runs - first])
        if on_done is not None:
            on_done(world * runs + min(runs, first + TOGETHER))
    return np.concatenate(pieces).astype(np.float64)


def _one_after_the_other(sim: Simulation, start: Any, view: str, firsts: list[int], rounds: int) -> np.ndarray:
    waiting = []
    for first in firsts:
        sim.state = start
        waiting.append([part for t in range(rounds) for part in one_by_one(sim, view, first + t)])
    sim.state = start
    return np.stack([np.concatenate([np.ravel(part) for part in row]) for row in jax.device_get(waiting)])


def simulation(plan: Plan, federation: Federation, randomness: Randomness) -> Simulation:
    """The engine at the start of a plan."""
    model = learner(plan.experiment.model, federation.labels, federation.train.features.shape[1:], randomness)
    return Simulation(plan, federation, model, randomness)


# ---- the learned attack


@dataclass(frozen=True)
class Finding:
    """The result of many runs for one claim. Hits and false alarms are those of the attack that tested the curve."""

    runs: int
    confidence: float
    delta: float
    epsilon: float  # lower bound at ``delta``, whatever the mechanism is
    gaussian_epsilon: (
        float  # lower bound for mechanisms on a Gaussian curve: of the narrowest that covers what was seen
    )
    refuted: bool  # the attack did better than the claimed trade-off curve allows anywhere
    hits: float  # rate, at least
    false_alarms: float  # rate, at most
    most_hits: float  # that the claim allows at this rate of false alarms


def weigh(
    released_in: npt.ArrayLike, released_out: npt.ArrayLike, claim: Event, delta: float, confidence: float
) -> Finding:
    """Test ``claim`` with releases of runs with the unit and of runs without it, ``[runs, numbers]``."""
    seen_in, seen_out = (np.asarray(seen, np.float64) for seen in (released_in, released_out))
    learn_in, test_in = seen_in[::2], seen_in[1::2]
    learn_out, test_out = seen_out[::2], seen_out[1::2]
    curve = proved_curve(claim)
    # three statements, each with a third of the error
    each = 1 - (1 - confidence) / 3

    def tested(gain: Callable[[float, float], float]) -> Rates:
        """The best attack by ``gain`` on the runs to learn from, counted on the others."""
        chosen: tuple[float, Score, float] | None = None
        for score in _scores(learn_in, learn_out):
            score_in, score_out = score(learn_in), score(learn_out)
            threshold = best_attack(score_in, score_out, gain, each)
            value = gain(*rates_at(threshold, score_in, score_out).surely(each))
            if chosen is None or value > chosen[0]:
                chosen = value, score, threshold
        assert chosen is not None
        return rates_at(chosen[2], chosen[1](test_in), chosen[1](test_out))

    at_delta = tested(lambda hits, false_alarms: (hits - delta) / false_alarms)
    # on the scale of normal deviations: near 0 and 1 every attack is near the curve
    apart = tested(lambda hits, false_alarms: float(ndtri(hits) - ndtri(false_alarms)))
    on_curve = tested(lambda hits, false_alarms: float(ndtri(hits) - ndtri(curve.most_hits(false_alarms))))
    hits, false_alarms = on_curve.surely(each)
    return Finding(
        runs=len(seen_in) + len(seen_out),
        confidence=confidence,
        delta=delta,
        epsilon=hockey_stick_epsilon(at_delta, delta, each),
        gaussian_epsilon=gaussian_epsilon(gaussian_mu(apart, each), delta),
        refuted=any(refutes(rates, curve, each) for rates in (on_curve, at_delta)),
        hits=hits,
        false_alarms=false_alarms,
        most_hits=curve.most_hits(false_alarms),
    )


def _scores(learn_in: Array, learn_out: Array) -> tuple[Score, ...]:
    """Scores fitted to runs with and without the unit; larger means "there"."""
    centre_in, centre_out = learn_in.mean(0), learn_out.mean(0)
    spread_in, spread_out = _covariance(learn_in), _covariance(learn_out)
    direction = np.linalg.solve((spread_in + spread_out) / 2, centre_in - centre_out)
    likelihood_in, likelihood_out = _log_normal(centre_in, spread_in), _log_normal(centre_out, spread_out)

    def linear(seen: Array) -> Array:
        return np.asarray(seen @ direction)

    def quadratic(seen: Array) -> Array:
        return likelihood_in(seen) - likelihood_out(seen)

    return linear, quadratic


def _covariance(seen: Array) -> Array:
    """With a ridge so small that noise which cancels in a direction is still detected there."""
    found = np.atleast_2d(np.cov(seen, rowvar=False))
    widest = max(float(np.trace(found)), 1e-30)
    return np.asarray(found + _RIDGE * widest * np.eye(len(found)))


def _log_normal(centre: Array, spread: Array) -> Score:
    precision = np.linalg.inv(spread)
    log_width = np.linalg.slogdet(spread)[1]

    def log_likelihood(seen: Array) -> Array:
        off = seen - centre
        return np.asarray(-0.5 * (np.einsum("ij,jk,ik->i", off, precision, off) + log_width))

    return log_likelihood
