"""How much of others' messages a process holds at a time."""

from __future__ import annotations

import time

import pytest

from tacit.transport.streams import (
    AT_ONCE,
    MOST_BYTES,
    MOST_OPEN,
    MOST_UNREAD,
    MOST_UNREAD_ANSWERS,
    FrameLimit,
    Places,
    Streams,
    Unread,
)


class Receiver:
    """NVFlare's knowledge of streams, and a clock."""

    def __init__(self) -> None:
        self.ended: set[object] = set()
        self.now = 0.0
        self.bound = FrameLimit()
        self.streams = Streams(lambda stream: stream not in self.ended, self.bound, lambda: self.now)

    def takes(self, number: object, declared: object = 0, length: int = 1, sender: str = "eve") -> bool:
        return self.streams.takes(sender, ("_admin_1", number), declared, length)


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


def test_a_message_has_a_bound(receiver):
    assert receiver.streams.takes("eve", None, 0, MOST_BYTES)
    assert not receiver.streams.takes("eve", None, 0, MOST_BYTES + 1)


@pytest.mark.parametrize("declared", [MOST_BYTES + 1, 1 << 30, 2**70, -1, "9", 1.5, True, None, []])
def test_a_stream_is_refused_by_what_it_declares(receiver, declared):
    assert receiver.takes(1, MOST_BYTES)
    assert not receiver.takes(2, declared)


@pytest.mark.parametrize("number", [None, [], {}, 1.5])
def test_a_stream_has_a_number(receiver, number):
    assert not receiver.takes(number)


def test_a_stream_is_refused_by_what_has_arrived(receiver):
    """Whatever it declares, and in whatever order its parts come."""
    for number, declared in ((1, 0), (2, 100)):
        assert all(receiver.takes(number, declared, MOST_BYTES // 4) for _ in range(4))
        assert not receiver.takes(number, declared, 1)


def test_one_sender_has_few_large_streams_at_a_time(receiver):
    assert all(receiver.takes(number, MOST_BYTES) for number in range(AT_ONCE))
    assert not receiver.takes(99)
    assert receiver.takes(100, MOST_BYTES, sender="ana")
    receiver.ended.add(("_admin_1", 3))
    receiver.now = 2.0
    assert receiver.takes(99)


def test_the_process_of_a_job_takes_what_its_plan_needs(receiver):
    receiver.bound.widen(1)
    assert not receiver.takes(1, MOST_BYTES + 1)
    receiver.bound.widen(1 << 30)
    assert receiver.takes(1, 1 << 30)
    assert not receiver.takes(2, (1 << 30) + 1)
    assert receiver.takes(2, 1 << 30)
    assert not receiver.takes(3, 1)  # one that is sent again, and no more


def test_one_sender_has_few_streams_at_a_time(receiver):
    """However small they are: each holds a thread of NVFlare's until it ends."""
    assert all(receiver.takes(number, 10) for number in range(MOST_OPEN))
    assert not receiver.takes(99)
    assert all(receiver.takes(number, 10) for number in range(MOST_OPEN))  # those that are open go on
    assert receiver.takes(100, sender="ana")
    receiver.ended.add(("_admin_1", 3))
    receiver.streams.handled("eve", ("_admin_1", 3))
    assert receiver.takes(99)


def test_a_stream_that_has_ended_does_not_count(receiver):
    """A job's processes have many streams in a second, one after another."""
    for number in range(1000):
        assert receiver.takes(number, MOST_BYTES)
        receiver.ended.add(("_admin_1", number))
        receiver.streams.handled("eve", ("_admin_1", number))
    assert not receiver.streams._open


def test_streams_that_are_refused_cost_little(receiver):
    began = time.process_time()
    for number in range(8000):
        receiver.takes(number, 1)
    assert time.process_time() - began < 2  # a sum over all that were ever sent took 42 s


def test_a_party_has_a_limited_number_of_places():
    places = Places(2)
    with places.of("eve") as first, places.of("eve") as second, places.of("eve") as third, places.of("ana") as other:
        assert (first, second, third, other) == (True, True, False, True)
    with places.of("eve") as again:
        assert again
    assert not places._taken


def test_a_message_alone_has_a_bound_of_its_own(receiver):
    assert receiver.streams.takes("eve", None, 0, 100, 100)
    assert not receiver.streams.takes("eve", None, 0, 101, 100)


@pytest.mark.parametrize(("party", "most"), [("eve@example.org", MOST_UNREAD_ANSWERS), ("north", MOST_UNREAD)])
def test_what_a_party_does_not_read_is_bounded_over_all_its_connections(party, most):
    unread = Unread()
    assert all(unread.takes(party, connection, most // 4) for connection in range(4))
    assert not unread.takes(party, 9, 1)
    assert unread.takes("another", 9, 1)
    unread.sent(party, 0, 10)
    assert unread.takes(party, 9, 10)
    assert not unread.takes(party, 9, 1)
    unread.sent(party, 1)  # its connection has ended
    unread.sent(party, 1)
    unread.sent(party, 1, 5)
    assert unread.takes(party, 9, most // 4)
    for connection in (0, 2, 3, 9):
        unread.sent(party, connection)
    unread.sent("another", 9, 1)
    assert not unread._waiting
    assert unread.takes(party, 1, 10 * most)  # alone
