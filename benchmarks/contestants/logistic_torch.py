"""Race 1, a plain PyTorch loop: one set of parameters, updated in place, silo after silo."""

from __future__ import annotations

import time

from benchmarks.record import Record, arguments

record = Record("torch")
with record.phase("imports"):
    import torch
    from torch.nn.functional import cross_entropy, linear

    from benchmarks.work import CLASSES, PIXELS, data_folder, load_digits, participants
    from benchmarks.work import CROSS_DEVICE as RACE

Parameters = list[torch.Tensor]
Batches = list[tuple[torch.Tensor, torch.Tensor]]


def batches_of_silos(images: torch.Tensor, labels: torch.Tensor) -> list[Batches]:
    """Views on each silo's batches, made once."""
    flat = images.reshape(RACE.silos, RACE.records_per_silo, PIXELS)
    return [
        list(zip(x.split(RACE.batch_size), y.split(RACE.batch_size), strict=True))
        for x, y in zip(flat, labels, strict=True)
    ]


def train_locally(parameters: Parameters, batches: Batches) -> None:
    """Plain SGD in place."""
    for _ in range(RACE.local_epochs):
        for images, labels in batches:
            gradients = torch.autograd.grad(cross_entropy(linear(images, *parameters), labels), parameters)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.sub_(gradient, alpha=RACE.local_learning_rate)


@torch.no_grad()
def copy_into(target: Parameters, source: Parameters) -> None:
    for t, s in zip(target, source, strict=True):
        t.copy_(s)


@torch.no_grad()
def add_into(target: Parameters, source: Parameters) -> None:
    for t, s in zip(target, source, strict=True):
        t.add_(s)


def run_round(shared: Parameters, local: Parameters, total: Parameters, silos: list[Batches]) -> None:
    """One round of FedAvg; ``local`` and ``total`` are buffers that live for the whole race."""
    for tensor in total:
        tensor.zero_()
    for batches in silos:
        copy_into(local, shared)
        train_locally(local, batches)
        add_into(total, local)
    for tensor in total:
        tensor.div_(len(silos))
    copy_into(shared, total)


def train(silos: list[Batches]) -> Parameters:
    """All rounds; their times go into the record."""
    shared = [torch.zeros(CLASSES, PIXELS), torch.zeros(CLASSES)]
    local = [torch.zeros_like(tensor, requires_grad=True) for tensor in shared]
    total = [torch.zeros_like(tensor) for tensor in shared]
    for chosen in participants(RACE).tolist():
        start = time.perf_counter()
        run_round(shared, local, total, [silos[silo] for silo in chosen])
        record.round_seconds.append(time.perf_counter() - start)
    return shared


def main() -> None:
    options = arguments(threads=1)
    torch.set_num_threads(options.threads)
    with record.phase("load"):
        digits = load_digits(RACE, data_folder(options.data))
        silos = batches_of_silos(torch.from_numpy(digits.images), torch.from_numpy(digits.labels))
        test_images = torch.from_numpy(digits.test_images).reshape(-1, PIXELS)
        test_labels = torch.from_numpy(digits.test_labels)
    with record.phase("train"):
        parameters = train(silos)
    with record.phase("evaluate"), torch.no_grad():
        hits = linear(test_images, *parameters).argmax(dim=1) == test_labels
        record.accuracy = hits.float().mean().item()
    record.parameters = sum(tensor.numel() for tensor in parameters)
    record.settings = {"threads": options.threads}
    record.versions = {"torch": torch.__version__}
    record.show()


if __name__ == "__main__":
    main()
