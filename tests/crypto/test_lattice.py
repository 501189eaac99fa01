"""Encryption from ring-LWE: what it decrypts to, how much noise it has, and that the parameters keep their promises."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.crypto import Context, MaskStream, Secret
from tacit.families.weighting import lattice
from tacit.families.weighting.lattice import (
    ERROR_SPECTRUM,
    STATISTICAL,
    Load,
    RingPublicKey,
    RingSecretKey,
    fitting,
    flooding,
    modulo,
    opened,
    residues_of,
    signed,
    switched,
    turned,
    uniform,
)
from tacit.families.weighting.ring import DEGREE, PRIMES, spectra

LOAD = Load(people=1000, records=20, silos=5, blocks=2, entry=2**27, reach=2**57)
PLACE = Context("protocol", "run", 1, "server", "silo", "mask")


def stream(seed: int = 0) -> MaskStream:
    return MaskStream(Secret(bytes([seed]) * 32), PLACE)


def key_pair() -> tuple[RingSecretKey, RingPublicKey]:
    made = fitting(LOAD)
    secret, c1 = RingSecretKey(made), uniform(stream(), made.primes, DEGREE)
    return secret, RingPublicKey(np.stack([secret.encrypted(c1, np.zeros((made.primes, 1), np.int64)), c1]))


SECRET, PUBLIC = key_pair()
LATTICE = SECRET.lattice
SETUP_SCALE = 1 << LATTICE.setup_scale_bits


def phases(ciphertext: np.ndarray) -> list[int]:
    return signed(SECRET.phase(*modulo(ciphertext.astype(np.int64))).astype(np.int64).T)


def test_residues_of_a_stream_are_uniform_and_the_same_at_both_ends():
    drawn = uniform(stream(), 9, 40_000)
    assert np.array_equal(drawn, uniform(stream(), 9, 40_000))
    for row, prime in zip(drawn, PRIMES, strict=True):
        assert row.max() < prime
        counts = np.bincount((row.astype(np.int64) * 16) // prime, minlength=16)
        assert ((counts - 2500) ** 2 / 2500).sum() < 60  # chi-squared of 15 degrees: probability below 1e-6


def test_errors_have_the_deviation_and_bound_that_the_proofs_use():
    drawn = lattice.errors(200, DEGREE)
    assert abs(drawn).max() <= 21
    assert abs(drawn.var() / 10.5 - 1) < 0.01
    assert abs(np.abs(spectra(drawn)).max() / math.sqrt(10.5 * DEGREE) - 3.9) < 1  # far below the bound of 11
    assert 11 * math.sqrt(10.5 * DEGREE) == ERROR_SPECTRUM


def test_a_ternary_polynomial_has_three_values_equally_often():
    drawn = lattice.ternary(90_000)
    assert abs(np.array([(drawn == value).mean() for value in (-1, 0, 1)]) - 1 / 3).max() < 0.01


@pytest.mark.parametrize("bits", [23, 24, 71, 116, 126])
def test_flooding_is_uniform_between_its_bounds(bits):
    numbers = np.array([n / 2**bits for n in signed(flooding(bits, 9, 4000).astype(np.int64).T)])
    assert -1 <= numbers.min() < -0.99
    assert 0.99 < numbers.max() < 1
    counts = np.histogram(numbers, 16, (-1, 1))[0]
    assert ((counts - 250) ** 2 / 250).sum() < 60


def test_an_encryption_of_zero_has_small_noise_and_a_new_mask_each_time():
    first, second = PUBLIC.zero(), PUBLIC.zero()
    assert max(abs(n) for n in phases(first)) < 21 * (2 * DEGREE + 1)
    assert not np.array_equal(first[1], second[1])


@given(st.integers(-(2**62), 2**62), st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_messages_survive_flooding_and_switching(largest, seed):
    messages = np.random.default_rng(seed).integers(-abs(largest) - 1, abs(largest) + 1, DEGREE)
    hidden = PUBLIC.zero()
    hidden[0] += flooding(LATTICE.flood_bits, LATTICE.primes, DEGREE)
    short = switched(modulo(hidden), LATTICE.kept)
    scale = residues_of(1 << LATTICE.scale_bits, LATTICE.kept)[:, None]
    short[0] += messages % lattice.column(LATTICE.kept) * scale
    phase = SECRET.phase(*modulo(short))
    assert np.array_equal(np.array(opened(phase, LATTICE.scale_bits), object), messages)


def test_switching_commutes_with_a_change_of_messages():
    """What the server sees of a sum depends on the sum of messages alone, not on which silo has sent which."""
    hidden = modulo(PUBLIC.zero())
    message = np.random.default_rng(0).integers(-(2**50), 2**50, DEGREE)
    before = hidden.astype(np.int64)
    before[0] += (
        message
        % lattice.column(LATTICE.primes)
        * residues_of(LATTICE.dropped << LATTICE.scale_bits, LATTICE.primes).reshape(-1, 1)
    )
    after = switched(hidden, LATTICE.kept)
    after[0] += message % lattice.column(LATTICE.kept) * residues_of(1 << LATTICE.scale_bits, LATTICE.kept)[:, None]
    assert np.array_equal(switched(modulo(before), LATTICE.kept), modulo(after))


def test_another_scale_would_tell_messages_apart():
    """Where the scale is no multiple of the dropped primes, what is sent says how a sum was split among silos."""
    hidden, differs = modulo(PUBLIC.zero()), 0
    after = switched(hidden, LATTICE.kept)
    after[0] += residues_of(1 << LATTICE.scale_bits, LATTICE.kept)[:, None]
    before = hidden.astype(np.int64)
    before[0] += residues_of((LATTICE.dropped << LATTICE.scale_bits) + LATTICE.dropped // 2, LATTICE.primes)[:, None]
    differs = np.count_nonzero(switched(modulo(before), LATTICE.kept) != modulo(after))
    assert differs > DEGREE


@given(st.integers(0, 2 * DEGREE - 1))
@settings(max_examples=20, deadline=None)
def test_turning_multiplies_by_a_power_of_x(power):
    one = np.zeros((2, DEGREE), np.uint32)
    one[:, 3] = 1
    place = (3 + power) % (2 * DEGREE)
    found = turned(one, power)
    sign = 1 if place < DEGREE else -1
    assert [int(row[place % DEGREE]) for row in found] == [sign % p for p in PRIMES[:2]]
    assert np.count_nonzero(found) == 2


def test_the_number_at_x_to_the_zero_is_opened_alone():
    c1 = uniform(stream(1), LATTICE.primes, DEGREE)
    message = np.zeros((LATTICE.primes, DEGREE), np.int64)
    message[:, 0] = residues_of(12345 * SETUP_SCALE, LATTICE.primes)
    c0 = SECRET.encrypted(c1, message)
    (found,) = signed(SECRET.constant(c0[None, :, 0].astype(np.int64), c1[None]))
    assert abs(found - 12345 * SETUP_SCALE) <= 21
    assert found == phases(np.stack([c0, c1]))[0]


@given(
    st.integers(1, 100_000),
    st.integers(1, 4000),
    st.integers(2, 200),
    st.integers(1, 123),
    st.integers(1, 2**45),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_every_admitted_load_has_room_for_the_worst_case(people, records, silos, blocks, entry, joint):
    load = Load(people, records, silos, blocks, entry, 16 * entry * 2**24, joint)
    found = fitting(load)
    if found is None:
        return
    numbers = blocks * DEGREE
    modulus, kept = math.prod(PRIMES[: found.primes]), math.prod(PRIMES[: found.kept])
    assert modulus.bit_length() <= 218  # 128 bits of security for this degree
    # the l2 norm of all noise that depends on contributions and counts, and its l1 norm
    keys = silos + 1 if joint else 1  # ternary polynomials that the secret is the sum of
    zero = 21 * (2 * keys * DEGREE + 1)
    spectrum = ERROR_SPECTRUM
    if joint:  # of the sum of all silos' e_pk v + e_0 + e_1 s
        spectrum *= silos * (2 * keys * lattice.TERNARY_SPECTRUM + 1)
    noise = people * records * spectrum * entry
    opened_together = silos if joint else 1
    hidden = opened_together * (math.sqrt(numbers) * noise + numbers * zero)
    assert 2.0 ** (found.flood_bits + 1) >= 2.0**STATISTICAL * hidden
    rounding = silos * (keys * DEGREE + 1) / 2 * (1 + 2.0**-22)
    worst = silos * (2**found.flood_bits + math.ceil(noise) + zero) / found.dropped + rounding
    if joint:
        assert 2.0 ** (found.opening_bits + 1) >= 2.0**STATISTICAL * numbers * rounding
        worst += silos * 2.0**found.opening_bits
    assert worst < 2 ** (found.scale_bits - 1)
    assert (load.largest + 1) * 2**found.scale_bits < kept / 2
    # setup: a blinded weight and its noise fit, and its flooding hides the errors
    setup_scale = 2**found.setup_scale_bits
    assert modulus / 2 > opened_together * 2 ** (lattice.BLIND_BITS + 1) * setup_scale
    assert opened_together * (2**found.setup_bits + zero) + 21 < setup_scale / 2
    assert 2.0 ** (found.setup_bits + 1) >= 2.0**STATISTICAL * (opened_together * zero + 21)


@pytest.mark.parametrize("threshold", [1, 3, 5])
def test_any_shares_of_the_threshold_give_the_secret_and_fewer_do_not(threshold):
    shares = SECRET.shares(threshold, range(1, 6))
    for holders in ((1, 2, 3, 4, 5), (5, 2, 4, 1), (2, 5, 3), (4,)):
        total = sum(shares[j].astype(np.int64) * lattice.lagrange(j, holders, LATTICE.primes)[:, None] for j in holders)
        gives = np.array_equal(modulo(total), modulo(np.stack([SECRET._secret] * LATTICE.primes)))
        assert gives == (len(holders) >= threshold)


def test_a_second_computation_finds_the_parameters_safe():
    tool = Path(__file__).parents[2] / "tools" / "lattice_parameters.py"
    done = subprocess.run([sys.executable, str(tool)], capture_output=True, text=True, check=True)
    assert done.stdout.count("primes") == 7
    assert "NOT" not in done.stdout


def test_the_loads_of_the_study_fit():
    assert fitting(Load(1000, 20, 5, 123, 2**27, 2**58)).number_bytes == 24
    assert fitting(Load(10_000, 2047, 4, 123, 2**27, 2**60)).primes == 9
    assert fitting(Load(4000, 44, 186, 1, 2**27, 2**58)).primes == 8
    assert fitting(Load(10_000, 2047, 4, 123, 2**45, 2**60)) is None
