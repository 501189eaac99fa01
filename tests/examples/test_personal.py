"""The comparison of docs/personal.md: its plans are valid without data, and keep the epsilon that the page names."""

from __future__ import annotations

from typing import Any

import pytest

from tacit.methods import METHODS


@pytest.fixture
def study(names_of) -> dict[str, Any]:
    return names_of("personal")


@pytest.mark.parametrize("private", [False, True])
def test_every_personal_method_is_compared_with_and_without_privacy(study, private):
    contenders = study["contenders"](private)
    personal = {name for name, kind in METHODS.items() if (kind.info.personal and kind.info.private)}
    assert personal < {contender.label for contender in contenders}
    for contender in contenders:
        settings = {key: values[0] for key, values in contender.grid.items()}
        plan = study["planned"](study["DIGITS"], contender, settings, 0)
        (line,) = plan.guarantees()
        assert (line.unit, str(line.view), line.finite) == ("silo", "public", private)
        assert not private or 7.9 < line.epsilon <= 8.0
