"""Lower bounds on delta by direct integration of the exact pair, written independently of the accountants."""

from __future__ import annotations

import numpy as np
from scipy.stats import norm

from tacit.privacy.accounting.events import GaussianMixture


def densities(event: GaussianMixture, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Densities with and without the unit at ``points``."""
    present = np.zeros_like(points)
    for shift, weight in zip(event.sensitivities, event.probabilities, strict=True):
        present += weight * norm.pdf(points, loc=shift, scale=event.noise_multiplier)
    return present, norm.pdf(points, scale=event.noise_multiplier)


def one_step_delta(event: GaussianMixture, epsilon: float, points: int = 400_001) -> float:
    """max over both directions of the integral of (P - e^epsilon Q)+, by the trapezoidal rule."""
    reach = 12 * event.noise_multiplier
    x = np.linspace(-reach, max(event.sensitivities) + reach, points)
    p, q = densities(event, x)
    step = x[1] - x[0]
    growth = np.exp(epsilon)
    return float(max(np.maximum(p - growth * q, 0).sum(), np.maximum(q - growth * p, 0).sum()) * step)


def two_step_delta(one: GaussianMixture, two: GaussianMixture, epsilon: float, points: int = 1501) -> float:
    """The same for the product of two independent releases, in two dimensions."""
    grids, pairs, area = [], [], 1.0
    for event in (one, two):
        reach = 9 * event.noise_multiplier
        x = np.linspace(-reach, max(event.sensitivities) + reach, points)
        grids.append(x)
        pairs.append(densities(event, x))
        area *= x[1] - x[0]
    p = np.outer(pairs[0][0], pairs[1][0])
    q = np.outer(pairs[0][1], pairs[1][1])
    growth = np.exp(epsilon)
    return float(max(np.maximum(p - growth * q, 0).sum(), np.maximum(q - growth * p, 0).sum()) * area)
