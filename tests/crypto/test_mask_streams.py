from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.crypto import Context, MaskStream, Secret, derive, masked
from tacit.crypto.crypto_errors import Misused
from tacit.families.weighting.paillier import residues, units
from tests.crypto.references import chacha20_block
from tests.refusals import refuses

HERE = Context("masked", "run-1", 3, "north", "south", "masks")
KEY = bytes(range(32))


def stream(key: bytes = KEY, **place: object) -> MaskStream:
    return MaskStream(Secret(key), replace(HERE, **place))


def ring(stream: MaskStream, count: int) -> np.ndarray:
    """The masks of a stream: what it adds to zeros."""
    return masked(np.zeros(count, np.uint64), [stream])


def test_the_reference_chacha20_is_that_of_rfc_8439():
    # section 2.3.2, and appendix A.1, test vector 1
    block = chacha20_block(KEY, 1, bytes.fromhex("000000090000004a00000000"))
    assert block.hex() == (
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )
    assert chacha20_block(bytes(32), 0, bytes(12)).hex().startswith("76b8e0ada0f13d90405d6ae55386bd28")


def test_a_stream_is_the_chacha20_key_stream_of_the_derived_key():
    key = bytes(derive(Secret(KEY), HERE).expose())
    expected = b"".join(chacha20_block(key, counter, bytes(12)) for counter in range(3))
    assert ring(stream(), 24).tobytes() == expected
    assert residues(stream(), 2**64, 1)[0] == int.from_bytes(expected[:24], "little") % 2**64


def test_both_ends_draw_the_same_and_every_other_context_something_else():
    ours = ring(stream(), 100)
    assert np.array_equal(ours, ring(stream(sender="south", recipient="north"), 100))
    for other in ({"round": 4}, {"run": "run-2"}, {"protocol": "weighted"}, {"purpose": "x"}, {"recipient": "west"}):
        assert not np.any(ours == ring(stream(**other), 100))
    assert not np.any(ours == ring(stream(bytes(32)), 100))


def test_drawing_in_pieces_is_drawing_at_once():
    pieces = stream()
    joined = np.concatenate([ring(pieces, 1), ring(pieces, 0), ring(pieces, 6)])
    assert np.array_equal(joined, ring(stream(), 7))


@settings(deadline=None)
@given(
    st.integers(2, 5),
    st.sampled_from([1, 7, 32, 63, 64]),
    st.sampled_from([0, 1, 5, (1 << 14) - 1, 1 << 14, (1 << 14) + 1]),
    st.integers(0, 2**32),
)
def test_pairwise_masks_cancel_in_the_sum(silos, bits, size, seed):
    vectors = np.random.default_rng(seed).integers(0, 2**bits, (silos, size), dtype=np.uint64)

    def pair(one: int, other: int) -> MaskStream:
        return stream(bytes([one]) * 32, sender=str(one), recipient=str(other))

    total = np.zeros(size, dtype=np.uint64)
    for silo, vector in enumerate(vectors):
        plus = [pair(silo, other) for other in range(silo + 1, silos)]
        minus = [pair(other, silo) for other in range(silo)]
        upload = masked(vector, plus, minus, bits)
        assert size < 5 or not np.array_equal(upload, vector) or bits == 1
        total += upload
    low = np.uint64(2**bits - 1)
    assert np.array_equal(total & low, vectors.sum(axis=0, dtype=np.uint64) & low)


def test_a_mask_is_what_the_stream_draws_and_the_vector_stays_as_it_was():
    vector = np.arange(5, dtype=np.uint64)
    assert np.array_equal(masked(vector, [stream()]), vector + ring(stream(), 5))
    assert np.array_equal(masked(vector, minus=[stream()], bits=8), (vector - ring(stream(), 5)) & np.uint64(255))
    assert np.array_equal(vector, np.arange(5))
    negative = np.array([-1, -(2**63)], dtype=np.int64).view(np.uint64)
    assert masked(masked(negative, [stream()]), minus=[stream()]).view(np.int64).tolist() == [-1, -(2**63)]


def test_masked_vectors_and_differences_of_two_rounds_are_uniform_bytes():
    # chi-square with 255 degrees of freedom: above 384 has probability below 1e-6
    vector = np.zeros(20_000, dtype=np.uint64)
    first, second = masked(vector, [stream(round=1)]), masked(vector, [stream(round=2)])
    for looked_at in (first, second, first - second):
        counts = np.bincount(np.frombuffer(looked_at.tobytes(), dtype=np.uint8), minlength=256)
        assert ((counts - 625) ** 2 / 625).sum() < 384
    # the control: a reused mask fails at once
    reused = first - masked(vector, [stream(round=1)])
    assert not reused.any()


@pytest.mark.parametrize("modulus", [2, 3, 10, 97])
def test_residues_are_uniform(modulus):
    drawn = np.array([int(value) for value in residues(stream(), modulus, 20_000)])
    counts = np.bincount(drawn, minlength=modulus)
    expected = 20_000 / modulus
    # at most 96 degrees of freedom: above 178 has probability below 1e-6
    assert counts.size == modulus
    assert ((counts - expected) ** 2 / expected).sum() < 178


@given(st.integers(2, 2**200), st.integers(0, 4))
def test_residues_stay_below_their_modulus_and_cancel(modulus, count):
    ours, theirs = residues(stream(), modulus, count), residues(stream(), modulus, count)
    assert len(ours) == count
    assert all(0 <= value < modulus for value in ours)
    assert [(a - b) % modulus for a, b in zip(ours, theirs, strict=True)] == [0] * count


def test_units_have_inverses():
    found = units(stream(), 6, 200)
    assert len(found) == 200
    assert set(found) == {1, 5}


def test_what_a_stream_cannot_give_is_refused():
    for bits in (0, 65):
        with refuses("out-of-range", "bits", Misused):
            masked(np.zeros(1, np.uint64), [stream()], bits=bits)
    with refuses("wrong-length", "vector", Misused):
        masked(np.zeros((2, 2), dtype=np.uint64), [stream()])
    with refuses("out-of-range", "modulus", Misused):
        residues(stream(), 1, 1)
    with refuses("wrong-length", "secret", Misused):
        MaskStream(Secret(b"short"), HERE)
