"""The numeric kernels, on plain arrays: objectives, batches, clipping, noise, work of silos and people, server."""

from tacit.learning.batches import Batches, Rows, Schedule, power_of_two, shuffled, stack
from tacit.learning.clipped_sum import ClippedSum, clipped_gradient_sum
from tacit.learning.clipping import bounded, clipped
from tacit.learning.descent import Work, descend, walk
from tacit.learning.lanes import Lane, Layout, arrange, drawn
from tacit.learning.noise import gaussian, key_words, nonce_words, random_bits
from tacit.learning.noisy_descent import Tally, noisy_descend
from tacit.learning.objective import Arrays, Objective, split_frozen, tree_zeros
from tacit.learning.people import Contributions, Local, PeopleSum, each_person, people_sum
from tacit.learning.sampling import PoissonBatches, Sampled
from tacit.learning.server import ServerOptimizer, ServerStep
from tacit.learning.steps import Counts, Steps

__all__ = [
    "Arrays",
    "Batches",
    "ClippedSum",
    "Contributions",
    "Counts",
    "Lane",
    "Layout",
    "Local",
    "Objective",
    "PeopleSum",
    "PoissonBatches",
    "Rows",
    "Sampled",
    "Schedule",
    "ServerOptimizer",
    "ServerStep",
    "Steps",
    "Tally",
    "Work",
    "arrange",
    "bounded",
    "clipped",
    "clipped_gradient_sum",
    "descend",
    "drawn",
    "each_person",
    "gaussian",
    "key_words",
    "noisy_descend",
    "nonce_words",
    "people_sum",
    "power_of_two",
    "random_bits",
    "shuffled",
    "split_frozen",
    "stack",
    "tree_zeros",
    "walk",
]
