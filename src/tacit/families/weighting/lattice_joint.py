"""Weighted sums under a joint key: the server together with fewer silos than the threshold learns the sum only.

The secret is s = s_server + sum_i s_i. Silos hold Shamir's shares of sum_i s_i over R_q (Mouchet, Bertrand, Hubaux
2023), so that any ``threshold`` of them open a sum together with the server. No seed is common to all silos:

    setup keys  keys to seal for, and of pairs
    parts       a silo's -a s_i + e_i, shares of s_i for each peer, and n_su + r_su with blinds r_su of its own
    shares      the joint public key, and the shares for this silo
    then for each piece of slots
    turns       Enc(T X^M_u) goes from silo to silo; each multiplies by X^-r_su and adds an encryption of zero
    blinds      each silo opens its part of the number at X^0 less rho_su, and sends Enc(rho_su): the server learns
                f(N_u) - sum_s rho_su
    weights     Enc(f(N_u)) = f(N_u) - sum_s rho_su + sum_s Enc(rho_su)

    a round     as in the masked exchange; then ``opening``: C1 of the sum goes to ``threshold`` silos that have stayed,
                and each answers its share times C1, flooded

Flooding in ``opening`` hides the rounding of switching, which depends on s; so more primes are kept.
"""

from __future__ import annotations

import secrets
from functools import partial

import numpy as np

from tacit.crypto import EVERYONE, MaskStream, Refused, Secret
from tacit.crypto.mask_streams import KEY_BYTES
from tacit.exchange.base import Keys
from tacit.exchange.masked import UNMASKING
from tacit.exchange.post import SERVER, join, join_named, named_parts, parted
from tacit.exchange.sums import Grid, Members
from tacit.families.weighting.lattice import (
    BLIND_BITS,
    Residues,
    RingPublicKey,
    RingSecretKey,
    column,
    flooding,
    lagrange,
    modulo,
    packed,
    residues_of,
    turned,
    uniform,
    unpacked,
)
from tacit.families.weighting.lattice_server import LatticeServer
from tacit.families.weighting.lattice_silo import LatticeSilo
from tacit.families.weighting.lattice_terms import SETUP_KEYS, WEIGHTS, LatticeTerms
from tacit.families.weighting.ring import DEGREE, in_threads, prepared, product

PARTS, SHARES_OF_KEY, TURNS, BLINDS, OPENING = "parts", "shares of the key", "turns", "blinds", "opening"


def residues(data: bytes, shape: tuple[int, ...], sender: str) -> Residues:
    """Residues ``[..., primes, count]`` of a message; refused where they are others or more."""
    if len(data) != 3 * int(np.prod(shape)):
        raise Refused("wrong-length", f"{len(data)} bytes where {3 * int(np.prod(shape))} are due", sender)
    found = unpacked(data, shape)
    if (found >= column(shape[-2])).any():
        raise Refused("out-of-range", "a number that is no residue", sender)
    return found


class JointSilo(LatticeSilo):
    """One silo. It answers the phases above, and ``opening`` at the end of a round."""

    def __init__(self, terms: LatticeTerms, keys: Keys, grid: Grid, members: Members, *, workers: int = 1) -> None:
        super().__init__(terms, keys, grid, members, workers=workers)
        self._handlers |= {PARTS: self._part, SHARES_OF_KEY: self._take_shares, OPENING: self._open_sum}
        for number in range(len(terms.pieces)):
            self._handlers[f"{TURNS} {number}"] = partial(self._turn, number)
            self._handlers[f"{BLINDS} {number}"] = partial(self._blind, number)
            self._handlers[f"{WEIGHTS} {number}"] = partial(self._take_open, number)
        # r_su of every slot, known to this silo alone
        drawn = np.frombuffer(secrets.token_bytes(2 * terms.people), "<u2")
        self._own_turns = drawn.astype(np.int64) & (2 * DEGREE - 1)
        self._stayed: list[str] = []

    @property
    def _rows(self) -> tuple[int, int]:
        return self.terms.lattice.primes, DEGREE

    def open(self) -> bytes:
        message = super().open()
        self._phase = PARTS
        return message

    def _part(self, content: bytes) -> bytes:
        seed, keys = parted(content, SERVER, 2)
        if len(seed) != KEY_BYTES:
            raise Refused("wrong-length", "a seed of another length", SERVER)
        signed = named_parts(keys, SERVER, self.terms.silos)
        if set(signed) != set(self.terms.silos):
            raise Refused("incomplete", "not the keys of all silos", SERVER)
        self._peers = self._post.read_keys(SETUP_KEYS, signed, (self._sealing.public, self._pairs.public))
        self._own_key = RingSecretKey(self.terms.lattice)
        context = self._post.place(SERVER, EVERYONE, "public key")
        self._public = uniform(MaskStream(Secret(seed), context), *self._rows)
        part = self._own_key.encrypted(self._public, np.zeros((1, 1), np.int64))
        holders = {peer: self.terms.index(peer) for peer in self.terms.silos}
        shares = self._own_key.shares(self.terms.threshold, list(holders.values()))
        self._key_share = shares[holders[self.name]].astype(np.int64)
        sealed = {
            peer: self._post.write_sealed(peer, "share", packed(shares[holders[peer]]), sealing)
            for peer, (sealing, _) in self._peers.items()
            if peer != self.name
        }
        counts = (self._counts.of_slots + self._own_turns) % (2 * DEGREE)
        self._phase = SHARES_OF_KEY
        return join([packed(part), join_named(sealed), counts.astype("<u2").tobytes()])

    def _take_shares(self, content: bytes) -> bytes:
        public, shares = parted(content, SERVER, 2)
        self._key = RingPublicKey(np.stack([residues(public, self._rows, SERVER), self._public]))
        sealed = named_parts(shares, SERVER, self.terms.silos)
        if set(sealed) != set(self.terms.silos) - {self.name}:
            raise Refused("incomplete", "not the shares of all silos", SERVER)
        for peer, message in sealed.items():
            opened_share = self._post.read_sealed(peer, "share", message, self._sealing)
            self._key_share += residues(opened_share, self._rows, peer)
        self._key_share %= column(self.terms.lattice.primes)
        self._phase = f"{TURNS} 0"
        return b""

    def _turn(self, number: int, content: bytes) -> bytes:
        piece = self.terms.pieces[number]
        tables = residues(content, (len(piece), 2, *self._rows), SERVER)

        def one(place: int) -> bytes:
            back = -int(self._own_turns[piece[place]]) % (2 * DEGREE)
            return packed(modulo(turned(tables[place], back) + self._key.zero()))

        self._phase = f"{BLINDS} {number}"
        return b"".join(in_threads(one, range(len(piece)), self._workers))

    def _blind(self, number: int, content: bytes) -> bytes:
        """This silo's part of the numbers at X^0, less rho_su; and Enc(rho_su)."""
        lattice, piece = self.terms.lattice, self.terms.pieces[number]
        c1 = residues(content, (len(piece), *self._rows), SERVER)
        scale = lattice.dropped << lattice.scale_bits

        def one(place: int) -> tuple[bytes, bytes]:
            rho = secrets.randbits(BLIND_BITS)
            part = self._own_key.constant(np.zeros((1, lattice.primes), np.int64), c1[place : place + 1])[0]
            part = part + flooding(lattice.setup_bits, lattice.primes, 1)[:, 0]
            part -= residues_of(rho << lattice.setup_scale_bits, lattice.primes)
            blind = self._key.zero()
            blind[0, :, 0] += residues_of(scale * rho, lattice.primes)
            return packed(part % column(lattice.primes)[:, 0]), packed(modulo(blind))

        made = in_threads(one, range(len(piece)), self._workers)
        self._phase = f"{WEIGHTS} {number}"
        return b"".join(part for part, _ in made) + b"".join(blind for _, blind in made)

    def _take_open(self, number: int, content: bytes) -> bytes:
        """Enc(f(N)) of the slots of a piece, times n_su for every member who counts."""
        piece = self.terms.pieces[number]
        found = residues(content, (len(piece), 2, *self._rows), SERVER)
        here = self._counts.members_of(piece)
        weights = in_threads(
            lambda own: modulo(found[own[0] - piece.start].astype(np.int64) * own[1]), here.values(), self._workers
        )
        return self._taken(number, dict(zip(here, weights, strict=True)), f"{TURNS} {number + 1}")

    def _forget_setup(self) -> None:
        """Shares of the key open sums: the key itself and the blinds of counts have done their work."""
        super()._forget_setup()
        for name in ("_own_key", "_own_turns"):
            vars(self).pop(name, None)

    # -- the end of a round

    def _unmask(self, content: bytes) -> bytes:
        self._stayed = list(self._survivors)
        shown = super()._unmask(content)
        self._phase = OPENING
        return shown

    def _open_sum(self, content: bytes) -> bytes:
        """This silo's share times C1 of the sum, flooded."""
        terms, lattice = self.terms, self.terms.lattice
        chosen, c1 = parted(content, SERVER, 2)
        names = list(named_parts(chosen, SERVER, terms.silos))
        if self.name not in names or len(names) != terms.threshold or not set(names) <= set(self._stayed):
            raise Refused("wrong-parties", "a list of openers with strangers, or without us", SERVER)
        blocks = residues(c1, (terms.blocks, lattice.kept, DEGREE), SERVER)
        counts_for = lagrange(terms.index(self.name), [terms.index(name) for name in names], lattice.primes)
        share = prepared(modulo(self._key_share * counts_for[:, np.newaxis])[: lattice.kept])
        assert lattice.opening_bits is not None
        bits = lattice.opening_bits

        def one(block: Residues) -> bytes:
            part = product(share, prepared(block)).astype(np.int64) + flooding(bits, lattice.kept, DEGREE)
            return packed(modulo(part))

        return b"".join(in_threads(one, blocks, self._workers))


class JointServer(LatticeServer):
    """The server's side. Of a subject it learns sum_s (n_su + r_su) and f(N_u) - sum_s rho_su, both uniform for it and
    fewer silos than all."""

    def _next(self, phase: str) -> tuple[str | None, dict[str, bytes]]:
        if self._needed is None:
            if phase == UNMASKING:
                return self._ask_to_open()
            if phase == OPENING:
                self.total = self._opened_blocks(self._elements)
                return None, {}
            return super()._next(phase)
        silos = self.terms.silos
        if phase == SETUP_KEYS:
            self._seed = secrets.token_bytes(KEY_BYTES)
            told = join([self._seed, join_named(self._inbox)])
            self._expect(*silos)
            return PARTS, dict.fromkeys(silos, told)
        if phase == PARTS:
            return self._joined()
        if phase == SHARES_OF_KEY:
            return self._start_turns(0)
        step, number = phase.rsplit(" ", 1)
        return {TURNS: self._pass_on, BLINDS: self._weigh, WEIGHTS: self._next_piece}[step](int(number))

    @property
    def _rows(self) -> tuple[int, int]:
        return self.terms.lattice.primes, DEGREE

    def _joined(self) -> tuple[str, dict[str, bytes]]:
        """The joint public key, and who gets which shares."""
        silos, lattice = self.terms.silos, self.terms.lattice
        context = self._post.place(SERVER, EVERYONE, "public key")
        public = uniform(MaskStream(Secret(self._seed), context), *self._rows)
        total = self._key.encrypted(public, np.zeros((1, 1), np.int64)).astype(np.int64)
        self._counts, sealed = np.zeros(self.terms.people, np.int64), {}
        for silo, content in self._contents.items():
            part, shares, counts = parted(content, silo, 3)
            total += residues(part, self._rows, silo)
            sealed[silo] = named_parts(shares, silo, silos)
            if set(sealed[silo]) != set(silos) - {silo}:
                raise Refused("incomplete", "no shares for some of the silos", silo)
            if len(counts) != 2 * self.terms.people:
                raise Refused("wrong-length", f"{len(counts)} bytes are not {self.terms.people} counts", silo)
            self._counts = (self._counts + np.frombuffer(counts, "<u2")) % (2 * DEGREE)
        joint = packed(total % column(lattice.primes))
        told = {
            silo: join([joint, join_named({peer: sealed[peer][silo] for peer in silos if peer != silo})])
            for silo in silos
        }
        self._expect(*silos)
        return SHARES_OF_KEY, told

    def _start_turns(self, number: int) -> tuple[str, dict[str, bytes]]:
        tables = self._turned_tables(self.terms.pieces[number])
        self._tables_now = np.stack([tables, np.zeros_like(tables)], axis=1)
        self._hop = 0
        return self._hand_over(number)

    def _hand_over(self, number: int) -> tuple[str, dict[str, bytes]]:
        silo = self.terms.silos[self._hop]
        self._expect(silo)
        return f"{TURNS} {number}", {silo: packed(self._tables_now)}

    def _pass_on(self, number: int) -> tuple[str, dict[str, bytes]]:
        """What one silo has turned goes to the next one; after the last, c1 to all."""
        silo, piece = self.terms.silos[self._hop], self.terms.pieces[number]
        self._tables_now = residues(self._contents[silo], (len(piece), 2, *self._rows), silo)
        self._hop += 1
        if self._hop < len(self.terms.silos):
            return self._hand_over(number)
        self._expect(*self.terms.silos)
        return f"{BLINDS} {number}", dict.fromkeys(self.terms.silos, packed(self._tables_now[:, 1]))

    def _weigh(self, number: int) -> tuple[str, dict[str, bytes]]:
        """Enc(f(N_u)) from what all silos have opened and blinded."""
        lattice, piece, silos = self.terms.lattice, self.terms.pieces[number], self.terms.silos
        at_zero = self._tables_now[:, 0, :, 0].astype(np.int64)
        weights = np.zeros((len(piece), 2, *self._rows), np.int64)
        short = 3 * lattice.primes * len(piece)
        for silo, content in self._contents.items():
            at_zero += residues(content[:short], (len(piece), lattice.primes, 1), silo)[:, :, 0]
            weights += residues(content[short:], (len(piece), 2, *self._rows), silo)
        scale = lattice.dropped << lattice.scale_bits
        found = self._blinded(at_zero % column(lattice.primes)[:, 0], self._tables_now[:, 1])
        weights[:, 0, :, 0] += [residues_of(scale * weight, lattice.primes) for weight in found]
        self._expect(*silos)
        return f"{WEIGHTS} {number}", dict.fromkeys(silos, packed(modulo(weights)))

    def _next_piece(self, number: int) -> tuple[str | None, dict[str, bytes]]:
        if number + 1 < len(self.terms.pieces):
            return self._start_turns(number + 1)
        self._set_up, self._needed = True, None
        return None, {}

    # -- the end of a round

    def _ask_to_open(self) -> tuple[str, dict[str, bytes]]:
        """C1 of the sum to as many of those that have answered as are needed."""
        self._elements = self._by_block(self._sum())
        chosen = tuple(sorted(self._inbox))[: self.terms.threshold]
        told = join([join_named(dict.fromkeys(chosen, b"")), packed(self._elements[:, 1])])
        self._there = chosen
        return OPENING, dict.fromkeys(chosen, told)

    def _read(self, phase: str, sender: str, content: bytes) -> None:
        if phase == OPENING:
            shape = (self.terms.blocks, self.terms.lattice.kept, DEGREE)
            self._elements[:, 0] = modulo(self._elements[:, 0].astype(np.int64) + residues(content, shape, sender))
            return
        super()._read(phase, sender, content)
