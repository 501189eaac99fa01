"""The server's side of a weighted sum from ring-LWE: it holds the key, and learns blinded counts and the sum."""

from __future__ import annotations

import secrets

import numpy as np
import numpy.typing as npt

from tacit.crypto import EVERYONE, MaskStream, Refused, Secret
from tacit.crypto.mask_streams import KEY_BYTES
from tacit.exchange.base import Keys
from tacit.exchange.masked import MaskedServer
from tacit.exchange.post import SERVER, OutOfTurn, join, join_named, named_parts, two_keys
from tacit.exchange.sums import Grid
from tacit.families.weighting.lattice import (
    WEIGHT_BITS,
    Integers,
    Residues,
    RingSecretKey,
    column,
    modulo,
    opened,
    packed,
    residues_of,
    signed,
    turned,
    uniform,
    unpacked,
)
from tacit.families.weighting.lattice_terms import COUNTS, PROTOCOL, SEED, SETUP_KEYS, TABLES, WEIGHTS, LatticeTerms
from tacit.families.weighting.ring import DEGREE, in_threads
from tacit.privacy.randomness import Stream


class LatticeServer(MaskedServer):
    """Setup needs all silos. Of a subject the server learns M_u = N_u + r_u modulo 2 DEGREE and f(N_u) + rho_u, both
    blinded by what the silos have in common; of a round, the sum over the silos that stayed, with their noise.

    After a round ``total`` holds the sums in steps of grid / 2^WEIGHT_BITS.
    """

    to_everyone = (*MaskedServer.to_everyone, SETUP_KEYS)
    terms: LatticeTerms

    def __init__(self, terms: LatticeTerms, keys: Keys, grid: Grid, *, workers: int = 1) -> None:
        super().__init__(terms, keys, grid, PROTOCOL)
        self._key, self._workers = RingSecretKey(terms.lattice), workers
        self._contents: dict[str, bytes] = {}
        self._counts = np.zeros(terms.people, np.int64)  # M_u
        self._weights: list[int] = []  # f(N_u) + rho_u
        self._needed: int | None = None  # silos that must answer in a phase of setup
        self._set_up = False

    @property
    def least(self) -> int:
        return self.terms.threshold if self._needed is None else self._needed

    def open(self) -> None:
        self._begin(0, SETUP_KEYS)
        self._needed = len(self._silos)

    def begin(self, number: int, stream: Stream | None = None, preface: bytes = b"") -> None:
        if not self._set_up:
            raise OutOfTurn("a round before setup has ended", SERVER)
        super().begin(number, stream, preface)

    def numbers(self) -> npt.NDArray[np.float64]:
        if self.total is None or self._grid is None:
            raise OutOfTurn("there is no sum", SERVER)
        return np.array([value / 2**WEIGHT_BITS for value in self.total]) * self._grid.precision

    def _by_block(self, elements: Residues) -> Residues:
        """A masked vector as ciphertexts ``[blocks, 2, kept, DEGREE]``."""
        terms, kept = self.terms, self.terms.lattice.kept
        found = np.zeros((2, kept, terms.blocks * DEGREE), np.uint32)
        found[0, :, : terms.numbers], found[1] = elements[:, : terms.numbers], elements[:, terms.numbers :]
        return found.reshape(2, kept, terms.blocks, DEGREE).transpose(2, 0, 1, 3)

    def _opened_sum(self, elements: Residues) -> list[int]:
        return self._opened_blocks(self._by_block(elements))

    def _opened_blocks(self, blocks: Residues) -> list[int]:
        scale_bits = self.terms.lattice.scale_bits
        found = in_threads(lambda block: opened(self._key.phase(*block), scale_bits), blocks, self._workers)
        return [number for block in found for number in block][: self.terms.numbers]

    # -- setup

    def _read(self, phase: str, sender: str, content: bytes) -> None:
        if self._needed is None:
            super()._read(phase, sender, content)
            return
        if phase == SETUP_KEYS:
            two_keys(content, sender)
        self._contents[sender] = content

    def _next(self, phase: str) -> tuple[str | None, dict[str, bytes]]:
        if self._needed is None:
            return super()._next(phase)
        silos, leader = self.terms.silos, self.terms.leader
        if phase == SETUP_KEYS:
            told = join([self._public_key(), join_named(self._inbox)])
            return SEED, dict.fromkeys(silos, told)
        if phase == SEED:
            sealed = named_parts(self._contents[leader], leader, silos)
            if set(sealed) != set(silos) - {leader}:
                raise Refused("incomplete", "no seed for some of the silos", leader)
            return COUNTS, {silo: sealed.get(silo, b"") for silo in silos}
        if phase == COUNTS:
            self._counts = self._blinded_counts()
            return self._tables(0)
        step, number = phase.rsplit(" ", 1)
        if step == TABLES:
            self._weights += self._looked_up(self.terms.pieces[int(number)])
            return self._tables(int(number) + 1)
        return self._weight_pieces(int(number) + 1)

    def _public_key(self) -> bytes:
        """An encryption of zero."""
        return self._encrypted("public key", np.zeros((1, self.terms.lattice.primes, 1), np.int64))

    def _blinded_counts(self) -> Integers:
        """M_u = N_u + r_u modulo 2 DEGREE, uniform for every N_u."""
        total = np.zeros(self.terms.people, np.int64)
        for silo, content in self._contents.items():
            if len(content) != 2 * self.terms.people:
                raise Refused("wrong-length", f"{len(content)} bytes are not {self.terms.people} counts", silo)
            total += np.frombuffer(content, "<u2")
        return total % (2 * DEGREE)

    def _tables(self, number: int) -> tuple[str | None, dict[str, bytes]]:
        """The next piece of tables for the first silo: Enc(T X^M_u)."""
        if number == len(self.terms.pieces):
            return self._weight_pieces(0)
        messages = self._turned_tables(self.terms.pieces[number]).astype(np.int64)
        self._expect(self.terms.leader)
        return f"{TABLES} {number}", {self.terms.leader: self._encrypted(f"{TABLES} {number}", messages)}

    def _expect(self, *silos: str) -> None:
        """These silos answer in the next phase of setup."""
        self._needed, self._there, self._contents = len(silos), tuple(sorted(silos)), {}

    def _turned_tables(self, piece: range) -> Residues:
        """T X^M_u of each slot, scaled; T = sum_j f(j) X^-j."""
        primes = self.terms.lattice.primes
        table = np.zeros(DEGREE, np.int64)
        table[0], found = self.terms.table[0], np.array(self.terms.table[1:], np.int64)
        table[DEGREE - len(found) :] = -found[::-1]
        scale = residues_of(1 << self.terms.lattice.setup_scale_bits, primes)[:, np.newaxis]
        scaled = modulo(table % column(primes) * scale)
        return np.stack([turned(scaled, int(turn)) for turn in self._counts[list(piece)]])

    def _looked_up(self, piece: range) -> list[int]:
        """f(N_u) + rho_u, from what the first silo has left of a table: c1, and the number of c0 at X^0."""
        leader, primes = self.terms.leader, self.terms.lattice.primes
        size = 3 * primes * (DEGREE + 1)
        content = self._contents[leader]
        if len(content) != len(piece) * size:
            raise Refused("wrong-length", f"{len(content)} bytes are not {len(piece)} answers", leader)
        rows = [content[k * size : (k + 1) * size] for k in range(len(piece))]
        at_zero = np.stack([unpacked(row[: 3 * primes], (primes,)) for row in rows]).astype(np.int64)
        c1 = np.stack([unpacked(row[3 * primes :], (primes, DEGREE)) for row in rows])
        if (at_zero >= column(primes)[:, 0]).any() or (c1 >= column(primes)).any():
            raise Refused("out-of-range", "a number that is no residue", leader)
        return self._blinded(at_zero, c1)

    def _blinded(self, at_zero: Integers, c1: Residues) -> list[int]:
        """The messages at X^0 of what setup opens."""
        bits = self.terms.lattice.setup_scale_bits
        return [(value + (1 << (bits - 1))) >> bits for value in signed(self._key.constant(at_zero, c1))]

    def _weight_pieces(self, number: int) -> tuple[str | None, dict[str, bytes]]:
        """The next piece of Enc(f(N_u) + rho_u), once for all silos."""
        if number == len(self.terms.pieces):
            self._set_up, self._needed, self._weights = True, None, []
            self._counts = np.zeros(0, np.int64)
            return None, {}
        lattice, silos = self.terms.lattice, self.terms.silos
        piece = self.terms.pieces[number]
        scale = lattice.dropped << lattice.scale_bits
        messages = np.zeros((len(piece), lattice.primes, DEGREE), np.int64)
        messages[:, :, 0] = [residues_of(scale * self._weights[slot], lattice.primes) for slot in piece]
        self._expect(*silos)
        return f"{WEIGHTS} {number}", dict.fromkeys(silos, self._encrypted(f"{WEIGHTS} {number}", messages))

    def _encrypted(self, purpose: str, messages: Integers) -> bytes:
        """Scaled messages ``[count, primes, DEGREE]`` as ciphertexts: a seed for c1, and c0."""
        primes, context = self.terms.lattice.primes, self._post.place(SERVER, EVERYONE, purpose)

        def one(message: Integers) -> bytes:
            seed = secrets.token_bytes(KEY_BYTES)
            c1 = uniform(MaskStream(Secret(seed), context), primes, DEGREE)
            return seed + packed(self._key.encrypted(c1, message))

        return b"".join(in_threads(one, messages, self._workers))

    def _end(self) -> None:
        super()._end()
        self._contents = {}
        if not self._set_up:
            self._needed = None
