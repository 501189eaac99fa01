"""Statistics over subjects: what one subject can move, what the noise does, and that the estimates are right."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.privacy import Gaussian, Pure, Randomness, account
from tacit.privacy.invalid import InvalidArgument
from tacit.privacy.mechanisms.noise_mechanisms import ExponentialMechanism, gaussian_sigma
from tacit.privacy.mechanisms.noisy_queries import (
    CategoryCounts,
    Means,
    Metrics,
    Moments,
    Quantile,
    record_weights,
)
from tacit.privacy.mechanisms.spreads import Spreads
from tests.refusals import refuses

LOW, HIGH = (0.0, -5.0, 10.0), (1.0, 5.0, 250.0)


def stream(*place: int):
    return Randomness.from_seed(5).stream("statistics", *place)


def people(seed: int, subjects: int = 30, records: int = 200, silos: int = 4):
    """Values beyond the bounds and missing ones too, few and many records per subject."""
    rng = np.random.default_rng(seed)
    values = rng.normal([0.5, 0.0, 100.0], [0.6, 4.0, 120.0], (records, 3))
    values[rng.random((records, 3)) < 0.03] = np.nan
    values[rng.random((records, 3)) < 0.02] = np.inf
    subject = (subjects * rng.random(records) ** 3).astype(np.int64)
    return values, subject, rng.integers(0, silos, records)


crowds = st.sampled_from([{"subjects": 30}, {"subjects": None}, {"max_silos": 4}, {"max_silos": 2}])


# -- what one subject can move -----------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), crowds, st.booleans())
def test_zeroing_a_subject_moves_a_sum_by_at_most_its_sensitivity(seed: int, crowd: dict, with_silos: bool) -> None:
    values, subject, silo = people(seed)
    gone = np.random.default_rng(seed).choice(np.unique(subject))
    left = subject != gone
    max_silos = crowd.get("max_silos")
    cases = [
        (Means(LOW, HIGH, 1.0, **crowd), values),
        (Moments(LOW, HIGH, 1.0, **crowd), values),
        (CategoryCounts(4, 1.0, 1.0, max_silos), silo),
        (CategoryCounts(4, 1.0, 7.5, max_silos), silo),
        (Spreads(3, 1.0, max_silos), values),
    ]
    for query, data in cases:
        before = query.total(data, subject, silo if with_silos else None)
        after = query.total(data[left], subject[left], silo[left] if with_silos else None)
        assert np.linalg.norm(before - after) <= query.sensitivity * (1 + 1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.0, 1.0), st.floats(0.1, 5.0), st.booleans())
def test_zeroing_a_subject_changes_the_chances_of_a_quantile_by_at_most_epsilon(
    seed: int, share: float, epsilon: float, with_silos: bool
) -> None:
    values, subject, silo = people(seed)
    left = subject != np.random.default_rng(seed).choice(np.unique(subject))
    query = Quantile(share, -10.0, 10.0, epsilon, candidates=50)
    before = query.scores(values[:, 1], subject, silo if with_silos else None)
    after = query.scores(values[left, 1], subject[left], silo[left] if with_silos else None)
    assert np.abs(before - after).max() <= query.sensitivity * (1 + 1e-12)
    mechanism = ExponentialMechanism(epsilon, query.sensitivity)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.abs(np.log(mechanism.probabilities(before)) - np.log(mechanism.probabilities(after)))
    assert np.nanmax(ratio) <= epsilon * (1 + 1e-9)


def test_the_sensitivities_are_attained_by_a_subject_at_the_bounds() -> None:
    at_the_corner = np.tile(HIGH, (9, 1))
    for crowd, extra in (({"subjects": 30}, 0), ({"subjects": None}, 1)):
        for query, size in ((Means(LOW, HIGH, 1.0, **crowd), 3), (Moments(LOW, HIGH, 1.0, **crowd), 6)):
            assert query.sensitivity == pytest.approx(math.sqrt(size + extra))
            assert np.linalg.norm(query.total(at_the_corner, np.zeros(9))) == pytest.approx(query.sensitivity)
    counts = CategoryCounts(3, 1.0, cap=4.0)
    assert np.linalg.norm(counts.total(np.ones(9), np.zeros(9))) == pytest.approx(4.0)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([None, 1, 3, 9]), st.floats(0.5, 50.0), st.booleans())
def test_the_weights_of_a_subject_sum_to_at_most_the_cap(
    seed: int, max_silos: int | None, cap: float, with_silos: bool
) -> None:
    _, subject, silo = people(seed)
    weights = record_weights(subject, silo if with_silos else None, max_silos, cap)
    assert weights.min() > 0
    assert weights.max() <= 1
    assert np.bincount(subject, weights=weights).max() <= cap * (1 + 1e-12)


def test_silos_that_know_only_their_own_records_compute_the_same_sum() -> None:
    values, subject, silo = people(3)
    queries = [(Means(LOW, HIGH, 1.0, max_silos=4), values), (Moments(LOW, HIGH, 1.0, max_silos=4), values)]
    queries += [(CategoryCounts(5, 1.0, cap=6.0, max_silos=4), subject % 5)]
    for query, data in queries:
        parts = sum(query.total(data[silo == s], subject[silo == s]) for s in range(4))
        assert parts == pytest.approx(query.total(data, subject, silo))


# -- what comes out ----------------------------------------------------------------------------------------------------


def test_without_noise_the_estimates_are_those_of_the_data() -> None:
    rng = np.random.default_rng(0)
    subject = np.repeat(np.arange(50), 4)
    values = rng.uniform([0, -5, 10], [1, 5, 250], (200, 3))
    for crowd in ({"subjects": 50}, {"subjects": None}, {"max_silos": 1}):
        paid = Means(LOW, HIGH, 0.0, **crowd).release(values, subject, stream())
        assert paid.estimate == pytest.approx(values.mean(axis=0))
        assert paid.standard_error == pytest.approx(np.zeros(3))
        assert account(paid.event, 1e-5).epsilon == math.inf
        moments = Moments(LOW, HIGH, 0.0, **crowd).release(values, subject, stream())
        assert moments.mean == pytest.approx(values.mean(axis=0))
        assert moments.variance == pytest.approx(values.var(axis=0))
        assert moments.deviation == pytest.approx(values.std(axis=0))
    counts = CategoryCounts(3, 0.0).release(subject % 3, subject, stream())
    assert counts.estimate == pytest.approx([17, 17, 16])
    records = CategoryCounts(3, 0.0, cap=4.0).release(subject % 3, subject, stream())
    assert records.estimate == pytest.approx([68, 68, 64])


def test_a_subject_with_many_records_counts_as_much_as_one_with_few() -> None:
    subject = np.array([0] * 99 + [1])
    values = np.array([1.0] * 99 + [0.0])
    assert Means((0.0,), (1.0,), 0.0, subjects=2).release(values, subject, stream()).estimate == pytest.approx([0.5])
    silo = np.array([0] * 98 + [1] + [0])
    apart = np.array([1.0] * 98 + [0.0] + [0.0])
    by_silo = Means((0.0,), (1.0,), 0.0, subjects=2).release(apart, subject, stream(), silo)
    assert by_silo.estimate == pytest.approx([0.25])


@pytest.mark.parametrize("crowd", [{"subjects": 400}, {"subjects": None}])
def test_the_standard_errors_are_those_of_the_noise(crowd: dict) -> None:
    rng = np.random.default_rng(1)
    subject = np.repeat(np.arange(400), 3)
    values = rng.uniform([0.5, -4, 20], [0.9, 0, 200], (1200, 3))
    means, moments = Means(LOW, HIGH, 3.0, **crowd), Moments(LOW, HIGH, 3.0, **crowd)
    paid = [means.release(values, subject, stream(i)) for i in range(600)]
    both = [moments.release(values, subject, stream(i)) for i in range(600)]
    for estimates, errors, truth in (
        ([p.estimate for p in paid], [p.standard_error for p in paid], values.mean(axis=0)),
        ([p.mean for p in both], [p.mean_error for p in both], values.mean(axis=0)),
        ([p.variance for p in both], [p.variance_error for p in both], values.var(axis=0)),
        ([p.deviation for p in both], [p.deviation_error for p in both], values.std(axis=0)),
    ):
        # the usual error: a deviation's is that of first order, and large where the noisy variance is small by chance
        error = np.median(errors, axis=0)
        # 600 draws: the spread is known to 3 %, the mean to 4 % of it; 5 deviations are exceeded once in a million
        assert np.std(estimates, axis=0) == pytest.approx(error, rel=0.16)
        assert np.all(np.abs(np.mean(estimates, axis=0) - truth) <= 0.25 * error)


def test_columns_that_hardly_vary_keep_a_usable_deviation() -> None:
    paid = Moments((0.0,), (100.0,), 5.0, subjects=100).release(np.full(100, 7.0), np.arange(100), stream())
    assert paid.deviation[0] >= math.sqrt(paid.variance_error[0]) * (1 - 1e-12) > 0


def test_quantiles_are_within_the_promised_ranks() -> None:
    rng = np.random.default_rng(2)
    values, subject = rng.normal(size=2000), np.arange(2000)
    ranks = []
    for i in range(200):
        query = Quantile(0.75, -5.0, 5.0, epsilon=0.5, candidates=2001)
        found = query.release(values, subject, stream(i))
        ranks.append(np.sum(values <= found.estimate) - 1500)
        assert found.event == Pure(0.5)
    # the best of 2001 candidates is at most 4 subjects off: the densest 0.005 of a normal law holds 4 of 2000
    promised = 2 * query.sensitivity * math.log(query.candidates / 0.05) / query.epsilon
    assert np.mean(np.abs(ranks) > promised + 4) <= 0.05
    assert np.std(ranks) == pytest.approx(found.rank_error, rel=0.35)


def test_a_clip_can_be_chosen_by_a_quantile_of_norms() -> None:
    norms = np.random.default_rng(3).lognormal(1.0, 0.5, 500)
    query = Quantile(0.5, 1e-3, 1e3, epsilon=1.0, geometric=True)
    assert query.release(norms, np.arange(500), stream()).estimate == pytest.approx(np.median(norms), rel=0.1)


def test_metrics_of_a_model_share_one_event() -> None:
    rng = np.random.default_rng(4)
    labels, guess = rng.integers(0, 2, 900), rng.integers(0, 2, 900)
    of_truth = rng.uniform(0, 1, 900)
    subject = np.arange(900) // 3
    query = Metrics(("accuracy", "log-loss"), (1.0, 4.0), gaussian_sigma(1.0, 1e-6), subjects=300)
    scores = {"accuracy": guess == labels, "log-loss": np.minimum(-np.log(of_truth), 4.0)}
    paid = query.release(scores, subject, stream())
    assert account(query.event(), 1e-6).epsilon == pytest.approx(1.0, rel=1e-6)
    for name in ("accuracy", "log-loss"):
        assert abs(paid[name].estimate - scores[name].mean()) <= 5 * paid[name].standard_error
        assert paid[name].event == query.event()


# -- edges -------------------------------------------------------------------------------------------------------------


def test_no_records_and_only_missing_values_are_ordinary() -> None:
    none = np.empty((0, 3))
    for query in (Means(LOW, HIGH, 1.0, subjects=5), Moments(LOW, HIGH, 1.0), Moments(LOW, HIGH, 1.0, max_silos=2)):
        for values in (none, np.full((4, 3), np.nan), np.full((4, 3), np.inf)):
            paid = query.release(values, np.arange(len(values)), stream(), np.zeros(len(values)))
            for name, numbers in vars(paid).items():
                assert name == "event" or np.isfinite(numbers).all()
    assert np.isfinite(CategoryCounts(3, 1.0).release([], [], stream()).estimate).all()
    assert CategoryCounts(2, 0.0).release([0, 7, -1], [0, 1, 2], stream()).estimate == pytest.approx([1, 0])
    assert -1 <= Quantile(0.5, -1, 1, 1.0).release([], [], stream()).estimate <= 1
    assert Quantile(0.5, -1, 1, 0.0).release([0.3], [0], stream()).rank_error == math.inf


def test_the_event_is_known_before_any_record_is_read() -> None:
    assert Moments(LOW, HIGH, 2.5).event() == Gaussian(2.5)
    assert CategoryCounts(9, 2.5, cap=20.0).event() == Gaussian(2.5)
    assert Quantile(0.1, 0.0, 1.0, 0.3).event() == Pure(0.3)


def test_numbers_that_make_no_query_are_refused() -> None:
    for wrong, code, field in (
        (lambda: Means((0.0,), (0.0,), 1.0), "out-of-range", "bounds"),
        (lambda: Means((0.0,), (math.inf,), 1.0), "out-of-range", "bounds"),
        (lambda: Means((0.0,), (1.0, 2.0), 1.0), "missing", "bounds"),
        (lambda: Means((0.0,), (1.0,), -1.0), "out-of-range", "noise_multiplier"),
        (lambda: Means((0.0,), (1.0,), math.inf), "out-of-range", "noise_multiplier"),
        (lambda: Means((0.0,), (1.0,), 1.0, subjects=0), "out-of-range", "subjects"),
        (lambda: Moments((0.0,), (1.0,), 1.0, subjects=9, max_silos=2), "mismatch", "subjects"),
        (lambda: CategoryCounts(0, 1.0), "out-of-range", "categories"),
        (lambda: CategoryCounts(2, 1.0, cap=0.0), "out-of-range", "categories"),
        (lambda: Quantile(1.5, 0.0, 1.0, 1.0), "out-of-range", "share"),
        (lambda: Quantile(0.5, 0.0, 1.0, 1.0, geometric=True), "out-of-range", "candidates"),
        (lambda: Metrics(("a", "a"), (1.0, 1.0), 1.0), "mismatch", "metrics"),
        (lambda: Means((0.0,), (1.0,), 1.0).total([1.0, 2.0], [0]), "wrong-length", "subject"),
        (lambda: Means((0.0,), (1.0,), 1.0).total([1.0, 2.0], [0, 1], [0]), "wrong-length", "silo"),
        (lambda: Means((0.0,), (1.0,), 1.0).total(np.ones((2, 2)), [0, 1]), "wrong-length", "bounds"),
    ):
        with refuses(code, field, InvalidArgument):
            wrong()


# -- columns without bounds --------------------------------------------------------------------------------------------


def test_the_sensitivity_of_spreads_is_attained_however_fine_the_grid_is() -> None:
    query = Spreads(3, 1.0, max_silos=2)
    values, subject, silo = np.tile([1e9, -3.0, 1e-3], (6, 1)), np.zeros(6, int), np.array([0, 0, 0, 0, 1, 1])
    assert np.linalg.norm(query.total(values, subject, silo)) == pytest.approx(query.sensitivity)
    assert query.total(values, subject, silo) == pytest.approx(query.parts(values, subject, silo, 2).sum(axis=0))
    assert query.total(values, subject).size == query.numbers


@settings(max_examples=40, deadline=None)
@given(st.floats(-1e300, 1e300))
def test_every_number_has_one_octave_and_one_step_of_the_grid(value: float) -> None:
    found = Spreads(1, 1.0).total(np.array([[value]]), [0])
    assert sorted(found[found > 0]) == pytest.approx([math.sqrt(0.5)] * (1 if abs(value) < 2**-20 else 2))


def test_spreads_are_near_mean_and_deviation_from_a_thousand_people_on() -> None:
    """On columns of very different size: the centre within one deviation, the deviation within a factor of 6."""
    rng = np.random.default_rng(3)
    laws = [(130, 15), (0, 1), (-40, 9), (2e-4, 1e-5), (18262, 300), (5e5, 2e5), (0.5, 0.29)]
    values = np.stack([rng.normal(mean, deviation, 4000) for mean, deviation in laws], axis=1)
    found = Spreads(len(laws), 10.0).release(values, np.arange(4000), Randomness.from_seed(1).stream("spreads"))
    for (mean, deviation), centre, scale in zip(laws, found.mean, found.deviation, strict=True):
        assert abs(centre - mean) <= deviation
        assert 1 / 2 <= scale / deviation <= 6


def test_spreads_of_nothing_are_finite_and_positive() -> None:
    for values in (np.empty((0, 2)), np.full((5, 2), np.nan), np.zeros((5, 2))):
        for noise in (0.0, 1e-9, 10.0):
            stream = Randomness.from_seed(1).stream("spreads")
            found = Spreads(2, noise).release(values, np.arange(len(values)), stream)
            assert np.isfinite(found.mean).all()
            assert (np.isfinite(found.deviation) & (found.deviation > 0)).all()
