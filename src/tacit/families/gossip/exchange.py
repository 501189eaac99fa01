"""The direct exchange: nodes send to each other, and there is no server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tacit.exchange.base import Exchange, PlanPart
from tacit.privacy import Reveals, View
from tacit.privacy.guarantee import FLOATING_POINT


@dataclass(frozen=True)
class Direct(Exchange):
    """Nodes send their values to neighbours as they are; the public sees the model that a run keeps."""

    name: ClassVar[str] = "direct"
    about: ClassVar[str] = "no server: nodes send to their neighbours, as the method says"
    carries = "neighbours"
    adds = frozenset()
    unsuited = "its silos talk to a server"
    reveals: ClassVar[Mapping[str, Reveals]] = {"public": "sum", "neighbour": "messages"}

    def reveals_to(self, view: View) -> Reveals | None:
        return "messages" if view.kind == "coalition" else self.reveals.get(view.kind)

    def plan_parts(self, promise: Any) -> dict[str, PlanPart]:
        from tacit.families.gossip.network import network

        found = network(promise)
        return {} if found is None else {"network": found}

    def assumptions(self, view: View, silos: int) -> tuple[str, ...]:
        return (FLOATING_POINT,)
