"""PyTorch; also a transformer, for the race against Opacus."""

import torch
from torch import nn


def cnn(input_shape, outputs):
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.MaxPool2d(2, stride=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.MaxPool2d(2, stride=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 32),
        nn.ReLU(),
        nn.Linear(32, outputs),
    )


def mlp(input_shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, outputs))


class Block(nn.Module):
    """Attention with 4 heads, then two dense layers; from layers that every mode of Opacus knows."""

    def __init__(self, width, heads=4):
        super().__init__()
        self.heads = heads
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.asked, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        records, tokens, width = x.shape
        parts = self.asked(self.norm(x)).reshape(records, tokens, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        weights = torch.softmax(query @ key.transpose(2, 3) * (width // self.heads) ** -0.5, -1)
        x = x + self.out((weights @ value).transpose(1, 2).reshape(records, tokens, width))
        return x + self.narrow(torch.relu(self.wide(self.norm2(x))))


class Transformer(nn.Module):
    """Two blocks on the rows of an image as tokens, which have fixed places."""

    def __init__(self, tokens, size, outputs, width=32):
        super().__init__()
        angles = torch.arange(tokens)[:, None] / 100 ** (torch.arange(width // 2) * 2 / width)
        self.register_buffer("places", torch.cat([angles.sin(), angles.cos()], 1))
        self.first = nn.Linear(size, width)
        self.blocks = nn.Sequential(Block(width), Block(width))
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, outputs)

    def forward(self, x):
        return self.last(self.norm(self.blocks(self.first(x) + self.places)).mean(1))


def transformer(input_shape, outputs):
    return Transformer(*input_shape, outputs)
