"""People who protect what they send: their noise says nothing about how far anything moves. What counts is that
only the report of the unit has another input, in the rounds of its turn, and that all others report as before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd

import tacit
from tacit.families.shuffle.encoders import GaussianNumbers, LaplaceNumbers
from tacit.families.shuffle.methods import LargestReports, Reports
from tacit.methods import METHODS
from tacit.planning.claims import exchanges_for
from tacit.planning.plan import Plan
from tests.neighbours.checks import Place, Verdict, told
from tests.neighbours.engines import federated, simulation
from tests.neighbours.shifts import unprotected
from tests.neighbours.worlds import SILOS, changes, experiment, table

REPORTING: dict[str, dict[str, Any]] = {
    "ss-simple": {},
    "ss-double": {"index_rate": 1.0, "index_sampling": "fixed"},
    "ss-topk": {"index_rate": 0.5},
    "ldp-laplace": {},
    "ldp-gaussian": {},
}
LEVELS = 6
PEOPLE = 40
BATCH = 10


def planned(method: str) -> Plan:
    """Everybody once, in batches that take turns."""
    numbers = {"name": method, "local_epsilon": 8.0, "value_range": 1e3, "batch_subjects": BATCH, **REPORTING[method]}
    exchange = {"name": exchanges_for(METHODS[method].info)[0]}
    turns = PEOPLE // BATCH
    return tacit.plan(experiment(numbers, LEVELS, turns, exchange=exchange, privacy={"max_silos_per_subject": 1}))


def frame() -> pd.DataFrame:
    """Everybody in one silo, with an update of their own."""
    made = table(records=2)
    home = {person: SILOS[number % 3] for number, person in enumerate(sorted(made["person"].unique()))}
    rng = np.random.default_rng(4)
    made = made.assign(site=made["person"].map(home), x=rng.uniform(-1, 1, len(made)), y=rng.uniform(-9, 9, len(made)))
    return made.drop_duplicates(["person", "x"]).reset_index(drop=True)


@contextmanager
def watched(inputs: list[np.ndarray]) -> Iterator[None]:
    """Everything that encoders are given to report, in the order of rounds."""

    def spy(kind: type, name: str) -> Any:
        real = getattr(kind, name)

        def seen(self: Any, vectors: np.ndarray, *rest: Any) -> Any:
            inputs.append(np.array(vectors, np.float64))
            return real(self, vectors, *rest)

        return patch.object(kind, name, seen)

    made_by = [(LaplaceNumbers, "send"), (GaussianNumbers, "send"), (Reports, "encode"), (LargestReports, "encode")]
    spies = [spy(kind, name) for kind, name in made_by]
    for each in spies:
        each.start()
    try:
        yield
    finally:
        for each in spies:
            each.stop()


def reported(plan: Plan, engine: str, made: pd.DataFrame) -> list[Counter[tuple[float, ...]]]:
    """How often each input is reported, round by round. All rounds have as many reports."""
    inputs: list[np.ndarray] = []
    with watched(inputs):
        if engine == "federation":
            assert federated(plan, made) is not None
        else:
            sim = simulation(plan, made)
            for number in range(1, plan.rounds + 1):
                sim.round(number)
    rows = np.round(np.concatenate(inputs), 4).tolist()
    size, rest = divmod(len(rows), plan.rounds)
    assert not rest, "rounds differ in how many report"
    return [Counter(map(tuple, rows[k * size : (k + 1) * size])) for k in range(plan.rounds)]


def changed(before: list[Counter[tuple[float, ...]]], after: list[Counter[tuple[float, ...]]]) -> int:
    """How many reports have another input, over all rounds."""
    assert [each.total() for each in before] == [each.total() for each in after], "how many report depends on the data"
    return sum((one - other).total() for one, other in zip(before, after, strict=True))


def verdicts(method: str, engine: str) -> dict[Place, Verdict]:
    """One report of one round may change: that of the unit, in its turn."""
    plan, made = planned(method), frame()
    before = reported(plan, engine, made)

    @cache
    def moved(unit: str, relation: str) -> float:
        return max(changed(before, reported(plan, engine, change(made))) for change in changes(unit, relation, SILOS))

    return {
        place: Verdict(None if unprotected(event) else float(moved(place.unit, place.relation)))
        for place, event in told(plan).items()
    }
