"""The members of a silo by slot, as both protocols of private weighting count them."""

from __future__ import annotations

import numpy as np

from tacit.exchange.sums import Members
from tacit.privacy.invalid import InvalidArgument


class SlotCounts:
    """Several subjects may have one slot. They are clipped apart, and each counts n f(N): N are the records of all of
    them in all silos. A slot with more than ``cap`` records here counts as one with ``cap`` and contributes nothing, in
    all rounds, so that N is bounded. ``proofs.weight_shifts.slot_shift`` proves how far one subject moves the sum.

    of_slots  records of each slot, as they are counted, ``[slots]``
    counted   whether a member contributes, ``[members]``
    """

    def __init__(self, members: Members, slots: int, cap: int) -> None:
        places, counts = members
        if places.shape != counts.shape or not ((places >= 0) & (places < slots)).all():
            raise InvalidArgument("out-of-range", "slots", f"slots from 0 to {slots - 1} are due")
        if counts.min(initial=0) < 0 or counts.max(initial=0) > cap:
            raise InvalidArgument("out-of-range", "records", f"between 0 and {cap} records of each person are due")
        held = np.zeros(slots, np.int64)
        np.add.at(held, places, counts)
        self.members = members
        self.of_slots = np.minimum(held, cap)
        self.counted = (counts > 0) & (held <= cap)[places]

    @property
    def squares(self) -> int:
        """The sum over slots of the square of the number of members who contribute."""
        return int((np.unique(self.members.slots[self.counted], return_counts=True)[1] ** 2).sum())

    def members_of(self, slots: range) -> dict[int, tuple[int, int]]:
        """The members who contribute to these slots: slot and number of records of each."""
        places, counts = self.members
        here = np.flatnonzero(self.counted & (places >= slots.start) & (places < slots.stop))
        return {int(k): (int(places[k]), int(counts[k])) for k in here}
