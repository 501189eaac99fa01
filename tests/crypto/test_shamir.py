from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.crypto import BadShares, Secret, Share, combine, split
from tacit.crypto.crypto_errors import Misused
from tacit.crypto.secret import PRIME
from tests.refusals import refuses

words = st.binary(min_size=32, max_size=32)


def opened(secrets: list[Secret]) -> list[bytes]:
    return [bytes(secret.expose()) for secret in secrets]


@given(st.data(), st.lists(words, min_size=1, max_size=3), st.integers(1, 7))
def test_any_subset_of_threshold_size_gives_the_secrets(data, values, holders):
    threshold = data.draw(st.integers(1, holders))
    indices = data.draw(st.lists(st.integers(1, 2**32 - 1), min_size=holders, max_size=holders, unique=True))
    shares = split([Secret(value) for value in values], threshold, indices)
    chosen = data.draw(st.permutations(shares))[: data.draw(st.integers(threshold, holders))]
    assert opened(combine(chosen, threshold)) == values


@pytest.mark.parametrize("value", [bytes(32), b"\xff" * 32, b"\x00" * 31 + b"\x01"])
def test_the_largest_and_smallest_secrets_survive(value):
    for subset in itertools.combinations(split([Secret(value)], 3, [1, 2, 3, 4, 5]), 3):
        assert opened(combine(subset, 3)) == [value]


def test_one_share_too_few_says_nothing():
    # the share of one holder of a 2-of-2 sharing is uniform whatever the secret is: 15 degrees of freedom,
    # a chi-square above 56 has probability below 1e-6
    for value in (bytes(32), b"\xff" * 32):
        tops = [split([Secret(value)], 2, [1, 2])[0].values[0] * 16 // PRIME for _ in range(1600)]
        assert ((np.bincount(tops, minlength=16) - 100.0) ** 2 / 100).sum() < 56


def test_too_few_shares_are_refused():
    shares = split([Secret.random()], 3, [1, 2, 3, 4])
    with refuses("too-few", kind=BadShares):
        combine(shares[:2], 3)
    with pytest.raises(BadShares):
        combine([], 1)
    with refuses("bad-terms", kind=BadShares):
        combine(shares, 0)


def test_the_same_holder_twice_is_refused():
    shares = split([Secret.random()], 2, [1, 2])
    with refuses("duplicate", kind=BadShares):
        combine([shares[0], shares[0]], 2)
    with refuses("duplicate", kind=BadShares):
        split([Secret.random()], 2, [1, 1, 2])


@pytest.mark.parametrize("threshold", [0, -1, 4])
def test_a_threshold_that_cannot_be_met_is_refused(threshold):
    with refuses("bad-terms", kind=BadShares):
        split([Secret.random()], threshold, [1, 2, 3])


@pytest.mark.parametrize("index", [0, -1, 2**32])
def test_holders_have_indices_from_one(index):
    with refuses("out-of-range", kind=BadShares):
        split([Secret.random()], 1, [index])


def test_a_wrong_share_is_noticed_where_there_is_one_more_than_needed():
    shares = split([Secret.random(), Secret.random()], 2, [1, 2, 3])
    wrong = Share(3, (shares[2].values[0], (shares[2].values[1] + 1) % PRIME))
    with refuses("bad-shares", kind=BadShares):
        combine([*shares[:2], wrong], 2)


def test_shares_of_different_secrets_are_refused():
    one, two = split([Secret.random()], 2, [1, 2]), split([Secret.random(), Secret.random()], 2, [1, 2])
    with refuses("mismatch", kind=BadShares):
        combine([one[0], two[1]], 2)


@given(st.integers(1, 2**32 - 1), st.lists(st.integers(0, PRIME - 1), min_size=1, max_size=3))
def test_shares_come_back_from_their_bytes(index, values):
    share = Share(index, tuple(values))
    assert Share.from_bytes(share.to_bytes()) == share


def test_bytes_that_are_no_share_are_refused():
    good = split([Secret.random()], 1, [1])[0].to_bytes()
    for data in (b"", good[:-1], good + b"x", bytes(4) + good[4:], good[:4] + b"\xff" * 33):
        with pytest.raises(BadShares) as caught:
            Share.from_bytes(data, peer="north")
        assert caught.value.peer == "north"
        assert caught.value.code == ("out-of-range" if len(data) == len(good) else "wrong-length")


def test_only_secrets_of_32_bytes_are_shared():
    with refuses("wrong-length", "secrets", Misused):
        split([Secret(b"short")], 1, [1])
    with refuses("missing", "secrets", Misused):
        split([], 1, [1])
