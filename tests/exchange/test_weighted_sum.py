"""What comes out of a weighted sum: everybody weighted by records that nobody knows, with enough noise; or nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from fractions import Fraction

import numpy as np
import pytest

from tacit.exchange import Keys, Members, PersonVectors, Session, SumFacts
from tacit.exchange.post import OutOfTurn, TooFew
from tacit.exchange.session import delivered
from tacit.exchange.sums import checked_groups, longer
from tacit.families.weighting.exchange import Weighted
from tacit.families.weighting.paillier import insecure_key_for_tests
from tacit.families.weighting.paillier_server import PaillierServer
from tacit.families.weighting.paillier_silo import PaillierSilo
from tacit.families.weighting.paillier_terms import PaillierTerms, agreed, common_multiple, sampling_slots, slot_width
from tacit.privacy import Noise, Randomness, View
from tacit.privacy.invalid import InvalidArgument
from tests.refusals import advised, refuses

PRECISION, BITS, PEOPLE, NUMBERS = 1e-4, 512, 6, 7
KEY = insecure_key_for_tests(BITS)
# silos x people; person 4 has nothing anywhere, person 5 has everything in one silo
COUNTS = np.array([[1, 0, 3, 5, 0, 0], [2, 1, 3, 0, 0, 0], [0, 1, 3, 1, 0, 5]])
STREAMS = Randomness(bytes(32))


def terms(noise: float = 0.0, *, rate: float = 1.0, hidden: bool = False, numbers: int = NUMBERS) -> PaillierTerms:
    facts = SumFacts(3, PEOPLE, 1.0, Noise(noise, "shares"), records=5, rate=rate, norm=math.sqrt(numbers))
    names = tuple(f"clinic {number}" for number in range(3))
    return agreed("run", names, numbers, facts, PRECISION, BITS, hidden)


def members(counts: np.ndarray) -> list[Members]:
    """Everybody in a slot of their own."""
    return [Members(np.arange(counts.shape[1]), own) for own in counts]


class Insecure(Weighted):
    """With a key that is quick to use and easy to break."""

    secret = KEY

    def server(self, terms: PaillierTerms, keys: Keys) -> PaillierServer:
        return PaillierServer(terms, keys, self.grid, key=self.secret)

    def silo(self, terms: PaillierTerms, keys: Keys, members: Members) -> PaillierSilo:
        return PaillierSilo(terms, keys, self.grid, members, insecure_for_tests=True)


INSECURE = Insecure(protocol="paillier", precision=PRECISION)


def groups_of(people: PersonVectors, most: int = 2) -> Iterator[PersonVectors]:
    """The same people in groups, made when they are asked for."""
    for first in range(0, len(people.places), most):
        yield PersonVectors(people.places[first : first + most], people.vectors[first : first + most])


class Grouped(Session):
    """Every silo's people in groups of two."""

    def sum(self, number: int, contributions: Iterable[PersonVectors], *rest, **options) -> np.ndarray:
        return super().sum(number, [groups_of(own) for own in contributions], *rest, **options)


def session(made: PaillierTerms | None = None, counts: np.ndarray = COUNTS, carry=delivered) -> Session:
    return Grouped(INSECURE, made or terms(), members(counts), carry=carry)


def contributions(seed: int = 0, numbers: int = NUMBERS, counts: np.ndarray = COUNTS) -> list[PersonVectors]:
    rng = np.random.default_rng(seed)
    present = [np.flatnonzero(own) for own in counts]
    return [PersonVectors(own, rng.integers(-10_000, 10_001, (len(own), numbers))) for own in present]


def streams(number: int = 1) -> list:
    return [STREAMS.stream("noise", number, silo) for silo in range(3)]


def expected(people: list[PersonVectors], counts: np.ndarray = COUNTS) -> np.ndarray:
    """The plain sum with the same weights, in exact arithmetic."""
    totals = 1 + counts.sum(axis=0)
    sums = [Fraction(0)] * people[0].vectors.shape[1]
    for own, silo in zip(counts, people, strict=True):
        for place, vector in zip(silo.places, silo.vectors, strict=True):
            weight = Fraction(int(own[place]), int(totals[place]))
            sums = [total + weight * int(entry) for total, entry in zip(sums, vector, strict=True)]
    return np.array([float(total) for total in sums]) * PRECISION


def test_the_sum_is_that_of_the_plain_weights_round_after_round():
    run = session()
    for number in range(1, 4):
        people = contributions(number)
        np.testing.assert_allclose(run.sum(number, people, streams()), expected(people), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("packed", [1, 2, 3])
def test_numbers_may_share_ciphertexts_or_not(packed):
    made = terms()
    made = PaillierTerms(**{**made.__dict__, "packed": packed})
    run, people = session(made), contributions()
    np.testing.assert_allclose(run.sum(1, people, streams()), expected(people), rtol=1e-12, atol=1e-15)
    assert made.outputs == math.ceil(NUMBERS / packed)


def test_people_may_be_left_out_of_a_round_and_a_silo_may_have_nobody():
    run, people = session(), contributions()
    people[0] = PersonVectors(people[0].places[:0], people[0].vectors[:0])
    people[1] = PersonVectors(people[1].places[1:], people[1].vectors[1:])
    np.testing.assert_allclose(run.sum(1, people, streams()), expected(people), rtol=1e-12, atol=1e-15)


def test_people_who_share_a_slot_are_clipped_apart_and_share_its_weight():
    """Both count n / N of the slot: removing one of them leaves the other's direction as it is."""
    own = Members(np.array([2, 2, 0]), np.array([1, 2, 5]))  # one silo's three people, two of them in slot 2
    nobody = Members(np.zeros(0, int), np.zeros(0, int))
    run = Grouped(INSECURE, terms(), [own, nobody, nobody])
    vectors = np.stack([np.full(NUMBERS, 10_000), np.full(NUMBERS, -4_000), np.full(NUMBERS, 600)])
    empty = PersonVectors(np.zeros(0, int), np.zeros((0, NUMBERS), np.int64))
    total = run.sum(1, [PersonVectors(np.arange(3), vectors), empty, empty], streams())
    np.testing.assert_allclose(total, 1 / 4 * 1 + 2 / 4 * -0.4 + 5 / 6 * 0.06, rtol=1e-12)


def test_a_slot_with_more_records_than_a_silo_may_count_is_counted_as_full_and_not_used():
    full = Members(np.array([2, 2]), np.array([3, 3]))  # 6 records, and 5 are the most
    other = Members(np.array([2]), np.array([4]))
    nobody = Members(np.zeros(0, int), np.zeros(0, int))
    run = Grouped(INSECURE, terms(), [full, other, nobody])
    two = PersonVectors(np.arange(2), np.full((2, NUMBERS), 10_000))
    one = PersonVectors(np.arange(1), np.full((1, NUMBERS), 10_000))
    total = run.sum(1, [two, one, PersonVectors(np.zeros(0, int), one.vectors[:0])], streams())
    np.testing.assert_allclose(total, 4 / (1 + 4 + 5), rtol=1e-12)


def test_the_largest_contributions_and_counts_do_not_wrap_around():
    made = terms(noise=3.0)
    counts = np.full((3, PEOPLE), made.cap)
    for sign in (1, -1):
        run = session(terms(), counts)
        people = [PersonVectors(np.arange(PEOPLE), np.full((PEOPLE, NUMBERS), sign * 10_000)) for _ in range(3)]
        total = run.sum(1, people, streams())
        np.testing.assert_allclose(total, expected(people, counts), rtol=1e-12)


@pytest.mark.parametrize(("silos", "people", "records"), [(2, 1, 1), (2, 1, 3), (3, 5, 1)])
@pytest.mark.parametrize("noise", [0.0, 1e-4])
def test_few_people_with_few_records_are_added_up_too(silos, people, records, noise):
    """Small common multiples leave slots little room beyond one contribution."""
    facts = SumFacts(silos, people, 1.0, Noise(noise, "shares"), records=records, norm=math.sqrt(3))
    made = agreed("run", tuple("abc"[:silos]), 3, facts, 1e-8, BITS, False)
    counts = np.full((silos, people), records)
    run = Grouped(Insecure(precision=1e-8), made, members(counts))
    own = PersonVectors(np.arange(people), np.full((people, 3), -(10**8)))
    total = run.sum(1, [own] * silos, [STREAMS.stream("noise", 1, silo) for silo in range(silos)])
    np.testing.assert_allclose(total, -people * silos * records / (1 + silos * records), atol=1e-12 + 10 * noise)


def test_the_noise_has_the_variance_that_the_ledger_says():
    made, nobody = terms(noise=2.0, numbers=600), np.zeros((3, PEOPLE), np.int64)
    run = session(made, nobody)
    people = [PersonVectors(np.zeros(0, int), np.zeros((0, 600), np.int64)) for _ in range(3)]
    seen = np.concatenate([run.sum(number, people, streams(number)) for number in range(1, 5)])
    # of 2,400 normals, within 15 % except with probability below 1e-6
    assert np.var(seen) == pytest.approx(4.0, rel=0.15)
    assert abs(seen.mean()) < 5 * 2 / math.sqrt(2400)
    assert 3 * made.share**2 >= (2.0 / PRECISION * made.common) ** 2


def test_equal_streams_give_equal_noise():
    made, people = terms(noise=2.0), contributions()
    one, two = (session(made).sum(1, people, streams()) for _ in range(2))
    np.testing.assert_array_equal(one, two)
    assert np.abs(one - expected(people)).max() > 0.1


# -- drop-outs


@pytest.mark.parametrize("phase", ["keys", "seed", "counts", "weights"])
def test_a_silo_that_vanishes_in_setup_ends_it(phase):
    def carry(at: str, sender: str, recipient: str, message: bytes) -> bytes | None:
        return None if (at, sender) == (phase, "clinic 1") else message

    with refuses("too-few", kind=TooFew, names=["clinic 1"]):
        session(carry=carry)


def test_a_silo_that_vanishes_in_a_round_ends_it_and_nothing_is_released():
    run, people = session(), contributions()

    def carry(at: str, sender: str, recipient: str, message: bytes) -> bytes | None:
        return None if sender == "clinic 2" else message

    with refuses("too-few", kind=TooFew, names=["clinic 2"]):
        run.sum(1, people, streams(), carry)
    assert run.server.total is None
    np.testing.assert_allclose(run.sum(2, people, streams()), expected(people), rtol=1e-12, atol=1e-15)


def test_no_round_before_setup():
    def carry(at: str, sender: str, recipient: str, message: bytes) -> bytes | None:
        return None if at == "counts" else message

    run = object.__new__(Session)
    with pytest.raises(TooFew):
        run.__init__(INSECURE, terms(), members(COUNTS), carry=carry)
    with refuses("out-of-turn", kind=OutOfTurn, peer="server"):
        run.server.begin(1)
    with refuses("out-of-turn", kind=OutOfTurn, peer="clinic 0"):
        run.silos["clinic 0"].begin(1, groups_of(contributions()[0]), streams()[0])


# -- hidden sampling


def test_hidden_sampling_takes_or_leaves_a_person_in_all_silos_at_the_declared_rate():
    """One person, one number, weight 9 / 10 over three silos: the sum is 0.9 or 0, in 3 of 4 rounds the former."""
    counts = np.zeros((3, PEOPLE), np.int64)
    counts[:, 0] = 3
    made = terms(rate=0.75, hidden=True, numbers=1)
    assert made.sampling == (3, 4)
    run = session(made, counts)
    people = [PersonVectors(np.array([0]), np.array([[10_000]])) for _ in range(3)]
    sums = [run.sum(number, people, streams())[0] for number in range(1, 81)]
    np.testing.assert_allclose(np.minimum(np.abs(sums), np.abs(np.array(sums) - 0.9)), 0, atol=1e-12)
    assert 0.5 < np.mean(np.array(sums) > 0.5) < 0.95  # 3/4 within five standard deviations


def test_rates_that_are_no_fraction_of_few_slots_are_refused_with_one_that_is():
    assert sampling_slots(0.1) == (1, 10)
    assert sampling_slots(2 / 3) == (2, 3)
    with refuses("invalid-value", "method.subject_sample_rate") as found:
        sampling_slots(0.123456)
    sampling_slots(advised(found.value))
    with refuses("invalid-value", "method.subject_sample_rate"):
        sampling_slots(1e-5)


# -- what fits


def test_what_does_not_fit_the_modulus_is_refused_with_the_largest_number_of_records_that_does():
    facts = SumFacts(5, 10_000, 1.0, Noise(1.0, "shares"), records=1000)
    with refuses("out-of-range", "privacy.max_records_per_subject_and_silo") as found:
        Weighted(protocol="paillier", precision=1e-10).check(facts)
    cap = int(advised(found.value))
    largest = int(found.value.problem.split()[-1])
    assert cap == (largest - 1) // 5
    assert slot_width(facts, 1e-10, largest) + 2 <= 3072 < slot_width(facts, 1e-10, largest + 1) + 2
    Weighted(protocol="paillier", precision=1e-10).check(SumFacts(5, 10_000, 1.0, Noise(1.0, "shares"), records=cap))
    assert 2000 < largest < 2100  # specification 4.6


def test_a_number_of_records_beyond_all_moduli_is_refused_at_once():
    """The common multiple of a billion numbers would take hours and fill the memory."""
    with refuses("out-of-range", "privacy.max_records_per_subject_and_silo"):
        Weighted(protocol="paillier").check(SumFacts(5, 100, 1.0, None, records=10**9))


def test_a_grid_on_which_contributions_do_not_fit_64_bits_is_refused_with_one_that_is_not():
    for bound, precision in ((1.0, 1e-20), (1e15, 1e-8), (1e300, 1e-300)):
        facts = SumFacts(5, 100, bound, None, records=10)
        with refuses("out-of-range", "exchange.precision") as found:
            Weighted(protocol="paillier", precision=precision).check(facts)
        coarser = advised(found.value)
        Weighted(protocol="paillier", precision=coarser).check(facts)
        assert coarser < 1e-18 * bound


def test_the_common_multiple_has_the_length_of_the_specification():
    assert [common_multiple(most).bit_length() for most in (2000, 2100, 2150)] == [2878, 3033, 3110]


def test_short_keys_and_missing_caps_are_refused():
    facts = SumFacts(5, 100, 1.0, None, records=10)
    for bits in (1024, 3071, 1_000_000):
        with refuses("out-of-range", "exchange.key_bits"):
            Weighted(protocol="paillier", key_bits=bits).check(facts)
    with refuses("missing", "privacy.max_records_per_subject_and_silo"):
        Weighted(protocol="paillier").check(SumFacts(5, 100, 1.0))
    with refuses("too-few", "exchange.name"):
        Weighted(protocol="paillier").check(SumFacts(1, 100, 1.0, None, 10))
    with refuses("out-of-range", "exchange.precision"):
        Weighted(protocol="paillier", precision=1.0).check(SumFacts(5, 100, 1.0, Noise(1.0, "shares"), 10))
    Weighted(protocol="paillier", precision=4e-4).check(SumFacts(5, 100, 1.0, Noise(1.0, "shares"), 10))


def test_contributions_that_break_a_bound_are_not_sent():
    run, good = session(), contributions()
    wrong = [
        ("out-of-range", PersonVectors(good[0].places, good[0].vectors * 2 + 10_000)),
        # what a number that is none becomes on the grid, and has no magnitude among 64-bit integers
        ("out-of-range", PersonVectors(good[0].places, np.full_like(good[0].vectors, -(2**63)))),
        ("wrong-length", PersonVectors(good[0].places, good[0].vectors[:, :3])),
        ("out-of-range", PersonVectors(np.array([0, 0, 0]), good[0].vectors)),
        ("wrong-length", PersonVectors(good[0].places, good[0].vectors.astype(np.float64))),
        ("out-of-range", PersonVectors(np.array([0, 2, 0]), good[0].vectors)),  # in two groups
        ("mismatch", PersonVectors(np.array([1, 2, 3]), good[0].vectors)),  # the first of them has no records here
        ("mismatch", PersonVectors(np.array([0, 2, PEOPLE]), good[0].vectors)),
        ("mismatch", PersonVectors(np.array([0, 2, -1]), good[0].vectors)),
    ]
    for number, (code, own) in enumerate(wrong, start=1):
        with refuses(code, "contributions", InvalidArgument):
            run.sum(number, [own, *good[1:]], streams())
    counts = COUNTS.copy()
    counts[0, 0] = 6
    with refuses("out-of-range", "records", InvalidArgument):
        session(counts=counts)


def test_a_contribution_that_breaks_a_bound_in_a_later_group_is_not_sent():
    run, good = session(), contributions()
    good[0].vectors[-1, 0] = run.terms.entry + 1
    with refuses("out-of-range", "contributions", InvalidArgument):
        run.sum(1, good, streams())
    assert run.silos["clinic 0"].phase is None


@pytest.mark.parametrize("scale", [1, 10_007, 3**34])
def test_the_norm_of_a_contribution_is_compared_exactly(scale):
    """3, 4, 12 and 84 have norm 85. In double precision the last of these norms and the next integer are equal."""
    vector, norm = np.array([3, -4, 12, -84]) * scale, 85 * scale
    assert not longer(vector, norm)
    assert not longer(np.append(vector, 0), norm)
    assert longer(np.append(vector, 1), norm)
    assert longer(vector, norm - 1)
    assert not longer(np.zeros(4, np.int64), 0)
    assert longer(np.append(np.zeros(4, np.int64), -1), 0)


def test_groups_are_checked_one_by_one_as_they_are_asked_for():
    asked: list[int] = []

    def groups() -> Iterator[PersonVectors]:
        for place, vector in enumerate(([3, 4], [5, 0], [4, 4])):
            asked.append(place)
            yield PersonVectors(np.array([place]), np.array([vector]))

    checked = checked_groups(groups(), 2, 5, 5, np.ones(3, int))
    for place in range(2):
        assert next(checked).places == place
        assert asked == list(range(place + 1))
    with refuses("out-of-range", "contributions", InvalidArgument):  # of entries up to 4, and of norm 5.7
        next(checked)


def test_nobody_colludes_with_the_server():
    assert Weighted().reveals_to(View.parse("server+silos:1")) is None
    assert {Weighted().reveals_to(View.parse(view)) for view in ("public", "server", "silo", "silos:2")} == {"sum"}
