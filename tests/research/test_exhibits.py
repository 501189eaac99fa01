"""What papers print and attacks exceed: each published number is refuted, each proved one is not."""

from __future__ import annotations

import pytest

from research.exhibits import EXHIBITS
from tacit.privacy import Randomness

QUICK = ("marginal-gossip", "record-rate")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in EXHIBITS]
)
def test_the_lower_bound_is_above_the_published_epsilon_and_below_the_proved_one(name):
    found = EXHIBITS[name](Randomness.from_seed(1))
    assert found.published < found.at_least <= found.proved
    assert found.shows
