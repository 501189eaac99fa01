"""Attacks that show what an epsilon means: membership, images, the income of a person.

None of them bounds epsilon. Each uses only what a view sees.

membership   was this record, or this person, in the training data? By loss, or by how much likelier the loss is among
             models that had it (Carlini et al. 2022, with shadow models)
inversion    from the gradient of one record back to the record (Zhu, Liu, Han 2019): of a first layer with a bias it is
             a quotient (Geiping et al. 2020, Proposition 3.1)
attribute    which of two values a person has, from a release that contains that person's mean
differencing two releases that differ by one person
rebuilding   answers to random subset sums with too little noise give the data back (Dinur and Nissim 2003)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Membership:
    """How well scores distinguish members from others: the area under the curve (0.5 is random guessing), and the share
    of members found at 1 % false alarms."""

    auc: float
    found_at_one_percent: float


def membership(score_in: Array, score_out: Array) -> Membership:
    """For scores that are larger for likely members."""
    order = np.concatenate([score_in, score_out])
    ranks = _ranks(order)[: len(score_in)]
    pairs = len(score_in) * len(score_out)
    auc = (ranks.sum() - len(score_in) * (len(score_in) + 1) / 2) / pairs
    threshold = np.quantile(score_out, 0.99, method="higher")
    return Membership(float(auc), float((score_in > threshold).mean()))


def _ranks(values: Array) -> Array:
    """From 1, ties shared."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse], np.float64)


def per_subject(scores: Array, subject: npt.NDArray[np.int32]) -> tuple[Array, npt.NDArray[np.int32]]:
    """The mean score of every subject, and the subjects."""
    subjects, inverse, counts = np.unique(subject, return_inverse=True, return_counts=True)
    return np.bincount(inverse, scores) / counts, subjects


def likelihood_ratio(scores: Array, shadow_scores: Array, shadow_in: npt.NDArray[np.bool_]) -> Array:
    """The offline-online attack of Carlini et al. 2022, per candidate: ln N(score; in) - ln N(score; out).

    ``scores [candidates]`` under the model in question; ``shadow_scores [models, candidates]`` under models that had
    the candidate or not (``shadow_in``). Widths are pooled: with few shadow models each alone would be a guess.
    """
    centre_in = _masked_mean(shadow_scores, shadow_in)
    centre_out = _masked_mean(shadow_scores, ~shadow_in)
    off = np.where(shadow_in, shadow_scores - centre_in, shadow_scores - centre_out)
    width = max(float(np.sqrt(np.square(off).mean())), 1e-12)
    return np.asarray((np.square(scores - centre_out) - np.square(scores - centre_in)) / (2 * width**2))


def _masked_mean(values: Array, mask: npt.NDArray[np.bool_]) -> Array:
    return np.asarray((values * mask).sum(axis=0) / np.maximum(mask.sum(axis=0), 1))


def invert_gradient(weight_gradient: Array, bias_gradient: Array) -> Array:
    """The record from the gradient of a first dense layer, ``[inputs, units]`` and ``[units]``.

    The gradient of unit j is the input times that of its bias: together they are a matrix of rank 1, input and 1 on one
    side. Of several records it is nearly one of their mean, and the strongest direction stands out from noise as long
    as it is stronger than noise of that size can be.
    """
    stacked = np.concatenate([weight_gradient, bias_gradient[None]])
    strongest = np.linalg.svd(stacked, full_matrices=False)[0][:, 0]
    return np.asarray(strongest[:-1] / strongest[-1] if strongest[-1] else np.zeros(len(weight_gradient)))


def difference(with_person: Array, without: Array, people_with: float, people_without: float) -> Array:
    """A person's values from two means, one of which has the person: people_with m1 - people_without m0."""
    return np.asarray(people_with * with_person - people_without * without)


def attribute(released: Array, direction: Array) -> npt.NDArray[np.bool_]:
    """Which of two opposite values a person has, release by release: the side of ``direction`` on which ``released
    [releases, numbers]`` lies."""
    return np.asarray(released @ direction > 0)


def rebuild(queries: npt.NDArray[np.bool_], answers: Array) -> npt.NDArray[np.bool_]:
    """Every person's secret bit from noisy sums over random subsets: least squares, rounded (Dinur and Nissim 2003).

    ``queries [answers, people]`` says who is in which sum. Sums over n people need noise of the order of sqrt(n) before
    this fails for most.
    """
    found, *_ = np.linalg.lstsq(queries.astype(np.float64), answers, rcond=None)
    return np.asarray(found > 0.5)
