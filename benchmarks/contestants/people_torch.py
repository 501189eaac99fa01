"""The race over people, PyTorch, in two ways.

loop  as reference implementations do it: for every person a deep copy of the model and an optimiser of its own
vmap  ``torch.func``: people side by side in chunks, their models stacked

Tuned in its favour: threads, and for vmap how many people are in a chunk. Everybody's records are sliced once.
"""

from __future__ import annotations

import copy
import time

from benchmarks.record import Record, arguments

options = arguments(case="", way="loop", threads=1, chunk=100)
record = Record(options.way)
with record.phase("imports"):
    import torch
    from torch import nn
    from torch.func import functional_call, grad, vmap
    from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

    from benchmarks import people_work as work

CASE = work.CASES[options.case]


def network() -> nn.Sequential:
    """The race's model at the race's start."""
    start = [(torch.from_numpy(w), torch.from_numpy(b)) for w, b in work.start(CASE)]
    if CASE.model == "mlp":
        sizes = [w.shape for w, _ in start]
        layers = [nn.Linear(*sizes[0]), nn.ReLU(), nn.Linear(*sizes[1]), nn.ReLU(), nn.Linear(*sizes[2])]
    else:
        layers = [
            *(nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.MaxPool2d(2, stride=1), nn.ReLU()),
            *(nn.Conv2d(16, 32, 4, stride=2), nn.MaxPool2d(2, stride=1), nn.ReLU()),
            *(nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10)),
        ]
    weighted = [layer for layer in layers if isinstance(layer, nn.Conv2d | nn.Linear)]
    with torch.no_grad():
        for i, (layer, (w, b)) in enumerate(zip(weighted, start, strict=True)):
            if isinstance(layer, nn.Conv2d):
                rows, channels = layer.kernel_size[0], layer.in_channels
                w = w.reshape(rows, rows, channels, -1).permute(3, 2, 0, 1)
            elif CASE.model == "cnn" and i == 2:  # flattened by channel, row, column here
                w = w.reshape(4, 4, 32, -1).permute(3, 2, 0, 1).flatten(1)
            else:
                w = w.T
            layer.weight.copy_(w)
            layer.bias.copy_(b)
    return nn.Sequential(*layers)


def loss_of(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if CASE.model == "mlp":
        return binary_cross_entropy_with_logits(outputs[:, 0], labels)
    return cross_entropy(outputs, labels)


def loop(model: nn.Module, people: list[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
    """Person after person."""
    total = [torch.zeros_like(p) for p in model.parameters()]
    for features, labels in people:
        own = copy.deepcopy(model)
        optimizer = torch.optim.SGD(own.parameters(), lr=CASE.rate)
        for _ in range(CASE.steps):
            optimizer.zero_grad()
            loss_of(own(features), labels).backward()
            optimizer.step()
        with torch.no_grad():
            difference = [mine - shared for mine, shared in zip(own.parameters(), model.parameters(), strict=True)]
            norm = torch.sqrt(sum(d.square().sum() for d in difference))
            scale = torch.clamp(work.CLIP / norm, max=1.0)
            for t, d in zip(total, difference, strict=True):
                t.add_(d * scale)
    return total


def side_by_side(model: nn.Module, chunks: list[tuple[torch.Tensor, torch.Tensor]]) -> list[torch.Tensor]:
    """Chunk after chunk; nobody needs padding, all have the same number of records."""
    shared = {name: p.detach() for name, p in model.named_parameters()}
    gradients = vmap(grad(lambda params, x, y: loss_of(functional_call(model, params, (x,)), y)))
    total = {name: torch.zeros_like(p) for name, p in shared.items()}
    with torch.no_grad():
        for features, labels in chunks:
            own = {name: p.expand(len(features), *p.shape).clone() for name, p in shared.items()}
            for _ in range(CASE.steps):
                for name, g in gradients(own, features, labels).items():
                    own[name].sub_(g, alpha=CASE.rate)
            for name, p in own.items():
                p.sub_(shared[name])
            norms = torch.sqrt(sum(p.square().flatten(1).sum(1) for p in own.values()))
            scale = torch.clamp(work.CLIP / norms, max=1.0)
            for name, p in own.items():
                total[name].add_(torch.tensordot(scale, p, dims=1))
    return list(total.values())


def main() -> None:
    torch.set_num_threads(options.threads)
    with record.phase("load"):
        features, labels = map(torch.from_numpy, work.records(CASE, CASE.people * CASE.records))
        features = features.unsqueeze(1) if CASE.model == "cnn" else features
        labels = labels if CASE.model == "cnn" else labels.float()
        each = features.split(CASE.records), labels.split(CASE.records)
        if options.way == "loop":
            people = list(zip(*each, strict=True))
        else:
            people = list(zip(*(torch.stack(part).split(options.chunk) for part in each), strict=True))
    with record.phase("train"):
        model = network()
        for number in range(CASE.warm_up_rounds + CASE.rounds):
            # the loop needs no more than a few people to be warm
            few = options.way == "loop" and number < CASE.warm_up_rounds
            begun, used = time.perf_counter(), time.process_time()
            total = (loop if options.way == "loop" else side_by_side)(model, people[:20] if few else people)
            record.round_seconds.append(time.perf_counter() - begun)
            record.round_processor_seconds.append(time.process_time() - used)
    with record.phase("evaluate"):
        record.answer = torch.cat([t.flatten() for t in total]).norm().item()
    record.parameters = sum(p.numel() for p in model.parameters())
    record.settings = {"threads": options.threads}
    if options.way == "vmap":
        record.settings["chunk"] = options.chunk
    record.versions = {"torch": torch.__version__}
    record.show()


if __name__ == "__main__":
    main()
