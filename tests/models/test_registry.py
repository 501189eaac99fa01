"""From a name in a file to a model, and what is said when that fails."""

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.errors import UserError
from tacit.models import MODELS, build, check_fit, check_options, parameter_count
from tests.refusals import refuses


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """Start from the folder of the user's module, as a user would."""
    monkeypatch.chdir(Path(__file__).parent)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p and Path(p) != Path(__file__).parent])
    yield
    sys.modules.pop("own_models", None)


def refusal(call, *args, **numbers):
    with pytest.raises(UserError) as caught:
        call(*args, **numbers)
    return caught.value


def test_an_unknown_model_is_answered_with_the_nearest_name():
    error = refusal(build, "logistc", (3,), 1)
    assert (error.code, error.field) == ("unknown-name", "model.name")
    assert "'logistic'" in error.fix


def test_an_unknown_number_is_answered_with_the_nearest_key():
    error = refusal(build, "mlp", (3,), 1, hiden=[3])
    assert (error.code, error.field) == ("unknown-key", "model.hiden")
    assert "'hidden'" in error.fix
    assert refusal(build, "logistic", (3,), 1, hidden=[3]).field == "model.hidden"
    assert refusal(check_options, "mlp", hiden=[3]).field == "model.hiden"


@pytest.mark.parametrize(
    ("name", "shape", "numbers"),
    [
        ("mlp", (3,), {"hidden": []}),
        ("mlp", (3,), {"hidden": [0]}),
        ("mlp", (3,), {"hidden": "64"}),
        ("mlp", (3,), {"hidden": [True]}),
        ("mlp", (3,), {"activation": "rel"}),
        ("cnn", (28, 28), {"channels": [16]}),
        ("cnn", (28, 28), {"hidden": 1.5}),
        ("lstm", (80,), {"layers": 0}),
        ("lstm", (80,), {"vocabulary": -3}),
    ],
)
def test_a_wrong_number_is_refused_by_its_field(name, shape, numbers):
    error = refusal(build, name, shape, 10, **numbers)
    assert error.field == f"model.{next(iter(numbers))}"
    assert error.fix


def test_records_that_a_model_cannot_take_are_answered_with_models_that_can():
    error = refusal(build, "cnn", (30,), 1)
    assert (error.code, error.field) == ("not-supported", "model.name")
    assert all(name in error.fix for name in ("logistic", "mlp"))
    assert "cnn" in refusal(build, "lstm", (28, 28), 10).fix
    assert refusal(build, "cnn", (4, 4), 10).field == "model.name"


def test_options_are_known_without_data():
    check_options("mlp", hidden=[3], activation="tanh")
    check_options("lstm", vocabulary=80, embedding=8, hidden=64, layers=2, dense_units=32)
    check_options("own_models:scaled", scale=2.0)
    for name in ("mlp", "logistic", "lstm", "own_models:scaled"):
        assert refusal(check_options, name, absent=1).code == "unknown-key"


@pytest.mark.parametrize("name", list(MODELS))
def test_a_model_fits_the_labels_that_it_is_made_for_and_no_others(name):
    for task in ("binary", "multiclass", "real", "survival"):
        if task in MODELS[name].tasks:
            check_fit(name, task)
        else:
            error = refusal(check_fit, name, task)
            assert "mlp" in error.fix
            assert task in error.problem


def test_every_kind_of_label_has_a_model_and_an_unknown_kind_is_refused():
    kinds = {"binary", "multiclass", "multilabel", "real", "survival"}
    assert {task for kind in MODELS.values() for task in kind.tasks} == kinds
    assert refusal(check_fit, "mlp", "binry").field == "data.task"


def test_a_factory_of_the_users_own_is_built_from_a_pair_or_a_model():
    model = build("own_models:scaled", (3,), 2, scale=0.0)
    params = model.init(jax.random.key(0))
    np.testing.assert_array_equal(model.apply(params, jnp.ones((5, 3))), np.zeros((5, 2)))
    assert tuple(params) == ("only",)
    assert parameter_count(model) == 6
    assert build("own_models:named", (3,), 2, anything=1).name == "mine"
    assert parameter_count(build("own_models:embedded", (7,), 2, codes=5)) == 10
    check_fit("own_models:scaled", "survival")


def test_the_working_directory_does_not_stay_importable():
    before = list(sys.path)
    build("own_models:scaled", (3,), 2)
    assert sys.path == before


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("no_such_module_at_all:factory", "'no_such_module_at_all'"),
        (":factory", "ValueError"),
        ("own_models:scald", "'scaled'"),
        ("own_models:not_a_function", "'not_a_function'"),
        ("own_models:nothing", "NoneType"),
        ("own_models:failing", "out of ideas"),  # what the user's own code raised
        ("own_models:wrong_outputs", "[2, 3]"),
        ("own_models:no_layers", "init"),
        ("own_models:half_precision", "float32"),
    ],
)
def test_a_factory_that_cannot_be_used_is_refused_with_the_reason(name, shown):
    with refuses("invalid-model", "model.name", names=[shown]):
        build(name, (3,), 2)


def test_a_number_without_default_is_required():
    with refuses("missing", "model.codes"):
        build("own_models:embedded", (3,), 2)


def test_an_unknown_number_for_a_factory_of_the_users_own_is_refused():
    error = refusal(build, "own_models:scaled", (3,), 2, scal=2.0)
    assert (error.code, error.field) == ("unknown-key", "model.scal")
    assert "'scale'" in error.fix


def test_what_prepare_makes_of_a_record_may_not_depend_on_others():
    assert refusal(build, "own_models:centred", (3,), 1).code == "invalid-model"


def test_a_record_changes_no_output_of_another_one():
    """Also where no comparison at the start can see it."""
    model = build("own_models:silent", (3,), 1)
    params, x = {"only": {"w": jnp.ones((3, 1))}}, jnp.ones((4, 3))
    assert (model.apply(params, x)[1:] == model.apply(params, x.at[0].set(1e4))[1:]).all()
