from __future__ import annotations

import numpy as np
import pytest

from tacit.kernels import ServerStep


def reference(optimizer: str, rate: float, updates: np.ndarray) -> np.ndarray:
    """Reddi et al. 2021, algorithm 2, with beta1 .9, beta2 .99, tau 1e-3, in numpy."""
    x, m, v = np.zeros(3), np.zeros(3), np.full(3, 1e-6)
    for d in updates:
        m = 0.9 * m + 0.1 * d
        if optimizer == "adagrad":
            v = v + d**2
        elif optimizer == "yogi":
            v = v - 0.01 * d**2 * np.sign(v - d**2)
        else:
            v = 0.99 * v + 0.01 * d**2
        x = x + rate * m / (np.sqrt(v) + 1e-3)
    return x


@pytest.mark.parametrize("optimizer", ["adagrad", "yogi", "adam"])
def test_adaptive_steps_are_those_of_the_paper(optimizer):
    updates = np.random.default_rng(1).normal(size=(8, 3)).astype(np.float32)
    step = ServerStep(optimizer, 0.1)
    params = {"a": np.zeros(3, np.float32)}
    memory = step.init(params)
    for update in updates:
        params, memory = step.apply(params, memory, {"a": update})
    np.testing.assert_allclose(params["a"], reference(optimizer, 0.1, updates.astype(np.float64)), rtol=2e-5)


def test_sgd_adds_the_update_and_momentum_remembers_it():
    params, update = {"a": np.ones(2, np.float32)}, {"a": np.array([1.0, -2.0], np.float32)}
    plain, memory = ServerStep("sgd", 0.5).apply(params, (), update)
    np.testing.assert_allclose(plain["a"], [1.5, 0.0])
    assert memory == ()
    step = ServerStep("momentum", 0.5)
    once, memory = step.apply(params, step.init(params), update)
    twice, _ = step.apply(once, memory, update)
    np.testing.assert_allclose(twice["a"], 1 + 0.5 * (1 + 1.9) * np.array([1.0, -2.0]), rtol=1e-6)
