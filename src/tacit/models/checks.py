"""Checks of the numbers in ``[model]``, and their errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tacit.errors import UserError, nearest


def is_count(value: Any) -> bool:
    """Whether ``value`` is a whole number of at least 1 (``True`` is not)."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def count(key: str, value: Any) -> int:
    """``value`` if it is a whole number of at least 1."""
    if not is_count(value):
        problem = f"{value!r} is not a whole number of at least 1"
        raise UserError("out-of-range", f"model.{key}", problem, f"write {key} = 32, say")
    return int(value)


def counts(key: str, value: Any, length: int | None = None) -> tuple[int, ...]:
    """``value`` as a tuple of whole numbers of at least 1, ``length`` of them if that is given."""
    values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    if not values or not all(map(is_count, values)) or (length is not None and len(values) != length):
        wanted = "one or more" if length is None else str(length)
        example = ", ".join(["64"] if length is None else ["16"] * length)
        problem = f"{value!r} is not a list of {wanted} whole numbers of at least 1"
        raise UserError("out-of-range", f"model.{key}", problem, f"write {key} = [{example}], say")
    return tuple(int(v) for v in values)


def choice(key: str, value: Any, known: Sequence[str]) -> str:
    """``value`` if it is one of the known words."""
    if value not in known:
        raise UserError("unknown-name", f"model.{key}", f"unknown value {value!r}", nearest(str(value), known))
    return str(value)
