"""How updates travel from the silos to the server."""

from tacit.exchange.exchange import Exchange, Session
from tacit.exchange.grid import Grid
from tacit.exchange.masked import Masked
from tacit.exchange.plain import Plain

EXCHANGES: dict[str, type[Plain] | type[Masked]] = {"plain": Plain, "masked": Masked}

__all__ = ["EXCHANGES", "Exchange", "Grid", "Masked", "Plain", "Session"]
