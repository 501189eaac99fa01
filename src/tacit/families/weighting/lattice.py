"""Encryption from ring-LWE for weighted sums: parameters with their proofs, keys, ciphertexts.

A ciphertext of message m under the secret s (ternary) is (c0, c1) in R_q^2 with c0 + c1 s = scale m + e. Silos multiply
ciphertexts of weights by integer polynomials and add them up; no two ciphertexts are ever multiplied.

What a silo sends in a round hides how it was computed from the owner of the key, too:

- A fresh encryption of zero under the public key makes c1 pseudo-random.
- *Flooding*, uniform numbers in [-2^flood, 2^flood) added to c0, hides the noise, which depends on contributions and
  counts. Its l1 norm over the whole message is at most 2^(flood + 1 - STATISTICAL), so what the owner of the key sees
  of one silo is within 2^-STATISTICAL of something that depends on the message alone.
- Before sending, ciphertexts are divided by the last primes (*switching*). The scale of messages is a multiple of these
  primes, so that a change of messages between silos commutes with the division exactly.

No sum is ever decrypted wrongly: all bounds are those of the worst case. So a decrypted sum is a function of messages
alone, and IND-CPA gives IND-CPA-D (Li, Micciancio 2021).

Security: HomomorphicEncryption.org's standard tables allow log2 q <= 218 for N = 8192 and a ternary secret, 128 bits
against classical attacks. Nine primes have 216 bits.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tacit.crypto import Context, MaskStream, Secret
from tacit.families.weighting.ring import (
    DEGREE,
    PRIMES,
    Integers,
    Residues,
    joined,
    polynomials,
    prepared,
    spectra,
    times,
)

# what the owner of the key sees of one message is within 2^-54 of ideal: within 2^-40 over 2^14 messages of a run
STATISTICAL = 54
# bits of weights; f(N) = 1 is the integer 2^24
WEIGHT_BITS = 24
# the most records of a subject in all silos: exponents of X below DEGREE tell them apart
MOST_RECORDS = DEGREE - 1
# errors are centred binomials of 2 x 21 coins
_COINS = 21
# the spectrum of no error of a weight's ciphertext is larger: 11 standard deviations of 3.24 sqrt(DEGREE). An error
# beyond has probability below 2^-73, and is drawn again
ERROR_SPECTRUM = 11 * math.sqrt(_COINS / 2 * DEGREE)
# the same of ternary polynomials
TERNARY_SPECTRUM = 11 * math.sqrt(2 / 3 * DEGREE)
# setup: one coefficient, blinded by this many bits more than a weight has
BLIND_BITS = WEIGHT_BITS + STATISTICAL
_LEAST_PRIMES, _MAX_BITS = 7, 218


@dataclass(frozen=True)
class Lattice:
    """The public numbers of an encryption.

    primes        how many primes make up q
    kept          how many of them are left after switching
    scale_bits    a message's scale after switching is 2^scale_bits; before, times the primes that are dropped
    flood_bits    flooding is uniform in [-2^flood_bits, 2^flood_bits)
    setup_bits    the same of the one number that setup opens; its scale is 2^setup_scale_bits
    opening_bits  the same of a silo's part in opening a sum; None where the server opens it alone
    """

    primes: int
    kept: int
    scale_bits: int
    flood_bits: int
    setup_bits: int
    setup_scale_bits: int
    opening_bits: int | None = None

    @property
    def dropped(self) -> int:
        return math.prod(PRIMES[self.kept : self.primes])

    @property
    def number_bytes(self) -> int:
        """Bytes that a silo sends for one number."""
        return 2 * 3 * self.kept

    @property
    def ciphertext_bytes(self) -> int:
        """Bytes of c0 of a ciphertext; c1 is a seed."""
        return 3 * self.primes * DEGREE


def setup_bytes(primes: int, joint: bool) -> int:
    """Bytes that setup sends to a silo for each slot: a seed and c0; with a joint key, both components of a table and
    of a weight, and c1 of what is opened."""
    return (5 if joint else 1) * 3 * primes * DEGREE + 32


@dataclass(frozen=True)
class Load:
    """What a sum asks of an encryption, all public.

    people   slots for subjects
    records  the most records of a slot in one silo
    silos    how many silos there are
    blocks   of DEGREE numbers in a message
    entry    the largest l2 norm of a contribution, in steps of the grid
    reach    the largest noise in the sum, in steps of grid / 2^WEIGHT_BITS
    joint    whether the key is the sum of one of the server and one of each silo
    """

    people: int
    records: int
    silos: int
    blocks: int
    entry: int
    reach: int
    joint: bool = False

    @property
    def keys(self) -> int:
        """How many ternary polynomials the secret is the sum of."""
        return self.silos + 1 if self.joint else 1

    @property
    def spectrum(self) -> int:
        """The largest value at a root of X^N + 1 of the error of a weight's ciphertext: a fresh error, or that of the
        sum of every silo's e_pk v + e_0 + e_1 s."""
        error, ternary = math.ceil(ERROR_SPECTRUM), math.ceil(TERNARY_SPECTRUM)
        return self.silos * error * (2 * self.keys * ternary + 1) if self.joint else error

    @property
    def noise(self) -> int:
        """l2 norm of sum_u n_u e_u D_u over a whole message. For a polynomial D, |e D|_2 <= max |e(root)| |D|_2."""
        return self.people * self.records * self.spectrum * self.entry

    @property
    def zero(self) -> int:
        """|e_pk v + e_0 + e_1 s| of an encryption of zero, each number."""
        return _COINS * (2 * self.keys * DEGREE + 1)

    @property
    def switching(self) -> int:
        """Rounding of one silo's message when primes are dropped, each number: (1 + |s|_1) / 2 for the last prime, and
        less than 2^-22 of that for the others."""
        return math.ceil((self.keys * DEGREE + 1) / 2 * (1 + 2.0**-22))

    @property
    def numbers(self) -> int:
        return self.blocks * DEGREE

    @property
    def flood_bits(self) -> int:
        """2^flood_bits >= 2^(STATISTICAL - 1) |noise|_1; the encryption of zero is hidden with it. With a joint key one
        silo's flooding hides the noise of all: what is opened is their sum."""
        shift = (math.isqrt(self.numbers) + 1) * self.noise + self.numbers * self.zero
        return STATISTICAL - 1 + (shift * (self.silos if self.joint else 1)).bit_length()

    @property
    def setup_bits(self) -> int:
        return STATISTICAL - 1 + ((self.silos if self.joint else 1) * self.zero + _COINS).bit_length()

    @property
    def setup_scale_bits(self) -> int:
        """Above twice what all have added to the number that setup opens."""
        return self.setup_bits + 2 + (self.silos.bit_length() if self.joint else 0)

    @property
    def opening_bits(self) -> int | None:
        """A joint key: rounding of all silos times s is opened, and hidden over the whole message."""
        return STATISTICAL - 1 + (self.numbers * self.silos * self.switching).bit_length() if self.joint else None

    @property
    def largest(self) -> int:
        """No sum is larger, in steps of grid / 2^WEIGHT_BITS: the weights of a slot sum to at most 2^WEIGHT_BITS."""
        return self.people * self.entry * 2**WEIGHT_BITS + self.reach


def fitting(load: Load) -> Lattice | None:
    """The encryption with the fewest primes that never decrypts a sum of this load wrongly; None where none does."""
    error = load.silos * ((1 << load.flood_bits) + load.noise + load.zero)
    opening = 0 if load.opening_bits is None else load.silos << load.opening_bits
    blinds = (load.silos if load.joint else 1) << (BLIND_BITS + 1)
    for primes in range(_LEAST_PRIMES, len(PRIMES) + 1):
        if 2 * (blinds << load.setup_scale_bits) >= math.prod(PRIMES[:primes]):
            continue
        for kept in range(1, primes):
            dropped, modulus = math.prod(PRIMES[kept:primes]), math.prod(PRIMES[:kept])
            after = error // dropped + 1 + load.silos * load.switching + opening
            scale_bits = (2 * after).bit_length()  # 2^scale_bits > 2 after
            if 2 * (load.largest << scale_bits) + (1 << scale_bits) < modulus:
                assert math.prod(PRIMES[:primes]).bit_length() <= _MAX_BITS
                setup = load.setup_bits, load.setup_scale_bits
                return Lattice(primes, kept, scale_bits, load.flood_bits, *setup, load.opening_bits)
    return None


# -- randomness --------------------------------------------------------------------------------------------------------


def uniform(stream: MaskStream, primes: int, count: int) -> Residues:
    """Exactly uniform residues ``[primes, count]`` from a stream: 24 bits at a time, those beyond a prime left out."""
    found = np.empty((primes, count), np.uint32)
    for row, prime in zip(found, PRIMES, strict=False):
        filled = 0
        while filled < count:
            missing = count - filled
            words = np.frombuffer(stream.take(4 * (missing + missing // 12 + 64)), "<u4") >> 8
            good = words[words < prime][:missing]
            row[filled : filled + len(good)] = good
            filled += len(good)
    return found


def ternary(count: int) -> Integers:
    """Uniform in {-1, 0, 1}."""
    found = np.zeros(0, np.int64)
    while len(found) < count:
        drawn = np.frombuffer(secrets.token_bytes(count + 256), np.uint8)
        found = np.concatenate([found, drawn[drawn < 255].astype(np.int64) % 3 - 1])
    return found[:count]


def errors(*shape: int) -> Integers:
    """Centred binomials of 2 x 21 coins: standard deviation 3.24, at most 21."""
    words = np.frombuffer(secrets.token_bytes(8 * math.prod(shape)), "<u8").reshape(shape)
    coins = np.uint64((1 << _COINS) - 1)
    heads, tails = np.bitwise_count(words & coins), np.bitwise_count(words >> np.uint64(_COINS) & coins)
    return np.asarray(heads.astype(np.int64) - tails)


def short_errors() -> Integers:
    """Errors ``[1, DEGREE]`` whose spectrum is within ``ERROR_SPECTRUM``."""
    drawn = errors(1, DEGREE)
    return drawn if np.abs(spectra(drawn)).max() <= ERROR_SPECTRUM else short_errors()


def short_ternary() -> Integers:
    """A ternary polynomial whose spectrum is within ``TERNARY_SPECTRUM``."""
    drawn = ternary(DEGREE)
    return drawn if np.abs(spectra(drawn)).max() <= TERNARY_SPECTRUM else short_ternary()


def lagrange(holder: int, holders: Sequence[int], primes: int) -> Integers:
    """What a holder's share counts for in the secret, modulo each prime, where ``holders`` give it."""
    found = []
    for prime in PRIMES[:primes]:
        above = math.prod(other for other in holders if other != holder)
        below = math.prod(other - holder for other in holders if other != holder)
        found.append(above * pow(below, -1, prime) % prime)
    return np.array(found, np.int64)


def flooding(bits: int, primes: int, count: int) -> Residues:
    """Residues ``[primes, count]`` of numbers that are uniform in [-2^bits, 2^bits)."""
    limbs = -(-(bits + 1) // 24)
    raw = np.frombuffer(secrets.token_bytes(4 * limbs * count), "<u4").reshape(limbs, count) >> np.uint32(8)
    top = bits + 1 - 24 * (limbs - 1)
    numbers = raw.astype(np.float64)
    numbers[-1] = raw[-1] >> np.uint32(24 - top)
    # limbs of 24 bits times residues of 24 bits: sums of fewer than 32 products are exact
    powers = np.array([[pow(2, 24 * k, p) for k in range(limbs)] for p in PRIMES[:primes]], np.float64)
    offset = np.array([[(1 << bits) % p] for p in PRIMES[:primes]], np.int64)
    return modulo((powers @ numbers).astype(np.int64) - offset)


def modulo(integers: Integers) -> Residues:
    """``[..., primes, count]`` modulo the prime of each row."""
    return np.asarray(integers % column(integers.shape[-2]), np.uint32)


def column(primes: int) -> Integers:
    return np.array(PRIMES[:primes], np.int64)[:, np.newaxis]


def residues_of(number: int, primes: int) -> Integers:
    """A number of any length modulo each prime, ``[primes]``."""
    return np.array([number % p for p in PRIMES[:primes]], np.int64)


def turned(polynomial: Residues, power: int) -> Residues:
    """``[..., primes, DEGREE]`` times X^power, power from 0 to 2 DEGREE - 1."""
    sign, shift = divmod(power, DEGREE)
    primes = column(polynomial.shape[-2])
    signed = polynomial.astype(np.int64) if sign == 0 else -polynomial.astype(np.int64)
    moved = np.roll(signed, shift, axis=-1)
    moved[..., :shift] *= -1
    return np.asarray(moved % primes, np.uint32)


# -- keys --------------------------------------------------------------------------------------------------------------


class RingPublicKey:
    """(-a s + e, a): silos make encryptions of zero with it."""

    def __init__(self, rows: Residues) -> None:
        self._spectrum = prepared(rows)  # of [2, primes, DEGREE]

    def zero(self) -> Integers:
        """A fresh encryption of zero, ``[2, primes, DEGREE]``."""
        return times(self._spectrum, short_ternary()).astype(np.int64) + np.stack([short_errors(), short_errors()])


class RingSecretKey:
    """The key of a run. It is never written to a file."""

    def __init__(self, lattice: Lattice) -> None:
        self.lattice = lattice
        self._secret = short_ternary()
        self._spectrum = spectra(self._secret)

    def encrypted(self, mask: Residues, message: Integers) -> Residues:
        """c0 ``[primes, DEGREE]`` of the ciphertext with this c1 and scaled message (residues)."""
        return modulo(message + short_errors() - self._times_secret(mask).astype(np.int64))

    def phase(self, c0: Residues, c1: Residues) -> Residues:
        """c0 + c1 s, ``[..., primes, DEGREE]``: scaled message and noise."""
        return modulo(c0.astype(np.int64) + self._times_secret(c1))

    def constant(self, c0: Integers, c1: Residues) -> Integers:
        """Residues ``[people, primes]`` of the number at X^0 of c0 + c1 s, for c0 ``[people, primes]`` (that number
        alone) and c1 ``[people, primes, DEGREE]``."""
        at_zero = np.concatenate([self._secret[:1], -self._secret[:0:-1]])
        return np.asarray((c0 + c1.astype(np.int64) @ at_zero) % column(c1.shape[1])[:, 0])

    def shares(self, threshold: int, holders: Sequence[int]) -> dict[int, Residues]:
        """Shamir's shares of s over R_q for these holders: any ``threshold`` of them give it, fewer say nothing."""
        primes = self.lattice.primes
        stream = MaskStream(Secret.random(), Context("tacit-shares", "run", 0, "silo", "silo", "shares"))
        found = {holder: np.broadcast_to(self._secret % column(primes), (primes, DEGREE)) for holder in holders}
        for power in range(1, threshold):
            random = uniform(stream, primes, DEGREE).astype(np.int64)
            found = {j: (share + random * residues_of(j**power, primes)[:, np.newaxis]) % column(primes)
                     for j, share in found.items()}  # fmt: skip
        return {holder: np.asarray(share, np.uint32) for holder, share in found.items()}

    def _times_secret(self, residues: Residues) -> Residues:
        values = prepared(residues)
        values *= self._spectrum
        return joined(polynomials(values))


def signed(residues: npt.NDArray[np.int64]) -> list[int]:
    """Integers between -q / 2 and q / 2 from their residues ``[..., primes]``; by Garner's mixed radix."""
    primes = PRIMES[: residues.shape[-1]]
    places: list[Integers] = []
    for number, prime in enumerate(primes):
        rest, radix = residues[..., number].copy(), 1
        for place, smaller in zip(places, primes, strict=False):
            rest = (rest - place * radix) % prime
            radix = radix * smaller % prime
        places.append(rest * pow(radix, -1, prime) % prime)
    modulus = math.prod(primes)
    total = np.zeros(residues.shape[:-1], object)
    for place, prime in zip(reversed(places), reversed(primes), strict=True):
        total = total * prime + place
    return [int(value) - modulus if 2 * int(value) > modulus else int(value) for value in total.ravel()]


def switched(residues: Residues, kept: int) -> Integers:
    """``[..., primes, DEGREE]`` divided by the last primes and rounded: ``[..., kept, DEGREE]``."""
    rest = residues.astype(np.int64)
    while rest.shape[-2] > kept:
        last = PRIMES[rest.shape[-2] - 1]
        centred = rest[..., -1:, :]
        centred = centred - last * (centred > last // 2)
        primes = column(rest.shape[-2] - 1)
        inverse = np.array([[pow(last, -1, int(p))] for p in primes[:, 0]], np.int64)
        rest = (rest[..., :-1, :] - centred) % primes * inverse % primes
    return rest


def opened(phase: Residues, scale_bits: int) -> list[int]:
    """Messages from phases ``[kept, DEGREE]`` after switching."""
    half = 1 << (scale_bits - 1)
    return [(value + half) >> scale_bits for value in signed(phase.astype(np.int64).T)]


def packed(residues: Residues | Integers) -> bytes:
    """Residues, 3 bytes each."""
    wide = np.ascontiguousarray(residues, "<u4").view(np.uint8).reshape(-1, 4)
    return np.ascontiguousarray(wide[:, :3]).tobytes()


def unpacked(data: bytes, shape: Sequence[int]) -> Residues:
    """The residues ``[..., primes, count]`` that :func:`packed` wrote."""
    wide = np.zeros((len(data) // 3, 4), np.uint8)
    wide[:, :3] = np.frombuffer(data, np.uint8).reshape(-1, 3)
    return np.asarray(wide.view("<u4").reshape(shape), np.uint32)
