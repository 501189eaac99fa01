"""A method's numbers are arguments of what is compiled: runs that differ in them alone compile nothing anew."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.monitoring
import numpy as np
import pytest

from tacit.kernels import ServerStep
from tacit.methods import METHODS, Facts
from tacit.methods.base import LocalWork, ServerRule
from tests.methods.worlds import federation, simulation, weights

_compiled: list[str] = []


def _listen(event: str, duration_secs: float, **_: Any) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        _compiled.append(event)


jax.monitoring.register_event_duration_secs_listener(_listen)

# what each method has beside a clip and a noise multiplier
NUMBERS: dict[str, dict[str, Any]] = {
    "subject-sgd": {"local_epochs": 2, "local_learning_rate": 0.1},
    "uldp-naive": {"local_learning_rate": 0.1},
    "higrad": {"batches_per_round": 2, "sample_rate": 0.3, "local_learning_rate": 0.1},
    "pooled-dp-sgd": {"batches_per_round": 2, "sample_rate": 0.3, "local_learning_rate": 0.1, "projection": 1.0},
    "central-group": {"sample_rate": 0.3},
    "dp-fedavg": {"local_learning_rate": 0.1},
}
FACTOR = {"clip": 0.5, "noise_multiplier": 1.0, "local_learning_rate": 1.0, "projection": 1.0}


def made() -> Any:
    rng = np.random.default_rng(0)
    return federation(rng.normal(size=(40, 4)), rng.normal(size=40), np.arange(40) % 8, np.arange(40) % 2, 2)


def after_two_rounds(name: str, factor: float, adaptive: bool) -> np.ndarray:
    """The model after two rounds with all numbers that may differ times ``factor``."""
    numbers = {"clip": 0.5, "noise_multiplier": 1.0, **NUMBERS[name]}
    changed = {key: value * factor if key in FACTOR else value for key, value in numbers.items()}
    if adaptive:
        changed["adaptive_clip"] = {"quantile": 0.5 * factor, "rate": 0.2 * factor, "count_noise": 4.0 * factor}
    sim = simulation(made(), {"name": name, **changed}, train={"server_learning_rate": 0.7 * factor})
    sim.round(1)
    sim.round(2)
    return weights(sim)


@pytest.mark.parametrize(
    ("name", "adaptive"), [*((name, False) for name in NUMBERS), ("higrad", True), ("subject-sgd", True)]
)
def test_another_noise_clip_or_rate_compiles_nothing_and_counts(name, adaptive):
    found = [after_two_rounds(name, 1.0, adaptive)]
    before = len(_compiled)
    found += [after_two_rounds(name, factor, adaptive) for factor in (0.5, 1.3, 1.9)]
    assert len(_compiled) == before
    assert np.abs(np.diff(found, axis=0)).max(axis=1).min() > 1e-4


def test_the_compilations_of_a_new_structure_are_seen():
    """The counter counts: another server optimiser is another computation."""
    before = len(_compiled)
    sim = simulation(made(), {"name": "higrad", "noise_multiplier": 1.0}, train={"server_optimizer": "yogi"})
    sim.round(1)
    assert len(_compiled) > before


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if kind.noise_key == "noise_multiplier"])
def test_the_numbers_of_a_method_are_its_leaves_and_come_back(name):
    facts = Facts(silos=2, subjects=10, records_per_silo=(20, 20))

    def parts(noise: float, clip: float, lengthened: int) -> tuple[LocalWork, ServerRule]:
        method = METHODS[name](noise_multiplier=noise, clip=clip).build(replace(facts, rounds=lengthened))
        return method.work, method.server

    made = parts(1.5, 0.25, 1)
    leaves, structure = jax.tree.flatten(made)
    assert {0.25, 1.5} <= set(leaves)
    assert jax.tree.unflatten(structure, leaves) == made
    assert structure == jax.tree.structure(parts(9.0, 3.0, 7))
    assert not any(isinstance(leaf, int | str) for leaf in leaves)


def test_an_optimiser_is_structure_and_its_rate_is_a_number():
    assert jax.tree.leaves(ServerStep("adam", 0.3)) == [0.3]
    assert jax.tree.structure(ServerStep("adam", 0.3)) != jax.tree.structure(ServerStep("yogi", 0.3))
