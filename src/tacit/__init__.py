"""Tacit: differentially private federated learning for data about people.

    import tacit

    plan = tacit.plan("experiment.toml")      # or a dictionary of the same shape
    plan.guarantees()                         # what would be promised: no data is read
    run = tacit.run(plan, frame=table)        # pandas in
    run.predict(new_rows)                     # pandas out
    tacit.compare([run, other])
    tacit.audit(plan, frame=table)            # attack it: lower bounds on epsilon
    tacit.study("study.toml").frame()         # methods over epsilons, seeds and settings

The commands of the same names do the same things; see ``tacit --help``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.api import Plan, Run, audit, compare, plan, run
    from tacit.errors import Forbidden, TacitError, UserError
    from tacit.estimators import TacitClassifier, TacitRegressor, TacitSurvival
    from tacit.families.survey.ask import survey
    from tacit.studies.study import study

__all__ = [
    "Forbidden",
    "Plan",
    "Run",
    "TacitClassifier",
    "TacitError",
    "TacitRegressor",
    "TacitSurvival",
    "UserError",
    "audit",
    "compare",
    "plan",
    "run",
    "study",
    "survey",
]


def __getattr__(name: str) -> Any:
    """Import on first use: ``import tacit`` stays quick, and ``tacit.privacy`` can be used without JAX."""
    if name not in __all__:
        raise AttributeError(f"module 'tacit' has no attribute {name!r}")
    from tacit.names import FUNCTIONS, load

    return load(FUNCTIONS.get(name, f"tacit.api:{name}"))


def __dir__() -> list[str]:
    return sorted(__all__)
