"""Race 2, a plain PyTorch loop: one network, updated in place, silo after silo.

The network is Tacit's ``cnn`` with its defaults (26,010 parameters): pad 3, convolution 8x8 stride 2 to 16 channels,
2x2 max-pooling stride 1, ReLU; convolution 4x4 stride 2 to 32 channels, 2x2 max-pooling stride 1, ReLU; dense 32, ReLU;
dense 10. Tuned in its favour: threads and memory layout.
"""

from __future__ import annotations

import time

from benchmarks.record import Record, arguments

record = Record("torch")
with record.phase("imports"):
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy

    from benchmarks.work import CLASSES, Digits, data_folder, load_digits, participants
    from benchmarks.work import CROSS_SILO as RACE

Parameters = list[torch.Tensor]
Batches = list[tuple[torch.Tensor, torch.Tensor]]
LAYOUTS = {"contiguous": torch.contiguous_format, "channels-last": torch.channels_last}


def network(layout: torch.memory_format) -> nn.Sequential:
    """The network of this race, with He initialisation before ReLU and Glorot at the end."""
    layers = nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.MaxPool2d(2, stride=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.MaxPool2d(2, stride=1),
        nn.ReLU(inplace=True),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(inplace=True),
        nn.Linear(32, CLASSES),
    )
    weighted = [layer for layer in layers if isinstance(layer, nn.Conv2d | nn.Linear)]
    for layer in weighted[:-1]:
        nn.init.kaiming_normal_(layer.weight)
    nn.init.xavier_uniform_(weighted[-1].weight)
    for layer in weighted:
        nn.init.zeros_(layer.bias)
    return layers.to(memory_format=layout)


def batches_of_silos(digits: Digits, layout: torch.memory_format) -> list[Batches]:
    """Each silo's batches, [b, 1, 28, 28], made once."""
    return [
        [
            (x.unsqueeze(1).contiguous(memory_format=layout), y)
            for x, y in zip(images.split(RACE.batch_size), labels.split(RACE.batch_size), strict=True)
        ]
        for images, labels in zip(torch.from_numpy(digits.images), torch.from_numpy(digits.labels), strict=True)
    ]


def train_locally(layers: nn.Sequential, parameters: Parameters, batches: Batches) -> None:
    """Plain SGD in place."""
    for _ in range(RACE.local_epochs):
        for images, labels in batches:
            gradients = torch.autograd.grad(cross_entropy(layers(images), labels), parameters)
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


def run_round(layers: nn.Sequential, shared: Parameters, total: Parameters, silos: list[Batches]) -> None:
    """One round of FedAvg; the network's own parameters are the local model."""
    local = list(layers.parameters())
    for tensor in total:
        tensor.zero_()
    for batches in silos:
        copy_into(local, shared)
        train_locally(layers, local, batches)
        add_into(total, local)
    for tensor in total:
        tensor.div_(len(silos))
    copy_into(shared, total)


def train(silos: list[Batches], layout: torch.memory_format) -> nn.Sequential:
    """All rounds; their times go into the record."""
    torch.manual_seed(RACE.seed)
    layers = network(layout)
    shared = [parameter.detach().clone() for parameter in layers.parameters()]
    total = [torch.zeros_like(tensor) for tensor in shared]
    for chosen in participants(RACE).tolist():
        start = time.perf_counter()
        run_round(layers, shared, total, [silos[silo] for silo in chosen])
        record.round_seconds.append(time.perf_counter() - start)
    copy_into(list(layers.parameters()), shared)
    return layers


def main() -> None:
    options = arguments(threads=1, layout="contiguous")
    torch.set_num_threads(options.threads)
    layout = LAYOUTS[options.layout]
    with record.phase("load"):
        digits = load_digits(RACE, data_folder(options.data))
        silos = batches_of_silos(digits, layout)
        test_images = torch.from_numpy(digits.test_images).unsqueeze(1).contiguous(memory_format=layout)
        test_labels = torch.from_numpy(digits.test_labels)
    with record.phase("train"):
        layers = train(silos, layout)
    with record.phase("evaluate"), torch.no_grad():
        hits = torch.cat([layers(images).argmax(dim=1) for images in test_images.split(500)]) == test_labels
        record.accuracy = hits.float().mean().item()
    record.parameters = sum(parameter.numel() for parameter in layers.parameters())
    record.settings = {"threads": options.threads, "layout": options.layout}
    record.versions = {"torch": torch.__version__}
    record.show()


if __name__ == "__main__":
    main()
