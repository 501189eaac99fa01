"""A survey asks one question about one column of a table. Every answer is a number with an error bar.

    survey("visits.csv", "smoker", epsilon=1.0, categories=("no", "yes"), subject="person")
    survey(frame, "age", epsilon=0.5, bounds=(0, 120), place="local")

The categories, or the bounds of a number, are public. The line in the ledger is written before the answer is computed;
several surveys and runs may share one ledger and one budget.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tacit.data.table import Table, as_name, from_frame, gaps, match_names, numbers_in, read_file, refuse_rows
from tacit.engine.folder import LEDGER, free_folder, write_json
from tacit.errors import Forbidden, TacitError, UserError
from tacit.families.survey.survey_page import write_page
from tacit.planning.claims import REPRODUCIBLE, cost, linkage
from tacit.privacy import Composed, Event, Guarantee, Ledger, LedgerError, Randomness, View, spent
from tacit.privacy.ledger import has_seed, mark_of
from tacit.privacy.ledger import place as ledger_place

if TYPE_CHECKING:
    from tacit.families.survey.questions import Question

BUDGET_DELTA = 1e-5  # delta of a budget if the survey itself has none

TRUSTED = "the server is trusted: it sees all answers and adds the noise"
LOCAL = "every subject randomises the answer before any other party sees it"
CLEAR = "the server sees all answers"
PUBLIC = "the number of people, the categories or bounds and the question are public"


@dataclass(frozen=True)
class Answer:
    """``estimate`` with the standard error of its noise, and an interval that contains the result without noise with
    probability 0.95 (over the noise)."""

    answer: str
    estimate: float
    standard_error: float
    low: float
    high: float


@dataclass(frozen=True)
class Survey:
    """Question, number of people, answers and guarantees.

    other_error  the standard error of noise in the other place at this epsilon; it follows from public numbers
    """

    column: str
    kind: str
    place: str
    epsilon: float
    delta: float
    people: int
    answers: tuple[Answer, ...]
    guarantees: tuple[Guarantee, ...]
    expected_error: float
    other_error: float
    seed: int | None = None

    def frame(self) -> pd.DataFrame:
        """A row per answer."""
        return pd.DataFrame([asdict(answer) for answer in self.answers]).set_index("answer")

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return vars(self) | {
            "answers": [asdict(answer) for answer in self.answers],
            "guarantees": [guarantee.as_dict() for guarantee in self.guarantees],
        }


def survey(
    source: str | Path | pd.DataFrame,
    column: str,
    *,
    epsilon: float,
    categories: Sequence[Any] | None = None,
    bounds: tuple[float, float] | None = None,
    place: str = "central",
    subject: str | None = None,
    delta: float = 0.0,
    out: str | Path | None = None,
    ledger: str | Path | None = None,
    budget: float | None = None,
    seed: int | None = None,
) -> tuple[Survey, Path]:
    """Ask one question of a table: the share of every one of ``categories``, or the mean of a number within ``bounds``.
    Returns the survey and a new folder with ``survey.json``, ``survey.html`` and, unless ``ledger`` names another file,
    ``ledger.jsonl``.

    subject  the column that identifies the subject of each row; if omitted, every row is a subject
    delta    central only: 0 is Laplace noise, more is Gaussian noise
    ledger   the file to which the survey is written first; ``budget`` is the largest epsilon that it may reach
    seed     for studies only: anyone who knows it can draw the same noise again
    """
    folder = free_folder(f"survey {column}") if out is None else Path(out)
    if folder.exists():
        raise UserError("exists-already", "--out", f"'{folder}' exists", "name a new folder")
    folder.mkdir(parents=True)
    try:
        names = None if categories is None else tuple(str(as_name(name)) for name in categories)
        asked, other = _questions(names, bounds, epsilon, delta, place, one_record=subject is None)
        table = from_frame(source) if isinstance(source, pd.DataFrame) else read_file(source, "TABLE")
        values = _values(table, column, names)
        who = np.arange(table.rows) if subject is None else _people(table, subject)
        # the stream has the whole question in its name: another question has other noise under the same seed
        question = f"survey {column} {asked}"
        mark = "" if seed is None else mark_of(f"{seed} {question}")
        _write_down(Path(ledger or folder / LEDGER), column, asked, delta or BUDGET_DELTA, budget, mark)
    except TacitError:  # refused before anything was written to the ledger
        (folder / LEDGER).unlink(missing_ok=True)
        folder.rmdir()
        raise
    people = int(np.unique(who).size)
    released = asked.release(values, who, Randomness.from_seed(seed).stream(question))
    found = Survey(
        column=column,
        kind="mean" if names is None else "shares",
        place=place,
        epsilon=epsilon,
        delta=delta,
        people=people,
        answers=tuple(
            Answer(name, float(mean), float(error), float(mean - half), float(mean + half))
            for name, mean, error, half in zip(names or (f"mean of {column}",), *released, strict=True)
        ),
        guarantees=_guarantees(asked, delta, seed),
        expected_error=asked.expected_error(people),
        other_error=other.expected_error(people),
        seed=seed,
    )
    write_json(folder / "survey.json", found.as_dict())
    write_page(found, folder / "survey.html")
    return found, folder


def _questions(
    names: tuple[str, ...] | None,
    bounds: tuple[float, float] | None,
    epsilon: float,
    delta: float,
    place: str,
    one_record: bool,
) -> tuple[Question, Question]:
    """The question, and the same with its noise in the other place; UserError for invalid arguments."""
    from tacit.families.survey.questions import CentralMean, CentralShares, LocalMean, LocalShares

    if not 0 < epsilon < math.inf:
        problem = f"{epsilon} is not accepted"
        raise UserError("out-of-range", "--epsilon", problem, "use a positive number, for example 1.0")
    if not 0 <= delta < 1:
        raise UserError("out-of-range", "--delta", f"{delta} is not accepted", "use 0, or a small number such as 1e-6")
    if place not in ("central", "local"):
        raise UserError("unknown-name", "--noise", f"'{place}' is no place for noise", "use central or local")
    if delta > 0 and place == "local":
        raise UserError("no-effect", "--delta", "a local answer needs none: its epsilon holds without", "leave it out")
    if (names is None) == (bounds is None):
        code = "missing" if names is None else "conflict"
        problem = "are both given" if names is not None else "are missing: what may be answered is public"
        raise UserError(code, "--categories or --range", problem, "give categories for shares, a range for a mean")
    if names is not None and not len(names) == len(set(names)) >= 2:
        problem = f"{list(names)} are not accepted"
        raise UserError("invalid-value", "--categories", problem, "name two or more, each once")
    low, high = bounds or (0.0, 1.0)
    if not -math.inf < low < high < math.inf:
        problem = f"{low:g} to {high:g} is not a range"
        raise UserError("out-of-range", "--range", problem, "give two numbers, the lower first")
    central: Question
    local: Question
    if names is not None:
        central, local = CentralShares(len(names), epsilon, delta), LocalShares(len(names), epsilon, one_record)
    else:
        central, local = CentralMean(low, high, epsilon, delta), LocalMean(low, high, epsilon)
    return (central, local) if place == "central" else (local, central)


def _values(table: Table, column: str, names: tuple[str, ...] | None) -> np.ndarray:
    """The answer of every row: the index of its category, or a number."""
    values = table.column(column, "--column")
    if names is None:
        numbers = numbers_in(values).astype(np.float64)
        if (np.isnan(numbers) & ~gaps(values)).any():
            problem = f"'{column}' holds no numbers"
            raise UserError("wrong-type", "--column", problem, "give --categories instead of --range")
        missing = np.isnan(numbers)
    else:
        numbers, unknown = match_names(values, names)
        if unknown is not None:
            problem = f"'{column}' also holds '{unknown}'"
            raise UserError("undeclared-value", "--categories", problem, "add it to the categories")
        missing = numbers < 0
    refuse_rows("missing-values", "--column", missing, column, "missing", "fill the gaps or drop the rows")
    return numbers


def _people(table: Table, subject: str) -> np.ndarray:
    who, _ = pd.factorize(table.identifiers(subject, "--subject"), use_na_sentinel=True)
    refuse_rows("missing-values", "--subject", who < 0, subject, "missing", "fill the gaps or drop the rows")
    return who


def _events(asked: Question) -> dict[str, Event]:
    """By place of a ledger. A record more or less moves no more than its person's replacement; one that is replaced may
    come to another person, and changes two answers. Whole silos are not protected. A person who is left out of a
    central survey while the number of people stays (the middle of the bounds is said instead, or nothing) moves it by
    less than a replacement does; in a local one the report would be missing."""
    from tacit.privacy.proofs.subject_events import of_two

    two = of_two(asked.event())
    assert two is not None, "an event of a question is known for two people"
    central = asked.place == "central"
    views = ("public",) if central else ("public", "server", "silo")
    relations = ("replace", "zero-out") if central else ("replace",)
    return {
        ledger_place(unit, view, relation): two if (unit, relation) == ("record", "replace") else asked.event()
        for unit in ("subject", "record")
        for view in views
        for relation in relations
    }


def _write_down(file: Path, column: str, asked: Question, delta: float, budget: float | None, mark: str) -> None:
    """One line, on disk before anything is computed that leaves; Forbidden where the budget does not allow it, and
    UserError where a line has the ``mark`` of the same seed and question."""

    events = _events(asked)

    def refusal(lines: Sequence[Any]) -> TacitError | None:
        if has_seed(lines, mark):
            problem = "this question was asked with the same one: noise that is drawn twice protects only once"
            return UserError("seed-reused", "--seed", problem, "choose another seed, or leave it out")
        if budget is None:
            return None
        where = ledger_place("subject", "public", "replace")
        total = Composed((spent(lines, where), events[where])) if lines else events[where]
        epsilon = cost(total, delta).epsilon
        if epsilon <= budget:
            return None
        problem = f"{budget:g} does not allow it: with what was asked before it comes to {epsilon:.3g}"
        return Forbidden("budget-exhausted", "--budget", problem, "raise it, or ask with a smaller epsilon")

    try:
        with Ledger(file) as book:
            book.append(
                run=f"survey-{os.urandom(8).hex()}{mark}",
                party="server" if asked.place == "central" else "subjects",
                round=0,
                mechanism=f"survey of {column}",
                step=0,
                events=events,
                unless=refusal,
            )
    except LedgerError as error:
        raise UserError("ledger-damaged", "--ledger", str(error), "restore it from a backup") from None
    except OSError as error:
        problem = f"'{file}' cannot be opened ({error.strerror})"
        raise UserError("file-access", "--ledger", problem, "name a file in an existing folder") from None


def _guarantees(asked: Question, delta: float, seed: int | None) -> tuple[Guarantee, ...]:
    bound = cost(asked.event(), delta)
    seeded = () if seed is None else (REPRODUCIBLE,)

    def line(view: str, *rests_on: str) -> Guarantee:
        who = View.parse(view)
        return Guarantee(
            "subject",
            "replace",
            who,
            "none",
            bound.epsilon,
            delta,
            bound.accountant,
            (*seeded, *rests_on, PUBLIC),
            linkage=linkage(asked.event(), delta) if math.isfinite(bound.epsilon) else None,
        )

    if asked.place == "local":
        return line("server", LOCAL), line("public", LOCAL)
    server = Guarantee("subject", "replace", View.parse("server"), "none", math.inf, delta, "none", (CLEAR,))
    return line("public", TRUSTED), server
