"""PyTorch modules, through torchax."""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit.errors import UserError
from tacit.models.adapters import seed_of
from tacit.models.adapters.base import Adapted

_tracing = threading.Lock()  # a call puts other tensors into the module while it lasts


def channels_first(module: Any) -> bool:
    """Whether images are ``[channels, height, width]``."""
    convolution = sys.modules["torch"].nn.Conv2d
    return any(isinstance(layer, convolution) for layer in module.modules())


def adapt(module: Any, make: Callable[[int], Any], sample: jax.Array) -> Adapted:
    torch, env = sys.modules["torch"], _environment()
    as_returned = copy.deepcopy(module)
    for layer in as_returned.modules():
        if isinstance(layer, torch.nn.modules.dropout._DropoutNd):
            layer.eval()
    module = copy.deepcopy(module).eval()

    def values(of: Any) -> dict[str, Any]:
        found = (*of.named_parameters(), *of.named_buffers())
        return {name: jnp.asarray(tensor.detach().numpy()) for name, tensor in found}

    def init(key: jax.Array) -> dict[str, Any]:
        seed = seed_of(key)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return values(make(seed))

    def caller(of: Any) -> Callable[[Mapping[str, Any], Any], Any]:
        def call(params: Mapping[str, Any], x: Any) -> Any:
            with _tracing, env:
                tensors, given = env.j2t_iso((dict(params), x))
                found = torch.func.functional_call(of, tensors, (given,))
                return env.t2j_iso(getattr(found, "logits", found))

        return call

    def restored(params: Mapping[str, Any]) -> Any:
        fresh = make(0)
        tensors = {name: torch.tensor(np.array(value)) for name, value in params.items()}
        fresh.load_state_dict({name: tensors[name] for name in fresh.state_dict() if name in tensors}, strict=False)
        return fresh.eval()

    kept = [name for name, tensor in module.named_parameters() if not tensor.requires_grad]
    fixed = frozenset([*kept, *(name for name, _ in module.named_buffers())])
    training = caller(as_returned) if as_returned.training else None
    return Adapted(values(module), init, caller(module), restored, fixed, training)


@cache
def _environment() -> Any:
    """torchax's environment; 0.0.13 names operators that torch 2.13 no longer has (google/torchax#101, corrected by
    #102)."""
    packet = sys.modules["torch"]._ops.OpOverloadPacket
    real = packet.__getattr__

    def found(self: Any, key: str) -> Any:
        try:
            return real(self, key)
        except AttributeError:
            if "names" not in key and "dimname" not in key.lower():
                raise
            return _Removed(f"{self}.{key}")

    packet.__getattr__ = found
    try:
        torchax = import_module("torchax")
        import_module("torchax.decompositions")
        return torchax.default_env()
    except ModuleNotFoundError:
        problem, fix = "the package torchax is not installed", "pip install 'tacit[torch]'"
        raise UserError("not-installed", "torch", problem, fix) from None
    finally:
        packet.__getattr__ = real


class _Removed:
    """Stands for an operator on named dimensions, which no module can call any more."""

    def __init__(self, name: str) -> None:
        self.name = name
