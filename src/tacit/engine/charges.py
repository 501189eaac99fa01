"""What a run has spent and may still spend: its own ledger, the budget file that it shares, the budget.

A release is charged before it happens: while no other run can write to the budget file, what is left there is looked
up, the line is written to the run's own ledger, then to the budget file. A run that is killed in between has released
nothing; one that is killed later has charged a round that no party saw. With a seed, a round that is repeated after a
crash is the same release again and is not charged twice, unless its noise comes from no seed (pairs of silos). Another
run with that seed would draw the same noise, which would then protect neither: one budget file takes a seed from one
run only.

What a run releases at its end is set aside: no round may use up what private metrics will cost. Other runs that share
the budget file may; then the metrics are not released.

With ``privacy.target = "as-published"`` the budget binds the paper's own number of this run alone, whether it holds or
not; what is proved is recorded all the same. A run without a budget is recorded in a budget file too; one without a
finite guarantee leaves nothing for later runs.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.errors import Forbidden, TacitError, UserError
from tacit.planning.claims import Mechanism, Once, Promise, beside, cost
from tacit.planning.plan import Plan
from tacit.privacy import (
    Event,
    Guarantee,
    Ledger,
    LedgerError,
    Nothing,
    View,
    spent,
)
from tacit.privacy.ledger import Tally, has_seed, mark_of, place

Lines = Sequence[Mapping[str, Any]]


class Charges:
    """The open ledgers of one run, as a context. ``run``: its name, if it has one; a ledger with lines keeps theirs."""

    def __init__(self, plan: Plan, ledger: Path, run: str | None = None) -> None:
        self._promise = plan.promise
        self._method = plan.method.name
        self._repeats = repeats(plan)
        self._seed_mark = seed_mark(plan)
        self._budget = plan.experiment.privacy.budget
        self._as_published = plan.experiment.privacy.target == "as-published"
        self._file = shared_file(plan)
        self._events = events(plan.promise)
        self._once = {once.mechanism: once for once in plan.promise.once}
        own = _open(ledger, "--resume")
        lines = own.lines
        self._run = str(lines[-1]["run"]) if lines else (run or secrets.token_hex(8)) + self._seed_mark
        # a budget that binds the published number adds nothing up over runs
        adds_up = self._budget is not None and not self._as_published
        places = [self._place(view) for view in plan.promise.against] if adds_up else []
        self._own = _Book(own, self._run, self._seed_mark, places)
        self._books = [self._own]
        if self._file is not None:
            shared = _open(self._file, "privacy.budget_file")
            self._books.append(_Book(shared, self._run, self._seed_mark, places))
        self._most = len(lines) + plan.promise.facts.rounds  # more rounds cannot be asked for
        self._by_self = {(where := self._place(view)): Tally(where) for view in plan.promise.against}
        self._allowed: dict[tuple[Event, View, tuple[tuple[str, int], ...]], int] = {}

    def __enter__(self) -> Charges:
        return self

    def __exit__(self, *_: object) -> None:
        for book in self._books:
            book.ledger.close()

    def check_covers(self, released: int, *once: Mechanism) -> None:
        """Refuse to go on where round ``released``, or what is released ``once``, was seen and is not written down: a
        ledger was cut or lost."""
        for book in self._books:
            is_own = book is self._own
            what, field = ("ledger", "--resume") if is_own else ("budget file", "privacy.budget_file")
            fix = f"restore '{book.ledger.path.name}' from a backup"
            last = max((number for mechanism, number in book.earlier if mechanism not in self._once), default=0)
            if last < released:
                problem = f"the {what} ends at round {last} of this run, which has released round {released}"
                raise UserError("ledger-mismatch", field, problem, fix)
            for name in once:
                if not any(mechanism == name for mechanism, _ in book.earlier):
                    problem = f"the {what} has no line of the {name} that this run has released"
                    raise UserError("ledger-mismatch", field, problem, fix)

    def charge(self, number: int) -> None:
        """Write down round ``number``; Forbidden, and nothing written, where the budget does not allow it."""
        self._charge(round_line(self._promise, number, self._events))

    def charge_once(self, mechanism: Mechanism, number: int) -> None:
        """Write down what is released once, in (or before) round ``number``; Forbidden as for a round."""
        self._charge(once_line(self._promise, mechanism, number))

    def _charge(self, line: Line) -> None:
        if len(self._books) == 1:
            self._write(self._own, line)
        else:
            self._write(self._books[1], line, first=lambda: self._write(self._own, line))

    def _write(self, book: _Book, line: Line, first: Callable[[], None] = lambda: None) -> None:
        """One line, if the budget allows it; ``first`` is what to do when it does, while the ledger is locked."""
        if self._repeats and (line.mechanism, line.number) in book.earlier:
            first()
            return

        def refusal(lines: Lines) -> TacitError | None:
            found = self._refusal(book, lines, line)
            if found is None:
                first()
            return found

        try:
            book.ledger.append(
                run=self._run,
                party="server",
                round=line.number,
                mechanism=line.mechanism,
                step=line.number,
                events=line.events,
                joint=line.joint,
                people=line.people,
                unless=refusal,
            )
        except LedgerError as error:
            field = "--resume" if book is self._own else "privacy.budget_file"
            fix = "restore it from a backup, then go on with --resume"
            raise UserError("ledger-damaged", field, str(error), fix) from None

    def _refusal(self, book: _Book, lines: Lines, line: Line) -> TacitError | None:
        if self._budget is None and not self._seed_mark:
            return None
        news = book.take_in(lines)
        if book.has_same_noise:
            return _same_noise()
        if self._budget is None:
            return None
        # one more of what is asked for; constants are of no use without a round, and the metrics are still to come
        turns = Counter({people: n for (mechanism, people), n in book.own.items() if mechanism == self._method})
        turns[line.people] += line.mechanism == self._method
        rounds = max(*turns.values(), int(line.mechanism == "statistics"))
        times = {
            "statistics": max(book.times("statistics") + (line.mechanism == "statistics"), 1),
            "evaluation": book.times("evaluation") + 1,
        }
        if self._as_published:
            fits = self._promise.published_epsilon(turns.total()) <= self._budget
        else:
            fits = all(self._fits(view, book, rounds, times, news) for view in self._promise.against)
        if fits:
            return None
        whose = f" ({self._file.name})" if self._file is not None else ""
        if line.mechanism in self._once:
            problem = f"the {line.mechanism} would exceed epsilon {self._budget:g}{whose}"
            return Forbidden(
                "budget-exhausted", "privacy.budget", problem, "they are not released; raise it or plan more noise"
            )
        return Forbidden(
            "budget-exhausted",
            "privacy.budget",
            f"round {line.number} would exceed epsilon {self._budget:g}{whose}",
            "the model of the last permitted round is kept; plan fewer rounds or more noise",
        )

    def _fits(self, view: View, book: _Book, rounds: int, times: Mapping[str, int], crowded: bool) -> bool:
        """Whether that many rounds of this run, what it releases once and what others spent fit into the budget, as
        seen by ``view``. ``crowded``: other runs write to the file meanwhile, so that looking ahead is useless."""
        assert self._budget is not None
        before, promise = book.before[self._place(view)], self._promise
        if crowded or not rounds:
            return cost(beside(before, promise.total(view, rounds, times)), promise.delta).epsilon <= self._budget
        key = (before, view, tuple(times.items()))
        if key not in self._allowed:
            self._allowed[key] = self._rounds_allowed(before, view, times)
        return rounds <= self._allowed[key]

    def _rounds_allowed(self, before: Event, view: View, times: Mapping[str, int]) -> int:
        from tacit.privacy import calibrate_rounds

        def after(rounds: int) -> Event:
            return beside(before, self._promise.total(view, rounds, times))

        assert self._budget is not None
        if cost(after(1), self._promise.delta).epsilon > self._budget:
            return 0  # not even one
        return calibrate_rounds(after, self._budget, self._promise.delta, most=self._most)

    def _place(self, view: View) -> str:
        return place(self._promise.unit, view, self._promise.relation)

    def guarantees(self) -> tuple[Guarantee, ...]:
        """What this run has promised so far, from what its ledger says."""
        lines = self._own.ledger.lines
        rounds = sum(line["mechanism"] == self._method for line in lines)
        return self._promise.guarantees(lambda view: spent(lines, self._place(view)), rounds)

    def shared(self) -> dict[str, Any] | None:
        """The budget file, if any: its name, the number of other runs, and epsilon by view, of theirs and of all."""
        if self._file is None:
            return None
        lines = self._books[1].ledger.lines
        others = [line for line in lines if line["run"] != self._run]
        delta = self._promise.delta

        def epsilon(some: Lines, view: View) -> float | str:
            return _finite(cost(spent(some, self._place(view)), delta).epsilon)

        return {
            "name": self._file.name,
            "other_runs": len({line["run"] for line in others}),
            "epsilon": {
                str(view): {"others": epsilon(others, view), "all": epsilon(lines, view)}
                for view in (self._promise.against if others else ())
            },
        }

    def epsilons(self, number: int) -> dict[str, float | str]:
        """Epsilon up to round ``number`` by view, for the views that the budget binds; infinity as "inf". All attempts
        at these rounds count. Ask for rounds in rising order."""
        if not self._promise.method.private:
            return {}
        lines = self._own.ledger.lines
        while lines and lines[-1]["round"] > number:
            lines.pop()
        values = {}
        for view in self._promise.against:
            tally = self._by_self[self._place(view)]
            tally.add(lines[tally.count :])
            values[str(view)] = _finite(cost(tally.event, self._promise.delta).epsilon)
        return values


class _Book:
    """An open ledger and what its lines come to. It only grows: every line is looked at once, so that the last charge
    of a long run costs what the first one did.

    earlier         mechanism and round of every line of this run when the ledger was opened
    own             how many lines this run has, by mechanism and people
    before          by place, what all others have released
    has_same_noise  whether another run has the seed of this one
    """

    def __init__(self, ledger: Ledger, run: str, seed_mark: str, places: Sequence[str]) -> None:
        self.ledger = ledger
        self.own: Counter[tuple[str, str | None]] = Counter()
        self.has_same_noise = False
        self._run = run
        self._seed_mark = seed_mark
        self._by_others = {where: Tally(where) for where in places}
        self.before: dict[str, Event] = dict.fromkeys(places, Nothing())
        self._looked_at = 0
        lines = ledger.lines
        self.take_in(lines)
        self.earlier = {(line["mechanism"], line["round"]) for line in lines if line["run"] == run}

    def take_in(self, lines: Lines) -> bool:
        """Look at what is new in the ledger's ``lines``; whether anything of it is another run's."""
        fresh = lines[self._looked_at :]
        self._looked_at = len(lines)
        self.own.update((line["mechanism"], line.get("people")) for line in fresh if line["run"] == self._run)
        others = [line for line in fresh if line["run"] != self._run]
        if others:
            self.has_same_noise |= has_seed(others, self._seed_mark)
            for where, tally in self._by_others.items():
                tally.add(others)
                self.before[where] = tally.event
        return bool(others)

    def times(self, mechanism: str) -> int:
        """How often this run has released something under that name."""
        return sum(count for (name, _), count in self.own.items() if name == mechanism)


@dataclass(frozen=True)
class Line:
    """One release as the ledger wants it."""

    mechanism: str
    number: int
    events: Mapping[str, Event]
    people: str | None = None
    joint: bool = False  # the events are those of all rounds: the last such line stands for all of them


def round_line(promise: Promise, number: int, round_events: Mapping[str, Event]) -> Line:
    """Round ``number`` of a run whose rounds have these ``events``."""
    return Line(promise.method.name, number, round_events, promise.people(number), promise.method.claim.joint)


def once_line(promise: Promise, mechanism: Mechanism, number: int) -> Line:
    """What a run releases once, in (or before) round ``number``."""
    once = promise.release(mechanism)
    assert once is not None, f"nothing is planned to be released as {mechanism}"
    return Line(mechanism, number, once_events(promise, once), "held-out" if once.apart else None)


def events(promise: Promise) -> dict[str, Event]:
    """One round's events (of a joint method, those of all rounds) by place: for all units, relations and views that
    :meth:`Promise.everywhere` covers, so that a budget of any of them holds whatever the run itself promises. None
    without noise: a place of which a line says nothing counts as unprotected, and that is all there is to say."""
    if not promise.method.private:
        return {}
    return promise.everywhere(lambda other, view: other.event(other.unit, view))


def once_events(promise: Promise, once: Once) -> dict[str, Event]:
    """The same for what is released once."""
    return promise.everywhere(lambda other, view: other.once_event(once, other.unit, view))


def shared_file(plan: Plan) -> Path | None:
    """The budget file that this run shares with others, if any."""
    name = plan.experiment.privacy.budget_file
    return None if name is None else plan.path(name)


def check_budget(plan: Plan) -> None:
    """Refuse a run of which not even the first round fits into what is left of its budget."""
    budget, lines = plan.experiment.privacy.budget, _shared_lines(plan)
    if has_seed(lines, seed_mark(plan)):
        raise _same_noise()
    if budget is None:
        return
    promise = plan.promise
    if plan.experiment.privacy.target == "as-published":
        if promise.published_epsilon(1) > budget:
            problem = f"{budget:g} does not allow a single round by the published accounting"
            raise Forbidden("budget-exhausted", "privacy.budget", problem, "raise it, or add noise")
        return
    for view in promise.against:
        before = spent(lines, place(promise.unit, view, promise.relation))
        used = cost(before, promise.delta).epsilon
        if cost(beside(before, promise.total(view, 1)), promise.delta).epsilon > budget:
            once = "with private constants and metrics " if promise.once else ""
            left = f"epsilon {used:.3g} of {budget:g} is spent" if lines else f"one round {once}costs more"
            problem = f"{budget:g} does not allow a single round against view '{view}' ({left})"
            raise Forbidden("budget-exhausted", "privacy.budget", problem, "raise it, add noise, or use other data")


def check_goes_on(plan: Plan) -> None:
    """Refuse to resume what cannot go on."""
    if draws_noise_again(plan):
        problem = "with hidden sampling, a seed would draw the same noise again for other people, and hide neither"
        raise UserError("cannot-resume", "--resume", problem, "start a new run with another seed, or without one")
    if plan.method.claim.joint and plan.experiment.seed is None:
        problem = "rounds that are one release together cannot go on: without a seed, the noise drawn so far is lost"
        raise UserError("cannot-resume", "--resume", problem, "start a new run; what this one had planned is spent")
    if plan.method.info.releases_last:
        problem = "the model at which this run stopped may have been seen, and only the last one is accounted for"
        raise UserError("cannot-resume", "--resume", problem, "start a new run; what this one had planned is spent")


def _shared_lines(plan: Plan) -> Lines:
    """What the budget file says; where it does not exist yet, it must be possible to make it."""
    file = shared_file(plan)
    if file is None:
        return []
    if not file.exists():
        if not file.parent.is_dir():
            problem = f"'{file}' cannot be made: its folder does not exist"
            fix = "make the folder, or name a file in an existing one"
            raise UserError("file-not-found", "privacy.budget_file", problem, fix)
        return []
    with _open(file, "privacy.budget_file") as ledger:
        return ledger.lines


def repeats(plan: Plan) -> bool:
    """Whether a round that is done again is the same release to the last number.

    Pairs of silos draw what they share from new keys in every attempt: the server then sees one vector under two such
    noises. Charged twice that is covered: with A = s_eta^2 I + s_delta^2 L, what both tell together has covariance
    s_eta^2 I + s_delta^2 / 2 L, which is at least A / 2. Both attempts must have the same silos: see
    :func:`survivors_may_differ`.
    """
    return plan.experiment.seed is not None and plan.exchange.repeats


def draws_noise_again(plan: Plan) -> bool:
    """Whether a round that is done again has the noise of the first time on the contributions of other people, so that
    the difference of both shows them bare: a seed gives back the noise, and not whom an oblivious transfer has
    chosen."""
    return plan.experiment.seed is not None and plan.exchange.hidden_sampling


def survivors_may_differ(plan: Plan) -> bool:
    """Whether a round that is done again on a federation may be the sum over other silos: the difference of two sums
    with the noise of one seed shows the part of a silo that was in one of them, under its own share alone."""
    return plan.experiment.seed is not None and plan.exchange.drop_outs > 0


def seed_mark(plan: Plan) -> str:
    """The end of a seeded run's name, by which others with the same seed are found; empty without a seed or noise."""
    seed = plan.experiment.seed
    if seed is None or not (plan.method.private or plan.promise.once):
        return ""
    return mark_of(str(seed))


def _same_noise() -> UserError:
    problem = "another run in the budget file has the same one: noise that is drawn twice protects only once"
    return UserError("seed-reused", "seed", problem, "choose another seed, or leave it out")


def _finite(epsilon: float) -> float | str:
    return epsilon if math.isfinite(epsilon) else "inf"


def _open(path: Path, field: str) -> Ledger:
    try:
        return Ledger(path)
    except LedgerError as error:
        raise UserError("ledger-damaged", field, str(error), "restore the ledger from a backup") from None
    except OSError as error:
        problem = f"'{path}' cannot be opened ({error.strerror})"
        raise UserError("file-access", field, problem, "name a file in an existing folder") from None
