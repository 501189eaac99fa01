"""Guarantees: units, views, events and what they cost, the ledger, and the randomness of a run.

    from tacit.privacy import Gaussian, PoissonSampled, Repeated, account, calibrate_noise

    training = Repeated(PoissonSampled(rate=0.01, event=Gaussian(noise_multiplier=1.0)), count=1000)
    account(training, delta=1e-5).epsilon                              # 1.83, proved
    calibrate_noise(lambda s: Repeated(PoissonSampled(0.01, Gaussian(s)), 1000), epsilon=1.0, delta=1e-5)

This package imports nothing else of Tacit and no JAX, so that it can be used, read and checked on its own. Accounting
is imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tacit.privacy.accounting.events import (
    Composed,
    DiscreteGaussian,
    Event,
    Failure,
    Gaussian,
    GaussianMixture,
    Laplace,
    Largest,
    Nothing,
    PoissonSampled,
    Pure,
    RandomizedResponse,
    RandomWalk,
    Repeated,
    SampledWithoutReplacement,
    Selected,
    ShuffledReports,
    Unprotected,
)
from tacit.privacy.exposure import Exposure, Noise
from tacit.privacy.guarantee import AsPublished, Guarantee, Linkage, unprotected
from tacit.privacy.ledger import Ledger, LedgerError, spent
from tacit.privacy.randomness import Randomness, Stream
from tacit.privacy.terms import RELATIONS, UNITS, Index, Relation, Reveals, Unit, View

if TYPE_CHECKING:
    from tacit.privacy.accounting.account import Bound, account, attack_limits, delta_of
    from tacit.privacy.accounting.calibrate import calibrate_cost, calibrate_noise, calibrate_rounds
    from tacit.privacy.mechanisms.noisy_queries import CategoryCounts, Means, Metrics, Moments, Quantile
    from tacit.privacy.mechanisms.private_selection import Repetitions, repeat_and_select

__all__ = [
    "RELATIONS",
    "UNITS",
    "AsPublished",
    "Bound",
    "CategoryCounts",
    "Composed",
    "DiscreteGaussian",
    "Event",
    "Exposure",
    "Failure",
    "Gaussian",
    "GaussianMixture",
    "Guarantee",
    "Index",
    "Laplace",
    "Largest",
    "Ledger",
    "LedgerError",
    "Linkage",
    "Means",
    "Metrics",
    "Moments",
    "Noise",
    "Nothing",
    "PoissonSampled",
    "Pure",
    "Quantile",
    "RandomWalk",
    "RandomizedResponse",
    "Randomness",
    "Relation",
    "Repeated",
    "Repetitions",
    "Reveals",
    "SampledWithoutReplacement",
    "Selected",
    "ShuffledReports",
    "Stream",
    "Unit",
    "Unprotected",
    "View",
    "account",
    "attack_limits",
    "calibrate_cost",
    "calibrate_noise",
    "calibrate_rounds",
    "delta_of",
    "repeat_and_select",
    "spent",
    "unprotected",
]

_ON_FIRST_USE = {
    "Bound": "accounting.account",
    "account": "accounting.account",
    "attack_limits": "accounting.account",
    "delta_of": "accounting.account",
    "calibrate_cost": "accounting.calibrate",
    "calibrate_noise": "accounting.calibrate",
    "calibrate_rounds": "accounting.calibrate",
    "CategoryCounts": "mechanisms.noisy_queries",
    "Means": "mechanisms.noisy_queries",
    "Metrics": "mechanisms.noisy_queries",
    "Moments": "mechanisms.noisy_queries",
    "Quantile": "mechanisms.noisy_queries",
    "Repetitions": "mechanisms.private_selection",
    "repeat_and_select": "mechanisms.private_selection",
}


def __getattr__(name: str) -> Any:
    """SciPy takes a second to import: commands that account for nothing do without it."""
    if name in _ON_FIRST_USE:
        return getattr(import_module(f"tacit.privacy.{_ON_FIRST_USE[name]}"), name)
    raise AttributeError(f"module 'tacit.privacy' has no attribute {name!r}")
