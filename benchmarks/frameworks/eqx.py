"""Equinox, whose modules take one record."""

import equinox as eqx
import jax


class Cnn(eqx.Module):
    first: eqx.nn.Conv2d
    second: eqx.nn.Conv2d
    hidden: eqx.nn.Linear
    last: eqx.nn.Linear
    pool: eqx.nn.MaxPool2d

    def __init__(self, outputs, key):
        keys = jax.random.split(key, 4)
        self.first = eqx.nn.Conv2d(1, 16, 8, stride=2, padding=3, key=keys[0])
        self.second = eqx.nn.Conv2d(16, 32, 4, stride=2, key=keys[1])
        self.hidden = eqx.nn.Linear(512, 32, key=keys[2])
        self.last = eqx.nn.Linear(32, outputs, key=keys[3])
        self.pool = eqx.nn.MaxPool2d(2, 1)

    def __call__(self, x):
        x = jax.nn.relu(self.pool(self.first(x)))
        x = jax.nn.relu(self.pool(self.second(x)))
        return self.last(jax.nn.relu(self.hidden(x.reshape(-1))))


class Mlp(eqx.Module):
    hidden: eqx.nn.Linear
    last: eqx.nn.Linear

    def __init__(self, outputs, key):
        keys = jax.random.split(key)
        self.hidden = eqx.nn.Linear(784, 64, key=keys[0])
        self.last = eqx.nn.Linear(64, outputs, key=keys[1])

    def __call__(self, x):
        return self.last(jax.nn.relu(self.hidden(x.reshape(-1))))


def cnn(input_shape, outputs, seed):
    return Cnn(outputs, jax.random.key(seed))


def mlp(input_shape, outputs, seed):
    return Mlp(outputs, jax.random.key(seed))
