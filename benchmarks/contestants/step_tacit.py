"""Private-step race, Tacit: clipped sum, noise and update as one compiled step.

Modes: ``private`` (every record with weight 1, as in DP-SGD), ``weighted`` (records of one person share a weight of 1,
as in HiGradAvgDP; here by a made-up number of records per person) and ``plain`` (no privacy: the ordinary gradient).
With ``--framework`` the model is a module of ``benchmarks.frameworks``, through its adapter.
"""

from __future__ import annotations

import resource
import sys
import time

from benchmarks.record import Record, arguments

options = arguments(model="cnn", mode="private", batch=0, framework="")
record = Record(f"tacit {options.framework or options.mode}")
with record.phase("imports"):
    from functools import partial

    import jax
    import jax.numpy as jnp
    import numpy as np

    from benchmarks import private_step as work
    from tacit.kernels import (
        Arrays,
        Objective,
        Sampled,
        Work,
        key_words,
        noisy_descend,
    )
    from tacit.kernels.noisy_descent import clipped_records
    from tacit.models import Params, build, parameter_count, task_for
    from tacit.privacy import Randomness

RACE = work.RACES[options.model]
BATCH = options.batch or RACE.batch_size
BLOCK = 256  # records that are added up in float32


def main() -> None:
    with record.phase("load"):
        made = work.examples(RACE)
        integers = made.features.dtype == np.int64
        arrays = Arrays(
            jnp.asarray(made.features.astype(np.int32) if integers else made.features),
            jnp.asarray(made.labels.astype(np.int32)),
        )
    with record.phase("train"):
        classes = work.CHARACTERS if integers else 10
        own = f"benchmarks.frameworks.{options.framework}:{RACE.model}"
        model = build(own if options.framework else RACE.model, made.features.shape[1:], classes)
        params = model.init(jax.random.key(RACE.seed))
        fixed = {name: params.pop(name) for name in model.fixed}
        objective = Objective(lambda tree, x: model.apply({**tree, **fixed}, x), task_for("multiclass", classes))
        step = plain_step(objective) if options.mode == "plain" else private_step(objective)
        key = jnp.asarray(key_words(Randomness.from_seed(RACE.seed).stream("noise")))
        people = np.random.default_rng(0).integers(1, 5, BATCH) if options.mode == "weighted" else np.ones(BATCH)
        weight = jnp.asarray(1 / people, jnp.float32)
        for number, batch in enumerate(work.batches(RACE, BATCH)):
            begun = time.perf_counter()
            params = step(params, arrays, batch.astype(np.int32), weight, np.int32(BATCH), key, np.int32(number))
            jax.block_until_ready(params)
            record.round_seconds.append(time.perf_counter() - begun)
    with record.phase("evaluate"):
        if not all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(params)):
            sys.exit("the parameters are not finite")
    record.parameters = parameter_count(params)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # Linux counts in kilobytes
    record.settings = {"threads": "JAX's default", "batch": BATCH, "peak_gb": peak}
    record.versions = {"jax": jax.__version__}
    record.show()


def private_step(objective: Objective):
    """The loop over batches that silos run, with one batch: how many there are is data, as in a run."""

    @partial(jax.jit, donate_argnums=0)
    def step(params: Params, arrays: Arrays, index, weight, stop, key, number) -> Params:
        blocks = jnp.minimum(jnp.arange(0, len(index) + BLOCK, BLOCK), stop)
        noise = jnp.full(1, work.NOISE_MULTIPLIER)
        # every step has a key of its own, as every round of a run has
        own = key.at[0].add(number.astype(jnp.uint32))
        batch = Sampled(index, weight, blocks[None], noise, jnp.minimum(stop, 1), jnp.float32(BATCH), own)
        silo = Work(objective, {}, arrays, batch, jnp.float32(len(arrays.labels)))
        return noisy_descend(silo, params, work.LEARNING_RATE, jnp.float32(work.CLIP), clipped_records)[0]

    return step


def plain_step(objective: Objective):
    @partial(jax.jit, donate_argnums=0)
    def step(params: Params, arrays: Arrays, index, weight, stop, key, number) -> Params:
        gradient = objective.batch_gradient(params, {}, arrays, index, stop)
        return jax.tree.map(lambda p, g: p - work.LEARNING_RATE * g, params, gradient)

    return step


if __name__ == "__main__":
    main()
