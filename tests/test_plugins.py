"""Models and data sources of installed packages are found through entry points and work like built-in ones."""

from __future__ import annotations

import importlib
import json
import sys
import tomllib
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from safetensors.numpy import load_file

import tacit
from tacit.data import SOURCES
from tacit.data.sources import find_source
from tacit.federation.request import received
from tacit.models import MODELS, build
from tacit.names import plugin_names
from tests.refusals import refuses

MODEL = """
import jax.numpy as jnp
from tacit.models import Model, ModelKind

def init(key, size, outputs):
    return {"map": {"w": jnp.zeros((size, outputs))}}

def doubled(input_shape, outputs, factor=2.0):
    size = input_shape[0]
    return Model("doubled", lambda key: init(key, size, outputs), lambda p, x: factor * x @ p["map"]["w"])

def broken(input_shape, outputs):
    return Model("broken", lambda key: init(key, input_shape[0], 7), lambda p, x: x @ p["map"]["w"])

DOUBLED = ModelKind(doubled, ("binary",))
BROKEN = ModelKind(broken, ("binary",))
SOMETHING = 7
"""

METHOD = """
from dataclasses import dataclass, replace
from tacit.methods.averaging import FedAvg

@dataclass(frozen=True)
class Halved(FedAvg):
    info = replace(FedAvg.info, name="halved")
    factor: float = 0.5
"""

EXCHANGE = """
from dataclasses import dataclass
from tacit.exchange import Masked
from tacit.planning.settings import Count

@dataclass(frozen=True)
class Veiled(Masked):
    name = "veiled"
    layers: Count = 1
"""

SOURCE = """
from dataclasses import replace
from tacit.data import SOURCES
CLINIC = replace(SOURCES["randhie"], name="clinic")
"""

ENTRY_POINTS = """
[tacit.models]
doubled = added.models:DOUBLED
broken = added.models:BROKEN
something = added.models:SOMETHING
absent = added.models:ABSENT
logistic = added.models:BROKEN

[tacit.sources]
clinic = added.sources:CLINIC

[tacit.methods]
halved = added.methods:Halved

[tacit.exchanges]
veiled = added.exchanges:Veiled
"""


def install(folder: Path, package: str, entry_points: str, **modules: str) -> None:
    """What pip leaves behind: the package, and its metadata."""
    (folder / package).mkdir(parents=True)
    for name, text in {"__init__": "", **modules}.items():
        (folder / package / f"{name}.py").write_text(text, encoding="utf-8")
    metadata = folder / f"{package}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n", encoding="utf-8")
    (metadata / "entry_points.txt").write_text(entry_points, encoding="utf-8")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    install(tmp_path, "added", ENTRY_POINTS, models=MODEL, sources=SOURCE, methods=METHOD, exchanges=EXCHANGE)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    for name in [name for name in sys.modules if name.partition(".")[0] == "added"]:
        monkeypatch.delitem(sys.modules, name)
    return tmp_path


def test_names_are_listed_without_importing_the_package(installed: Path) -> None:
    assert "doubled" in plugin_names("tacit.models")
    assert plugin_names("tacit.sources") == ["clinic"]
    assert "added" not in sys.modules


def test_a_model_of_another_package_is_built_with_its_own_keys(installed: Path) -> None:
    model = build("doubled", (3,), 1, factor=4.0)
    params = {"map": {"w": jnp.ones((3, 1))}}
    assert model.apply(params, jnp.ones((2, 3))).tolist() == [[12.0], [12.0]]
    with refuses("unknown-key", "model.facto"):
        build("doubled", (3,), 1, facto=4.0)


def experiment(source: str, model: str) -> dict[str, Any]:
    return {
        "data": {"source": source},
        "model": {"name": model},
        "method": {"name": "uldp-avg", "clip": 1.0, "noise_multiplier": 5.0},
        "train": {"rounds": 2},
        "privacy": {"max_records_per_subject_and_silo": 5, "max_silos_per_subject": 1},
        "exchange": {"name": "masked"},
    }


def test_a_run_uses_model_and_source_of_another_package(installed: Path, tmp_path: Path) -> None:
    planned = tacit.plan(experiment("clinic", "doubled"))
    run = tacit.run(planned, out=tmp_path / "run")
    assert planned.guarantees() == tacit.plan(experiment("randhie", "logistic")).guarantees()
    assert "map/w" in " ".join(load_file(run.path / "model.safetensors")).replace(".", "/")


@pytest.mark.parametrize(
    ("source", "model", "field"), [("randhie", "doubled", "model.name"), ("clinic", "logistic", "data.source")]
)
def test_a_federation_runs_built_in_parts_only(installed: Path, source: str, model: str, field: str) -> None:
    with refuses("simulator-only", field):
        received(json.dumps(experiment(source, model)))
    assert "added" not in sys.modules


def test_a_method_of_another_package_is_planned_with_its_own_keys(installed: Path) -> None:
    made = {"data": {"source": "randhie"}, "method": {"name": "halved", "factor": 0.25}}
    assert tacit.plan(made).options.factor == 0.25  # type: ignore[attr-defined]
    with refuses("unknown-key", "method.facto"):
        tacit.plan({**made, "method": {"name": "halved", "facto": 1.0}})
    with refuses("unknown-name", "method.name"):
        tacit.plan({**made, "method": {"name": "halves"}})


def test_a_federation_runs_built_in_methods_only(installed: Path) -> None:
    halved = {**experiment("randhie", "logistic"), "method": {"name": "halved"}}
    with refuses("simulator-only", "method.name"):
        received(json.dumps(halved))
    assert "added" not in sys.modules


def test_an_exchange_of_another_package_carries_a_run_of_the_simulator_only(installed: Path, tmp_path: Path) -> None:
    veiled = {**experiment("randhie", "logistic"), "exchange": {"name": "veiled", "drop_outs": 1}}
    masked = {**veiled, "exchange": {"name": "masked", "drop_outs": 1}}
    with refuses("simulator-only", "exchange.name"):
        received(json.dumps(veiled))
    assert "added" not in sys.modules
    assert tacit.plan(veiled).guarantees() == tacit.plan(masked).guarantees()
    assert (tacit.run(tacit.plan(veiled), out=tmp_path / "run").path / "model.safetensors").is_file()
    with refuses("unknown-name", "exchange.name"):
        tacit.plan({**veiled, "exchange": {"name": "veil"}})
    layered = {**veiled, "exchange": {"name": "veiled", "layers": 2}}
    assert tacit.plan(tomllib.loads(tacit.plan(layered).to_toml())).exchange.layers == 2  # type: ignore[attr-defined]
    for key, value, code in (("layers", 0, "out-of-range"), ("layers", "2", "wrong-type"), ("layer", 2, "unknown-key")):
        with refuses(code, f"exchange.{key}"):
            tacit.plan({**veiled, "exchange": {"name": "veiled", key: value}})
    with refuses("not-supported", "method.weights"):  # another party would learn counts without being asked for it
        tacit.plan({**veiled, "method": {**veiled["method"], "weights": "records"}})


def test_a_built_in_name_is_never_replaced(installed: Path) -> None:
    assert build("logistic", (3,), 1).name == MODELS["logistic"].factory((3,), 1).name


@pytest.mark.parametrize(
    ("name", "code"),
    [("absent", "invalid-plugin"), ("something", "invalid-plugin"), ("broken", "invalid-model")],
)
def test_a_package_that_gives_no_model_is_named_in_the_error(installed: Path, name: str, code: str) -> None:
    with refuses(code, "model.name"):
        build(name, (3,), 1)


def test_two_packages_with_one_name_are_refused(installed: Path) -> None:
    install(installed, "other", "[tacit.sources]\nclinic = other:CLINIC\n")
    with refuses("duplicate", "data.source"):
        find_source("clinic")


def test_an_unknown_name_is_refused_with_and_without_plugins(installed: Path) -> None:
    with refuses("unknown-name", "data.source"):
        find_source("clinics")
    with refuses("unknown-name", "model.name"):
        build("double", (3,), 1)
    assert set(SOURCES) == {name for name in SOURCES if find_source(name) is SOURCES[name]}
