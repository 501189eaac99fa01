"""Audit of the mechanism: thousands of runs of one round (or a few) with and without a unit, against what is proved.

Every run is the engine's own round on a small federation (:mod:`tacit.audit.cases`): drawing, clipping, weighting,
noise, the server's step. Every run has its own round numbers, and so its own coins and noise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from tacit.audit.cases import Case
from tacit.audit.runs import Finding, weigh
from tacit.audit.views import at_once, one_by_one
from tacit.data import Federation
from tacit.engine.learner import learner
from tacit.engine.simulate import Simulation
from tacit.planning.plan import Plan
from tacit.privacy import Event, Randomness, View

CONFIDENCE = 0.999
RUNS = 2000
# number of runs in one compiled call, or handed to the device before results are fetched
TOGETHER = 250

Told = Callable[[int, int], None]


def claim_of(case: Case, view: str) -> Event:
    """What the plan of a case proves about everything that a view sees in its rounds."""
    return case.plan.promise.total(View.parse(view), case.plan.rounds)


def audit_mechanism(
    case: Case,
    view: str = "public",
    *,
    runs: int = RUNS,
    randomness: Randomness | None = None,
    claim: Event | None = None,
    confidence: float = CONFIDENCE,
    told: Told | None = None,
    broken: Callable[[Plan], Plan] | None = None,
) -> Finding:
    """Run the case ``runs`` times with the unit and as often without it, and test the ``claim`` (default: what its
    plan proves) with what ``view`` saw.

    ``broken`` changes the plan that is run, not the one whose claim is tested: this is how tests break Tacit.
    """
    randomness = randomness or Randomness()
    run = case.plan if broken is None else broken(case.plan)
    seen = [
        observed(run, federation, view, runs, world, randomness, told)
        for world, federation in enumerate((case.present, case.without(view)))
    ]
    delta = case.plan.promise.delta
    return weigh(seen[0], seen[1], claim or claim_of(case, view), delta, confidence)


def observed(
    plan: Plan,
    federation: Federation,
    view: str,
    runs: int,
    world: int,
    randomness: Randomness,
    told: Told | None = None,
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
        if told is not None:
            told(world * runs + min(runs, first + TOGETHER), 2 * runs)
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
