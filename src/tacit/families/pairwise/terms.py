"""What all parties of a sum with pairwise noise agree on before it begins; everything in it is public."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from tacit.crypto import Refused, Secret
from tacit.exchange.post import Terms
from tacit.exchange.sums import Integers
from tacit.privacy.mechanisms.discrete_gaussian import discrete_gaussian
from tacit.privacy.randomness import Stream

PROTOCOL = "tacit-pairwise-1"
# the phases of a round, named after what silos send in them
KEYS, VECTORS, SEEDS = PHASES = ("keys", "vectors", "seeds")

# of a list of all silos, more than a key, or a seed, and a signature take for each
_PER_SILO = 1024


@dataclass(frozen=True)
class PairwiseTerms(Terms):
    """The terms of a sum.

    run          a name that no other run has
    silos        who takes part, by names of the roster
    pairs        who shares noise with whom, each pair once, the earlier of the silos first
    numbers      how many numbers every vector has
    largest      no entry of a silo's vector is larger, in steps of the grid
    independent  standard deviation of each silo's own noise, in steps of the grid
    shared       standard deviation of each pair's noise, in steps of the grid
    drop_outs    so many silos may vanish; no silo shows more keys than that
    """

    pairs: tuple[tuple[str, str], ...]
    numbers: int
    largest: int
    independent: float
    shared: float
    drop_outs: int = 0

    def __post_init__(self) -> None:
        self.check_names()
        if any(first >= second for first, second in self.pairs) or len(set(self.pairs)) != len(self.pairs):
            raise Refused("bad-terms", "every pair is listed once, in order")
        if not {name for pair in self.pairs for name in pair} <= set(self.silos):
            raise Refused("bad-terms", "pairs are pairs of silos")

    @property
    def vector_bytes(self) -> int:
        return 8 * self.numbers

    @property
    def longest(self) -> int:
        """No message of a round has more bytes: a vector, or what is said of or to each silo."""
        return self.vector_bytes + self.of_each_silo(_PER_SILO)

    @property
    def least(self) -> int:
        """So many silos must stay to the end."""
        return len(self.silos) - self.drop_outs

    @cached_property
    def peers(self) -> dict[str, tuple[str, ...]]:
        """By silo, with whom it shares noise."""
        found: dict[str, list[str]] = {silo: [] for silo in self.silos}
        for first, second in self.pairs:
            found[first].append(second)
            found[second].append(first)
        return {silo: tuple(peers) for silo, peers in found.items()}

    def noise(self, seed: Secret, silo: str, peer: str) -> Integers:
        """What ``silo`` adds for its pair with ``peer``: the pair's numbers, with the sign of the earlier name's."""
        drawn = discrete_gaussian(Fraction(self.shared), self.numbers, Stream(bytes(seed.expose())))
        return drawn if silo < peer else -drawn
