"""The chart libraries are the published ones."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ASSETS = ROOT / "src" / "tacit" / "report" / "assets"
LIBRARIES = json.loads((ASSETS / "vendored.json").read_text())
FILES = {name: file["sha256"] for library in LIBRARIES for name, file in library["files"].items()}


@pytest.mark.parametrize("name", FILES)
def test_a_vendored_file_is_the_listed_one(name):
    assert hashlib.sha256((ASSETS / name).read_bytes()).hexdigest() == FILES[name]


@pytest.mark.parametrize("library", LIBRARIES, ids=lambda library: library["package"])
def test_a_library_states_its_version_and_its_licence(library):
    assert f"v{library['version']}" in (ASSETS / library["script"]).read_text()[:200]
    licence = next(name for name in library["files"] if name.startswith("LICENSE"))
    assert "Permission is hereby granted, free of charge" in (ASSETS / licence).read_text()
    assert library["license"] == "MIT"


@pytest.mark.slow  # downloads the packages
def test_the_files_are_those_of_the_published_packages():
    assert shutil.which("npm"), "install npm to run this test"
    done = subprocess.run([sys.executable, "tools/vendored.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
