from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.exchange import Masked, Plain
from tacit.privacy import attack_limits
from tacit.privacy.terms import FLOATS, SEEDED, Guarantee, View, sentence, sheet


def promise(epsilon: float, delta: float = 1e-5, unit: str = "subject", relation: str = "zero-out") -> Guarantee:
    return Guarantee(unit, relation, View("public"), "poisson", epsilon, delta, "pld", ("sizes are public",))


def printed_factor(epsilon: float) -> float:
    text = sentence(promise(epsilon, 0.0)).split("a factor of ")[1].rstrip(".").replace(",", "")
    return float(text.replace("10^", "1e"))


@given(st.floats(0, 300))
def test_the_factor_is_rounded_up_and_is_one_only_for_nothing(epsilon):
    factor = printed_factor(epsilon)
    assert factor >= math.exp(epsilon) * (1 - 1e-11)
    assert (factor == 1) == (epsilon == 0)
    assert factor <= math.exp(epsilon) * (1.011 if epsilon < math.log(1e6) else 10.001)


def test_factors_as_they_are_printed():
    assert printed_factor(10.0) == 22100  # e^10 = 22026
    assert printed_factor(1e-4) == 1.00011
    assert printed_factor(0.005) == 1.0051
    assert printed_factor(20.0) == 1e9


@pytest.mark.parametrize("delta", [1e-9, 1e-5, 0.3])
def test_delta_is_added_and_not_an_exception(delta):
    text = sentence(promise(1.0, delta))
    assert "by at most a factor of 2.72, plus a probability of " in text
    assert "except" not in text


def test_the_sentence_names_the_change_the_factor_and_delta():
    text = sentence(promise(2.0))
    assert "everything about any one person, in all silos together" in text
    assert "7.39" in text
    assert "1e-05" in text
    assert "Nothing is promised" in sentence(promise(math.inf))
    assert "one record" in sentence(promise(1.0, unit="record"))


@given(st.floats(0, 50), st.floats(0, 0.1))
def test_an_attacker_can_do_no_better_than_the_two_lines(epsilon, delta):
    limits = attack_limits(None, pair=(epsilon, delta))
    assert 0 <= limits.advantage <= 1
    for false_positives, true_positives in limits.tpr_at_fpr.items():
        lines = (math.exp(epsilon) * false_positives + delta, 1 - math.exp(-epsilon) * (1 - delta - false_positives))
        assert true_positives == pytest.approx(min(1.0, *lines))
        assert true_positives - false_positives <= limits.advantage + 1e-9


def test_known_values_of_the_membership_limits():
    assert attack_limits(None, pair=(0.0, 0.0)).advantage == 0
    assert attack_limits(None, pair=(math.log(3), 0.0)).advantage == pytest.approx(0.5)  # (3 - 1) / (3 + 1)
    assert attack_limits(None, pair=(math.log(10), 0.0)).tpr_at_fpr[0.001] == pytest.approx(0.01)
    (row,) = sheet([promise(math.inf)], seeded=False).rows
    assert row.right_guesses == 1
    assert set(row.limits.tpr_at_fpr.values()) == {1.0}


def test_the_sheet_says_what_is_assumed_what_is_not_covered_and_that_a_seed_undoes_it():
    made = sheet([promise(1.0), promise(math.inf)], seeded=True)
    assert made.assumptions == ("sizes are public",)
    assert SEEDED in made.not_covered
    assert SEEDED not in sheet([promise(1.0)], seeded=False).not_covered
    assert [row.guarantee.finite for row in made.rows] == [True, False]


def test_the_last_bits_of_noise_are_not_covered_where_it_is_in_floating_point_and_nowhere_else():
    discrete, plain = (exchange.assumptions(View("public"), 3) for exchange in (Masked(), Plain()))
    in_steps, in_floats = (replace(promise(1.0), assumptions=assumed) for assumed in (discrete, plain))
    assert FLOATS not in sheet([in_steps], seeded=False).not_covered
    made = sheet([in_floats, in_steps], seeded=False)
    assert FLOATS in made.not_covered
    assert made.assumptions == discrete
