"""Modules of PyTorch, Flax, Equinox and Keras as models: outputs, training, and the trained module given back."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import tacit
from tacit.models import build, shapes
from tests import made
from tests.refusals import refuses

os.environ.setdefault("KERAS_BACKEND", "jax")

# our module of modules -> packages that it needs
NEEDS = {
    "pytorch": ("torch", "torchax"),
    "linen": ("flax",),
    "nnx": ("flax",),
    "eqx": ("equinox",),
    "keras3": ("keras",),
}


def each(*names):
    """A cell per framework; of one that is not installed, skipped."""

    def cell(name):
        missing = [package for package in NEEDS[name] if find_spec(package) is None]
        return pytest.param(name, marks=pytest.mark.skipif(bool(missing), reason=f"{missing} is not installed"))

    return pytest.mark.parametrize("framework", [cell(name) for name in names])


ALL = each(*NEEDS)


def factory(framework, name):
    return f"tests.models.modules.{framework}:{name}"


def own_outputs(framework, module, x):
    """What the framework itself computes for records ``x [b, ...]``."""
    image = x.ndim == 3
    if framework == "pytorch":
        torch = import_module("torch")
        with torch.no_grad():
            return module.eval()(torch.tensor(x[:, None] if image else x)).numpy()
    if framework == "eqx":
        return jax.vmap(module)(x[:, None] if image else x)
    return np.asarray(module(x[..., None] if image else x))


@ALL
@pytest.mark.parametrize(("kind", "shape"), [("images", (8, 8)), ("table", (3,))])
def test_a_model_gives_the_outputs_of_its_module(framework, kind, shape):
    model = build(factory(framework, kind), shape, 2)
    params = model.init(jax.random.key(3))
    assert {name: leaf.shape for name, leaf in params.items()} == {
        name: leaf.shape for name, leaf in shapes(model).items()
    }
    x = np.random.default_rng(0).normal(size=(6, *shape)).astype(np.float32)
    expected = own_outputs(framework, model.module(params), x)
    np.testing.assert_allclose(model.apply(params, jnp.asarray(x)), expected, atol=1e-5)
    np.testing.assert_allclose(jax.jit(model.apply)(params, jnp.asarray(x)), expected, atol=1e-5)


@ALL
def test_initial_values_follow_the_key(framework):
    model = build(factory(framework, "table"), (3,), 2)
    first, again, other = (jax.tree.leaves(model.init(jax.random.key(k))) for k in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not np.array_equal(a, b) for a, b in zip(first, other, strict=True))


METHODS = {
    "subject-sgd": {"noise_multiplier": 1.0, "clip": 1.0},
    "local-record": {"noise_multiplier": 1.0, "clip": 1.0},
    "uldp-avg": {"noise_multiplier": 1.0, "clip": 1.0},
    "dp-fedavg": {"noise_multiplier": 1.0, "clip": 1.0},
}


@ALL
@pytest.mark.parametrize("method", METHODS)
def test_a_module_is_trained_and_given_back(framework, method, tmp_path):
    experiment = made.experiment()
    experiment["model"] = {"name": factory(framework, "table")}
    experiment["method"] = {"name": method, **METHODS[method]}
    experiment["train"] = {"rounds": 2}
    experiment["data"]["silos"]["count"] = 3
    experiment["data"]["subjects"]["count"] = 60
    if method == "local-record":
        experiment["data"]["records_per_silo"] = 200
    experiment["privacy"] = {"max_records_per_subject_and_silo": 10, "max_silos_per_subject": 3}
    run = tacit.run(experiment, made.visits(), out=tmp_path / "run")
    module, features = run.module(), np.random.default_rng(1).normal(size=(20, 4)).astype(np.float32)
    found = 1 / (1 + np.exp(-np.asarray(own_outputs(framework, module, features)).reshape(-1)))
    np.testing.assert_allclose(found, run.predict(features)["probability"], atol=1e-5)
    saved = safetensors.numpy.load_file(run.path / "model.safetensors")
    state = run.state_dict()
    assert set(saved) == set(state)
    assert all(np.array_equal(saved[name], np.asarray(state[name])) for name in saved)


@each("pytorch")
def test_the_file_of_a_run_on_a_pytorch_module_is_a_state_dict(framework):
    model = build(factory(framework, "images"), (8, 8), 2)
    assert set(shapes(model)) == {"encoder.0.weight", "encoder.0.bias", "head.weight", "head.bias"}


@each("pytorch", "linen", "nnx", "keras3")
def test_batch_normalisation_in_training_mode_is_refused(framework):
    with refuses("invalid-model", "model.name", names=["BatchNorm"]):
        build(factory(framework, "batch_norm"), (3,), 2)


@each("pytorch")
def test_batch_normalisation_in_evaluation_mode_has_fixed_statistics(framework):
    model = build(factory(framework, "frozen_batch_norm"), (3,), 2)
    assert {name for name in shapes(model) if "running" in name} == {"1.running_mean", "1.running_var"}
    assert {"1.running_mean", "1.running_var", "1.num_batches_tracked"} == model.fixed


def test_a_built_in_model_has_no_module(tmp_path):
    run = tacit.run(made.experiment(), made.visits(), out=tmp_path / "run")
    with refuses("not-supported", "model.name"):
        run.module()
