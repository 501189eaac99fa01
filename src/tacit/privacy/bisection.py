"""Bisection: where a condition that changes once begins to hold. The one search of its kind in Tacit.

The end that is returned has been evaluated itself, so that rounding of a search never puts an answer on the wrong side.
"""

from __future__ import annotations

import math
from collections.abc import Callable


def bisect(
    holds: Callable[[float], bool],
    low: float,
    high: float,
    *,
    relative: float = 0.0,
    absolute: float = 0.0,
    steps: int = 2000,
    geometric: bool = False,
) -> tuple[float, float]:
    """``(low, high)`` around the point from which on ``holds``, which is false at ``low`` and true at ``high``.

    It ends after ``steps`` halvings, or when the ends differ by at most ``relative`` times ``high`` or by ``absolute``.
    ``geometric`` halves the logarithm, for positive ends of different magnitudes.
    """
    for _ in range(steps):
        if high - low <= max(relative * high, absolute):
            break
        middle = math.sqrt(low * high) if geometric else (low + high) / 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return low, high


def doubled(holds: Callable[[float], bool], high: float, most: float, low: float = 0.0) -> tuple[float, float] | None:
    """Ends for :func:`bisect`: ``high`` is doubled until it ``holds``. None where it does not hold up to ``most``."""
    while not holds(high):
        low, high = high, 2 * high
        if high > most:
            return None
    return low, high


def smallest_integer(holds: Callable[[int], bool], low: int, high: int) -> int:
    """The smallest integer from ``low`` to ``high`` for which ``holds``; it is taken to hold for ``high``.

    Trials are near ``low`` first where ``high`` is much larger: a trial often costs more the larger it is.
    """
    low -= 1  # from here on: does not hold at low, holds at high
    while high - low > 1:
        near = max(low, 1)
        middle = math.isqrt(near * high) if high > 4 * near else (low + high) // 2
        middle = min(max(middle, low + 1), high - 1)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
