"""Numbers that no change of structure may change: guarantees, models of seeded runs, ledgers written before."""

from __future__ import annotations

import math
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tacit
from tacit.privacy import Ledger, account
from tacit.privacy.accounting.events import EVENTS, event_from_dict
from tests.made import experiment, visits
from tests.stability.events import EXAMPLES as EXAMPLE_EVENTS
from tests.stability.events import kinds, stored
from tests.stability.make import CARRIED, EXAMPLES, FILES, HERE, PLANS, flat, guarantees, read

KNOWN = read("plans")


def same(found: Any, expected: Any) -> bool:
    """The same views and verdicts, and the same numbers to 9 digits."""
    if isinstance(expected, float):
        return isinstance(found, float) and math.isclose(found, expected, rel_tol=1e-9)
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(same(*pair) for pair in zip(found, expected, strict=True))
    return bool(found == expected)


def test_every_experiment_of_the_examples_is_known():
    assert {str(file.relative_to(EXAMPLES)) for file in FILES} <= set(KNOWN)
    assert sum(name.startswith("random ") for name in KNOWN) == PLANS


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_a_plan_guarantees_what_it_did(name):
    known = KNOWN[name]
    plan = tacit.plan(known.get("experiment", EXAMPLES / name))
    assert same(guarantees(plan), known["guarantees"])


def test_a_changed_number_is_noticed():
    rows = next(known["guarantees"] for known in KNOWN.values() if isinstance(known["guarantees"][0]["epsilon"], float))
    changed = [{**rows[0], "epsilon": rows[0]["epsilon"] * (1 + 1e-6)}, *rows[1:]]
    assert same(rows, rows)
    assert not same(changed, rows)


@pytest.mark.parametrize("cell", sorted(read("models")))
def test_a_seed_gives_the_model_that_it_did(cell, tmp_path):
    from tests.engine.federated import planned

    method, exchange = cell.split()
    made = planned(experiment(), method, exchange, exchange=CARRIED.get(exchange, {}))
    found = flat(tacit.run(made, frame=visits(), out=tmp_path / "run"))
    assert np.allclose(found, read("models")[cell], rtol=0, atol=1e-6)


def test_a_ledger_written_before_is_read_as_it_was(tmp_path):
    """Events are never removed, and keep their meaning."""
    file = Path(tmp_path / "ledger.jsonl")
    file.write_bytes((HERE / "ledger.jsonl").read_bytes())
    with Ledger(file) as ledger:
        lines = list(ledger.lines)
    assert len(lines) > 25
    for line in lines:
        known = KNOWN[line["run"]]
        for one in known["guarantees"]:
            values = line["events"].get(f"{one['unit']}/{one['view']}/{one['relation']}")
            if values is not None:
                found = account(event_from_dict(values), one["delta"]).epsilon
                assert found == (math.inf if one["epsilon"] == "inf" else pytest.approx(one["epsilon"], rel=1e-9))


@pytest.mark.parametrize("line", stored(), ids=lambda line: line["event"]["kind"])
def test_an_event_written_before_is_read_and_costs_what_it_did(line):
    event = event_from_dict(line["event"])
    assert line["event"].items() <= event.as_dict().items()
    assert account(event, line["delta"]).epsilon == pytest.approx(float(line["epsilon"]), rel=1e-9)


def test_every_event_has_a_line_and_no_event_was_removed():
    assert {kind for line in stored() for kind in kinds(line["event"])} == set(EVENTS)


@pytest.mark.parametrize("event", EXAMPLE_EVENTS, ids=lambda event: event.kind)
def test_every_field_of_an_event_is_in_a_line(event):
    """So that a field that is new, or has another default, adds a line: ``python -m tests.stability.events``."""
    assert event.as_dict() in [line["event"] for line in stored()]


def test_an_event_is_read_without_the_fields_that_were_added_later():
    """Only these fields may be required: a line of an early version has no others."""
    required = {
        kind: {field.name for field in fields(event) if field.default is MISSING} for kind, event in EVENTS.items()
    }
    assert required == {
        "nothing": set(),
        "unprotected": set(),
        "pure": {"epsilon"},
        "gaussian": {"noise_multiplier"},
        "laplace": {"noise_multiplier"},
        "discrete-gaussian": {"sigma"},
        "randomized-response": {"epsilon"},
        "poisson-sampled": {"rate", "event"},
        "sampled-without-replacement": {"size", "population", "event"},
        "gaussian-mixture": {"noise_multiplier", "sensitivities", "probabilities"},
        "shuffled-reports": {"epsilon", "reports"},
        "random-walk": {"nodes", "steps", "noise_multiplier"},
        "selected": {"event", "mean"},
        "failure": {"probability"},
        "repeated": {"event", "count"},
        "composed": {"events"},
        "largest": {"events"},
    }
