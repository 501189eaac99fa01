"""Modules of Flax NNX of "the user's own"."""

from flax import nnx


class Net(nnx.Module):
    def __init__(self, outputs, rngs):
        self.conv = nnx.Conv(1, 4, (3, 3), strides=2, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.head = nnx.Linear(4 * 2 * 2, outputs, rngs=rngs)

    def __call__(self, x):
        x = nnx.max_pool(nnx.relu(self.conv(x)), (2, 2), (2, 2))
        return self.head(self.drop(x.reshape(len(x), -1)))


def images(input_shape, outputs, seed):
    return Net(outputs, nnx.Rngs(seed))


def table(input_shape, outputs, seed):
    rngs = nnx.Rngs(seed)
    return nnx.Sequential(nnx.Linear(*input_shape, 8, rngs=rngs), nnx.tanh, nnx.Linear(8, outputs, rngs=rngs))


def batch_norm(input_shape, outputs, seed):
    rngs = nnx.Rngs(seed)
    return nnx.Sequential(nnx.BatchNorm(*input_shape, rngs=rngs), nnx.Linear(*input_shape, outputs, rngs=rngs))
