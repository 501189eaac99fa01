"""Methods and exchanges are found by name, and imported only when they are used."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tacit import names
from tacit.exchange import EXCHANGES, Exchange
from tacit.families.shuffle.protocol import ANALYZER
from tacit.methods import METHODS, Options
from tacit.names import BuiltIn
from tacit.transport import channels

PLAN = """
import sys
import tacit
from tacit.planning import preview as planner
from tacit.exchange import EXCHANGES
from tacit.methods import METHODS
found = {"method": {"name": sys.argv[1], "noise_multiplier": 2.0, "clip": 1.0}, "exchange": {"name": sys.argv[2]}}
planner.outlook(tacit.plan({"data": {"source": "randhie"}, **found}))
assert len(METHODS) > 30 and "pairwise" in EXCHANGES and "gossip-sgd" in METHODS
print(*sorted({name.split(".")[2] for name in sys.modules if name.startswith("tacit.families.")}))
"""


def imported(method: str, exchange: str) -> list[str]:
    """The families that a plan imports, in a process of its own."""
    done = subprocess.run([sys.executable, "-c", PLAN, method, exchange], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("name", names.METHODS)
def test_a_method_has_the_name_by_which_it_is_found(name):
    assert issubclass(METHODS[name], Options)
    assert METHODS[name].info.name == name


@pytest.mark.parametrize("name", names.EXCHANGES)
def test_an_exchange_has_the_name_by_which_it_is_found(name):
    assert issubclass(EXCHANGES[name], Exchange)
    assert EXCHANGES[name].name == name


def test_a_plan_of_the_core_imports_no_family():
    assert imported("dp-fedavg", "plain") == []


def test_a_plan_imports_the_family_that_it_uses_and_no_other():
    assert imported("dp-fedavg", "pairwise") == ["pairwise"]
    assert imported("fine-tune", "plain") == ["personal"]


def test_names_are_known_without_an_import_and_members_with_one():
    known = BuiltIn({"two": "fractions:Fraction", "missing": "no_such_module:Thing"})
    assert list(known) == ["two", "missing"]
    assert "missing" in known
    assert known["two"].__name__ == "Fraction"
    with pytest.raises(ModuleNotFoundError):
        known["missing"]


def test_the_analyzer_has_one_name_in_exchange_and_transport():
    assert ANALYZER == channels.ANALYZER


EXPORTS = """
import sys
import tacit
heavy = {"jax", "numpy", "pandas", "sklearn", "torch", "onnx", "mlflow"}
assert not heavy & {name.split(".")[0] for name in sys.modules}, heavy & set(sys.modules)
import tacit.auditing.bounds
found = {name: getattr(tacit, name) for name in tacit.__all__}
assert all(callable(member) for member in found.values()), found
assert isinstance(tacit.plan({"data": {"source": "randhie"}}), tacit.Plan)
"""


def test_the_package_imports_what_it_exports_on_first_use():
    done = subprocess.run([sys.executable, "-c", EXPORTS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
