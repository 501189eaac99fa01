"""The examples of docs/python.md run from top to bottom."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import sklearn

PAGE = Path(__file__).parents[1] / "docs" / "python.md"
OPTIONAL = ("torch", "mlflow")  # heavy extras: their examples are left out where they are not installed


def test_all_examples_of_the_python_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    examples = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(examples) >= 8
    names: dict = {}
    with sklearn.config_context():
        for example in examples:
            needed = [package for package in OPTIONAL if re.search(rf"import (?:tacit\.)?{package}\b", example)]
            if all(find_spec(package) for package in needed):
                exec(compile(example, PAGE.name, "exec"), names)
    assert (tmp_path / "model.onnx").is_file()
    assert names["model"].score(names["X"], names["ill"]) > 0.8


@pytest.mark.parametrize(
    "name", ["TacitClassifier", "TacitRegressor", "TacitSurvival", "coefficients", "to_onnx", "card"]
)
def test_the_python_page_shows_each_part(name):
    assert name in PAGE.read_text(encoding="utf-8")
