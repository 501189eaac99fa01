"""Tacit: differentially private federated learning for data about people.

    import tacit

    plan = tacit.plan("experiment.toml")      # or a dictionary of the same shape
    plan.guarantees()                         # what would be promised: no data is read
    run = tacit.run(plan, frame=table)        # pandas in
    run.predict(new_rows)                     # pandas out
    tacit.compare([run, other])

The commands of the same names do the same things; see ``tacit --help``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tacit import family_names

if TYPE_CHECKING:
    from tacit.api import Run, compare, plan, run
    from tacit.errors import Forbidden, TacitError, UserError
    from tacit.families.survey.ask import survey

__all__ = ["Forbidden", "Run", "TacitError", "UserError", "compare", "plan", "run", "survey"]


def __getattr__(name: str) -> Any:
    """Import on first use: ``import tacit`` stays quick, and ``tacit.privacy`` can be used without JAX."""
    if name in ("Forbidden", "TacitError", "UserError"):
        from tacit import errors

        return getattr(errors, name)
    if name in family_names.FUNCTIONS:
        return family_names.load(family_names.FUNCTIONS[name])
    if name in __all__:
        from tacit import api

        return getattr(api, name)
    raise AttributeError(f"module 'tacit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
