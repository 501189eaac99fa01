"""The server's side of a weighted sum: it holds the key, and learns r_u N_u and the sum."""

from __future__ import annotations

import secrets

import numpy as np
import numpy.typing as npt
from gmpy2 import gcd, invert, mpz

from tacit.crypto import Refused
from tacit.exchange.base import Keys, ServerRole
from tacit.exchange.post import SERVER, OutOfTurn, join, join_named, named_parts, two_keys
from tacit.exchange.sums import Grid
from tacit.families.weighting.oblivious_transfer import TransferSender
from tacit.families.weighting.paillier import Ciphertexts, SecretKey
from tacit.families.weighting.paillier_terms import COUNTS, KEYS, PROTOCOL, READY, REQUESTS, SEED, SUMS, PaillierTerms
from tacit.privacy.randomness import Stream


class PaillierServer(ServerRole):
    """No silo may be missing. After a round ``total`` holds the sums, times C_LCM and in steps of the grid."""

    to_everyone = (KEYS,)
    terms: PaillierTerms

    def __init__(
        self, terms: PaillierTerms, keys: Keys, grid: Grid, *, key: SecretKey | None = None, workers: int = 1
    ) -> None:
        super().__init__(PROTOCOL, terms, keys, grid)
        self._key = SecretKey.generate(terms.key_bits) if key is None else key
        self._workers = workers
        self._contents: dict[str, bytes] = {}
        self._inverses: list[mpz] | None = None

    def open(self) -> None:
        self._begin(0, KEYS)

    def begin(self, number: int, stream: Stream | None = None, preface: bytes = b"") -> None:
        if self._inverses is None:
            raise OutOfTurn("a round before setup has ended", SERVER)
        self._begin(number, READY if self.terms.sampling else SUMS)

    def numbers(self) -> npt.NDArray[np.float64]:
        if self.total is None or self._grid is None:
            raise OutOfTurn("there is no sum", SERVER)
        return np.array([value / self.terms.common for value in self.total]) * self._grid.precision

    def _read(self, phase: str, sender: str, content: bytes) -> None:
        if phase == KEYS:
            two_keys(content, sender)
        self._contents[sender] = content

    def _end(self) -> None:
        super()._end()
        self._contents = {}

    def _next(self, phase: str) -> tuple[str | None, dict[str, bytes]]:
        silos = self.terms.silos
        if phase == KEYS:
            told = join([self._key.public.to_bytes(), join_named(self._inbox)])
            return SEED, dict.fromkeys(silos, told)
        if phase == SEED:
            leader = self.terms.leader
            sealed = named_parts(self._contents[leader], leader, silos)
            if set(sealed) != set(silos) - {leader}:
                raise Refused("incomplete", "no seed for some of the silos", leader)
            return COUNTS, {silo: sealed.get(silo, b"") for silo in silos}
        if phase == COUNTS:
            self._inverses = self._inverted()
            if self.terms.sampling:
                return None, {}
            weights = self._key.encrypt(self._signed_residues(), self._workers).to_bytes()
            return "weights", dict.fromkeys(silos, weights)
        if phase == READY:
            places = {silo: self._post.place(SERVER, silo, "transfer") for silo in silos}
            self._senders = {silo: TransferSender(place) for silo, place in places.items()}
            return REQUESTS, {silo: sender.offer for silo, sender in self._senders.items()}
        if phase == REQUESTS:
            slots = self._slots()
            replies = {silo: sender.reply(self._contents[silo], slots) for silo, sender in self._senders.items()}
            return SUMS, {silo: join(reply) for silo, reply in replies.items()}
        if phase == SUMS:
            self.total = self._sum()
        return None, {}

    def _inverted(self) -> list[mpz]:
        """1 / (r_u N_u) modulo n: all that the server ever learns about a subject's number of records is r_u N_u, which
        is uniform among the units, as r_u is."""
        n, size, people = self._key.public.n, (self._key.public.bits + 7) // 8, self.terms.people
        totals = [mpz(0)] * people
        for silo, content in self._contents.items():
            if len(content) != size * people:
                raise Refused("wrong-length", f"{len(content)} bytes are not {people} counts", silo)
            for place in range(people):
                totals[place] += mpz.from_bytes(content[place * size : (place + 1) * size], "big")
        if any(gcd(total, n) != 1 for total in totals):
            raise Refused("out-of-range", "a blinded count that has no inverse")
        return [invert(total % n, n) for total in totals]

    def _signed_residues(self) -> list[int]:
        assert self._inverses is not None
        return [self._key.public.decode(inverse) for inverse in self._inverses]

    def _slots(self) -> list[list[bytes]]:
        """For each slot M ciphertexts in random order: a of 1 / (r_u N_u), the others of 0; fresh in every round, the
        same for all silos."""
        assert self.terms.sampling is not None
        chosen, slots = self.terms.sampling
        contents: list[int] = []
        for inverse in self._signed_residues():
            order = [inverse] * chosen + [0] * (slots - chosen)
            secrets.SystemRandom().shuffle(order)
            contents += order
        encrypted = self._key.encrypt(contents, self._workers)
        size = self._key.public.ciphertext_bytes
        parts = [value.to_bytes(size, "big") for value in encrypted]
        return [parts[start : start + slots] for start in range(0, len(parts), slots)]

    def _sum(self) -> list[int]:
        """The product of all silos' messages, decrypted and taken out of its slots."""
        product: Ciphertexts | None = None
        for silo, content in self._contents.items():
            sums = self._key.public.ciphertexts(content, silo)
            if len(sums) != self.terms.outputs:
                raise Refused("wrong-length", f"{len(sums)} ciphertexts where {self.terms.outputs} are due", silo)
            product = sums if product is None else product.add(sums)
        assert product is not None
        plain = self._key.decrypt(product, self._workers)
        return [number for value in plain for number in self._unpacked(value)][: self.terms.numbers]

    def _unpacked(self, value: int) -> list[int]:
        """The signed numbers of one plaintext, lowest slot first."""
        width, numbers = self.terms.width, []
        for _ in range(self.terms.packed):
            number = value & ((1 << width) - 1)
            number -= (number >> (width - 1)) << width
            numbers.append(number)
            value = (value - number) >> width
        return numbers
