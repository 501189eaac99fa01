"""The noise of a pairwise exchange, as ``tacit plan`` prints it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any


@dataclass(frozen=True)
class Pairs:
    """The noise that silos of a pairwise exchange add.

    graph         who shares noise with whom, by name
    peers         with how many others a silo shares noise: the fewest, the most
    independent   standard deviation of a silo's own noise, on every number
    shared        that of a pair's
    factor        what messages tell of a silo, over what a sum with the planned noise would, by view
    """

    graph: str
    peers: tuple[int, int]
    independent: float
    shared: float
    factor: dict[str, float]

    def as_dict(self) -> dict[str, Any]:
        told = {view: value if math.isfinite(value) else "inf" for view, value in self.factor.items()}
        return {field.name: getattr(self, field.name) for field in fields(self)} | {"factor": told}

    @property
    def words(self) -> str:
        few, many = self.peers
        others = f"{few}" if few == many else f"{few} to {many}"
        worst, told = max(self.factor.items(), key=lambda item: item[1])
        return (
            f"Everybody shares noise with {others} others ({self.graph}): standard deviation {self.independent:.3g} of "
            f"one's own, {self.shared:.3g} of every pair. Against {worst} a message tells {told:.3g} times what a sum "
            "with the planned noise would."
        )
