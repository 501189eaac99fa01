"""What a run has spent and may still spend: its own ledger, the budget file that it shares, the budget.

A round is charged before it begins, first in the run's own ledger, then in the budget file. Whoever is killed in
between has released nothing; who is killed later has written down one round that nobody saw. With a seed, a round that
is repeated after a crash is the same release again, and is not charged twice.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tacit.config import Plan
from tacit.errors import Forbidden, UserError
from tacit.privacy import Composed, Event, Guarantee, Ledger, LedgerError, Repeated, View, spent
from tacit.promise import cost

Lines = Sequence[Mapping[str, Any]]


class Charges:
    """The open ledgers of one run. Use as a context."""

    def __init__(self, plan: Plan, ledger: Path) -> None:
        self._promise = plan.promise
        self._method = plan.method.name
        self._seeded = plan.experiment.seed is not None
        self._budget = plan.experiment.privacy.budget
        self._file = shared_file(plan)
        self._events = plan.promise.events()
        self._own = _open(ledger, "--resume")
        self._shared = None if self._file is None else _open(self._file, "privacy.budget_file")
        self._run = str(self._own.lines[-1]["run"]) if self._own.lines else secrets.token_hex(8)
        self._allowed: dict[Event, int] = {}

    def __enter__(self) -> Charges:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._own.close()
        if self._shared is not None:
            self._shared.close()

    @property
    def last_round(self) -> int:
        """The last round that is charged; 0 before the first."""
        return max((line["round"] for line in self._own.lines), default=0)

    def charge(self, number: int) -> None:
        """Write down round ``number``; Forbidden, and nothing written, where the budget does not allow it."""
        self._append(self._own, number)
        if self._shared is not None:
            self._append(self._shared, number)

    def _append(self, ledger: Ledger, number: int) -> None:
        if self._seeded and any(line["run"] == self._run and line["round"] == number for line in ledger.lines):
            return
        ledger.append(
            run=self._run,
            party="server",
            round=number,
            mechanism=self._method,
            step=number,
            events=self._events,
            unless=lambda lines: self._refusal(lines, number),
        )

    def _refusal(self, lines: Lines, number: int) -> Forbidden | None:
        if self._budget is None:
            return None
        own = sum(line["run"] == self._run for line in lines)
        others = [line for line in lines if line["run"] != self._run]
        if all(own < self._rounds_allowed(view, others) for view in self._promise.against):
            return None
        whose = f" ({self._file.name})" if self._file is not None else ""
        return Forbidden(
            "privacy.budget",
            f"round {number} would exceed epsilon {self._budget:g}{whose}",
            "the model of the last permitted round is kept; plan fewer rounds or more noise",
        )

    def _rounds_allowed(self, view: View, others: Lines) -> int:
        """How many rounds of this run fit into the budget beside what others spent, as seen by ``view``."""
        from tacit.privacy import calibrate_rounds

        assert self._budget is not None
        place = self._place(view)
        before, event = spent(others, place), self._events[place]
        both = Composed((before, event))
        if both not in self._allowed:
            if cost(both, self._promise.delta).epsilon > self._budget:
                self._allowed[both] = 0  # not even one
            else:
                self._allowed[both] = calibrate_rounds(
                    lambda rounds: Composed((before, Repeated(event, rounds))),
                    self._budget,
                    self._promise.delta,
                    most=self._promise.facts.rounds * 10,
                )
        return self._allowed[both]

    def _place(self, view: View) -> str:
        return f"{self._promise.unit}/{view}"

    def guarantees(self) -> tuple[Guarantee, ...]:
        """What this run has promised so far, from what its ledger says."""
        lines = self._own.lines
        return self._promise.guarantees(lambda view: spent(lines, self._place(view)))

    def epsilons(self) -> dict[str, float | str]:
        """Epsilon so far by view, for the views that the budget binds; infinity as "inf"."""
        if not self._promise.method.private:
            return {}
        lines = self._own.lines
        values = {
            str(view): cost(spent(lines, self._place(view)), self._promise.delta).epsilon
            for view in self._promise.against
        }
        return {view: value if math.isfinite(value) else "inf" for view, value in values.items()}


def shared_file(plan: Plan) -> Path | None:
    """The budget file that this run shares with others, if any."""
    name = plan.experiment.privacy.budget_file
    return None if name is None else plan.path(name)


def check_budget(plan: Plan) -> None:
    """Refuse a run of which not even the first round fits into what is left of its budget."""
    budget, file = plan.experiment.privacy.budget, shared_file(plan)
    if budget is None:
        return
    lines: Lines = []
    if file is not None and file.is_file():
        with _open(file, "privacy.budget_file") as ledger:
            lines = ledger.lines
    promise = plan.promise
    for view in promise.against:
        place = f"{promise.unit}/{view}"
        before, event = spent(lines, place), promise.event(promise.unit, view)
        used = cost(before, promise.delta).epsilon
        if cost(Composed((before, event)), promise.delta).epsilon > budget:
            left = f"epsilon {used:.3g} of {budget:g} is spent" if lines else "one round costs more"
            problem = f"does not allow a single round against view '{view}' ({left})"
            raise Forbidden("privacy.budget", problem, "raise it, add noise, or use other data")


def _open(path: Path, field: str) -> Ledger:
    try:
        return Ledger(path)
    except LedgerError as error:
        raise UserError(field, str(error), "restore the ledger from a backup") from None
    except OSError as error:
        raise UserError(
            field, f"'{path}' cannot be opened ({error.strerror})", "name a file in an existing folder"
        ) from None
