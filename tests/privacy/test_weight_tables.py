"""Tables of record weights: exact integers, floats, and what the proofs about them rest on."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.privacy.invalid import InvalidArgument
from tacit.privacy.proofs.weight_tables import RECORD_WEIGHTS, WeightTable
from tests.refusals import refuses


@st.composite
def tables(draw) -> WeightTable:
    kind, most = draw(st.sampled_from(RECORD_WEIGHTS)), draw(st.integers(1, 8191))
    cap = draw(st.integers(1, 10_000)) if kind == "records-capped" else None
    return WeightTable(kind, most, cap)


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (WeightTable("records", 4), [0, 1, 1 / 2, 1 / 3, 1 / 4]),
        (WeightTable("records-phantom", 4), [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5]),
        (WeightTable("records-sqrt", 4), [0, 1 / 2, 1 / 8**0.5, 1 / 12**0.5, 1 / 4]),
        (WeightTable("records-capped", 4, cap=2), [0, 1 / 2, 1 / 2, 1 / 3, 1 / 4]),
    ],
)
def test_tables_have_the_values_of_their_formulas(table, expected):
    np.testing.assert_allclose(table.floats(), expected, rtol=1e-15)
    np.testing.assert_array_equal(table.at([3, 0, 1]), table.floats()[[3, 0, 1]])
    np.testing.assert_array_equal(table.integers(40), np.floor(2.0**40 * np.array(expected)))


@settings(max_examples=60, deadline=None)
@given(tables(), st.integers(1, 62))
def test_integers_are_exact_floors_and_sum_to_at_most_one(table, bits):
    found = [int(value) for value in table.integers(bits)]
    assert len(found) == table.most + 1
    for total, value in enumerate(found[1:], 1):
        assert total * value <= 2**bits
        if table.kind == "records-sqrt":  # value <= 2^k / sqrt(N N_max) < value + 1
            product = total * table.most
            assert value**2 * product <= 4**bits < (value + 1) ** 2 * product
        else:
            divisor = total + 1 if table.kind == "records-phantom" else max(total, table.cap or 1)
            assert value == Fraction(2**bits, divisor).__floor__()
    assert found[1:] == sorted(found[1:], reverse=True)


@settings(max_examples=60, deadline=None)
@given(tables())
def test_floats_fall_and_a_subject_s_weight_in_all_grows_to_at_most_one(table):
    found, total = table.floats(), np.arange(table.most + 1)
    assert (np.diff(found[1:]) <= 0).all()
    assert (np.diff(total * found) >= -1e-15).all()
    assert (total * found <= 1 + 1e-15).all()
    np.testing.assert_allclose(table.integers(50) / 2.0**50, found, atol=2.0**-49)


@pytest.mark.parametrize(
    ("changes", "code", "field"),
    [
        ({"kind": "uniform"}, "unknown-name", "kind"),
        ({"most": 0}, "out-of-range", "most"),
        ({"cap": 3}, "out-of-range", "cap"),
        ({"kind": "records-capped"}, "out-of-range", "cap"),
        ({"bits": 63}, "out-of-range", "bits"),
    ],
)
def test_what_is_no_table_is_refused(changes, code, field):
    with refuses(code, field, InvalidArgument):
        WeightTable(**({"kind": "records", "most": 10} | changes))
