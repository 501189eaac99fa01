"""A run as a folder: what was planned, what was released, what came out.

plan.toml            the experiment as it was run
ledger.jsonl         every release, written before it happened
metrics.jsonl        a line per evaluated round
model.safetensors    the last released model
personal.safetensors the silos' own models, of a personal method: each stays with its silo
checkpoint.safetensors  the server's and the silos' state, to resume from: stays with the data holder
clock.json           the seconds spent so far, for a run that is resumed
encoder.json         how raw tables become features (for ``predict``); private with ``standardize = "per-silo"``
result.json          everything that ``tacit run --json`` prints, and what the report needs
baselines/NAME/metrics.jsonl
local.json           exact pictures of the private data: stays with the data holder
data.key             the key of the data fingerprint: stays with the data holder
report.html, local.html, model-card.md
sheet.html, sheet.json, sheet.sig  the privacy sheet, and its signature
share/               copies of the files that may leave
audit.json, audit.html  what ``tacit audit --of RUN`` found
"""

from __future__ import annotations

import itertools
import json
import math
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pandas as pd

from tacit.data import FeatureEncoder, Federation, Labels
from tacit.engine import portable
from tacit.engine.evaluate import Scores
from tacit.engine.kernel import outputs
from tacit.engine.learner import Learner, learner, load_tree, write_bytes
from tacit.errors import UserError
from tacit.kernels import ServerStep
from tacit.methods import Facts
from tacit.methods.base import ServerRule
from tacit.models import Params, higher_is_better, packed_model
from tacit.models.low_rank import merged
from tacit.names import load
from tacit.notebook import box, line, table
from tacit.planning.experiment import Experiment, read_experiment
from tacit.planning.plan import Plan
from tacit.planning.settings import read_toml
from tacit.privacy import Guarantee, Randomness
from tacit.privacy.ledger import ACCOUNTING
from tacit.privacy.terms import guarantees_html

if TYPE_CHECKING:
    import torch

PLAN, LEDGER, METRICS = "plan.toml", "ledger.jsonl", "metrics.jsonl"
MODEL, CHECKPOINT, ENCODER = "model.safetensors", "checkpoint.safetensors", "encoder.json"
PERSONAL, PACKED_MODEL = "personal.safetensors", "model.tacit"
PRIVATE = 0o600  # the mode of files that stay with the data holder
RESULT, LOCAL, BASELINES, CLOCK = "result.json", "local.json", "baselines", "clock.json"
DATA_KEY, SHARE = "data.key", "share"
EVALUATIONS = 100  # most points on a curve, unless the plan says otherwise
NOT_EVALUATED = Scores({}, {})
# before this accounting, method.weights = "records" was n / (1 + N), which is "records-phantom" since, and the exchange
# weighted had the protocol paillier alone
_RECORDS_WITHOUT_PHANTOM = 4
# these had one batch of all records by default, and subject-sgd a clip of 1
_WHOLE_BATCH = ("fedavg", "fedprox", "scaffold", "silo-only", "pooled")


def free_folder(title: str) -> Path:
    """A folder under ``runs/`` that does not exist yet, named after ``title``."""
    slug = re.sub(r"[^a-z0-9]+", "-", title.lower())[:60].strip("-") or "run"
    candidates = (Path("runs") / (slug if n == 1 else f"{slug}-{n}") for n in itertools.count(1))
    return next(folder for folder in candidates if not folder.exists())


def write_json(path: Path, content: Any, mode: int = 0o666) -> None:
    write_bytes(path, json.dumps(content, indent=1).encode(), mode)


def plain_values(value: Any) -> Any:
    """For JSON, at any depth: infinity as "inf", other numbers that are not finite as null, tuples as lists."""
    if isinstance(value, float) and not math.isfinite(value):
        return "inf" if value > 0 else None
    if isinstance(value, dict):
        return {key: plain_values(item) for key, item in value.items()}
    return [plain_values(item) for item in value] if isinstance(value, list | tuple) else value


def read_json(path: Path, field: str) -> Any:
    """The content of a JSON file; a UserError on ``field`` where it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError, RecursionError):
        raise _damaged(path, field) from None


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of metrics (or a ledger); an unfinished last line (a crash) is left out."""
    if not path.is_file():
        return []
    try:
        text = path.read_text(encoding="utf-8")
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    except ValueError:
        raise _damaged(path, "run") from None


def keep_packed(folder: Path, experiment: Experiment) -> None:
    """Write the packed model of a run, if it has one, so that the folder does not depend on another file."""
    if experiment.model.name == packed_model.PACKED:
        write_bytes(folder / PACKED_MODEL, packed_model.find(sha256=experiment.model.numbers["sha256"]).content)


def plan_content(folder: Path) -> dict[str, Any]:
    """The content of ``plan.toml`` in today's terms: a value that meant something else when the run began is replaced
    by the one that means it now."""
    content = read_toml(folder / PLAN, "experiment")
    if (folder / PACKED_MODEL).is_file():
        packed_model.read(folder / PACKED_MODEL)
    # lines are only ever appended: the first release is of the version that began the run
    first = next((line for line in read_metrics(folder / LEDGER) if "run" in line), {"accounting": ACCOUNTING})
    if first.get("accounting", 1) >= _RECORDS_WITHOUT_PHANTOM:
        return content
    method, exchange = content.get("method"), content.get("exchange")
    defaults = {"subject-sgd": {"clip": 1.0}} | {name: {"batch_size": "all"} for name in _WHOLE_BATCH}
    if isinstance(method, Mapping) and method.get("name") in defaults and "max_grad_norm" not in method:
        method = {**defaults[str(method["name"])], **method}
        content = {**content, "method": method}
    if isinstance(method, Mapping) and method.get("weights") == "records":
        content = {**content, "method": {**method, "weights": "records-phantom"}}
    if isinstance(exchange, Mapping) and exchange.get("name") == "weighted":
        content = {**content, "exchange": {"protocol": "paillier", **exchange}}
    return content


def read_encoder(path: Path, field: str) -> FeatureEncoder:
    """How raw tables become features; a UserError on ``field`` where the file is damaged."""
    try:
        return FeatureEncoder.from_dict(read_json(path, field))
    except (KeyError, TypeError, ValueError):
        raise _damaged(path, field) from None


def _damaged(path: Path, field: str) -> UserError:
    fix = "restore it, or run the experiment again"
    return UserError("file-damaged", field, f"'{path.name}' is damaged", fix)


def evaluation_due(plan: Plan, number: int) -> bool:
    """Whether the model of round ``number`` is evaluated; of a run that releases its last model alone, no other is."""
    if plan.method.info.releases_last:
        return number == plan.rounds
    chosen = plan.experiment.train.evaluate_every
    every = chosen if chosen is not None else -(-plan.rounds // EVALUATIONS)
    return number % every == 0 or number == plan.rounds


def metrics_line(
    number: int,
    seconds: float,
    epsilons: Mapping[str, float | str],
    scores: Scores,
    others: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A line of ``metrics.jsonl``."""
    return {
        "round": number,
        "seconds": round(seconds, 3),
        **(others or {}),
        "epsilon": dict(epsilons),
        **scores.as_dict(),
    }


def summary(
    plan: Plan,
    place: Path,
    status: str,
    *,
    rounds: int,
    federation: Federation,
    learner: Learner,
    guarantees: Sequence[Guarantee],
    scores: Scores,
    seconds: Mapping[str, float],
    shared: Mapping[str, Any] | None = None,
    fingerprint: str | None = None,
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """What ``--json`` prints and the report reads: nothing exact about the private data beyond the metrics."""
    experiment, task, train = plan.experiment, learner.task, federation.train
    names = list(task.metrics if plan.evaluation is None else plan.paid_metrics)
    network = plan.exchange.plan_parts(plan.promise).get("network")
    return {
        "title": experiment.title,
        "run": str(place),
        "status": status,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "rounds": rounds,
        "rounds_planned": plan.rounds,
        "method": {
            "name": plan.method.name,
            "label": plan.label,
            "about": plan.method.info.summary,
            "paper": plan.method.info.reference,
        },
        "model": {"name": experiment.model.name, "parameters": learner.parameters},
        "task": {
            "name": task.name,
            "headline": plan.headline,
            "higher_is_better": {name: higher_is_better(name) for name in names},
        },
        "guarantees": [guarantee.as_dict() for guarantee in guarantees],
        "noise_multiplier": plan.noise_multiplier,
        "noise_deviation": plan.noise_deviation,
        "clip": getattr(plan.options, "clip", None),
        "metrics": {name: scores.overall[name] for name in sorted(scores.overall, key=plan.headline.__ne__)},
        "warnings": [*plan.warnings, *warnings],
        "silos": scores.silos,
        "over_silos": scores.over_silos or {},
        "test_records": scores.tested or {},
        "shared": None if scores.shared is None else scores.shared.as_dict(),
        "seconds": dict(seconds),
        "environment": _environment(),
        "seed": experiment.seed,
        "budget_file": shared,
        "network": None if network is None else network.as_dict(),
        "evaluation": {
            "status": experiment.evaluation.status,
            "held_out": federation.held_out,
            **({} if plan.evaluation is None else {"standard_errors": scores.errors or {}}),
        },
        "data": {
            "source": experiment.data.source,
            "silos": federation.silo_count,
            "declared_people": plan.promise.facts.subjects,
            "fingerprint": fingerprint,
        },
        "personal": list(federation.silo_names) if plan.method.info.personal else [],
        "inputs": {
            "shape": list(train.features.shape[1:]),
            "dtype": str(train.features.dtype),
            "labels": {"kind": federation.labels.kind, "classes": list(federation.labels.classes)},
        },
    }


def _environment() -> dict[str, Any]:
    return {
        "tacit": version("tacit"),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "numpy": np.__version__,
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
    }


@dataclass(frozen=True)
class Run:
    """A finished (or stopped) run, read from its folder."""

    path: Path
    experiment: Experiment
    result: dict[str, Any]

    @classmethod
    def load(cls, path: str | Path) -> Run:
        """Read a run folder; a UserError where it is none, or where training has not begun."""
        folder = Path(path)
        if not (folder / PLAN).is_file():
            raise UserError("wrong-file", "run", f"'{folder}' is no run folder", "name a folder that `tacit run` wrote")
        if not (folder / RESULT).is_file():
            problem = f"'{folder}' has no result yet"
            raise UserError("unfinished", "run", problem, "finish it with `tacit run … --resume`")
        result = read_json(folder / RESULT, "run")
        return cls(folder, read_experiment(plan_content(folder)), result)

    @property
    def metrics(self) -> dict[str, float | None]:
        """The final metrics by name."""
        return dict(self.result["metrics"])

    @property
    def report(self) -> Path:
        """The path of the report."""
        return self.path / "report.html"

    def history(self) -> pd.DataFrame:
        """Metrics over rounds, one row per evaluated round."""
        rows = read_metrics(self.path / METRICS)
        return pd.DataFrame([{"round": row["round"], "seconds": row["seconds"], **row["metrics"]} for row in rows])

    def guarantees(self) -> list[dict[str, Any]]:
        """What the run promises, as printed."""
        return list(self.result["guarantees"])

    def predict(self, frame: pd.DataFrame | np.ndarray, silo: str | None = None) -> pd.DataFrame:
        """Predictions for new rows: a table with the columns of the training data, or an array of features.

        Binary: ``prediction`` and ``probability`` (of the second class). Multi-class: ``prediction`` and a probability
        per class. Real: ``prediction``. Survival: ``risk`` (a log relative hazard). A run of a personal method holds a
        model per silo: say whose with ``silo``; without, it is the shared model.
        """
        features = self._features(frame, self._shape, self.result["inputs"]["dtype"])
        made, rule, model = self._learned(silo)
        found = outputs(made.objective, model, features, rule.outputs)
        index = frame.index if isinstance(frame, pd.DataFrame) else None
        return _predictions(found, self._labels, index)

    def card(self) -> str:
        """The model card, in Markdown: public facts, guarantees, metrics, limits. The folder has it as a file, too."""
        text: str = load("tacit.report.model_card:card")(self.path)
        return text

    def _repr_html_(self) -> str:
        result = self.result
        found = {name: value for name, value in result["metrics"].items() if value is not None}
        status = (
            f"{result['method']['label']}, {result['rounds']} of {result['rounds_planned']} rounds, {result['status']}"
        )
        outside = found and result["evaluation"]["status"] == "outside-guarantee"
        return box(
            f"Run: {result['title']}",
            line(status),
            table([{"metric": name, "held-out": f"{value:.4f}"} for name, value in found.items()]),
            line("Metrics were computed on private records: they are outside the guarantee.") if outside else "",
            *guarantees_html(result["guarantees"]),
            line(f"Folder {self.path}; report {self.report.name}"),
        )

    def coefficients(self, silo: str | None = None) -> pd.DataFrame:
        """The weights of a linear model, a row per feature: ``weight`` of the standardised feature, and ``per_unit`` of
        the column of the table. With several classes, a column of each for every class.

        The row ``(intercept)`` is the output where all features, or all columns of the table, are 0. Of a private run
        the weights have noise: an interval of estimates without privacy does not apply to them.
        """
        model = self._arrays(silo)
        return portable.coefficients(self.experiment.model.name, model, self._encoder(), self._labels.classes)

    def to_onnx(self, path: str | Path, silo: str | None = None) -> Path:
        """Write the model as an ONNX file, for logistic, linear, cox, mlp and cnn.

        The input ``features`` is ``[rows, features]`` float32, in the units of the table and the order of
        ``coefficients().index``: numeric columns, then 1 or 0 for each ``column=category``. The metadata ``features``
        lists the names. The output is ``probability``, ``probabilities``, ``prediction`` or ``risk``.
        """
        steps, names = self._steps(silo)
        about = {
            "title": self.result["title"],
            "features": json.dumps(names),
            "classes": json.dumps(self._labels.classes),
        }
        portable.write_onnx(steps, self._shape, self._labels.kind, Path(path), about)
        return Path(path)

    def to_torch(self, silo: str | None = None) -> torch.nn.Module:
        """The model as a PyTorch module, of the same input and output as :meth:`to_onnx`."""
        return portable.torch_module(self._steps(silo)[0])

    def module(self, silo: str | None = None) -> Any:
        """The trained module of the framework that the model comes from: PyTorch, Flax, Equinox or Keras.

        It is in evaluation mode. A Linen module comes bound to its variables. Inputs are features as the model was
        trained on them, not raw columns.
        """
        made, _, model = self._learned(silo)
        if made.module is None:
            problem = f"{self.experiment.model.name} is not a module of another framework"
            raise UserError("not-supported", "model.name", problem, "use run.predict or run.to_torch")
        return made.module(model)

    def state_dict(self, silo: str | None = None) -> dict[str, Any]:
        """The parameters by the names of their framework; of a PyTorch module as tensors, else as arrays."""
        _, _, model = self._learned(silo)
        module = self.module(silo)
        if hasattr(module, "load_state_dict"):
            return dict(module.state_dict())
        return {name: np.asarray(leaf) for name, leaf in merged(model).items()}

    @property
    def _labels(self) -> Labels:
        found = self.result["inputs"]["labels"]
        return Labels(found["kind"], tuple(found["classes"]))

    @property
    def _shape(self) -> tuple[int, ...]:
        """The shape of one record."""
        return tuple(self.result["inputs"]["shape"])

    def _learned(self, silo: str | None) -> tuple[Learner, ServerRule, Params]:
        made = learner(self.experiment.model, self._labels, self._shape, Randomness.from_seed(0))
        rule = self._server_rule(made.parameters)
        return made, rule, self._model(made, rule, silo)

    def _arrays(self, silo: str | None) -> portable.Arrays:
        _, rule, model = self._learned(silo)
        if type(rule).outputs is not ServerRule.outputs:
            problem = f"the model of {self.result['method']['name']} is a mixture of models"
            raise UserError("not-supported", "method.name", problem, "use run.predict")
        return {layer: {name: np.asarray(leaf) for name, leaf in own.items()} for layer, own in merged(model).items()}

    def _steps(self, silo: str | None) -> tuple[list[portable.Step], list[str]]:
        """The model as a chain, and the names of its features (none where it was not trained on a table)."""
        options, encoder = self.experiment.model, self._encoder()
        names = [] if encoder is None else list(encoder.feature_names)
        model = self._arrays(silo)
        return portable.steps(options.name, options.numbers, model, encoder, self._labels.kind), names

    def _encoder(self) -> FeatureEncoder | None:
        source = self.path / ENCODER
        return read_encoder(source, "run") if source.is_file() else None

    def _features(self, frame: pd.DataFrame | np.ndarray, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        if isinstance(frame, pd.DataFrame):
            encoder = self._encoder()
            if encoder is None:
                problem = "this run was not trained on a table"
                raise UserError("not-supported", "frame", problem, "pass an array of features")
            return encoder.encode(frame)
        if not isinstance(frame, np.ndarray) or frame.dtype.kind not in "biuf":
            kind = type(frame).__name__
            problem = f"a {kind} is no table"
            raise UserError("wrong-type", "frame", problem, "pass a pandas DataFrame or an array of numbers")
        if frame.shape[1:] != shape:
            problem = f"rows have shape {list(frame.shape[1:])}, the model takes {list(shape)}"
            raise UserError("mismatch", "frame", problem, "reshape the array")
        if not np.isfinite(frame).all():
            raise UserError("not-finite", "frame", "the array holds numbers that are not finite", "replace them")
        return frame.astype(dtype)

    def _server_rule(self, parameters: int) -> ServerRule:
        """How the server kept its model; the amount of noise, which may have been solved for, does not matter."""
        options = self.experiment.made_method()
        options = options if options.noise_key is None else options.with_noise(1.0)
        silos = max(len(self.result["personal"]), 1)
        return options.build(Facts(silos=silos, parameters=parameters)).server

    def _model(self, made: Learner, rule: ServerRule, silo: str | None) -> Params:
        """The shared model of the run, or of one silo where every silo has its own."""
        names = self.result["personal"]
        shared = rule.shared(rule.init(ServerStep(), made.params, max(len(names), 1)))
        template = {**(made.params if shared is None else shared), **made.frozen}
        if silo is None and shared is not None:
            return load_tree(self.path / MODEL, template, "run")[0]
        if not names:
            problem = f"{silo!r} has no model of its own here"
            raise UserError("not-supported", "silo", problem, "leave it out: the run has one model")
        if silo not in names:
            problem = f"{silo!r} is no silo of this run"
            raise UserError("unknown-name", "silo", problem, f"name one of {', '.join(names)}")
        stacked = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (len(names), *leaf.shape)), template)
        model, _ = load_tree(self.path / PERSONAL, stacked, "run")
        return jax.tree.map(lambda leaf: leaf[names.index(silo)], model)


def _class_names(labels: Labels) -> np.ndarray:
    """The classes as a table would hold them: numbers where all of them are whole numbers, text otherwise."""
    numeric = all(name.lstrip("-").isdigit() for name in labels.classes)
    return np.array([int(name) for name in labels.classes] if numeric else labels.classes)


def _predictions(found: np.ndarray, labels: Labels, index: pd.Index | None) -> pd.DataFrame:
    """Outputs ``[rows, k]`` as a table that people can read."""
    if labels.kind == "survival":
        return pd.DataFrame({"risk": found[:, 0]}, index=index)
    if labels.kind == "real":
        return pd.DataFrame({"prediction": found[:, 0]}, index=index)
    if labels.kind == "multilabel":
        each = 1 / (1 + np.exp(-found.astype(np.float64)))
        table = {name: (each[:, i] > 0.5).astype(int) for i, name in enumerate(labels.classes)}
        table |= {f"probability {name}": each[:, i] for i, name in enumerate(labels.classes)}
        return pd.DataFrame(table, index=index)
    names = _class_names(labels)
    if labels.kind == "binary":
        probability = 1 / (1 + np.exp(-found[:, 0].astype(np.float64)))
        table = {"prediction": names[(probability > 0.5).astype(int)], "probability": probability}
        return pd.DataFrame(table, index=index)
    shifted = np.exp(found - found.max(axis=1, keepdims=True))
    probabilities = shifted / shifted.sum(axis=1, keepdims=True)
    table = {"prediction": names[found.argmax(axis=1)]}
    table.update({f"probability {name}": probabilities[:, i] for i, name in enumerate(names)})
    return pd.DataFrame(table, index=index)
