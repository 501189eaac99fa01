"""How updates travel from the silos to the server; families add others (``tacit.family_names``)."""

from tacit.exchange.base import Exchange, Keys, ServerRole, SiloRole, ThirdRole
from tacit.exchange.masked import Masked
from tacit.exchange.plain import Plain
from tacit.exchange.session import Session, Summing
from tacit.exchange.sums import Grid, Members, PersonVectors, ReportFacts, SumFacts, people_of, places_of
from tacit.family_names import EXCHANGES as FAMILY_EXCHANGES
from tacit.family_names import BuiltIn
from tacit.plugins import find

CORE: tuple[type[Exchange], ...] = (
    Plain,
    Masked,
)
EXCHANGES: BuiltIn[type[Exchange]] = BuiltIn({each.name: each for each in CORE}, FAMILY_EXCHANGES)


def find_exchange(name: str) -> type[Exchange]:
    """A built-in exchange, or one that an installed package adds (``tacit.plugins``)."""
    return find("tacit.exchanges", EXCHANGES, name, "exchange.name", Exchange)


__all__ = [
    "EXCHANGES",
    "Exchange",
    "Grid",
    "Keys",
    "Masked",
    "Members",
    "PersonVectors",
    "Plain",
    "ReportFacts",
    "ServerRole",
    "Session",
    "SiloRole",
    "SumFacts",
    "Summing",
    "ThirdRole",
    "find_exchange",
    "people_of",
    "places_of",
]
