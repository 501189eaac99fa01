"""How updates travel from the silos to the server."""

from tacit.exchange.direct import Direct
from tacit.exchange.exchange import Exchange
from tacit.exchange.grid import Grid
from tacit.exchange.local import SumSession
from tacit.exchange.masked import Masked, MaskedSession
from tacit.exchange.pairwise import Pairwise, PairwiseSession
from tacit.exchange.plain import Plain
from tacit.exchange.shuffled import Collected, Shuffled, ShuffledSession
from tacit.exchange.sums import ReportFacts, SumFacts
from tacit.exchange.weighted import Members, PersonVectors, Weighted, WeightedSession

EXCHANGES: dict[str, type[Plain] | type[Masked] | type[Weighted] | type[Shuffled] | type[Pairwise] | type[Direct]] = {
    "plain": Plain,
    "masked": Masked,
    "weighted": Weighted,
    "shuffled": Shuffled,
    "pairwise": Pairwise,
    "direct": Direct,
}

__all__ = [
    "EXCHANGES",
    "Collected",
    "Direct",
    "Exchange",
    "Grid",
    "Masked",
    "MaskedSession",
    "Members",
    "Pairwise",
    "PairwiseSession",
    "PersonVectors",
    "Plain",
    "ReportFacts",
    "Shuffled",
    "ShuffledSession",
    "SumFacts",
    "SumSession",
    "Weighted",
    "WeightedSession",
]
