"""The one bisection: it finds the smallest value that holds, and never returns the other side of it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.privacy.accounting.gaussian import bisect, doubled, smallest_integer


@given(st.floats(1e-3, 1e3), st.booleans())
def test_the_ends_enclose_the_point_from_which_on_it_holds(point: float, geometric: bool) -> None:
    low, high = bisect(lambda x: x >= point, 1e-4, 1e4, relative=1e-9, geometric=geometric)
    assert low < point <= high
    assert high - low <= 1e-9 * high


@pytest.mark.parametrize(("options", "trials"), [({"steps": 7}, 7), ({"absolute": 1.0}, 3), ({"absolute": 8.0}, 0)])
def test_bisection_ends_by_steps_or_by_tolerance(options: dict[str, float], trials: int) -> None:
    asked: list[float] = []
    bisect(lambda x: bool(asked.append(x)) or x > 3.3, 0.0, 8.0, **options)  # type: ignore[arg-type]
    assert len(asked) == trials


def test_ends_are_doubled_until_it_holds_or_the_limit_is_passed() -> None:
    assert doubled(lambda x: x >= 20, 1.0, 1e3) == (16.0, 32.0)
    assert doubled(lambda x: x >= 0.5, 1.0, 1e3, low=0.1) == (0.1, 1.0)
    assert doubled(lambda x: math.isinf(x), 1.0, 1e3) is None


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_the_smallest_integer_is_found_among_all_of_them(one: int, other: int) -> None:
    found, most = sorted((one, other))
    assert smallest_integer(lambda n: n >= found, 0, most) == found


@given(st.integers(0, 60), st.integers(0, 60))
def test_the_upper_end_is_taken_for_granted_and_not_asked(low: int, length: int) -> None:
    asked: set[int] = set()
    assert smallest_integer(lambda n: bool(asked.add(n)), low, low + length) == low + length
    assert asked <= set(range(low, low + length))
