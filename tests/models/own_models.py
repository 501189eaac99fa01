"""Models of "the user's own", loaded by name in the tests."""

import jax
import jax.numpy as jnp
import numpy as np

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


def frozen_codes(input_shape, outputs):
    """A backbone of half precision with whole numbers, and a head; ``init`` cannot be traced."""

    def init(key):
        rng = np.random.default_rng(int(jax.random.bits(key)))
        table = jnp.asarray(rng.normal(size=(input_shape[0], 5)), jnp.float16)
        return {"backbone": {"w": table, "order": jnp.arange(5)[::-1]}, "head": {"w": jnp.zeros((5, outputs))}}

    def apply(params, x):
        inside = (x @ params["backbone"]["w"].astype(jnp.float32))[:, params["backbone"]["order"]]
        return jnp.tanh(inside) @ params["head"]["w"]

    return init, apply


def hinge(outputs, label):
    return jnp.maximum(0.0, 1.0 - (2.0 * label - 1.0) * outputs[0])


def two_numbers(outputs, label):
    return outputs * label + jnp.zeros(2)


not_a_function = 3


def centred(input_shape, outputs):
    """``prepare`` looks at all records of a batch."""
    return Model("centred", *scaled(input_shape, outputs), lambda x: x - x.mean(axis=0))


def silent(input_shape, outputs):
    """``apply`` couples the records of a batch, and zeros hide it at first."""

    def init(key):
        return {"only": {"w": jnp.zeros((input_shape[0], outputs))}}

    return init, lambda params, x: (x - x.mean(axis=0)) @ params["only"]["w"]
