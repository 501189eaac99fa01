"""Append events that have no line yet to ``events.jsonl``: ``python -m tests.stability.events``.

Each line is an event as a ledger keeps it, with what it costs. Lines are never changed or removed.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from tacit.privacy import account
from tacit.privacy.accounting.events import (
    EVENTS,
    Composed,
    DiscreteGaussian,
    Event,
    Failure,
    Gaussian,
    GaussianMixture,
    Laplace,
    Largest,
    Nothing,
    PoissonSampled,
    Pure,
    RandomizedResponse,
    RandomWalk,
    Repeated,
    SampledWithoutReplacement,
    Selected,
    ShuffledReports,
    Unprotected,
)

FILE = Path(__file__).parent / "events.jsonl"
DELTA = 1e-5
# with default values and, where an event has any, with others
EXAMPLES: tuple[Event, ...] = (
    Nothing(),
    Unprotected(),
    Unprotected("the server adds the noise"),
    Pure(0.7),
    Gaussian(2.5),
    Laplace(1.5),
    DiscreteGaussian(3.0),
    DiscreteGaussian(8.0, 3),
    RandomizedResponse(1.2),
    RandomizedResponse(1.2, 5),
    PoissonSampled(0.05, Gaussian(1.1)),
    SampledWithoutReplacement(10, 200, Gaussian(1.3)),
    GaussianMixture(4.0, (0.0, 1.0, 2.0), (0.5, 0.3, 0.2)),
    ShuffledReports(1.5, 2000),
    ShuffledReports(1.5, 2000, 1.0),
    ShuffledReports(1.5, 2000, None, "laplace"),
    ShuffledReports(1.5, 2000, None, "response", 4),
    RandomWalk(50, 200, 2.0),
    RandomWalk(50, 200, 2.0, False),
    Selected(Gaussian(4.0), 5.0),
    Selected(Gaussian(4.0), 5.0, "poisson"),
    Selected(Gaussian(4.0), 5.0, "negative-binomial", 0.0),
    Composed((Gaussian(3.0), Failure(1e-7))),
    Repeated(PoissonSampled(0.1, Gaussian(2.0)), 30),
    Composed((Laplace(4.0), Repeated(Gaussian(9.0), 4))),
    Largest((Gaussian(2.0), Pure(0.4))),
)


def kinds(values: Any) -> set[str]:
    """The kinds of all events within a stored one."""
    if isinstance(values, dict):
        return {values["kind"]} | {kind for value in values.values() for kind in kinds(value)}
    return {kind for value in values for kind in kinds(value)} if isinstance(values, list) else set()


def stored() -> list[dict[str, Any]]:
    return [json.loads(text) for text in FILE.read_text(encoding="utf-8").splitlines()] if FILE.exists() else []


def main() -> None:
    known = [line["event"] for line in stored()]
    with FILE.open("a", encoding="utf-8") as file:
        for event in EXAMPLES:
            if event.as_dict() not in known:
                epsilon = account(event, DELTA).epsilon
                line = {"event": event.as_dict(), "delta": DELTA, "epsilon": "inf" if math.isinf(epsilon) else epsilon}
                file.write(json.dumps(line, sort_keys=True) + "\n")
    assert set(EVENTS) <= {kind for line in stored() for kind in kinds(line["event"])}, "an event has no example"


if __name__ == "__main__":
    main()
