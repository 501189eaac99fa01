"""Modules of Flax NNX."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax

from tacit.models.adapters import seed_of
from tacit.models.adapters.base import Adapted


def channels_first(module: Any) -> bool:
    return False


def adapt(module: Any, make: Callable[[int], Any], sample: jax.Array) -> Adapted:
    nnx = sys.modules["flax.nnx"]

    def values(of: Any) -> dict[str, Any]:
        state = nnx.to_pure_dict(nnx.split(of, nnx.Param, ...)[1])
        leaves = jax.tree_util.tree_leaves_with_path(state)
        return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}

    def caller(of: Any) -> Callable[..., Any]:
        graph, state, rest = nnx.split(of, nnx.Param, ...)
        structure = jax.tree.structure(nnx.to_pure_dict(state))
        names = list(values(of))

        def call(params: Mapping[str, Any], x: Any, key: jax.Array | None = None) -> Any:
            given = jax.tree.map(lambda leaf: leaf, state)
            nnx.replace_by_pure_dict(given, jax.tree.unflatten(structure, [params[name] for name in names]))
            merged = nnx.merge(graph, given, rest, copy=True)
            if key is not None:
                nnx.reseed(merged, **dict.fromkeys(("default", "dropout"), key))
            return merged(x)

        return call

    def restored(params: Mapping[str, Any]) -> Any:
        fresh = make(0)
        state = nnx.state(fresh, nnx.Param)
        pure = nnx.to_pure_dict(state)
        leaves = [params[name] for name in values(fresh)]
        nnx.replace_by_pure_dict(state, jax.tree.unflatten(jax.tree.structure(pure), leaves))
        nnx.update(fresh, state)
        fresh.eval()
        return fresh

    returned, quiet, dropping = nnx.clone(module), nnx.clone(module), nnx.clone(module)
    quiet.eval()
    dropping.train()
    for _, layer in nnx.iter_graph(returned):
        if isinstance(layer, nnx.Dropout):
            layer.deterministic = True
    return Adapted(
        values(module),
        lambda key: values(make(seed_of(key))),
        caller(quiet),
        restored,
        training=caller(returned),
        dropping=caller(dropping),
    )
