"""Which models of others a party accepts, decided before any of their code is imported."""

from __future__ import annotations

import sys

import pytest

from tacit.federation.request import received, travelling
from tacit.federation.site.limits import check_counts, megabytes
from tacit.federation.site.models import Models, accepted, fingerprint
from tacit.federation.site.policy import Policy
from tacit.models.operations import ArrayForm, shape_of
from tacit.planning.experiment import read_experiment
from tacit.planning.plan import plan
from tests.models.fuzz_packed import seeds
from tests.refusals import refuses

from . import worlds
from .distributions import installed

FACTORY = "ward_models.nets:residual"
PACKED = seeds()[0]


@pytest.fixture
def site(tmp_path, monkeypatch):
    installed(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("ward_models", "ward_models.nets"):
        sys.modules.pop(name, None)


def listed(sha256):
    return Models.model_validate({"installed": [{"name": "ward-models", "sha256": sha256, "factories": [FACTORY]}]})


def policy(**models):
    base = {"delta": 1e-5, "least_records": 1, "requesters": ["a"], **worlds.POLICY}
    return Policy.model_validate({**base, **models})


def test_by_default_only_built_in_models_are_accepted(site):
    models = accepted(policy().models)
    assert models.problem("mlp", b"") is None
    assert models.problem("packed", PACKED)
    assert models.problem(FACTORY, b"")


def test_a_packed_model_within_the_limits_of_the_policy_is_accepted():
    assert accepted(policy(models="packed").models).problem("packed", PACKED) is None
    for limit in ("most_bytes", "most_operations", "most_memory"):
        assert limit.removeprefix("most_") in str(Models(packed={limit: 10}).problem("packed", PACKED))
    assert Models(packed={}).problem("packed", PACKED[:-1])


def test_a_distribution_with_the_hash_of_the_policy_is_accepted_unread(site):
    assert listed(fingerprint("ward-models")).problem(FACTORY, b"") is None
    assert "ward_models" not in sys.modules


@pytest.mark.parametrize("change", ["edited", "added"])
def test_a_distribution_whose_files_changed_is_refused(site, change):
    models = listed(fingerprint("ward-models"))
    file = site / "ward_models" / ("nets.py" if change == "edited" else "more.py")
    file.write_text("import os\n")
    assert "[changed]" in str(models.problem(FACTORY, b""))
    assert "ward_models" not in sys.modules


OTHERS = ["os:system", "/tmp/ward_models.nets:residual", "ward_models.other:f", "ward_models.nets:init", "a..b:c", ":"]


@pytest.mark.parametrize("name", OTHERS)
def test_a_factory_outside_the_listed_distributions_is_refused(site, name):
    assert "[unknown-name]" in str(listed(fingerprint("ward-models")).problem(name, b""))


def test_a_distribution_that_another_module_hides_is_refused(site, tmp_path_factory, monkeypatch):
    models, other = listed(fingerprint("ward-models")), tmp_path_factory.mktemp("other")
    (other / "ward_models.py").write_text("")
    monkeypatch.syspath_prepend(str(other))
    assert "[unknown-name]" in str(models.problem(FACTORY, b""))


def test_a_distribution_that_is_not_installed_has_no_fingerprint():
    with refuses("not-installed", "models.installed"):
        fingerprint("no-such-distribution")


def test_a_request_with_another_packed_model_than_it_names_is_refused(tmp_path):
    from tacit.models import build
    from tacit.models.packing import pack

    content = worlds.experiment()
    shape = plan(content).parameters - 1
    file = tmp_path / "model.tacit"
    file.write_bytes(pack(build("logistic", (shape,), 1), (shape,), 1).content)
    planned = plan({**content, "model": {"name": "packed", "path": str(file)}})
    text = travelling(planned)
    assert str(file) not in text
    assert received(text, 3, file.read_bytes()).parameters == planned.parameters
    with refuses("mismatch", "model.sha256"):
        received(text, 3, PACKED)
    with refuses("wrong-file", "model.path"):
        received(text, 3)


def large(name, numbers, columns):
    """The plan of a built-in model for this many columns."""
    content = worlds.experiment(model={"name": name, **numbers})
    content["data"]["categorical"] = {"q": [f"c{k}" for k in range(columns)]}
    return plan(content)


def test_values_of_a_model_are_counted_into_the_memory_of_a_run():
    small, big = (large("transformer", {"heads": 8}, columns) for columns in (10, 1000))
    assert megabytes(small) < 1000
    assert megabytes(big) > 8 * 4 * 1000**2 * 256 / 1e6  # the attention of each head


@pytest.mark.parametrize("key", ["layers", "blocks"])
def test_layers_of_a_request_have_a_bound(key):
    name = {"layers": "transformer", "blocks": "resnet"}[key]
    with refuses("too-many", f"model.{key}"):
        check_counts(read_experiment(worlds.experiment(model={"name": name, key: 101})))


HIDDEN = {
    "window_max": ["window_max", [0], {"size": [2], "stride": [1 << 24], "padding": [[1 << 25, 0]]}],
    "pad": ["pad", [0, 1], {"low": [0], "high": [-(1 << 25)], "between": [1 << 25]}],
}


@pytest.mark.parametrize("name", HIDDEN)
def test_what_padding_needs_is_counted(name):
    _, inputs, numbers = HIDDEN[name]
    forms = [ArrayForm("float32", (4,)), ArrayForm("float32", ())]
    assert shape_of(name, [forms[k] for k in inputs], numbers)[1] > 1 << 25
