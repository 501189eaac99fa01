"""``tacit audit``: attack an experiment in two ways and compare the result with the guarantees.

1. **The mechanism**: the experiment's method on a small artificial federation, with little noise so that errors show
   soon (multiplier at most 1), many times with and without one unit. It tests code: noise, clip, sampling.
2. **The experiment itself**, once, with canaries in it. It tests this plan: its settings, its data, its exchange. It is
   left out if canaries would change the guarantee: with local noise every number of the model has a share of the
   noise, and so would those of canaries; if noise grows with the number of silos, silos as canaries would hide each
   other.

An audit reads private records and adds no noise: its result stays with the data holder, or is published as one
sentence, "nothing was refuted".
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from tacit.auditing.canaries import Planted, plant
from tacit.auditing.cases import Case, case, numbers_of
from tacit.auditing.mechanism import Finding, OnDone, audit_mechanism, claim_of
from tacit.auditing.one_run import CONFIDENCE, CanaryFinding, audit_run
from tacit.auditing.views import VIEWS
from tacit.engine import Progress, Silence, load_federation
from tacit.engine.folder import plain_values
from tacit.engine.learner import Learner, learner
from tacit.errors import UserError
from tacit.notebook import box, line, table
from tacit.planning.claims import exchanges_for
from tacit.planning.plan import Plan
from tacit.privacy import Guarantee, Randomness, View, account
from tacit.privacy.proofs.weight_tables import RECORD_WEIGHTS
from tacit.privacy.terms import epsilon_text

CANARIES = 1000
INPUT_CANARIES = 200
SILO_CANARIES = 200  # at most: each is an additional silo in every exchange
RUNS = 1500
# of the small federation
SILOS, RECORDS = 3, 5
# of methods with local noise there: epsilon of all numbers of a subject, and the share of them that is reported
LOCAL_EPSILON, INDEX_RATE = 4.0, 0.5

Verdict = Literal["refuted", "doubtful", "not-refuted", "nothing-claimed"]


@dataclass(frozen=True)
class MechanismFinding(Finding):
    """Result of many runs of the method on a small federation for one view."""

    view: str
    noise: str  # of one round there
    proved: float  # for one round there


@dataclass(frozen=True)
class Audit:
    """The result of an audit; ``page`` is its report, where one was written."""

    title: str
    method: str
    unit: str
    delta: float
    rounds: int
    guarantees: tuple[Guarantee, ...]  # of the plan, with the published ones
    mechanism: tuple[MechanismFinding, ...]  # the method alone, view by view
    canaries: tuple[CanaryFinding, ...]  # the experiment with canaries, by what was observed
    seconds: float
    page: Path | None = None

    @property
    def refuted(self) -> bool:
        """Whether a proved guarantee was refuted."""
        return any(line.refuted for line in self.mechanism) or any(line.refuted for line in self.canaries)

    @property
    def verdict(self) -> Verdict:
        """``doubtful``: a lower bound is above what is proved at its own confidence, but not at the higher confidence
        that ``refuted`` needs. ``nothing-claimed``: no finite epsilon is proved."""
        if self.refuted:
            return "refuted"
        if any(line.epsilon > line.proved for line in self.canaries):
            return "doubtful"
        claimed = self.mechanism or any(math.isfinite(line.proved) for line in self.canaries)
        return "not-refuted" if claimed else "nothing-claimed"

    @property
    def refuted_as_published(self) -> tuple[str, ...]:
        """Views for which the published epsilon is smaller than a lower bound."""
        published = {str(line.view): line.as_published.epsilon for line in self.guarantees if line.as_published}
        beaten = {line.view for line in self.canaries if line.epsilon > published.get(line.view, math.inf)}
        return tuple(view for view in published if view in beaten)

    def _repr_html_(self) -> str:
        tried: list[tuple[str, CanaryFinding | MechanismFinding]] = [
            (f"{found.kind} canaries, {found.seen}", found) for found in self.canaries
        ]
        tried += [(f"the method alone, {found.runs} runs", found) for found in self.mechanism]
        rows = [
            {
                "attack": what,
                "view": found.view,
                "epsilon at least": f"{found.epsilon:.3g}",
                "proved: at most": epsilon_text(found.proved),
                "refuted": "yes" if found.refuted else "no",
            }
            for what, found in tried
        ]
        title = f"Audit: {self.title}"
        what = f"{self.method}, epsilon at delta {self.delta:g} for one {self.unit}: {self.verdict.replace('-', ' ')}"
        outside = "An audit is released without noise: these numbers are outside the guarantee."
        return box(title, line(what, warning=self.verdict in ("refuted", "doubtful")), table(rows), line(outside))

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; infinity as "inf"."""
        verdicts = {
            "refuted": self.refuted,
            "verdict": self.verdict,
            "refuted_as_published": list(self.refuted_as_published),
            "guarantees": [line.as_dict() for line in self.guarantees],
        }
        content: dict[str, Any] = plain_values(asdict(replace(self, guarantees=())) | verdicts)
        del content["page"]  # a place on this machine
        return content


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

    There are no canaries if silos have models of their own: then only the method is tested.
    """
    if not plan.method.private:
        problem = f"{plan.method.name} promises nothing, so there is nothing to refute"
        raise UserError("not-private", "method.name", problem, "choose a private method: tacit methods")
    _check(canaries, input_canaries, runs, confidence)
    began, shown = time.monotonic(), progress or Silence()
    randomness = Randomness.from_seed(plan.experiment.seed)
    # first the steps that may fail: reading the data, and putting canaries into them
    planted = _planted(plan, frame, canaries, input_canaries, randomness)
    mechanism = tuple(_mechanism(plan, runs, randomness, shown))
    found: list[CanaryFinding] = []
    if planted is not None:
        with _bar(shown, "with canaries", plan.rounds) as on_done:
            found = audit_run(*planted, randomness, confidence=confidence, on_done=on_done)
    return Audit(
        title=plan.title,
        method=plan.label,
        unit=plan.promise.unit,
        delta=plan.promise.delta,
        rounds=plan.rounds,
        guarantees=plan.guarantees(),
        mechanism=mechanism,
        canaries=tuple(found),
        seconds=round(time.monotonic() - began, 1),
    )


def _check(canaries: int, input_canaries: int, runs: int, confidence: float) -> None:
    for name, number, least in (("--canaries", canaries, 10), ("--runs", runs, 20)):
        if number < least:
            raise UserError("too-few", name, f"{number} are too few to bound anything", f"use {least} or more")
    if input_canaries < 0:
        raise UserError("out-of-range", "input_canaries", f"{input_canaries} is below 0", "use 0 or more")
    if not 0.5 <= confidence < 1:
        raise UserError("out-of-range", "--confidence", f"{confidence:g} is not between 0.5 and 1", "use 0.95, or 0.99")


@contextmanager
def _bar(progress: Progress, what: str, total: int) -> Iterator[OnDone]:
    progress.begin(what, total, 0)
    try:
        yield lambda done: progress.advance(done, {})
    finally:
        progress.end()


def _mechanism(plan: Plan, runs: int, randomness: Randomness, progress: Progress) -> list[MechanismFinding]:
    """All views with a guarantee that a small federation shows."""
    small = _small(plan)
    options = small.plan.options
    noise = f"{str(options.noise_key).replace('_', ' ')} {options.noise_value:g}"
    promised = {str(line.view) for line in small.plan.guarantees()}
    found = []
    for view in (view for view in VIEWS if view in promised):
        proved = account(claim_of(small, view), small.plan.promise.delta).epsilon
        if math.isfinite(proved):
            with _bar(progress, f"{options.info.name}, {view}", 2 * runs) as on_done:
                weighed = audit_mechanism(small, view, runs=runs, randomness=randomness, on_done=on_done)
            found.append(MechanismFinding(**asdict(weighed), view=view, noise=noise, proved=proved))
    return found


def _small(plan: Plan) -> Case:
    """The plan's method on a small federation: sums in the plain exchange, reports in an open shuffler."""
    facts, info = plan.promise.facts, plan.method.info
    numbers = numbers_of(plan.options)
    exchange: dict[str, Any] = {"name": "plain"}
    if plan.options.noise_key == "local_epsilon":
        numbers["local_epsilon"] = LOCAL_EPSILON
        for crowd in ("padding", "batch_subjects", "epochs"):  # these depend on the number of subjects
            numbers.pop(crowd, None)
        if "index_rate" in numbers:  # a small share of few numbers rounds to none
            numbers["index_rate"] = max(INDEX_RATE, numbers["index_rate"])
        if plan.exchange.carries == "reports":
            exchange = {**plan.exchange.options(), "sealed": False}
    else:
        numbers["noise_multiplier"] = min(1.0, numbers["noise_multiplier"])
    if isinstance(numbers.get("sample_rate"), tuple):
        numbers["sample_rate"] = max(numbers["sample_rate"])
    if isinstance(numbers.get("relations"), tuple):  # names silos that the small federation does not have
        numbers["relations"] = "complete"
    if numbers.get("weights") in RECORD_WEIGHTS:  # the plain exchange needs this confirmation
        numbers["disclose_counts"] = True
    silos = min(SILOS, facts.silos if not info.pools else SILOS)
    if info.serverless:  # the smallest network
        silos, exchange = SILOS, {"name": exchanges_for(info)[0]}
        numbers |= {"topology": "complete"} if "topology" in numbers else {}
    return case(
        numbers,
        unit=plan.promise.unit,
        silos=silos,
        records=min(RECORDS, plan.records_kept or RECORDS),
        subject_silos=min(silos, facts.silos_of_a_subject),
        exchange=exchange,
        delta=plan.promise.delta,
        capped="max_records" in plan.options.needs(plan.promise.unit),
    )


def _planted(
    plan: Plan, frame: pd.DataFrame | None, canaries: int, input_canaries: int, randomness: Randomness
) -> tuple[Planted, Learner] | None:
    """The experiment with canaries in it, and the learner without them; None if it can have none."""
    # canaries would change the number of encoders or the network, or would be silos with models of their own
    info = plan.method.info
    if info.gathers == "places" or info.serverless or info.personal:
        return None
    federation = load_federation(plan, frame)
    model = plan.experiment.model
    start = None if model.init_from is None else plan.path(model.init_from)
    base = learner(model, federation.labels, federation.train.features.shape[1:], randomness, start)
    number = min(canaries, SILO_CANARIES) if plan.promise.unit == "silo" else canaries
    planted = plant(plan, federation, base, number, input_canaries, randomness.stream("canaries"))
    as_promised = all(
        planted.plan.promise.event(planted.unit, view) == plan.promise.event(planted.unit, view)
        for view in map(View.parse, ("public", "server"))
    )
    return (planted, base) if as_promised else None
