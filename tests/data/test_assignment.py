"""Assigned people and silos follow their laws."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.data.assignment import assign_silos, assign_silos_by_label, assign_subjects, follow
from tacit.data.options import SiloOptions, SubjectOptions
from tests.refusals import refused_section, refuses

ROWS = 60_000


SEED = 11
KEYS = np.arange(ROWS)


def labels(rows: int = ROWS, classes: int = 10) -> np.ndarray:
    return np.random.default_rng(5).integers(0, classes, rows).astype(np.int32)


def test_uniform_gives_every_person_about_the_same() -> None:
    counts = np.bincount(
        assign_subjects(SubjectOptions(assign="uniform", count=100), labels(), KEYS, SEED), minlength=100
    )
    assert counts.sum() == ROWS
    # 600 expected, deviation 24.4: five deviations fail by chance in fewer than 1 of 10,000 seeds
    assert abs(counts - 600).max() < 5 * 24.4


def test_zipf_gives_the_kth_person_a_share_of_k_to_the_minus_alpha() -> None:
    counts = np.bincount(
        assign_subjects(SubjectOptions(assign="zipf", count=100, alpha=0.5), labels(), KEYS, SEED), minlength=100
    )
    weights = np.arange(1, 101) ** -0.5
    expected = ROWS * weights / weights.sum()
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()


def test_power_with_alpha_one_is_uniform_and_grows_uneven_with_alpha() -> None:
    def shares(alpha: float) -> np.ndarray:
        spec = SubjectOptions(assign="power", count=16, alpha=alpha)
        return np.bincount(assign_subjects(spec, labels(), KEYS, SEED), minlength=16) / ROWS

    np.testing.assert_allclose(shares(1), 1 / 16, atol=0.006)
    edges = np.arange(17) / 16
    np.testing.assert_allclose(shares(4), np.diff(edges**4), atol=0.01)
    assert shares(16).max() > shares(4).max()


def test_a_persons_records_spread_over_silos_by_zipf_in_an_own_order() -> None:
    subject = np.repeat(np.arange(200), 300)
    silo = assign_silos(SiloOptions(assign="zipf", count=5, alpha=2.0), subject, KEYS, SEED)
    table = np.zeros((200, 5))
    np.add.at(table, (subject, silo), 1 / 300)
    ranked = -np.sort(-table, axis=1).mean(axis=0)
    weights = np.arange(1, 6) ** -2.0
    np.testing.assert_allclose(ranked, weights / weights.sum(), atol=0.02)
    assert len(np.unique(table.argmax(axis=1))) == 5
    np.testing.assert_allclose(table.mean(axis=0), 0.2, atol=0.1)


def test_uniform_silos_do_not_look_at_people() -> None:
    silo = assign_silos(SiloOptions(assign="uniform", count=4), np.zeros(ROWS, np.int32), KEYS, SEED)
    np.testing.assert_allclose(np.bincount(silo) / ROWS, 0.25, atol=0.01)


def test_with_fixed_silos_most_of_a_persons_records_are_in_one() -> None:
    silo = np.repeat(np.arange(4), [20_000, 17_000, 3_000, 20_000]).astype(np.int32)
    subject = assign_subjects(SubjectOptions(assign="zipf", count=500), labels(), KEYS, SEED, silo=silo)
    table = np.zeros((500, 4))
    np.add.at(table, (subject, silo), 1)
    sizes = table.sum(axis=1)
    share = (table.max(axis=1) / np.maximum(sizes, 1))[sizes >= 50]
    assert 0.72 < share.mean() < 0.85
    assert (np.count_nonzero(table, axis=1) > 1).mean() > 0.9


def test_with_fixed_silos_zipf_still_shapes_the_records_per_person() -> None:
    silo = np.arange(ROWS, dtype=np.int32) % 3
    counts = np.bincount(
        assign_subjects(SubjectOptions(assign="zipf", count=100), labels(), KEYS, SEED, silo=silo), minlength=100
    )
    weights = np.arange(1, 101) ** -0.5
    expected = ROWS * weights / weights.sum()
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()


@settings(deadline=None, max_examples=40)
@given(
    st.sampled_from(["uniform", "zipf", "power"]),
    st.integers(10, 200),
    st.integers(1, 4),
    st.integers(2, 10),
    st.integers(0, 99),
)
def test_nobody_has_more_labels_than_allowed(assign: str, people: int, most: int, classes: int, seed: int) -> None:
    made = np.random.default_rng(seed)
    label = made.integers(0, classes, 500).astype(np.int32) ** 2 % classes
    spec = SubjectOptions(assign=assign, count=people)  # type: ignore[arg-type]
    subject = assign_subjects(spec, label, np.arange(500), seed, labels_per_subject=most)
    pairs = np.unique(np.column_stack([subject, label]), axis=0)
    assert np.bincount(pairs[:, 0]).max() <= most
    assert 0 <= subject.min() <= subject.max() < people


def test_few_labels_keep_the_sizes_of_the_law() -> None:
    spec = SubjectOptions(assign="zipf", count=100)
    free = np.bincount(assign_subjects(spec, labels(), KEYS, SEED), minlength=100)
    tied = np.bincount(assign_subjects(spec, labels(), KEYS, SEED, labels_per_subject=2), minlength=100)
    assert np.corrcoef(free, tied)[0, 1] > 0.98


def test_too_few_people_for_the_labels_are_refused() -> None:
    with refuses("too-few", "data.labels_per_subject"):
        assign_subjects(SubjectOptions(assign="uniform", count=3), labels(), KEYS, SEED, labels_per_subject=2)


def test_ten_thousand_people_are_assigned_within_a_second() -> None:
    start = time.process_time()
    subject = assign_subjects(SubjectOptions(assign="zipf", count=10_000), labels(), KEYS, SEED, labels_per_subject=2)
    assign_silos(SiloOptions(assign="zipf", count=5), subject, KEYS, SEED)
    assert time.process_time() - start < 1


def test_few_labels_and_homes_in_fixed_silos_exclude_each_other() -> None:
    spec, silo = SubjectOptions(assign="zipf", count=50), np.zeros(ROWS, np.int32)
    with refuses("conflict", "data.labels_per_subject"):
        assign_subjects(spec, labels(), KEYS, SEED, labels_per_subject=2, silo=silo)


def test_an_assignment_needs_a_count_and_excludes_a_column() -> None:
    assert refused_section(SiloOptions, assign="zipf").code == "missing"
    assert refused_section(SiloOptions, assign="zipf", count=3, column="bank").code == "conflict"


def label_shares(silo: np.ndarray, of: np.ndarray, silos: int) -> np.ndarray:
    table = np.zeros((silos, 10))
    np.add.at(table, (silo, of), 1)
    return table / table.sum(axis=1, keepdims=True)


def test_silos_by_labels_hold_few_labels_and_about_the_same_number_of_records() -> None:
    silo = assign_silos_by_label(SiloOptions(assign="labels", count=20, labels=2), labels(), SEED)
    assert ((label_shares(silo, labels(), 20) > 0).sum(axis=1) <= 2).all()
    counts = np.bincount(silo, minlength=20)
    assert counts.min() > 0.8 * ROWS / 20
    assert counts.max() < 1.2 * ROWS / 20


@pytest.mark.parametrize("alpha", [0.05, 1.0, 1000.0])
def test_dirichlet_silos_differ_the_more_the_smaller_alpha_is(alpha: float) -> None:
    largest = 0.0
    for seed in range(20):
        silo = assign_silos_by_label(SiloOptions(assign="dirichlet", count=20, alpha=alpha), labels(), seed)
        counts = np.bincount(silo, minlength=20)
        assert counts.sum() == ROWS
        assert counts.min() > 0.5 * ROWS / 20
        largest += label_shares(silo, labels(), 20).max(axis=1).mean() / 20
    low, high = {0.05: (0.7, 1.0), 1.0: (0.2, 0.45), 1000.0: (0.1, 0.12)}[alpha]
    assert low < largest < high


def test_held_out_rows_follow_the_training_rows_of_their_label() -> None:
    silo = assign_silos_by_label(SiloOptions(assign="dirichlet", count=5, alpha=0.5), labels(), SEED)
    test_silo = follow(labels(20_000), labels(), silo, np.arange(20_000), SEED)
    np.testing.assert_allclose(label_shares(test_silo, labels(20_000), 5), label_shares(silo, labels(), 5), atol=0.03)
    assert not (label_shares(test_silo, labels(20_000), 5) > 0)[label_shares(silo, labels(), 5) == 0].any()


def test_labels_that_cannot_be_held_and_numbers_without_effect_are_refused() -> None:
    with refuses("too-few", "data.silos.labels"):
        assign_silos_by_label(SiloOptions(assign="labels", count=3, labels=2), labels(), SEED)
    with refuses("not-supported", "data.silos.assign"):
        assign_silos_by_label(SiloOptions(assign="labels", count=3), np.zeros(9, np.float32), SEED)
    assert refused_section(SiloOptions, assign="zipf", count=3, labels=2).code == "no-effect"
    assert refused_section(SiloOptions, assign="labels", count=3, alpha=2.0).code == "no-effect"


LAWS = ["uniform", "zipf", "power"]


@pytest.mark.parametrize("law", LAWS)
def test_nobody_s_absence_changes_where_or_whose_a_record_of_others_is(law: str) -> None:
    subject, here = np.arange(600) // 3 * 7, np.arange(600) % 11 > 0
    keys = np.random.default_rng(3).integers(0, 2**63, 600)
    silos = SiloOptions(assign=law, count=5)  # type: ignore[arg-type]
    silo = assign_silos(silos, subject, keys, SEED)
    np.testing.assert_array_equal(assign_silos(silos, subject[here], keys[here], SEED), silo[here])
    people = SubjectOptions(assign=law, count=50)  # type: ignore[arg-type]
    who = assign_subjects(people, labels(600), keys, SEED)
    np.testing.assert_array_equal(assign_subjects(people, labels(600)[here], keys[here], SEED), who[here])
    assert (assign_silos(silos, subject, keys, SEED + 1) != silo).mean() > 0.2  # another seed is another lot
