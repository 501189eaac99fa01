"""Which models of others a party accepts, decided before any of their code is imported."""

from __future__ import annotations

import sys

import pytest

from tacit.federation.request import received, travelling
from tacit.federation.site.models import Models, accepted, fingerprint
from tacit.federation.site.policy import Policy
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
    return Models.model_validate({"installed": [{"name": "ward-models", "sha256": sha256}]})


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


@pytest.mark.parametrize("name", ["os:system", "/tmp/ward_models.nets:residual", "ward_models.other:f", "a..b:c", ":"])
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
