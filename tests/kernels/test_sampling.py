"""Poisson batches: inclusion rates by chi-square with error probability 1e-6, caps, weights, and what never changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest, chi2

from tacit.kernels import PoissonBatches, Rows
from tacit.privacy import Randomness

ERROR = 1e-6


def rows_of(counts: list[int], start: int = 0, silo: int = 0) -> Rows:
    """A silo whose people have these numbers of records, from row ``start`` on."""
    return Rows(silo, start, sum(counts), start + np.cumsum([0, *counts]))


def drawn(counts: list[int], rate: float, batches: int, seed: int = 0, start: int = 0, **options):
    plan = PoissonBatches((rate,), (batches,), (rate * 100,), options.pop("noise", (1.0,)), **options)
    stream = Randomness.from_seed(seed).stream("batches", 1, 0)
    found = plan.draw([rows_of(counts, start)], [stream], 1)
    one = type(found)(*(np.asarray(part)[0] for part in found))
    return one._replace(blocks=one.blocks[:batches])  # the rest is padding


def sizes(found) -> np.ndarray:
    """How many entries each batch has."""
    return found.blocks[:, -1] - found.blocks[:, 0]


def entries(found):
    """Batch, record and weight of every entry."""
    number = int(found.blocks[-1, -1])
    batch = np.repeat(np.arange(len(found.blocks)), sizes(found))
    return batch, found.records[:number], found.weights[:number]


def owner(counts: list[int], records: np.ndarray) -> np.ndarray:
    return np.repeat(np.arange(len(counts)), counts)[records]


def test_every_record_enters_a_batch_at_the_public_rate():
    rate, batches = 0.1, 4096
    _, records, _ = entries(drawn([1] * 50, rate, batches))
    found = np.bincount(records, minlength=50)
    statistic = (np.square(found - batches * rate) / (batches * rate * (1 - rate))).sum()
    assert chi2.ppf(ERROR / 2, 50) < statistic < chi2.ppf(1 - ERROR / 2, 50)


def test_sizes_of_batches_are_binomial_and_batches_are_independent():
    rate, batches, count = 0.2, 4096, 30
    found = drawn([1] * count, rate, batches)
    drawn_sizes = sizes(found)
    variance = count * rate * (1 - rate)
    statistic = np.square(drawn_sizes - count * rate).sum() / variance
    assert abs(statistic - batches) < 4.9 * np.sqrt(2 * batches) * 1.1
    assert abs(np.corrcoef(drawn_sizes[1:], drawn_sizes[:-1])[0, 1]) < 4.9 / np.sqrt(batches)


def test_a_subject_is_in_a_batch_more_often_than_a_record():
    """1 - (1 - q)^n, the finding on which higrad's accounting rests."""
    counts, rate, batches = [1, 3, 10], 0.05, 8192
    batch, records, _ = entries(drawn(counts, rate, batches))
    for subject, n in enumerate(counts):
        present = len(np.unique(batch[owner(counts, records) == subject]))
        assert binomtest(present, batches, 1 - (1 - rate) ** n).pvalue > ERROR


def test_a_cap_keeps_a_uniform_choice_and_drops_nobody_elses():
    counts, batches = [1, 6, 2], 3000
    found = drawn(counts, 1.0, batches, cap=2)
    batch, records, _ = entries(found)
    people = owner(counts, records)
    assert (np.bincount(batch[people == 1], minlength=batches) == 2).all()
    assert (np.bincount(batch[people == 0], minlength=batches) == 1).all()
    assert (np.bincount(batch[people == 2], minlength=batches) == 2).all()
    times = np.bincount(records[people == 1] - 1, minlength=6)
    # each of six records is kept with 2 / 6; the six counts sum to a constant: five degrees of freedom
    statistic = (np.square(times - batches / 3) / (batches * (2 / 9))).sum() * 5 / 6
    assert chi2.ppf(ERROR / 2, 5) < statistic < chi2.ppf(1 - ERROR / 2, 5)


@settings(max_examples=30, deadline=None)
@given(
    counts=st.lists(st.integers(1, 6), min_size=1, max_size=8),
    rate=st.floats(0.05, 1.0),
    batches=st.integers(1, 9),
    start=st.integers(0, 50),
    cap=st.none() | st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_weights_sum_to_one_per_subject_and_batch_and_everybodys_records_are_their_own(
    counts, rate, batches, start, cap, seed
):
    found = drawn(counts, rate, batches, seed, start, averaged=True, cap=cap)
    batch, records, weights = entries(found)
    assert ((records >= start) & (records < start + sum(counts))).all()
    people = owner(counts, records - start)
    sums = np.zeros((batches + 1, len(counts)))
    np.add.at(sums, (batch, people), weights)
    present = np.zeros_like(sums, int)
    np.add.at(present, (batch, people), 1)
    np.testing.assert_allclose(sums[present > 0], 1.0, rtol=1e-6)
    assert present.max(initial=0) <= (cap or max(counts))
    assert len(set(zip(batch.tolist(), records.tolist(), strict=True))) == len(records)  # no record twice in a batch


def test_no_batch_is_ever_cut_short():
    """Rate 1: everything is in every batch, whatever the capacity is rounded to."""
    for count in (1, 31, 32, 33, 100):
        found = drawn([1] * count, 1.0, 5)
        np.testing.assert_array_equal(sizes(found), count)
        np.testing.assert_array_equal(entries(found)[1].reshape(5, count), np.arange(count)[None].repeat(5, 0))


def test_many_coins_are_drawn_in_pieces_without_losing_a_batch(monkeypatch):
    whole = drawn([1] * 30, 0.3, 20)
    monkeypatch.setattr("tacit.kernels.batches.COINS", 64)
    pieces = drawn([1] * 30, 0.3, 20)
    for left, right in zip(whole, pieces, strict=True):
        np.testing.assert_array_equal(left, right)


def test_divisor_noise_and_number_of_batches_do_not_depend_on_what_was_drawn():
    for counts in ([1] * 100, [3], []):
        for seed in range(5):
            found = drawn(counts, 0.02, 4, seed)
            assert float(found.divisor) == pytest.approx(2.0)
            assert int(found.steps) == 4
            np.testing.assert_array_equal(found.noise[:4], 1.0)


def test_the_published_noise_of_a_batch_goes_by_its_largest_group():
    found = drawn([1, 4], 0.4, 200, noise=(10.0, 11.0, 12.0, 13.0))
    batch, records, _ = entries(found)
    people = owner([1, 4], records)
    largest = [max(np.bincount(people[batch == t], minlength=2)) for t in range(200)]
    np.testing.assert_array_equal(found.noise[:200], 10.0 + np.minimum(largest, 3))
    assert len(set(largest)) == 5


def test_a_seed_gives_the_same_batches_and_other_rounds_and_silos_others():
    randomness = Randomness.from_seed(3)
    plan = PoissonBatches((0.5, 0.5), (2, 2), (32.0, 32.0), (1.0,))

    def of(number: int, silo: int):
        return plan.draw([rows_of([1] * 64, silo=silo)], [randomness.stream("batches", number, silo)], 1)

    one, same, later, elsewhere = of(1, 0), of(1, 0), of(2, 0), of(1, 1)
    for left, right in zip(one, same, strict=True):
        np.testing.assert_array_equal(left, right)
    for other in (later, elsewhere):
        assert not np.array_equal(one.records[0], other.records[0])
        assert not np.array_equal(one.key, other.key)


def test_silos_of_different_sizes_share_one_plan_and_padding_has_no_step():
    plan = PoissonBatches((1.0, 0.5), (2, 3), (7.0, 20.0), (1.5,))
    streams = [Randomness.from_seed(1).stream("batches", 1, k) for k in range(2)]
    found = plan.draw([rows_of([2, 3]), rows_of([4] * 10, start=5, silo=1)], streams, 4)
    np.testing.assert_array_equal(found.steps, [2, 3, 0, 0])
    np.testing.assert_array_equal(found.divisor, [7.0, 20.0, 1.0, 1.0])
    assert int(found.blocks[0, 1, -1]) == 10
    assert set(found.records[1, : int(found.blocks[1, 2, -1])]) <= set(range(5, 45))
    assert found.records.shape[1] & (found.records.shape[1] - 1) == 0
