"""Modules of other frameworks as models: PyTorch, Flax (Linen and NNX), Equinox, Keras.

A factory of the user's own may return a module of one of these frameworks. Its type selects the adapter. A framework is
looked for among what is imported already: a module of it cannot exist otherwise, and Tacit imports none of them.

Parameters are one flat dictionary by the framework's own names, such as ``encoder.0.weight``. So ``model.safetensors``
of a run on a PyTorch module is a ``state_dict``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit.models.adapters.base import Adapted
from tacit.models.model import Model, Params

# module of the framework, its class, our adapter
FRAMEWORKS = (
    ("keras", "Model", "tacit.models.adapters.keras"),
    ("torch.nn", "Module", "tacit.models.adapters.pytorch"),
    ("flax.linen", "Module", "tacit.models.adapters.linen"),
    ("flax.nnx", "Module", "tacit.models.adapters.nnx"),
    ("equinox", "Module", "tacit.models.adapters.equinox"),
)
ROWS = 5  # of a trial: unlikely to be a number of channels as well


def adapter_of(made: Any) -> Any:
    """The module of ``tacit.models.adapters`` for what a factory returned; None where no framework made it."""
    for package, kind, adapter in FRAMEWORKS:
        framework = sys.modules.get(package)
        if framework is not None and isinstance(made, getattr(framework, kind)):
            return import_module(adapter)
    return None


def adapted(name: str, made: Any, make: Callable[[int], Any], input_shape: tuple[int, ...], outputs: int) -> Model:
    """The module ``made`` as a model; ``make(seed)`` makes such a module again.

    Records are passed as the module accepts them: as they are, as an image with one channel, or with channels first.
    The first arrangement counts for which the module gives ``[records, outputs]`` (or ``[records]``, for one output).
    """
    adapter = adapter_of(made)
    problem: Exception | None = None
    for dtype in (jnp.float32, jnp.int32):
        for view in _views(input_shape, adapter.channels_first(made)):
            sample = view(jnp.zeros((ROWS, *input_shape), dtype))
            try:
                found: Adapted = adapter.adapt(made, make, sample)
                shape = jax.eval_shape(found.call, found.params, sample).shape
            except Exception as error:
                problem = problem or error
                continue
            if shape == (ROWS, outputs) or (outputs == 1 and shape == (ROWS,)):
                return _model(name, found, view, outputs)
            problem = problem or ValueError(f"gave shape {list(shape)} for {ROWS} records, not [{ROWS}, {outputs}]")
    assert problem is not None
    raise problem


def _model(name: str, found: Adapted, view: Callable[[Any], Any], outputs: int) -> Model:
    def of(call: Callable[[Params, Any], Any]) -> Callable[[Params, jax.Array], jax.Array]:
        def apply(params: Params, x: jax.Array) -> jax.Array:
            return call(params, view(x)).reshape(-1, outputs)

        return apply

    training = None if found.training is None else of(found.training)
    return Model(name, found.init, of(found.call), fixed=found.fixed, module=found.module, training=training)


def _views(shape: tuple[int, ...], channels_first: bool) -> Iterator[Callable[[Any], Any]]:
    """How records ``[b, ...]`` may be passed on: most likely first."""

    def first(x: Any) -> Any:
        return jnp.moveaxis(x, -1, 1) if len(shape) == 3 else x[:, None]

    def last(x: Any) -> Any:
        return x[..., None]

    if channels_first and len(shape) in (2, 3):
        yield first
    yield lambda x: x
    if len(shape) == 2:
        yield last


def seed_of(key: jax.Array) -> int:
    """A number for the random generator of another framework."""
    return int(np.asarray(jax.random.bits(key, dtype=jnp.uint32)) >> 1)
