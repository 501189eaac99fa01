"""Products in Z_q[X] / (X^N + 1): equal to those of an independent exact library, and refused where they are not."""

from __future__ import annotations

import flint
import numpy as np
import pytest

from tacit.families.weighting import ring
from tacit.families.weighting.ring import DEGREE, PRIMES, Inexact, RootValues, SumOfProducts, parts_for, prepared, times

LARGEST = 2**27


def exact(left: np.ndarray, right: np.ndarray, prime: int) -> np.ndarray:
    """left right modulo X^N + 1 and a prime, by FLINT."""
    product = flint.nmod_poly([int(x) for x in left], prime) * flint.nmod_poly([int(x) % prime for x in right], prime)
    found = np.array([int(x) for x in product.coeffs()] + [0] * (2 * DEGREE))
    return (found[:DEGREE] - found[DEGREE : 2 * DEGREE]) % prime


def residues(rng: np.random.Generator, *shape: int, primes: int = 2) -> np.ndarray:
    rows = [rng.integers(0, prime, (*shape, DEGREE)) for prime in PRIMES[:primes]]
    return np.stack(rows, axis=-2).astype(np.uint32)


def clipped(rng: np.random.Generator, people: int, blocks: int, norm: int = LARGEST) -> np.ndarray:
    """Integer vectors of at most this norm: dense, with one entry, with few entries."""
    vectors = rng.normal(size=(people, blocks * DEGREE))
    vectors[1::3] *= rng.random(vectors[1::3].shape) < 1e-3
    vectors[2::3, 1:] = 0
    vectors *= norm / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    return np.trunc(vectors * (1 - 1e-12)).astype(np.int64).reshape(people, blocks, DEGREE)


def expected(ciphertexts: np.ndarray, contributions: np.ndarray, row: int, number: int, block: int) -> np.ndarray:
    prime = PRIMES[number]
    products = (exact(c[row, number], d[block], prime) for c, d in zip(ciphertexts, contributions, strict=True))
    return sum(products) % prime


def test_the_primes_are_those_that_have_roots_of_the_polynomial():
    assert list(PRIMES) == sorted(PRIMES, reverse=True)
    for prime in PRIMES:
        assert prime < 2**24
        assert prime % (2 * DEGREE) == 1
        assert flint.fmpz(prime).is_prime()


@pytest.mark.parametrize("extreme", [False, True])
def test_products_with_a_ternary_polynomial_are_exact(extreme):
    rng = np.random.default_rng(0)
    left = residues(rng, primes=len(PRIMES))
    if extreme:  # digits and coefficients of the largest size, all of one sign
        left[:] = np.array([[(p - 1) // 2] for p in PRIMES])
    small = np.ones(DEGREE, np.int64) if extreme else rng.integers(-1, 2, DEGREE)
    found = times(prepared(left), small)
    for number, prime in enumerate(PRIMES):
        assert (found[number] == exact(left[number], small, prime)).all()


@pytest.mark.parametrize("extreme", [False, True])
def test_products_of_two_polynomials_modulo_q_are_exact(extreme):
    rng = np.random.default_rng(6)
    left, right = residues(rng, primes=9), residues(rng, primes=9)
    if extreme:
        left[:] = right[:] = np.array([[(p - 1) // 2] for p in PRIMES])
    found = ring.product(prepared(left), prepared(right))
    for number, prime in enumerate(PRIMES):
        assert (found[number] == exact(left[number], right[number], prime)).all()


@pytest.mark.parametrize(("norm", "parts", "workers"), [(LARGEST, 1, 1), (LARGEST, 1, 2), (2**40, 2, 2)])
def test_sums_of_products_with_clipped_vectors_are_exact(norm, parts, workers):
    rng = np.random.default_rng(1)
    ciphertexts, contributions = residues(rng, 9, 2), clipped(rng, 9, 3, norm)
    sums = SumOfProducts(2, 2, 3, norm, parts, workers)
    for some in (slice(0, 5), slice(5, 9)):
        sums.add(sums.prepared(ciphertexts[some]), ciphertexts[some], contributions[some])
    for block in range(3):
        found = sums.block(block)
        for row in range(2):
            for number in range(2):
                assert (found[row, number] == expected(ciphertexts, contributions, row, number, block)).all()


def test_long_vectors_of_many_people_are_cut_in_two():
    assert parts_for(2**27, 1000) == 1
    assert parts_for(2**27, 10_000_000) == 2
    assert parts_for(2**40, 1) == 2


def test_many_contributions_to_one_ciphertext_are_cut_before_errors_add_up():
    """Subjects who share a slot share its ciphertext: errors of their products may all point the same way."""
    rng, members = np.random.default_rng(6), 2048
    ciphertexts = np.repeat(residues(rng, 1, 1, primes=1), 32, axis=0)
    contributions = np.repeat(clipped(rng, 1, 1), 32, axis=0)

    def total(parts: int) -> np.ndarray:
        sums = SumOfProducts(1, 1, 1, LARGEST, parts)
        spectrum = sums.prepared(ciphertexts)
        for _ in range(members // 32):
            sums.add(spectrum, ciphertexts, contributions)
        return sums.block(0)[0, 0]

    with pytest.raises(Inexact):
        total(1)
    together = exact(ciphertexts[0, 0, 0], members * contributions[0, 0], PRIMES[0])
    assert (total(parts_for(LARGEST, members**2)) == together).all()


def test_the_value_at_a_root_of_a_product_is_the_product_of_values():
    rng = np.random.default_rng(2)
    left, right = residues(rng, primes=1)[0], rng.integers(-(2**40), 2**40, DEGREE)
    for power in (1, 5, 2 * DEGREE - 1):
        point = RootValues(0, power)
        both = point.value(left) * point.value(right) % PRIMES[0]
        assert point.value(exact(left, right, PRIMES[0])) == both


def test_one_wrong_number_in_a_sum_is_found():
    rng = np.random.default_rng(3)
    ciphertexts, contributions = residues(rng, 4, 2), clipped(rng, 4, 2)
    sums = SumOfProducts(2, 2, 2, LARGEST)
    sums.add(sums.prepared(ciphertexts), ciphertexts, contributions)
    wrong = np.zeros(DEGREE)
    wrong[17] = 1.0  # exactly one step, as a wrong rounding would be
    number = sums._point.number
    sums._chunks[0].sums[:, 2 * number, 1] += ring.spectra(wrong)  # row 0, this prime, low digit
    sums.block(0)
    with pytest.raises(Inexact):
        sums.block(1)


def test_a_sum_that_is_far_from_an_integer_is_refused():
    rng = np.random.default_rng(4)
    ciphertexts, contributions = residues(rng, 2, 2), clipped(rng, 2, 1)
    sums = SumOfProducts(2, 2, 1, LARGEST)
    sums.add(sums.prepared(ciphertexts), ciphertexts, contributions)
    sums._chunks[0].sums[5, 0, 0] += 0.3 * DEGREE
    with pytest.raises(Inexact):
        sums.block(0)


@pytest.mark.slow
def test_a_billion_products_are_equal_to_those_of_flint():
    """30 people, 2 rows and 9 primes in 4 blocks of 8192 numbers, 60 times, of the largest norm: 10^9 numbers."""
    rng, compared, people = np.random.default_rng(5), 0, 30
    for turn in range(57):
        ciphertexts = residues(rng, people, 2, primes=9)
        if turn % 2:  # all residues of the largest magnitude
            ciphertexts[:] = np.where(rng.random(ciphertexts.shape) < 0.5, 0, 1) + np.array([[p // 2] for p in PRIMES])
        contributions = clipped(rng, people, 4)
        sums = SumOfProducts(2, 9, 4, LARGEST, 1, 2)
        sums.add(sums.prepared(ciphertexts), ciphertexts, contributions)
        found = np.stack([sums.block(block) for block in range(4)])
        for block in range(4):
            for row in range(2):
                for number in range(9):
                    again = expected(ciphertexts, contributions, row, number, block)
                    assert (found[block, row, number] == again).all()
        compared += people * contributions.shape[1] * DEGREE * 18
    assert compared > 10**9
