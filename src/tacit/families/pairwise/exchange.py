"""The pairwise exchange: single messages have much noise, what they sum up to has little."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from tacit.errors import UserError
from tacit.exchange.base import Exchange, Keys, PlanPart
from tacit.exchange.sums import LEAST_SHARE, REACH, Grid, SumFacts
from tacit.families.pairwise.proofs import PairwiseNoise, fewest, gopa, gopa_choice, k_out, k_out_orders
from tacit.families.pairwise.protocol import PairwiseServer, PairwiseSilo, PairwiseTerms
from tacit.planning.plan import sum_facts
from tacit.planning.settings import Count, Natural, NotNegative, Positive, Rate
from tacit.privacy import Randomness, Reveals, View

# Where the number of peers is left out: so few that messages tell at most this much more than the sum does.
EXCESS = 1.05
# Most coalitions, or sets of silos that vanish, that are looked at one by one.
MOST_SETS = 3000
# How noisy a pair is where that is left out (kappa of specification 6.1).
KAPPA = 20.0
# The root of every public choice of a graph.
_PUBLIC = Randomness(b"tacit: who shares noise".ljust(32))

Edges = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Pairwise(Exchange):
    """GOPA: independent noise, and noise that cancels between two silos each, as integers on a grid.

    graph                k-out (each silo picks ``peers`` others), ring, complete, erdos-renyi (``peers`` on average)
    peers                m; left out: the fewest with which messages tell about as little as their sum
    pairwise_multiplier  standard deviation of a pair's noise over that of a silo's own; left out: by kappa = 20
    honest               at least this share of the silos does not collude with the server
    drop_outs            most silos that may vanish in a round
    graph_seed           of graphs that are drawn; public, and chosen before any silo colludes
    precision            the step of the grid

    Formal guarantee (specification 6.1): who sees all messages and knows what the silos of a coalition know learns of
    the others a Gaussian vector of covariance Sigma = s_eta^2 I + s_delta^2 L_H, L_H the Laplacian of the pairs among
    them that are left; a silo that moves its vector by Delta moves it by mu = Delta sqrt([Sigma^-1]_kk). ``factor`` is
    the largest mu over all silos, all coalitions of the declared size (each of them is looked at, or one where all are
    alike) and all sets of silos that may vanish, in units of Delta over the planned noise. Every silo's own noise is so
    large that the noise of those who neither collude nor vanish comes to what is planned.

    On the grid all noises are discrete Gaussians. Summed over what pairs may have drawn, the law of the messages is a
    lattice Gaussian of covariance Sigma to within 2^-900 (Poisson summation), as long as the narrowest direction of
    what is summed over has a standard deviation of LEAST_SHARE steps, which ``check`` sees to.
    """

    name: ClassVar[str] = "pairwise"
    about: ClassVar[str] = "GOPA: silos add noise that cancels in pairs; the server sees every message, and the sum"
    carries = "integers"
    adds = frozenset({"once"})
    repeats = False  # pairs draw what they share from new keys in every attempt
    noise_from_silos_only = True

    graph: Literal["k-out", "ring", "complete", "erdos-renyi"] = "k-out"
    peers: Count | None = None
    pairwise_multiplier: NotNegative | None = None
    honest: Rate = 1.0
    drop_outs: Natural = 0
    graph_seed: Natural = 0
    precision: Positive = 1e-8

    @property
    def reveals(self) -> Mapping[str, Reveals]:
        return {"public": "sum", "server": "messages", "silo": "sum"}

    def views(self, silos: int) -> tuple[str, ...]:
        """The views of :attr:`reveals`, and those who may collude with the server."""
        colluding = self.colluding(silos)
        return (*self.reveals, *((f"server+silos:{colluding}",) if 0 < colluding < silos else ()))

    def reveals_to(self, view: View) -> Reveals | None:
        if view.kind in ("public", "silo", "silos"):
            return "sum"
        return "messages" if view.kind in ("server", "server+silos", "coalition") else None

    def assumptions(self, view: View, silos: int) -> tuple[str, ...]:
        found = self.noise_of(view, silos)
        alone = [] if found is None else [str(k) for k in found.isolated]
        warning = f"warning: silos {', '.join(alone)} share no noise with another honest one: local privacy is theirs"
        parts = "warning: honest silos fall into parts that share no noise: each hides in its own part only"
        return (
            "silos know each other's signing keys, and follow the protocol; noise is discrete, drawn exactly",
            f"at least {silos - self.drop_outs} of {silos} silos stay to the end of a round, or it is not released; "
            "a message that comes after its silo was given up is thrown away unread",
            *((warning,) if alone else ()),
            *((parts,) if found is not None and not found.connected and not alone else ()),
        )

    # -- what is shared, and what it hides

    def colluding(self, silos: int) -> int:
        """How many silos may collude with the server."""
        return silos - math.ceil(self.honest * silos - 1e-9)

    def counted(self, silos: int) -> int:
        """Silos that at least neither collude nor vanish: their noise comes to what is planned."""
        return silos - self.colluding(silos) - self.drop_outs

    def factor(self, view: View, silos: int) -> float:
        """What a view learns of a silo, over what it would learn of a sum with the planned noise; infinity where
        nothing is hidden, or where coalitions are too many to be looked at."""
        if view.kind in ("public", "silo", "silos"):
            known = 0 if view.kind == "public" else view.count
            unknown = silos - self.drop_outs - known
            return math.sqrt(self.counted(silos) / unknown) if min(unknown, self.counted(silos)) > 0 else math.inf
        found = self.noise_of(view, silos)
        return math.inf if found is None else found.mu

    def noise_of(self, view: View, silos: int) -> PairwiseNoise | None:
        """What ``view`` learns of all messages, for the silo, the coalition and the drop-outs that give most away; None
        for views of the sum, coalitions that are none, and where there are too many of them."""
        coalition = _members(view, silos)
        if coalition is None:
            return None
        return _worst(self, silos, *coalition)

    def edges(self, silos: int) -> Edges:
        """Who shares noise with whom."""
        return _edges(self, silos)

    def ratio(self, silos: int) -> float:
        """The standard deviation of a pair's noise over that of a silo's own; infinity where nothing would do."""
        return self._ratio(self.edges(silos))

    def _ratio(self, edges: Edges) -> float:
        if self.pairwise_multiplier is not None:
            return self.pairwise_multiplier
        independent, shared = gopa_choice(edges, (), 1.0, KAPPA)
        return shared / independent

    def check(self, facts: SumFacts) -> None:
        """Refuse (UserError) numbers that do not go together."""
        silos = facts.silos
        if silos < 2:
            raise UserError("too-few", "exchange.name", "pairs need at least two silos", 'use exchange.name = "plain"')
        if self.counted(silos) < 1:
            problem = f"{silos} silos less those that collude and vanish leave none"
            raise UserError("out-of-range", "exchange.honest", problem, "raise it, or lower exchange.drop_outs")
        if self.peers is not None and not 1 <= self.peers < silos:
            problem = f"{self.peers} others of {silos} silos"
            raise UserError("out-of-range", "exchange.peers", problem, f"use 1 to {silos - 1}")
        if math.isinf(self.ratio(silos)):
            problem = "the graph is not connected, so that no pairwise noise would hide its parts"
            raise UserError("out-of-range", "exchange.peers", problem, "raise it, or give pairwise_multiplier")
        independent, shared = self._steps(facts)
        degree = int(self.edges(silos).sum(axis=1).max())
        if independent > 0:
            # the narrowest direction of the noise of pairs, given the messages
            narrow = 1 / math.sqrt(1 / shared**2 + 2 * degree / independent**2) if shared else independent
            if narrow < LEAST_SHARE:
                finer = self.precision * narrow / LEAST_SHARE
                problem = f"{self.precision:g} is too coarse: noise has {narrow:.2g} steps, {LEAST_SHARE:g} are needed"
                raise UserError("out-of-range", "exchange.precision", problem, f"use {finer:.1e} or less")
        widest = Grid(self.precision).steps(facts.largest) + silos * REACH * (independent + math.sqrt(degree) * shared)
        if widest >= 2**62:
            problem = f"{self.precision:g} is too fine: sums would take more than 62 bits"
            coarser = self.precision * widest / 2**62
            fix = f"use {coarser:.1e} or more, or a smaller multiplier"
            raise UserError("out-of-range", "exchange.precision", problem, fix)

    def deviations(self, facts: SumFacts) -> tuple[float, float]:
        """The standard deviations of a silo's own noise and of a pair's."""
        if facts.noise is None:
            return 0.0, 0.0
        independent = facts.noise.std / math.sqrt(self.counted(facts.silos))
        return independent, self.ratio(facts.silos) * independent

    def plan_parts(self, promise: Any) -> dict[str, PlanPart]:
        facts = sum_facts(promise.method, promise.facts)
        degrees = self.edges(facts.silos).sum(axis=1)
        peers = int(degrees.min()), int(degrees.max())
        factors = {str(view): self.factor(view, facts.silos) for view in promise.views}
        return {"pairs": Pairs(self.graph, peers, *self.deviations(facts), factors)}

    def _steps(self, facts: SumFacts) -> tuple[float, float]:
        """The same in steps of the grid, rounded up."""
        independent, shared = self.deviations(facts)
        return independent / self.precision * (1 + 1e-12), shared / self.precision * (1 + 1e-12)

    def terms(self, run: str, silos: Sequence[str], numbers: int, facts: SumFacts) -> PairwiseTerms:
        """What the parties agree on, for vectors of ``numbers`` numbers."""
        self.check(facts)
        named = [(silos[i], silos[j]) for i, j in np.argwhere(np.triu(self.edges(len(silos))))]
        pairs = tuple(sorted((min(pair), max(pair)) for pair in named))
        largest = Grid(self.precision).steps(facts.largest)
        return PairwiseTerms(run, tuple(silos), pairs, numbers, largest, *self._steps(facts), self.drop_outs)

    def server(self, terms: PairwiseTerms, keys: Keys) -> PairwiseServer:
        return PairwiseServer(terms, keys, self.grid)

    def silo(self, terms: PairwiseTerms, keys: Keys, members: None) -> PairwiseSilo:
        return PairwiseSilo(terms, keys, self.grid)

    @property
    def grid(self) -> Grid:
        return Grid(self.precision)


@dataclass(frozen=True)
class Pairs:
    """The noise that silos of a pairwise exchange add, as ``tacit plan`` prints it.

    graph         who shares noise with whom, by name
    peers         with how many others a silo shares noise: the fewest, the most
    independent   standard deviation of a silo's own noise, on every number
    shared        that of a pair's
    factor        what messages tell of a silo, over what a sum with the planned noise would, by view
    """

    graph: str
    peers: tuple[int, int]
    independent: float
    shared: float
    factor: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        factors = {view: value if math.isfinite(value) else "inf" for view, value in self.factor.items()}
        return {**asdict(self), "factor": factors}

    @property
    def words(self) -> str:
        few, many = self.peers
        others = f"{few}" if few == many else f"{few} to {many}"
        worst, factor = max(self.factor.items(), key=lambda item: item[1])
        return (
            f"Every silo shares noise with {others} others ({self.graph}): standard deviation {self.independent:.3g} "
            f"of its own, {self.shared:.3g} of every pair. Against {worst} a message reveals {factor:.3g} times what "
            "a sum with the planned noise would."
        )


def _members(view: View, silos: int) -> tuple[int, tuple[int, ...]] | None:
    """A view of all messages as (how many silos it holds, which of them where they are named)."""
    if view.kind == "server":
        return 0, ()
    if view.kind == "server+silos":
        return view.count, ()
    if view.kind != "coalition" or not all(name.isdigit() and int(name) < silos for name in view.members):
        return None
    members = tuple(sorted({int(name) for name in view.members}))
    return len(members), members


@lru_cache(maxsize=256)
def _worst(exchange: Pairwise, silos: int, count: int, members: tuple[int, ...]) -> PairwiseNoise | None:
    return _worst_on(exchange, exchange.edges(silos), count, members)


def _worst_on(exchange: Pairwise, edges: Edges, count: int, members: tuple[int, ...]) -> PairwiseNoise | None:
    """The coalition of ``count`` silos (or that of ``members``) that learns most; None where there are too many."""
    silos = len(edges)
    if min(silos - count - exchange.drop_outs, exchange.counted(silos)) < 1:
        return None
    independent = 1 / math.sqrt(exchange.counted(silos))
    shared = exchange._ratio(edges) * independent
    if math.isinf(shared):
        return None
    alike = bool(edges.sum() == silos * (silos - 1))  # all pairs: any set of that size stands for all
    gone = count + exchange.drop_outs
    sets = [tuple(range(gone))] if alike else _sets(silos, count, members, exchange.drop_outs)
    if sets is None:
        return None
    return max((gopa(edges, gone, independent, shared) for gone in sets), key=lambda found: found.mu)


def _sets(silos: int, count: int, members: tuple[int, ...], drop_outs: int) -> list[tuple[int, ...]] | None:
    """All sets of silos whose noise does not count, colluders and drop-outs together; None where there are too many.

    What silos that have vanished shared is shown to the server, as what colluders shared is known to it: the noise of
    the others is the same in both cases.
    """
    free = [silo for silo in range(silos) if silo not in members]
    chosen = drop_outs + (0 if members else count)
    if math.comb(len(free), chosen) > MOST_SETS:
        return None
    return [members + more for more in combinations(free, chosen)]


@lru_cache(maxsize=64)
def _edges(exchange: Pairwise, silos: int) -> Edges:
    if exchange.graph == "complete":
        return ~np.eye(silos, dtype=np.bool_)
    if exchange.graph == "ring":
        following = np.roll(np.eye(silos, dtype=np.bool_), 1, axis=1)
        return np.asarray((following | following.T) & ~np.eye(silos, dtype=np.bool_))
    candidates = _candidates(exchange, silos)
    if exchange.peers is not None:
        return candidates(exchange.peers)

    def enough(peers: int) -> bool:
        found = _worst_on(exchange, candidates(peers), exchange.colluding(silos), ())
        return found is not None and found.mu <= EXCESS

    peers = fewest(enough, silos - 1)
    return candidates(silos - 1 if peers is None else peers)


def _candidates(exchange: Pairwise, silos: int) -> Callable[[int], Edges]:
    """Graphs by number of peers, each within those with more: the picks of each silo, or pairs by a coin each."""
    stream = _PUBLIC.stream(exchange.graph, exchange.graph_seed, silos)
    if exchange.graph == "k-out":
        orders = k_out_orders(silos, stream)
        return lambda peers: k_out(orders, peers)
    coins = np.triu(stream.uniform(silos**2).reshape(silos, silos), 1)
    coins = coins + coins.T + np.eye(silos)
    return lambda peers: np.asarray(coins < peers / (silos - 1), dtype=np.bool_)
