"""Made tables and the options that read them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import pytest

from tacit.data import DataOptions, Federation, load
from tests.refusals import refuses

VISITS: dict[str, Any] = {
    "label": "ill",
    "subjects": {"column": "person"},
    "silos": {"column": "clinic"},
    "numeric": {"age": {"mean": 50, "scale": 10}, "pressure": {"mean": 130, "scale": 15}},
    "categorical": {"smoker": ["no", "yes"]},
}


@pytest.fixture
def read(visits: pd.DataFrame) -> Callable[..., Federation]:
    """Loads the made table of visits, changed by ``edit`` and with other ``[data]`` settings."""

    def loader(edit: Callable[[pd.DataFrame], pd.DataFrame] | None = None, **settings: Any) -> Federation:
        frame = visits if edit is None else edit(visits.copy())
        return load(DataOptions(**{**VISITS, **settings}), frame=frame)

    return loader


@pytest.fixture
def refusal(read: Callable[..., Federation]) -> Callable[..., None]:
    """The made table is refused with this code and field, and the error shows these names."""

    def refused(code: str, field: str, *args: Any, names: Sequence[str] = (), **settings: Any) -> None:
        with refuses(code, field, names=names):
            read(*args, **settings)

    return refused
