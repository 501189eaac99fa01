"""The masked exchange: the server learns the sum over silos, with the noise of all of them, and no silo's part."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tacit.errors import UserError
from tacit.exchange.base import Exchange, Keys
from tacit.exchange.grid import LEAST_SHARE, REACH, Grid, ring_bits, share_variance
from tacit.exchange.masked.server import MaskedServer
from tacit.exchange.masked.silo import MaskedSilo
from tacit.exchange.masked.terms import MaskedTerms
from tacit.exchange.sums import SumFacts
from tacit.planning.settings import Natural, Positive
from tacit.privacy import Reveals, View


@dataclass(frozen=True)
class Masked(Exchange):
    """Secure aggregation with drop-outs (Bonawitz et al. 2017, double masking) of integers on a grid.

    drop_outs  so many silos may vanish at any moment of a round; ``silos - drop_outs`` must stay to the end
    colluding  so many silos may share what they see with the server
    precision  the step of the grid

    Formal guarantee: whatever the server and up to ``colluding`` silos do (the server also by telling silos different
    stories), they learn of the other silos of a round nothing but one sum over at least ``silos - drop_outs`` silos,
    for ``2 drop_outs + colluding < silos``. In it is at least the noise that the method accounts for.
    """

    name: ClassVar[str] = "masked"
    about: ClassVar[str] = (
        "secure aggregation: the server sees the sum, with every silo's noise in it, and no single silo"
    )
    carries = "integers"
    carries_once = True

    drop_outs: Natural = 0
    colluding: Natural = 0
    precision: Positive = 1e-8

    @property
    def reveals(self) -> Mapping[str, Reveals]:
        known: dict[str, Reveals] = {"public": "sum", "server": "sum", "silo": "sum"}
        if self.colluding > 1:
            known[f"silos:{self.colluding}"] = "sum"
        if self.colluding:
            known[f"server+silos:{self.colluding}"] = "sum"
        return known

    def reveals_to(self, view: View) -> Reveals | None:
        """The sum; None for more colluding silos than are declared."""
        most = {"public": 1, "server": 1, "silo": 1, "silos": max(1, self.colluding), "server+silos": self.colluding}
        return "sum" if view.count <= most.get(view.kind, -1) else None

    def assumptions(self, view: View, silos: int) -> tuple[str, ...]:
        return (
            "silos know each other's signing keys, and follow the protocol; noise is discrete, drawn exactly",
            f"at least {silos - self.drop_outs} of {silos} silos stay to the end of a round, or it is not released",
        )

    def check(self, facts: SumFacts) -> None:
        """Refuse (UserError) numbers that do not go together."""
        silos = facts.silos
        if silos < 2:
            problem = "a masked sum needs at least two silos"
            raise UserError("too-few", "exchange.name", problem, 'use exchange.name = "plain"')
        if 2 * self.drop_outs + self.colluding >= silos:
            problem = f"2 drop_outs + colluding must be below the {silos} silos: else a server could open single silos"
            fix = f"use at most {max(0, (silos - 1 - self.colluding) // 2)} drop-outs, or fewer colluding silos"
            raise UserError("out-of-range", "exchange.drop_outs", problem, fix)
        share = self._share(facts)
        if 0 < share < LEAST_SHARE:
            finer = self.precision * share / LEAST_SHARE
            problem = (
                f"{self.precision:g} is too coarse: a silo's noise has {share:.2g} steps, {LEAST_SHARE:g} are needed"
            )
            raise UserError("out-of-range", "exchange.precision", problem, f"use {finer:.1e} or less")
        widest = facts.largest + REACH * math.sqrt(facts.silos) * self._share_size(facts)
        if widest / self.precision >= 2.0**63 * (1 - 1e-9):
            problem = f"{self.precision:g} is too fine: sums up to {widest:.1e} would not fit 64 bits"
            raise UserError("out-of-range", "exchange.precision", problem, f"use {widest / 2.0**62:.1e} or more")

    def terms(self, run: str, silos: Sequence[str], numbers: int, facts: SumFacts) -> MaskedTerms:
        """What the parties agree on, for vectors of ``numbers`` numbers."""
        self.check(facts)
        largest = self.grid.steps(facts.largest)
        threshold = facts.silos - self.drop_outs
        return MaskedTerms(run, tuple(silos), numbers, self._bits(facts), largest, self._share(facts), threshold)

    def server(self, terms: MaskedTerms, keys: Keys) -> MaskedServer:
        return MaskedServer(terms, keys, self.grid)

    def silo(self, terms: MaskedTerms, keys: Keys, members: None) -> MaskedSilo:
        return MaskedSilo(terms, keys, self.grid)

    @property
    def grid(self) -> Grid:
        return Grid(self.precision)

    @property
    def masking(self) -> Masked:
        return self

    def surplus(self, silos: int) -> float:
        """The standard deviation of the noise in a sum over that asked for: more, for the sake of silos that might have
        dropped out."""
        return math.sqrt(silos * share_variance(silos, self.drop_outs, self.colluding))

    def _share(self, facts: SumFacts) -> float:
        """The standard deviation of a silo's noise in steps, rounded up."""
        return self._share_size(facts) / self.precision * (1 + 1e-12)

    def _share_size(self, facts: SumFacts) -> float:
        """The standard deviation of a silo's noise."""
        if facts.noise is None:
            return 0.0
        return facts.noise.std * math.sqrt(share_variance(facts.silos, self.drop_outs, self.colluding))

    def _bits(self, facts: SumFacts) -> int:
        return ring_bits(self.grid.steps(facts.largest), math.sqrt(facts.silos) * self._share(facts))
