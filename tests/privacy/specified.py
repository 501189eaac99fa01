"""Events that the specification gives numbers for and that no method of Tacit has."""

from __future__ import annotations

import math

import numpy as np
from scipy.stats import hypergeom

from tacit.privacy.accounting.events import Event, Gaussian, GaussianMixture, PoissonSampled, Repeated


def gaussians(noise: float, rounds: int, rate: float = 1.0, factor: float = 1.0) -> Event:
    """``factor`` multiplies the Renyi divergence; ``rate`` is that of a secret coin."""
    return Repeated(PoissonSampled(rate, Gaussian(noise / math.sqrt(factor))), rounds)


def fixed_batches(population: int, batch: int, records: int, noise: float, batches: int) -> Event:
    """``batch`` of ``population`` records without replacement, averaged per subject: j records of the subject displace
    j others, (1 + j) C in all (specification 1.1)."""
    amounts = np.arange(records + 1)
    moved = np.where(amounts > 0, amounts + 1.0, 0.0)
    chances = hypergeom.pmf(amounts, population, records, batch)
    return Repeated(GaussianMixture(noise, tuple(moved.tolist()), tuple((chances / chances.sum()).tolist())), batches)
