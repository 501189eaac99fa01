"""How much memory one record takes on its way through a model, counted on a trace: nothing is computed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr

from tacit.models.model import Model, shapes


def record_bytes(model: Model, input_shape: tuple[int, ...], *, gradient: bool) -> int:
    """Bytes of all values that ``apply`` computes for one record, and of its ``gradient``.

    The trace is that of the kernels, so padding, patches of convolutions and values of the backward pass are in it.
    Compilers merge values and free them, so that a kernel needs less for each of the records that it has at a time.
    """

    def forward(params: Any, x: Any) -> jax.Array:
        return model.apply(params, x if model.prepare is None else model.prepare(x)).sum()

    traced = jax.grad(forward, allow_int=True) if gradient else forward
    for dtype in (jnp.float32, jnp.int32):  # texts are integer codes
        try:
            return _bytes(jax.make_jaxpr(traced)(shapes(model), jnp.zeros((1, *input_shape), dtype)).jaxpr)
        except TypeError:
            if dtype == jnp.int32:
                raise
    raise AssertionError


def _bytes(jaxpr: Jaxpr) -> int:
    own = sum(_size(result.aval) for equation in jaxpr.eqns for result in equation.outvars)
    return own + sum(_bytes(inner) for equation in jaxpr.eqns for inner in _within(equation.params.values()))


def _size(aval: Any) -> int:
    return math.prod(aval.shape) * getattr(aval.dtype, "itemsize", 0)


def _within(values: Iterable[Any]) -> Iterable[Jaxpr]:
    for value in values:
        if isinstance(value, ClosedJaxpr):
            yield value.jaxpr
        elif isinstance(value, Jaxpr):
            yield value
        elif isinstance(value, tuple | list):
            yield from _within(value)
