"""How updates travel from the silos to the server."""

from tacit.exchange.exchange import Exchange
from tacit.exchange.plain import Plain

EXCHANGES: dict[str, type[Exchange]] = {exchange.name: exchange for exchange in (Plain,)}

__all__ = ["EXCHANGES", "Exchange", "Plain"]
