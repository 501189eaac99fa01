"""The silo's side of a weighted sum from ring-LWE: setup once, then the rounds of the masked exchange."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from weakref import WeakSet

import numpy as np

from tacit.crypto import EVERYONE, KeyPair, MaskStream, Refused, SealingKey, Secret, masked
from tacit.crypto.mask_streams import KEY_BYTES
from tacit.exchange.base import Keys
from tacit.exchange.masked import MaskedSilo
from tacit.exchange.post import SERVER, OutOfTurn, join_named, named_parts, parted
from tacit.exchange.sums import Grid, Members, PersonVectors, checked_groups
from tacit.families.weighting.lattice import (
    BLIND_BITS,
    Residues,
    RingPublicKey,
    column,
    flooding,
    modulo,
    packed,
    residues_of,
    switched,
    turned,
    uniform,
    unpacked,
)
from tacit.families.weighting.lattice_terms import (
    COUNTS,
    PROTOCOL,
    SEED,
    SETUP_KEYS,
    TABLES,
    WEIGHTS,
    LatticeTerms,
)
from tacit.families.weighting.ring import DEGREE, Spectra, SumOfProducts, in_threads, parts_for
from tacit.families.weighting.slot_counts import SlotCounts
from tacit.privacy.mechanisms.discrete_gaussian import discrete_gaussian
from tacit.privacy.randomness import Stream

# people whose products are added up at once
GROUP = 32
# Transformed ciphertexts that are kept between rounds, by all silos of this process: a part of the memory, and less
# than the default of ``most_memory`` in a policy. In messages of more blocks, transforming them again is a small part
# of the work.
KEPT_BYTES = min(3 << 30, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 8)
_KEPT_BLOCKS = 32
_COUNT_BITS = (2 * DEGREE).bit_length() - 1


class _Kept:
    """Transformed ciphertexts of one silo's groups. They end with the silo: a key that outlives it, such as its id,
    could be that of a later silo with other ciphertexts."""

    def __init__(self) -> None:
        self._spectra: dict[bytes, Spectra] = {}
        self.size = 0
        _KEPT.add(self)

    def find(self, group: bytes, make: Callable[[], Spectra]) -> Spectra:
        """What is kept of a group, or is made and, where there is room, kept."""
        if group in self._spectra:
            return self._spectra[group]
        made = make()
        if sum(kept.size for kept in tuple(_KEPT)) + made.nbytes <= KEPT_BYTES:
            self._spectra[group] = made
            self.size += made.nbytes
        return made


_KEPT: WeakSet[_Kept] = WeakSet()


class LatticeSilo(MaskedSilo):
    """One silo. A round goes as in :class:`MaskedSilo`, with a ciphertext in the place of the vector. Setup:

        phase        answers                          with
        setup keys   (begins setup)                   two public keys
        seed         the server's key, all keys       the first silo: a common seed, sealed for each peer
        counts       the seed                         n_su under masks, and r_u of the first silo: the server learns
                                                      M_u = N_u + r_u modulo 2 DEGREE, which is uniform
        tables       Enc(T X^M_u), the first silo     times X^-r_u, its number at X^0 blinded: f(N_u) + rho_u
        weights      Enc(f(N_u) + rho_u)              nothing

    r_u and rho_u come from the common seed. T = sum_j f(j) X^-j: the number of T X^N at X^0 is f(N). Tables and weights
    come in pieces, each a phase of its own. See :class:`SlotCounts` for subjects who share a slot.
    """

    to_everyone = (*MaskedSilo.to_everyone, SETUP_KEYS)
    terms: LatticeTerms

    def __init__(self, terms: LatticeTerms, keys: Keys, grid: Grid, members: Members, *, workers: int = 1) -> None:
        super().__init__(terms, keys, grid, PROTOCOL)
        self._counts = SlotCounts(members, terms.people, terms.cap)
        self._workers = workers
        self._handlers |= {SEED: self._deal, COUNTS: self._count}
        for number in range(len(terms.pieces)):
            self._handlers[f"{TABLES} {number}"] = partial(self._look_up, number)
            self._handlers[f"{WEIGHTS} {number}"] = partial(self._take, number)
        self._weights: dict[int, Residues] = {}  # Enc(n_su f(N_u)) of each member who counts
        self._kept = _Kept()
        self._set_up = False

    # -- setup

    def open(self) -> bytes:
        self._post.begin(0)
        self._sealing, self._pairs = SealingKey(), KeyPair()
        self._phase = SEED
        return self._written(SETUP_KEYS, self._sealing.public + self._pairs.public)

    def _deal(self, content: bytes) -> bytes:
        """The keys of all silos and of the server; the first silo deals the common seed."""
        public, keys = parted(content, SERVER, 2)
        (rows,) = self._ciphertexts(public, 1, "public key").values()
        self._key = RingPublicKey(rows)
        signed = named_parts(keys, SERVER, self.terms.silos)
        if set(signed) != set(self.terms.silos):
            raise Refused("incomplete", "not the keys of all silos", SERVER)
        self._peers = self._post.read_keys(SETUP_KEYS, signed, (self._sealing.public, self._pairs.public))
        del self._peers[self.name]
        self._phase = COUNTS
        if self.name != self.terms.leader:
            return join_named({})
        self._seed = Secret.random()
        seed = bytes(self._seed.expose())
        return join_named(
            {peer: self._post.write_sealed(peer, SEED, seed, sealing) for peer, (sealing, _) in self._peers.items()}
        )

    def _count(self, content: bytes) -> bytes:
        """n_su of every slot, and r_u of the first silo, under masks with every peer."""
        leader = self.terms.leader
        if self.name != leader:
            opened = self._post.read_sealed(leader, SEED, content, self._sealing)
            if len(opened) != KEY_BYTES:
                raise Refused("wrong-length", "a seed of another length", leader)
            self._seed = Secret(opened)
        counts = self._counts.of_slots.astype(np.uint64)
        if self.name == leader:
            counts = counts + self._turns()
        plus: list[MaskStream] = []
        minus: list[MaskStream] = []
        for peer, (_, public) in self._peers.items():
            mask = self._pairs.mask(public, self._post.place(self.name, peer, "counts"))
            (plus if self.name < peer else minus).append(mask)
        self._phase = f"{TABLES if self.name == leader else WEIGHTS} 0"
        return masked(counts, plus, minus, _COUNT_BITS).astype("<u2").tobytes()

    def _look_up(self, number: int, content: bytes) -> bytes:
        """The first silo: from Enc(T X^M) of each slot, what opens f(N) + rho and no other number."""
        lattice, piece = self.terms.lattice, self.terms.pieces[number]
        primes = lattice.primes
        turns, blinds = self._turns(), self._blinds()

        def one(found: tuple[int, Residues]) -> bytes:
            slot, table = piece[found[0]], found[1]
            answer = turned(table, -int(turns[slot]) % (2 * DEGREE)) + self._key.zero()
            at_zero = answer[0, :, 0] + flooding(lattice.setup_bits, primes, 1)[:, 0]
            at_zero += residues_of(blinds[slot] << lattice.setup_scale_bits, primes)
            return packed(at_zero % column(primes)[:, 0]) + packed(modulo(answer[1]))

        tables = self._ciphertexts(content, len(piece), f"{TABLES} {number}")
        answers = in_threads(one, tables.items(), self._workers)
        self._phase = f"{WEIGHTS} 0" if piece.stop == self.terms.people else f"{TABLES} {number + 1}"
        return b"".join(answers)

    def _take(self, number: int, content: bytes) -> bytes:
        """Enc(f(N) + rho) of the slots of a piece: less rho, times n_su, for every member who counts."""
        lattice, piece = self.terms.lattice, self.terms.pieces[number]
        here = self._counts.members_of(piece)
        wanted = {slot - piece.start for slot, _ in here.values()}
        found = self._ciphertexts(content, len(piece), f"{WEIGHTS} {number}", wanted)
        scale, blinds = lattice.dropped << lattice.scale_bits, self._blinds()

        def one(slot: int, count: int) -> Residues:
            weight = found[slot - piece.start].astype(np.int64)
            weight[0, :, 0] -= residues_of(scale * blinds[slot], lattice.primes)
            return modulo(weight * count)

        weights = in_threads(lambda member: one(*member), here.values(), self._workers)
        return self._taken(number, dict(zip(here, weights, strict=True)), f"{WEIGHTS} {number + 1}")

    def _taken(self, number: int, weights: dict[int, Residues], following: str) -> bytes:
        """Keep the weights of a piece; ``following`` comes next, unless it was the last one."""
        self._weights |= weights
        self._set_up = number + 1 == len(self.terms.pieces)
        self._phase = None if self._set_up else following
        if self._set_up:
            self._forget_setup()
        return b""

    def _ciphertexts(
        self, data: bytes, count: int, purpose: str, wanted: set[int] | None = None
    ) -> dict[int, Residues]:
        """``count`` ciphertexts ``[2, primes, DEGREE]`` of the server's, or those of them that are wanted: c0 of each
        behind a seed of 32 bytes, from which c1 follows."""
        lattice = self.terms.lattice
        size = KEY_BYTES + lattice.ciphertext_bytes
        if len(data) != count * size:
            raise Refused("wrong-length", f"{len(data)} bytes are not {count} ciphertexts", SERVER)
        context = self._post.place(SERVER, EVERYONE, purpose)

        def one(place: int) -> Residues:
            seed, row = (
                data[place * size : place * size + KEY_BYTES],
                data[place * size + KEY_BYTES : (place + 1) * size],
            )
            c0 = unpacked(row, (lattice.primes, DEGREE))
            if (c0 >= column(lattice.primes)).any():
                raise Refused("out-of-range", "a number that is no residue", SERVER)
            return np.stack([c0, uniform(MaskStream(Secret(seed), context), lattice.primes, DEGREE)])

        places = range(count) if wanted is None else sorted(wanted)
        return dict(zip(places, in_threads(one, places, self._workers), strict=True))

    def _turns(self) -> np.ndarray:
        """r_u, uniform modulo 2 DEGREE."""
        words = np.frombuffer(self._common("turns").take(2 * self.terms.people), "<u2")
        return words.astype(np.uint64) & np.uint64(2 * DEGREE - 1)

    def _blinds(self) -> list[int]:
        """rho_u, uniform below 2^BLIND_BITS."""
        size = -(-BLIND_BITS // 8)
        stream = self._common("blinds").take(size * self.terms.people)
        whole = (int.from_bytes(stream[k * size : (k + 1) * size], "big") for k in range(self.terms.people))
        return [number >> (8 * size - BLIND_BITS) for number in whole]

    def _common(self, purpose: str) -> MaskStream:
        """Numbers that all silos know, and the server does not."""
        return MaskStream(self._seed, self._post.place("silos", EVERYONE, purpose))

    def _forget(self) -> None:
        super()._forget()
        self._forget_setup()

    def _forget_setup(self) -> None:
        """Wipe what setup alone needs: the common seed, from which r_u and rho_u follow, and the keys of its masks."""
        own = vars(self)
        if "_seed" in own:
            self._seed.wipe()
        for name in ("_seed", "_sealing", "_pairs", "_peers"):
            own.pop(name, None)

    # -- a round

    def begin(self, number: int, contribution: Iterable[PersonVectors], noise: Stream, preface: bytes = b"") -> bytes:
        """Start round ``number`` (from 1) with what this silo's subjects add, group by group."""
        if not self._set_up:
            raise OutOfTurn("a round before setup has ended", self.name)
        terms, lattice = self.terms, self.terms.lattice
        parts, records = parts_for(terms.entry, self._counts.squares), self._counts.members.counts
        sums = SumOfProducts(2, lattice.primes, terms.blocks, terms.entry, parts, self._workers)
        for places, vectors in checked_groups(contribution, terms.numbers, terms.entry, terms.entry, records):
            counted = np.flatnonzero(self._counts.counted[places])
            for first in range(0, len(counted), GROUP):
                some = counted[first : first + GROUP]
                self._add(sums, places[some], vectors[some])
        drawn = discrete_gaussian(terms.share, terms.numbers, noise)
        return self._begin(number, self._hidden(sums, drawn))

    def _add(self, sums: SumOfProducts, places: np.ndarray, vectors: np.ndarray) -> None:
        """Add a group's contributions times the ciphertexts of their weights."""
        padded = np.zeros((len(places), self.terms.blocks * DEGREE), np.int64)
        padded[:, : self.terms.numbers] = vectors
        weights = [self._weights[place] for place in places.tolist()]
        if self.terms.blocks <= _KEPT_BLOCKS:
            spectrum = self._kept.find(places.tobytes(), lambda: sums.prepared(weights))
        else:
            spectrum = sums.prepared(weights)
        sums.add(spectrum, weights, padded.reshape(len(places), self.terms.blocks, DEGREE))

    def _hidden(self, sums: SumOfProducts, drawn: np.ndarray) -> Residues:
        """What leaves, ``[kept, numbers + blocks DEGREE]``: c0 and c1, with encryptions of zero, flooding and noise,
        switched. c0 of the padding stays here: there is no noise that would protect it."""
        lattice = self.terms.lattice
        scale = residues_of(1 << lattice.scale_bits, lattice.kept)[:, np.newaxis]

        def one(number: int) -> Residues:
            hidden = sums.block(number) + self._key.zero()
            hidden[0] += flooding(lattice.flood_bits, lattice.primes, DEGREE)
            short = switched(modulo(hidden), lattice.kept)
            noise = np.zeros(DEGREE, np.int64)
            part = drawn[number * DEGREE : (number + 1) * DEGREE]
            noise[: len(part)] = part
            short[0] += noise % column(lattice.kept) * scale
            return modulo(short)

        c0, c1 = np.concatenate(in_threads(one, range(self.terms.blocks), self._workers), axis=-1)
        return np.concatenate([c0[:, : self.terms.numbers], c1], axis=-1)
