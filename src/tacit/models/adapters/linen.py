"""Modules of Flax Linen."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from tacit.models.adapters.base import Adapted, modes

STATE = "state:"  # before the names of collections that are not parameters


def channels_first(module: Any) -> bool:
    return False


def adapt(module: Any, make: Callable[[int], Any], sample: jax.Array) -> Adapted:
    linen = sys.modules["flax.linen"]
    quiet = modes(type(module).__call__, training=False)

    def init(key: jax.Array) -> dict[str, Any]:
        return _flat(module.init(key, sample, **quiet))

    def call(params: Mapping[str, Any], x: Any) -> Any:
        return module.apply(_variables(params), x, **quiet)

    def training(params: Mapping[str, Any], x: Any) -> Any:
        def without_dropout(of: Any, given: Any, options: Any, context: Any) -> Any:
            return given[0] if isinstance(context.module, linen.Dropout) else of(*given, **options)

        with linen.intercept_methods(without_dropout):
            loud = modes(type(module).__call__, training=True)
            return module.apply(_variables(params), x, mutable=True, **loud)[0]

    def dropping(params: Mapping[str, Any], x: Any, key: jax.Array) -> Any:
        loud = modes(type(module).__call__, training=True)
        return module.apply(_variables(params), x, mutable=True, rngs={"dropout": key}, **loud)[0]

    params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(init, jax.random.key(0)))
    fixed = frozenset(name for name in params if name.startswith(STATE))
    return Adapted(params, init, call, lambda trained: module.bind(_variables(trained)), fixed, training, dropping)


def _flat(variables: Mapping[str, Any]) -> dict[str, Any]:
    """``{"params": {"Dense_0": {"kernel": …}}}`` as ``{"Dense_0/kernel": …}``."""
    found = {}
    for collection, tree in variables.items():
        start = "" if collection == "params" else f"{STATE}{collection}/"
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            found[start + jax.tree_util.keystr(path, simple=True, separator="/")] = leaf
    return found


def _variables(params: Mapping[str, Any]) -> dict[str, Any]:
    variables: dict[str, Any] = {}
    for name, leaf in params.items():
        path = name.removeprefix(STATE).split("/") if name.startswith(STATE) else ["params", *name.split("/")]
        place = variables
        for part in path[:-1]:
            place = place.setdefault(part, {})
        place[path[-1]] = leaf
    return variables
