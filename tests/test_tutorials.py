"""The tutorials run as they are written: files are made, then commands run, in the order of the page."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tacit

FOLDER = Path(__file__).parents[1] / "docs" / "tutorials"
BLOCK = re.compile(r"^```(sh|python|toml)\n(?:# (\S+\.\w+)\n)?(.*?)^```$", re.M | re.S)


def follow(page: str, folder: Path) -> int:
    """Do what a page says in ``folder``: a block that starts with the name of a file is that file."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = 0
    for kind, name, text in BLOCK.findall((FOLDER / page).read_text(encoding="utf-8")):
        if kind != "sh":
            assert name, f"a {kind} block of {page} has no name of a file"
            (folder / name).write_text(text, encoding="utf-8")
            continue
        command = ["bash", "-euo", "pipefail", "-c", text]
        done = subprocess.run(command, cwd=folder, env=os.environ | {"PATH": path}, capture_output=True, text=True)
        assert done.returncode == 0, f"{text}{done.stdout}{done.stderr}"
        ran += 1
    return ran


def test_a_first_model(tmp_path):
    assert follow("first-model.md", tmp_path) == 5
    run = tacit.Run.load(tmp_path / "first")
    assert 0 < max(guarantee["epsilon"] for guarantee in run.result["guarantees"]) <= 4
    assert run.metrics["auc"] > 0.65
    assert (tmp_path / "first" / "share").is_dir()


def test_an_audit(tmp_path):
    assert follow("audit.md", tmp_path) == 1
    found = json.loads((tmp_path / "attacked" / "audit.json").read_text())
    assert found["refuted"] is False
    assert found["guarantees"]
    assert (tmp_path / "attacked" / "audit.html").is_file()


@pytest.mark.parametrize("page", sorted(file.name for file in FOLDER.glob("*.md")))
def test_every_tutorial_is_run_by_a_test_of_this_file(page):
    assert f'follow("{page}"' in Path(__file__).read_text(encoding="utf-8")
