from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.privacy.guarantee import Guarantee
from tacit.privacy.statement import SEEDED, advantage, membership_limits, sentence, sheet
from tacit.privacy.terms import View


def promise(epsilon: float, delta: float = 1e-5, unit: str = "subject", relation: str = "zero-out") -> Guarantee:
    return Guarantee(unit, relation, View("public"), "poisson", epsilon, delta, "pld", ("sizes are public",))


def test_the_sentence_names_the_change_the_factor_and_the_exception():
    text = sentence(promise(2.0))
    assert "everything about any one person, in all silos together" in text
    assert "7.39" in text
    assert "1e-05" in text
    assert "Nothing is promised" in sentence(promise(math.inf))
    assert "one record" in sentence(promise(1.0, unit="record"))


@given(st.floats(0, 50), st.floats(0, 0.1))
def test_an_attacker_can_do_no_better_than_the_two_lines(epsilon, delta):
    guarantee = promise(epsilon, delta)
    best = advantage(guarantee)
    assert 0 <= best <= 1
    for limit in membership_limits(guarantee):
        assert limit.false_positives <= limit.true_positives + 1e-12 <= 1 + 1e-9
        assert limit.true_positives - limit.false_positives <= best + 1e-9


def test_known_values_of_the_membership_limits():
    assert advantage(promise(0.0, 0.0)) == 0
    assert advantage(promise(math.log(3), 0.0)) == pytest.approx(0.5)  # (3 - 1) / (3 + 1)
    assert membership_limits(promise(math.log(10), 0.0))[0].true_positives == pytest.approx(0.01)
    assert advantage(promise(math.inf)) == 1


def test_the_sheet_says_what_is_assumed_what_is_not_covered_and_that_a_seed_undoes_it():
    made = sheet([promise(1.0), promise(math.inf)], seeded=True)
    assert made.assumptions == ("sizes are public",)
    assert SEEDED in made.not_covered
    assert SEEDED not in sheet([promise(1.0)], seeded=False).not_covered
    assert [row.guarantee.finite for row in made.rows] == [True, False]
