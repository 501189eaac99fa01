"""How updates travel from the silos to the server."""

from tacit.exchange.exchange import Exchange
from tacit.exchange.grid import Grid
from tacit.exchange.masked import Masked, MaskedSession
from tacit.exchange.plain import Plain
from tacit.exchange.sums import SumFacts
from tacit.exchange.weighted import PersonVectors, Weighted, WeightedSession

EXCHANGES: dict[str, type[Plain] | type[Masked] | type[Weighted]] = {
    "plain": Plain,
    "masked": Masked,
    "weighted": Weighted,
}

__all__ = [
    "EXCHANGES",
    "Exchange",
    "Grid",
    "Masked",
    "MaskedSession",
    "PersonVectors",
    "Plain",
    "SumFacts",
    "Weighted",
    "WeightedSession",
]
