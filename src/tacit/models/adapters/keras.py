"""Models of Keras 3 with its JAX backend."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import jax
import jax.numpy as jnp

from tacit.errors import UserError
from tacit.models.adapters import seed_of
from tacit.models.adapters.base import Adapted


def channels_first(module: Any) -> bool:
    return bool(sys.modules["keras"].config.image_data_format() == "channels_first")


def adapt(module: Any, make: Callable[[int], Any], sample: jax.Array) -> Adapted:
    keras = sys.modules["keras"]
    if keras.config.backend() != "jax":
        problem = f"Keras runs on {keras.config.backend()} here"
        raise UserError("not-supported", "model.name", problem, "set KERAS_BACKEND=jax before Keras is imported")

    def built(seed: int) -> Any:
        """A model whose layers are counted from the start: names do not depend on what was made before."""
        state = import_module("keras.src.backend.common.global_state")
        before = state.get_global_attribute("object_name_uids")
        state.set_global_attribute("object_name_uids", None)
        try:
            keras.utils.set_random_seed(seed)
            made = make(seed)
            made(sample)
            return made
        finally:
            state.set_global_attribute("object_name_uids", before)

    def values(of: Any) -> dict[str, Any]:
        return {one.path: jnp.asarray(one.value) for one in of.variables}

    def caller(of: Any, training: bool) -> Callable[..., Any]:
        trained = [one.path for one in of.trainable_variables]
        other = [one.path for one in of.non_trainable_variables]

        def call(params: Mapping[str, Any], x: Any, key: jax.Array | None = None) -> Any:
            values = {**params, **(_seeds(other, key) if key is not None else {})}
            given = [values[name] for name in trained], [values[name] for name in other]
            return of.stateless_call(*given, x, training=training)[0]

        return call

    def restored(params: Mapping[str, Any]) -> Any:
        fresh = built(0)
        for one in fresh.variables:
            one.assign(params[one.path])
        return fresh

    quiet, loud, dropping = built(0), built(0), built(0)
    for layer in loud._flatten_layers():
        if isinstance(layer, keras.layers.Dropout):
            layer.rate = 0
    fixed = frozenset(one.path for one in quiet.non_trainable_variables)
    first = values(quiet)
    return Adapted(
        first,
        lambda key: values(built(seed_of(key))),
        caller(quiet, False),
        restored,
        fixed,
        caller(loud, True),
        caller(dropping, True),
    )


def _seeds(names: Sequence[str], key: jax.Array) -> dict[str, jax.Array]:
    """States of the generators of layers, from a key."""
    own = [name for name in names if name.endswith("seed_generator_state")]
    return {name: jax.random.key_data(jax.random.fold_in(key, i)) for i, name in enumerate(own)}
