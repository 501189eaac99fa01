"""Private-step race, PyTorch: Opacus in each of its modes, and the ordinary step without privacy.

Modes: ``hooks``, ``functorch``, ``ew`` (expanded weights), ``ghost`` (two passes) and ``plain``. The optimiser clips,
adds noise and updates; batches are taken from tensors in memory. The networks are Tacit's ``cnn``, ``lstm``, ``mlp``
and ``logistic`` with their defaults, layer by layer (an LSTM of torch has a second bias per gate: 512 parameters more),
and the transformer of ``benchmarks.frameworks``.
"""

from __future__ import annotations

import time
import warnings

from benchmarks.record import Record, arguments

options = arguments(model="cnn", mode="hooks", threads=2)
record = Record(f"opacus {options.mode}" if options.mode != "plain" else "torch plain")
with record.phase("imports"):
    from importlib.metadata import version

    import torch
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
    from opacus.grad_sample.gsm_exp_weights import GradSampleModuleExpandedWeights
    from opacus.layers import DPLSTM
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
    from torch import nn

    from benchmarks import private_step as work
    from benchmarks.frameworks import pytorch

warnings.filterwarnings("ignore")
RACE = work.RACES[options.model]


class Recurrent(nn.Module):
    """Embedding 8, two LSTM layers of 64 units, dense 32, dense 80."""

    def __init__(self, private: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(work.CHARACTERS, 8)
        self.lstm = (DPLSTM if private else nn.LSTM)(8, 64, num_layers=2, batch_first=True)
        self.narrow = nn.Linear(64, 32)
        self.last = nn.Linear(32, work.CHARACTERS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.embedding(x))
        return self.last(torch.relu(self.narrow(states[:, -1])))


NETWORKS = {
    "cnn": lambda private: nn.Sequential(nn.Unflatten(1, (1, 28)), *pytorch.cnn((28, 28), 10)),
    "lstm": Recurrent,
    "mlp": lambda private: pytorch.mlp((28, 28), 10),
    "logistic": lambda private: nn.Sequential(nn.Flatten(), nn.Linear(784, 10)),
    "transformer": lambda private: pytorch.transformer((28, 28), 10),
}


def private(model: nn.Module, mode: str, criterion: nn.Module):
    """Opacus' module, optimiser and loss for one of its modes."""
    numbers = {
        "noise_multiplier": work.NOISE_MULTIPLIER,
        "max_grad_norm": work.CLIP,
        "expected_batch_size": RACE.batch_size,
    }
    if mode == "ghost":
        module = GradSampleModuleFastGradientClipping(model, max_grad_norm=work.CLIP, use_ghost_clipping=True)
        sgd = torch.optim.SGD(module.parameters(), lr=work.LEARNING_RATE)
        optimizer = DPOptimizerFastGradientClipping(sgd, **numbers)
        return module, optimizer, DPLossFastGradientClipping(module, optimizer, criterion)
    if mode == "ew":
        module = GradSampleModuleExpandedWeights(model)
    else:
        module = GradSampleModule(model, force_functorch=mode == "functorch")
    return module, DPOptimizer(torch.optim.SGD(module.parameters(), lr=work.LEARNING_RATE), **numbers), criterion


def main() -> None:
    torch.set_num_threads(options.threads)
    torch.manual_seed(RACE.seed)
    with record.phase("load"):
        made = work.examples(RACE)
        features, labels = torch.from_numpy(made.features), torch.from_numpy(made.labels)
        batches = torch.from_numpy(work.batches(RACE))
    with record.phase("train"):
        is_private = options.mode != "plain"
        module = NETWORKS[RACE.model](is_private)
        record.parameters = sum(parameter.numel() for parameter in module.parameters())
        criterion = nn.CrossEntropyLoss()
        if is_private:
            module, optimizer, criterion = private(module, options.mode, criterion)
        else:
            optimizer = torch.optim.SGD(module.parameters(), lr=work.LEARNING_RATE)
        for batch in batches:
            begun = time.perf_counter()
            optimizer.zero_grad(set_to_none=True)
            criterion(module(features[batch]), labels[batch]).backward()
            optimizer.step()
            record.round_seconds.append(time.perf_counter() - begun)
    with record.phase("evaluate"):
        if not all(torch.isfinite(parameter).all() for parameter in module.parameters()):
            raise SystemExit("the parameters are not finite")
    record.settings = {"threads": options.threads}
    record.versions = {"opacus": version("opacus"), "torch": torch.__version__}
    record.show()


if __name__ == "__main__":
    main()
