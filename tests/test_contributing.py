"""The code of the pages for contributors works as it stands: in a copy of the repository, with the generic tests."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tools import contributing

GENERIC = {
    "tests/methods/test_parts.py": "normalized-sgd and not refused",  # what is declared, exchanges, documented keys
    "tests/engine/test_not_finite.py": "normalized-sgd",
    "tests/audit/test_mechanism.py": "every_private_method or normalized-sgd and not twenty",  # cut noise is detected
    # simulator = federation
    "tests/engine/test_federation.py": "learns_the_model and (normalized-sgd or uldp-naive-clear)",
    "tests/neighbours/test_page.py": "harness_knows or is_checked",
    "tests/neighbours/test_neighbours.py": "worst and simulator and normalized-sgd and (plain or bounded)",
}
QUADRATIC = """
import tacit
from tests import made

experiment = made.experiment()
experiment["model"] = {"name": "quadratic"}
print(tacit.plan(experiment).parameters)
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("contributed")
    contributing.copied(folder)
    contributing.apply(contributing.pages(), folder)
    return folder


def python(folder, *words):
    environment = {**os.environ, "PYTHONPATH": f"{folder / 'src'}{os.pathsep}{folder}", "PYTEST_ADDOPTS": ""}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("file", GENERIC)
def test_a_method_and_an_exchange_of_the_page_pass_the_generic_tests(copy, file):
    done = python(
        copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "slow or not slow", file, "-k", GENERIC[file]
    )
    assert done.returncode == 0, done.stdout
    assert int(done.stdout.split(" passed")[0].split()[-1]) >= (1 if "not_finite" in file else 2)


def test_a_model_of_the_page_can_be_planned(copy):
    done = python(copy, "-c", QUADRATIC)
    assert int(done.stdout) > 2, done.stderr


def test_the_code_of_the_page_keeps_the_rules_of_the_source(copy):
    files = [path for kind, path, _ in contributing.blocks(contributing.pages()) if kind == "python"]
    assert len(files) == 4
    done = python(copy, "-m", "ruff", "check", *files)
    assert done.returncode == 0, done.stdout
    done = python(copy, "-m", "mypy")
    assert done.returncode == 0, done.stdout


def test_a_change_that_does_not_fit_its_file_is_an_error():
    assert contributing.changed("a\nb\n", " a\n-b\n+c\n") == "a\nc\n"
    for twice_or_never in (" c\n+d\n", "-a\n"):
        with pytest.raises(ValueError):  # noqa: PT011
            contributing.changed("a\nb\na\n", twice_or_never)
