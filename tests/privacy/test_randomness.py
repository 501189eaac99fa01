from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from tacit.privacy import Randomness, Stream
from tacit.privacy.invalid import InvalidArgument
from tacit.privacy.randomness import chosen, shares
from tests.refusals import refuses


def test_a_stream_is_the_chacha20_key_stream_of_its_key():
    key = bytes(range(32))
    expected = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(64))
    assert Stream(key).words(8).tobytes() == expected
    # RFC 8439, appendix A.1, test vector 1: the all-zero key, nonce and counter
    assert Stream(bytes(32)).words(8).tobytes().hex().startswith("76b8e0ada0f13d90405d6ae55386bd28")


def test_equal_names_give_equal_numbers_and_different_names_different_ones():
    root = Randomness.from_seed(1)
    first = root.stream("batches", 3, 4).words(100)
    assert np.array_equal(first, Randomness.from_seed(1).stream("batches", 3, 4).words(100))
    for other in (root.stream("batches", 34), root.stream("batches", 4, 3), root.stream("silos", 3, 4)):
        assert not np.array_equal(first, other.words(100))
    assert not np.array_equal(first, Randomness.from_seed(2).stream("batches", 3, 4).words(100))


def test_without_a_seed_two_runs_share_nothing():
    assert not np.array_equal(Randomness().stream("x").words(4), Randomness().stream("x").words(4))


def test_coins_show_their_rate():
    # 100,000 coins of rate .3: a deviation of 5 standard deviations has probability below 1e-6
    heads = Randomness.from_seed(0).stream("coins").coins(0.3, 100_000).sum()
    assert abs(heads - 30_000) < 5 * np.sqrt(100_000 * 0.3 * 0.7)
    assert Randomness.from_seed(0).stream("coins").coins(1.0, 1000).all()


@pytest.mark.parametrize("bound", [1, 3, 10, 2**62 + 1, 2**63])
def test_integers_are_uniform_below_their_bound(bound):
    drawn = Randomness.from_seed(3).stream("integers").integers(bound, 30_000)
    assert drawn.min() >= 0
    assert int(drawn.max()) < bound
    # mean of 30,000 uniform numbers: five standard deviations, probability below 1e-6
    assert abs(drawn.astype(float).mean() - (bound - 1) / 2) <= 5 * bound / np.sqrt(12 * 30_000)
    with refuses("out-of-range", "bound", InvalidArgument):
        Randomness.from_seed(3).stream("integers").integers(0, 1)


def test_a_permutation_has_every_number_once_and_every_first_number_equally_often():
    stream = Randomness.from_seed(4).stream("order")
    firsts = np.bincount([stream.permutation(5)[0] for _ in range(5000)], minlength=5)
    assert sorted(stream.permutation(1000)) == list(range(1000))
    # chi-square with 4 degrees of freedom: above 33.4 has probability 1e-6
    assert ((firsts - 1000) ** 2 / 1000).sum() < 33.4


def test_a_key_of_the_wrong_length_is_refused_and_keys_are_not_shown():
    with refuses("wrong-length", "key", InvalidArgument):
        Randomness(b"short")
    assert "…" in repr(Randomness(bytes(32)))


def test_names_of_streams_do_not_run_into_each_other():
    source = Randomness.from_seed(1)
    names = [("a",), ("a", 1), ("a/1",), ("a", 1, 2), ("a/1", 2), ("a/1/2",), ("a", 12), ("1:a",), ("a/", 1), ("a", -1)]
    drawn = {source.stream(*name).words(1).tobytes() for name in names}
    assert len(drawn) == len(names)


def test_lots_depend_on_the_key_alone():
    source, keys = Randomness.from_seed(3), np.array([5, -7, 2**62, 5, 0])
    lots = source.lots(keys, "subjects", 1)
    assert lots[0] == lots[3]
    assert len(set(lots.tolist())) == 4
    np.testing.assert_array_equal(source.lots(keys[[4, 1]], "subjects", 1), lots[[4, 1]])
    others = (source.lots(keys, "subjects", 2), source.lots(keys, "turns", 1), Randomness().lots(keys, "subjects", 1))
    assert not any((other == lots).any() for other in others)
    records = source.lots(np.zeros(3, int), "records", nth=np.arange(3))
    assert len(set(records.tolist())) == 3


def test_lots_are_fair_coins_and_equal_shares():
    """Keys one after the other. 20,000 coins and 10 shares of them, each beyond six deviations with p < 2e-9."""
    lots = Randomness.from_seed(4).lots(np.arange(20_000), "subjects", 1)
    assert abs(chosen(lots, 0.3).mean() - 0.3) < 6 * np.sqrt(0.3 * 0.7 / 20_000)
    assert np.abs(np.bincount(shares(lots, 10)) - 2000).max() < 6 * np.sqrt(2000 * 0.9)
    assert not chosen(lots, 1e-12).any()
    assert chosen(lots, 1.0).all()
