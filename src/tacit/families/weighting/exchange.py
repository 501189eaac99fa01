"""The weighted exchange: subjects are weighted by their records in all silos, which no party learns."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from tacit.errors import UserError
from tacit.exchange.base import Exchange, Keys, PlanPart, ServerRole, SiloRole
from tacit.exchange.masked import Masked, check_drop_outs
from tacit.exchange.session import Summing, silo_names
from tacit.exchange.sums import Grid, Members, SumFacts
from tacit.families.weighting import lattice_terms, paillier_terms
from tacit.families.weighting.lattice import MOST_RECORDS, WEIGHT_BITS, setup_bytes
from tacit.families.weighting.lattice_joint import JointServer, JointSilo
from tacit.families.weighting.lattice_server import LatticeServer
from tacit.families.weighting.lattice_silo import KEPT_BYTES, LatticeSilo
from tacit.families.weighting.lattice_terms import LatticeTerms
from tacit.families.weighting.open_sum import OpenSum
from tacit.families.weighting.paillier import DEFAULT_BITS, LEAST_BITS
from tacit.families.weighting.paillier_server import PaillierServer
from tacit.families.weighting.paillier_silo import PaillierSilo
from tacit.families.weighting.paillier_terms import PaillierTerms
from tacit.families.weighting.ring import DEGREE, PRIMES
from tacit.planning.settings import Count, Natural, Positive
from tacit.privacy import Index, Reveals, View
from tacit.privacy.proofs.weight_shifts import shared_slots
from tacit.privacy.proofs.weight_tables import RECORD_WEIGHTS
from tacit.privacy.randomness import shares

# as hard to break as a cipher with a key of 256 bits (NIST SP 800-57)
_MOST_BITS = 15360
# seconds of one core, measured (benchmarks/private_weighting.py): of setup for a slot; of a round for a subject and a
# number, for a subject, for a number, and for a number and a silo
_SETUP_SECONDS, _PRODUCT_SECONDS, _PERSON_SECONDS = 0.027, 35e-9, 0.006
_NUMBER_SECONDS, _MASK_SECONDS = 3e-6, 0.15e-6


@dataclass(frozen=True)
class Slots:
    """How many slots there are, and the expected share of subjects who share theirs with another."""

    slots: int
    shared: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def words(self) -> str:
        return (
            f"{self.shared:.1%} of the subjects are expected to share one of the {self.slots:,} slots with another, and"
            " share its weight. More slots lower that share. They do not lower the noise: guarantees count that"
            " removing a subject changes the weights of others in its slot. Sampling of subjects hides nothing there."
        )


@dataclass(frozen=True)
class ExchangeCost:
    """About what the exchange costs a silo, on one core of a present-day processor.

    setup_bytes    received by a silo, once; the first silo receives and sends as much again
    round_bytes    sent by a silo in a round
    setup_seconds  once, from the first message to the first round: of the server, the first silo and the others
    round_seconds  at most, where every declared subject has records in the silo; local training apart
    """

    setup_bytes: int
    round_bytes: int
    setup_seconds: float
    round_seconds: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def words(self) -> str:
        return (
            f"Setup, once: the server sends {_megabytes(self.setup_bytes)} to each silo, and as much again to and from"
            f" the first one; it takes about {_duration(self.setup_seconds)}. A round: each silo computes at most about"
            f" {_duration(self.round_seconds)} for encryption, apart from training, and sends"
            f" {_megabytes(self.round_bytes)}."
        )


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.2g} MB" if size < 10**7 else f"{size / 1e6:,.0f} MB"


def _duration(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 120 else f"{seconds / 60:,.0f} min"


@dataclass(frozen=True)
class Weighted(Exchange):
    """Private weighting: subjects are weighted by a public table of their records in all silos (specification 4.6).

    protocol         lattice: encryption from ring-LWE, for models of a million parameters. paillier: Protocol 1 of
                     [ULDP-FL], corrected; slower by a factor of thousands, for comparison and for ``hidden_sampling``
    precision        the step of the grid
    drop_outs        lattice: how many silos may vanish in a round; all must take part in setup
    colluding        lattice: how many silos may share what they see with each other, where silos may drop out
    index            slots: a subject's slot is a keyed hash modulo ``slots``; subjects may share one, and every bound
                     counts that (``proofs.weight_shifts``). list: silos share a padded list of all subjects, so that
                     no two share a slot; they know who is on it, and nothing is promised to views that hold records
    slots            how many slots there are; by default as many as declared subjects
    key              lattice: server: the server holds the key. joint: it is the sum of one of the server and one of
                     each silo, and ``silos - drop_outs`` silos must help to open a sum
    max_setup_mb     lattice: setup may send at most this many megabytes to a silo
    encrypted        lattice: false: the simulator computes the same sums, to the last number, without encryption. All
                     records are in one process there, and encryption protects nothing from it
    key_bits         paillier: length of the server's modulus; 3072 where it is left out
    hidden_sampling  paillier: who is in a round is hidden from the silos too, by oblivious transfer (specification
                     4.7); otherwise silos know, from a common seed that the server does not have

    Formal guarantee, for parties that follow the protocol and a server that colludes with no silo: the server learns
    the sum over silos, with the noise of all of them that stay, and nothing else; a silo learns the sum. A server that
    colludes with one silo learns every subject's number of records.
    """

    name: ClassVar[str] = "weighted"
    about: ClassVar[str] = (
        "private weighting: subjects are weighted by their records in all silos, which no party learns"
    )
    carries = "subjects"
    opens = True
    carries_once = True

    protocol: Literal["lattice", "paillier"] = "lattice"
    precision: Positive = 1e-8
    drop_outs: Natural = 0
    colluding: Natural = 0
    index: Index = "slots"
    slots: Count | None = None
    key: Literal["server", "joint"] = "server"
    max_setup_mb: Positive = 4000.0
    encrypted: bool = True
    key_bits: Count | None = None
    hidden_sampling: bool = False

    @property
    def reveals(self) -> Mapping[str, Reveals]:
        known: dict[str, Reveals] = {"public": "sum", "server": "sum", "silo": "sum"}
        if self.colluding > 1:
            known[f"silos:{self.colluding}"] = "sum"
        if self.colluding and self.key == "joint":
            known[f"server+silos:{self.colluding}"] = "sum"
        return known

    def reveals_to(self, view: View) -> Reveals | None:
        """The sum. Where silos may drop out, shares of noise are made for ``colluding`` silos and no more."""
        most = max(1, self.colluding) if self.drop_outs else math.inf
        known = view.kind in ("public", "server") or (view.kind in ("silo", "silos") and view.count <= most)
        together = view.kind == "server+silos" and self.key == "joint" and view.count <= self.colluding
        return "sum" if known or together else None

    def settings_for(self, view: View) -> str | None:
        if self.protocol == "paillier" or view.kind not in ("silos", "server+silos"):
            return None
        joint = 'exchange.key = "joint" and ' if view.kind == "server+silos" and self.key == "server" else ""
        return f"{joint}exchange.colluding = {view.count}"

    def assumptions(self, view: View, silos: int) -> tuple[str, ...]:
        alone = "the server colludes with no silo: together they would learn each subject's number of records"
        few = f"the server colludes with at most {self.colluding} silos"
        common = (
            "silos know each other's signing keys, all parties follow the protocol; noise is discrete, drawn exactly",
            alone if self.key == "server" else few,
        )
        if self.protocol == "lattice":
            return (
                *common,
                "ring-LWE of degree 8192 with a modulus of at most 218 bits is hard (128 bits of security)",
                f"at least {silos - self.drop_outs} of {silos} silos stay to the end of a round, or it is not released",
            )
        short = f"a Paillier key of {self.bits} bits is not broken; {DEFAULT_BITS} are recommended"
        return (*common, *((short,) if self.bits < DEFAULT_BITS else ()))

    @property
    def bits(self) -> int:
        """The length of a Paillier key."""
        return self.key_bits or DEFAULT_BITS

    def check(self, facts: SumFacts) -> None:
        """Refuse (UserError) numbers that do not fit each other or the encryption."""
        if facts.silos < 2:
            problem = "a weighted sum needs at least two silos"
            raise UserError("too-few", "exchange.name", problem, 'use exchange.name = "plain"')
        self._check_lattice(facts) if self.protocol == "lattice" else self._check_paillier()
        self.terms("check", [f"silo {k}" for k in range(facts.silos)], facts.numbers or 1, facts)

    def _check_lattice(self, facts: SumFacts) -> None:
        if self.key_bits is not None:
            problem = 'is used with protocol = "paillier" only: the modulus of lattice follows from the plan'
            raise UserError("no-effect", "exchange.key_bits", problem, 'leave it out, or use protocol = "paillier"')
        if self.hidden_sampling:
            problem = 'requires protocol = "paillier": with lattice, silos know who is sampled'
            raise UserError("not-supported", "exchange.hidden_sampling", problem, 'use protocol = "paillier"')
        check_drop_outs(self.drop_outs, self.colluding, facts.silos)
        if self.index == "list" and self.slot_count(facts.people) < facts.people:
            problem = f"a list of {self.slots:,} places is too short for {facts.people:,} declared subjects"
            raise UserError("too-few", "exchange.slots", problem, f"use at least {facts.people}, or leave it out")
        slots, joint = self.slot_count(facts.people), self.key == "joint"
        received = slots * setup_bytes(len(PRIMES) if joint else len(PRIMES) - 1, joint)
        if received > self.max_setup_mb * 1e6:
            problem = f"setup sends {received / 1e6:,.0f} MB to each silo for {slots:,} slots, more than allowed"
            fix = f"raise it to {math.ceil(received / 1e6)}, or use fewer subjects or slots"
            raise UserError("out-of-range", "exchange.max_setup_mb", problem, fix)

    def _check_paillier(self) -> None:
        for field, unused in (("drop_outs", 0), ("colluding", 0), ("key", "server"), ("encrypted", True)):
            if getattr(self, field) != unused:
                problem = 'requires protocol = "lattice"'
                raise UserError("not-supported", f"exchange.{field}", problem, "leave it out, or change the protocol")
        if self.bits < LEAST_BITS or self.bits % 2:
            problem = f"{self.bits} is " + ("odd" if self.bits >= LEAST_BITS else "too short for a Paillier key")
            raise UserError("out-of-range", "exchange.key_bits", problem, f"use 3072 (at least {LEAST_BITS})")
        if self.bits > _MOST_BITS:
            problem = f"a Paillier key of {self.bits} bits would take days to make"
            raise UserError("out-of-range", "exchange.key_bits", problem, f"use 3072 (at most {_MOST_BITS})")

    @property
    def weights(self) -> tuple[str, ...]:
        """Paillier plaintexts hold the exact quotients n_su / (1 + N_u) over a common denominator, and no others. The
        phantom record keeps 1 + N_u invertible. A lattice plaintext holds any table."""
        return RECORD_WEIGHTS if self.protocol == "lattice" else ("records-phantom",)

    def record_cap(self, silos: int) -> int | None:
        """As many as the table of weights has places for."""
        return MOST_RECORDS // max(1, silos) if self.protocol == "lattice" else None

    @property
    def weight_bits(self) -> int | None:
        return WEIGHT_BITS if self.protocol == "lattice" else None

    def terms(self, run: str, silos: Sequence[str], numbers: int, facts: SumFacts) -> LatticeTerms | PaillierTerms:
        """What the parties agree on, for contributions of ``numbers`` numbers."""
        facts = replace(facts, people=self.slot_count(facts.people))
        if self.protocol == "lattice":
            return lattice_terms.agreed(
                run,
                tuple(silos),
                numbers,
                facts,
                self.precision,
                self.drop_outs,
                self.colluding,
                self.key == "joint",
            )
        return paillier_terms.agreed(run, tuple(silos), numbers, facts, self.precision, self.bits, self.hidden_sampling)

    def slot_count(self, people: int) -> int:
        return self.slots or people

    def plan_parts(self, promise: Any) -> dict[str, PlanPart]:
        from tacit.planning.plan import sum_facts

        people, facts = promise.facts.subjects, sum_facts(promise.method, promise.facts)
        if people is None:
            return {}
        count = self.slot_count(people)
        parts = self.masking.plan_parts(promise)
        if self.index == "slots":
            parts["slots"] = Slots(count, shared_slots(people, count))
        if self.protocol == "lattice" and facts.numbers is not None:
            parts["exchange_cost"] = self._cost(facts)
        return parts

    def _cost(self, facts: SumFacts) -> ExchangeCost:
        terms = self.terms("cost", [f"silo {k}" for k in range(facts.silos)], facts.numbers or 1, facts)
        assert isinstance(terms, LatticeTerms)
        numbers, people = terms.blocks * DEGREE, terms.people
        return ExchangeCost(
            people * setup_bytes(terms.lattice.primes, terms.joint),
            terms.ring.size,
            people * _SETUP_SECONDS * (5 if terms.joint else 1),
            people * (numbers * _PRODUCT_SECONDS + _PERSON_SECONDS)
            + numbers * (_NUMBER_SECONDS + facts.silos * _MASK_SECONDS),
        )

    def memory(self, people: int, numbers: int) -> int:
        slots, blocks = self.slot_count(people), -(-numbers // DEGREE)
        if self.protocol == "lattice":  # a ciphertext of each slot and its spectrum, and the sums' spectra
            return len(PRIMES) * DEGREE * (8 * slots + 64 * blocks) + KEPT_BYTES
        return self.bits * (slots + numbers)

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

    def session(self, silos: Sequence[str], numbers: int, facts: SumFacts, members: Sequence[Any] = ()) -> Summing:
        if self.encrypted:
            return super().session(silos, numbers, facts, members)
        terms = self.terms("open", silo_names(silos), numbers, facts)
        assert isinstance(terms, LatticeTerms)
        return OpenSum(terms, self.grid, members)

    def server(self, terms: LatticeTerms | PaillierTerms, keys: Keys) -> ServerRole:
        workers = os.cpu_count() or 1
        if isinstance(terms, LatticeTerms):
            made = JointServer if terms.joint else LatticeServer
            return made(terms, keys, self.grid, workers=workers)
        return PaillierServer(terms, keys, self.grid, workers=workers)

    def silo(self, terms: LatticeTerms | PaillierTerms, keys: Keys, members: Members) -> SiloRole:
        workers = os.cpu_count() or 1
        if isinstance(terms, LatticeTerms):
            made = JointSilo if terms.joint else LatticeSilo
            return made(terms, keys, self.grid, members, workers=workers)
        return PaillierSilo(terms, keys, self.grid, members, workers=workers)

    @property
    def grid(self) -> Grid:
        return Grid(self.precision)

    @property
    def masking(self) -> Masked:
        """Ciphertexts are for weights: what is released once is a masked sum."""
        return Masked(self.drop_outs, self.colluding, self.precision)

    def check_federated(self) -> None:
        if not self.encrypted:
            problem = "false is accepted in the simulator only: on a federation the server would learn all counts"
            raise UserError("simulator-only", "exchange.encrypted", problem, "leave it out")
        if self.index == "list":
            problem = '"list" is accepted in the simulator only: silos of a federation exchange no such list'
            raise UserError("simulator-only", "exchange.index", problem, 'use "slots"')
