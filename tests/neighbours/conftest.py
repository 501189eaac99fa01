from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.compiled import forget_compiled, forget_if_too_much


@pytest.fixture(autouse=True)
def forgets_when_there_is_too_much() -> Iterator[None]:
    yield
    forget_if_too_much()


@pytest.fixture(autouse=True, scope="module")
def leaves_nothing_compiled() -> Iterator[None]:
    yield
    forget_compiled()
