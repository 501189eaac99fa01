"""What tests of whole runs share."""

from __future__ import annotations

from typing import Any

import pytest

import tacit
from tacit.engine import Run
from tacit.engine import run as train
from tests.short_keys import short_keys


@pytest.fixture(autouse=True)
def allows_short_keys():
    with short_keys():
        yield


@pytest.fixture
def go(tmp_path, visits):
    """Train an experiment without its page, some of its privacy settings replaced, in a folder of that name."""

    def go(experiment: dict, name: str = "run", *, resume: bool = False, **privacy: Any) -> Run:
        changed = {**experiment, "privacy": {**experiment["privacy"], **privacy}}
        where = {"resume" if resume else "out": tmp_path / name}
        return train(tacit.plan(changed, folder=tmp_path), frame=visits, **where)

    return go
