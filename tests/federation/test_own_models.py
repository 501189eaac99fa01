"""Models of one's own on a federation of real processes: packed, and installed in every party."""

from __future__ import annotations

import numpy as np
import pytest
import tomli_w

pytest.importorskip("nvflare")

from safetensors.numpy import load_file

from tacit.engine.learner import _named_leaves
from tacit.federation.demo import Trial
from tacit.federation.site.models import FILE, fingerprint
from tacit.models.packing import pack
from tacit.planning.plan import model_and_form, plan
from tests.refusals import refuses

from . import worlds
from .distributions import installed

PACKED = {"packed": {"most_bytes": 100_000, "most_operations": 100_000, "most_memory": 100_000}}


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    file = tmp_path_factory.mktemp("packed") / "model.tacit"
    content = worlds.experiment(model={"name": "examples.own_model.residual:residual", "units": 8})
    file.write_bytes(pack(*model_and_form(plan(content)), seed=3).content)
    return file


def agrees(trial, content, name):
    run = worlds.finished(trial, content, name)
    learned = load_file(run.path / "model.safetensors")
    expected = dict(_named_leaves(worlds.simulated(trial, content)))
    assert set(learned) == set(expected)
    for leaf, values in expected.items():
        np.testing.assert_allclose(learned[leaf], np.asarray(values), rtol=0, atol=1e-6)
    assert max(np.abs(values).max() for values in learned.values()) > 1e-3
    return run


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    place = tmp_path_factory.mktemp("site")
    installed(place)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(place))
        patch.setenv("PYTHONPATH", str(place))  # of the processes
        ward = {"name": "ward-models", "sha256": fingerprint("ward-models"), "factories": ["ward_models.nets:residual"]}
        accepted = {**PACKED, "installed": [ward]}
        made = Trial(tmp_path_factory.mktemp("federation"), {**worlds.POLICY, "models": accepted})
        made.prepare()
        (made.kit("server").path / FILE).write_text(tomli_w.dumps({"installed": accepted["installed"]}))
        with made.running():
            yield made


def test_a_packed_model_learns_the_same_as_in_the_simulator(trial, packed):
    content = worlds.experiment(seed=7, train={"rounds": 2})
    content["model"] = {"name": "packed", "path": str(packed)}
    run = agrees(trial, content, "packed")
    assert (run.path / "model.tacit").read_bytes() == packed.read_bytes()
    held = worlds.held(trial, plan(content))[0].train.features[:4]
    assert np.isfinite(run.predict(held)["probability"]).all()


def test_a_packed_model_above_the_policy_is_refused_by_name(trial, tmp_path):
    content = worlds.experiment(model={"name": "mlp", "hidden": [3000]})
    big = tmp_path / "big.tacit"
    big.write_bytes(pack(*model_and_form(plan(content))).content)
    content["model"] = {"name": "packed", "path": str(big)}
    with refuses("policy-forbids", "policy", names=["north", "models"]):
        worlds.finished(trial, content, "big")


def test_a_factory_of_a_checked_distribution_learns_the_same(trial):
    content = worlds.experiment(seed=8, train={"rounds": 2}, model={"name": "ward_models.nets:residual", "units": 4})
    agrees(trial, content, "installed")
