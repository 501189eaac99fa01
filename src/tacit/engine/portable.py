"""The model of a run for other programs: coefficients, ONNX, PyTorch.

A model is a chain of :class:`Step`, from raw features to what :meth:`Run.predict` returns. Raw features are
``[rows, features]`` in the order of ``coefficients().index``: numeric columns in the units of the table, then 1 or 0
for each ``column=category``. Images are ``[rows, height, width]`` or ``[rows, height, width, channels]``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from tacit.data import FeatureEncoder
from tacit.data.encode import FARTHEST
from tacit.errors import UserError

if TYPE_CHECKING:
    import torch

Arrays = Mapping[str, Mapping[str, np.ndarray]]
Kind = Literal[
    "scale",
    "limit",
    "dense",
    "relu",
    "tanh",
    "images",
    "convolution",
    "max-pool",
    "flatten",
    "sigmoid",
    "softmax",
    "first",
]
OPSET = 17
# the output by kind of label
OUTPUTS = {
    "binary": "probability",
    "multiclass": "probabilities",
    "multilabel": "probabilities",
    "real": "prediction",
    "survival": "risk",
}


@dataclass(frozen=True)
class Step:
    """One operation of a model.

    scale        (x - mean) / scale
    limit        x, no farther than ``FARTHEST`` from 0
    dense        x w + b
    images       ``[rows, height, width(, channels)] -> [rows, channels, height, width]``, with ``pad`` zeros around
    convolution  of stride 2, with ``w [out, in, size, size]``
    max-pool     over 2 x 2 neighbours at stride 1
    flatten      ``[rows, channels, height, width] -> [rows, height * width * channels]``
    first        the first column
    """

    kind: Kind
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    pad: int = 0


def coefficients(model: str, params: Arrays, encoder: FeatureEncoder | None, classes: tuple[str, ...]) -> pd.DataFrame:
    """The weights of a linear model: a row per feature and one for the intercept; see :meth:`Run.coefficients`."""
    if model not in ("logistic", "linear", "cox"):
        fix = "use logistic, linear or cox, or run.predict"
        raise UserError("not-supported", "model.name", f"{model} is not linear: it has no coefficients", fix)
    weights, bias = _affine(model, params["layer0"])
    mean, scale = _constants(encoder, weights.shape[0])
    names = [f"x{j}" for j in range(len(weights))] if encoder is None else list(encoder.feature_names)
    raw = weights / scale[:, None]
    all_weights, all_raw = np.vstack([weights, bias]), np.vstack([raw, bias - mean @ raw])
    index = pd.Index([*names, "(intercept)"], name="feature")
    if weights.shape[1] == 1:
        return pd.DataFrame({"weight": all_weights[:, 0], "per_unit": all_raw[:, 0]}, index=index)
    columns = {("weight", name): all_weights[:, k] for k, name in enumerate(classes)}
    columns |= {("per_unit", name): all_raw[:, k] for k, name in enumerate(classes)}
    return pd.DataFrame(columns, index=index)


def steps(
    model: str, numbers: Mapping[str, Any], params: Arrays, encoder: FeatureEncoder | None, kind: str
) -> list[Step]:
    """The model as a chain of steps, from raw features to predictions for labels of this ``kind``."""
    if model not in BODIES:
        problem = f"{model} cannot be exported"
        raise UserError("not-supported", "model.name", problem, f"models that can: {', '.join(BODIES)}")
    mean, scale = _constants(encoder, 0 if encoder is None else encoder.columns.width)
    start = [] if encoder is None else [Step("scale", {"mean": mean, "scale": scale})]
    if encoder is not None and encoder.limited:
        start.append(Step("limit"))
    ends: dict[str, list[Step]] = {
        "binary": [Step("first"), Step("sigmoid")],
        "multiclass": [Step("softmax")],
        "multilabel": [Step("sigmoid")],
        "real": [Step("first")],
        "survival": [Step("first")],
    }
    return [*start, *BODIES[model](params, numbers), *ends[kind]]


def _constants(encoder: FeatureEncoder | None, features: int) -> tuple[np.ndarray, np.ndarray]:
    """What is subtracted from each feature, and what it is divided by: 0 and 1 for categories."""
    mean, scale = np.zeros(features), np.ones(features)
    if encoder is None:
        return mean, scale
    if encoder.standardize == "per-silo":
        problem = "constants of each silo do not make one model of raw columns"
        raise UserError("not-supported", "data.standardize", problem, 'use standardize = "declared" or "private"')
    if encoder.standardize != "none":
        numeric = len(encoder.columns.numeric)
        mean[:numeric], scale[:numeric] = encoder.columns.constants()
    return mean, scale


def _affine(model: str, layer: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Weights ``[features, outputs]`` and biases ``[outputs]``."""
    weights = np.asarray(layer["w"] if model == "cox" else layer["w"].T, np.float64)
    return weights, np.asarray(layer.get("b", np.zeros(weights.shape[1])), np.float64)


def _linear_body(model: str) -> Callable[[Arrays, Mapping[str, Any]], list[Step]]:
    def body(params: Arrays, numbers: Mapping[str, Any]) -> list[Step]:
        weights, bias = _affine(model, params["layer0"])
        return [Step("dense", {"w": weights, "b": bias})]

    return body


def _mlp_body(params: Arrays, numbers: Mapping[str, Any]) -> list[Step]:
    act = Step(numbers.get("activation", "relu"))
    layers = [Step("dense", params[f"layer{i}"]) for i in range(len(params))]
    return [step for layer in layers[:-1] for step in (layer, act)] + layers[-1:]


def _cnn_body(params: Arrays, numbers: Mapping[str, Any]) -> list[Step]:
    act, pool = Step(numbers.get("activation", "relu")), Step("max-pool")

    def convolution(layer: Mapping[str, np.ndarray], size: int) -> Step:
        kernel = layer["w"].reshape(size, size, -1, layer["w"].shape[1]).transpose(3, 2, 0, 1)
        return Step("convolution", {"w": kernel, "b": layer["b"]})

    start = [Step("images", pad=3), convolution(params["layer0"], 8), pool, act]
    middle = [convolution(params["layer1"], 4), pool, act, Step("flatten")]
    return [*start, *middle, Step("dense", params["layer2"]), act, Step("dense", params["layer3"])]


BODIES: dict[str, Callable[[Arrays, Mapping[str, Any]], list[Step]]] = {
    "logistic": _linear_body("logistic"),
    "linear": _linear_body("linear"),
    "cox": _linear_body("cox"),
    "mlp": _mlp_body,
    "cnn": _cnn_body,
}


def optional(package: str, extra: str) -> Any:
    """The package of an extra; a UserError where it is not installed."""
    try:
        return import_module(package)
    except ImportError:
        problem, fix = f"the package {package} is not installed", f"pip install 'tacit[{extra}]'"
        raise UserError("not-installed", extra, problem, fix) from None


# --- ONNX ---


def write_onnx(chain: list[Step], shape: tuple[int, ...], kind: str, path: Path, about: Mapping[str, str]) -> None:
    """A file with the input ``features`` and one output (``OUTPUTS``), float32; ``about`` is kept as metadata."""
    onnx = optional("onnx", "onnx")
    helper, number = onnx.helper, onnx.TensorProto.FLOAT
    nodes: list[Any] = []
    constants: list[Any] = []
    now = "features"

    def constant(values: np.ndarray, name: str) -> str:
        constants.append(onnx.numpy_helper.from_array(values, f"{name}{len(constants)}"))
        return f"{name}{len(constants) - 1}"

    def add(operation: str, *inputs: str, **options: Any) -> str:
        nodes.append(helper.make_node(operation, list(inputs), [f"v{len(nodes)}"], **options))
        return f"v{len(nodes) - 1}"

    for step in chain:
        own = {name: np.asarray(values, np.float32) for name, values in step.arrays.items()}
        match step.kind:
            case "scale":
                now = add("Div", add("Sub", now, constant(own["mean"], "mean")), constant(own["scale"], "scale"))
            case "limit":
                ends = (constant(np.array(end, np.float32), "end") for end in (-FARTHEST, FARTHEST))
                now = add("Clip", now, *ends)
            case "dense":
                now = add("Gemm", now, constant(own["w"], "w"), constant(own["b"], "b"))
            case "relu" | "tanh" | "sigmoid":
                now = add(step.kind.capitalize(), now)
            case "images":
                if len(shape) == 2:
                    now = add("Unsqueeze", now, constant(np.array([3], np.int64), "axes"))
                edges = np.array([0, 0, step.pad, step.pad, 0, 0, step.pad, step.pad], np.int64)
                now = add("Pad", add("Transpose", now, perm=[0, 3, 1, 2]), constant(edges, "pads"))
            case "convolution":
                now = add("Conv", now, constant(own["w"], "w"), constant(own["b"], "b"), strides=[2, 2])
            case "max-pool":
                now = add("MaxPool", now, kernel_shape=[2, 2], strides=[1, 1])
            case "flatten":
                now = add("Flatten", add("Transpose", now, perm=[0, 2, 3, 1]))
            case "softmax":
                now = add("Softmax", now, axis=1)
            case "first":
                now = add("Squeeze", now, constant(np.array([1], np.int64), "axes"))
    nodes.append(helper.make_node("Identity", [now], [OUTPUTS[kind]]))
    width = ["rows", None] if OUTPUTS[kind] == "probabilities" else ["rows"]
    graph = helper.make_graph(
        nodes,
        "tacit",
        [helper.make_tensor_value_info("features", number, ["rows", *shape])],
        [helper.make_tensor_value_info(OUTPUTS[kind], number, width)],
        constants,
    )
    made = helper.make_model(graph, producer_name="tacit", opset_imports=[helper.make_opsetid("", OPSET)])
    made.ir_version = 8  # the oldest that this opset goes with: readers of any age accept it
    helper.set_model_props(made, dict(about))
    onnx.checker.check_model(made)
    path.write_bytes(made.SerializeToString())


# --- PyTorch ---


def torch_module(chain: list[Step]) -> torch.nn.Module:
    """A module in evaluation mode that takes raw features and returns predictions, both float32."""
    made = optional("torch", "torch")
    nn = made.nn
    base: Any = nn.Module

    def tensor(values: np.ndarray) -> Any:
        return made.tensor(np.array(values, np.float32))

    class Scale(base):
        def __init__(self, mean: np.ndarray, scale: np.ndarray) -> None:
            super().__init__()
            self.register_buffer("mean", tensor(mean))
            self.register_buffer("scale", tensor(scale))

        def forward(self, x: Any) -> Any:
            return (x - self.mean) / self.scale

    class Images(base):
        def __init__(self, pad: int) -> None:
            super().__init__()
            self.pad = pad

        def forward(self, x: Any) -> Any:
            x = x.unsqueeze(-1) if x.dim() == 3 else x
            return nn.functional.pad(x.permute(0, 3, 1, 2), [self.pad] * 4)

    class Flatten(base):
        def forward(self, x: Any) -> Any:
            return x.permute(0, 2, 3, 1).flatten(1)

    class First(base):
        def forward(self, x: Any) -> Any:
            return x[:, 0]

    def layer(kind: Any, weight: np.ndarray, bias: np.ndarray) -> Any:
        kind.weight, kind.bias = nn.Parameter(tensor(weight)), nn.Parameter(tensor(bias))
        return kind

    def module(step: Step) -> Any:
        own = {name: np.asarray(values) for name, values in step.arrays.items()}
        match step.kind:
            case "scale":
                return Scale(own["mean"], own["scale"])
            case "dense":
                return layer(nn.Linear(*own["w"].shape), own["w"].T, own["b"])
            case "convolution":
                out, inputs, size, _ = own["w"].shape
                return layer(nn.Conv2d(inputs, out, size, stride=2), own["w"], own["b"])
            case "images":
                return Images(step.pad)
            case "limit":
                return nn.Hardtanh(-FARTHEST, FARTHEST)
            case "max-pool":
                return nn.MaxPool2d(2, stride=1)
            case "softmax":
                return nn.Softmax(dim=1)
            case _:
                plain = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "flatten": Flatten, "first": First}
                return plain[step.kind]()

    result: torch.nn.Module = nn.Sequential(*map(module, chain)).eval()
    return result
