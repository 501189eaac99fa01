"""Framework race, Tacit: one step of subject-sgd, the sum of all people's clipped gradients, 64 people with 8 images.

``--framework native``: Tacit's own model; any other: the module of ``benchmarks.frameworks``, through its adapter.
"""

from __future__ import annotations

import os
import time

from benchmarks.record import Record, arguments

os.environ.setdefault("KERAS_BACKEND", "jax")
options = arguments(model="cnn", framework="native")
record = Record(options.framework)
with record.phase("imports"):
    import jax
    import numpy as np

    from benchmarks import private_step as work
    from tacit.kernels import Arrays, Gradient, Objective, arrange, people_sum
    from tacit.models import build, parameter_count, task_for

RACE = work.RACES[options.model]
PEOPLE, RECORDS = 64, 8
ROUNDS = 40
SCALE = 2.0**20 / work.CLIP  # steps that make 1


def main() -> None:
    with record.phase("load"):
        made = work.examples(RACE)
        few = PEOPLE * RECORDS
        arrays = Arrays(jax.device_put(made.features[:few]), jax.device_put(made.labels[:few].astype(np.int32)))
    with record.phase("train"):
        is_native = options.framework == "native"
        name = RACE.model if is_native else f"benchmarks.frameworks.{options.framework}:{RACE.model}"
        model, task = build(name, made.features.shape[1:], 10), task_for("multiclass", 10)
        params = model.init(jax.random.key(RACE.seed))
        fixed = {name: params.pop(name) for name in model.fixed}
        objective, computes = Objective(model.apply, task), Gradient()
        counts = np.full(PEOPLE, RECORDS)
        layout = computes.layout(objective, params, arrays)
        lanes = arrange(np.cumsum(counts) - counts, counts, np.ones(PEOPLE), layout)
        for _ in range(ROUNDS):
            begun, used = time.perf_counter(), time.process_time()
            for lane in lanes:
                found = people_sum(objective, fixed, arrays, params, lane, computes, work.CLIP, SCALE)
                jax.block_until_ready(found)
            record.round_seconds.append(time.perf_counter() - begun)
            record.round_processor_seconds.append(time.process_time() - used)
    with record.phase("evaluate"):
        record.parameters = parameter_count(params)
    record.settings = {"threads": "one lane after the other"}
    record.versions = {"jax": jax.__version__}
    record.show()


if __name__ == "__main__":
    main()
