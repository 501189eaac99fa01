"""Modules of Equinox of "the user's own"."""

import equinox as eqx
import jax


class Net(eqx.Module):
    conv: eqx.nn.Conv2d
    pool: eqx.nn.MaxPool2d
    head: eqx.nn.Linear

    def __init__(self, outputs, key):
        one, two = jax.random.split(key)
        self.conv = eqx.nn.Conv2d(1, 4, 3, stride=2, padding=1, key=one)
        self.pool = eqx.nn.MaxPool2d(2, 2)
        self.head = eqx.nn.Linear(4 * 2 * 2, outputs, key=two)

    def __call__(self, x):
        return self.head(self.pool(jax.nn.relu(self.conv(x))).reshape(-1))


def images(input_shape, outputs, seed):
    return Net(outputs, jax.random.key(seed))


def table(input_shape, outputs, seed):
    return eqx.nn.MLP(*input_shape, outputs, 8, 1, jax.nn.tanh, key=jax.random.key(seed))
