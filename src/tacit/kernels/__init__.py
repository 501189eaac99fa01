"""The numeric kernels, on plain arrays: objectives, batches, clipping, noise, work of silos and people, server."""

from tacit.kernels.batches import Batches, PoissonBatches, Rows, Sampled, Schedule
from tacit.kernels.clipped_sum import ClippedSum, clipped_gradient_sum
from tacit.kernels.exact_sums import Counts, Steps, bounded, clipped
from tacit.kernels.lane_schedule import Lane, Layout, arrange, drawn, on_device
from tacit.kernels.noise import gaussian, key_words, nonce_words
from tacit.kernels.noisy_descent import StepTally, noisy_descend
from tacit.kernels.people import (
    ClippedVectors,
    Computation,
    Direction,
    Gradient,
    LocalTraining,
    PeopleSum,
    Person,
    RecordGradients,
    each_person,
    people_sum,
)
from tacit.kernels.training import (
    Arrays,
    Objective,
    ServerOptimizer,
    ServerStep,
    Work,
    descend,
    power_of_two,
    split_frozen,
    tree_zeros,
    walk,
)

__all__ = [
    "Arrays",
    "Batches",
    "ClippedSum",
    "ClippedVectors",
    "Computation",
    "Counts",
    "Direction",
    "Gradient",
    "Lane",
    "Layout",
    "LocalTraining",
    "Objective",
    "PeopleSum",
    "Person",
    "PoissonBatches",
    "RecordGradients",
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
    "on_device",
    "people_sum",
    "power_of_two",
    "split_frozen",
    "tree_zeros",
    "walk",
]
