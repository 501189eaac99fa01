"""How updates travel from the silos to the server. ``tacit.names`` lists all exchanges."""

from collections.abc import Callable
from functools import partial

from tacit import names
from tacit.exchange.base import Exchange, Keys, ServerRole, SiloRole, ThirdRole
from tacit.exchange.masked import Masked
from tacit.exchange.plain import Plain
from tacit.exchange.session import Session, Summing
from tacit.exchange.sums import (
    Grid,
    Members,
    PersonVectors,
    ReportFacts,
    SumFacts,
    checked_groups,
    people_of,
    places_of,
)

EXCHANGES: names.BuiltIn[type[Exchange]] = names.BuiltIn(names.EXCHANGES)
# a built-in exchange, or one that an installed package adds
find_exchange: Callable[[str], type[Exchange]] = partial(
    names.find, "tacit.exchanges", EXCHANGES, field="exchange.name", kind=Exchange
)

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
    "checked_groups",
    "find_exchange",
    "people_of",
    "places_of",
]
