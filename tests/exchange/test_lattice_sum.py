"""Weighted sums from ring-LWE: the sum of the plain weights, drop-outs, noise, and what is refused."""

from __future__ import annotations

import gc
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from tacit.crypto import Refused
from tacit.crypto.crypto_errors import Misused
from tacit.exchange import Keys, Members, PersonVectors, Session, SumFacts
from tacit.exchange.masked import VECTORS
from tacit.exchange.post import SERVER, OutOfTurn, TooFew
from tacit.exchange.session import converse, delivered, introduced
from tacit.families.weighting import lattice_silo
from tacit.families.weighting.exchange import Weighted
from tacit.families.weighting.lattice import WEIGHT_BITS
from tacit.families.weighting.lattice_terms import COUNTS, PIECE, TABLES, WEIGHTS, LatticeTerms
from tacit.families.weighting.open_sum import OpenSum
from tacit.families.weighting.slot_counts import SlotCounts
from tacit.privacy import Noise, Randomness
from tacit.privacy.invalid import InvalidArgument
from tacit.privacy.proofs.weight_tables import WeightTable
from tests.refusals import advised, refuses

PEOPLE, NUMBERS, CAP = 7, 9000, 5
EXCHANGE = Weighted(precision=1e-6)
JOINT = Weighted(precision=1e-6, key="joint")
OPEN = Weighted(precision=1e-6, encrypted=False)
# silos x people; person 4 has nothing anywhere, person 5 has everything in one silo, person 6 has one record
SILO_COUNTS = np.array([[1, 0, 3, 5, 0, 0, 0], [2, 1, 3, 0, 0, 0, 1], [0, 1, 3, 1, 0, 5, 0], [1, 0, 0, 0, 0, 0, 0]])
STREAMS = Randomness(bytes(32))
LARGEST = 10**6


def facts(noise: float = 0.0, weights: str = "records", people: int = PEOPLE) -> SumFacts:
    table = WeightTable(weights, CAP * 4, 2 if weights == "records-capped" else None)
    return SumFacts(4, people, 1.0, Noise(noise, "shares"), records=CAP, weights=table)


def terms(noise: float = 0.0, *, exchange: Weighted = EXCHANGE, numbers: int = NUMBERS, **more) -> LatticeTerms:
    return exchange.terms("run", [f"clinic {number}" for number in range(4)], numbers, facts(noise, **more))


def members(counts: np.ndarray = SILO_COUNTS) -> list[Members]:
    return [Members(np.arange(counts.shape[1]), own) for own in counts]


def session(made: LatticeTerms | None = None, carry=delivered, exchange: Weighted = EXCHANGE) -> Session:
    return Session(exchange, made or terms(), members(), carry=carry)


def parties(made: LatticeTerms):
    """The server and the silos before setup, and the identities of all."""
    identities, roster = introduced(made.silos)
    keys = {name: Keys(name, identity, roster) for name, identity in identities.items()}
    silos = {name: EXCHANGE.silo(made, keys[name], own) for name, own in zip(made.silos, members(), strict=True)}
    return EXCHANGE.server(made, keys[SERVER]), silos, identities


def vectors(seed: int, silo: int, people: np.ndarray, numbers: int = NUMBERS) -> np.ndarray:
    drawn = np.random.default_rng([seed, silo]).normal(size=(len(people), numbers))
    return np.trunc(drawn * (LARGEST * (1 - 1e-9) / np.linalg.norm(drawn, axis=1, keepdims=True))).astype(np.int64)


def contributions(seed: int = 0, numbers: int = NUMBERS) -> list[list[PersonVectors]]:
    """Of each silo its people in groups of two."""
    made = []
    for silo, own in enumerate(SILO_COUNTS):
        present = np.flatnonzero(own)
        found = vectors(seed, silo, present, numbers)
        made.append([PersonVectors(present[k : k + 2], found[k : k + 2]) for k in range(0, len(present), 2)])
    return made


def streams(number: int = 1) -> list:
    return [STREAMS.stream("noise", number, silo) for silo in range(4)]


def expected(people: list[list[PersonVectors]], table: tuple[int, ...], left_out: frozenset[int] = frozenset()):
    """The plain sum with the weights of the table, in Python integers; in steps of grid / 2^WEIGHT_BITS."""
    totals, found = SILO_COUNTS.sum(axis=0), 0
    for silo, groups in enumerate(people):
        for places, found_vectors in groups if silo not in left_out else ():
            weights = [int(SILO_COUNTS[silo, place]) * table[totals[place]] for place in places]
            found = found + (np.array(weights, object)[:, None] * found_vectors.astype(object)).sum(axis=0)
    return found


@pytest.mark.parametrize(
    ("exchange", "weights"),
    [(EXCHANGE, "records"), (EXCHANGE, "records-sqrt"), (EXCHANGE, "records-capped"), (JOINT, "records")],
)
def test_the_sum_is_exactly_that_of_the_public_table(exchange, weights):
    made = terms(exchange=exchange, weights=weights)
    run = session(made, exchange=exchange)
    for number in (1, 2):
        people = contributions(number)
        found = run.sum(number, people, streams(number))
        exact = expected(people, made.table)
        assert list(run.server.total) == list(exact)
        np.testing.assert_allclose(found, exact.astype(float) / 2**WEIGHT_BITS * 1e-6, rtol=1e-12)


@pytest.mark.parametrize("weights", ["records", "records-sqrt", "records-capped"])
def test_without_encryption_the_sum_and_its_noise_are_the_same_numbers(weights):
    known, names = facts(1.0, weights), [f"clinic {number}" for number in range(4)]
    exact = EXCHANGE.session(names, NUMBERS, known, members())
    plain = OPEN.session(names, NUMBERS, known, members())
    assert isinstance(exact, Session)
    assert isinstance(plain, OpenSum)
    for number in (1, 2):
        people = contributions(number)
        sums = [made.sum(number, people, streams(number)) for made in (plain, exact)]
        np.testing.assert_array_equal(*sums)


def test_without_encryption_slots_beyond_the_cap_count_as_they_do_with_it():
    crowd = [Members(np.array([0, 0, 1, 2]), np.array([3, 3, CAP, 1])) for _ in range(4)]
    known, names = facts(0.0), [f"clinic {number}" for number in range(4)]
    groups = [[PersonVectors(np.arange(4), vectors(0, silo, np.arange(4), 5))] for silo in range(4)]
    sums = [made.session(names, 5, known, crowd).sum(1, groups, streams()) for made in (EXCHANGE, OPEN)]
    np.testing.assert_array_equal(*sums)
    assert sums[0].any()


def test_silos_that_follow_each_other_in_one_process_share_no_ciphertexts():
    made, people = terms(numbers=3), contributions(numbers=3)
    for _ in range(6):
        run = session(made)
        run.sum(1, people, streams())
        assert list(run.server.total) == list(expected(people, made.table))
        del run
        gc.collect()  # so that a later silo may have the id of an earlier one


def test_a_subject_with_one_record_counts_fully():
    made = terms()
    run, nothing = session(made), [PersonVectors(np.zeros(0, int), np.zeros((0, NUMBERS), np.int64))]
    own = PersonVectors(np.array([6]), vectors(0, 1, np.array([6])))
    found = run.sum(1, [nothing, [own], nothing, nothing], streams())
    np.testing.assert_allclose(found, own.vectors[0] * 1e-6, rtol=0, atol=1e-12)


@pytest.mark.parametrize("exchange", [EXCHANGE, JOINT], ids=["server", "joint"])
def test_setup_takes_pieces_where_there_are_many_slots(exchange):
    made = terms(people=PIECE + 3, numbers=3, exchange=exchange)
    own = [Members(np.array([0, PIECE + 2]), np.array([1, k])) for k in (1, 2, 3, 4)]
    run = Session(exchange, made, own)
    ones = [[PersonVectors(np.arange(2), np.array([[100, 0, 0], [0, 1000, 7]]))] for _ in range(4)]
    np.testing.assert_allclose(run.sum(1, ones, streams()), [100e-6, 1000e-6, 7e-6], rtol=1e-5)


@pytest.mark.parametrize("key", ["server", "joint"])
def test_a_silo_may_vanish_after_masking_and_the_noise_is_what_was_accounted_for(key):
    exchange = Weighted(precision=1e-6, drop_outs=1, key=key)
    made = terms(2.0, exchange=exchange)
    gone = made.silos[1]

    def carry(phase, sender, recipient, message):
        return None if sender == gone and recipient == SERVER and phase == VECTORS else message

    run = session(made, exchange=exchange)
    people = contributions()
    found = run.sum(1, people, streams(), carry)
    assert set(run.server.survivors) == set(made.silos) - {gone}
    noise = found - expected(people, made.table, frozenset({1})).astype(float) / 2**WEIGHT_BITS * 1e-6
    share = made.share / 2**WEIGHT_BITS * 1e-6
    # three shares of four; 9,000 numbers: a standard error of 0.75 %, four of them
    assert abs(noise.std() / (share * math.sqrt(3)) - 1) < 0.03
    assert 3 * share**2 >= 2.0**2  # not less than the plan counts


def test_without_drop_outs_a_missing_silo_ends_the_round():
    made = terms()
    run = session(made)

    def carry(phase, sender, recipient, message):
        return None if sender == made.silos[1] and phase == VECTORS else message

    with pytest.raises(TooFew):
        run.sum(1, contributions(), streams(), carry)
    people = contributions(2)
    np.testing.assert_allclose(
        run.sum(2, people, streams(2)), expected(people, made.table).astype(float) / 2**WEIGHT_BITS * 1e-6, rtol=1e-12
    )


def test_the_noise_has_the_variance_of_the_plan():
    made = terms(1.5)
    run, people = session(made), contributions()
    exact = expected(people, made.table).astype(float) / 2**WEIGHT_BITS * 1e-6
    noise = np.concatenate([run.sum(number, people, streams(number)) - exact for number in (1, 2, 3)])
    assert abs((noise**2).mean() / 1.5**2 - 1) < 4 * math.sqrt(2 / len(noise))


@pytest.mark.parametrize(
    "bad",
    [
        PersonVectors(np.array([0]), np.full((1, NUMBERS), LARGEST)),  # no entry too large, the norm is
        PersonVectors(np.array([0]), np.full((1, NUMBERS), 10 * LARGEST)),
        PersonVectors(np.array([0]), np.zeros((1, NUMBERS - 1), np.int64)),
        PersonVectors(np.array([1]), np.zeros((1, NUMBERS), np.int64)),  # has no records here
    ],
)
def test_a_contribution_beyond_its_bound_never_leaves_the_silo(bad):
    run = session()
    with pytest.raises(InvalidArgument):
        run.silos[run.terms.silos[0]].begin(1, [bad], streams()[0])


def test_a_round_before_setup_is_refused():
    made = terms()
    identities, roster = introduced(made.silos)
    silo = EXCHANGE.silo(made, Keys(made.silos[0], identities[made.silos[0]], roster), members()[0])
    with pytest.raises(OutOfTurn):
        silo.begin(1, contributions()[0], streams()[0])
    server = EXCHANGE.server(made, Keys(SERVER, identities[SERVER], roster))
    with pytest.raises(OutOfTurn):
        server.begin(1)


@pytest.mark.parametrize("phase", [COUNTS, f"{TABLES} 0", f"{WEIGHTS} 0", VECTORS])
def test_a_message_that_was_changed_on_the_way_is_refused(phase):
    def carry(now, sender, recipient, message):
        return message[:-1] + bytes([message[-1] ^ 1]) if now == phase and recipient == SERVER and message else message

    with pytest.raises(Refused):
        session(carry=carry).sum(1, contributions(), streams(), carry)


def test_numbers_that_do_not_fit_are_refused_with_what_would():
    with refuses("out-of-range", "exchange.precision"):
        Weighted(precision=1e-16).check(replace(facts(1.0)))
    with refuses("out-of-range", "exchange.precision"):
        Weighted(precision=1.0).check(facts(1.0))
    with refuses("out-of-range", "privacy.max_records_per_subject_and_silo"):
        EXCHANGE.check(replace(facts(1.0), records=3000))
    with refuses("missing", "privacy.max_records_per_subject_and_silo"):
        EXCHANGE.check(replace(facts(1.0), records=None))


@pytest.mark.parametrize(
    ("bound", "noise", "people", "precision"),
    [
        (1.0, 0.0, PEOPLE, 1e-20),  # steps of a contribution
        (1e300, 0.0, PEOPLE, 1e-300),
        (1.0, 1e4, PEOPLE, 1e-8),  # steps of the noise
        (1.0, 1.0, 10**6, 1e-15),  # the ring
        (1.0, 100.0, 5000, 1e-16),  # all three, one after the other
    ],
)
def test_a_precision_that_is_too_fine_is_refused_with_one_that_is_accepted(bound, noise, people, precision):
    asked = replace(facts(noise, people=people), bound=bound)
    with refuses("out-of-range", "exchange.precision") as found:
        Weighted(precision=precision, max_setup_mb=1e9).check(asked)
    Weighted(precision=advised(found.value), max_setup_mb=1e9).check(asked)


def kept_bytes() -> int:
    return sum(kept.size for kept in lattice_silo._KEPT)


def test_transformed_ciphertexts_end_with_their_silo():
    """They were kept by the address of their silo, at which a silo of the next run may be."""
    gc.collect()
    before, run = kept_bytes(), session()
    run.sum(1, contributions(), streams())
    assert kept_bytes() > before
    del run
    gc.collect()
    assert kept_bytes() <= before


def test_transformed_ciphertexts_of_all_silos_have_one_limit(monkeypatch):
    monkeypatch.setattr("tacit.families.weighting.lattice_silo.KEPT_BYTES", 0)
    made, people = terms(), contributions()
    run = session(made)
    for number in (1, 2):
        run.sum(number, people, streams(number))
        assert list(run.server.total) == list(expected(people, made.table))
    assert all(silo._kept.size == 0 for silo in run.silos.values())


def test_members_who_share_a_slot_count_by_the_square_of_their_number():
    shared = Members(np.array([0, 0, 0, 1, 2, 3]), np.array([1, 2, 2, 5, 0, 1]))
    assert SlotCounts(shared, PEOPLE, CAP).squares == 3**2 + 1 + 1
    assert SlotCounts(Members(np.zeros(2, int), np.array([3, 3])), PEOPLE, CAP).squares == 0  # overfull


def test_a_second_setup_is_refused_and_rounds_go_on():
    made, people = terms(), contributions()
    run = session(made)
    with pytest.raises(OutOfTurn):
        run.server.open()
    with pytest.raises(OutOfTurn):
        run.silos[made.silos[0]].open()
    run.sum(1, people, streams())
    assert list(run.server.total) == list(expected(people, made.table))


def test_the_secrets_of_setup_end_with_it():
    made, kept = terms(), []

    def carry(phase, sender, recipient, message):
        if phase == f"{WEIGHTS} 0" and sender == SERVER:
            kept.append(run_silos[recipient]._seed)
        return message

    server, run_silos, _ = parties(made)
    first = {name: silo.open() for name, silo in run_silos.items()}
    server.open()
    converse(server, run_silos, first, carry)
    assert len(kept) == len(made.silos)
    for seed, silo in zip(kept, run_silos.values(), strict=True):
        with pytest.raises(Misused):
            seed.expose()
        assert not {"_seed", "_sealing", "_pairs", "_peers"} & set(vars(silo))
    assert not server._weights
    assert not server._counts.size


def test_with_a_joint_key_a_silo_keeps_no_more_than_its_share():
    run = session(terms(exchange=JOINT), exchange=JOINT)
    for silo in run.silos.values():
        assert not {"_own_key", "_own_turns", "_sealing", "_pairs", "_peers"} & set(vars(silo))


def test_setup_that_fails_wipes_its_secrets_and_allows_no_round():
    made = terms()
    server, silos, identities = parties(made)
    first = {name: silo.open() for name, silo in silos.items()}
    server.open()
    leader = silos[made.leader]

    def carry(phase, sender, recipient, message):
        if phase == f"{TABLES} 0" and sender == SERVER:
            return identities[SERVER].sign(leader._post.place(SERVER, leader.name, phase), message[64:-1])
        return message

    with refuses("wrong-length", kind=Refused):
        converse(server, silos, first, carry)
    assert "_seed" not in vars(leader)
    with pytest.raises(OutOfTurn):
        leader.receive(b"")
    with pytest.raises(OutOfTurn):
        leader.begin(1, contributions()[0], streams()[0])


def test_no_weight_of_the_table_is_above_one_not_even_that_of_no_records():
    made = terms()
    with refuses("bad-terms", kind=Refused):
        replace(made, table=((1 << WEIGHT_BITS) + 1, *made.table[1:]))


@pytest.mark.parametrize("std", [1.0, 0.1 + 0.2, 1 / 3, 1e-2, 12345.678])
def test_shares_of_noise_are_never_rounded_below_what_is_counted(std):
    share = terms(std).share
    assert 4 * (Fraction(share, 2**WEIGHT_BITS) * Fraction(1e-6)) ** 2 >= Fraction(std) ** 2
