"""What is trained of a module, and how: conversion, dropout, low rank, frozen backbones, starting points, losses."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tacit
from tacit.data import Labels
from tacit.engine.learner import learner, save_tree, started
from tacit.models import build, parameter_count, shapes, task_for
from tacit.models.low_rank import is_factor, merged, with_low_rank
from tacit.models.model import DROPOUT, Handling
from tacit.planning.experiment import ModelOptions
from tacit.privacy import Randomness
from tests import made
from tests.models.test_adapters import each, factory, own_outputs
from tests.refusals import refuses

os.environ.setdefault("KERAS_BACKEND", "jax")
TORCH = pytest.mark.skipif(find_spec("torchax") is None, reason="torchax is not installed")
OWN = "tests.models.own_models"


def experiment(model, **method):
    content = made.experiment()
    content["model"] = model
    content["method"] = {"name": "subject-sgd", "noise_multiplier": 1.0, "clip": 1.0, **method}
    content["train"] = {"rounds": 2}
    content["data"]["silos"]["count"] = 3
    content["data"]["subjects"]["count"] = 60
    content["privacy"] = {"max_records_per_subject_and_silo": 10, "max_silos_per_subject": 3}
    return content


# --- records apart ---


def coupled(input_shape, outputs):
    def init(key):
        return {"only": {"w": jnp.ones((input_shape[0], outputs))}}

    return init, lambda params, x: (x - x.mean(axis=0)) @ params["only"]["w"]


def test_a_model_of_functions_that_couples_records_is_refused():
    with refuses("invalid-model", "model.name"):
        build("tests.models.test_own_modules:coupled", (3,), 2)


@each("pytorch")
def test_the_fix_for_batch_normalisation_names_three_ways_out(framework):
    with refuses("invalid-model", "model.name", names=["GroupNorm", "model.convert = true", "evaluation mode"]):
        build(factory(framework, "batch_norm"), (3,), 2)


@each("pytorch")
def test_conversion_replaces_batch_normalisation_and_keeps_names(framework):
    model = build(factory(framework, "batch_norm"), (3,), 2, Handling(convert=True))
    params = model.init(jax.random.key(0))
    assert {"1.weight", "1.bias"} <= set(params)
    assert not model.fixed
    module = model.module(params)
    assert [type(layer).__name__ for layer in module] == ["Linear", "GroupNorm", "Linear"]
    x = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    np.testing.assert_allclose(model.apply(params, jnp.asarray(x)), own_outputs(framework, module, x), atol=1e-5)


@each("linen", "nnx", "keras3")
def test_conversion_of_other_frameworks_is_refused(framework):
    with refuses("not-supported", "model.convert"):
        build(factory(framework, "batch_norm"), (3,), 2, Handling(convert=True))


@pytest.mark.parametrize("key", ["convert", "dropout"])
@pytest.mark.parametrize("name", ["logistic", f"{OWN}:scaled"])
def test_settings_for_modules_are_refused_for_other_models(name, key):
    with refuses("no-effect", f"model.{key}"):
        build(name, (3,), 2, Handling(**{key: True}))


# --- dropout ---


@each("pytorch", "linen", "nnx", "keras3")
def test_dropout_follows_from_the_key_and_the_record_alone(framework):
    model = build(factory(framework, "images"), (8, 8), 2, Handling(dropout=True))
    params = model.init(jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (4, 8, 8))

    def with_key(number):
        return {**params, DROPOUT: jnp.array([0, number], jnp.uint32)}

    off, first, again, other = (
        np.asarray(model.apply(given, x)) for given in (params, with_key(1), with_key(1), with_key(2))
    )
    assert np.array_equal(first, again)
    assert not np.allclose(first, off)
    assert not np.allclose(first, other)
    # neither the order of records nor the others matter
    np.testing.assert_allclose(model.apply(with_key(1), x[::-1][:2]), first[::-1][:2], atol=1e-6)


@each("pytorch")
def test_a_plan_notes_that_dropout_is_off(framework):
    noted = tacit.plan(experiment({"name": factory(framework, "dropping")})).warnings
    assert any("model.dropout" in note for note in noted)
    used = tacit.plan(experiment({"name": factory(framework, "dropping"), "dropout": True})).warnings
    without = tacit.plan(experiment({"name": factory(framework, "table")})).warnings
    assert not any("model.dropout" in note for note in (*used, *without))


@each("pytorch")
def test_runs_with_dropout_repeat_with_a_seed(framework, tmp_path):
    def trained(number, **model):
        content = experiment({"name": factory(framework, "dropping"), **model})
        run = tacit.run(content, made.visits(), out=tmp_path / str(number))
        return {name: np.asarray(value) for name, value in run.state_dict().items()}

    one, two, off = trained(1, dropout=True), trained(2, dropout=True), trained(3)
    assert all(np.array_equal(one[name], two[name]) for name in one)
    assert any(not np.allclose(one[name], off[name]) for name in one)


# --- low rank ---

THIN = {"pytorch": "*weight", "linen": "*kernel", "nnx": "*kernel", "eqx": "*weight", "keras3": "*kernel"}


@each(*THIN)
@pytest.mark.parametrize(("kind", "shape"), [("images", (8, 8)), ("table", (6,))])
def test_factors_give_the_outputs_and_gradients_of_the_merged_model(framework, kind, shape):
    base = build(factory(framework, kind), shape, 8)
    model = with_low_rank(base, [THIN[framework]], 2)
    params = model.init(jax.random.key(0))
    assert sum(map(is_factor, params)) == 2
    x = jax.random.normal(jax.random.key(1), (4, *shape))
    start = {name: value for name, value in params.items() if not is_factor(name)}
    np.testing.assert_allclose(model.apply(params, x), base.apply(start, x), atol=1e-6)
    moved = jax.tree.map(lambda leaf: leaf + 0.1 * jax.random.normal(jax.random.key(2), leaf.shape), params)
    np.testing.assert_allclose(model.apply(moved, x), base.apply(merged(moved), x), rtol=1e-5, atol=1e-5)
    ours = jax.grad(lambda given: (model.apply(given, x) ** 2).sum())(moved)
    theirs = jax.grad(lambda given: (base.apply(merged(given), x) ** 2).sum())(moved)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5 * max(1.0, float(jnp.abs(other).max())))


def largest_of_each_person(function, *given):
    """How many numbers the largest array of a traced function has."""

    def sizes(jaxpr):
        for equation in jaxpr.eqns:
            yield from (np.prod(out.aval.shape) for out in equation.outvars)
            for value in equation.params.values():
                if hasattr(value, "jaxpr"):
                    yield from sizes(value.jaxpr)

    return max(sizes(jax.make_jaxpr(function)(*given).jaxpr))


def test_no_gradient_of_the_size_of_a_matrix_exists_for_each_person():
    base = build("mlp", (50,), 3, hidden=[40])
    model = with_low_rank(base, ["layer0"], 2)
    params = model.init(jax.random.key(0))
    factors = {name: value for name, value in params.items() if is_factor(name)}
    rest = {name: value for name, value in params.items() if not is_factor(name)}
    people = jnp.ones((16, 50))

    def gradients(x):
        return jax.vmap(lambda one: jax.grad(lambda own: model.apply({**rest, **own}, one[None]).sum())(factors))(x)

    assert largest_of_each_person(gradients, people) < 16 * 50 * 40


@pytest.mark.parametrize(
    ("low_rank", "code", "field"),
    [
        ({"layers": ["layer7"]}, "unknown-name", "model.low_rank.layers"),
        ({"layers": ["layer0"], "rank": 4}, "out-of-range", "model.low_rank.rank"),
        ({"layers": []}, "too-few", "model.low_rank.layers"),
    ],
)
def test_factors_that_are_impossible_are_refused(low_rank, code, field):
    with refuses(code, field):
        tacit.plan(experiment({"name": "mlp", "hidden": [8], "low_rank": low_rank}))


def test_only_factors_and_what_train_names_are_trained():
    low_rank = {"layers": ["layer0"], "rank": 2}
    thin = tacit.plan(experiment({"name": "mlp", "hidden": [8], "low_rank": low_rank}))
    more = tacit.plan(experiment({"name": "mlp", "hidden": [8], "low_rank": low_rank, "train": ["layer1"]}))
    assert thin.parameters == 2 * (4 + 8)
    assert more.parameters == thin.parameters + 8 + 1


def test_the_noise_to_signal_of_a_plan_counts_what_is_trained():
    from tacit.planning.preview import noise_to_signal

    whole = noise_to_signal(tacit.plan(experiment({"name": "mlp", "hidden": [8]})))
    thin = noise_to_signal(
        tacit.plan(experiment({"name": "mlp", "hidden": [8], "low_rank": {"layers": ["layer0"], "rank": 2}}))
    )
    assert (whole.parameters, thin.parameters) == (4 * 8 + 8 + 8 + 1, 2 * (4 + 8))
    np.testing.assert_allclose(thin.ratio / whole.ratio, np.sqrt(thin.parameters / whole.parameters))


@pytest.mark.parametrize("framework", [None, pytest.param("pytorch", marks=TORCH)])
def test_a_run_with_low_rank_gives_back_the_merged_module(framework, tmp_path):
    own = {"name": "mlp", "hidden": [8]} if framework is None else {"name": factory(framework, "table")}
    first = "layer0" if framework is None else "0.weight"
    run = tacit.run(
        experiment({**own, "low_rank": {"layers": [first], "rank": 2}}), made.visits(), out=tmp_path / "run"
    )
    features = np.random.default_rng(1).normal(size=(20, 4)).astype(np.float32)
    if framework is None:
        torch = pytest.importorskip("torch")
        frame = made.visits()[:20]
        found = run.to_torch()
        assert sum(value.numel() for value in found.parameters()) >= 4 * 8
        assert len(run.predict(frame)) == 20
        del torch
        return
    found = 1 / (1 + np.exp(-own_outputs(framework, run.module(), features).reshape(-1)))
    np.testing.assert_allclose(found, run.predict(features)["probability"], atol=1e-5)
    assert set(run.state_dict()) == {"0.weight", "0.bias", "2.weight", "2.bias"}


# --- frozen backbones ---


@each("pytorch")
def test_a_backbone_is_prepared_once_and_only_its_head_is_trained(framework, tmp_path):
    model = build(factory(framework, "backbone_and_head"), (4,), 1)
    assert set(shapes(model)) == {"weight", "bias"}
    assert parameter_count(model) == 17
    x = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    inside = model.prepare(jnp.asarray(x))
    assert inside.shape == (5, 16)
    assert np.array_equal(inside, model.prepare(jnp.asarray(x)))
    run = tacit.run(experiment({"name": factory(framework, "backbone_and_head")}), made.visits(), out=tmp_path / "run")
    backbone, head = run.module()
    torch = import_module("torch")
    with torch.no_grad():
        found = torch.sigmoid(head(backbone(torch.tensor(x)))).numpy().reshape(-1)
    np.testing.assert_allclose(found, run.predict(x)["probability"], atol=1e-5)


def test_a_frozen_backbone_may_have_numbers_of_any_type():
    name = f"{OWN}:frozen_codes"
    options = ModelOptions(name=name, freeze=("backbone",))
    found = learner(options, Labels("binary", ("0", "1")), (4,), Randomness.from_seed(0))
    assert found.parameters == 5
    assert found.frozen["backbone"]["w"].dtype == jnp.float16
    with refuses("invalid-model", "model.name", names=["backbone"]):
        learner(ModelOptions(name=name), Labels("binary", ("0", "1")), (4,), Randomness.from_seed(0))


# --- starting points ---


@each("pytorch")
@pytest.mark.parametrize("kind", ["pt", "safetensors"])
def test_a_state_dict_is_a_starting_point(framework, kind, tmp_path):
    torch = import_module("torch")
    module = import_module("tests.models.modules.pytorch").table((4,), 1)
    file = tmp_path / f"start.{kind}"
    if kind == "pt":
        torch.save(module.state_dict(), file)
    else:
        save_tree(file, {name: value.numpy() for name, value in module.state_dict().items()})
    thin = {"layers": ["0.weight"], "rank": 2}
    options = ModelOptions(name=factory(framework, "table"), low_rank=thin)
    found = learner(options, Labels("binary", ("0", "1")), (4,), Randomness.from_seed(0), file)
    for name, value in module.state_dict().items():
        assert np.array_equal(found.frozen[name], value.numpy())
    assert set(found.params) == {"low_rank:0.weight"}


@each("pytorch")
def test_a_file_that_is_no_state_dict_is_refused(framework, tmp_path):
    torch = import_module("torch")
    params = shapes(build(factory(framework, "table"), (4,), 1))
    (tmp_path / "text.pt").write_text("no tensors")
    torch.save({"0.weight": torch.zeros(1)}, tmp_path / "other.pt")
    for name, code in (("none.pt", "file-not-found"), ("text.pt", "file-damaged"), ("other.pt", "mismatch")):
        with refuses(code, "model.init_from"):
            started(tmp_path / name, params, frozenset())


# --- losses ---


def test_a_loss_of_ones_own_is_computed_record_by_record(tmp_path):
    task = task_for("binary", loss=f"{OWN}:hinge")
    outputs, labels = jnp.array([[0.5], [-3.0], [2.0]]), jnp.array([1, 1, 0])
    np.testing.assert_allclose(task.losses(outputs, labels), [0.5, 4.0, 3.0])
    run = tacit.run(experiment({"name": "logistic", "loss": f"{OWN}:hinge"}), made.visits(), out=tmp_path / "run")
    plain = tacit.run(experiment({"name": "logistic"}), made.visits(), out=tmp_path / "plain")
    assert run.result["metrics"].keys() == plain.result["metrics"].keys()
    assert run.guarantees() == plain.guarantees()


@pytest.mark.parametrize("name", ["no_such_module:loss", f"{OWN}:no_such_loss", f"{OWN}:two_numbers", f"{OWN}:named"])
def test_a_wrong_loss_is_refused_before_any_record_is_read(name):
    with refuses("invalid-model", "model.loss"):
        tacit.plan(experiment({"name": "logistic", "loss": name}))
