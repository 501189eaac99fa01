"""Statistics and metrics that are paid for, from the table to the sum that leaves each silo: no view sees a subject or
a record beyond what the accountant is told. ``tests/engine/test_paid.py`` measures the noise that is in the sums."""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import replace
from itertools import combinations
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pytest

import tacit
from tacit.engine.evaluate import release_constants, release_metrics
from tacit.planning.plan import Plan
from tacit.privacy import Randomness, View
from tacit.privacy.mechanisms.noisy_queries import Means, Moments
from tacit.privacy.mechanisms.spreads import Spreads
from tests.neighbours.engines import federated, simulation
from tests.neighbours.shifts import allowed
from tests.neighbours.worlds import CLIP, FIRST, LAST, SILOS, STEP, changes, confined, experiment, table

PAID = {"statistics": (Moments, Spreads), "evaluation": (Means,)}
BOUNDS, UNBOUNDED = {"low": -1, "high": 1}, {}
HELD_OUT = "m01"
VIEWS = ("public", "server", "silo", "silos:2")


def planned(exchange: str, column: dict[str, float], **privacy: Any) -> Plan:
    """All but a single round of training; the model stays where it is."""
    bounded = {"standardize": "paid", "numeric": {"x": column}, "test_fraction": 0.3}
    return tacit.plan(
        experiment(
            {"name": "uldp-avg", "clip": CLIP, "noise_multiplier": 1.0, "local_learning_rate": STEP},
            4,
            1,
            data=bounded,
            exchange={"name": exchange},
            train={"server_learning_rate": STEP},
            evaluation={"status": "paid", "noise_multiplier": 2.0, "loss_bound": 4.0},
            privacy={"statistics_noise_multiplier": 10.0, **privacy},
        )
    )


def extreme(made: pd.DataFrame) -> pd.DataFrame:
    """Within a subject, one record at one end of the bounds and the others at the other."""
    return made.assign(x=np.sign(made["y"]), y=100 * made["y"].clip(lower=0.0))


def sums(plan: Plan, engine: str, frame: pd.DataFrame) -> dict[str, np.ndarray]:
    """What every silo adds its noise to, over the sensitivity of the query: ``[silos, numbers]`` of each release."""
    found: dict[str, list[np.ndarray]] = {name: [] for name in PAID}

    def watched(name: str, kind: type) -> Any:
        real = kind.parts  # type: ignore[attr-defined]

        def parts(self: Any, *given: Any) -> Any:
            made = real(self, *given)
            found[name].append(made / self.sensitivity)
            return made

        return patch.object(kind, "parts", parts)

    with ExitStack() as watching:
        for name, kinds in PAID.items():
            for kind in kinds:
                watching.enter_context(watched(name, kind))
        if engine == "federation":
            assert federated(plan, frame) is not None
        else:
            sim, randomness = simulation(plan, frame), Randomness.from_seed(1)
            release_constants(plan, sim.federation, randomness)
            test = sim.federation.test
            release_metrics(plan, sim.outputs(test.features, test.silo), test, randomness, 1)
    return {name: np.concatenate(parts) for name, parts in found.items()}


@pytest.mark.parametrize(
    ("engine", "exchange", "frame", "privacy"),
    [
        ("simulator", "plain", table, {}),
        ("simulator", "plain", table, {"max_silos_per_subject": 2}),
        ("simulator", "masked", table, {"max_silos_per_subject": 1}),
        ("federation", "plain", table, {}),
        ("federation", "masked", confined, {"max_silos_per_subject": 1}),
    ],
)
@pytest.mark.parametrize("column", [BOUNDS, UNBOUNDED], ids=["bounds", "unbounded"])
def test_no_view_sees_more_of_what_is_paid_for_than_the_accountant_is_told(engine, exchange, frame, privacy, column):
    plan, made = planned(exchange, column, **privacy), frame()
    before, largest = sums(plan, engine, extreme(made)), 0.0
    neighbours: dict[int, dict[str, np.ndarray]] = {}
    people = (FIRST, LAST, HELD_OUT)
    for unit in ("subject", "record"):
        for relation in ("zero-out", "replace"):
            for view in map(View.parse, VIEWS):
                for known in combinations(range(len(SILOS)), view.count if view.holds_records else 0):
                    free = [silo for k, silo in enumerate(SILOS) if k not in known]
                    honest = [k for k in range(len(SILOS)) if k not in known]
                    for change in changes(unit, relation, free, people):
                        other = extreme(change(made))
                        key = hash(other.to_csv())
                        after = neighbours[key] = neighbours.get(key) or sums(plan, engine, other)
                        for name in PAID:
                            ratio = _ratio(plan, name, unit, relation, view, (after[name] - before[name])[honest])
                            largest = max(largest, ratio)
                            assert ratio <= 1 + 1e-9, (name, unit, relation, str(view))
    assert largest > 0.9  # the bound is reached


def _ratio(plan: Plan, name: str, unit: Any, relation: Any, view: View, moved: np.ndarray) -> float:
    """By how much a view sees honest silos' parts move, over what is accounted for."""
    promise = replace(plan.promise, unit=unit, relation=relation)
    once = promise.release(name)
    most = allowed(promise.once_event(once, unit, view))
    noise = once.noise_multiplier / math.sqrt(len(SILOS))
    apart = plan.exchange.reveals_to(view) == "each"
    seen = moved if apart else moved.sum(axis=0) / math.sqrt(len(moved))
    return 0.0 if math.isinf(most) else float(np.linalg.norm(seen)) / noise / most
