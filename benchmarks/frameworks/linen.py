"""Flax Linen."""

from flax import linen as nn


class Cnn(nn.Module):
    outputs: int

    @nn.compact
    def __call__(self, x):
        x = nn.Conv(16, (8, 8), strides=2, padding=3)(x)
        x = nn.relu(nn.max_pool(x, (2, 2), (1, 1)))
        x = nn.Conv(32, (4, 4), strides=2, padding="VALID")(x)
        x = nn.relu(nn.max_pool(x, (2, 2), (1, 1)))
        x = nn.relu(nn.Dense(32)(x.reshape(len(x), -1)))
        return nn.Dense(self.outputs)(x)


class Mlp(nn.Module):
    outputs: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.outputs)(nn.relu(nn.Dense(64)(x.reshape(len(x), -1))))


def cnn(input_shape, outputs):
    return Cnn(outputs)


def mlp(input_shape, outputs):
    return Mlp(outputs)
