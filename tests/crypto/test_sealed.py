from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.crypto import EVERYONE, Context, Refused, SealingKey, Secret, Tampered, seal, seal_many, seal_rows, sealed
from tacit.crypto.crypto_errors import Misused
from tacit.crypto.sealed import OVERHEAD
from tests.crypto.references import hpke_open
from tests.refusals import refuses

HERE = Context("shuffled", "run-1", 3, EVERYONE, "analyzer", "reports")
KEY = SealingKey()


def test_the_reference_hpke_is_that_of_rfc_9180():
    # appendix A.2.1, the first message
    opened = hpke_open(
        bytes.fromhex("8057991eef8f1f1af18f4a9491d16a1ce333f695d4db8e38da75975c4478e0fb"),
        bytes.fromhex("1afa08d3dec047a643885163f1180476fa7ddb54c6a8029ea33f95796bf2ac4a"),
        bytes.fromhex("4f6465206f6e2061204772656369616e2055726e"),
        b"Count-0",
        bytes.fromhex("1c5250d8034ec2b784ba2cfd69dbdb8af406cfe3ff938e131f0def8c8b60b4db21993c62ce81883d2dd1b51a28"),
    )
    assert opened == b"Beauty is truth, truth beauty"


def test_sealed_messages_are_hpke():
    secret = bytes(range(32))
    message = seal(b"report", SealingKey(Secret(secret)).public, HERE)
    assert hpke_open(secret, message[:32], HERE.encode(), b"", message[32:]) == b"report"


@given(st.binary(max_size=64))
def test_what_is_sealed_opens(content):
    message = seal(content, KEY.public, HERE)
    assert len(message) == len(content) + OVERHEAD
    assert KEY.open(message, HERE) == content


def test_many_messages_keep_their_order_and_have_ephemeral_keys_of_their_own():
    contents = [bytes([i]) * 8 for i in range(50)]
    messages = seal_many(contents, KEY.public, HERE)
    assert KEY.open_many(messages, HERE) == contents
    assert len({message[:32] for message in messages}) == 50
    assert seal_many([], KEY.public, HERE) == []
    with refuses("mismatch", "messages", Misused):
        seal_many([b"a", b"bb"], KEY.public, HERE)


def test_equal_messages_look_like_different_ones():
    messages = seal_many([bytes(16)] * 500, KEY.public, HERE)
    assert len(set(messages)) == 500
    # every byte but the highest of the ephemeral key (a number below 2^255): 255 degrees of freedom, error below 1e-6
    body = np.frombuffer(b"".join(message[:31] + message[32:] for message in messages), dtype=np.uint8)
    expected = body.size / 256
    assert ((np.bincount(body, minlength=256) - expected) ** 2 / expected).sum() < 384


@given(st.integers(0, 8 * (OVERHEAD + 6) - 1))
def test_a_message_with_one_bit_flipped_does_not_open(bit):
    message = bytearray(seal(b"report", KEY.public, HERE))
    message[bit // 8] ^= 1 << (bit % 8)
    with pytest.raises(Tampered) as refusal:
        KEY.open(bytes(message), HERE)
    assert "report" not in str(refusal.value)


def test_truncated_messages_do_not_open():
    message = seal(b"report", KEY.public, HERE)
    for length in (0, 1, 31, 32, 47, 48, len(message) - 1):
        with pytest.raises(Tampered):
            KEY.open(message[:length], HERE)


def test_another_key_or_another_context_does_not_open():
    message = seal(b"report", KEY.public, HERE)
    with pytest.raises(Tampered):
        SealingKey().open(message, HERE)
    for other in ({"round": 4}, {"run": "r"}, {"protocol": "p"}, {"recipient": "x"}, {"sender": "x"}, {"purpose": "x"}):
        with pytest.raises(Tampered):
            KEY.open(message, replace(HERE, **other))


def test_one_bad_message_refuses_the_batch():
    messages = seal_many([b"a", b"b"], KEY.public, HERE)
    with pytest.raises(Tampered):
        KEY.open_many([messages[0], messages[1][:-1] + b"\x00\x00"], HERE)


def test_public_keys_that_cannot_be_used_are_refused():
    with refuses("bad-key", kind=Refused, peer="analyzer"):
        seal(b"x", b"short", HERE)
    with refuses("bad-key", kind=Refused, peer="analyzer"):
        seal(b"x", bytes(32), HERE)
    with refuses("wrong-length", "secret", Misused):
        SealingKey(Secret(b"short"))


def test_rows_are_sealed_and_opened_by_several_processes(monkeypatch):
    monkeypatch.setattr(sealed, "_WORTH_A_PROCESS", 4)
    contents = np.arange(120, dtype=np.uint8).reshape(10, 12)
    rows = seal_rows(contents, KEY.public, HERE, workers=2)
    assert rows.shape == (10, 12 + OVERHEAD)
    assert len({row[:32].tobytes() for row in rows}) == 10
    np.testing.assert_array_equal(KEY.open_rows(rows, HERE, workers=2), contents)
    np.testing.assert_array_equal(KEY.open_rows(rows, HERE), contents)
    altered = rows.copy()
    altered[-1, 40] ^= 1  # in the piece of the other process, whose error comes back
    with refuses("tampered", kind=Tampered, peer="*"):
        KEY.open_rows(altered, HERE, workers=2)


def test_no_rows_are_no_rows():
    nothing = np.zeros((0, 12), np.uint8)
    assert KEY.open_rows(seal_rows(nothing, KEY.public, HERE, workers=2), HERE, workers=2).shape == (0, 12)
