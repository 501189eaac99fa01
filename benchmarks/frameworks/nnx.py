"""Flax NNX."""

from flax import nnx


class Cnn(nnx.Module):
    def __init__(self, outputs, rngs):
        self.first = nnx.Conv(1, 16, (8, 8), strides=2, padding=3, rngs=rngs)
        self.second = nnx.Conv(16, 32, (4, 4), strides=2, padding="VALID", rngs=rngs)
        self.hidden = nnx.Linear(512, 32, rngs=rngs)
        self.last = nnx.Linear(32, outputs, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(nnx.max_pool(self.first(x), (2, 2), (1, 1)))
        x = nnx.relu(nnx.max_pool(self.second(x), (2, 2), (1, 1)))
        return self.last(nnx.relu(self.hidden(x.reshape(len(x), -1))))


class Mlp(nnx.Module):
    def __init__(self, outputs, rngs):
        self.hidden = nnx.Linear(784, 64, rngs=rngs)
        self.last = nnx.Linear(64, outputs, rngs=rngs)

    def __call__(self, x):
        return self.last(nnx.relu(self.hidden(x.reshape(len(x), -1))))


def cnn(input_shape, outputs, seed):
    return Cnn(outputs, nnx.Rngs(seed))


def mlp(input_shape, outputs, seed):
    return Mlp(outputs, nnx.Rngs(seed))
