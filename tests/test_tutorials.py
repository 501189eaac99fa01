"""The tutorials run as they are written: files are made, then commands run, in the order of the page."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import pytest

import tacit

FOLDER = Path(__file__).parents[1] / "docs" / "tutorials"
HOW_TO = FOLDER.parent / "how-to"
BLOCK = re.compile(r"^( *)```(sh|python|toml)\n(?: *# (\S+\.\w+)\n)?(.*?)^\1```$", re.M | re.S)


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """Kind, name of the file and text of each block of a page; blocks of tabs are indented."""
    found = BLOCK.findall(page.read_text(encoding="utf-8"))
    return [(kind, name, textwrap.dedent(text)) for _, kind, name, text in found]


def sh(text: str, folder: Path, **variables: str) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    command = ["bash", "-euo", "pipefail", "-c", text]
    # not through pipes: parties in the background would keep them open
    with (folder / "output.txt").open("w+") as output:
        environment = os.environ | {"PATH": path} | variables
        done = subprocess.run(command, cwd=folder, env=environment, stdout=output, stderr=output)
    assert done.returncode == 0, text + (folder / "output.txt").read_text(encoding="utf-8")


def write(page: Path, folder: Path) -> None:
    for kind, name, text in blocks(page):
        if kind != "sh":
            assert name, f"a {kind} block of {page.name} has no name of a file"
            (folder / name).write_text(text, encoding="utf-8")


def follow(page: str | Path, folder: Path) -> int:
    """Do what a page says in ``folder``: a block that starts with the name of a file is that file."""
    write(FOLDER / page, folder)
    commands = [text for kind, _, text in blocks(FOLDER / page) if kind == "sh"]
    for text in commands:
        sh(text, folder)
    return len(commands)


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


def test_a_federation(tmp_path):
    try:
        assert follow("federation.md", tmp_path) == 6
        run = tacit.Run.load(tmp_path / "joint")
        assert 0 < max(guarantee["epsilon"] for guarantee in run.result["guarantees"]) <= 5
        assert run.result["rounds"] == 5
    finally:
        for process in tmp_path.glob("readmission-kits/**/process.pid"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(process.read_text()), signal.SIGTERM)


@pytest.fixture
def stays(tmp_path):
    write(FOLDER / "first-model.md", tmp_path)
    sh("python make_stays.py", tmp_path)
    return tmp_path


def test_the_tacit_side_of_each_migration(stays):
    assert follow(HOW_TO / "migrate.md", stays) == 3
    for name, least in {"as-opacus": 0.75, "as-flower": 0.7, "as-nvflare": 0.7}.items():
        run = tacit.Run.load(stays / name)
        assert run.metrics["auc"] > least
        assert run.result["guarantees"][0]["epsilon"] <= 4
    # the noise multiplier that Opacus 1.6.0 finds for the same rate, steps and target
    noise = tacit.Run.load(stays / "as-opacus").result["noise_multiplier"]
    assert noise == pytest.approx(0.941162, rel=5e-3)


@pytest.mark.skipif(find_spec("torchax") is None, reason="torchax is not installed")
def test_a_model_of_pytorch(tmp_path):
    assert follow(HOW_TO / "bring-a-model.md", tmp_path) == 2
    assert tacit.Run.load(tmp_path / "own").metrics["auc"] > 0.6


@pytest.mark.parametrize("name", ["flax", "equinox", "keras", "jax"])
def test_a_model_of_another_framework(name, tmp_path, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    pytest.importorskip(name)
    write(HOW_TO / "bring-a-model.md", tmp_path)
    plan = tacit.plan(tmp_path / "model.toml", [f"model.name={name}_net:factory"])
    assert tacit.run(plan, out=tmp_path / "own").metrics["auc"] > 0.6


@pytest.mark.parametrize("page", sorted(file.name for file in FOLDER.glob("*.md")))
def test_every_tutorial_is_run_by_a_test_of_this_file(page):
    assert f'follow("{page}"' in Path(__file__).read_text(encoding="utf-8")
