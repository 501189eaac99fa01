"""Encoders, shuffler and analyzer: counts, order, indistinguishable messages, and what is refused."""

from __future__ import annotations

import socket
import threading
import time
from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.metrics import roc_auc_score

from tacit.crypto import BadSignature, Identity, Refused, Replayed, Tampered, seal_rows
from tacit.exchange import Session
from tacit.exchange.post import OutOfTurn
from tacit.families.randomizers import LaplaceReports, LevelReports
from tacit.families.shuffle.exchange import OpenSession, Shuffled
from tacit.families.shuffle.protocol import (
    MIXED,
    SHUFFLER,
    Collected,
    Messages,
    ShuffledTerms,
    dealt,
    missing,
    places,
)
from tacit.privacy import Randomness, Stream
from tests.refusals import refuses

LAW = LaplaceReports(1.0)


def terms(people=6, dimensions=8, padded=5, law=LAW, listed=None, linked=False):
    return ShuffledTerms("run-1", people, dimensions, padded, law, listed, linked)


def stream(name="shuffler"):
    return Randomness.from_seed(2).stream(name)


def collected(*people: tuple[int, list[int], list[float]]) -> Collected:
    heap = Collected()
    for person, index, value in people:
        heap.add(np.full(len(index), person), np.array(index, np.int64), np.array(value, np.float64))
    return heap


def some_reports(agreed: ShuffledTerms, each: int, seed: int = 0) -> Collected:
    rng = np.random.default_rng(seed)
    return collected(
        *(
            (person, sorted(rng.permutation(agreed.dimensions)[:each].tolist()), rng.normal(size=each).tolist())
            for person in range(agreed.people)
        )
    )


def sealed_session(agreed: ShuffledTerms) -> Session:
    """All people in one place, the shuffler and the analyzer."""
    return Session(Shuffled(), agreed, [range(agreed.people)])


def sealed_sum(session: Session, reports: Collected, drawn: Stream) -> np.ndarray:
    return session.sum(1, [[reports]], [drawn], stream=drawn)


def overheard(session: Session) -> list[bytes]:
    """What the analyzer is sent from now on."""
    heard: list[bytes] = []
    receive = session.third.receive

    def listening(message: bytes) -> bytes:
        heard.append(message)
        return receive(message)

    session.third.receive = listening
    return heard


# --- what is cut and what is filled up -------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 6), max_size=60), st.integers(1, 12))
def test_after_cutting_and_filling_every_dimension_has_the_same_number(index, padded):
    index = np.array(index, np.int64)
    kept = index[places(index, 7, padded, stream())]
    filled = np.concatenate([kept, np.repeat(np.arange(7), missing(kept, 7, padded))])
    assert np.bincount(filled, minlength=7).tolist() == [padded] * 7
    # no more is cut than must be: fillings would take its place unseen
    sent = np.bincount(index, minlength=7)
    assert np.bincount(kept, minlength=7).tolist() == np.minimum(sent, padded).tolist()


def test_what_is_cut_is_chosen_uniformly():
    """3 of 8 messages, 4,000 times: each is kept with probability 3/8, and every pair alike (5 deviations)."""
    index, draws = np.array([1, 0, 1, 1, 1, 1, 1, 1, 1]), stream("cuts")
    kept = np.zeros((4000, 9), bool)
    for trial in kept:
        trial[places(index, 2, 3, draws)] = True
    assert kept[:, 1].all()
    others = np.delete(kept, 1, axis=1)
    assert (others.sum(axis=1) == 3).all()
    assert np.abs(others.mean(axis=0) - 3 / 8).max() < 5 * np.sqrt(15 / 64 / 4000)
    together = (others[:, :, None] & others[:, None, :]).mean(axis=0)[np.triu_indices(8, 1)]
    assert np.abs(together - 3 * 2 / (8 * 7)).max() < 5 * np.sqrt(0.1 / 4000)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(1, 8))
def test_lists_of_fillings_name_no_dimension_twice(lacking, width):
    lacking = np.array(lacking)
    lists = dealt(lacking, width)
    real = lists[lists < lacking.size]
    assert np.bincount(real, minlength=lacking.size).tolist() == lacking.tolist()
    for row in lists:
        own = row[row < lacking.size]
        assert len(set(own)) == len(own)


# --- three roles -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", [LAW, LevelReports(1.0, 3)])
def test_sealed_and_open_sums_are_the_same(law):
    agreed = terms(law=law)
    for each in (2, 7):  # with room, and cut
        reports = some_reports(agreed, each)
        sealed = sealed_sum(sealed_session(agreed), reports, stream())
        session = OpenSession(agreed, crowd=agreed.people)
        heaps = [session.form()]
        heaps[0].add(*Collected.together([reports]))
        np.testing.assert_allclose(session.sum(1, [heaps], [], stream=stream()), sealed, atol=1e-12)


def test_without_fillings_and_noise_the_sum_is_that_of_the_reports():
    agreed = terms(people=5, padded=5)
    reports = some_reports(agreed, 8)
    person, index, value = Collected.together([reports])
    assert len(person) == 40
    total = sealed_sum(sealed_session(agreed), reports, stream())
    np.testing.assert_allclose(total, np.bincount(index, value - 0.5, 8), atol=1e-12)
    # the open session adds up as reports come, where nothing can be cut
    open_ = OpenSession(agreed, crowd=5)
    heap = open_.form()
    heap.add(person, index, value)
    np.testing.assert_allclose(open_.sum(1, [[heap]], [], stream=stream()), total, atol=1e-12)


def test_the_analyzer_always_gets_the_same_number_of_reports_about_every_dimension():
    agreed = terms(people=6, dimensions=8, padded=5)
    for each, seed in ((0, 0), (1, 1), (4, 2), (8, 3)):
        session = sealed_session(agreed)
        mixed = overheard(session)
        sealed_sum(session, some_reports(agreed, each, seed), stream(f"{each}"))
        messages = agreed.parse(mixed[0][64:], SHUFFLER)  # behind the signature
        assert np.bincount(messages.dimension.ravel(), minlength=8).tolist() == [5] * 8
        assert messages.sealed.shape == (40, agreed.sealed_bytes)


def test_a_report_that_is_no_number_says_nothing():
    agreed = terms(people=2, dimensions=2, padded=2)
    reports = collected((0, [0, 1], [np.nan, 0.25]), (1, [0, 1], [0.75, np.inf]))
    np.testing.assert_allclose(sealed_sum(sealed_session(agreed), reports, stream()), [0.25, -0.25])


def test_linked_messages_carry_whole_lists_and_no_list_is_cut():
    agreed = terms(people=6, padded=3, listed=4, linked=True)
    assert agreed.width == 4
    reports = some_reports(agreed, 4)
    sealed = sealed_sum(sealed_session(agreed), reports, stream())
    quiet = terms(people=6, padded=3, listed=4, linked=True, law=LaplaceReports(1e9))
    _, index, value = Collected.together([reports])
    np.testing.assert_allclose(
        sealed_sum(sealed_session(quiet), reports, stream()), np.bincount(index, value - 0.5, 8), atol=1e-6
    )
    assert np.isfinite(sealed).all()
    with refuses("bad-terms", kind=Refused):
        terms(linked=True)


# --- who sees what ---------------------------------------------------------------------------------------------------

REAL, SENDERS = 4, 625
# an AUC of 5,000 judged messages, a quarter of them reports, has this deviation where nothing can be told
BY_CHANCE = 0.0094


class Observed(NamedTuple):
    """A mixed round of 10,000 messages, a quarter of them reports, in the order in which the analyzer gets them.

    sealed   the bytes of every message ``[messages, bytes]``
    owner    whose report each is; -1: a filling
    left     when it left the shuffler, in nanoseconds
    arrived  when it arrived at the analyzer
    opening  how long the analyzer took to open it
    """

    sealed: np.ndarray
    owner: np.ndarray
    left: np.ndarray
    arrived: np.ndarray
    opening: np.ndarray

    @property
    def times(self) -> np.ndarray:
        """All that clocks tell, ``[messages, 5]``: three times, and the gaps to the message before."""
        gaps = [np.diff(when, prepend=when[0]) for when in (self.left, self.arrived)]
        return np.column_stack([self.left, self.arrived, self.opening, *gaps]).astype(np.float64)


def over_a_wire(rows: list[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """(when each of ``rows`` was given to a connection, when it came out at the other end), in nanoseconds."""
    here, there = socket.socketpair()
    left, arrived = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)

    def send() -> None:
        for number, row in enumerate(rows):
            left[number] = time.perf_counter_ns()
            here.sendall(row)

    with here, there:
        sender = threading.Thread(target=send)
        sender.start()
        for number, row in enumerate(rows):
            assert there.recv(len(row), socket.MSG_WAITALL) == row
            arrived[number] = time.perf_counter_ns()
        sender.join()
    return left, arrived


@cache
def ten_thousand() -> Observed:
    """What clocks and eyes at the shuffler's output and at the analyzer see of one round."""
    agreed = terms(people=SENDERS, dimensions=100, padded=100)
    session = sealed_session(agreed)
    mixed = overheard(session)
    sent: dict[bytes, int] = {}
    take = session.server.shuffler.receive

    def watched(sender: str, message: bytes) -> None:
        for row in agreed.parse(message[64:], sender).sealed:
            sent[row.tobytes()] = int(sender.split()[1])
        take(sender, message)

    session.server.shuffler.receive = watched
    keys, begin = [], session.third.begin

    def begun(number: int) -> bytes:
        message = begin(number)
        keys.append(session.third._key)
        return message

    session.third.begin = begun
    sealed_sum(session, some_reports(agreed, REAL), stream("ten thousand"))
    rows = [row.tobytes() for row in agreed.parse(mixed[0][64:], SHUFFLER).sealed]
    left, arrived = over_a_wire(rows)
    opening = np.zeros(len(rows), np.int64)
    for number, row in enumerate(rows):
        start = time.perf_counter_ns()
        keys[0].open(row, agreed.sealing(1))
        opening[number] = time.perf_counter_ns() - start
    sealed = np.frombuffer(b"".join(rows), np.uint8).reshape(len(rows), -1)
    return Observed(sealed, np.array([sent.get(row, -1) for row in rows]), left, arrived, opening)


def as_it_would_come(observed: Observed) -> Observed:
    """The same from a shuffler that passes reports on as they come and then makes its fillings, by the same clocks."""
    order = np.argsort(np.where(observed.owner < 0, SENDERS, observed.owner), kind="stable")
    return observed._replace(sealed=observed.sealed[order], owner=observed.owner[order])


def fillings_told(observed: Observed, features: np.ndarray) -> float:
    """How well a classifier tells reports from fillings: trained on half of the messages, AUC on the others."""
    real = observed.owner >= 0
    half = np.random.default_rng(0).permutation(len(real)) < len(real) // 2
    return _auc(features[half], real[half], features[~half], real[~half])


def messages_linked(observed: Observed, features: np.ndarray) -> float:
    """How well a classifier tells pairs of one sender from pairs of two, by how far their ``features`` are apart: 3,750
    pairs of each kind, trained on those of half of the senders, AUC on those of the others. A test pair shares no
    message with a training pair."""
    rng = np.random.default_rng(1)
    train, test = (_pairs(observed.owner, some, rng) for some in np.array_split(rng.permutation(SENDERS), 2))
    apart = [np.abs(features[first] - features[second]) for first, second, _ in (train, test)]
    return _auc(apart[0], train[2], apart[1], test[2])


def _pairs(owner: np.ndarray, senders: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """(first message, second message, whether they are of one sender), half of them so."""
    by_sender = [np.flatnonzero(owner == person) for person in senders]
    same = np.array([(own[i], own[j]) for own in by_sender for i in range(REAL) for j in range(i)])
    others = np.column_stack([rng.permutation(same[:, 0]), rng.permutation(same[:, 1])])
    others = others[owner[others[:, 0]] != owner[others[:, 1]]]
    first, second = np.concatenate([same, others]).T
    return first, second, np.arange(len(first)) < len(same)


def _auc(seen: np.ndarray, truth: np.ndarray, judged: np.ndarray, hidden: np.ndarray) -> float:
    model = ExtraTreesClassifier(40, max_depth=10, random_state=0).fit(seen, truth)
    return float(roc_auc_score(hidden, model.predict_proba(judged)[:, 1]))


def everything(observed: Observed) -> np.ndarray:
    """Bytes, place and times of every message. (All lengths are equal.)"""
    return np.column_stack([observed.sealed, np.arange(len(observed.owner)), observed.times])


def test_fillings_and_reports_have_one_length_and_form():
    observed = ten_thousand()
    assert observed.sealed.shape == (10_000, 60)
    assert (observed.owner >= 0).sum() == REAL * SENDERS
    assert len({row.tobytes() for row in observed.sealed[:, :32]}) == 10_000  # an ephemeral key for each


@pytest.mark.parametrize("seen", [everything, lambda observed: observed.times], ids=["everything", "times"])
def test_no_classifier_tells_fillings_from_reports(seen):
    """From bytes, place and times: AUC 1/2 within 5 deviations. It finds them behind a shuffler that does not mix."""
    observed = ten_thousand()
    assert abs(fillings_told(observed, seen(observed)) - 0.5) < 5 * BY_CHANCE
    careless = as_it_would_come(observed)
    assert fillings_told(careless, seen(careless)) > 0.95


@pytest.mark.parametrize("seen", [everything, lambda observed: observed.times], ids=["everything", "times"])
def test_two_messages_of_one_person_cannot_be_linked_better_than_by_chance(seen):
    """By bytes, places and times. Pairs of one sender overlap (each message is in three), so that deviations are up to
    sqrt 3 larger than those of 3,750 judged pairs. Behind a shuffler that does not mix, they are linked."""
    observed = ten_thousand()
    assert abs(messages_linked(observed, seen(observed)) - 0.5) < 5 * BY_CHANCE * np.sqrt(3)
    careless = as_it_would_come(observed)
    assert messages_linked(careless, seen(careless)) > 0.95


def test_a_filling_takes_as_long_to_open_as_a_report():
    """Ranks of 10,000 opening times: the sum over 2,500 reports within 5 deviations of its mean (Mann and Whitney)."""
    observed = ten_thousand()
    auc = roc_auc_score(observed.owner >= 0, observed.opening)
    assert abs(auc - 0.5) < 5 * np.sqrt(10_001 / (12 * 2500 * 7500))


def test_places_of_reports_are_uniform():
    """Kolmogorov-Smirnov of 2,500 places among 10,000: below 1.95 / 50 except with probability .001."""
    owner = ten_thousand().owner
    mine = np.sort(np.flatnonzero(owner >= 0)) / len(owner)
    assert np.abs(mine - np.arange(1, len(mine) + 1) / len(mine)).max() < 1.95 / 50


# --- what is refused -------------------------------------------------------------------------------------------------


def begun(agreed: ShuffledTerms) -> Session:
    session = sealed_session(agreed)
    key = session.third.begin(1)
    session.server.shuffler.begin(1, key)
    for encoder in session.silos["all"].encoders.each.values():
        encoder.begin(1, key)
    return session


def submitted(session: Session, index: np.ndarray, value: np.ndarray) -> bytes:
    """The message of the first person in round 1."""
    encoder, agreed = session.silos["all"].encoders.each[0], session.terms
    indices, contents = agreed.contents(index, value)
    return encoder.signed(indices, seal_rows(contents, encoder.key, agreed.sealing(1)))


def test_the_shuffler_takes_one_set_of_reports_from_everybody_and_knows_everybody():
    session = begun(terms())
    message = submitted(session, np.array([1, 3]), np.array([0.1, 0.2]))
    session.server.shuffler.receive("person 0", message)
    with pytest.raises(Replayed):
        session.server.shuffler.receive("person 0", message)
    with pytest.raises(BadSignature):
        session.server.shuffler.receive("person 1", message)
    with pytest.raises(BadSignature):
        session.server.shuffler.receive("person 99", message)


@pytest.mark.parametrize("index", [[1, 1], [8, 2]])
def test_the_shuffler_refuses_dimensions_twice_or_beyond_the_last(index):
    session = begun(terms())
    with refuses("out-of-range", kind=Refused, peer="person 0"):
        session.server.shuffler.receive("person 0", submitted(session, np.array(index), np.zeros(2)))


def test_the_shuffler_refuses_lists_of_another_length():
    session = begun(terms(listed=3))
    with refuses("wrong-length", kind=Refused, peer="person 0"):
        session.server.shuffler.receive("person 0", submitted(session, np.arange(2), np.zeros(2)))


def test_the_shuffler_cannot_open_reports_nor_pass_one_off_as_another():
    session = begun(terms(people=1, dimensions=2, padded=1))
    agreed, analyzer = session.terms, session.third
    message = submitted(session, np.array([0, 1]), np.array([0.1, 0.2]))
    messages = agreed.parse(message[64:], "person 0")
    turned = Messages(messages.dimension[::-1], messages.sealed)
    forged = session.server.shuffler._post.write("analyzer", MIXED, agreed.write(turned))
    with refuses("mismatch", kind=Refused, peer="shuffler"):
        analyzer.receive(forged)


def test_the_analyzer_refuses_missing_altered_or_foreign_reports():
    for change in ("missing", "altered", "foreign"):
        session = begun(terms(people=1, dimensions=2, padded=1))
        agreed = session.terms
        message = submitted(session, np.array([0, 1]), np.array([0.1, 0.2]))
        index, sealed = agreed.parse(message[64:], "person 0")
        if change == "missing":
            index, sealed = index[:1], sealed[:1]
        if change == "altered":
            sealed = sealed ^ np.uint8(1)
        post = session.server.shuffler._post
        forged = post.write("analyzer", MIXED, agreed.write(Messages(index, sealed)))
        if change == "foreign":
            forged = Identity().sign(post.place(SHUFFLER, "analyzer", MIXED), agreed.write(Messages(index, sealed)))
        expected = {"missing": Refused, "altered": Tampered, "foreign": BadSignature}[change]
        with pytest.raises(expected):
            session.third.receive(forged)
        assert session.third.total is None


def test_nothing_of_one_round_is_good_in_another_or_out_of_turn():
    session = begun(terms(people=1, dimensions=2, padded=1))
    message = submitted(session, np.array([0, 1]), np.array([0.1, 0.2]))
    key = session.third.begin(2)
    session.server.shuffler.begin(2, key)
    with pytest.raises(BadSignature):
        session.server.shuffler.receive("person 0", message)
    session.third.receive(session.server.shuffler.mix(stream()))
    with refuses("out-of-turn", kind=OutOfTurn, peer="shuffler"):
        session.server.shuffler.mix(stream())
    with refuses("out-of-turn", kind=OutOfTurn, peer="person 0"):
        session.server.shuffler.receive("person 0", message)
    with refuses("out-of-turn", kind=OutOfTurn, peer="shuffler"):
        session.third.receive(message)
