"""The numeric kernels, on plain arrays: objectives, batches, local descent, the server's step."""

from tacit.learning.batches import Batches, Schedule, draw, power_of_two, shuffled, stack
from tacit.learning.clipping import clipped
from tacit.learning.descent import Work, descend
from tacit.learning.objective import Arrays, Objective, split_frozen, tree_zeros
from tacit.learning.server import ServerOptimizer, ServerStep

__all__ = [
    "Arrays",
    "Batches",
    "Objective",
    "Schedule",
    "ServerOptimizer",
    "ServerStep",
    "Work",
    "clipped",
    "descend",
    "draw",
    "power_of_two",
    "shuffled",
    "split_frozen",
    "stack",
    "tree_zeros",
]
