"""Models of runs in other programs say what the run says."""

from __future__ import annotations

import json

import jax
import numpy as np
import onnxruntime
import pandas as pd
import pytest

import tacit
from tacit.engine.folder import MODEL
from tacit.engine.learner import save_tree
from tacit.models import build
from tacit.planning.experiment import ModelOptions
from tests.refusals import refuses

MODELS = [
    ("binary", {"name": "logistic"}),
    ("binary", {"name": "mlp", "hidden": [8, 4]}),
    ("multiclass", {"name": "logistic"}),
    ("multiclass", {"name": "mlp", "hidden": [6], "activation": "tanh"}),
    ("real", {"name": "linear"}),
    ("survival", {"name": "cox"}),
]
LABELS = {
    "binary": {"label": "ill"},
    "multiclass": {"label": "grade", "task": "multiclass", "classes": ["low", "middle", "high"]},
    "real": {"label": "stay", "task": "real"},
    "survival": {"label": {"time": "days", "event": "ill"}},
}


@pytest.fixture
def table(visits) -> pd.DataFrame:
    score = (visits["age"] - 50) / 10 + (visits["pressure"] - 130) / 15
    grade = np.array(["low", "middle", "high"])[np.digitize(score, [-0.5, 0.5])]
    return visits.assign(grade=grade, stay=score, days=np.exp(-score) + 0.01)


def raw_features(frame: pd.DataFrame) -> np.ndarray:
    """As the docstring of ``Run.to_onnx`` describes them."""
    smoker = [frame["smoker"] == category for category in ("no", "yes")]
    return np.column_stack([frame["age"], frame["pressure"], *smoker]).astype(np.float32)


def trained(tmp_path, experiment, table, kind: str, model: dict) -> tacit.Run:
    shared = {key: value for key, value in experiment["data"].items() if key != "label"}
    return tacit.run({**experiment, "data": {**shared, **LABELS[kind]}, "model": model}, table, out=tmp_path / "run")


def predicted(run: tacit.Run, frame: pd.DataFrame | np.ndarray, kind: str) -> np.ndarray:
    found = run.predict(frame)
    if kind == "multiclass":
        return found.drop(columns="prediction").to_numpy(np.float64)
    return found[{"binary": "probability", "real": "prediction", "survival": "risk"}[kind]].to_numpy(np.float64)


def onnx_outputs(run: tacit.Run, features: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(run.to_onnx(run.path / "model.onnx"))
    return session.run(None, {"features": features})[0]


def torch_outputs(run: tacit.Run, features: np.ndarray) -> np.ndarray:
    torch = pytest.importorskip("torch")
    with torch.no_grad():
        return run.to_torch()(torch.tensor(features)).numpy()


EXPORTS = pytest.mark.parametrize("outputs", [onnx_outputs, torch_outputs])


@EXPORTS
@pytest.mark.parametrize(("kind", "model"), MODELS)
def test_an_export_predicts_what_the_run_predicts(tmp_path, experiment, table, kind, model, outputs):
    run = trained(tmp_path, experiment, table, kind, model)
    expected = predicted(run, table, kind)
    assert np.ptp(expected) > 0.1  # it has learned something
    np.testing.assert_allclose(outputs(run, raw_features(table)), expected, rtol=0, atol=1e-5)


@EXPORTS
@pytest.mark.parametrize("shape", [(20, 18), (17, 21, 3)])
def test_an_export_convolves_as_the_run_does(tmp_path, experiment, table, shape, outputs):
    """A model of images, whose weights are put into the folder of a run."""
    run = trained(tmp_path, experiment, table, "binary", {"name": "logistic"})
    (run.path / "encoder.json").unlink()
    save_tree(run.path / MODEL, build("cnn", shape, 3, channels=[3, 5], hidden=7).init(jax.random.key(1)), {})
    labels = {"kind": "multiclass", "classes": list("abc")}
    result = {**run.result, "inputs": {"shape": shape, "dtype": "float32", "labels": labels}}
    options = ModelOptions(name="cnn", channels=[3, 5], hidden=7)
    images = tacit.Run(run.path, run.experiment.model_copy(update={"model": options}), result)
    features = np.random.default_rng(0).normal(size=(9, *shape)).astype(np.float32)
    expected = predicted(images, features, "multiclass")
    np.testing.assert_allclose(outputs(images, features), expected, rtol=0, atol=1e-5)


def test_an_export_ends_features_where_the_run_does(tmp_path, experiment, table):
    data = {**experiment["data"], "standardize": "private", "numeric": {"age": {}, "pressure": {}}}
    data |= {"subjects": {"column": "person", "count": 60}, "silos": {"column": "clinic", "count": 3}}
    made = {**experiment, "data": data, "privacy": {"statistics_noise_multiplier": 0.01}}
    run = tacit.run(made, table, out=tmp_path / "run")
    far = table.head(6).assign(age=[-1e6, 1e6, 50, 60, 1e4, -1e4])
    expected, features = predicted(run, far, "binary"), raw_features(far)
    np.testing.assert_allclose(onnx_outputs(run, features), expected, atol=1e-5)
    np.testing.assert_allclose(torch_outputs(run, features), expected, atol=1e-5)


def test_an_onnx_file_names_its_features(tmp_path, experiment, table):
    run = trained(tmp_path, experiment, table, "binary", {"name": "logistic"})
    session = onnxruntime.InferenceSession(run.to_onnx(tmp_path / "model.onnx"))
    names = json.loads(session.get_modelmeta().custom_metadata_map["features"])
    assert names == list(run.coefficients().index[:-1]) == ["age", "pressure", "smoker=no", "smoker=yes"]


@pytest.mark.parametrize("kind", ["binary", "multiclass", "real"])
def test_coefficients_give_the_outputs_in_both_units(tmp_path, experiment, table, kind):
    run = trained(tmp_path, experiment, table, kind, {"name": "linear" if kind == "real" else "logistic"})
    found = run.coefficients()
    assert list(found.index) == ["age", "pressure", "smoker=no", "smoker=yes", "(intercept)"]
    raw = np.column_stack([raw_features(table).astype(np.float64), np.ones(len(table))])
    encoded = raw - [50, 130, 0, 0, 0]
    encoded /= [10, 15, 1, 1, 1]
    for rows, key in ((encoded, "weight"), (raw, "per_unit")):
        outputs = rows @ found[key].to_numpy()
        expected = predicted(run, table, kind)
        if kind == "binary":
            outputs = 1 / (1 + np.exp(-outputs))
        if kind == "multiclass":
            outputs = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(outputs, expected, rtol=0, atol=1e-5)


def test_what_has_no_coefficients_or_cannot_be_exported_is_refused(tmp_path, experiment, table):
    run = trained(tmp_path, experiment, table, "binary", {"name": "mlp", "hidden": [4]})
    with refuses("not-supported", "model.name"):
        run.coefficients()
    experiment["data"]["standardize"] = "per-silo"
    silos = trained(tmp_path / "silos", experiment, table, "binary", {"name": "logistic"})
    for export in (silos.coefficients, lambda: silos.to_onnx(tmp_path / "model.onnx"), silos.to_torch):
        with refuses("not-supported", "data.standardize"):
            export()
