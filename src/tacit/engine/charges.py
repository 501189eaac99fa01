"""What a run has spent and may still spend: its own ledger, the budget file that it shares, the budget.

A round is charged before it begins: while nobody else can write to the budget file, what is left there is looked up,
the line is written to the run's own ledger, then to the budget file. Whoever is killed in between has released nothing;
who is killed later has written down one round that nobody saw. With a seed, a round that is repeated after a crash is
the same release again, and is not charged twice. But another run with that seed would draw the same noise once more,
which would then protect neither: one budget file takes a seed from one run only.

A budget file needs no budget: a run without one is written down there all the same, for the sake of those that come
after. One without a finite guarantee leaves nothing for them.
"""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from tacit.config import Plan
from tacit.errors import Forbidden, TacitError, UserError
from tacit.privacy import (
    RELATIONS,
    UNITS,
    Composed,
    Event,
    Guarantee,
    Ledger,
    LedgerError,
    Nothing,
    Repeated,
    View,
    spent,
)
from tacit.privacy.ledger import Tally, place
from tacit.promise import Promise, cost

Lines = Sequence[Mapping[str, Any]]


class Charges:
    """The open ledgers of one run. Use as a context."""

    def __init__(self, plan: Plan, ledger: Path) -> None:
        self._promise = plan.promise
        self._method = plan.method.name
        self._seeded = plan.experiment.seed is not None
        self._seed_mark = _seed_mark(plan)
        self._budget = plan.experiment.privacy.budget
        self._file = shared_file(plan)
        self._events = events(plan.promise)
        self._own = _open(ledger, "--resume")
        self._shared = None if self._file is None else _open(self._file, "privacy.budget_file")
        self._run = str(self._own.lines[-1]["run"]) if self._own.lines else secrets.token_hex(8) + self._seed_mark
        # what this run had written down before it was (re)opened, and how many lines others had by the last charge
        self._earlier = {ledger: self._rounds_in(ledger) for ledger in (self._own, self._shared) if ledger is not None}
        self._others = 0 if self._shared is None else len(self._shared.lines) - len(self._earlier[self._shared])
        # ledgers only grow: what was counted once need not be read again
        places = [self._place(view) for view in plan.promise.against]
        self._by_others = {where: Tally(where) for where in places}
        self._by_self = {where: Tally(where) for where in places}
        self._allowed: dict[tuple[Event, Event], int] = {}

    def __enter__(self) -> Charges:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for ledger in self._earlier:
            ledger.close()

    def _rounds_in(self, ledger: Ledger) -> list[int]:
        return [line["round"] for line in ledger.lines if line["run"] == self._run]

    def check_covers(self, released: int) -> None:
        """Refuse to go on where round ``released`` was seen and is not written down: a ledger was cut or lost."""
        for ledger, rounds in self._earlier.items():
            last = max(rounds, default=0)
            if last < released:
                is_own = ledger is self._own
                what, field = ("ledger", "--resume") if is_own else ("budget file", "privacy.budget_file")
                problem = f"the {what} ends at round {last} of this run, which has released round {released}"
                raise UserError(field, problem, f"restore '{ledger.path.name}' from a backup")

    def charge(self, number: int) -> None:
        """Write down round ``number``; Forbidden, and nothing written, where the budget does not allow it."""
        if self._shared is None:
            self._write(self._own, number)
        else:
            self._write(self._shared, number, first=lambda: self._write(self._own, number))

    def _write(self, ledger: Ledger, number: int, first: Callable[[], None] = lambda: None) -> None:
        """One line, if the budget allows it; ``first`` is what to do when it does, while the ledger is locked."""
        if self._seeded and number in self._earlier[ledger]:
            first()
            return

        def refusal(lines: Lines) -> TacitError | None:
            found = self._refusal(lines, number)
            if found is None:
                first()
            return found

        try:
            ledger.append(
                run=self._run,
                party="server",
                round=number,
                mechanism=self._method,
                step=number,
                events=self._events,
                unless=refusal,
            )
        except LedgerError as error:
            field = "--resume" if ledger is self._own else "privacy.budget_file"
            raise UserError(field, str(error), "restore it from a backup, then go on with --resume") from None

    def _refusal(self, lines: Lines, number: int) -> TacitError | None:
        others = [line for line in lines if line["run"] != self._run]
        if same_noise := _same_noise(others, self._seed_mark):
            return same_noise
        if self._budget is None:
            return None
        rounds = len(lines) - len(others) + 1
        fits = all(self._fits(view, others, rounds) for view in self._promise.against)
        if others:
            self._others = len(others)
        if fits:
            return None
        whose = f" ({self._file.name})" if self._file is not None else ""
        return Forbidden(
            "privacy.budget",
            f"round {number} would exceed epsilon {self._budget:g}{whose}",
            "the model of the last permitted round is kept; plan fewer rounds or more noise",
        )

    def _fits(self, view: View, others: Lines, rounds: int) -> bool:
        """Whether so many rounds of this run fit into the budget beside what others spent, as seen by ``view``."""
        assert self._budget is not None
        tally = self._by_others[self._place(view)]
        tally.add(others[tally.count :])
        before, event = tally.event if others else Nothing(), self._events[self._place(view)]
        if others and len(others) != self._others:  # somebody is at work beside us: looking ahead would be in vain
            return cost(Composed((before, Repeated(event, rounds))), self._promise.delta).epsilon <= self._budget
        if (before, event) not in self._allowed:
            self._allowed[before, event] = self._rounds_allowed(before, event)
        return rounds <= self._allowed[before, event]

    def _rounds_allowed(self, before: Event, event: Event) -> int:
        from tacit.privacy import calibrate_rounds

        assert self._budget is not None
        if math.isinf(cost(Composed((before, event)), self._promise.delta).epsilon):
            return 0
        return calibrate_rounds(
            lambda rounds: Composed((before, Repeated(event, rounds))),
            self._budget,
            self._promise.delta,
            most=len(self._earlier[self._own]) + self._promise.facts.rounds,  # more cannot be asked for
        )

    def _place(self, view: View) -> str:
        return place(self._promise.unit, view, self._promise.relation)

    def guarantees(self) -> tuple[Guarantee, ...]:
        """What this run has promised so far, from what its ledger says."""
        lines = self._own.lines
        return self._promise.guarantees(lambda view: spent(lines, self._place(view)))

    def epsilons(self, number: int) -> dict[str, float | str]:
        """Epsilon up to round ``number`` by view, for the views that the budget binds; infinity as "inf".

        Counted are all attempts at these rounds, also those that were cut off and made again. To be asked round after
        round, in order.
        """
        if not self._promise.method.private:
            return {}
        lines = self._own.lines
        while lines and lines[-1]["round"] > number:
            lines.pop()
        values = {}
        for view in self._promise.against:
            tally = self._by_self[self._place(view)]
            tally.add(lines[tally.count :])
            values[str(view)] = cost(tally.event, self._promise.delta).epsilon
        return {view: value if math.isfinite(value) else "inf" for view, value in values.items()}


def events(promise: Promise) -> dict[str, Event]:
    """One round's events by place: for all units and relations, and all views of the exchange, so that a budget of any
    of them holds whatever the run itself promises."""
    views = dict.fromkeys((*promise.views, *(View.parse(text) for text in promise.exchange.reveals)))
    return {
        place(unit, view, relation): replace(promise, unit=unit, relation=relation).event(unit, view)
        for unit in UNITS
        for view in views
        for relation in RELATIONS
    }


def shared_file(plan: Plan) -> Path | None:
    """The budget file that this run shares with others, if any."""
    name = plan.experiment.privacy.budget_file
    return None if name is None else plan.path(name)


def check_budget(plan: Plan) -> None:
    """Refuse a run of which not even the first round fits into what is left of its budget."""
    budget, lines = plan.experiment.privacy.budget, _shared_lines(plan)
    if same_noise := _same_noise(lines, _seed_mark(plan)):
        raise same_noise
    if budget is None:
        return
    promise = plan.promise
    for view in promise.against:
        before = spent(lines, place(promise.unit, view, promise.relation))
        event = promise.event(promise.unit, view)
        used = cost(before, promise.delta).epsilon
        if cost(Composed((before, event)), promise.delta).epsilon > budget:
            left = f"epsilon {used:.3g} of {budget:g} is spent" if lines else "one round costs more"
            problem = f"{budget:g} does not allow a single round against view '{view}' ({left})"
            raise Forbidden("privacy.budget", problem, "raise it, add noise, or use other data")


def _shared_lines(plan: Plan) -> Lines:
    """What the budget file says; where it does not exist yet, it must be possible to make it."""
    file = shared_file(plan)
    if file is None:
        return []
    if not file.exists():
        if not file.parent.is_dir():
            problem = f"'{file}' cannot be made: its folder does not exist"
            raise UserError("privacy.budget_file", problem, "make the folder, or name a file in an existing one")
        return []
    with _open(file, "privacy.budget_file") as ledger:
        return ledger.lines


def _seed_mark(plan: Plan) -> str:
    """The end of a seeded run's name, by which others with the same seed are found; empty without a seed or noise."""
    seed = plan.experiment.seed
    if seed is None or not plan.method.private:
        return ""
    return "-" + hashlib.sha256(f"tacit ledger {seed}".encode()).hexdigest()[:16]


def _same_noise(others: Lines, seed_mark: str) -> UserError | None:
    if not seed_mark or not any(str(line["run"]).endswith(seed_mark) for line in others):
        return None
    problem = "another run in the budget file has the same one: noise that is drawn twice protects only once"
    return UserError("seed", problem, "choose another seed, or leave it out")


def _open(path: Path, field: str) -> Ledger:
    try:
        return Ledger(path)
    except LedgerError as error:
        raise UserError(field, str(error), "restore the ledger from a backup") from None
    except OSError as error:
        raise UserError(
            field, f"'{path}' cannot be opened ({error.strerror})", "name a file in an existing folder"
        ) from None
