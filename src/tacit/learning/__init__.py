"""The numeric kernels, on plain arrays: objectives, batches, local descent, per-person work, the server's step."""

from tacit.learning.batches import Batches, Schedule, draw, power_of_two, shuffled, stack
from tacit.learning.descent import Work, descend
from tacit.learning.lanes import Lane, Layout, arrange, drawn
from tacit.learning.objective import Arrays, Objective, split_frozen, tree_zeros
from tacit.learning.people import Contributions, Local, PeopleSum, each_person, people_sum
from tacit.learning.server import ServerOptimizer, ServerStep

__all__ = [
    "Arrays",
    "Batches",
    "Contributions",
    "Lane",
    "Layout",
    "Local",
    "Objective",
    "PeopleSum",
    "Schedule",
    "ServerOptimizer",
    "ServerStep",
    "Work",
    "arrange",
    "descend",
    "draw",
    "drawn",
    "each_person",
    "people_sum",
    "power_of_two",
    "shuffled",
    "split_frozen",
    "stack",
    "tree_zeros",
]
