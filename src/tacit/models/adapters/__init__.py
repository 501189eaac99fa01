"""Modules of other frameworks as models: PyTorch, Flax (Linen and NNX), Equinox, Keras.

A factory of the user's own may return a module of one of these frameworks. Its type selects the adapter. A framework is
looked for among what is imported already: a module of it cannot exist otherwise, and Tacit imports none of them.

Parameters are one flat dictionary by the framework's own names, such as ``encoder.0.weight``. So ``model.safetensors``
of a run on a PyTorch module is a ``state_dict``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit.errors import UserError
from tacit.models.adapters.base import Adapted
from tacit.models.model import AS_IT_IS, DROPOUT, Handling, Model, Params
from tacit.models.own_code import invalid, said

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


def from_modules(
    name: str,
    made: Any,
    make: Callable[[int], Any],
    input_shape: tuple[int, ...],
    outputs: int,
    handling: Handling = AS_IT_IS,
) -> Model | None:
    """What a factory returned as a model, where it is a module or a pair of them (:func:`_behind`); None elsewhere.

    ``make(seed)`` makes the same again.
    """
    modules = made if isinstance(made, tuple) and len(made) == 2 else (made,)
    if any(adapter_of(module) is None for module in modules):
        return None
    try:
        if len(modules) == 2:
            return _behind(name, modules, make, input_shape, outputs, handling)
        return adapted(name, made, make, input_shape, outputs, handling)
    except UserError:
        raise
    except Exception as error:
        kinds = " or the ".join(type(module).__name__ for module in modules)
        problem = f"the {kinds}, on records of shape {list(input_shape)}, raised {said(error)}"
        raise invalid(name, problem, f"its forward pass gives [records, {outputs}]") from error


def _behind(
    name: str,
    modules: Sequence[Any],
    make: Callable[[int], Any],
    input_shape: tuple[int, ...],
    outputs: int,
    handling: Handling,
) -> Model:
    """A frozen backbone and a head, which alone is trained. What the backbone makes of a record is computed once; its
    values are those that the factory gives it, in evaluation mode."""
    backbone = adapted(name, modules[0], lambda seed: make(seed)[0], input_shape, None, Handling(handling.convert))
    values = backbone.init(jax.random.key(0))

    def prepare(x: jax.Array) -> jax.Array:
        return backbone.apply(values, x)

    form = jax.eval_shape(prepare, jnp.zeros((ROWS, *input_shape), backbone.takes))
    head = adapted(name, modules[1], lambda seed: make(seed)[1], form.shape[1:], outputs, handling)
    assert backbone.module is not None
    assert head.module is not None
    of_backbone, of_head = backbone.module, head.module
    return replace(head, prepare=prepare, module=lambda params: (of_backbone(values), of_head(params)))


def adapted(
    name: str,
    made: Any,
    make: Callable[[int], Any],
    input_shape: tuple[int, ...],
    outputs: int | None,
    handling: Handling = AS_IT_IS,
) -> Model:
    """The module ``made`` as a model; ``make(seed)`` makes such a module again.

    Records are passed as the module accepts them: as they are, as an image with one channel, or with channels first.
    The first arrangement counts for which the module gives ``[records, outputs]`` (or ``[records]``, for one output);
    without ``outputs``, for which it gives ``[records, ...]``.
    """
    adapter = adapter_of(made)
    if handling.convert:
        made, make = _converted(adapter, made), partial(_made_converted, adapter, make)
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
            if outputs is None and shape[0] == ROWS and len(shape) > 1:
                return _model(name, found, view, shape[1:], sample, handling)
            if outputs is not None and shape in ((ROWS, outputs), (ROWS,) if outputs == 1 else ()):
                return _model(name, found, view, (outputs,), sample, handling)
            problem = problem or ValueError(f"gave shape {list(shape)} for {ROWS} records, not [{ROWS}, {outputs}]")
    assert problem is not None
    raise problem


def _made_converted(adapter: Any, make: Callable[[int], Any], seed: int) -> Any:
    return _converted(adapter, make(seed))


def _converted(adapter: Any, module: Any) -> Any:
    if not hasattr(adapter, "converted"):
        problem = f"layers of a {type(module).__name__} cannot be replaced"
        raise UserError("not-supported", "model.convert", problem, "use GroupNorm in the factory")
    return adapter.converted(module)


def _model(
    name: str,
    found: Adapted,
    view: Callable[[Any], Any],
    shape: Sequence[int],
    sample: jax.Array,
    handling: Handling,
) -> Model:
    def of(call: Callable[[Params, Any], Any]) -> Callable[[Params, jax.Array], jax.Array]:
        def apply(params: Params, x: jax.Array) -> jax.Array:
            return call(params, view(x)).reshape(-1, *shape)

        return apply

    training, apply = None if found.training is None else of(found.training), of(found.call)
    if handling.dropout:
        apply = _dropping(apply, found, view, shape)
    return Model(
        name,
        found.init,
        apply,
        fixed=found.fixed,
        module=found.module,
        training=training,
        drops=handling.dropout,
        idle=not handling.dropout and _has_dropout(found, sample),
        takes=sample.dtype,
    )


def _has_dropout(found: Adapted, sample: jax.Array) -> bool:
    """Whether a call with a key draws anything from it."""
    if found.dropping is None:
        return False
    try:
        traced = jax.make_jaxpr(found.dropping)(found.params, sample[:1], jax.random.key(0))
    except Exception:  # a mode that the module does not have
        return False
    return "random_bits" in str(traced)


def _dropping(
    apply: Callable[[Params, jax.Array], jax.Array], found: Adapted, view: Callable[[Any], Any], shape: Sequence[int]
) -> Callable[[Params, jax.Array], jax.Array]:
    """``apply``; where parameters hold a key, with dropout.

    The key of a record follows from that key and from the record's own numbers. So what a record contributes depends
    on itself alone, and all parties that share a seed drop out the same units, whatever the order of records is.
    """
    if found.dropping is None:
        raise UserError("not-supported", "model.dropout", "this module cannot be called with a key", "leave it out")
    call = found.dropping

    def either(params: Params, x: jax.Array) -> jax.Array:
        if DROPOUT not in params:
            return apply(params, x)
        values = {name: value for name, value in params.items() if name != DROPOUT}
        key = jax.random.wrap_key_data(params[DROPOUT])

        def one(record: jax.Array) -> jax.Array:
            return call(values, view(record[None]), jax.random.fold_in(key, _digest(record))).reshape(*shape)

        return jax.vmap(one)(x)

    return either


def _digest(record: jax.Array) -> jax.Array:
    """32 bits of a record's numbers: a sum with odd factors that are the same everywhere."""
    is_float = record.dtype == jnp.float32
    words = jax.lax.bitcast_convert_type(record, jnp.uint32) if is_float else record.astype(jnp.uint32)
    factors = np.random.Generator(np.random.PCG64(0)).integers(0, 2**32, record.size, np.uint32) | np.uint32(1)
    return jnp.sum(words.reshape(-1) * factors, dtype=jnp.uint32)


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
