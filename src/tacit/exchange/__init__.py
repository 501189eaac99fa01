"""How updates travel from the silos to the server."""

from tacit.exchange.plain import Plain

EXCHANGES = {exchange.name: exchange for exchange in (Plain,)}

__all__ = ["EXCHANGES", "Plain"]
