"""What is promised against whom, by exchange: the table of docs/security.md."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tacit.errors import UserError
from tacit.planning.plan import Plan, plan
from tests.refusals import refuses

AVG = {"name": "uldp-avg", "noise_multiplier": 5.0}
BY_RECORDS = {**AVG, "weights": "records-phantom"}
DISCLOSED = {**BY_RECORDS, "disclose_counts": True}
SERVER_S = {"name": "dp-fedavg", "noise_multiplier": 5.0}  # the server adds the noise
PEOPLE_S = {"name": "ldp-gaussian", "local_epsilon": 4.0}
REPORTS = {"name": "ss-simple", "local_epsilon": 4.0}

CELLS = [
    (AVG, {"name": "plain"}, {"public", "server", "silo", "silos:2", "server+silos:1"}, set()),
    (PEOPLE_S, {"name": "plain"}, {"public", "server", "silo", "silos:3"}, set()),
    (SERVER_S, {"name": "plain"}, {"public", "silo"}, {"server"}),
    (DISCLOSED, {"name": "plain"}, {"public"}, {"server", "silo", "silos:2"}),
    (AVG, {"name": "masked"}, {"public", "server", "silo"}, {"silos:2", "server+silos:1"}),
    (AVG, {"name": "masked", "colluding": 2}, {"silos:2", "server+silos:2"}, {"silos:3"}),
    (DISCLOSED, {"name": "masked"}, {"public"}, {"server", "silo"}),
    (BY_RECORDS, {"name": "weighted"}, {"public", "server", "silo", "silos:2"}, {"server+silos:1"}),
    (BY_RECORDS, {"name": "weighted", "index": "list"}, {"public", "server"}, {"silo", "silos:2"}),
    (SERVER_S, {"name": "pairwise"}, {"public", "server", "silo", "silos:2", "server+silos:1"}, set()),
    (REPORTS, {"name": "shuffled"}, {"public", "analyzer", "shuffler", "shuffler+analyzer"}, {"silo", "silos:2"}),
]


def planned(method: dict[str, Any], exchange: dict[str, Any], view: str) -> Plan:
    """A plan of five silos for one view."""
    numeric = {"age": {"mean": 50, "scale": 20}}
    data = {"label": "ill", "numeric": numeric, "records_per_silo": 2000, "silos": {"column": "silo", "count": 5}}
    caps = {"max_silos_per_subject": 1} if method in (PEOPLE_S, REPORTS) else {}
    privacy = {"max_records_per_subject_and_silo": 5, "over_silo_cap": "refuse", "against": [view], **caps}
    return plan(
        {
            "data": {**data, "subjects": {"column": "person", "count": 1000}},
            "method": method,
            "exchange": exchange,
            "train": {"rounds": 5},
            "privacy": privacy,
        }
    )


def is_finite(method: dict[str, Any], exchange: dict[str, Any], view: str) -> bool:
    """Whether a plan has a finite epsilon for a view; not where the exchange does not have that view."""
    try:
        return all(math.isfinite(line.epsilon) for line in planned(method, exchange, view).guarantees())
    except UserError as error:
        if error.field != "privacy.against":
            raise
        return False


@pytest.mark.parametrize(("method", "exchange", "finite", "none"), CELLS)
def test_views_have_a_finite_epsilon_as_the_table_says(method, exchange, finite, none):
    found = {view: is_finite(method, exchange, view) for view in sorted(finite | none)}
    assert found == {view: view in finite for view in sorted(finite | none)}


@pytest.mark.parametrize(
    ("method", "exchange", "view", "settings"),
    [
        (BY_RECORDS, {"name": "weighted"}, "server+silos:1", ['exchange.key = "joint"', "exchange.colluding = 1"]),
        (BY_RECORDS, {"name": "weighted", "key": "joint"}, "server+silos:2", ["exchange.colluding = 2"]),
        (AVG, {"name": "masked"}, "silos:2", ["exchange.colluding = 2"]),
    ],
)
def test_a_view_that_is_missing_is_refused_with_the_settings_that_add_it(method, exchange, view, settings):
    with refuses("unknown-name", "privacy.against", names=settings):
        planned(method, exchange, view)
