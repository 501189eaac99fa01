"""What tests of the examples share."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def names_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """The names that the runner of an example defines."""

    def names_of(example: str) -> dict[str, Any]:
        monkeypatch.setattr(sys, "path", list(sys.path))
        return runpy.run_path(str(EXAMPLES / example / "run.py"))

    return names_of
