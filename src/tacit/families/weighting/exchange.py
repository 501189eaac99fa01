"""The weighted exchange: subjects are weighted by their records in all silos, which no party learns."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tacit.errors import UserError
from tacit.exchange.base import Exchange, Keys, PlanPart
from tacit.exchange.masked import Masked
from tacit.exchange.sums import Grid, Members, SumFacts
from tacit.families.weighting.paillier import DEFAULT_BITS, LEAST_BITS
from tacit.families.weighting.server import WeightedServer
from tacit.families.weighting.silo import WeightedSilo
from tacit.families.weighting.terms import WeightedTerms, agreed
from tacit.planning.settings import Count, Positive
from tacit.privacy import Index, Reveals, View
from tacit.privacy.proofs.weight_shifts import shared_slots
from tacit.privacy.randomness import shares

# as hard to break as a cipher with a key of 256 bits (NIST SP 800-57)
_MOST_BITS = 15360


@dataclass(frozen=True)
class Slots:
    """How many slots there are, and the expected share of subjects who share theirs with another."""

    slots: int
    shared: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def words(self) -> str:
        return f"{self.shared:.3g} of the subjects are expected to share one of the {self.slots:,} slots with another."


@dataclass(frozen=True)
class Weighted(Exchange):
    """Protocol 1 of [ULDP-FL], corrected (specification 4.6): weights n_su / (1 + N_u) under Paillier encryption.

    precision        the step of the grid
    key_bits         length of the server's modulus
    hidden_sampling  who is in a round is hidden from the silos too, by oblivious transfer (specification 4.7);
                     otherwise silos know, from a common seed that the server does not have
    index            slots: a subject's slot is a keyed hash modulo ``slots``; subjects may share one, and every bound
                     counts that (``proofs.weight_shifts``). list: silos share a padded list of all subjects, so that
                     no two share a slot; they know who is on it, and nothing is promised to views that hold records
    slots            how many slots there are; by default as many as declared subjects

    Formal guarantee, for parties that follow the protocol and a server that colludes with no silo: the server learns
    the sum over silos, with the noise of all of them, and nothing else; a silo learns the sum. Any drop-out ends the
    round. A server that colludes with one silo learns every subject's number of records.
    """

    name: ClassVar[str] = "weighted"
    about: ClassVar[str] = (
        "private weighting: subjects are weighted by their records in all silos, which no party learns"
    )
    carries = "subjects"
    opens = True
    carries_once = True

    precision: Positive = 1e-8
    key_bits: Count = 3072
    hidden_sampling: bool = False
    index: Index = "slots"
    slots: Count | None = None

    @property
    def reveals(self) -> Mapping[str, Reveals]:
        return {"public": "sum", "server": "sum", "silo": "sum"}

    def reveals_to(self, view: View) -> Reveals | None:
        return "sum" if view.kind in ("public", "server", "silo", "silos") else None

    def assumptions(self, view: View, silos: int) -> tuple[str, ...]:
        short = f"a Paillier key of {self.key_bits} bits is not broken; {DEFAULT_BITS} are recommended"
        return (
            "silos know each other's signing keys, all parties follow the protocol; noise is discrete, drawn exactly",
            "the server colludes with no silo: together they would learn each subject's number of records",
            *((short,) if self.key_bits < DEFAULT_BITS else ()),
        )

    def check(self, facts: SumFacts) -> None:
        """Refuse (UserError) numbers that do not fit each other or the modulus."""
        if facts.silos < 2:
            problem = "a weighted sum needs at least two silos"
            raise UserError("too-few", "exchange.name", problem, 'use exchange.name = "plain"')
        if self.key_bits < LEAST_BITS or self.key_bits % 2:
            problem = f"{self.key_bits} is too short for a Paillier key" if self.key_bits < LEAST_BITS else "is odd"
            raise UserError("out-of-range", "exchange.key_bits", problem, f"use 3072 (at least {LEAST_BITS})")
        if self.key_bits > _MOST_BITS:
            problem = f"a Paillier key of {self.key_bits} bits would take days to make"
            raise UserError("out-of-range", "exchange.key_bits", problem, f"use 3072 (at most {_MOST_BITS})")
        self.terms("check", [f"silo {k}" for k in range(facts.silos)], 1, facts)

    def terms(self, run: str, silos: Sequence[str], numbers: int, facts: SumFacts) -> WeightedTerms:
        """What the parties agree on, for contributions of ``numbers`` numbers."""
        facts = replace(facts, people=self.slot_count(facts.people))
        return agreed(run, tuple(silos), numbers, facts, self.precision, self.key_bits, self.hidden_sampling)

    def slot_count(self, people: int) -> int:
        return self.slots or people

    def plan_parts(self, promise: Any) -> dict[str, PlanPart]:
        people = promise.facts.subjects
        if self.index != "slots" or people is None:
            return {}
        count = self.slot_count(people)
        return {"slots": Slots(count, shared_slots(people, count))}

    def slots_of(self, keys: npt.NDArray[np.int64], people: int) -> npt.NDArray[np.int64]:
        """The slots of people with these ``keys``, of whom ``people`` are declared. A list needs all of its people in
        one place: it is made here, as all silos would make it together."""
        count = self.slot_count(people)
        if self.index == "slots":
            return shares(keys, count)
        listed, place = np.unique(keys, return_inverse=True)
        if len(listed) > count:
            problem = f"a list of {count} places is too short for {len(listed)} subjects"
            raise UserError("too-few", "exchange.slots", problem, "raise it, or data.subjects.count")
        return place.astype(np.int64)

    def server(self, terms: WeightedTerms, keys: Keys) -> WeightedServer:
        return WeightedServer(terms, keys, self.grid, workers=os.cpu_count() or 1)

    def silo(self, terms: WeightedTerms, keys: Keys, members: Members) -> WeightedSilo:
        return WeightedSilo(terms, keys, self.grid, members, workers=os.cpu_count() or 1)

    @property
    def grid(self) -> Grid:
        return Grid(self.precision)

    @property
    def masking(self) -> Masked:
        """Ciphertexts are for weights: what is released once is a masked sum."""
        return Masked(precision=self.precision)

    def check_federated(self) -> None:
        if self.index == "list":
            problem = '"list" is for the simulator: silos of a federation do not exchange lists of their subjects'
            raise UserError("simulator-only", "exchange.index", problem, 'use "slots"')
