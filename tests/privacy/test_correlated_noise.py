"""Noise that is correlated over rounds: what it adds up to, whom it hides, and when it is worth it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from research.default_settings import prefix_error
from tacit.privacy.proofs.correlated_noise import noise_weights, sensitivity, strategy_column

small = st.integers(1, 9)


def matrices(bands: int, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """M, which mixes the normals of the rounds, and the strategy C."""
    weights = np.pad(noise_weights(bands), (0, rounds))[:rounds]
    column = strategy_column(bands, rounds)
    below = np.subtract.outer(np.arange(rounds), np.arange(rounds))
    return tuple(np.where(below >= 0, values[np.abs(below)], 0.0) for values in (weights, column))


def test_weights_are_the_square_root_of_taking_differences():
    assert noise_weights(4) == (1.0, -0.5, -0.125, -0.0625)
    twice = np.convolve(noise_weights(50), noise_weights(50))[:50]
    np.testing.assert_allclose(twice, [1, -1] + [0] * 48, atol=1e-15)


@given(bands=small, rounds=small)
def test_the_strategy_undoes_the_mixing_and_is_nowhere_negative(bands, rounds):
    mixing, strategy = matrices(bands, rounds)
    np.testing.assert_allclose(mixing @ strategy, np.eye(rounds), atol=1e-12)
    assert (strategy >= 0).all()


@settings(max_examples=60)
@given(bands=small, groups=small, rounds=small, seed=st.integers(0, 2**32 - 1))
def test_no_subject_moves_the_whole_training_by_more_in_any_direction(bands, groups, rounds, seed):
    """Vectors of norm at most 1 in the rounds of one group: random ones, and all signs of one direction."""
    rng = np.random.default_rng(seed)
    _, strategy = matrices(bands, rounds)
    most = sensitivity(bands, groups, rounds)
    for turn in range(min(groups, rounds)):
        own = np.arange(rounds) % groups == turn
        vectors = rng.normal(size=(rounds, 3))
        vectors *= own[:, None] * rng.uniform(0, 1, (rounds, 1)) / np.linalg.norm(vectors, axis=1, keepdims=True)
        assert np.linalg.norm(strategy @ vectors) <= most
        assert np.linalg.norm(strategy @ (own * rng.choice([-1, 1], rounds))) <= most


@given(bands=small, groups=small, rounds=small)
def test_somebody_who_always_pushes_the_same_way_attains_it(bands, groups, rounds):
    _, strategy = matrices(bands, rounds)
    pushed = [np.linalg.norm(strategy @ (np.arange(rounds) % groups == turn)) for turn in range(groups)]
    assert max(pushed) == pytest.approx(sensitivity(bands, groups, rounds), rel=1e-8)


def test_one_band_is_independent_noise():
    assert sensitivity(1, 1, 100) == pytest.approx(10)
    assert sensitivity(1, 4, 100) == pytest.approx(5)
    assert prefix_error(1, 1, 100) == pytest.approx(100 * 50.5)


@pytest.mark.parametrize(("bands", "groups", "rounds"), [(1, 1, 7), (3, 2, 10), (8, 4, 5)])
def test_the_error_is_that_of_all_prefix_sums_in_matrices(bands, groups, rounds):
    mixing, _ = matrices(bands, rounds)
    noise = np.tril(np.ones((rounds, rounds))) @ mixing
    expected = np.square(noise).sum(axis=1).mean() * sensitivity(bands, groups, rounds) ** 2
    assert prefix_error(bands, groups, rounds) == pytest.approx(expected)


@pytest.mark.parametrize("groups", [2, 4, 8, 16])
def test_where_people_take_turns_the_error_is_lower_at_equal_epsilon(groups):
    """Both are one Gaussian mechanism with noise multiplier 1: the same epsilon at every delta."""
    assert prefix_error(groups, groups, 100) < prefix_error(1, groups, 100)


def test_with_many_turns_it_is_several_times_lower():
    assert prefix_error(4, 4, 100) < prefix_error(1, 4, 100) / 2.5
    assert prefix_error(16, 16, 100) < prefix_error(1, 16, 100) / 5


@pytest.mark.parametrize("bands", [2, 4, 8, 32])
def test_with_all_subjects_in_every_round_it_does_not_help(bands):
    assert prefix_error(bands, 1, 100) > prefix_error(1, 1, 100)


@pytest.mark.parametrize("groups", [2, 4, 8])
def test_turns_with_correlated_noise_do_not_beat_all_subjects_in_every_round(groups):
    """A round of one group has 1 / groups of the people: errors are compared relative to what is added up."""
    assert min(prefix_error(bands, groups, 96) for bands in range(1, 17)) * groups**2 > prefix_error(1, 1, 96)
