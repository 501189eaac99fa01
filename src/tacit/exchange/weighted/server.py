"""The server's side of a weighted sum: it holds the key, and learns r_u N_u and the sum."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from gmpy2 import gcd, invert, mpz

from tacit.crypto import Ciphertexts, Identity, Refused, Replayed, SecretKey, TransferSender
from tacit.crypto.key_agreement import KEY_BYTES
from tacit.exchange.grid import Grid
from tacit.exchange.post import SERVER, OutOfTurn, Post, TooFew, join, join_named, named_parts
from tacit.exchange.weighted.terms import COUNTS, KEYS, PROTOCOL, READY, REQUESTS, SEED, SUMS, WeightedTerms


class WeightedServer:
    """As :class:`~tacit.exchange.masked.MaskedServer`, but nobody may be missing: ``begin_setup`` and ``begin``, then
    ``receive`` every silo's message and ``advance``. A message that is refused counts as none. After a round ``total``
    holds the sums, times C_LCM and in steps of the grid; after one that failed, None."""

    def __init__(
        self,
        terms: WeightedTerms,
        identity: Identity,
        identities: Mapping[str, bytes],
        *,
        key: SecretKey | None = None,
        workers: int = 1,
    ) -> None:
        self.terms = terms
        self._post = Post(PROTOCOL, terms.place, SERVER, identity, identities)
        self._key = SecretKey.generate(terms.key_bits) if key is None else key
        self._workers = workers
        self._phase: str | None = None
        self._inbox: dict[str, bytes] = {}
        self._signed: dict[str, bytes] = {}
        self._inverses: list[mpz] | None = None
        self.total: list[int] | None = None

    @property
    def phase(self) -> str | None:
        """What silos are to send now; None outside of setup and rounds."""
        return self._phase

    def begin_setup(self) -> None:
        self._begin(0, KEYS)

    def begin(self, number: int) -> None:
        if self._inverses is None:
            raise OutOfTurn("a round before setup has ended", SERVER)
        self._begin(number, READY if self.terms.sampling else SUMS)

    def _begin(self, number: int, phase: str) -> None:
        self._post.begin(number)
        self.total, self._inbox, self._signed, self._phase = None, {}, {}, phase

    def receive(self, sender: str, message: bytes) -> None:
        """Take ``sender``'s message of this phase, or refuse it."""
        phase = self._phase
        if phase is None:
            raise OutOfTurn("a message outside of setup or a round", sender)
        if sender in self._inbox:
            raise Replayed(f"a second message in the phase of {phase}", sender)
        content = self._post.read(sender, phase, message, to_everyone=phase == KEYS)
        if phase == KEYS and len(content) != 2 * KEY_BYTES:
            raise Refused("malformed", "a message without two keys", sender)
        self._inbox[sender], self._signed[sender] = content, message

    def advance(self) -> dict[str, bytes]:
        """Close the phase; what every silo is told next."""
        phase = self._phase
        if phase is None:
            raise OutOfTurn("there is no phase to close", SERVER)
        try:
            missing = [silo for silo in self.terms.silos if silo not in self._inbox]
            if missing:
                raise TooFew(f"a weighted sum needs every silo; missing (phase of {phase}): {', '.join(missing)}")
            following, contents = self._next(phase)
        except BaseException:
            self._end()
            raise
        self._inbox, self._signed, self._phase = {}, {}, following
        if following is None:
            self._end()
            return {}
        return {silo: self._post.write(silo, following, contents[silo]) for silo in self.terms.silos}

    def numbers(self, grid: Grid) -> npt.NDArray[np.float64]:
        """The sums as numbers, after a round."""
        if self.total is None:
            raise OutOfTurn("there is no sum", SERVER)
        common = self.terms.common
        return np.array([value / common for value in self.total]) * grid.precision

    def _next(self, phase: str) -> tuple[str | None, dict[str, bytes]]:
        silos = self.terms.silos
        if phase == KEYS:
            told = join([self._key.public.to_bytes(), join_named(self._signed)])
            return SEED, dict.fromkeys(silos, told)
        if phase == SEED:
            leader = self.terms.leader
            sealed = named_parts(self._inbox[leader], leader, silos)
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
            replies = {silo: sender.reply(self._inbox[silo], slots) for silo, sender in self._senders.items()}
            return SUMS, {silo: join(reply) for silo, reply in replies.items()}
        if phase == SUMS:
            self.total = self._sum()
        return None, {}

    def _inverted(self) -> list[mpz]:
        """1 / (r_u N_u) modulo n: all that the server ever learns about somebody's number of records is r_u N_u, which
        is uniform among the units, as r_u is."""
        n, size, people = self._key.public.n, (self._key.public.bits + 7) // 8, self.terms.people
        totals = [mpz(0)] * people
        for silo, content in self._inbox.items():
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
        """For everybody M ciphertexts in random order: a of 1 / (r_u N_u), the others of 0; fresh in every round, the
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
        for silo, content in self._inbox.items():
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

    def _end(self) -> None:
        self._phase = None
        self._inbox, self._signed = {}, {}
