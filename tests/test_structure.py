"""Measures of the structure that must hold in every commit (``tools/shape.py`` prints all of them)."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "shape.py"


@pytest.fixture(scope="module")
def shape() -> ModuleType:
    spec = importlib.util.spec_from_file_location("shape", TOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("kind", ["exchange", "work"])
def test_no_other_package_asks_for_a_concrete_class(shape, kind):
    assert shape.isinstance_lines(kind) == []


def test_engines_do_not_ask_for_concrete_exchanges_or_workers(shape):
    """Workers are classes of the engine: there, too, one table chooses them, and no line asks."""
    workers = {name for name in shape.concrete()["work"] if name.endswith("Work")}
    assert len(workers) >= 5
    files = [*(shape.SRC / "engine").rglob("*.py"), *(shape.SRC / "audit").rglob("*.py")]
    asked = [
        f"{file.name}: {line.strip()}"
        for file in files
        for line in file.read_text().splitlines()
        if "isinstance(" in line and any(name in line for name in workers)
    ]
    assert asked == []


def test_there_is_one_loop_over_rounds(shape):
    assert shape.run_loops() == 1


def test_a_field_of_an_exchange_does_not_hide_a_function():
    from tacit.exchange.plain import Plain

    with pytest.raises(TypeError) as caught:
        type("Rounded", (Plain,), {"__annotations__": {"step": float}, "step": 0.1})
    assert "step" in str(caught.value)
    assert type("Rounded", (Plain,), {"__annotations__": {"rounding": float}, "rounding": 0.1})
