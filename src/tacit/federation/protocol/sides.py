"""The two sides of a federation: what a silo does, and what the coordinator does, as handlers of messages.

Whoever carries messages needs to know this much:

    silo = SiloSide(plan, name, shard, keys, before_release=...)
    answer = silo.handle(message)                 raises where it will not answer: log that here, and send nothing but
                                                  ``silo.refusal("...")``, or nothing at all

    coordinator = CoordinatorSide(plan, silos, keys)
    outcome = drive(coordinator, carry)           carry: {silo: message} -> {silo: answer, or None if none came in time}

    analyzer = AnalyzerSide(plan, keys)           in a shuffled exchange, whose shuffler is the server: a party of its
    answer = analyzer.handle(message)             own that is on the roster, and in what is carried, as ``analyzer``

Local work, sums and steps are those of the simulator (``engine.silos``), protocols those of ``exchange``. With one
seed, simulator and federation draw the same numbers.
"""

from tacit.federation.protocol.analyzer_side import AnalyzerSide
from tacit.federation.protocol.coordinator import (
    CoordinatorSide,
    Outcome,
    RefusedAnswer,
    RoundFailed,
    drive,
)
from tacit.federation.protocol.keys import ServerKeys, SiloKeys
from tacit.federation.protocol.silo_side import BeforeRelease, SiloSide

__all__ = [
    "AnalyzerSide",
    "BeforeRelease",
    "CoordinatorSide",
    "Outcome",
    "RefusedAnswer",
    "RoundFailed",
    "ServerKeys",
    "SiloKeys",
    "SiloSide",
    "drive",
]
