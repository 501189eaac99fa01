"""The parties of a federation as handlers of messages. This is all that a carrier of messages needs to know:

    silo = SiloSide(plan, name, shard, keys, before_release=...)
    answer = silo.handle(message)                 where it raises: log the error here, and send ``silo.refusal("...")``,
                                                  or nothing

    coordinator = CoordinatorSide(plan, silos, keys)
    outcome = drive(coordinator, carry)           carry: {silo: message} -> {silo: answer, or None if none came in time}

    analyzer = AnalyzerSide(plan, keys)           only in a shuffled exchange: a party of its own, called ``analyzer``
    answer = analyzer.handle(message)             on the roster and in what is carried

Local work, sums and steps are those of the simulator (``engine.simulate``), protocols those of ``exchange``. With one
seed, simulator and federation draw the same numbers.
"""

from tacit.federation.protocol.coordinator import CoordinatorSide, Outcome, RefusedAnswer, RoundFailed, drive
from tacit.federation.protocol.party import AnalyzerSide, ServerKeys, SiloKeys
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
