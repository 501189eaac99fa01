"""Made tables and the options that read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest

from tacit.data import DataOptions, Federation, load
from tacit.errors import UserError

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
def refusal(read: Callable[..., Federation]) -> Callable[..., str]:
    """The one line with which the made table is refused."""

    def refused(*args: Any, **settings: Any) -> str:
        with pytest.raises(UserError) as caught:
            read(*args, **settings)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    return refused
