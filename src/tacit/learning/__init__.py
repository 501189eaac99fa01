"""The numeric kernels, on plain arrays: objectives, batches, local descent, clipped sums, noise, server steps."""

from tacit.learning.batches import Batches, Schedule, draw, power_of_two, shuffled, stack
from tacit.learning.clipped_sum import ClippedSum, clipped_gradient_sum
from tacit.learning.descent import Work, descend
from tacit.learning.noise import gaussian, key_words, nonce_words, random_bits
from tacit.learning.objective import Arrays, Objective, split_frozen, tree_zeros
from tacit.learning.server import ServerOptimizer, ServerStep

__all__ = [
    "Arrays",
    "Batches",
    "ClippedSum",
    "Objective",
    "Schedule",
    "ServerOptimizer",
    "ServerStep",
    "Work",
    "clipped_gradient_sum",
    "descend",
    "draw",
    "gaussian",
    "key_words",
    "nonce_words",
    "power_of_two",
    "random_bits",
    "shuffled",
    "split_frozen",
    "stack",
    "tree_zeros",
]
