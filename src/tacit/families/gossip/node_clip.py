"""The bound on what a node sends."""

from __future__ import annotations

from typing import Literal

from tacit.methods.base import Facts, part
from tacit.methods.clips import Clip, Shift
from tacit.privacy import Relation, Unit


@part
class NodeClip(Clip):
    """A node's whole update is clipped.

    nodes  ``silos``, or ``subjects``: places for subjects, which may share one
    apart  subjects who share a place are clipped apart from each other: each moves it by at most one clip
    """

    of = "node"

    nodes: Literal["silos", "subjects"] = "silos"
    apart: bool = False

    def nodes_moved(self, unit: Unit, relation: Relation, facts: Facts) -> int:
        """How many nodes change with one unit."""
        if unit == "record" and relation == "replace":
            together = self.nodes == "subjects" and self.apart
            count = (facts.subjects or 0) if self.nodes == "subjects" else facts.silos
            return 1 if together else min(2, count)
        if self.nodes == "silos" and unit == "subject":
            return facts.silos_moved(relation == "replace")
        return 1

    def sensitivity(self, unit: Unit, relation: Relation, facts: Facts) -> Shift | None:
        """By how much each node moves that changes (``nodes_moved``); None where nothing bounds their number.

        A node that is zeroed out sends noise alone, and so does a subject who is clipped apart from others in the same
        place; anything else in a node may turn its clipped update around. The subject who comes under replacement may
        be in another place: one clip in each of two nodes is no more than two in the worse of them. A record that is
        replaced may come to another subject: two nodes turn around, or two subjects in one place.
        """
        whole = 2.0 if relation == "replace" else 1.0
        if unit == "record" and relation == "replace":
            return Shift(4.0 if self.nodes == "subjects" and self.apart else 2.0)
        if self.nodes == "subjects":
            alone = unit == "subject" and self.apart
            return None if unit == "silo" else Shift(whole if alone else 2.0)
        return Shift(whole if unit == "silo" else 2.0)
