from __future__ import annotations

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.kernels.exact_sums import MARGIN, bounded, clip_factors, clipped

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


@given(st.floats(0, 2.0**126, width=32), st.floats(1e-3, 1e3))
def test_factors_keep_every_known_norm_within_the_bound(length, bound):
    (factor,) = np.asarray(clip_factors(np.array([length], np.float32), bound), np.float64)
    assert length * factor <= bound * (1 + 1e-7)
    assert factor == 1 or length > (1 - 2 * MARGIN) * bound


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_norm_that_is_not_finite_has_factor_zero(bad):
    np.testing.assert_array_equal(clip_factors(np.array([bad, 0.5], np.float32), 1.0), [0, 1])


def test_both_forms_of_clipping_agree():
    vectors = np.random.default_rng(1).normal(size=(20, 7)).astype(np.float32) * np.geomspace(1e-2, 1e3, 20)[:, None]
    factors = clip_factors(np.linalg.norm(vectors, axis=1).astype(np.float32), 1.0)
    alone = jax.vmap(lambda vector: bounded(vector, 1.0)[0])(vectors)
    np.testing.assert_allclose(vectors * np.asarray(factors)[:, None], alone, rtol=2e-6)
