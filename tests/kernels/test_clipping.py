from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.kernels.clipping import clipped

CLIP = jax.jit(clipped)


@given(st.lists(st.floats(-(2.0**126), 2.0**126, width=32), min_size=7, max_size=7), st.floats(1e-3, 1e3))
def test_the_norm_is_never_above_the_bound(values, bound):
    result = np.asarray(CLIP(np.array(values, np.float32), bound), np.float64)
    assert np.linalg.norm(result) <= bound * (1 + 1e-7)


def test_what_is_within_the_bound_stays_as_it_is():
    vector = np.array([0.3, -0.4, 0, 0, 0, 0, 0], np.float32)
    np.testing.assert_array_equal(CLIP(vector, 1.0), vector)
    np.testing.assert_array_equal(CLIP(np.zeros(7, np.float32), 1.0), np.zeros(7))


def test_the_direction_is_kept():
    vector = np.array([3, 4, 0, 0, 0, 0, 0], np.float32)
    np.testing.assert_allclose(CLIP(vector, 1.0)[:2], [0.6, 0.8], rtol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_contributes_nothing(bad):
    vector = np.array([1, bad, 0, 0, 0, 0, 0], np.float32)
    np.testing.assert_array_equal(CLIP(vector, 1.0), np.zeros(7))
