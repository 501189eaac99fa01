from __future__ import annotations

from dataclasses import replace

import nacl.bindings as sodium
import numpy as np
import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.crypto import Context, Refused, Tampered
from tacit.crypto.crypto_errors import Misused
from tacit.families.weighting.oblivious_transfer import _NONCE, TransferReceiver, TransferSender, _common, _key
from tests.refusals import refuses

HERE = Context("weighted", "run-1", 3, "server", "north", "sampling")
# the point of order two of edwards25519: (0, -1)
ORDER_TWO = (2**255 - 19 - 1).to_bytes(32, "little")


def messages(transfers: int, slots: int) -> list[list[bytes]]:
    return [[f"message {t:3} {s:3}".encode() for s in range(slots)] for t in range(transfers)]


@settings(deadline=None, max_examples=20)
@given(st.integers(2, 8).flatmap(lambda m: st.tuples(st.just(m), st.lists(st.integers(0, m - 1), max_size=5))))
def test_the_receiver_gets_what_it_chose(case):
    slots, choices = case
    sender = TransferSender(HERE)
    receiver = TransferReceiver(HERE, sender.offer, choices, slots)
    offered = messages(len(choices), slots)
    received = receiver.receive(sender.reply(receiver.requests, offered))
    assert received == [offered[t][choice] for t, choice in enumerate(choices)]


def test_the_receiver_can_open_nothing_else():
    sender = TransferSender(HERE)
    receiver = TransferReceiver(HERE, sender.offer, [1], 3)
    reply = sender.reply(receiver.requests, messages(1, 3))[0]
    point = sodium.crypto_scalarmult_ed25519_noclamp(receiver._scalars[0], sender.offer)
    size = len(reply) // 3
    opened = []
    for slot in range(3):
        key = _key(_common(HERE, sender.offer), 0, receiver.requests, slot + 1, point)
        try:
            opened.append(ChaCha20Poly1305(key).decrypt(_NONCE, reply[slot * size : (slot + 1) * size], None))
        except InvalidTag:
            opened.append(None)
    assert opened == [None, messages(1, 3)[0][1], None]


def test_requests_say_nothing_about_the_choice():
    # low bytes of the requests, choice by choice: 255 degrees of freedom, error below 1e-6 each
    sender = TransferSender(HERE)
    for choice in (0, 3):
        requests = TransferReceiver(HERE, sender.offer, [choice] * 300, 4).requests
        low = np.frombuffer(requests, dtype=np.uint8).reshape(300, 32)[:, :31]
        expected = low.size / 256
        assert ((np.bincount(low.ravel(), minlength=256) - expected) ** 2 / expected).sum() < 384
        assert len({requests[i : i + 32] for i in range(0, len(requests), 32)}) == 300


def test_the_same_choice_twice_gives_different_requests_and_replies():
    sender = TransferSender(HERE)
    one, two = (TransferReceiver(HERE, sender.offer, [0], 2) for _ in range(2))
    assert one.requests != two.requests
    assert sender.reply(one.requests, messages(1, 2)) != sender.reply(two.requests, messages(1, 2))


def test_offers_that_are_no_point_of_the_group_are_refused():
    good = TransferSender(HERE).offer
    mixed = sodium.crypto_core_ed25519_add(good, ORDER_TWO)  # would show the parity of choices
    identity = b"\x01" + bytes(31)
    for offer in (b"", good[:-1], bytes(32), identity, ORDER_TWO, mixed, b"\xff" * 32):
        with refuses("malformed", kind=Refused, peer="server"):
            TransferReceiver(HERE, offer, [0], 2)


def test_requests_that_are_no_point_of_the_group_are_refused():
    sender = TransferSender(HERE)
    good = TransferReceiver(HERE, sender.offer, [0], 2).requests
    mixed = sodium.crypto_core_ed25519_add(good, ORDER_TWO)
    for request in (bytes(32), b"\x01" + bytes(31), ORDER_TWO, mixed, b"\xff" * 32, good[:-1], good + good):
        with refuses("malformed" if len(request) == 32 else "wrong-length", kind=Refused, peer="north"):
            sender.reply(request, messages(1, 2))


@given(st.integers(0, 8 * (15 + 16) - 1))
@settings(deadline=None, max_examples=20)
def test_an_altered_reply_is_refused(bit):
    sender = TransferSender(HERE)
    receiver = TransferReceiver(HERE, sender.offer, [0], 2)
    reply = bytearray(sender.reply(receiver.requests, messages(1, 2))[0])
    reply[bit // 8] ^= 1 << (bit % 8)
    with refuses("tampered", kind=Tampered, peer="server"):
        receiver.receive([bytes(reply)])


def test_replies_to_others_are_refused():
    sender = TransferSender(HERE)
    receiver = TransferReceiver(HERE, sender.offer, [0, 1], 2)
    replies = sender.reply(receiver.requests, messages(2, 2))
    with pytest.raises(Tampered):
        receiver.receive(replies[::-1])
    with pytest.raises(Tampered):
        receiver.receive([replies[0], replies[1][:-1]])
    with refuses("wrong-length", kind=Refused, peer="server"):
        receiver.receive(replies[:1])
    other = TransferReceiver(replace(HERE, round=4), sender.offer, [0], 2)
    with pytest.raises(Tampered):
        other.receive(sender.reply(other.requests, messages(1, 2)))


def test_impossible_choices_and_unequal_messages_are_refused():
    sender = TransferSender(HERE)
    for choices, slots, field in (([2], 2, "choices"), ([-1], 2, "choices"), ([0], 1, "slots")):
        with refuses("out-of-range", field, Misused):
            TransferReceiver(HERE, sender.offer, choices, slots)
    receiver = TransferReceiver(HERE, sender.offer, [0], 2)
    with refuses("mismatch", "messages", Misused):
        sender.reply(receiver.requests, [[b"a", b"bb"]])
