"""Numbers that no change of structure may change: guarantees, models of seeded runs, ledgers written before."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tacit
from tacit.privacy import Ledger, account
from tacit.privacy.accounting.events import event_from_dict
from tests.made import experiment, visits
from tests.stability.make import EXAMPLES, HERE, PLANS, flat, guarantees, read

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
    assert {str(file.relative_to(EXAMPLES)) for file in EXAMPLES.rglob("*.toml")} <= set(KNOWN)
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
    found = flat(tacit.run(planned(experiment(), method, exchange), frame=visits(), out=tmp_path / "run"))
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
