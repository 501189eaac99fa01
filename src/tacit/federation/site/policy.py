"""A silo's policy: what it allows, computed from the plan, and written into its ledger before anything leaves.

``POLICY.toml`` (:class:`Policy`; an example is in docs/deploy.md) sets limits that no request can lift.

A :class:`Guard` trusts nothing that a request says about privacy. It computes, from the plan alone and before a record
is used, what every view of the policy would learn about one unit. It writes a line into the silo's ledger of that data
set, on disk, before a release leaves. It refuses by the names of all rules that forbid the run. Only those names leave;
the reasons go into the silo's own log.

**Epsilon of a policy.** For one view it is the smallest of what is proved about the policy's own unit and about the
*replacement* of a unit that contains it; over views it is the largest. Zeroing out the larger unit is not enough: it
removes all that is clipped together, while a part that goes can turn the clipped vector around (specification 9.1).

**Why nothing is under-counted.** Lines are written first, and only grow. A run is admitted if all of its rounds,
together with everything in the ledger, fit into both limits. A line is written without another check while no release
of the run is there twice and no other run has written since: a part of what fits, fits. In all other cases (a round
that is repeated after a crash, another run at the same time) the whole ledger is composed again with the line in it.
Rounds that are one release together are not repeated: one line stands for all of them.
"""

from __future__ import annotations

import fcntl
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field, ValidationInfo, field_validator

from tacit.data.options import Count, Section, Share
from tacit.engine import charges
from tacit.errors import InvalidSetting, UserError
from tacit.exchange import EXCHANGES
from tacit.federation.request import Request
from tacit.federation.site.limits import deadline, megabytes
from tacit.federation.site.models import Accepted
from tacit.methods import METHODS
from tacit.planning.claims import beside, cost
from tacit.planning.plan import Plan
from tacit.privacy import (
    UNITS,
    Composed,
    Event,
    Ledger,
    LedgerError,
    Nothing,
    Relation,
    Unit,
    Unprotected,
    View,
    spent,
)
from tacit.privacy.ledger import has_seed, place, plain_file

COUNTS = "counts"  # what a plan discloses about numbers of records, before its first round

# An epsilon that a policy allows at most; ``inf`` allows everything.
Limit = Annotated[float, Field(strict=True, gt=0)]

Rule = str
# By which a silo refuses a run, and what each forbids. The names leave the silo.
RULES: Mapping[Rule, str] = {
    "requesters": "The policy does not list the requester.",
    "methods": "The policy does not list the method.",
    "exchanges": "The policy does not list the exchange.",
    "models": "The policy does not accept the model, or not a packed model of its size.",
    "silos": "The plan has another number of silos than the federation.",
    "silos_per_subject": "The plan counts on fewer silos per subject than the policy.",
    "seeds": "The policy allows no seed, or the seed was used before.",
    "metrics": "Metrics without noise do not leave this silo.",
    "against": "The exchange has no guarantee against a view of the policy.",
    "epsilon_per_run": "The epsilon of the run exceeds the policy.",
    "epsilon_in_total": "The epsilon of all runs on the data set exceeds the policy.",
    "least_records": "The table has fewer rows than the policy requires.",
    "most_parameters": "The model has more parameters than the policy allows.",
    "most_rounds": "The plan has more rounds than the policy allows.",
    "most_subjects": "The plan has more subjects than the policy allows.",
    "most_memory": "The plan needs more memory than the policy allows.",
    "most_runs": "The silo works on as many runs as the policy allows.",
    "ledger": "The ledger of the data set is missing, damaged, older than known, or cannot be written.",
    "replayed": "The attempt, or a release that must not be repeated, was admitted before.",
    "request": "The request is invalid, expired, or not signed by one requester.",
    "message": "A message of the server is malformed or does not belong here.",
    "data": "The table or the data file of the silo does not fit the experiment.",
    "policy": "The policy file of the silo is invalid.",
}
_LIMITS: set[Rule] = {"silos", "most_parameters", "most_rounds", "most_subjects", "most_memory"}


class Refusal(Exception):
    """A silo refuses. The names of the ``rules`` may leave; the reasons stay."""

    def __init__(self, rule: Rule, reason: str) -> None:
        assert rule in RULES, f"{rule} is not a rule"
        super().__init__(f"{rule}: {reason}")
        self.rules: tuple[Rule, ...] = (rule,)

    @classmethod
    def of_all(cls, broken: Mapping[Rule, str]) -> Refusal:
        """By all these rules at once, each with its reason."""
        (first, reason), *others = broken.items()
        refusal = cls(first, "; ".join([reason, *(f"{rule}: {why}" for rule, why in others)]))
        refusal.rules = tuple(broken)
        return refusal


class Policy(Section):
    """``POLICY.toml``. Without a rule, what the rule is about is forbidden.

    requesters         names of the requesters whose runs are considered
    methods            methods that are allowed
    exchanges          exchanges that are allowed
    unit               who must be protected
    relation           how neighbouring tables differ; see privacy.relation of the experiment file
    against            views against which the limits hold, such as public, server or silo
    delta              delta at which epsilon is computed
    epsilon_per_run    largest epsilon of one run; inf allows every run
    epsilon_in_total   largest epsilon of all runs on the data set; inf allows every run
    least_records      smallest number of rows of the table
    silos_per_subject  largest number of silos with records of one subject; by default all silos
    seeds              allow a run with a seed; its noise can be computed again by those who know the seed
    metrics            allow metrics on held-out records to leave without noise
    models             models that are allowed: built-in, packed, or a table of limits and installed distributions
    budget_shown       show requesters what is left of epsilon_in_total
    most_parameters    largest number of parameters of a model
    most_rounds        largest number of rounds of a run
    most_subjects      largest number of declared subjects
    most_memory        largest memory of a run in megabytes, estimated from the public numbers of the plan
    most_runs          largest number of runs at the same time
    """

    requesters: tuple[str, ...] = Field(min_length=1)
    methods: tuple[str, ...] = Field(min_length=1)
    exchanges: tuple[str, ...] = Field(min_length=1)
    unit: Unit
    relation: Relation = "zero-out"
    against: tuple[str, ...] = Field(min_length=1)
    delta: Share
    epsilon_per_run: Limit
    epsilon_in_total: Limit
    least_records: Count
    silos_per_subject: Count | None = None
    seeds: bool = False
    metrics: bool = False
    models: Accepted = "built-in"
    budget_shown: bool = False
    most_parameters: Count = 25_000_000
    most_rounds: Count = 10_000
    most_subjects: Count = 10_000_000
    most_memory: Count = 4_000
    most_runs: Count = 4

    @field_validator("methods", "exchanges", "against")
    @classmethod
    def _are_known(cls, names: tuple[str, ...], field: ValidationInfo) -> tuple[str, ...]:
        known: Mapping[str, object] = EXCHANGES if field.field_name == "exchanges" else METHODS
        for name in names:
            if field.field_name == "against":
                View.parse(name)
            elif name not in known:
                raise InvalidSetting("unknown-name", f"'{name}' is unknown; known: {', '.join(known)}")
        return names

    def check_requester(self, requester: str) -> None:
        if requester not in self.requesters:
            raise Refusal("requesters", f"{requester} is not among them")

    @property
    def containing(self) -> tuple[Unit, ...]:
        """The larger units: a record is one of its subject's and one of its silo's; but all of a subject's are a silo's
        only where no subject is in two. What replaces a unit may belong to another subject or silo: none contains both.
        """
        if self.relation == "replace" or (self.unit == "subject" and self.silos_per_subject != 1):
            return ()
        return UNITS[UNITS.index(self.unit) + 1 :]

    def places(self) -> list[list[str]]:
        """For every view the places of a ledger of which each covers the policy's unit and relation: its own, and the
        replacement of a unit that contains it."""
        covering = ((self.unit, self.relation), *((unit, "replace") for unit in self.containing))
        return [[place(unit, View.parse(text), relation) for unit, relation in covering] for text in self.against]

    def epsilon(self, event_at: Callable[[str], Event]) -> float:
        """What ``event_at`` every place comes to."""
        return max(min(cost(event_at(where), self.delta).epsilon for where in places) for places in self.places())


class Head(NamedTuple):
    """The state of the ledger of a data set: its number of lines and the hash of the last."""

    lines: Annotated[int, Field(ge=0, le=1 << 40)]
    hash: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Guard:
    """A silo's policy and its ledger of one data set. Use as a context.

    ledger      what was released of this data set, by all runs; a list of admissions is in a file next to it
    places      a folder with a file for every active run, locked while it runs; without one, there is no limit
    """

    def __init__(self, policy: Policy, silo: str, ledger: Path, places: Path | None = None) -> None:
        self.policy, self._silo = policy, silo
        self._places, self._place = places, -1
        self._ledger = _opened(ledger)
        try:
            self._admissions = _opened(admissions_of(ledger))
        except Refusal:
            self._ledger.close()
            raise
        self._admitted: _Admitted | None = None
        self._together = 0  # lines of this attempt whose rounds are one release together

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *ended: object) -> None:
        self._ledger.close()
        self._admissions.close()
        if self._place >= 0:
            os.close(self._place)
            self._place = -1

    def _has_place(self) -> bool:
        """Whether there is a place for this run; it is free again when this process ends, however it ends."""
        if self._places is None or self._place >= 0:
            return True
        self._places.mkdir(parents=True, exist_ok=True, mode=0o700)
        for number in range(self.policy.most_runs):
            descriptor = plain_file(self._places / str(number), os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                continue
            self._place = descriptor
            return True
        return False

    @property
    def head(self) -> Head:
        """The state of the ledger, which others may remember."""
        return Head(len(self._ledger.lines), self._ledger.head)

    def left(self, requester: str) -> float | None:
        """What is left of the total epsilon, if the policy shows it to this requester and has a limit."""
        is_shown = self.policy.budget_shown and requester in self.policy.requesters
        if not is_shown or math.isinf(self.policy.epsilon_in_total):
            return None
        lines = self._ledger.lines
        return max(0.0, self.policy.epsilon_in_total - self.policy.epsilon(lambda where: spent(lines, where)))

    def admit(self, request: Request, silos: Sequence[str], seen: Head | None, records: Callable[[], int]) -> None:
        """Let a run begin, or continue; :class:`Refusal` names all rules that forbid it.

        silos    who takes part in the federation
        seen     the state of this ledger that the server knows
        records  reads the data, if no other rule forbids the run, and counts the rows of the table
        """
        self.policy.check_requester(request.requester)
        self._together = 0
        broken = self._broken_rules(request.plan, silos)
        try:
            with deadline():  # what is too large is not priced
                broken |= {} if _LIMITS & set(broken) else self._broken_promises(request.plan, request.run)
        except UserError as error:
            broken["request"] = str(error)
        except (ArithmeticError, MemoryError) as error:
            broken["request"] = f"cannot be priced ({type(error).__name__})"
        if not self._has_place():
            broken["most_runs"] = f"{self.policy.most_runs} are at work"
        if broken:
            raise Refusal.of_all(broken)
        lines = self._ledger.lines
        if seen is not None and not continues(lines, seen):
            raise Refusal("ledger", f"it has {len(lines)} lines, and the server has seen line {seen.lines} of it")
        if refusal := self._refusal_to_begin_again(request.plan, request.run, self._ledger.lines):
            raise refusal
        found = records()
        if found < self.policy.least_records:
            raise Refusal("least_records", f"the table has {found} rows")
        self._write_admission(request)
        name = _run_name(request.plan, request.run)
        others = sum(line["run"] != name for line in self._ledger.lines)
        self._admitted = _Admitted(request, charges.events(request.plan.promise), others)

    def before_release(self, mechanism: str, number: int, released: Mapping[str, Event]) -> None:
        """Write a line before a release leaves; :class:`Refusal`, and no line, where it may not.

        ``released``: its events by place, where it is no round (whose events follow from the plan).
        """
        admitted = self._admitted
        if admitted is None:
            raise Refusal("request", "nothing was admitted")
        line = admitted.line(mechanism, number, released)
        run = admitted.run_name
        release = (run, line.mechanism, line.number)
        if any((old["run"], old["mechanism"], old["round"]) == release for old in self._ledger.lines):
            if charges.draws_noise_again(admitted.request.plan) or charges.survivors_may_differ(admitted.request.plan):
                raise Refusal("seeds", "the same noise would be drawn again for other people or other silos")
            if charges.repeats(admitted.request.plan):
                return  # the same noise again shows nothing new

        def refusal(lines: Sequence[Mapping[str, Any]]) -> Refusal | None:
            return self._refusal(admitted, lines, line)

        more = {"events": line.events, "joint": line.joint, "people": line.people}
        self._append(self._ledger, run, number, line.mechanism, refusal, **more)
        self._together += line.joint

    def _append(self, ledger: Ledger, run: str, number: int, mechanism: str, refusal: Any, **more: Any) -> None:
        where: dict[str, Any] = {"run": run, "party": self._silo, "round": number, "mechanism": mechanism}
        try:
            ledger.append(**where, step=number, unless=refusal, **more)
        except (LedgerError, OSError) as error:
            raise Refusal("ledger", str(error)) from None

    def _broken_rules(self, plan: Plan, silos: Sequence[str]) -> dict[Rule, str]:
        """The rules that can be decided before anything is allocated or priced, and why each forbids the plan."""
        policy, facts = self.policy, plan.promise.facts
        assumed, possible = facts.silos_of_a_subject, policy.silos_per_subject or len(silos)
        is_seeded = plan.experiment.seed is not None
        rules: dict[Rule, tuple[bool, str]] = {
            "methods": (plan.method.name not in policy.methods, f"{plan.method.name} is not among them"),
            "exchanges": (plan.exchange.name not in policy.exchanges, f"{plan.exchange.name} is not among them"),
            "silos": (facts.silos != len(silos), f"the plan counts {facts.silos} silos, there are {len(silos)}"),
            "silos_per_subject": (
                assumed < possible,
                f"the plan counts on {assumed}, and it may be {possible}",
            ),
            "seeds": (is_seeded and not policy.seeds, "the plan has one: its noise can be drawn again"),
        }
        if plan.parameters is None:
            rules["most_parameters"] = (True, "the plan does not say how many it has")
        else:
            counts = {"parameters": plan.parameters, "rounds": facts.rounds, "subjects": facts.subjects or 0}
            for name, count in {**counts, "memory": megabytes(plan)}.items():
                most = getattr(policy, f"most_{name}")
                rules[f"most_{name}"] = (count > most, f"{count} is more than {most}")
        return {rule: reason for rule, (is_broken, reason) in rules.items() if is_broken}

    def _refusal_to_begin_again(self, plan: Plan, run: str, lines: Sequence[Mapping[str, Any]]) -> Refusal | None:
        """One line has the cost of all rounds that are one release together (their noise is correlated). Another
        attempt, before this one or at the same time, has drawn other noise: it would be another such release."""
        own = sum(line["joint"] for line in lines if line["run"] == _run_name(plan, run))
        if own > self._together and not charges.repeats(plan):
            return Refusal("replayed", "its rounds are one release together, and another attempt has begun them")
        return None

    def _broken_promises(self, plan: Plan, run: str) -> dict[Rule, str]:
        """The limits that all planned rounds, with what was spent before, exceed."""
        policy, whole = self.policy, plan.events() if plan.method.private else {}
        for places in policy.places():
            if plan.method.private and not any(where in whole for where in places):
                return {"against": f"the exchange says nothing about {places[0]}"}

        def planned(where: str) -> Event:
            return whole.get(where, _unprotected(plan))

        own = _run_name(plan, run)
        before = [line for line in self._ledger.lines if line["run"] != own]
        broken = self._over_limits(planned, lambda where: beside(spent(before, where), planned(where)))
        if has_seed(before, charges.seed_mark(plan)):
            broken["seeds"] = "another run had the same one: noise that is drawn twice protects only once"
        return broken

    def _over_limits(self, alone: Callable[[str], Event], total: Callable[[str], Event]) -> dict[Rule, str]:
        """The limits that are exceeded, by the events of the run alone and of all runs."""
        found = {"epsilon_per_run": alone, "epsilon_in_total": total}
        costs = {rule: (self.policy.epsilon(at), getattr(self.policy, rule)) for rule, at in found.items()}
        return {rule: f"{cost:.4g} is more than {limit:g}" for rule, (cost, limit) in costs.items() if cost > limit}

    def _write_admission(self, request: Request) -> None:
        name = _run_name(request.plan, request.run)

        def refusal(lines: Sequence[Mapping[str, Any]]) -> Refusal | None:
            earlier = [line for line in lines if line["run"] == request.run]
            if not earlier and any(line["run"] == name for line in self._ledger.lines):
                return Refusal("ledger", "it has lines of this run, and the list of admissions has none")
            if any(line["mechanism"] != request.digest for line in earlier):
                return Refusal("replayed", "the run has begun with another plan or requester")
            if any(line["round"] >= request.attempt for line in earlier):
                return Refusal("replayed", f"attempt {request.attempt} was admitted before")
            return None

        self._append(self._admissions, request.run, request.attempt, request.digest, refusal, events={})

    def _refusal(self, admitted: _Admitted, lines: Sequence[Mapping[str, Any]], line: charges.Line) -> Refusal | None:
        if again := self._refusal_to_begin_again(admitted.request.plan, admitted.request.run, lines):
            return again
        own = [old for old in lines if old["run"] == admitted.run_name]
        releases = [(line.mechanism, line.number), *((old["mechanism"], old["round"]) for old in own)]
        if len(set(releases)) == len(releases) and len(lines) - len(own) == admitted.others:
            return None

        def total(some: Sequence[Mapping[str, Any]], where: str) -> Event:
            new = line.events.get(where, _unprotected(admitted.request.plan))
            before = spent(some, where)
            return new if isinstance(before, Nothing) else Composed((before, new))

        broken = self._over_limits(partial(total, own), partial(total, lines))
        return Refusal.of_all(broken) if broken else None


@dataclass(frozen=True)
class _Admitted:
    """An admitted run: what its rounds release, and the number of lines of other runs at its start."""

    request: Request
    events: Mapping[str, Event]
    others: int

    @property
    def run_name(self) -> str:
        return _run_name(self.request.plan, self.request.run)

    def line(self, mechanism: str, number: int, released: Mapping[str, Event]) -> charges.Line:
        promise = self.request.plan.promise
        if mechanism == COUNTS and number == 0:
            return charges.Line(COUNTS, 0, released)
        for once in promise.once:
            if once.mechanism == mechanism:
                return charges.once_line(promise, once.mechanism, number)
        if mechanism != promise.method.name:
            raise Refusal("request", f"nothing of the plan is called {mechanism}")
        if not 1 <= number <= promise.facts.rounds:
            raise Refusal("request", f"the plan has no round {number}")
        return charges.round_line(promise, number, self.events)


def continues(lines: Sequence[Mapping[str, Any]], head: Head) -> bool:
    """Whether a ledger with these lines has that state, or had it earlier."""
    return not head.lines or (len(lines) >= head.lines and bool(lines[head.lines - 1]["hash"] == head.hash))


def admissions_of(ledger: Path) -> Path:
    """The list of admissions next to a ledger."""
    return ledger.with_name(f"{ledger.stem}.admissions.jsonl")


def _run_name(plan: Plan, run: str) -> str:
    return run + charges.seed_mark(plan)


def _unprotected(plan: Plan) -> Event:
    return Unprotected(f"{plan.method.name} promises nothing here")


def _opened(path: Path) -> Ledger:
    try:
        return Ledger(path)
    except (LedgerError, OSError) as error:
        raise Refusal("ledger", str(error)) from None
