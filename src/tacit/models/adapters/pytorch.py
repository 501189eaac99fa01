"""PyTorch modules, through torchax."""

from __future__ import annotations

import copy
import sys
import threading
from collections.abc import Callable, Mapping
from functools import cache, partial
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
    as_returned, trained, module = (copy.deepcopy(module) for _ in range(3))
    module.eval()
    for layer in trained.train().modules():
        if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm):
            layer.eval()

    def values(of: Any) -> dict[str, Any]:
        found = (*of.named_parameters(), *of.named_buffers())
        return {name: jnp.asarray(tensor.detach().numpy()) for name, tensor in found}

    def init(key: jax.Array) -> dict[str, Any]:
        seed = seed_of(key)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return values(make(seed))

    def called(of: Any, params: Mapping[str, Any], x: Any, key: jax.Array | None = None) -> Any:
        dropout = _without_dropout() if key is None else env.override_property(prng=key)
        with _tracing, env, dropout:
            tensors, given = env.j2t_iso((dict(params), x))
            return env.t2j_iso(_tensor(torch.func.functional_call(of, tensors, (given,))))

    def restored(params: Mapping[str, Any]) -> Any:
        fresh = make(0)
        tensors = {name: torch.tensor(np.array(value)) for name, value in params.items()}
        fresh.load_state_dict({name: tensors[name] for name in fresh.state_dict() if name in tensors}, strict=False)
        return fresh.eval()

    kept = [name for name, tensor in module.named_parameters() if not tensor.requires_grad]
    fixed = frozenset([*kept, *(name for name, _ in module.named_buffers())])
    training = partial(called, as_returned) if as_returned.training else None
    return Adapted(values(module), init, partial(called, module), restored, fixed, training, partial(called, trained))


def _tensor(found: Any) -> Any:
    """The outputs among what a model of Hugging Face returns; other modules return them as they are."""
    for name in ("logits", "pooler_output", "last_hidden_state"):
        if getattr(found, name, None) is not None:
            return getattr(found, name)
    return found


def converted(module: Any) -> Any:
    """A copy with group normalisation in place of batch normalisation, which keeps the names of its parameters."""
    torch = sys.modules["torch"]
    norms = torch.nn.modules.batchnorm
    module = copy.deepcopy(module)

    def of(layer: Any) -> Any:
        size = layer.num_features
        groups = next(n for n in range(min(32, max(1, size // 4)), 0, -1) if size % n == 0)
        return torch.nn.GroupNorm(groups, size, eps=layer.eps, affine=layer.affine)

    if isinstance(module, norms._BatchNorm):
        return of(module)
    for parent in list(module.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, norms._BatchNorm):
                setattr(parent, name, of(layer))
    return module


def _without_dropout() -> Any:
    """A mode in which nothing is dropped out, by a layer or by a function that a module calls."""
    torch = sys.modules["torch"]
    names = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
    functional = torch.nn.functional
    identity = {getattr(functional, name) for name in names} | {torch.dropout, torch.alpha_dropout}

    class Quiet(torch.overrides.TorchFunctionMode):  # type: ignore[name-defined]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function in identity:
                return args[0] if args else kwargs["input"]
            if function is functional.scaled_dot_product_attention:
                args, kwargs = args[:4], {**(kwargs or {}), "dropout_p": 0.0}
            return function(*args, **(kwargs or {}))

    return Quiet()


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
