from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.crypto import BadSignature, Context, Identity, Refused, Replayed, Roster, Secret, fingerprint, verify
from tacit.crypto.crypto_errors import Misused
from tests.refusals import refuses

NORTH, SOUTH = Identity(), Identity()
HERE = Context("masked", "run-1", 3, "north", "south", "keys")


def test_identities_are_those_of_rfc_8032():
    # section 7.1, test 1: the empty message
    secret = Secret(bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"))
    identity = Identity(secret)
    assert identity.public.hex() == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    assert identity._key.sign(b"").hex() == (
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe"
        "24655141438e7a100b"
    )
    assert identity.secret() == secret


@given(st.binary(max_size=100))
def test_a_signed_message_gives_its_content_where_it_belongs(content):
    assert verify(NORTH.public, HERE, NORTH.sign(HERE, content)) == content


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"protocol": "weighted"},
        {"run": "run-2"},
        {"round": 4},
        {"sender": "west"},
        {"recipient": "west"},
        {"purpose": "shares"},
    ],
)
def test_a_message_of_another_place_is_refused(elsewhere):
    message = NORTH.sign(replace(HERE, **elsewhere), b"key")
    with refuses("bad-signature", kind=BadSignature, peer="north", names=["south"]):
        verify(NORTH.public, HERE, message)


def test_a_message_of_somebody_else_is_refused_and_the_peer_named():
    with refuses("bad-signature", kind=BadSignature, peer="north") as refusal:
        verify(NORTH.public, HERE, SOUTH.sign(HERE, b"key"))
    assert refusal.value.peer == "north"
    assert isinstance(refusal.value, Refused)


@given(st.integers(0, 8 * 70 - 1))
def test_a_message_with_one_bit_flipped_is_refused(bit):
    message = bytearray(NORTH.sign(HERE, b"secret"))
    message[bit // 8] ^= 1 << (bit % 8)
    with pytest.raises(BadSignature) as refusal:
        verify(NORTH.public, HERE, bytes(message))
    assert "secret" not in str(refusal.value)


@given(st.integers(0, 69))
def test_a_truncated_message_is_refused(length):
    with pytest.raises(BadSignature):
        verify(NORTH.public, HERE, NORTH.sign(HERE, b"secret")[:length])


def test_an_unsigned_message_is_refused():
    for message in (b"", b"key", bytes(64), bytes(100)):
        with pytest.raises(BadSignature):
            verify(NORTH.public, HERE, message)


def test_a_roster_fills_each_place_once():
    roster = Roster({"north": NORTH.public, "south": SOUTH.public})
    message = NORTH.sign(HERE, b"key")
    assert roster.open(HERE, message) == b"key"
    with refuses("replayed", kind=Replayed, peer="north"):
        roster.open(HERE, message)
    with pytest.raises(Replayed):
        roster.open(HERE, NORTH.sign(HERE, b"another key"))
    later = replace(HERE, round=4)
    with pytest.raises(BadSignature):
        roster.open(later, message)
    assert roster.open(later, NORTH.sign(later, b"key")) == b"key"


def test_a_refused_message_does_not_fill_its_place():
    roster = Roster({"north": NORTH.public})
    with pytest.raises(BadSignature):
        roster.open(HERE, SOUTH.sign(HERE, b"key"))
    assert roster.open(HERE, NORTH.sign(HERE, b"key")) == b"key"


def test_strangers_and_doubles_are_refused():
    roster = Roster({"north": NORTH.public})
    with refuses("bad-signature", kind=BadSignature, peer="west"):
        roster.open(replace(HERE, sender="west"), NORTH.sign(replace(HERE, sender="west"), b"key"))
    with refuses("duplicate", "identities", Misused):
        Roster({"north": NORTH.public, "south": NORTH.public})
    with refuses("bad-key", kind=Refused, peer="north"):
        Roster({"north": b"short"})
    with refuses("wrong-length", "secret", Misused):
        Identity(Secret(b"short"))


def test_fingerprints_are_short_and_differ():
    assert len(fingerprint(NORTH.public)) == 24
    assert fingerprint(NORTH.public) != fingerprint(SOUTH.public)
    assert fingerprint(NORTH.public) in repr(NORTH)
