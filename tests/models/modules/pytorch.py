"""PyTorch modules of "the user's own"."""

from torch import nn


class Net(nn.Module):
    def __init__(self, channels, outputs):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(channels, 4, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4 * 2 * 2, outputs)

    def forward(self, x):
        return self.head(self.drop(self.encoder(x).flatten(1)))


def images(input_shape, outputs):
    return Net(1, outputs)


def table(input_shape, outputs):
    return nn.Sequential(nn.Linear(*input_shape, 8), nn.Tanh(), nn.Linear(8, outputs))


def batch_norm(input_shape, outputs):
    return nn.Sequential(nn.Linear(*input_shape, 8), nn.BatchNorm1d(8), nn.Linear(8, outputs))


def frozen_batch_norm(input_shape, outputs):
    return batch_norm(input_shape, outputs).eval()


def dropping(input_shape, outputs):
    return nn.Sequential(nn.Linear(*input_shape, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, outputs))


def backbone_and_head(input_shape, outputs):
    backbone = nn.Sequential(nn.Linear(*input_shape, 16), nn.Tanh())
    return backbone, nn.Linear(16, outputs)
