"""What all parties of a masked sum agree on before it begins; everything in it is public."""

from __future__ import annotations

from dataclasses import dataclass

from tacit.crypto import Refused
from tacit.exchange.post import Terms

PROTOCOL = "tacit-masked-1"
# the phases of a round, named after what silos send in them
KEYS, SHARES, VECTORS, SURVIVORS, UNMASKING = PHASES = ("keys", "shares", "vectors", "survivors", "unmasking")

# of a list of all silos, more than keys, or two sealed shares, and signatures take for each
_PER_SILO = 1024


@dataclass(frozen=True)
class MaskedTerms(Terms):
    """The terms of a masked sum.

    run        a name that no other run has
    silos      who takes part, by names of the roster
    numbers    how many numbers every vector has
    bits       sums are taken in Z_2^bits; a whole number of bytes
    largest    no entry of a silo's vector is larger, in steps of the grid
    share      standard deviation of each silo's noise, in steps of the grid
    threshold  so many silos must stay to the end, and so many together can open one that did not

    A server that, with c silos on its side, tells two stories about who has survived needs 2 threshold - c silos to
    believe it; with 2 threshold > silos + c there are not so many.
    """

    numbers: int
    bits: int
    largest: int
    share: float
    threshold: int

    def __post_init__(self) -> None:
        self.check_names()
        if not 2 <= len(self.silos) < 2 * self.threshold or self.threshold > len(self.silos):
            reason = f"a threshold of {self.threshold} for {len(self.silos)} silos: more than half must stay"
            raise Refused("bad-terms", reason)
        if self.bits % 8 or not 8 <= self.bits <= 64:
            raise Refused("bad-terms", f"sums in whole bytes, up to 64 bits, not {self.bits} bits")

    @property
    def vector_bytes(self) -> int:
        return self.numbers * self.bits // 8

    @property
    def longest(self) -> int:
        """No message of a round has more bytes: a vector, or what is said of or to each silo."""
        return self.vector_bytes + self.of_each_silo(_PER_SILO)

    def index(self, silo: str) -> int:
        """A silo's number as a holder of shares, from 1."""
        return self.silos.index(silo) + 1
