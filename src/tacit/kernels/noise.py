"""Cryptographic noise inside compiled kernels: ChaCha20 (RFC 8439) as JAX operations, and normals drawn from it.

A stream is named by a 256-bit key (``uint32 [8]``, derived on the host by :class:`tacit.privacy.Randomness`) and a
nonce (``uint32 [3]``, see :func:`nonce_words`). Without the key the noise cannot be distinguished from true noise;
under one key, every use needs a nonce of its own: noise that is drawn twice protects only once. Everything here works
under ``jit``, ``scan``, ``fori_loop`` and ``vmap``, and depends on its arguments alone.

A million normals take 1.6 times as long as from JAX's default generator (17 and 10.5 ms on 2 busy cores). The ten
double rounds are a loop over ``[4, blocks]`` rows: unrolled, they compile ten times longer and run slower.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from tacit.privacy import Stream

_CONSTANTS = np.frombuffer(b"expand 32-byte k", dtype="<u4").astype(np.uint32)
# 15 words of a block make 5 pairs of normals, from 3 words each
_PAIRS_PER_BLOCK = 5
_NORMALS_PER_BLOCK = 2 * _PAIRS_PER_BLOCK

#: Normals that are drawn together; the rest is cut off. Vectors of a multiple of this length are fast: XLA cuts
#: a loop into one part for each core, and only equal parts become vector instructions (on 2 cores, a private step's
#: noise, sum and update took 2.5 times as long with 50,305 numbers as with 50,400).
PIECE = 16 * _NORMALS_PER_BLOCK

#: The largest normal that can be drawn: a radius has 64 random bits, the least likely one is sqrt(-2 log 2^-65).
LARGEST_NORMAL = math.sqrt(2 * 65 * math.log(2))


def key_words(stream: Stream) -> npt.NDArray[np.uint32]:
    """A key for :func:`gaussian` from the next 256 bits of a host stream: ``uint32 [8]``."""
    return stream.words(4).astype("<u8").view("<u4").astype(np.uint32)


def nonce_words(purpose: int | jax.Array, step: int | jax.Array = 0, part: int | jax.Array = 0) -> jax.Array:
    """The nonce ``uint32 [3]`` of one use: what for, in which step, for which part; each below 2^32."""
    return jnp.stack([jnp.asarray(word, jnp.uint32) for word in (purpose, step, part)])


def gaussian(key: jax.Array, nonce: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Independent standard normals, float32: Box and Muller 1958, from 64 bits for the radius and 32 for the angle.

    Never infinite or NaN, and never beyond :data:`LARGEST_NORMAL` = 9.49 (a true normal is, with probability 2e-21).
    32 bits would end at 6.7: with the number of parameters and steps of an ordinary run, the missing tail would show in
    delta. The radius is exact to float32's precision at both ends, near 0 as well as in the tail. What float32 rounding
    itself leaks (Mironov 2012) is covered by ``exact_sums``.
    """
    count = math.prod(shape)
    blocks = -(-count // PIECE) * PIECE // _NORMALS_PER_BLOCK
    # apart from what follows: woven into it, the last round is computed again for every use of a word
    words = jax.lax.optimization_barrier(_blocks(key, nonce, blocks))
    high, low, angle = (words[i * _PAIRS_PER_BLOCK : (i + 1) * _PAIRS_PER_BLOCK] for i in range(3))
    # both coordinates of a pair as one elementwise expression: joined afterwards, they take three times as long
    quarter_turn = jnp.array([[[0]], [[1 << 30]]], jnp.uint32)
    return (_radius(high, low) * _cosine(angle ^ quarter_turn)).reshape(-1)[:count].reshape(shape)


def _blocks(key: jax.Array, nonce: jax.Array, blocks: int, counter: int | jax.Array = 0) -> jax.Array:
    """The ChaCha20 block function for ``blocks`` counters at once: ``uint32 [16, blocks]`` (RFC 8439, section 2.3)."""
    key = jnp.asarray(key, jnp.uint32)
    counters = jnp.asarray(counter, jnp.uint32) + jnp.arange(blocks, dtype=jnp.uint32)
    a, b, c = (jnp.broadcast_to(row[:, None], (4, blocks)) for row in (jnp.asarray(_CONSTANTS), key[:4], key[4:]))
    rest = jnp.broadcast_to(jnp.asarray(nonce, jnp.uint32)[:, None], (3, blocks))
    start = (a, b, c, jnp.concatenate([counters[None], rest]))

    def double_round(_: int, rows: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        a, b, c, d = _quarter_rounds(*rows)
        # diagonals become columns, and back
        a, b, c, d = _quarter_rounds(a, jnp.roll(b, -1, 0), jnp.roll(c, -2, 0), jnp.roll(d, -3, 0))
        return a, jnp.roll(b, 1, 0), jnp.roll(c, 2, 0), jnp.roll(d, 3, 0)

    end = jax.lax.fori_loop(0, 10, double_round, start)
    return jnp.concatenate([s + e for s, e in zip(start, end, strict=True)])


def _quarter_rounds(a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array) -> tuple[jax.Array, ...]:
    """Four quarter rounds side by side, one per row (RFC 8439, section 2.1)."""
    a = a + b
    d = _rotated(d ^ a, 16)
    c = c + d
    b = _rotated(b ^ c, 12)
    a = a + b
    d = _rotated(d ^ a, 8)
    c = c + d
    b = _rotated(b ^ c, 7)
    return a, b, c, d


def _rotated(words: jax.Array, bits: int) -> jax.Array:
    return (words << bits) | (words >> (32 - bits))


def _radius(high: jax.Array, low: jax.Array) -> jax.Array:
    """``sqrt(-2 log u)`` for ``u`` = (64 bits + 1/2) 2^-64, without losing bits where u is near 1."""
    upper = (high >> 31).astype(bool)
    flip = jnp.where(upper, jnp.uint32(0xFFFFFFFF), jnp.uint32(0))
    # distance to the nearer end of (0, 1): at least 2^-65, at most 1/2
    near = (high ^ flip).astype(jnp.float32) * 2.0**-32 + ((low ^ flip).astype(jnp.float32) + 0.5) * 2.0**-64
    return jnp.sqrt(-2.0 * jnp.where(upper, jnp.log1p(-near), jnp.log(near)))


def _cosine(angle: jax.Array) -> jax.Array:
    """The first coordinate of a uniform point of the unit circle for each word; flipping bit 30 gives the second.

    30 bits say where within a quarter turn, bit 30 which coordinate is the long one, bit 31 that one's sign. Sine and
    cosine by their series on [-pi/4, pi/4], to float32's precision: XLA's own are half of everything's time.
    """
    within = (angle & jnp.uint32(0x3FFFFFFF)).astype(jnp.int32) - 2**29
    t = (within.astype(jnp.float32) + 0.5) * (math.pi / 2 * 2.0**-30)
    t2 = t * t
    sine = t * (1 + t2 * (-1 / 6 + t2 * (1 / 120 + t2 * (-1 / 5040 + t2 / 362880))))
    cosine = 1 + t2 * (-1 / 2 + t2 * (1 / 24 + t2 * (-1 / 720 + t2 / 40320)))
    cosine = jnp.where((angle >> 31).astype(bool), -cosine, cosine)
    return jnp.where(((angle >> 30) & 1).astype(bool), sine, cosine)
