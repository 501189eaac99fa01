from __future__ import annotations

import pickle
from dataclasses import replace
from math import gcd, prod

import numpy as np
import pytest
from gmpy2 import mpz
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.crypto import Context, MaskStream, Refused, Secret
from tacit.crypto.crypto_errors import Misused
from tacit.families.weighting.blinding import Blinding
from tacit.families.weighting.modular_powers import (
    WIDEST,
    inverses,
    power_tables,
    products_of_packed_powers,
    signed_digits,
)
from tacit.families.weighting.paillier import (
    PublicKey,
    SecretKey,
    WeakKeyWarning,
    _random_primes,
    insecure_key_for_tests,
    residues,
    units,
)
from tests.refusals import refuses

KEY = insecure_key_for_tests(256)
N = int(KEY.public.n)
BLINDING = Blinding(N, window=4)
HERE = Context("weighted", "run-1", 3, "north", "south", "masks")

# bits of a slot for any int64 of its own
ALONE = 64 + WIDEST

signed = st.integers(-(N // 2), N // 2)
edges = st.sampled_from([0, 1, -1, N // 2, -(N // 2), N // 2 - 1])
contents = st.one_of(signed, edges)
anything = st.integers(-(2**300), 2**300)


def centred(value: int) -> int:
    """The residue of ``value`` modulo N with the smallest magnitude."""
    return (value + N // 2) % N - N // 2


@pytest.fixture(scope="module")
def real() -> SecretKey:
    return SecretKey.generate()


@given(contents)
def test_signed_integers_survive_encoding(value):
    assert KEY.public.decode(KEY.public.encode(value)) == value


@pytest.mark.parametrize("beyond", [N // 2 + 1, -(N // 2) - 1, N, 2**300], ids=["half", "minus half", "n", "far"])
def test_what_does_not_fit_is_refused_without_being_shown(beyond):
    with refuses("out-of-range", "value", Misused) as refusal:
        KEY.public.encrypt([beyond])
    assert str(abs(beyond)) not in str(refusal.value)


@given(st.lists(contents, max_size=3))
def test_every_way_to_encrypt_decrypts_to_the_content(values):
    assert KEY.decrypt(KEY.public.encrypt(values)) == values
    assert KEY.decrypt(KEY.encrypt(values)) == values
    assert KEY.decrypt(KEY.encrypt(values, workers=2), workers=2) == values


@given(contents, contents, anything)
def test_sums_and_products_are_those_modulo_n(a, b, k):
    one, two = KEY.encrypt([a]), KEY.encrypt([b])
    assert KEY.decrypt(one.add(two)) == [centred(a + b)]
    assert KEY.decrypt(one.add_plain([k])) == [centred(a + k)]
    assert KEY.decrypt(one.multiply([k])) == [centred(a * k)]
    assert KEY.decrypt(one.multiply([-k], workers=2)) == [centred(-a * k)]


def test_operations_leave_their_inputs_as_they_are():
    before = KEY.encrypt([5, 6])
    values = list(before)
    before.add(before), before.multiply([2, 3]), before.rerandomised(BLINDING)
    assert list(before) == values


@settings(deadline=None)
@given(st.data(), st.integers(0, 4), st.integers(0, 4), st.sampled_from([1, 8, 36, 62]))
def test_weighted_sums_are_matrix_products(data, outputs, people, bits):
    numbers = data.draw(st.lists(contents, min_size=people, max_size=people))
    row = st.lists(st.integers(-(2**bits), 2**bits), min_size=people, max_size=people)
    weights = data.draw(st.lists(row, min_size=outputs, max_size=outputs))
    encrypted = KEY.encrypt(numbers)
    expected = [centred(sum(w * x for w, x in zip(r, numbers, strict=True))) for r in weights]
    matrix = np.array(weights, dtype=np.int64).reshape(outputs, people)
    assert KEY.decrypt(encrypted.packed_sums(matrix, 1, ALONE)) == expected


@pytest.mark.parametrize("outputs", [1, 5, 100])
@pytest.mark.parametrize("bits", [0, 1, 8, 28, 62])
def test_products_of_powers_are_plain_powers_multiplied(outputs, bits):
    rng = np.random.default_rng(bits)
    n = (2**61 - 1) * (2**31 - 1)
    bases = [mpz(int(b)) ** 3 for b in rng.integers(2, 2**60, 3)]
    edge = [2**bits, -(2**bits), 2**bits - 1, 1 - 2**bits, 0, 1 << max(0, bits - 1)]
    exponents = [[edge[int(i)] for i in rng.integers(0, len(edge), 3)] for _ in range(outputs)]
    expected = [prod(pow(int(b), e, n * n) for b, e in zip(bases, row, strict=True)) % n**2 for row in exponents]
    assert products_of_packed_powers(bases, np.array(exponents), 1, ALONE, mpz(n)) == expected


@pytest.mark.parametrize("window", range(2, 15))
@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=2, max_size=2))
@settings(max_examples=20)
def test_signed_digits_make_up_the_exponent_and_are_small(window, exponents):
    digits = signed_digits(np.array([exponents]), window, 64)
    assert int(np.abs(digits).max(initial=0)) <= 2 ** (window - 1)
    totals = [sum(int(d) << (window * i) for i, d in enumerate(digits[:, 0, base])) for base in range(2)]
    assert totals == exponents


@pytest.mark.parametrize("window", [2, 5])
def test_tables_hold_the_powers_of_their_base(window):
    n, base = mpz(N), KEY.encrypt([7]).values[0]
    for place, (parts, tilts) in enumerate(power_tables(base, window, range(3), n)):
        assert len(parts) == len(tilts) == 2 ** (window - 1) + 1
        for j, (part, tilt) in enumerate(zip(parts, tilts, strict=True)):
            assert part < n
            assert part * (1 + tilt * n) % n**2 == pow(base, j << (window * place), n**2)


def test_several_numbers_packed_into_one_exponent_come_out_apart():
    slot, people = 60, 4
    weights = np.random.default_rng(5).integers(-(2**30), 2**30, (3, 2, people))  # [packed, outputs, people]
    packed = weights.swapaxes(0, 1).reshape(-1, people)
    numbers = [5, -6, 7, 11]
    for output, total in enumerate(KEY.decrypt(KEY.encrypt(numbers).packed_sums(packed, 3, slot))):
        for expected in (weights[:, output] @ numbers).tolist():
            low = (total + 2 ** (slot - 1)) % 2**slot - 2 ** (slot - 1)
            assert low == expected
            total = (total - low) >> slot
        assert total == 0


def test_the_lowest_int64_is_an_exponent_like_others():
    lowest = np.array([[-(2**63)]], dtype=np.int64)
    assert products_of_packed_powers([mpz(3)], lowest, 1, ALONE, mpz(35)) == [pow(3, -(2**63), 35**2)]
    for wrong in (np.zeros((2, 2), dtype=np.int64), np.array([[0.5]])):
        with refuses("wrong-length", "numbers", Misused):
            products_of_packed_powers([mpz(3)], wrong, 1, ALONE, mpz(35))


@given(st.lists(st.integers(1, 10**6), max_size=6))
def test_many_inverses_at_once(values):
    modulus = mpz(2**61 - 1)
    assert [a * b % modulus for a, b in zip(values, inverses([mpz(v) for v in values], modulus), strict=True)] == (
        [1] * len(values)
    )


def test_equal_contents_have_different_ciphertexts():
    encrypted = list(KEY.public.encrypt([7] * 20)) + list(KEY.encrypt([7] * 20))
    encrypted += list(KEY.encrypt([7] * 20).rerandomised(BLINDING))
    assert len(set(encrypted)) == 60


def randomness(ciphertext: int, content: int) -> int:
    """What the owner of the key can read besides the content: rho of (1 + m n) rho^n."""
    power = ciphertext * (1 - content * N) % N  # rho^n mod n
    p, q = (int(half.prime) for half in KEY.factors)
    return pow(power, pow(N, -1, (p - 1) * (q - 1)), N)


def test_rerandomising_replaces_what_the_owner_of_the_key_can_read():
    encrypted = KEY.encrypt([3, 4])
    r = [randomness(int(c), m) for c, m in zip(encrypted, (3, 4), strict=True)]
    # leak B of the published protocol: the randomness of a weighted sum is a function of the weights
    total = encrypted.packed_sums(np.array([[5, -2]]), 1, ALONE)
    assert randomness(int(total.values[0]), 7) == pow(r[0], 5, N) * pow(r[1], -2, N) % N
    fresh = [total.rerandomised(BLINDING) for _ in range(20)]
    assert all(KEY.decrypt(one) == [7] for one in fresh)
    seen = {randomness(int(one.values[0]), 7) for one in fresh}
    assert len(seen) == 20
    assert randomness(int(total.values[0]), 7) not in seen


@pytest.mark.parametrize("primes", [(11, 17), (7, 31)])
def test_blinding_is_uniform_over_the_whole_group(primes):
    # Every element of Z_n^* is an n-th power here. 187 = 11 * 17 has 160 of them; 217 = 7 * 31 has 180, and as both
    # factors have elements of orders 2 and 3, a single base generates at most a sixth of them. A chi-square of 179
    # degrees of freedom exceeds 288 with probability below 1e-6 (a pool that generates too little: 2^-61)
    n = prod(primes)
    order = prod(p - 1 for p in primes)
    draws = Blinding(n).draw(20 * order)
    counts = np.bincount([int(draw) % n for draw in draws], minlength=n)
    units = np.array([gcd(i, n) == 1 for i in range(n)])
    assert counts[~units].sum() == 0
    assert ((counts[units] - 20.0) ** 2 / 20).sum() < 288
    assert all(pow(int(draw), order, n * n) == 1 for draw in draws[:50])


def test_pairwise_masks_leave_the_sum_and_nothing_else():
    silos = ["east", "north", "south"]
    contents = {silo: [10 * i, -i] for i, silo in enumerate(silos, 1)}

    def pair(one: str, other: str) -> MaskStream:
        key = Secret((one + other).encode().ljust(32))
        return MaskStream(key, replace(HERE, sender=one, recipient=other))

    uploads = []
    for place, silo in enumerate(silos):
        plus = [pair(silo, other) for other in silos[place + 1 :]]
        minus = [pair(other, silo) for other in silos[:place]]
        upload = KEY.encrypt(contents[silo]).masked(plus, minus)
        assert KEY.decrypt(upload) != contents[silo]
        uploads.append(upload)
    total = uploads[0].add(uploads[1]).add(uploads[2])
    assert KEY.decrypt(total) == [60, -6]
    assert KEY.decrypt(uploads[0].add(uploads[1])) != [30, -3]


def test_the_primitives_carry_the_private_weighting_of_paper_002():
    """Protocol 1 with its repairs: sums weighted by n_su / (1 + N_u), which no one learns, from two silos."""
    rng = np.random.default_rng(2)
    records = rng.integers(0, 4, (2, 5))  # [silos, people]; somebody may be absent
    updates = rng.integers(-(2**20), 2**20, (2, 3, 5))  # [silos, parameters, people], integers on the grid
    shared, lcm = Secret.random(), 2520  # N_max = 10

    def stream(purpose: str) -> MaskStream:
        return MaskStream(shared, replace(HERE, purpose=purpose))

    # set-up: the server sees blinded, masked counts and inverts them
    blinds = units(stream("blinds"), N, 5)
    counts = records + np.array([[1], [0]])  # the phantom record
    masks = residues(stream("count masks"), N, 5)
    seen = [[(int(c) * r + sign * m) % N for c, r, m in zip(counts[s], blinds, masks, strict=True)]
            for s, sign in enumerate((1, -1))]  # fmt: skip
    weights = KEY.encrypt([KEY.public.decode(pow(int(a + b) % N, -1, N)) for a, b in zip(*seen, strict=True)])
    # a round: each silo raises once per person, sums, masks; one of them re-randomises
    uploads = []
    for silo in range(2):
        raised = weights.multiply([int(n) * int(r) * lcm for n, r in zip(records[silo], blinds, strict=True)])
        sums = raised.packed_sums(updates[silo], 1, ALONE).add_plain([silo, 0, 0])
        pair = [stream("round")]
        uploads.append(sums.rerandomised(BLINDING).masked(pair if silo else [], [] if silo else pair))
    total = KEY.decrypt(uploads[0].add(uploads[1]))
    exact = (updates * (records / (1 + records.sum(axis=0)))[:, np.newaxis, :]).sum(axis=(0, 2)) * lcm + [1, 0, 0]
    assert np.allclose(total, exact, rtol=0, atol=1e-3)


def test_ciphertexts_and_keys_come_back_from_their_bytes():
    encrypted = KEY.encrypt([1, -2, 3])
    public = PublicKey.from_bytes(KEY.public.to_bytes(), insecure_for_tests=True)
    assert public == KEY.public
    read = public.ciphertexts(encrypted.to_bytes())
    assert len(encrypted.to_bytes()) == 3 * 64
    assert KEY.decrypt(read) == [1, -2, 3]
    assert len(public.ciphertexts(b"")) == 0
    assert KEY.decrypt(pickle.loads(pickle.dumps(encrypted))) == [1, -2, 3]


def test_bytes_that_are_no_ciphertext_are_refused_and_the_peer_named():
    good = KEY.encrypt([1]).to_bytes()
    p = int(KEY.factors[0].prime)
    wrong = [good[:-1], good + b"x", bytes(64), b"\xff" * 64]
    wrong += [value.to_bytes(64, "big") for value in (N * N, N, p, 5 * p, N * N - N)]
    for data in wrong:
        with refuses("out-of-range" if len(data) == 64 else "wrong-length", kind=Refused, peer="north"):
            KEY.public.ciphertexts(data, peer="north")
        if len(data) == 64:
            with refuses("out-of-range", kind=Refused, peer="north"):
                KEY.public.ciphertexts(good + data + good, peer="north")


def test_bytes_that_are_no_key_are_refused():
    data = KEY.public.to_bytes()
    padded = data[:16] + b"\x00" + data[16:]
    malformed = (b"", data[:10], b"x" + data, padded)
    for wrong in (*malformed, data[:-1] + b"\x00"):
        with refuses("malformed" if wrong in malformed else "bad-key", kind=Refused, peer="server"):
            PublicKey.from_bytes(wrong, insecure_for_tests=True, peer="server")
    prime = int(KEY.factors[0].prime)
    for n in (prime, prime**2, 3 * N, 0, 1):
        with pytest.raises(Refused):
            PublicKey(n, insecure_for_tests=True)


def test_short_keys_are_refused_and_2048_bits_warn():
    for bits in (512, 1024, 2046):
        with refuses("bad-key", kind=Refused):
            SecretKey.generate(bits)
    with refuses("bad-key", kind=Refused, peer="server"):
        PublicKey.from_bytes(KEY.public.to_bytes(), peer="server")
    with pytest.raises(Refused):
        SecretKey(*(half.prime for half in KEY.factors))
    with pytest.warns(WeakKeyWarning):
        PublicKey(prod(_random_primes(2048)))
    for bits in (63, 65, 32):
        with refuses("out-of-range", "bits", Misused):
            insecure_key_for_tests(bits)


def test_factors_that_make_no_key_are_refused():
    p, q = (half.prime for half in KEY.factors)
    for one, two in ((p, p), (p, q + 2 if (q + 2) % 3 == 0 else q + 4), (N, q)):
        with refuses("duplicate", "primes", Misused):
            SecretKey(one, two, insecure_for_tests=True)
    with refuses("mismatch", "primes", Misused):
        SecretKey(1009, 10091, insecure_for_tests=True)  # 10091 = 10 * 1009 + 1


def test_keys_do_not_mix():
    other = insecure_key_for_tests(256)
    with refuses("mismatch", "key", Misused):
        KEY.encrypt([1]).add(other.encrypt([1]))
    with refuses("mismatch", "key", Misused):
        other.decrypt(KEY.encrypt([1]))
    stranger = other.public.ciphertexts(
        b"".join(int(c % other.public.modulus).to_bytes(64, "big") for c in KEY.encrypt([1]))
    )
    assert other.decrypt(stranger) != [1]
    with refuses("wrong-length", "numbers", Misused):
        KEY.encrypt([1]).multiply([1, 2])


def test_windows_of_impossible_width_are_refused():
    for window in (1, 15):
        with refuses("out-of-range", "window", Misused):
            Blinding(187, window)


def test_the_default_key_has_3072_bits_and_works_at_its_edges(real):
    assert real.public.bits == 3072
    largest = (int(real.public.n) - 1) // 2
    values = [largest, -largest, 0]
    encrypted = real.encrypt(values)
    assert real.decrypt(encrypted) == values
    assert real.decrypt(encrypted.add_plain([1, -1, -5])) == [-largest, largest, -5]
    p, q = (half.prime for half in real.factors)
    assert p.bit_length() == q.bit_length() == 1536
    assert str(p) not in repr(real)


def test_packed_sums_are_the_weighted_sums_side_by_side():
    rng = np.random.default_rng(4)
    numbers, width = rng.integers(-(2**20), 2**20, (6, 5)), 60
    contents = [int(value) for value in rng.integers(-(2**30), 2**30, 5)]
    encrypted = KEY.encrypt(contents)
    expected = numbers @ np.array(contents)
    for slots in (1, 2, 3):
        packed = encrypted.packed_sums(numbers, slots, width)
        rows = expected.reshape(-1, slots).tolist()
        assert KEY.decrypt(packed) == [sum(value << (width * k) for k, value in enumerate(row)) for row in rows]
    for slots, wrong in ((4, width), (0, width), (2, 20)):
        with refuses("mismatch", "slots", Misused):
            encrypted.packed_sums(numbers, slots, wrong)


def test_processes_share_the_work_and_give_the_same():
    rng = np.random.default_rng(5)
    numbers = rng.integers(-100, 100, (2000, 21))
    encrypted = KEY.encrypt(range(21))
    assert list(encrypted.packed_sums(numbers, 2, 40, workers=2)) == list(encrypted.packed_sums(numbers, 2, 40))
