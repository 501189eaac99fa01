"""The Tacit side of both races: the simulator's own rounds, without the ledger and the checkpoints that ``tacit run``
writes beside them."""

from __future__ import annotations

import time

from benchmarks.record import Record, arguments


def compete(record: Record, race_name: str, model: str) -> None:
    """Run a race and print its record."""
    options = arguments()
    with record.phase("imports"):
        import jax
        import numpy as np

        import tacit
        from benchmarks import work
        from tacit.data import Federation, Labels, Records
        from tacit.engine.learner import learner
        from tacit.engine.simulate import Simulation
        from tacit.privacy import Randomness

    race: work.Race = getattr(work, race_name)
    together = max(1, race.warm_up_rounds // 2)

    def records(images: np.ndarray, labels: np.ndarray, silo: np.ndarray) -> Records:
        return Records(images, labels.astype(np.int32), np.arange(len(labels), dtype=np.int32), silo.astype(np.int32))

    with record.phase("load"):
        digits = work.load_digits(race, work.data_folder(options.data))
        silo = np.repeat(np.arange(race.silos), race.records_per_silo)
        train = records(digits.images.reshape(-1, 28, 28), digits.labels.reshape(-1), silo)
        test = records(digits.test_images, digits.test_labels, np.zeros(len(digits.test_labels)))
        names = tuple(f"silo {k + 1}" for k in range(race.silos))
        labels = Labels("multiclass", tuple(map(str, range(work.CLASSES))))
        federation = Federation(train, test, labels, names, len(train) + len(test), (), "given")
    with record.phase("train"):
        method = {
            "name": "fedavg",
            "batch_size": race.batch_size,
            "local_epochs": race.local_epochs,
            "local_learning_rate": race.local_learning_rate,
            "silo_sample_rate": race.silos_per_round / race.silos,
        }
        plan = tacit.plan(
            {
                "data": {"task": "multiclass", "classes": work.CLASSES},
                "model": {"name": model},
                "method": method,
                "train": {"rounds": race.rounds},
            }
        )
        randomness = Randomness.from_seed(race.seed)
        start = learner(plan.experiment.model, labels, (28, 28), randomness)
        simulation = Simulation(plan, federation, start, randomness)
        for first in range(1, race.rounds + 1, together):
            begun = time.perf_counter()
            for number in range(first, first + together):
                simulation.round(number)
            jax.block_until_ready(simulation.state)
            record.round_seconds += [(time.perf_counter() - begun) / together] * together
    with record.phase("evaluate"):
        record.accuracy = simulation.evaluate(federation, per_silo=False).overall["accuracy"] or 0.0
    record.parameters = start.parameters
    record.settings = {"threads": "JAX's default"}
    record.versions = {"jax": jax.__version__, "numpy": np.__version__}
    record.notes = ["shuffles a silo's records before every epoch"]
    if together > 1:
        record.notes.append(f"does not wait for the device between rounds, as in a run: timed {together} at a time")
    if race.silos_per_round < race.silos:
        record.notes.append(
            f"draws silos by Poisson sampling with rate {race.silos_per_round / race.silos:g}: "
            f"{race.silos_per_round} per round on average"
        )
    record.show()
