"""Names of what families add to the core, as ``module:name``. They are imported when they are used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

# commands of the program, in the order of its help
COMMANDS = ("tacit.families.survey.command:survey",)
# functions of the package ``tacit``
FUNCTIONS = {"survey": "tacit.families.survey.ask:survey"}


def load(name: str) -> Any:
    """The object that ``module:name`` stands for."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
