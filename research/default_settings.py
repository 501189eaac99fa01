"""Settings to begin with that look at no record, and a small grid to select from.

Every number here is a function of public facts alone (how many units there are), so using it costs nothing. A clip or a
rate that was found by trying on the private records is not free: select it with ``private_selection`` or with a
``Quantile`` of norms.

clip        1 for every object that is clipped. Below the typical norm a smaller clip only scales the update, noise
            included, and the learning rate takes the scale up again; so a fixed clip with a tuned learning rate loses
            little (De, Berrada, Hayes, Smith, Balle 2022; Ponomareva et al. 2023). With standardised features
            gradients and updates of the models here are of the order of 1.
rate        an expected batch of sqrt(units) (the lot size of Abadi et al. 2016), at least 64: for a fixed number of
            rounds the noise per unit falls with the batch, so more is better where time allows (De et al. 2022).
delta       1 / (10 units), at most 1e-5: well below the chance of naming one unit at random.
adaptive    the median, rate 0.2, count noise of a twentieth of the expected batch (Andrew, Thakkar, McMahan,
            Ramaswamy 2021): the clip then finds itself, for an event of its own.
grid        three clips times three learning rates, by factors of about 3.
runs        as many runs on average as there are settings, three at least, geometric. Of m settings a given one is then
            missed with probability about 1/2, and the best third of them with probability 2 / (m + 2).
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np

from tacit.privacy.invalid import InvalidArgument
from tacit.privacy.mechanisms.private_selection import Repetitions
from tacit.privacy.proofs.correlated_noise import noise_weights, sensitivity

CLIP = 1.0
CLIPS = (0.3, 1.0, 3.0)
LEARNING_RATES = (0.1, 0.3, 1.0)
SMALLEST_BATCH = 64


def default_rate(units: int) -> float:
    """Public sampling rate of records, subjects or silos for a public number of them."""
    _check(units)
    return min(1.0, max(SMALLEST_BATCH, math.sqrt(units)) / units)


def default_delta(units: int) -> float:
    """delta for a public number of units."""
    _check(units)
    return min(1e-5, 0.1 / units)


def default_adaptive_clip(units: int, rate: float) -> dict[str, float]:
    """``adaptive_clip`` for a public number of units of which a share ``rate`` takes part in a round."""
    _check(units)
    return {"quantile": 0.5, "rate": 0.2, "count_noise": max(1.0, rate * units / 20)}


def default_grid() -> list[dict[str, float]]:
    """Settings to select from."""
    return [{"clip": clip, "learning_rate": rate} for clip, rate in product(CLIPS, LEARNING_RATES)]


def default_repetitions(settings: int) -> Repetitions:
    """How often to run when selecting from ``settings`` settings."""
    _check(settings)
    return Repetitions(mean=float(max(3, settings)))


def prefix_error(bands: int, groups: int, rounds: int) -> float:
    """The mean over t of the variance of the noise in x_1 + … + x_t, where the whole training is a Gaussian mechanism
    with noise multiplier 1: what a choice of bands of correlated noise is judged by."""
    sums = np.cumsum(np.pad(noise_weights(bands), (0, max(0, rounds - bands)))[:rounds])
    variances = np.cumsum(np.square(sums))  # of x_1 + … + x_t: the last t partial sums of the weights
    return float(variances.mean()) * sensitivity(bands, groups, rounds) ** 2


def _check(count: int) -> None:
    if count < 1:
        raise InvalidArgument("out-of-range", "count", f"a public number of at least 1 is needed, not {count}")
