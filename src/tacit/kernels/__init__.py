"""The numeric kernels, on plain arrays: objectives, batches, clipping, noise, work of silos and people, server."""

from tacit.kernels.batches import Batches, Rows, Schedule, power_of_two, shuffled, stack
from tacit.kernels.clipped_sum import ClippedSum, clipped_gradient_sum
from tacit.kernels.clipping import bounded, clipped
from tacit.kernels.descent import Work, descend, walk
from tacit.kernels.grid_integers import Counts, Steps
from tacit.kernels.lane_schedule import Lane, Layout, arrange, drawn
from tacit.kernels.noise import gaussian, key_words, nonce_words, random_bits
from tacit.kernels.noisy_descent import StepTally, noisy_descend
from tacit.kernels.objective import Arrays, Objective, split_frozen, tree_zeros
from tacit.kernels.people import ClippedVectors, Local, PeopleSum, each_person, people_sum
from tacit.kernels.sampling import PoissonBatches, Sampled
from tacit.kernels.server_optimizer import ServerOptimizer, ServerStep

__all__ = [
    "Arrays",
    "Batches",
    "ClippedSum",
    "ClippedVectors",
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
    "StepTally",
    "Steps",
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
