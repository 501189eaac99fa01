"""Statistical statements have fixed keys and would fail by chance with a probability of at most 1e-6 each."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from scipy import stats

from tacit.kernels import gaussian, key_words, nonce_words
from tacit.kernels.noise import LARGEST_NORMAL, PIECE, _blocks, _radius
from tacit.privacy import Randomness

ERROR = 1e-6
COUNT = 200_000
KEY = key_words(Randomness.from_seed(1).stream("noise"))
DRAW = jax.jit(gaussian, static_argnums=2)


def key_stream(key, nonce, count, counter=0):
    """The key stream in RFC 8439's order, from block number ``counter`` on."""
    return _blocks(key, nonce, -(-count // 16), counter).T.reshape(-1)[:count]


BITS = jax.jit(key_stream, static_argnums=2)


def words(text: str) -> np.ndarray:
    """The words of bytes in hexadecimal, as the RFC numbers them (little end first)."""
    return np.frombuffer(bytes.fromhex(text.replace(" ", "")), dtype="<u4").astype(np.uint32)


def drawn(purpose: int = 0, step: int = 0, key: np.ndarray = KEY) -> np.ndarray:
    return np.asarray(DRAW(key, nonce_words(purpose, step), (COUNT,)), np.float64)


# RFC 8439, section 2.3.2, and appendix A.1, test vectors 1 to 5: key, nonce, block counter, key stream
VECTORS = [
    (
        bytes(range(32)).hex(),
        "000000090000004a00000000",
        1,
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e",
    ),
    (
        "00" * 32,
        "00" * 12,
        0,
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    (
        "00" * 32,
        "00" * 12,
        1,
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f",
    ),
    (
        "00" * 31 + "01",
        "00" * 12,
        1,
        "3aeb5224ecf849929b9d828db1ced4dd832025e8018b8160b82284f3c949aa5a"
        "8eca00bbb4a73bdad192b5c42f73f2fd4e273644c8b36125a64addeb006c13a0",
    ),
    (
        "00ff" + "00" * 30,
        "00" * 12,
        2,
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
        "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
    ),
    (
        "00" * 32,
        "00" * 11 + "02",
        0,
        "c2c64d378cd536374ae204b9ef933fcd1a8b2288b3dfa49672ab765b54ee27c7"
        "8a970e0e955c14f3a88e741b97c286f75f8fc299e8148362fa198a39531bed6d",
    ),
]


@pytest.mark.parametrize(("key", "nonce", "counter", "stream"), VECTORS)
def test_blocks_are_those_of_the_rfc(key, nonce, counter, stream):
    np.testing.assert_array_equal(BITS(words(key), words(nonce), 16, counter), words(stream))


def test_long_streams_are_those_of_another_implementation():
    nonce = nonce_words(7, 2**32 - 1, 3)
    cipher = Cipher(ChaCha20(KEY.tobytes(), bytes(4) + np.asarray(nonce).tobytes()), mode=None).encryptor()
    theirs = np.frombuffer(cipher.update(bytes(4 * 5000)), dtype="<u4")
    np.testing.assert_array_equal(BITS(KEY, nonce, 5000), theirs)


def test_normals_are_box_and_mullers():
    """The same from numpy in double precision, with its own sine and cosine; what is cut off does not change it."""
    count, blocks = 1000, 112  # 7 pieces of 160 normals
    nonce = nonce_words(1, 2, 3)
    stream = np.asarray(BITS(KEY, nonce, 16 * blocks), np.float64).reshape(blocks, 16).T
    high, low, angle = stream[:5], stream[5:10], stream[10:15]
    radius = np.sqrt(-2 * np.log(high * 2.0**-32 + (low + 0.5) * 2.0**-64))
    # the quarter turns are numbered by the top two bits: which coordinate is the long one, and its sign
    t = (angle % 2**30 - 2**29 + 0.5) * (np.pi / 2) * 2.0**-30
    long = np.where(angle >= 2**31, -1, 1) * np.cos(t)
    swapped = angle // 2**30 % 2 == 1
    x, y = np.where(swapped, np.sin(t), long), np.where(swapped, long, np.sin(t))
    expected = np.concatenate([radius * x, radius * y]).reshape(-1)[:count]
    np.testing.assert_allclose(DRAW(KEY, nonce, (count,)), expected, rtol=2e-6)
    np.testing.assert_array_equal(DRAW(KEY, nonce, (7 * PIECE,))[:count], DRAW(KEY, nonce, (count,)))


def test_normals_are_normal():
    z = drawn()
    assert stats.kstest(z, "norm").pvalue > ERROR
    # mean, variance, skewness, kurtosis: each is nearly normal at this count, with a known deviation
    bound = stats.norm.isf(ERROR / 2) / np.sqrt(COUNT)
    for moment, (expected, deviation) in {1: (0, 1), 2: (1, 2**0.5), 3: (0, 15**0.5), 4: (3, 96**0.5)}.items():
        assert abs(np.mean(z**moment) - expected) < bound * deviation
    # the variance by its exact distribution
    assert ERROR / 2 < stats.chi2.cdf(np.sum(z**2), COUNT) < 1 - ERROR / 2


def test_tails_have_their_share():
    z = np.concatenate([drawn(step=step) for step in range(10)])
    for level in (3.0, 4.0, 4.5):
        share = 2 * stats.norm.sf(level)
        assert stats.binomtest(int(np.sum(np.abs(z) > level)), len(z), share).pvalue > ERROR


def test_bits_are_balanced():
    bits = np.asarray(BITS(KEY, nonce_words(9), 32_000))
    ones = np.array([np.sum(bits >> np.uint32(i) & np.uint32(1)) for i in range(32)])
    assert stats.chi2.sf(np.sum((ones - 16_000) ** 2) / 8_000, 32) > ERROR
    counts = np.bincount(bits >> np.uint32(24), minlength=256)
    assert stats.chisquare(counts).pvalue > ERROR


OTHER_KEY = KEY ^ np.array([1, 0, 0, 0, 0, 0, 0, 0], np.uint32)


@pytest.mark.parametrize(
    "other", [drawn(step=1), drawn(purpose=1), drawn(key=OTHER_KEY)], ids=["other step", "other purpose", "one key bit"]
)
def test_other_names_give_independent_numbers(other):
    z = drawn()
    bound = stats.norm.isf(ERROR / 2) / np.sqrt(COUNT)
    assert abs(np.mean(z * other)) < bound
    assert abs(np.mean((z**2 - 1) * (other**2 - 1))) < 2 * bound
    assert not np.any(z == other)


def test_numbers_of_one_draw_are_independent():
    z = drawn()
    half = COUNT // 2  # the two coordinates of a pair lie half a draw apart
    for lag in (1, 5, 16, half):
        products = z[lag:] * z[:-lag]
        assert abs(np.mean(products)) < stats.norm.isf(ERROR / 2) / np.sqrt(len(products))


def test_no_bits_give_infinity_or_zero():
    edges = jnp.array([0, 1, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1], jnp.uint32)
    high, low = (grid.ravel() for grid in jnp.meshgrid(edges, edges))
    radius = np.asarray(jax.jit(_radius)(high, low))
    assert np.isfinite(radius).all()
    assert radius.min() > 0
    assert radius.max() == pytest.approx(LARGEST_NORMAL, rel=1e-6)
    assert np.float32(LARGEST_NORMAL) > 9.49


def test_draws_are_the_same_inside_loops_and_maps():
    steps, shape = jnp.arange(4), (5, 7)

    def draw(step: jax.Array) -> jax.Array:
        return gaussian(KEY, nonce_words(3, step), shape)

    @jax.jit
    def looped() -> jax.Array:
        return jax.lax.fori_loop(0, 4, lambda i, total: total + draw(i), jnp.zeros(shape))

    one_by_one = np.stack([DRAW(KEY, nonce_words(3, step), shape) for step in range(4)])
    np.testing.assert_allclose(jax.jit(jax.vmap(draw))(steps), one_by_one, rtol=1e-6)
    np.testing.assert_allclose(jax.lax.map(draw, steps), one_by_one, rtol=1e-6)
    np.testing.assert_allclose(looped(), one_by_one.sum(axis=0), rtol=1e-5, atol=1e-6)


def test_no_numbers_are_no_numbers():
    assert DRAW(KEY, nonce_words(0), (0,)).shape == (0,)
    assert DRAW(KEY, nonce_words(0), ()).shape == ()
    assert BITS(KEY, nonce_words(0), 0).shape == (0,)
