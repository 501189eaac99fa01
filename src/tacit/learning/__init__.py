"""The numeric kernels, on plain arrays: objectives, batches, local descent, the server's step."""

from tacit.learning.batches import Batches, power_of_two, shuffled, stack
from tacit.learning.descent import descend
from tacit.learning.objective import Arrays, Objective, split_frozen, tree_zeros
from tacit.learning.server import OPTIMIZERS

__all__ = [
    "OPTIMIZERS",
    "Arrays",
    "Batches",
    "Objective",
    "descend",
    "power_of_two",
    "shuffled",
    "split_frozen",
    "stack",
    "tree_zeros",
]
