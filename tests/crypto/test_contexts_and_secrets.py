from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.crypto import (
    Context,
    Identity,
    KeyPair,
    MaskStream,
    SealingKey,
    Secret,
    split,
)
from tacit.crypto.crypto_errors import Misused
from tacit.crypto.secret import SelfWiping
from tacit.families.weighting.blinding import Blinding
from tacit.families.weighting.oblivious_transfer import TransferReceiver, TransferSender
from tacit.families.weighting.paillier import insecure_key_for_tests
from tests.refusals import refuses

HERE = Context("masked", "run-1", 3, "north", "south", "keys")
names = st.text("ab1\0é", min_size=1, max_size=4)
contexts = st.builds(Context, names, names, st.integers(0, 20), names, names, st.text("ab1\0é", max_size=4))


@given(contexts, contexts)
def test_two_contexts_have_the_same_bytes_only_if_they_are_the_same(one, two):
    assert (one.encode() == two.encode()) == (one == two)


@given(contexts, contexts, st.binary(max_size=4), st.binary(max_size=4))
def test_nothing_that_follows_a_context_can_be_taken_for_a_part_of_it(one, two, rest, other):
    if one.encode() + rest == two.encode() + other:
        assert (one, rest) == (two, other)


def test_fields_cannot_be_shifted_into_each_other():
    assert replace(HERE, sender="a", recipient="bc").encode() != replace(HERE, sender="ab", recipient="c").encode()


def test_another_purpose_is_another_context():
    assert replace(HERE, purpose="shares").encode() != HERE.encode()


def test_a_pair_is_the_same_from_both_ends():
    assert HERE.pair() == replace(HERE, sender="south", recipient="north").pair()


@pytest.mark.parametrize("field", ["protocol", "run", "sender", "recipient"])
def test_a_context_without_a_place_is_refused(field):
    with refuses("missing", "context", Misused):
        replace(HERE, **{field: ""})
    with refuses("out-of-range", "round", Misused):
        replace(HERE, round=-1)


def test_a_wiped_secret_is_zero_and_cannot_be_used():
    secret = Secret(b"\x07" * 32)
    held = secret._bytes
    with secret as inside:
        assert bytes(inside.expose()) == b"\x07" * 32
    assert held == bytes(32)
    with refuses("wiped", "secret", Misused):
        secret.expose()


def test_a_secret_takes_a_bytearray_over_and_leaves_zeros():
    source = bytearray(b"\x09" * 32)
    secret = Secret(source)
    assert source == bytes(32)
    assert secret == Secret(b"\x09" * 32)
    assert secret != Secret(b"\x08" * 32)
    assert secret != b"\x09" * 32


def test_bytes_that_are_still_in_use_outlive_their_secret():
    # a view that silently turned into zeros would be a key of zeros
    assert bytes(Secret(b"\x07" * 32).expose()) == b"\x07" * 32


def test_a_secret_is_zeroed_when_nobody_uses_it_any_more(monkeypatch):
    zeroed = []
    monkeypatch.setattr(SelfWiping, "wipe", lambda self: zeroed.append(bytes(self)))
    secret = Secret(b"\x07" * 32)
    view = secret.expose()
    del secret
    assert not zeroed
    del view
    assert zeroed == [b"\x07" * 32]


def test_exposed_bytes_cannot_be_written():
    with pytest.raises(TypeError):
        Secret.random().expose()[0] = 1


def test_secrets_are_not_pickled_and_not_hashed():
    for secret in (Secret.random(), insecure_key_for_tests(128)):
        for copied in (pickle.dumps, copy.copy):
            with pytest.raises(TypeError) as caught:
                copied(secret)
            assert caught.traceback[-1].name == "__reduce__"  # not by chance
    assert Secret.__hash__ is None


def test_nothing_that_holds_a_secret_shows_it():
    value = bytes(range(1, 33))
    secret = Secret(value)
    number = str(int.from_bytes(value, "big"))
    paillier = insecure_key_for_tests(128)
    sender = TransferSender(HERE)
    holders = [
        secret,
        Identity(secret),
        KeyPair(secret),
        SealingKey(secret),
        MaskStream(secret, HERE),
        sender,
        TransferReceiver(HERE, sender.offer, [1], 2),
        Blinding(187),
        paillier,
        paillier.factors[0],
        *split([secret], 1, [1]),
    ]
    for holder in holders:
        for shown in (repr(holder), str(holder), f"{holder}"):
            assert value.hex()[:8] not in shown
            assert number not in shown
            assert str(paillier.factors[0].prime) not in shown
            assert repr(value)[2:-1] not in shown
