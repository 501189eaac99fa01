"""Who competes in the figures of [ULDP-FL]: every method with what the paper fixes, and the numbers that are chosen.

The noise multiplier is the paper's 5 everywhere. Clips and rates are "set individually for each method" there; here
they come from the grids below, judged on held-out training people (choose.py). Settings are chosen once per data set,
in the allocation of its experiment file, and used for all of its panels.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))  # the folder of research/

from research.study import Contender

SIGMA = 5.0
TARGET = 9.998  # the proved epsilon of sigma 5 and 100 rounds (specification 8), rounded up

# what settings are judged by
METRIC = {
    "creditcard": "average_precision",
    "heart": "log_loss",
    "tcga-brca": "c_index",
    "insteval": "auc",
    "diabetes130": "auc",
    "mnist": "log_loss",
}
# for everything that is clipped person by person
CLIPS = {
    "creditcard": (0.1, 0.2),
    "heart": (0.1, 0.5),
    "tcga-brca": (0.1, 0.5),
    "insteval": (0.1, 0.5),
    "diabetes130": (0.1, 0.5),
    "mnist": (0.3, 1.0),
}
RATES = {
    "creditcard": (40.0, 80.0),
    "heart": (2.0, 10.0),
    "tcga-brca": (2.0, 10.0),
    "insteval": (30.0, 100.0),
    "diabetes130": (100.0, 1000.0),
    "mnist": (10.0, 30.0),
}
MOMENTUM_RATES = (6.0, 12.0)
RATE, OPTIMIZER = "train.server_learning_rate", "train.server_optimizer"
# gradients are longer than three small steps of local training
GRADIENTS = {"creditcard": {"clip": (0.2, 0.5), RATE: (15.0, 40.0)}}
NOISE = {"noise_multiplier": SIGMA}
RECORD_WEIGHTS = {"weights": "records-phantom", "disclose_counts": True}


def published(data: str) -> list[Contender]:
    """The methods of the paper's figures."""
    people, momentum = {"clip": CLIPS[data], RATE: RATES[data]}, {"clip": (0.1,), RATE: MOMENTUM_RATES}
    average = {"name": "uldp-avg", **local(data), **NOISE}
    # a Cox batch compares patients with each other: all of a silo's
    batches = {} if data == "tcga-brca" else {"batch_size": 64}
    return [
        Contender("fedavg", {"name": "fedavg", **batches}, {"local_learning_rate": (0.03, 0.1, 0.3)}, {RATE: 1.0}),
        Contender("uldp-naive", {"name": "uldp-naive", **batches, **NOISE, "clip": 0.1}, {RATE: (0.1, 1.0)}),
        *(grouped(size) for size in ("max", "median", 8, 2)),
        Contender("uldp-sgd", {"name": "uldp-sgd", **NOISE}, GRADIENTS.get(data, people)),
        Contender("uldp-avg", average, people),
        Contender("uldp-avg-w", {**average, **RECORD_WEIGHTS}, people),
        *(
            [Contender("uldp-avg-w, momentum", {**average, **RECORD_WEIGHTS}, momentum, {OPTIMIZER: "momentum"})]
            if data == "creditcard"
            else []
        ),
    ]


def local(data: str) -> dict[str, Any]:
    """Everybody's local training: few passes with a large rate, at a tenth of the work of the paper's 30 passes."""
    return {"local_epochs": 2 if data == "mnist" else 3, "local_learning_rate": 0.3 if data == "creditcard" else 0.1}


def grouped(size: int | str) -> Contender:
    """DP-SGD in every silo on at most ``size`` records of a person; a round has ten batches of a twentieth each."""
    method = {"name": "uldp-group", "group_size": size, "sample_rate": 0.05, "batches_per_round": 10, "clip": 0.5}
    return Contender(f"uldp-group-{size}", {**method, **NOISE}, {"local_learning_rate": (0.1, 0.3)}, {RATE: 1.0})


def capped(cap: int, changes: dict[str, Any]) -> Contender:
    """Weights from what a silo knows by itself, up to ``cap`` records."""
    method = {"name": "uldp-avg", **local("creditcard"), **NOISE, "weights": "capped", "weight_cap": cap}
    return Contender("capped weights", method, {}, changes)


def beyond() -> list[Contender]:
    """What the paper does not have: options of ``uldp-avg`` on Creditcard, at the epsilon of the paper's noise. Nothing
    is chosen for them: all have the clip and rate of ``uldp-avg-w``."""
    average = {"name": "uldp-avg", **local("creditcard"), "clip": 0.1}
    weighted = {**average, **RECORD_WEIGHTS}
    target, rate = {**weighted, "target_epsilon": TARGET}, {RATE: 80.0}
    adaptive = {"quantile": 0.8, "rate": 0.1, "count_noise": 30.0}
    return [
        capped(10, {}),
        Contender("-w, Adam", {**weighted, **NOISE}, {}, {OPTIMIZER: "adam", RATE: 0.03}),
        Contender("-w, adaptive clip", {**target, "adaptive_clip": adaptive}, {}, rate),
        *(
            Contender(f"-w, 4 groups, {noise}", {**target, "correlated_noise": {"groups": 4, "bands": bands}}, {}, rate)
            for noise, bands in (("independent noise", 1), ("correlated noise", 4))
        ),
    ]
