from __future__ import annotations

from dataclasses import replace

import pytest

from tacit.crypto import Context, KeyPair, Refused, Secret, derive
from tacit.crypto.crypto_errors import Misused
from tests.crypto.references import hkdf_expand, hkdf_extract
from tests.refusals import refuses

NORTH = Context("masked", "run-1", 3, "north", "south", "masks")
SOUTH = replace(NORTH, sender="south", recipient="north")


def alice() -> KeyPair:
    return KeyPair(Secret(bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")))


def bob() -> KeyPair:
    return KeyPair(Secret(bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")))


def test_the_reference_hkdf_is_that_of_rfc_5869():
    # appendix A.1
    key = hkdf_extract(bytes(range(13)), b"\x0b" * 22)
    assert key.hex() == "077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5"
    assert hkdf_expand(key, bytes(range(0xF0, 0xFA)), 42).hex() == (
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    )


def test_agreement_is_x25519_of_rfc_7748_and_hkdf_over_context_and_keys():
    # RFC 7748, section 6.1
    assert alice().public.hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert bob().public.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    shared = bytes.fromhex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    information = NORTH.encode() + alice().public + bob().public
    expected = hkdf_expand(hkdf_extract(b"tacit-agreement-1", shared), information, 32)
    assert alice().agree(bob().public, NORTH) == Secret(expected)
    assert bob().agree(alice().public, SOUTH) == Secret(expected)


def test_derived_keys_are_those_of_hkdf():
    expected = hkdf_expand(hkdf_extract(b"tacit-agreement-1", bytes(32)), NORTH.encode() + b"x", 32)
    assert derive(Secret(bytes(32)), NORTH, b"x") == Secret(expected)


@pytest.mark.parametrize("other", [{"protocol": "p"}, {"run": "r"}, {"round": 4}, {"purpose": "p"}, {"recipient": "x"}])
def test_every_context_has_a_key_of_its_own(other):
    assert alice().agree(bob().public, NORTH) != alice().agree(bob().public, replace(NORTH, **other))


def test_a_pair_comes_back_from_its_secret():
    pair = KeyPair()
    assert KeyPair(pair.secret()).public == pair.public
    assert KeyPair().public != pair.public


def test_keys_that_would_make_the_agreement_predictable_are_refused():
    for low_order in (bytes(32), b"\x01" + bytes(31)):
        with refuses("bad-key", kind=Refused, peer="south"):
            alice().agree(low_order, NORTH)
    with refuses("bad-key", kind=Refused, peer="south"):
        alice().agree(alice().public, NORTH)
    with refuses("bad-key", kind=Refused, peer="south"):
        alice().agree(b"short", NORTH)
    with refuses("wrong-length", "secret", Misused):
        KeyPair(Secret(b"short"))
