"""What a run releases once and pays for: constants for standardising before the first round, metrics after the last.

Both are sums over the records of all silos in which every subject counts at most once, with noise in shares: each silo
adds its own, from a stream that is its own, before its part leaves it. Who sees what of that is proved in
``privacy.statistics.paid_event``; whoever calls these functions has written the release down before.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from tacit.config import Plan
from tacit.data import Federation, Records
from tacit.engine.evaluate import Scores
from tacit.privacy import Randomness
from tacit.privacy.statistics import (
    Means,
    Metrics,
    Moments,
    accuracy_scores,
    log_loss_scores,
    noisy_sum,
    squared_error_scores,
)


def release_constants(plan: Plan, federation: Federation, randomness: Randomness) -> tuple[list[float], list[float]]:
    """Noisy means and deviations of the numeric columns over training subjects, one of each per column."""
    once, unpaid = plan.statistics, federation.unpaid
    assert once is not None, "this plan pays for no statistics"
    assert unpaid is not None, "the constants are known already"
    query = Moments(unpaid.low, unpaid.high, once.noise_multiplier, max_silos=plan.promise.facts.silos_of_a_subject)
    found = query.estimate(_noisy(plan, query, unpaid.values(), federation.train, randomness, "statistics"))
    return found.mean.tolist(), found.deviation.tolist()


def release_metrics(plan: Plan, outputs: np.ndarray, records: Records, randomness: Randomness, number: int) -> Scores:
    """Noisy metrics over the subjects of ``records``, of the model of round ``number`` with its ``outputs [records,
    k]``, and their standard errors."""
    once, bounds = plan.evaluation, plan.paid_metrics
    assert once is not None, "this plan pays for no metrics"
    most = plan.promise.facts.silos_of_a_subject
    query = Metrics(tuple(bounds), tuple(bounds.values()), once.noise_multiplier, max_silos=most).means()
    scores = [SCORES[name](np.asarray(outputs, np.float64), records.labels, bound) for name, bound in bounds.items()]
    noisy = _noisy(plan, query, np.stack(scores, axis=1), records, randomness, "evaluation", number)
    values, errors = {}, {}
    for name, value, error in zip(bounds, *query.estimate(noisy), strict=True):
        values[name], errors[name] = _rooted(value, error) if name == "rmse" else (float(value), float(error))
    return Scores(dict(values), {}, dict(errors))


def _noisy(
    plan: Plan,
    query: Means | Moments,
    values: np.ndarray,
    records: Records,
    randomness: Randomness,
    *use: str | int,
) -> np.ndarray:
    """The sum over all silos with every silo's share of the noise."""
    silos = plan.promise.facts.silos
    silo = np.zeros_like(records.silo) if plan.method.pools else records.silo
    purpose, *place = use
    streams = [randomness.stream(str(purpose), *map(int, place), k) for k in range(silos)]
    return noisy_sum(query.parts(values, records.subject, silo, silos), query.sigma, streams)


def _rooted(value: float, error: float) -> tuple[float, float]:
    """The root of a noisy square, and its standard error: to first order, at most the root of the square's own."""
    root = math.sqrt(max(float(value), 0.0))
    return root, min(float(error) / (2 * root) if root > 0 else math.inf, math.sqrt(float(error)))


def _accuracy(outputs: np.ndarray, labels: np.ndarray, bound: float) -> np.ndarray:
    predicted = outputs[:, 0] > 0 if outputs.shape[1] == 1 else outputs.argmax(axis=1)
    return accuracy_scores(predicted.astype(np.int64), labels)


def _log_loss(outputs: np.ndarray, labels: np.ndarray, bound: float) -> np.ndarray:
    """Scores from log-probabilities: a probability may be too small for a float, its logarithm is not."""
    if outputs.shape[1] == 1:
        signed = np.where(labels > 0, outputs[:, 0], -outputs[:, 0])
        of_truth = np.exp(-np.logaddexp(0.0, -signed))
    else:
        shifted = outputs - outputs.max(axis=1, keepdims=True)
        of_truth = np.exp(shifted[np.arange(len(labels)), labels]) / np.exp(shifted).sum(axis=1)
    return log_loss_scores(of_truth, bound)


def _squared_error(outputs: np.ndarray, labels: np.ndarray, bound: float) -> np.ndarray:
    return squared_error_scores(outputs[:, 0], labels, bound)


# The score of every record, between 0 and the bound of the metric.
SCORES: dict[str, Callable[[np.ndarray, np.ndarray, float], np.ndarray]] = {
    "accuracy": _accuracy,
    "log_loss": _log_loss,
    "rmse": _squared_error,
}
