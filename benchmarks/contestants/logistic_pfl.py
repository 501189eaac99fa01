"""Race 1, pfl: its simulated backend and its FederatedAveraging, with every record in memory as tensors.

What would slow it down for no reason of its own is switched off: metrics to the terminal, evaluation between rounds
(pfl evaluates the participants of the very first round whatever its frequency; that round is no part of the steady
figure), postprocessors, and the search for a device at every batch. Data sets of silos are built once; what torch
imports at its first optimiser is counted as import. Tuned in its favour: threads, worker processes (pfl's own way to
spread a round over cores) and the way that torch's SGD loops over parameters.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

from benchmarks.record import Record, arguments

options = arguments(threads=1, sgd_loop="plain", workers=1)


def start_other_workers() -> list[subprocess.Popen[bytes]]:
    """Start the workers 1, 2, … of pfl's distributed simulation; this process is worker 0."""
    os.environ.setdefault("PFL_PYTORCH_DEVICE", "cpu")
    if options.workers == 1 or "PFL_WORKER_RANK" in os.environ:
        return []
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    os.environ["PFL_WORKER_ADDRESSES"] = ",".join([f"localhost:{port}"] * options.workers)
    os.environ["PFL_WORKER_RANK"] = "0"
    command = [sys.executable, "-m", "benchmarks.contestants.logistic_pfl", *sys.argv[1:]]
    return [
        subprocess.Popen(command, env={**os.environ, "PFL_WORKER_RANK": str(rank)}, stdout=subprocess.DEVNULL)
        for rank in range(1, options.workers)
    ]


record = Record("pfl")
with record.phase("imports"):
    workers = start_other_workers()
    from functools import partial
    from importlib.metadata import version

    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel
    from torch.nn.functional import cross_entropy

    from benchmarks.work import CLASSES, PIXELS, Digits, data_folder, load_digits, participants
    from benchmarks.work import CROSS_DEVICE as RACE

    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0).zero_grad()

SGD_LOOPS = {"plain": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


class Logistic(torch.nn.Linear):
    """Multinomial logistic regression from zero, with the two methods that pfl asks of a module."""

    def __init__(self) -> None:
        super().__init__(PIXELS, CLASSES)
        torch.nn.init.zeros_(self.weight)
        torch.nn.init.zeros_(self.bias)

    def loss(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return cross_entropy(self(images), labels)

    @torch.no_grad()
    def metrics(self, images: torch.Tensor, labels: torch.Tensor) -> dict[str, Weighted]:
        hits = (self(images).argmax(dim=1) == labels).sum().item()
        return {"accuracy": Weighted(hits, len(labels))}


class Clock(TrainingProcessCallback):
    """Time between the ends of rounds."""

    def __init__(self) -> None:
        self._last = 0.0

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        self._last = time.perf_counter()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        now = time.perf_counter()
        record.round_seconds.append(now - self._last)
        self._last = now
        return False, Metrics()


def datasets_of_silos(digits: Digits) -> list[Dataset]:
    images = torch.from_numpy(digits.images).reshape(RACE.silos, RACE.records_per_silo, PIXELS)
    labels = torch.from_numpy(digits.labels)
    return [Dataset((x, y), user_id=str(silo)) for silo, (x, y) in enumerate(zip(images, labels, strict=True))]


def train(datasets: list[Dataset], sgd_loop: str) -> PyTorchModel:
    """All rounds, with the participants of the common schedule; their times go into the record."""
    schedule = iter(participants(RACE).ravel().tolist())
    silos = FederatedDataset(datasets.__getitem__, lambda: next(schedule))
    module = Logistic()
    model = PyTorchModel(
        module,
        local_optimizer_create=partial(torch.optim.SGD, **SGD_LOOPS[sgd_loop]),
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    return FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=RACE.rounds,
            evaluation_frequency=RACE.rounds,
            train_cohort_size=RACE.silos_per_round,
            val_cohort_size=0,
        ),
        SimulatedBackend(training_data=silos, val_data=silos),
        model,
        NNTrainHyperParams(
            local_batch_size=RACE.batch_size,
            local_num_epochs=RACE.local_epochs,
            local_learning_rate=RACE.local_learning_rate,
        ),
        callbacks=[Clock()],
        send_metrics_to_platform=False,
    )


def main() -> None:
    torch.set_num_threads(options.threads)
    with record.phase("load"):
        digits = load_digits(RACE, data_folder(options.data))
        datasets = datasets_of_silos(digits)
        test = Dataset((torch.from_numpy(digits.test_images).reshape(-1, PIXELS), torch.from_numpy(digits.test_labels)))
    with record.phase("train"):
        model = train(datasets, options.sgd_loop)
    with record.phase("evaluate"):
        record.accuracy = model.evaluate(test)["accuracy"].overall_value
    record.parameters = sum(p.numel() for p in model.pytorch_model.parameters())
    record.settings = {"threads": options.threads, "sgd_loop": options.sgd_loop, "workers": options.workers}
    record.versions = {"pfl": version("pfl"), "torch": torch.__version__}
    record.notes = ["evaluates the participants of round 1 (part of the wall time, not of the steady figure)"]
    record.show()
    for worker in workers:
        worker.wait(timeout=60)


if __name__ == "__main__":
    main()
