"""Modules of Flax Linen of "the user's own"."""

from flax import linen as nn


class Net(nn.Module):
    outputs: int

    @nn.compact
    def __call__(self, x, train: bool = False):
        x = nn.max_pool(nn.relu(nn.Conv(4, (3, 3), strides=2)(x)), (2, 2), (2, 2))
        x = nn.Dropout(0.5, deterministic=not train)(x.reshape(len(x), -1))
        return nn.Dense(self.outputs)(x)


class Normed(nn.Module):
    outputs: int

    @nn.compact
    def __call__(self, x, train: bool = False):
        return nn.Dense(self.outputs)(nn.BatchNorm(use_running_average=not train)(nn.Dense(8)(x)))


def images(input_shape, outputs):
    return Net(outputs)


def table(input_shape, outputs):
    return nn.Sequential([nn.Dense(8), nn.tanh, nn.Dense(outputs)])


def batch_norm(input_shape, outputs):
    return Normed(outputs)
