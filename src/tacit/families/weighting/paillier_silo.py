"""The silo's side of a weighted sum: setup once, then a message or three in every round."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from gmpy2 import mpz

from tacit.crypto import EVERYONE, KeyPair, MaskStream, Refused, SealingKey, Secret
from tacit.crypto.mask_streams import KEY_BYTES
from tacit.exchange.base import Keys, SiloRole
from tacit.exchange.post import SERVER, OutOfTurn, join_named, named_parts, parted
from tacit.exchange.sums import Grid, Members, PersonVectors, checked_groups
from tacit.families.weighting.blinding import blinding_for
from tacit.families.weighting.oblivious_transfer import TransferReceiver
from tacit.families.weighting.paillier import Ciphertexts, PublicKey, residues, units
from tacit.families.weighting.paillier_terms import COUNTS, KEYS, PROTOCOL, READY, REQUESTS, SEED, SUMS, PaillierTerms
from tacit.families.weighting.slot_counts import SlotCounts
from tacit.privacy.mechanisms.discrete_gaussian import discrete_gaussian_integers
from tacit.privacy.randomness import Stream

# exponentiations that are made one by one before the tables that make them quick are worth their time
_BEFORE_TABLES = 150


class PaillierSilo(SiloRole):
    """One silo. Setup goes ``keys``, ``seed``, ``counts``; a round is ``sums``, or ``ready``, ``requests``, ``sums``
    where sampling is hidden. A message that is refused ends setup or the round; no other can take its place.

        phase      answers                            with
        keys       (begins setup)                     two public keys
        seed       the keys of all parties            the first silo: a common seed R, sealed for each peer
        counts     R                                  r_u n_su for each slot, masked: the server learns r_u N_u
        ready      (begins a round)                   nothing
        requests   the server's offer                 one of M choices for each slot, the same in all silos, unseen
        sums       the slots                          the weighted sums of the contributions and noise, encrypted

    Several people may have one slot u (:class:`SlotCounts`).
    """

    releases = (SUMS,)
    to_everyone = (KEYS,)
    terms: PaillierTerms

    def __init__(
        self,
        terms: PaillierTerms,
        keys: Keys,
        grid: Grid,
        members: Members,
        *,
        workers: int = 1,
        insecure_for_tests: bool = False,
    ) -> None:
        super().__init__(PROTOCOL, terms, keys, grid)
        self._counts = SlotCounts(members, terms.people, terms.cap)
        self._workers, self._insecure = workers, insecure_for_tests
        self._handlers = {
            SEED: self._deal,
            COUNTS: self._count,
            "weights": self._take_weights,
            REQUESTS: self._request,
            SUMS: self._choose,
        }
        self._set_up = False
        self._drawn = 0

    # -- setup

    def open(self) -> bytes:
        self._post.begin(0)
        self._sealing, self._pairs = SealingKey(), KeyPair()
        self._phase = SEED
        return self._written(KEYS, self._sealing.public + self._pairs.public)

    def _deal(self, content: bytes) -> bytes:
        """The keys of all silos; the first silo deals the common seed."""
        public, keys = parted(content, SERVER, 2)
        self._key = PublicKey.from_bytes(public, insecure_for_tests=self._insecure, peer=SERVER)
        if self._key.bits != self.terms.key_bits:
            raise Refused("bad-key", f"a key of {self._key.bits} bits where {self.terms.key_bits} are due", SERVER)
        signed = named_parts(keys, SERVER, self.terms.silos)
        if set(signed) != set(self.terms.silos):
            raise Refused("incomplete", "not the keys of all silos", SERVER)
        self._peers = self._post.read_keys(KEYS, signed, (self._sealing.public, self._pairs.public))
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
        """r_u n_su + masks, for every slot; the first silo adds a phantom record, so that no slot has none in all."""
        leader, n = self.terms.leader, self._key.n
        if self.name != leader:
            opened = self._post.read_sealed(leader, SEED, content, self._sealing)
            if len(opened) != KEY_BYTES:
                raise Refused("wrong-length", "a seed of another length", leader)
            self._seed = Secret(opened)
        self._blinds = units(self._common_stream("blinds"), n, self.terms.people)
        phantom = int(self.name == leader)
        blinded = [r * (int(count) + phantom) % n for r, count in zip(self._blinds, self._counts.of_slots, strict=True)]
        for sign, stream in self._pair_streams("counts"):
            masks = residues(stream, n, self.terms.people)
            blinded = [(value + sign * mask) % n for value, mask in zip(blinded, masks, strict=True)]
        self._phase = None if self.terms.sampling else "weights"
        self._set_up = bool(self.terms.sampling)
        size = (self._key.bits + 7) // 8
        return b"".join(int(value).to_bytes(size, "big") for value in blinded)

    def _take_weights(self, content: bytes) -> bytes:
        """Enc(1 / (r_u N_u)) for each slot, good for all rounds."""
        self._bases = self._raised(self._ciphertexts(content, self.terms.people))
        self._set_up = True
        return b""

    def _raised(self, inverses: Ciphertexts) -> dict[int, mpz]:
        """Enc(C_LCM n / N_u) of each person who counts here, with n records in slot u: one exponentiation for a person,
        not for each of a person's numbers."""
        counted, common = self._counts.counted, self.terms.common
        present = np.flatnonzero(counted).tolist()
        slots, counts = (column[counted].tolist() for column in self._counts.members)
        chosen = Ciphertexts(self._key, [inverses.values[slot] for slot in slots])
        exponents = [
            int(self._blinds[slot] * count * common % self._key.n) for slot, count in zip(slots, counts, strict=True)
        ]
        return dict(zip(present, chosen.multiply(exponents, self._workers).values, strict=True))

    # -- a round

    def begin(self, number: int, contribution: Iterable[PersonVectors], noise: Stream, preface: bytes = b"") -> bytes:
        """Start round ``number`` (from 1) with what this silo's subjects add. The groups are gathered: what is small
        enough to be encrypted fits into memory."""
        terms = self.terms
        if not self._set_up:
            raise OutOfTurn("a round before setup has ended", self.name)
        groups = checked_groups(contribution, terms.numbers, terms.entry, terms.norm, self._counts.members.counts)
        people = PersonVectors.joined(list(groups), terms.numbers)
        self._post.begin(number)
        counted = self._counts.counted[people.places]
        self._people, self._noise = PersonVectors(people.places[counted], people.vectors[counted]), noise
        if terms.sampling:
            self._phase = REQUESTS
            return self._written(READY, b"")
        self._phase = None
        return self._written(SUMS, self._sums())

    def _request(self, content: bytes) -> bytes:
        """Ask for one of M slots of each person: which, R says, so that all silos ask for the same."""
        assert self.terms.sampling is not None
        slots = self.terms.sampling[1]
        choices = [int(c) for c in residues(self._common_stream("choices"), slots, self.terms.people)]
        place = self._post.place(SERVER, self.name, "transfer")
        self._transfer = TransferReceiver(place, content, choices, slots)
        self._phase = SUMS
        return self._transfer.requests

    def _choose(self, content: bytes) -> bytes:
        received = self._transfer.receive(parted(content, SERVER, self.terms.people))
        self._bases = self._raised(self._ciphertexts(b"".join(received), self.terms.people))
        return self._sums()

    def _sums(self) -> bytes:
        """Enc(sum_u C_LCM n_su / N_u a_u + z) in slots, re-randomised, under masks with every peer."""
        terms, people = self.terms, self._people
        padded = np.zeros((terms.outputs * terms.packed, len(people.places)), np.int64)
        padded[: terms.numbers] = people.vectors.T
        bases = Ciphertexts(self._key, [self._bases[place] for place in people.places.tolist()])
        sums = bases.packed_sums(padded, terms.packed, terms.width, self._workers)
        sums = sums.add_plain(self._packed_noise())
        masks = {sign: [s for mark, s in self._pair_streams("masks") if mark == sign] for sign in (1, -1)}
        hidden = self._rerandomised(sums).masked(masks[1], masks[-1])
        del self._people, self._noise
        return hidden.to_bytes()

    def _packed_noise(self) -> list[int]:
        """A discrete Gaussian on the integers for every number: no multiple of C_LCM."""
        terms = self.terms
        drawn = discrete_gaussian_integers(terms.share, terms.numbers, self._noise)
        return [
            sum(value << (terms.width * k) for k, value in enumerate(drawn[start : start + terms.packed]))
            for start in range(0, terms.numbers, terms.packed)
        ]

    def _rerandomised(self, sums: Ciphertexts) -> Ciphertexts:
        """Fresh randomness for every ciphertext that leaves (specification 4.6, leak B). The masks hide a silo's
        message from the server alone; from the server and other silos together they hide only a sum over the rest of
        the silos, whose randomness must not say how that was computed."""
        self._drawn += len(sums)
        if self._drawn > _BEFORE_TABLES:
            return sums.rerandomised(blinding_for(int(self._key.n), self._workers))
        return sums.add(self._key.encrypt([0] * len(sums)))

    # -- streams

    def _common_stream(self, purpose: str) -> MaskStream:
        """Numbers that all silos know, and the server does not."""
        return MaskStream(self._seed, self._post.place("silos", EVERYONE, purpose))

    def _pair_streams(self, purpose: str) -> list[tuple[int, MaskStream]]:
        """Streams in common with each peer: one adds what the other subtracts."""
        return [
            (1 if self.name < peer else -1, self._pairs.mask(public, self._post.place(self.name, peer, purpose)))
            for peer, (_, public) in self._peers.items()
        ]

    def _ciphertexts(self, data: bytes, count: int) -> Ciphertexts:
        found = self._key.ciphertexts(data, SERVER)
        if len(found) != count:
            raise Refused("wrong-length", f"{len(found)} ciphertexts where {count} are due", SERVER)
        return found
