"""``tacit audit``: attack an experiment in two ways and set what was achieved beside what is promised.

1. **The mechanism**: the experiment's method on a small made federation, with as little noise as shows flaws soonest
   (multiplier 1 where the plan has more), many times with and without one unit. It tests code: noise, clip, sampling.
2. **The experiment itself**, once, with canaries in it. It tests this plan: its numbers, its data, its exchange.

An audit looks at private records without any noise of its own: what it finds stays with who holds the data, or is
published as one sentence, "nothing was refuted".
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from tacit.audit.canaries import plant
from tacit.audit.cases import case, numbers_of
from tacit.audit.mechanism import CONFIDENCE as MECHANISM_CONFIDENCE
from tacit.audit.mechanism import audit_mechanism, claim_of
from tacit.audit.one_run import CONFIDENCE, CanaryFinding, audit_run
from tacit.audit.runs import Finding
from tacit.audit.views import VIEWS
from tacit.config import Plan
from tacit.engine import Progress, Silence, load_federation
from tacit.engine.learner import learner
from tacit.errors import UserError
from tacit.privacy import Guarantee, Randomness, View, account

CANARIES = 1000
INPUT_CANARIES = 200
SILO_CANARIES = 200  # at most: each is one more silo in every exchange
RUNS = 1500
# of the small federation
SILOS, RECORDS = 3, 5


@dataclass(frozen=True)
class MechanismFinding:
    """What many runs of the method on a small federation say, for one view; ``proved`` is about one round there."""

    view: str
    noise_multiplier: float
    proved: float
    found: Finding


@dataclass(frozen=True)
class Audit:
    """Everything that an audit found.

    guarantees  what the plan promises, with what its paper says
    mechanism   the method alone, view by view
    canaries    the experiment with canaries, by what was looked at
    """

    title: str
    method: str
    unit: str
    delta: float
    rounds: int
    guarantees: tuple[Guarantee, ...]
    mechanism: tuple[MechanismFinding, ...]
    canaries: tuple[CanaryFinding, ...]
    seconds: float

    @property
    def refuted(self) -> bool:
        """Whether anything that is proved was refuted."""
        return any(line.found.refuted for line in self.mechanism) or any(line.refuted for line in self.canaries)

    @property
    def refuted_as_published(self) -> tuple[str, ...]:
        """Views for which the paper's own number is smaller than a lower bound."""
        published = {str(line.view): line.as_published.epsilon for line in self.guarantees if line.as_published}
        beaten = {line.view for line in self.canaries if line.epsilon > published.get(line.view, math.inf)}
        return tuple(view for view in published if view in beaten)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; infinity as "inf"."""
        return _plain(
            {
                "title": self.title,
                "method": self.method,
                "unit": self.unit,
                "delta": self.delta,
                "rounds": self.rounds,
                "refuted": self.refuted,
                "refuted_as_published": list(self.refuted_as_published),
                "guarantees": [line.as_dict() for line in self.guarantees],
                "mechanism": [
                    {
                        "view": line.view,
                        "noise_multiplier": line.noise_multiplier,
                        "proved": line.proved,
                        **asdict(line.found),
                    }
                    for line in self.mechanism
                ],
                "canaries": [asdict(line) for line in self.canaries],
                "seconds": self.seconds,
            }
        )


def audit(
    plan: Plan,
    *,
    frame: pd.DataFrame | None = None,
    canaries: int = CANARIES,
    input_canaries: int = INPUT_CANARIES,
    runs: int = RUNS,
    confidence: float = CONFIDENCE,
    progress: Progress | None = None,
) -> Audit:
    """Attack ``plan``: its method on a small federation, and itself with canaries.

    Canaries are looked for in one model for everybody: where silos have models of their own, it is the method alone.
    """
    if not plan.method.private:
        problem = f"{plan.method.name} promises nothing, so there is nothing to refute"
        raise UserError("method.name", problem, "choose a private method: tacit methods")
    if canaries < 10:
        raise UserError("--canaries", f"{canaries} are too few to bound anything", "use 10 or more")
    began, told = time.monotonic(), progress or Silence()
    randomness = Randomness.from_seed(plan.experiment.seed)
    mechanism = tuple(_mechanism(plan, runs, randomness, told))
    found: tuple[CanaryFinding, ...] = ()
    # canaries would be nodes of another network, or silos with models of their own
    if not plan.method.serverless and not plan.method.personal:
        found = tuple(_canaries(plan, frame, canaries, input_canaries, confidence, randomness, told))
    return Audit(
        title=plan.title,
        method=plan.label,
        unit=plan.promise.unit,
        delta=plan.promise.delta,
        rounds=plan.rounds,
        guarantees=plan.guarantees(),
        mechanism=mechanism,
        canaries=found,
        seconds=round(time.monotonic() - began, 1),
    )


def _mechanism(plan: Plan, runs: int, randomness: Randomness, progress: Progress) -> list[MechanismFinding]:
    """Every view with a promise that a small federation in the plain exchange shows."""
    facts, method = plan.promise.facts, plan.method
    numbers = numbers_of(method)
    numbers["noise_multiplier"] = min(1.0, numbers["noise_multiplier"])
    if isinstance(numbers.get("sample_rate"), tuple):
        numbers["sample_rate"] = max(numbers["sample_rate"])
    if isinstance(numbers.get("relations"), tuple):  # between silos that the small federation does not have
        numbers["relations"] = "complete"
    if numbers.get("weights") == "records":  # for which the plain exchange has to be asked twice
        numbers["disclose_counts"] = True
    silos = min(SILOS, facts.silos if not method.pools else SILOS)
    if method.serverless:  # as few nodes as a network can have
        silos, numbers = SILOS, {**numbers, **({"topology": "complete"} if "topology" in numbers else {})}
    small = case(
        numbers,
        unit=plan.promise.unit,
        silos=silos,
        records=min(RECORDS, plan.records_kept or RECORDS),
        subject_silos=min(silos, facts.silos_of_a_subject),
        delta=plan.promise.delta,
        exchange=method.exchanges[0] if method.serverless else "plain",
    )
    found = []
    for view in VIEWS:
        if small.plan.exchange.reveals_to(View.parse(view)) is None:
            continue
        proved = account(claim_of(small, view), small.plan.promise.delta).epsilon
        if math.isinf(proved):
            continue
        progress.begin(f"{method.name}, {view}", 2 * runs, 0)
        try:
            weighed = audit_mechanism(
                small,
                view,
                runs=runs,
                randomness=randomness,
                confidence=MECHANISM_CONFIDENCE,
                told=lambda done, _: progress.advance(done, {}),
            )
        finally:
            progress.end()
        found.append(MechanismFinding(view, numbers["noise_multiplier"], proved, weighed))
    return found


def _canaries(
    plan: Plan,
    frame: pd.DataFrame | None,
    canaries: int,
    input_canaries: int,
    confidence: float,
    randomness: Randomness,
    progress: Progress,
) -> list[CanaryFinding]:
    federation = load_federation(plan, frame)
    model = plan.experiment.model
    start = None if model.init_from is None else plan.path(model.init_from)
    base = learner(model, federation.labels, federation.train.features.shape[1:], randomness, start)
    number = min(canaries, SILO_CANARIES) if plan.promise.unit == "silo" else canaries
    planted = plant(plan, federation, base, number, input_canaries, randomness.stream("canaries"))
    progress.begin("with canaries", plan.rounds, 0)
    try:
        return audit_run(
            planted, base, randomness, confidence=confidence, told=lambda done, _: progress.advance(done, {})
        )
    finally:
        progress.end()


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "inf" if value > 0 else None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
