"""Arguments that no guarantee, mechanism or kernel accepts.

The code and the field stay the same between versions; the sentence may change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

ARGUMENTS: Mapping[str, str] = {
    "missing": "A required argument is not given, or is empty.",
    "unknown-name": "A name is not one of the known names.",
    "unknown-key": "A stored event does not have exactly the fields of its kind.",
    "malformed": "A text does not have the expected form.",
    "wrong-length": "An argument has the wrong length or shape.",
    "out-of-range": "A number is outside of its range, or not finite.",
    "mismatch": "Two arguments contradict each other.",
    "not-supported": "No accountant or mechanism covers this combination.",
    "unreachable": "No amount of noise reaches the target.",
}


class InvalidArgument(ValueError):
    """An argument that is not accepted. ``field`` names it."""

    def __init__(self, code: str, field: str, problem: str) -> None:
        assert code in ARGUMENTS, f"{code} is not a code of arguments"
        super().__init__(code, field, problem)
        self.code, self.field, self.problem = code, field, problem

    def __str__(self) -> str:
        return f"{self.field}: {self.problem} [{self.code}]"


def require(code: str, field: str, holds: bool, problem: str) -> None:
    """InvalidArgument unless ``holds``."""
    if not holds:
        raise InvalidArgument(code, field, problem)


def not_negative(field: str, value: float) -> float:
    """``value``, if it is a number from 0 on, or infinity."""
    if math.isnan(value) or value < 0:
        raise InvalidArgument("out-of-range", field, f"{field} must be a number from 0 on, not {value}")
    return value
