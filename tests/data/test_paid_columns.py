"""Columns whose constants are paid for: public bounds first, released constants later, nothing in between."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.data import FeatureEncoder, NumericColumn
from tests.refusals import refused_section

BOUNDS = {"age": {"low": 0, "high": 100}, "pressure": {"low": 60, "high": 200}}
PAID = {"standardize": "paid", "numeric": BOUNDS}


def test_until_constants_are_released_columns_are_scaled_by_their_bounds(read, visits):
    federation = read(**PAID)
    raw = federation.unpaid.values()
    assert federation.train.features[:, 0] == pytest.approx((raw[:, 0] - 50) / 50, abs=1e-6)
    assert federation.train.features[:, 1] == pytest.approx((raw[:, 1] - 130) / 70, abs=1e-6)
    assert set(np.round(raw[:, 0], 9)) <= set(np.round(visits["age"], 9))
    assert federation.unpaid.columns.bounds() == ((0, 60), (100, 200))
    assert read().unpaid is None


def test_released_constants_are_used_everywhere_and_by_nobody_before(read, visits):
    federation = read(**PAID)
    ready = federation.standardized([41.0, 125.0], [11.0, 17.0])
    raw = federation.unpaid.values()
    assert ready.train.features[:, :2] == pytest.approx((raw - [41, 125]) / [11, 17], abs=1e-5)
    assert np.array_equal(ready.train.features[:, 2:], federation.train.features[:, 2:])  # categories stay
    assert ready.unpaid is None
    again = FeatureEncoder.from_dict(ready.encoder.to_dict())
    assert again == ready.encoder
    declared = read(numeric={"age": {"mean": 41, "scale": 11}, "pressure": {"mean": 125, "scale": 17}})
    assert np.array_equal(ready.train.features, declared.train.features)
    assert np.array_equal(ready.test.features, declared.test.features)
    assert np.array_equal(again.encode(visits), declared.encoder.encode(visits))


def test_a_gap_lands_on_the_released_centre_and_a_stand_in_counts_as_a_value(read):
    def gaps(frame):
        frame.loc[::7, ["age", "pressure"]] = np.nan
        return frame

    numeric = {**BOUNDS, "pressure": {**BOUNDS["pressure"], "missing": 100}}
    federation = read(gaps, standardize="paid", numeric=numeric, missing="center")
    raw = federation.unpaid.values()
    missing = np.isnan(raw[:, 0])
    assert missing.any()
    assert (raw[missing, 1] == 100).all()
    ready = federation.standardized([40, 130], [10, 15])
    assert (ready.train.features[missing, 0] == 0).all()
    assert ready.train.features[missing, 1] == pytest.approx(-2.0)


@pytest.mark.parametrize(
    ("numeric", "field", "names"),
    [
        ({**BOUNDS, "age": {"low": 0}}, "data.numeric", ["'age'", "high"]),
        ({**BOUNDS, "pressure": {"mean": 130}}, "data.numeric", ["'pressure'", "low", "high"]),
        ({}, "data.standardize", []),
    ],
)
def test_a_column_without_bounds_is_named(refusal, numeric, field, names):
    refusal("missing", field, standardize="paid", numeric=numeric, names=names)


def test_bounds_are_in_order():
    assert refused_section(NumericColumn, low=3, high=3).code == "conflict"


def test_columns_without_any_bounds_wait_for_constants_too_and_end_at_ten_scales(read, visits):
    federation = read(standardize="private", numeric=("age", "pressure"))
    assert federation.unpaid.columns.unbounded
    raw = federation.unpaid.values()
    assert np.abs(federation.train.features[:, :2]).max() < 1e-9  # nothing is known yet
    ready = federation.standardized([41.0, 125.0], [1e-9, 17.0])
    assert set(np.abs(ready.train.features[:, 0])) == {10.0}
    assert ready.train.features[:, 1] == pytest.approx((raw[:, 1] - 125) / 17, abs=1e-5)
    assert np.array_equal(
        FeatureEncoder.from_dict(ready.encoder.to_dict()).encode(visits), ready.encoder.encode(visits)
    )
