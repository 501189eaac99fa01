"""Models of "the user's own", loaded by name in the tests."""

import jax
import jax.numpy as jnp

from tacit.models import Model


def scaled(input_shape, outputs, *, scale=1.0):
    def init(key):
        return {"only": {"w": scale * jax.random.normal(key, (input_shape[0], outputs))}}

    def apply(params, x):
        return x @ params["only"]["w"]

    return init, apply


def named(input_shape, outputs, **numbers):
    return Model("mine", *scaled(input_shape, outputs))


def embedded(input_shape, outputs, codes):
    def init(key):
        return {"table": {"w": jax.random.normal(key, (codes, outputs))}}

    def apply(params, x):
        return params["table"]["w"][x].sum(axis=1)

    return init, apply


def nothing(input_shape, outputs):
    return None


def failing(input_shape, outputs):
    raise RuntimeError("out of ideas")


def wrong_outputs(input_shape, outputs):
    return scaled(input_shape, outputs + 1)


def no_layers(input_shape, outputs):
    return (lambda key: jnp.zeros(3)), (lambda params, x: x)


def half_precision(input_shape, outputs):
    return (lambda key: {"a": jnp.zeros(3, jnp.float16)}), (lambda params, x: x)


not_a_function = 3
