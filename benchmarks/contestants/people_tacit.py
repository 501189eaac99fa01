"""The race over people, Tacit: two lanes in two threads, as an engine drives them.

The same process also times the same number of records dealt by Zipf's law, and twice as many records, in turns with
the race's own rounds.
"""

from __future__ import annotations

import time

from benchmarks.record import Record, arguments

record = Record("tacit")
with record.phase("imports"):
    from concurrent.futures import ThreadPoolExecutor
    from functools import reduce

    import jax
    import numpy as np

    from benchmarks import people_work as work
    from tacit.kernels import Arrays, LocalTraining, Objective, PeopleSum, arrange, people_sum
    from tacit.models import build, task_for


SCALE = 2.0**22 / work.CLIP  # steps that make 1


class Rounds:
    """Rounds over people with the given numbers of records."""

    def __init__(self, case: work.Case, counts: np.ndarray) -> None:
        features, labels = work.records(case, int(counts.sum()))
        task = task_for("binary") if case.model == "mlp" else task_for("multiclass", 10)
        numbers = {"hidden": work.HIDDEN} if case.model == "mlp" else {}
        self.objective = Objective(build(case.model, features.shape[1:], task.outputs, **numbers).apply, task)
        self.arrays = Arrays(jax.device_put(features), jax.device_put(labels.astype(np.int32)))
        layers = {f"layer{i}": {"w": w, "b": b} for i, (w, b) in enumerate(work.start(case))}
        self.params = jax.device_put(layers)
        self.local = LocalTraining(epochs=case.steps, rate=case.rate)
        layout = self.local.layout(self.objective, self.params, self.arrays)
        self.lanes = arrange(np.cumsum(counts) - counts, counts, np.ones(len(counts)), layout)

    def run(self, pool: ThreadPoolExecutor) -> float:
        """One round; the norm of the sum."""
        sums = list(pool.map(self._lane, self.lanes))
        return float(np.linalg.norm(reduce(PeopleSum.plus, sums).total.integers() / SCALE))

    def _lane(self, lane) -> PeopleSum:
        return jax.block_until_ready(
            people_sum(self.objective, {}, self.arrays, self.params, lane, self.local, work.CLIP, SCALE)
        )


def main() -> None:
    options = arguments(case="")
    case = work.CASES[options.case]
    with record.phase("load"):
        counts = {"uniform": work.uniform(case), "zipf": work.zipf(case), "double": work.uniform(case, 2)}
        rounds = {name: Rounds(case, of) for name, of in counts.items()}
    with record.phase("train"), ThreadPoolExecutor(2) as pool:
        for name, of in rounds.items():
            begun = time.perf_counter()
            norm = of.run(pool)
            record.answer = norm if name == "uniform" else record.answer
            record.variants[name] = [time.perf_counter() - begun]
        for _ in range(2 * case.rounds):
            for name, of in rounds.items():
                begun, used = time.perf_counter(), time.process_time()
                of.run(pool)
                record.variants[name].append(time.perf_counter() - begun)
                if name == "uniform":
                    record.round_processor_seconds.append(time.process_time() - used)
        record.round_seconds = record.variants["uniform"]
    with record.phase("evaluate"):
        record.parameters = sum(leaf.size for leaf in jax.tree.leaves(rounds["uniform"].params))
    record.settings = {"threads": "two lanes, JAX's default"}
    record.versions = {"jax": jax.__version__, "numpy": np.__version__}
    record.show()


if __name__ == "__main__":
    main()
