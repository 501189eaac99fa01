"""Modules of Equinox, which take one record."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax

from tacit.models.adapters import seed_of
from tacit.models.adapters.base import Adapted


def channels_first(module: Any) -> bool:
    eqx = sys.modules["equinox"]
    layers = jax.tree.leaves(module, is_leaf=lambda leaf: isinstance(leaf, eqx.nn.Conv))
    return any(isinstance(layer, eqx.nn.Conv) for layer in layers)


def adapt(module: Any, make: Callable[[int], Any], sample: jax.Array) -> Adapted:
    eqx = sys.modules["equinox"]
    quiet = eqx.nn.inference_mode(module)

    def values(of: Any) -> dict[str, Any]:
        leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(of, eqx.is_inexact_array))
        return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}

    def restored(params: Mapping[str, Any], of: Any) -> Any:
        arrays, static = eqx.partition(of, eqx.is_inexact_array)
        leaves = [params[name] for name in values(of)]
        return eqx.combine(jax.tree.unflatten(jax.tree.structure(arrays), leaves), static)

    def call(params: Mapping[str, Any], x: Any) -> Any:
        return jax.vmap(restored(params, quiet))(x)

    loud = eqx.nn.inference_mode(module, value=False)

    def dropping(params: Mapping[str, Any], x: Any, key: jax.Array) -> Any:
        return restored(params, loud)(x[0], key=key)[None]

    takes_key = "key" in inspect.signature(type(module).__call__).parameters
    return Adapted(
        values(module),
        lambda key: values(make(seed_of(key))),
        call,
        lambda params: restored(params, eqx.nn.inference_mode(make(0))),
        dropping=dropping if takes_key else None,
    )
