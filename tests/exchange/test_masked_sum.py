"""What comes out of a masked sum: the sum of those who stayed, exactly, with enough noise; or nothing."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.crypto import Refused
from tacit.exchange import Grid, Masked, Session, SumFacts
from tacit.exchange.masked import PHASES
from tacit.exchange.post import SERVER, TooFew
from tacit.exchange.sums import LEAST_SHARE, ring_bits, share_variance
from tacit.privacy import Noise, Randomness, View
from tacit.privacy.invalid import InvalidArgument
from tests.refusals import advised, refuses

STREAMS = Randomness(bytes(32))


def session(silos: int = 5, numbers: int = 7, *, noise: float = 0.0, bound: float = 100.0, **options) -> Session:
    names = [f"clinic {number}" for number in range(silos)]
    made = Masked(**({"precision": 0.01} | options))
    facts = SumFacts(silos, 1, bound, Noise(noise, "shares") if noise else None)
    return made.session(names, numbers, facts)


def streams(silos: int, number: int = 1) -> list:
    return [STREAMS.stream("noise", number, silo) for silo in range(silos)]


def vectors(silos: int, numbers: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-1000, 1000, (silos, numbers))


def vanishing(places: set[tuple[str, str]]):
    """Silos that send nothing any more from a phase on: ``places`` of (phase, silo)."""

    def carry(phase: str, sender: str, recipient: str, message: bytes) -> bytes | None:
        silent = {silo for since, silo in places if PHASES.index(phase) >= PHASES.index(since)}
        return None if sender in silent or recipient in silent else message

    return carry


def test_the_sum_is_exact_round_after_round():
    run = session()
    for number in range(1, 4):
        sent = vectors(5, 7, number)
        np.testing.assert_array_equal(run.sum(number, sent, streams(5)), sent.sum(axis=0) * 0.01)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 6), st.integers(1, 9), st.integers(0, 2**40), st.data())
def test_any_integers_within_the_bound_come_back(silos, numbers, largest, data):
    entries = st.lists(st.integers(-largest, largest), min_size=numbers, max_size=numbers)
    sent = np.array(data.draw(st.lists(entries, min_size=silos, max_size=silos)), np.int64).reshape(silos, numbers)
    run = session(silos, numbers, bound=float(largest * silos), precision=1.0)
    np.testing.assert_array_equal(run.sum(1, sent, streams(silos)), sent.sum(axis=0))


@pytest.mark.parametrize("phase", PHASES)
def test_any_silos_up_to_the_threshold_may_vanish_in_any_phase(phase):
    run, number = session(drop_outs=2), 0
    for gone in itertools.combinations(run.terms.silos, 2):
        for count in (1, 2):
            number += 1
            sent = vectors(5, 7, number)
            total = run.sum(number, sent, streams(5), vanishing({(phase, silo) for silo in gone[:count]}))
            # whoever has sent its vector is in the sum, also if it cannot help to open it
            later = PHASES.index(phase) > PHASES.index("vectors")
            stayed = [k for k, silo in enumerate(run.terms.silos) if later or silo not in gone[:count]]
            np.testing.assert_array_equal(total, sent[stayed].sum(axis=0) * 0.01)
            assert run.server.survivors == tuple(run.terms.silos[k] for k in stayed)


def test_silos_may_vanish_one_after_the_other():
    run = session(silos=7, drop_outs=3)
    places = {("shares", run.terms.silos[0]), ("vectors", run.terms.silos[3]), ("unmasking", run.terms.silos[6])}
    sent = vectors(7, 7)
    total = run.sum(1, sent, streams(7), vanishing(places))
    np.testing.assert_array_equal(total, sent[[1, 2, 4, 5, 6]].sum(axis=0) * 0.01)


@pytest.mark.parametrize("phase", PHASES)
def test_one_more_and_the_round_ends_with_nothing_released(phase):
    run = session(drop_outs=1)
    gone = {(phase, silo) for silo in run.terms.silos[1:3]}
    with refuses("too-few", kind=TooFew):
        run.sum(1, vectors(5, 7), streams(5), vanishing(gone))
    assert run.server.total is None
    assert run.server.phase is None
    sent = vectors(5, 7, 2)  # the next round goes on as if nothing had happened
    np.testing.assert_array_equal(run.sum(2, sent, streams(5)), sent.sum(axis=0) * 0.01)


def test_the_error_names_who_is_missing():
    run = session()
    with refuses("too-few", kind=TooFew, names=["clinic 2"]):
        run.sum(1, vectors(5, 7), streams(5), vanishing({("vectors", run.terms.silos[2])}))


# -- noise


@pytest.mark.parametrize(("drop_outs", "gone"), [(0, 0), (2, 0), (2, 2)])
def test_the_noise_is_what_the_method_accounts_for_even_after_the_worst_drop_outs(drop_outs, gone):
    run = session(numbers=20_000, noise=3.0, drop_outs=drop_outs, precision=1e-3)
    lost = {("vectors", silo) for silo in run.terms.silos[:gone]}
    total = run.sum(1, np.zeros((5, 20_000), np.int64), streams(5), vanishing(lost))
    variance = share_variance(5, drop_outs, 1) * (5 - gone) * 9
    assert variance >= 9 - 1e-9
    # a sample variance of 20,000 normals is within 5 % except with probability below 1e-6
    assert np.var(total) == pytest.approx(variance, rel=0.05)
    assert abs(np.mean(total)) < 5 * math.sqrt(variance / 20_000)


@given(st.integers(2, 40), st.integers(0, 19), st.integers(0, 20))
def test_shares_keep_every_promise_of_the_ledger(silos, drop_outs, colluding):
    if 2 * drop_outs + colluding >= silos:
        return
    share = share_variance(silos, drop_outs, colluding)
    assert share * (silos - drop_outs) >= 1 - 1e-9
    for curious in range(1, max(1, colluding) + 1):
        if curious < silos:  # the method's factor for c curious silos is silos / (silos - c)
            assert share * (silos - drop_outs - curious) >= (silos - curious) / silos - 1e-9
    if drop_outs == 0:
        assert share == pytest.approx(1 / silos)


def test_equal_streams_give_equal_noise_and_others_others():
    one, two = (session(noise=3.0, precision=1e-3).sum(1, vectors(5, 7), streams(5)) for _ in range(2))
    np.testing.assert_array_equal(one, two)
    assert (session(noise=3.0, precision=1e-3).sum(1, vectors(5, 7), streams(5, number=2)) != one).any()


# -- the grid


@given(
    st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=20),
    st.floats(0, 1),
    st.sampled_from([1e-8, 1e-3, 0.1, 1.0]),
)
def test_no_norm_grows_on_the_grid(numbers, weight, precision):
    vector, grid = np.array([numbers], np.float32), Grid(precision)
    integers = grid.truncated(vector, np.array([weight]))
    before = weight * np.linalg.norm(vector.astype(np.float64))
    assert math.hypot(*map(float, integers[0])) * precision <= before * (1 + 1e-9)
    np.testing.assert_allclose(
        grid.numbers(integers[0]), weight * vector[0].astype(np.float64), atol=precision * 1.0001
    )


def test_a_vector_above_its_bound_is_brought_back():
    grid = Grid(1e-8)
    assert np.linalg.norm(grid.bounded(np.array([0.8, 0.8]), 1.0) * 1e-8) <= 1.0
    np.testing.assert_array_equal(grid.bounded(np.zeros(3), 1.0), 0)
    np.testing.assert_array_equal(grid.bounded(np.array([0.25]), 1.0), [25_000_000])


@given(st.integers(0, 2**70), st.floats(0, 1e12))
def test_the_ring_is_wide_enough(largest, noise):
    bits = ring_bits(largest, noise)
    assert bits % 8 == 0
    assert largest + 16 * noise <= 2 ** (bits - 1)


# -- what is refused before anything begins


def test_too_many_drop_outs_or_colluders_are_refused():
    for silos, drop_outs, colluding in ((4, 2, 0), (5, 2, 1), (3, 1, 1), (2, 1, 0), (3, 0, 3)):
        with refuses("out-of-range", "exchange.drop_outs"):
            Masked(drop_outs, colluding).check(SumFacts(silos, 1, 1.0))
    with refuses("too-few", "exchange.name"):
        Masked().check(SumFacts(1, 1, 1.0))
    Masked(1, 2).check(SumFacts(5, 1, 1.0))


def test_a_grid_that_is_too_fine_or_too_coarse_is_refused_with_one_that_is_not():
    facts = SumFacts(4, 1000, 1.0, Noise(1.0, "shares"))
    with refuses("out-of-range", "exchange.precision") as found:
        Masked(precision=1e-18).check(facts)
    Masked(precision=advised(found.value) * 2).check(facts)
    with refuses("out-of-range", "exchange.precision") as found:
        Masked(precision=0.5).check(facts)
    finer = advised(found.value)
    Masked(precision=finer * 0.95).check(facts)
    assert 0.5 / finer * 0.95 <= LEAST_SHARE * 1.1
    assert LEAST_SHARE == 1000
    with refuses("out-of-range", "exchange.precision"):  # 8 steps of a share do not count as continuous noise
        Masked(precision=0.5 / 8).check(facts)
    for bound, std, precision in ((1.0, 1.0, 1e-320), (1e300, 1.0, 1e-8), (1.0, 1e305, 1e-8)):
        with refuses("out-of-range", "exchange.precision"):
            Masked(precision=precision).check(SumFacts(4, 1000, bound, Noise(std, "shares")))


def test_vectors_beyond_the_agreed_bound_or_of_another_length_are_not_sent():
    run = session(bound=1.0)
    # -2^63 is what a number that is none becomes on the grid, and has no magnitude among 64-bit integers
    for number, wrong in enumerate((np.full((5, 7), 102), np.full((5, 7), -(2**63)), np.zeros((5, 6), np.int64))):
        with refuses("out-of-range" if wrong.shape == (5, 7) else "wrong-length", "vector", InvalidArgument):
            run.sum(number, wrong, streams(5))


def test_views_see_the_sum_up_to_the_declared_collusion():
    exchange = Masked(colluding=2)
    for view in ("public", "server", "silo", "silos:2", "server+silos:1", "server+silos:2"):
        assert exchange.reveals_to(View.parse(view)) == "sum"
    for view in ("silos:3", "server+silos:3", "shuffler"):
        assert exchange.reveals_to(View.parse(view)) is None
    assert Masked().reveals_to(View.parse("server+silos:1")) is None
    assert all(Masked(colluding=c).reveals_to(View.parse(v)) for c in range(3) for v in Masked(colluding=c).reveals)


def test_names_that_stand_for_others_are_refused():
    names = session().terms.silos
    for wrong in ((*names[:4], SERVER), (*names[:4], "*"), (*names[:4], names[0])):
        with refuses("bad-terms", kind=Refused):
            Masked().terms("run", wrong, 3, SumFacts(5, 1, 1.0))
