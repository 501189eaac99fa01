"""What is promised: units, views, guarantees, the ledger, and the randomness that promises rest on.

This room imports nothing else of Tacit and no JAX, so that it can be used, read and checked on its own.
"""

from tacit.privacy.events import Event, Unprotected
from tacit.privacy.guarantee import AsPublished, Guarantee, unprotected
from tacit.privacy.ledger import Ledger, LedgerError
from tacit.privacy.randomness import Randomness, Stream
from tacit.privacy.terms import RELATIONS, UNITS, Relation, Reveals, Unit, View

__all__ = [
    "RELATIONS",
    "UNITS",
    "AsPublished",
    "Event",
    "Guarantee",
    "Ledger",
    "LedgerError",
    "Randomness",
    "Relation",
    "Reveals",
    "Stream",
    "Unit",
    "Unprotected",
    "View",
    "unprotected",
]
