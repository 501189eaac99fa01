"""Sums over silos with noise in shares: what one person or one record moves, seen by whom, and the noise itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from tacit.data.load import within_caps
from tacit.privacy import Exposure, Gaussian, Randomness, Unprotected, View
from tacit.privacy.invalid import InvalidArgument
from tacit.privacy.mechanisms.noisy_queries import Means, Moments
from tacit.privacy.proofs.noisy_silo_sums import noisy_sum, paid_event
from tests.refusals import refuses

LOW, HIGH = (0.0, -5.0), (1.0, 5.0)
SILOS, Z = 4, 3.0
VIEWS = {"public": "sum", "server": "each", "silo": "sum", "silos:2": "sum", "server+silos:2": "each"}


def exposure(unit: str, view: str, relation: str = "zero-out", reveals: str | None = None) -> Exposure:
    return Exposure(unit, relation, View.parse(view), reveals or VIEWS[view])


def people(rng: np.random.Generator, records: int = 60) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Few people with few records, many on the bounds and some missing."""
    values = rng.choice([0.0, 1.0, 0.3, -7.0, np.nan], (records, 2)) * [1, 5]
    return values, (8 * rng.random(records) ** 2).astype(int), rng.integers(0, SILOS, records)


def mu(before: np.ndarray, after: np.ndarray, sigma: float, look: Exposure) -> float:
    """How far a change of the parts is from the noise, for one view: all that counts of a Gaussian release."""
    share = sigma / math.sqrt(SILOS)
    moved = after - before
    if look.reveals == "each":
        return float(np.linalg.norm(moved)) / share
    return float(np.linalg.norm(moved.sum(axis=0))) / (share * math.sqrt(SILOS - look.colluding))


def allowed(look: Exposure, max_silos: int, moves_up: bool) -> float:
    event = paid_event(look, Z, SILOS, max_silos, moves_up=moves_up)
    assert isinstance(event, Gaussian)
    return 1 / event.noise_multiplier


# -- what one person, or one record, moves -----------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 4]), st.sampled_from([None, 1, 2]), st.booleans())
def test_no_person_and_no_record_moves_a_view_by_more_than_its_event_says(seed, max_silos, max_records, both_moments):
    """Caps as the engine enforces them; also people in more silos than declared, who are scaled down."""
    rng = np.random.default_rng(seed)
    values, subject, silo = people(rng)
    enforced = rng.random() < 0.5
    query = (Moments if both_moments else Means)(LOW, HIGH, Z, max_silos=max_silos)

    def parts(rows: np.ndarray) -> np.ndarray:
        mine = np.flatnonzero(rows)
        if enforced:
            mine = mine[within_caps(subject[mine], silo[mine], records=max_records, silos=max_silos)]
        return query.parts(values[mine], subject[mine], silo[mine], SILOS)

    everything = np.ones(len(subject), bool)
    whole = parts(everything)
    row = rng.integers(len(subject))
    caps = max_silos < SILOS or (enforced and max_records == 1)
    for unit, left in (("subject", subject != subject[row]), ("record", np.arange(len(subject)) != row)):
        changed = parts(left)
        for view in VIEWS:
            look = exposure(unit, view)
            assert mu(whole, changed, query.sigma, look) <= allowed(look, max_silos, caps) * (1 + 1e-9)


def test_the_bounds_are_attained():
    """A person on all bounds in m silos; one whose only record goes; one whose only record gives way to another."""
    for m in (1, 2, 4):
        query = Moments(LOW, HIGH, Z, max_silos=m)
        values, silo = np.tile(HIGH, (m, 1)), np.arange(m)
        whole, nobody = query.parts(values, np.zeros(m), silo, SILOS), np.zeros((SILOS, 5))
        for view in ("public", "server", "silo"):
            look = exposure("subject", view)
            assert mu(whole, nobody, query.sigma, look) == pytest.approx(allowed(look, m, True))
            one = query.parts(values[:1], np.zeros(1), silo[:1], SILOS)
            look = exposure("record", view)
            assert mu(one, nobody, query.sigma, look) == pytest.approx(allowed(look, m, False))
            other = Means(LOW, HIGH, Z, max_silos=m).parts(np.array([LOW]), [0], [0], SILOS)
            mine = Means(LOW, HIGH, Z, max_silos=m).parts(np.array([HIGH]), [0], [0], SILOS)
            moved = mu(mine, other, Z * math.sqrt(2), look)  # but for the count, which does not move
            assert moved == pytest.approx(allowed(look, m, True))


def test_parts_add_up_to_the_total_and_weigh_a_person_at_most_once():
    values, subject, silo = people(np.random.default_rng(1), 300)
    for query in (Moments(LOW, HIGH, Z, max_silos=3), Means(LOW, HIGH, Z, max_silos=3)):
        parts = query.parts(values, subject, silo, SILOS)
        assert parts.sum(axis=0) == pytest.approx(query.total(values, subject, silo))
        assert parts[:, -1].sum() <= len(np.unique(subject))
    with refuses("wrong-length", "silo", InvalidArgument):
        Moments(LOW, HIGH, Z).parts(values, subject, silo[:-1], SILOS)


@pytest.mark.parametrize("view", ["public", "server", "silo"])
def test_units_relations_and_views_of_a_paid_sum(view):
    for unit in ("subject", "record"):
        once = paid_event(exposure(unit, view), Z, SILOS, 2)
        assert paid_event(exposure(unit, view, "replace"), Z, SILOS, 2) == Gaussian(once.noise_multiplier / 2)
    assert isinstance(paid_event(exposure("silo", view), Z, SILOS, 2), Unprotected)
    masked = paid_event(exposure("subject", "server", reveals="sum"), Z, SILOS, 2)
    assert masked == Gaussian(Z) == paid_event(exposure("subject", "public", reveals="nothing"), Z, SILOS, 2)
    assert isinstance(paid_event(exposure("subject", "silos:4", reveals="sum"), Z, SILOS, 2), Unprotected)


# -- the noise ---------------------------------------------------------------------------------------------------------


def test_the_noise_of_the_sum_has_the_variance_that_is_paid_for():
    """Chi-square over 4,000 numbers, error probability 1e-6; every silo's share is its own."""
    draws, numbers, sigma = 500, 8, 2.5
    root = Randomness.from_seed(3)
    noise = [noisy_sum(np.zeros((SILOS, numbers)), sigma, [root.stream("s", i, k) for k in range(SILOS)])
             for i in range(draws)]  # fmt: skip
    squares = float((np.array(noise) ** 2).sum()) / sigma**2
    low, high = chi2.ppf([5e-7, 1 - 5e-7], draws * numbers)
    assert low < squares < high
    alone = noisy_sum(np.zeros((1, 4000)), sigma, [root.stream("t", 0)])
    low, high = chi2.ppf([5e-7, 1 - 5e-7], 4000)
    assert low < float((alone**2).sum()) / sigma**2 < high
