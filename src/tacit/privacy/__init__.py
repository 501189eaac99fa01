"""Guarantees: units, views, events and what they cost, the ledger, and the randomness of a run (docs/privacy.md).

This package imports no JAX, and of Tacit only ``notebook`` (HTML of a guarantee, which imports nothing), so that it can
be used, read and checked on its own. It finds the costs of two events of families by name. Accounting is imported on
first use.
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
from tacit.privacy.ledger import Ledger, LedgerError, spent
from tacit.privacy.randomness import Randomness, Stream
from tacit.privacy.terms import (
    RELATIONS,
    UNITS,
    AsPublished,
    Exposure,
    Guarantee,
    Index,
    Linkage,
    Noise,
    Relation,
    Reveals,
    Unit,
    View,
)

if TYPE_CHECKING:
    from tacit.privacy.accounting.account import account, attack_limits, calibrate_noise, calibrate_rounds
    from tacit.privacy.mechanisms.noisy_queries import CategoryCounts, Means, Metrics, Moments, Quantile
    from tacit.privacy.mechanisms.private_selection import Repetitions, repeat_and_select

__all__ = [
    "RELATIONS",
    "UNITS",
    "AsPublished",
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
    "calibrate_noise",
    "calibrate_rounds",
    "repeat_and_select",
    "spent",
]

_ON_FIRST_USE = {
    "accounting.account": ("account", "attack_limits", "calibrate_noise", "calibrate_rounds"),
    "mechanisms.noisy_queries": ("CategoryCounts", "Means", "Metrics", "Moments", "Quantile"),
    "mechanisms.private_selection": ("Repetitions", "repeat_and_select"),
}


def __getattr__(name: str) -> Any:
    """SciPy takes a second to import: commands that account for nothing do without it."""
    for module, names in _ON_FIRST_USE.items():
        if name in names:
            return getattr(import_module(f"tacit.privacy.{module}"), name)
    raise AttributeError(f"module 'tacit.privacy' has no attribute {name!r}")
