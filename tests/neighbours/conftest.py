from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.neighbours.engines import forget_compiled


@pytest.fixture(autouse=True)
def forgets_what_was_compiled() -> Iterator[None]:
    yield
    forget_compiled()
