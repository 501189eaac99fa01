"""What ``tacit plan`` shows of a plan: its guarantees, its noise and what it hides, and the rounds of its budget."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tacit.errors import UserError
from tacit.exchange.base import PlanPart
from tacit.planning.claims import Once, beside, cost
from tacit.planning.plan import Plan
from tacit.planning.verdict import Verdict, verdict
from tacit.privacy import Event, Guarantee, Ledger, LedgerError, Repeated, View, spent
from tacit.privacy.ledger import place
from tacit.privacy.terms import sentence


@dataclass(frozen=True)
class NoiseToSignal:
    """The noise on one sum, and the largest sum that clipping allows.

    multiplier    standard deviation over clip, or over as many clips as the method says
    solved        the multiplier was solved for, not given
    std           standard deviation of the noise on every number of the sum
    place         who adds it
    parameters    how many numbers the sum has; None where the shape of the data is not publicly known
    norm          the noise's typical l2 norm: std times the root of ``parameters``
    units         how many clipped contributions a sum has on average, in words and as a number; None where not public
    largest       the largest norm of their sum: number times clip, if all of them pointed the same way
    divisor       what the server divides a sum by; None where its step is not along that sum
    rate          the server's learning rate
    """

    multiplier: float
    solved: bool
    clip: float
    std: float
    place: str
    clips: str
    parameters: int | None
    norm: float | None
    units: str | None
    count: float | None
    largest: float | None
    divisor: float | None
    rate: float

    @property
    def step(self) -> float | None:
        """How far the largest possible sum moves the model in one round, without momentum."""
        return None if self.largest is None or self.divisor is None else self.rate * self.largest / self.divisor

    @property
    def origin(self) -> str:
        """Where the standard deviation comes from, in words: for some methods, more than one clip is the measure."""
        times = self.std / (self.multiplier * self.clip) if self.multiplier else 1.0
        more = "" if math.isclose(times, 1.0) else f" x {times:.4g}"
        return f"multiplier x clip ({self.clip:g}){more}"

    @property
    def ratio(self) -> float | None:
        """Noise over signal: the noise's norm over the largest norm of the sum."""
        return self.norm / self.largest if self.norm is not None and self.largest else None


@dataclass(frozen=True)
class OverSilos:
    """How many rounds the same noise and epsilon allow where every silo that holds a subject's records adds to the loss
    ([SubjectDP-2], horizontal composition; specification 1.2).

    silos              at most this many hold records of one subject
    alone              rounds if one silo held all of them: R
    proved             R / silos, which are the plan's rounds: every round of every silo is a release about the subject,
                       and the same number of releases costs the same
    published          R / sqrt(silos), as theorem 3.10 of [SubjectDP-2] has it: epsilon grows with about the root of
                       the number of releases, but that does not make them fewer
    epsilon            of ``proved`` rounds, the largest over the views that bind
    published_epsilon  what is proved about ``published`` rounds
    """

    silos: int
    alone: int
    proved: int
    published: int
    epsilon: float
    published_epsilon: float

    @property
    def words(self) -> str:
        """The two numbers side by side, and why they differ."""
        return (
            f"One subject may have records in {self.silos} silos. At this noise, epsilon {self.epsilon:.3g} allows one "
            f"silo alone {self.alone:,} rounds; all {self.silos} together {self.proved:,} (R/s, proved), not "
            f"{self.published:,} (R/sqrt(s), [SubjectDP-2]):"
            " each round of each silo is one more release about the subject."
            f" That the loss grows with the root of their number makes them no fewer; {self.published:,} rounds are "
            f"proved to cost {self.published_epsilon:.3g}."
        )


@dataclass(frozen=True)
class Outlook:
    """A plan in numbers and words.

    once   releases outside the rounds, each with the largest epsilon over the views that bind, by itself; they are part
           of the guarantees
    parts  what its exchange adds, by key in JSON
    verdict  what to expect of the model
    """

    plan: Plan
    guarantees: tuple[Guarantee, ...]
    promise: str
    noise: NoiseToSignal | None
    budget: float | None
    rounds_within_budget: int | None
    once: tuple[tuple[Once, float], ...]
    over_silos: OverSilos | None
    parts: dict[str, PlanPart]
    verdict: Verdict | None = None

    def as_dict(self) -> dict[str, Any]:
        parts = {key: part.as_dict() for key, part in self.parts.items()}
        return {
            "title": self.plan.title,
            "method": self.plan.method.name,
            "noise_multiplier": self.plan.noise_multiplier,
            "local_epsilon": self.plan.local_epsilon,
            "guarantees": [guarantee.as_dict() for guarantee in self.guarantees],
            "promise": self.promise,
            "noise": None
            if self.noise is None
            else {**asdict(self.noise), "ratio": self.noise.ratio, "step": self.noise.step},
            "rounds_within_budget": self.rounds_within_budget,
            "paid": [
                {
                    "mechanism": once.mechanism,
                    "noise_multiplier": once.noise_multiplier,
                    "epsilon": epsilon if math.isfinite(epsilon) else "inf",
                    "apart": once.apart,
                }
                for once, epsilon in self.once
            ],
            "over_silos": None if self.over_silos is None else asdict(self.over_silos),
            "verdict": None if self.verdict is None else self.verdict.as_dict(),
            "warnings": list(self.plan.warnings),
            "network": None,
            "pairs": None,
            "slots": None,
            **parts,
        }


def outlook(made: Plan) -> Outlook:
    """What a plan promises, at what noise, and how many of its rounds its budget allows."""
    guarantees, promise = made.guarantees(), made.promise

    def alone(once: Once) -> float:
        return promise.worst(lambda view: promise.once_event(once, promise.unit, view))

    bound = [guarantee for guarantee in guarantees if guarantee.view in promise.against]
    return Outlook(
        made,
        guarantees,
        sentence((bound or list(guarantees))[0]),
        noise_to_signal(made),
        made.experiment.privacy.budget,
        rounds_within_budget(made),
        tuple((once, alone(once)) for once in promise.once),
        over_silos(made),
        made.exchange.plan_parts(promise),
        verdict(made),
    )


def over_silos(made: Plan) -> OverSilos | None:
    """What horizontal composition costs a plan; None where a subject's silos do not add up one by one."""
    promise, method = made.promise, made.method
    silos, rounds = promise.facts.silos_of_a_subject, promise.facts.rounds
    if not method.info.sums_up or promise.unit != "subject" or silos == 1:
        return None
    # who sees only the sum of one batch per silo learns a little less, and does not decide
    events = [promise.event(promise.unit, view) for view in promise.against]
    if not any(isinstance(event, Repeated) and event.count == silos for event in events):
        return None
    published = math.floor(rounds * silos / math.sqrt(silos))
    return OverSilos(
        silos,
        alone=rounds * silos,
        proved=rounds,
        published=published,
        epsilon=promise.planned_epsilon(),
        published_epsilon=promise.worst(lambda view: promise.total(view, published)),
    )


def noise_to_signal(made: Plan) -> NoiseToSignal | None:
    """The noise of a plan and the largest sum that it hides; None for a method without noise."""
    method = made.method
    if method.noise is None:
        return None
    std, bound = method.noise.in_a_round, method.bound
    parameters = None if made.parameters is None else made.parameters * method.copies
    expected = method.contributions
    count = None if expected is None else expected.number
    along = made.server_step.optimizer in ("sgd", "momentum") and method.noise.place in ("shares", "once")
    return NoiseToSignal(
        multiplier=std / bound if made.noise_multiplier is None else made.noise_multiplier,
        solved=made.options.noise_key not in made.experiment.method,
        clip=bound,
        std=std,
        place=method.info.adds,
        clips=method.info.clips,
        parameters=parameters,
        norm=None if parameters is None else std * math.sqrt(parameters),
        units=None if expected is None else expected.words,
        count=count,
        largest=None if count is None else count * bound,
        divisor=method.divisors.total if along and method.divisors.total > 1 else None,
        rate=made.server_step.rate,
    )


def rounds_within_budget(made: Plan) -> int | None:
    """How many of the planned rounds the budget allows after what its file says is spent; None without a budget."""
    from tacit.privacy.accounting.account import calibrate_rounds

    privacy, promise = made.experiment.privacy, made.promise
    if privacy.budget is None:
        return None
    lines = _lines(made.path(privacy.budget_file)) if privacy.budget_file is not None else []
    most = promise.facts.rounds
    for view in promise.against:
        before = spent(lines, place(promise.unit, view, promise.relation))

        def after(rounds: int, before: Event = before, view: View = view) -> Event:
            return beside(before, promise.total(view, promise.participations(rounds)))

        if cost(after(1), promise.delta).epsilon > privacy.budget:
            return 0
        if cost(after(most), promise.delta).epsilon > privacy.budget:
            most = calibrate_rounds(after, privacy.budget, promise.delta, most=most)
    return most


def _lines(file: Path) -> list[dict[str, Any]]:
    if not file.is_file():
        return []
    try:
        with Ledger(file) as ledger:
            return ledger.lines
    except LedgerError as error:
        problem = str(error)
        raise UserError("ledger-damaged", "privacy.budget_file", problem, "restore the ledger from a backup") from None
