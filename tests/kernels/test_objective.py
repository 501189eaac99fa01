from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from tacit.kernels import Arrays, Objective
from tacit.kernels.training import PASS_ROWS
from tacit.models import build, task_for

MODEL = build("logistic", (3,), 1)
OBJECTIVE = Objective(MODEL.apply, task_for("binary", 2))


def made(rows: int) -> Arrays:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(rows, 3)).astype(np.float32)
    return Arrays(jnp.asarray(features), jnp.asarray((features[:, 0] > 0).astype(np.int32)))


def test_a_large_batch_summed_in_passes_has_the_gradient_of_the_whole():
    rows = 2 * PASS_ROWS + 300
    arrays = made(4 * PASS_ROWS)
    params = jax.tree.map(lambda leaf: leaf + 0.3, MODEL.init(jax.random.key(0)))
    index = jnp.arange(4 * PASS_ROWS)
    passes = jax.jit(OBJECTIVE.batch_gradient)(params, {}, arrays, index, rows)
    mask = (index < rows).astype(jnp.float32)
    whole = jax.grad(OBJECTIVE.loss)(params, {}, arrays.features, arrays.labels, mask)
    for one, other in zip(jax.tree.leaves(passes), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_an_empty_batch_has_gradient_zero():
    arrays = made(PASS_ROWS * 2)
    params = MODEL.init(jax.random.key(0))
    for capacity in (8, PASS_ROWS * 2):
        gradient = OBJECTIVE.batch_gradient(params, {}, arrays, jnp.arange(capacity), jnp.int32(0))
        assert all(float(jnp.abs(leaf).max()) == 0 for leaf in jax.tree.leaves(gradient))
