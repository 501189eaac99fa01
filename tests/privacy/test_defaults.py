"""Defaults look at nothing but public numbers, and are numbers that the library accepts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from research.default_settings import (
    default_adaptive_clip,
    default_delta,
    default_grid,
    default_rate,
    default_repetitions,
)
from tacit.privacy import Gaussian, PoissonSampled, account
from tacit.privacy.invalid import InvalidArgument
from tests.refusals import refuses


@pytest.mark.parametrize("units", [1, 10, 1000, 10**7])
def test_defaults_for_any_number_of_units(units: int) -> None:
    rate, delta = default_rate(units), default_delta(units)
    assert 0 < rate <= 1
    assert rate * units >= min(units, 64)
    assert 0 < delta <= min(1e-5, 0.1 / units)
    assert default_adaptive_clip(units, rate)["count_noise"] >= 1
    assert math.isfinite(account(PoissonSampled(rate, Gaussian(1.0)), delta).epsilon)
    with refuses("out-of-range", "count", InvalidArgument):
        default_rate(0)


def test_selecting_from_the_grid_misses_its_best_third_as_rarely_as_said() -> None:
    settings = default_grid()
    assert len({tuple(setting.values()) for setting in settings}) == len(settings) == 9
    counts = np.arange(5000)
    missed = default_repetitions(9).probabilities(counts) @ (2 / 3) ** counts
    assert missed == pytest.approx(2 / 11)
