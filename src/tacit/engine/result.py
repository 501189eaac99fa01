"""What a run says about itself when it has ended, and a line of its metrics, wherever it ran."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tacit.data import Federation
from tacit.engine.evaluate import Scores
from tacit.engine.learner import Learner
from tacit.models import higher_is_better
from tacit.planning.plan import Plan
from tacit.privacy import Guarantee

EVALUATIONS = 100  # at most so many points on a curve, unless the plan says otherwise
NOT_EVALUATED = Scores({}, {})


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
) -> dict[str, Any]:
    """What ``--json`` prints and the report reads: nothing exact about the private data beyond the metrics."""
    experiment, task, train = plan.experiment, learner.task, federation.train
    names = list(task.metrics if plan.evaluation is None else plan.paid_metrics)
    network = plan.exchange.plan_parts(plan.promise).get("network")
    return {
        "title": experiment.title,
        "run": str(place),
        "status": status,
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
            "headline": task.headline if task.headline in names else names[0],
            "higher_is_better": {name: higher_is_better(name) for name in names},
        },
        "guarantees": [guarantee.as_dict() for guarantee in guarantees],
        "noise_multiplier": plan.noise_multiplier,
        "noise_deviation": plan.noise_deviation,
        "clip": getattr(plan.options, "clip", None),
        "metrics": scores.overall,
        "silos": scores.silos,
        "over_silos": scores.over_silos or {},
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
        "data": {"source": experiment.data.source, "silos": federation.silo_count},
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
