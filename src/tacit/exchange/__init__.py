"""How updates travel from the silos to the server."""

from tacit.exchange.base import Exchange, Keys, ServerRole, SiloRole, ThirdRole
from tacit.exchange.direct import Direct
from tacit.exchange.grid import Grid
from tacit.exchange.masked import Masked
from tacit.exchange.pairwise import Pairwise
from tacit.exchange.plain import Plain
from tacit.exchange.session import Session, Summing
from tacit.exchange.shuffled import Collected, Shuffled
from tacit.exchange.sums import ReportFacts, SumFacts, people_of
from tacit.exchange.weighted import Members, PersonVectors, Weighted

EXCHANGES: dict[str, type[Exchange]] = {
    each.name: each for each in (Plain, Masked, Weighted, Shuffled, Pairwise, Direct)
}

__all__ = [
    "EXCHANGES",
    "Collected",
    "Direct",
    "Exchange",
    "Grid",
    "Keys",
    "Masked",
    "Members",
    "Pairwise",
    "PersonVectors",
    "Plain",
    "ReportFacts",
    "ServerRole",
    "Session",
    "Shuffled",
    "SiloRole",
    "SumFacts",
    "Summing",
    "ThirdRole",
    "Weighted",
    "people_of",
]
