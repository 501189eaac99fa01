"""Metrics of a model on held-out records, without noise; and what a run releases once with noise.

A plan may release constants for standardising before the first round, and metrics after the last. Both are sums over
the records of all silos in which every subject counts at most once, with noise in shares: each silo adds its own, from
a stream of its own, before its part leaves it. ``proofs.noisy_silo_sums.paid_event`` proves what each view learns.
The caller has written the ledger line of the release before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tacit.data import Federation, Records
from tacit.data.options import Columns
from tacit.exchange.sums import SumFacts
from tacit.models import Task
from tacit.planning.plan import Plan
from tacit.privacy import Noise, Randomness, Stream
from tacit.privacy.mechanisms.noisy_queries import Means, Metrics, Moments
from tacit.privacy.mechanisms.spreads import Spreads
from tacit.privacy.proofs.noisy_silo_sums import noisy_sum

Numbers = dict[str, float | None]
Query = Means | Moments | Spreads

# No metric is computed for fewer held-out records: of one or two, it would show their labels.
FEWEST_RECORDS = 5
RANKING = {"auc", "macro_auc", "average_precision", "c_index"}


@dataclass(frozen=True)
class Scores:
    """Metrics by name: over all held-out records, and for each silo's own ones. None where a metric is undefined.

    ``errors``: the standard errors that noise added, of private metrics. ``over_silos``: ranking metrics
    averaged over silos, each weighted by its held-out records: what models of one silo each can be compared by.
    ``shared``: where silos have models of their own, the scores of the shared model on the same records.
    ``tested``: about how many held-out records each silo has (:func:`about`). Metrics of few records vary by chance.
    """

    overall: Numbers
    silos: dict[str, Numbers]
    errors: Numbers | None = None
    over_silos: Numbers | None = None
    shared: Scores | None = None
    tested: dict[str, int] | None = None

    def as_dict(self) -> dict[str, Any]:
        others = {"standard_errors": self.errors, "over_silos": self.over_silos}
        known = {name: numbers for name, numbers in others.items() if numbers is not None}
        shared = {} if self.shared is None else {"shared": self.shared.as_dict()}
        return {"metrics": self.overall, "silos": self.silos, **known, **shared}


def score(task: Task, outputs: np.ndarray, records: Records, silo_names: tuple[str, ...], per_silo: bool) -> Scores:
    """``outputs [records, k]`` against the labels."""
    overall = _metrics(task, outputs, records.labels, np.ones(len(records), bool))
    if not per_silo:
        return Scores(overall, {})
    silos = {name: _metrics(task, outputs, records.labels, records.silo == k) for k, name in enumerate(silo_names)}
    counts = np.bincount(records.silo, minlength=len(silo_names))
    tested = {name: about(int(counts[k])) for k, name in enumerate(silo_names)}
    return Scores(overall, silos, over_silos=_over_silos(silos, records), tested=tested)


def about(records: int) -> int:
    """A number of records as a result may state it: two digits from 100 on, full tens below, 0 for fewer than 10. One
    record more or less seldom changes it."""
    return 0 if records < 10 else round(records, -1) if records < 100 else int(float(f"{records:.1e}"))


def by_decile(task: Task, outputs: np.ndarray, records: Records) -> list[dict[str, Any]]:
    """Metrics for people with few to many held-out records, in (up to) ten groups of people of equal size."""
    subjects, inverse, counts = np.unique(records.subject, return_inverse=True, return_counts=True)
    if counts.size == 0 or counts.max() == 1:
        return []
    groups = min(10, len(subjects))
    rank = np.argsort(np.argsort(counts, kind="stable"), kind="stable")
    group_of_row = (rank * groups // len(subjects))[inverse]
    return [
        {
            "decile": g + 1,
            "subjects": int((rank * groups // len(subjects) == g).sum()),
            "records": int((group_of_row == g).sum()),
            "metrics": _metrics(task, outputs, records.labels, group_of_row == g),
        }
        for g in range(groups)
    ]


def of_own_models(scores: Scores) -> Scores:
    """Where every silo has a model of its own, ranking metrics over all records compare scores of different models:
    replaced by the silos' own, weighted by their records."""
    return replace(scores, overall={**scores.overall, **(scores.over_silos or {})})


def _over_silos(silos: Mapping[str, Numbers], records: Records) -> Numbers:
    counts = np.bincount(records.silo, minlength=len(silos))
    averages: Numbers = {}
    for metric in sorted(RANKING & next(iter(silos.values()), {}).keys()):
        found = [(int(n), silo[metric]) for n, silo in zip(counts, silos.values(), strict=True)]
        known = [(n, value) for n, value in found if value is not None]
        total = sum(n for n, _ in known)
        averages[metric] = sum(n * value for n, value in known) / total if total else None
    return averages


def _metrics(task: Task, outputs: np.ndarray, labels: np.ndarray, rows: np.ndarray) -> Numbers:
    if rows.sum() < FEWEST_RECORDS:
        return dict.fromkeys(task.metrics)
    return {name: _finite(metric(outputs[rows], labels[rows])) for name, metric in task.metrics.items()}


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def shown(numbers: Mapping[str, float | None]) -> str:
    """The first two metrics in a few characters, for progress displays."""
    found = [f"{name} {value:.3f}" for name, value in numbers.items() if value is not None]
    return "  ".join(found[:2])


def release_constants(plan: Plan, federation: Federation, randomness: Randomness) -> tuple[list[float], list[float]]:
    """Noisy means and deviations of the numeric columns over training subjects, one of each per column."""
    unpaid = federation.unpaid
    assert unpaid is not None, "the constants are known already"
    query = constants_query(plan, unpaid.columns)
    noisy, noise = _noisy_sum(plan, query, unpaid.values(), federation.train, _streams(plan, randomness, "statistics"))
    return constants_found(query, noisy, noise)


def constants_query(plan: Plan, columns: Columns) -> Moments | Spreads:
    """The sum that constants of these columns come from: of columns without public bounds, a histogram."""
    once, most = plan.statistics, plan.promise.facts.silos_of_a_subject
    assert once is not None, "this plan releases no private constants"
    if columns.unbounded:
        return Spreads(len(columns.numeric), once.noise_multiplier, most)
    low, high = columns.bounds()
    return Moments(low, high, once.noise_multiplier, max_silos=most)


def constants_found(query: Moments | Spreads, noisy: np.ndarray, noise: float) -> tuple[list[float], list[float]]:
    """Means and deviations from a noisy sum, in which there is that much noise (over the sensitivity)."""
    found = replace(query, noise_multiplier=noise).estimate(noisy)
    return found.mean.tolist(), found.deviation.tolist()


def release_metrics(plan: Plan, outputs: np.ndarray, records: Records, randomness: Randomness, number: int) -> Scores:
    """Noisy metrics over the subjects of ``records``, of the model of round ``number`` with its ``outputs [records,
    k]``, and their standard errors."""
    streams = _streams(plan, randomness, "evaluation", number)
    query, values = metrics_query(plan), metric_values(plan, outputs, records)
    noisy, noise = _noisy_sum(plan, query, values, records, streams)
    return metrics_found(plan, noisy, noise)


def metrics_query(plan: Plan) -> Means:
    """The sum that metrics come from."""
    once, bounds = plan.evaluation, plan.paid_metrics
    assert once is not None, "this plan releases no private metrics"
    most = plan.promise.facts.silos_of_a_subject
    return Metrics(tuple(bounds), tuple(bounds.values()), once.noise_multiplier, max_silos=most).means()


def metric_values(plan: Plan, outputs: np.ndarray, records: Records) -> np.ndarray:
    """The score of every record under every metric, ``[records, metrics]``: private."""
    numbers, bounds = np.asarray(outputs, np.float64), plan.paid_metrics
    return np.stack([SCORES[name](numbers, records.labels, bound) for name, bound in bounds.items()], axis=1)


def metrics_found(plan: Plan, noisy: np.ndarray, noise: float) -> Scores:
    """What a noisy sum says, in which there is that much noise (over the sensitivity)."""
    found = replace(metrics_query(plan), noise_multiplier=noise).estimate(noisy)
    values, errors = {}, {}
    for name, value, error in zip(plan.paid_metrics, found.estimate, found.standard_error, strict=True):
        values[name], errors[name] = _rooted(value, error) if name == "rmse" else (float(value), float(error))
    return Scores(dict(values), {}, dict(errors))


def _streams(plan: Plan, randomness: Randomness, purpose: str, *place: int) -> list[Stream]:
    """Every silo's own noise."""
    return [randomness.stream(purpose, *place, k) for k in range(plan.promise.facts.silos)]


def _noisy_sum(
    plan: Plan, query: Query, values: np.ndarray, records: Records, streams: Sequence[Stream]
) -> tuple[np.ndarray, float]:
    """The sum over all silos with the noise of each, carried as the exchange carries updates; and the noise that really
    is in it, over the sensitivity."""
    silos, masked = plan.promise.facts.silos, plan.exchange.masking
    silo = np.zeros_like(records.silo) if plan.method.info.pools else records.silo
    parts = query.parts(values, records.subject, silo, silos)
    noise = noise_in_sum(plan, query)
    if masked is None:
        return noisy_sum(parts, query.sigma, streams), noise
    session = masked.session([str(k) for k in range(silos)], parts.shape[1], masked_sum(plan, query))
    return session.sum(1, masked.grid.truncated(parts), streams), noise


def noise_in_sum(plan: Plan, query: Query) -> float:
    """The standard deviation of the noise in a sum, over the sensitivity."""
    masked = plan.exchange.masking
    return query.noise_multiplier * (1.0 if masked is None else masked.surplus(plan.promise.facts.silos))


def masked_sum(plan: Plan, query: Query) -> SumFacts:
    """What a masked sum is asked for, over the declared number of people.

    On a grid of step p a silo's part is rounded: it moves by at most sqrt(D) p more than before, in up to S silos. With
    noise for a sensitivity of s + S^2 sqrt(D) p every bound of ``paid_event`` still holds: they allow at least 1 / m of
    it, and S sqrt(D) p is at most 1 / m of the addition.
    """
    silos, masked = plan.promise.facts.silos, plan.exchange.masking
    people = plan.promise.facts.subjects
    assert masked is not None
    assert people is not None, "the plan refuses masked sums without a declared number of people"
    rounding = silos**2 * math.sqrt(query.numbers) * masked.precision
    std = query.noise_multiplier * (query.sensitivity + rounding)
    return SumFacts(silos, people, 1.0, Noise(std, "shares"))  # one person adds at most 1 to any number


def _rooted(value: float, error: float) -> tuple[float, float]:
    """The root of a noisy square, and its standard error: to first order, at most the root of the square's own."""
    root = math.sqrt(max(float(value), 0.0))
    return root, min(float(error) / (2 * root) if root > 0 else math.inf, math.sqrt(float(error)))


def _accuracy(outputs: np.ndarray, labels: np.ndarray, bound: float) -> np.ndarray:
    predicted = outputs[:, 0] > 0 if outputs.shape[1] == 1 else outputs.argmax(axis=1)
    return np.asarray(predicted.astype(np.int64) == labels, np.float64)


def _log_loss(outputs: np.ndarray, labels: np.ndarray, bound: float) -> np.ndarray:
    """Scores from log-probabilities: a probability may be too small for a float, its logarithm is not."""
    if outputs.shape[1] == 1:
        signed = np.where(labels > 0, outputs[:, 0], -outputs[:, 0])
        of_truth = np.exp(-np.logaddexp(0.0, -signed))
    else:
        shifted = outputs - outputs.max(axis=1, keepdims=True)
        of_truth = np.exp(shifted[np.arange(len(labels)), labels]) / np.exp(shifted).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.minimum(-np.log(of_truth), bound)


def _squared_error(outputs: np.ndarray, labels: np.ndarray, bound: float) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.minimum((outputs[:, 0] - np.asarray(labels, np.float64)) ** 2, bound)


# The score of every record, between 0 and the bound of the metric.
SCORES: dict[str, Callable[[np.ndarray, np.ndarray, float], np.ndarray]] = {
    "accuracy": _accuracy,
    "log_loss": _log_loss,
    "rmse": _squared_error,
}
