"""The silo's own no: what its policy allows, recomputed from the plan, and written down before anything leaves.

``POLICY.toml`` sets limits that no request can lift::

    requesters = ["ana@example.org"]
    methods = ["subject-sgd", "uldp-avg"]
    exchanges = ["masked"]
    unit = "subject"                   # who must be protected: record, subject or silo
    against = ["public", "server"]     # who must be kept from learning about one of them
    delta = 1e-5
    epsilon_per_run = 4.0
    epsilon_in_total = 10.0            # over all runs on this data set
    least_records = 100
    most_rounds = 10000                # and most_parameters, most_subjects, most_memory (MB), most_runs at a time

A :class:`Guard` believes nothing that a request says about privacy. It computes, from the plan alone and before a
record is used, what every onlooker of the policy would learn about one unit; it keeps the silo's ledger of that data
set, in which a release has its line, on disk, before it leaves; and it refuses by the names of rules: all that forbid
it. Those names are all that leaves; the reasons are for the silo's own log.

**Epsilon of a policy.** For one onlooker it is the smallest of what is proved about the policy's own unit and about the
*replacement* of a unit that contains it; over onlookers it is the largest. Zeroing out the larger unit is not enough:
it removes all that is clipped together, while a part that goes can turn the clipped vector around (specification 9.1).

**Why nothing is under-counted.** Lines are written first, and only grow. A run is admitted if all of its rounds, beside
everything in the ledger, fit into both limits. A line is written without another look while no release of the run is
there twice and nobody else has written meanwhile: a part of what was found to fit, fits. In all other cases (a round
that is repeated after a crash, another run beside this one) the ledger is added up anew with the line in it.
Rounds that are one release together are not repeated: one line stands for all of them.
"""

from __future__ import annotations

import fcntl
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import Field, field_validator

from tacit.data.options import Count, Section, Share
from tacit.engine.charges import (
    Line,
    draws_noise_again,
    events,
    once_line,
    repeats,
    round_line,
    seed_mark,
    survivors_may_differ,
)
from tacit.errors import InvalidSetting, UserError
from tacit.exchange import EXCHANGES
from tacit.federation.request import Request
from tacit.federation.site.limits import deadline, megabytes
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

Rule = Literal[
    "requesters",
    "methods",
    "exchanges",
    "silos",
    "silos_per_subject",
    "seeds",
    "metrics",
    "against",
    "epsilon_per_run",
    "epsilon_in_total",
    "least_records",
    "most_parameters",
    "most_rounds",
    "most_subjects",
    "most_memory",
    "most_runs",
    "ledger",
    "replayed",
    "request",
    "message",
    "data",
    "policy",
]
RULES: tuple[Rule, ...] = get_args(Rule)
_LIMITS: set[Rule] = {"silos", "most_parameters", "most_rounds", "most_subjects", "most_memory"}


class Refusal(Exception):
    """The silo does not do it. The names of the ``rules`` may leave; the reasons stay."""

    def __init__(self, rule: Rule, reason: str) -> None:
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
    """``POLICY.toml``. Without a rule nothing is allowed that the rule is about."""

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
    silos_per_subject: Count | None = None  # a person may be in so many silos; by default in all
    seeds: bool = False  # a run with a seed draws noise that whoever knows the seed can draw again
    metrics: bool = False  # metrics on held-out records without noise may leave
    budget_shown: bool = False  # those requesters may know what is left of epsilon_in_total
    most_parameters: Count = 25_000_000
    most_rounds: Count = 10_000
    most_subjects: Count = 10_000_000
    most_memory: Count = 4_000  # MB, as estimated from the plan's public numbers
    most_runs: Count = 4  # that this silo works on at the same time

    @field_validator("methods")
    @classmethod
    def _are_methods(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return _known(names, METHODS)

    @field_validator("exchanges")
    @classmethod
    def _are_exchanges(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return _known(names, EXCHANGES)

    @field_validator("against")
    @classmethod
    def _are_views(cls, texts: tuple[str, ...]) -> tuple[str, ...]:
        for text in texts:
            View.parse(text)
        return texts

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
        """For every onlooker the places of a ledger of which each covers the policy's unit and relation: its own, and
        the replacement of a unit that contains it."""
        covering = ((self.unit, self.relation), *((unit, "replace") for unit in self.containing))
        return [[place(unit, View.parse(text), relation) for unit, relation in covering] for text in self.against]

    def epsilon(self, event_at: Callable[[str], Event]) -> float:
        """What ``event_at`` every place comes to."""
        return max(min(cost(event_at(where), self.delta).epsilon for where in places) for places in self.places())


def _known(names: tuple[str, ...], known: Mapping[str, object]) -> tuple[str, ...]:
    for name in names:
        if name not in known:
            raise InvalidSetting("unknown-name", f"'{name}' is unknown; known: {', '.join(known)}")
    return names


class Head(NamedTuple):
    """The state of the ledger of a data set: its number of lines and the hash of the last."""

    lines: Annotated[int, Field(ge=0, le=1 << 40)]
    hash: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Guard:
    """A silo's policy and its ledger of one data set. Use as a context.

    ledger      what was released of this data set, by all runs
    admissions  which attempts at which runs were admitted, so that none is replayed
    places      a folder with a file for every run at a time, locked while it is at work; without one, their number is
                not limited
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        """What others may remember of the ledger."""
        return Head(len(self._ledger.lines), self._ledger.head)

    def left(self, requester: str) -> float | None:
        """What is left of the total epsilon, where the policy lets this requester know."""
        if not self.policy.budget_shown or requester not in self.policy.requesters:
            return None
        if math.isinf(self.policy.epsilon_in_total):
            return None  # there is no limit of which something could be left
        lines = self._ledger.lines
        return max(0.0, self.policy.epsilon_in_total - self.policy.epsilon(lambda where: spent(lines, where)))

    def admit(self, request: Request, silos: Sequence[str], seen: Head | None, records: Callable[[], int]) -> None:
        """Let a run begin, or go on; :class:`Refusal` names all rules that forbid it.

        silos    who takes part in the federation
        seen     how far the server has seen this ledger come
        records  reads the data, when nothing else forbids it, and counts the rows of the table
        """
        self.policy.check_requester(request.requester)
        self._together = 0
        broken = {**self._broken_words(request.plan, silos), **self._broken_limits(request.plan)}
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
        self._check_not_older(seen)
        if refusal := self._refusal_to_begin_again(request.plan, request.run, self._ledger.lines):
            raise refusal
        found = records()
        if found < self.policy.least_records:
            raise Refusal("least_records", f"the table has {found} rows")
        self._write_admission(request)
        name = _run_name(request.plan, request.run)
        others = sum(line["run"] != name for line in self._ledger.lines)
        self._admitted = _Admitted(request, events(request.plan.promise), others)

    def before_release(self, mechanism: str, number: int, released: Mapping[str, Event]) -> None:
        """Write down that something is about to leave; :class:`Refusal`, and nothing written, where it may not.

        ``released`` says what, by place, where it is no round (whose events follow from the plan).
        """
        admitted = self._admitted
        if admitted is None:
            raise Refusal("request", "nothing was admitted")
        line = admitted.line(mechanism, number, released)
        run = admitted.run_name
        if any(_same_release(old, run, line) for old in self._ledger.lines):
            if draws_noise_again(admitted.request.plan) or survivors_may_differ(admitted.request.plan):
                raise Refusal("seeds", "the same noise would be drawn again for other people or other silos")
            if repeats(admitted.request.plan):
                return  # the same noise again tells nobody anything new

        def refusal(lines: Sequence[Mapping[str, Any]]) -> Refusal | None:
            return self._refusal(admitted, lines, line)

        try:
            self._ledger.append(
                run=run,
                party=self._silo,
                round=number,
                mechanism=line.mechanism,
                step=number,
                events=line.events,
                joint=line.joint,
                people=line.people,
                unless=refusal,
            )
        except (LedgerError, OSError) as error:
            raise Refusal("ledger", str(error)) from None
        self._together += line.joint

    def _broken_words(self, plan: Plan, silos: Sequence[str]) -> dict[Rule, str]:
        """What can be decided without a price."""
        policy, facts = self.policy, plan.promise.facts
        assumed, possible = facts.silos_of_a_subject, policy.silos_per_subject or len(silos)
        found: dict[Rule, tuple[bool, str]] = {
            "methods": (plan.method.name not in policy.methods, f"{plan.method.name} is not among them"),
            "exchanges": (plan.exchange.name not in policy.exchanges, f"{plan.exchange.name} is not among them"),
            "silos": (facts.silos != len(silos), f"the plan counts {facts.silos} silos, there are {len(silos)}"),
            "silos_per_subject": (
                assumed < possible,
                f"the plan counts on at most {assumed}, and it may be {possible}",
            ),
            "seeds": (
                plan.experiment.seed is not None and not policy.seeds,
                "the plan has one: its noise can be drawn again",
            ),
        }
        return {rule: reason for rule, (is_broken, reason) in found.items() if is_broken}

    def _broken_limits(self, plan: Plan) -> dict[Rule, str]:
        """What is larger than this silo takes on; decided before anything is allocated or priced."""
        policy, facts = self.policy, plan.promise.facts
        parameters = plan.parameters
        if parameters is None:
            return {"most_parameters": "the plan does not say how many it has"}
        asked: dict[Rule, tuple[int, int]] = {
            "most_parameters": (parameters, policy.most_parameters),
            "most_rounds": (facts.rounds, policy.most_rounds),
            "most_subjects": (facts.subjects or 0, policy.most_subjects),
            "most_memory": (megabytes(plan), policy.most_memory),
        }
        return {rule: f"{count} is more than {most}" for rule, (count, most) in asked.items() if count > most}

    def _check_not_older(self, seen: Head | None) -> None:
        lines = self._ledger.lines
        if seen is None or seen.lines == 0:
            return
        if len(lines) < seen.lines or lines[seen.lines - 1]["hash"] != seen.hash:
            raise Refusal("ledger", f"it has {len(lines)} lines, and the server has seen line {seen.lines} of it")

    def _refusal_to_begin_again(self, plan: Plan, run: str, lines: Sequence[Mapping[str, Any]]) -> Refusal | None:
        """Rounds that are one release together (noise that is correlated over them) cost what one line says of all of
        them. Another attempt, before this one or beside it, has drawn other noise: it would be another such release."""
        own = sum(line["joint"] for line in lines if line["run"] == _run_name(plan, run))
        if own > self._together and not repeats(plan):
            return Refusal("replayed", "its rounds are one release together, and another attempt has begun them")
        return None

    def _broken_promises(self, plan: Plan, run: str) -> dict[Rule, str]:
        """Whether all planned rounds fit, beside what was spent."""
        policy, whole = self.policy, plan.events() if plan.method.private else {}
        broken: dict[Rule, str] = {}
        for places in policy.places():
            if plan.method.private and not any(where in whole for where in places):
                return {"against": f"the exchange says nothing about {places[0]}"}
        alone = policy.epsilon(lambda where: whole.get(where, _unprotected(plan)))
        if alone > policy.epsilon_per_run:
            broken["epsilon_per_run"] = f"{alone:.4g} is more than {policy.epsilon_per_run:g}"
        own = _run_name(plan, run)
        before = [line for line in self._ledger.lines if line["run"] != own]
        if has_seed(before, seed_mark(plan)):
            broken["seeds"] = "another run had the same one: noise that is drawn twice protects only once"
        total = policy.epsilon(lambda where: beside(spent(before, where), whole.get(where, _unprotected(plan))))
        if total > policy.epsilon_in_total:
            broken["epsilon_in_total"] = f"it would come to {total:.4g} of {policy.epsilon_in_total:g}"
        return broken

    def _write_admission(self, request: Request) -> None:
        name = _run_name(request.plan, request.run)

        def refusal(lines: Sequence[Mapping[str, Any]]) -> Refusal | None:
            earlier = [line for line in lines if line["run"] == request.run]
            if not earlier and any(line["run"] == name for line in self._ledger.lines):
                return Refusal("ledger", "it has lines of this run, and the list of admissions beside it has none")
            if any(line["mechanism"] != request.digest for line in earlier):
                return Refusal("replayed", "the run has begun with another plan or requester")
            if any(line["round"] >= request.attempt for line in earlier):
                return Refusal("replayed", f"attempt {request.attempt} was admitted before")
            return None

        try:
            self._admissions.append(
                run=request.run,
                party=self._silo,
                round=request.attempt,
                mechanism=request.digest,
                step=request.attempt,
                events={},
                unless=refusal,
            )
        except (LedgerError, OSError) as error:
            raise Refusal("ledger", str(error)) from None

    def _refusal(self, admitted: _Admitted, lines: Sequence[Mapping[str, Any]], line: Line) -> Refusal | None:
        if again := self._refusal_to_begin_again(admitted.request.plan, admitted.request.run, lines):
            return again
        own = [old for old in lines if old["run"] == admitted.run_name]
        releases = [(line.mechanism, line.number), *((old["mechanism"], old["round"]) for old in own)]
        if len(set(releases)) == len(releases) and len(lines) - len(own) == admitted.others:
            return None
        policy = self.policy

        def total(some: Sequence[Mapping[str, Any]], where: str) -> Event:
            new = line.events.get(where, _unprotected(admitted.request.plan))
            before = spent(some, where)
            return new if isinstance(before, Nothing) else Composed((before, new))

        alone = policy.epsilon(lambda where: total(own, where))
        if alone > policy.epsilon_per_run:
            return Refusal("epsilon_per_run", f"with repeated rounds it would come to {alone:.4g}")
        everything = policy.epsilon(lambda where: total(lines, where))
        if everything > policy.epsilon_in_total:
            return Refusal("epsilon_in_total", f"it would come to {everything:.4g}")
        return None


@dataclass(frozen=True)
class _Admitted:
    """A run that was let in: what its rounds release, and how many lines others had then."""

    request: Request
    events: Mapping[str, Event]
    others: int

    @property
    def run_name(self) -> str:
        return _run_name(self.request.plan, self.request.run)

    def line(self, mechanism: str, number: int, released: Mapping[str, Event]) -> Line:
        promise = self.request.plan.promise
        if mechanism == COUNTS and number == 0:
            return Line(COUNTS, 0, released)
        for once in promise.once:
            if once.mechanism == mechanism:
                return once_line(promise, once.mechanism, number)
        if mechanism != promise.method.name:
            raise Refusal("request", f"nothing of the plan is called {mechanism}")
        if not 1 <= number <= promise.facts.rounds:
            raise Refusal("request", f"the plan has no round {number}")
        return round_line(promise, number, self.events)


def admissions_of(ledger: Path) -> Path:
    """The list of admissions beside a ledger."""
    return ledger.with_name(f"{ledger.stem}.admissions.jsonl")


def _run_name(plan: Plan, run: str) -> str:
    return run + seed_mark(plan)


def _same_release(old: Mapping[str, Any], run: str, line: Line) -> bool:
    return (old["run"], old["mechanism"], old["round"]) == (run, line.mechanism, line.number)


def _unprotected(plan: Plan) -> Event:
    return Unprotected(f"{plan.method.name} promises nothing here")


def _opened(path: Path) -> Ledger:
    try:
        return Ledger(path)
    except (LedgerError, OSError) as error:
        raise Refusal("ledger", str(error)) from None
