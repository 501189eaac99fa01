"""The sums of the lattice protocol, computed without encryption: for the simulator, which holds all records anyway."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from tacit.exchange.sums import Grid, Members, PersonVectors, checked_groups
from tacit.families.weighting.lattice import WEIGHT_BITS
from tacit.families.weighting.lattice_terms import LatticeTerms
from tacit.families.weighting.slot_counts import SlotCounts
from tacit.privacy.mechanisms.discrete_gaussian import discrete_gaussian
from tacit.privacy.randomness import Stream

# Entries of at most 50 bits are cut into two halves. A half times a weight of at most 2^24, added up over this many
# people, stays below 2^62.
_LOW_BITS = 25
_MOST_PEOPLE = 1 << 13


class OpenSum:
    """All silos and the server as one: counts, weights, noise and sums are those of :class:`LatticeSilo` and
    :class:`LatticeServer`, number for number. The same checks apply to contributions."""

    def __init__(self, terms: LatticeTerms, grid: Grid, members: Sequence[Members]) -> None:
        self.form, self._terms = grid, terms
        self._counts = [SlotCounts(own, terms.people, terms.cap) for own in members]
        totals = np.sum([counts.of_slots for counts in self._counts], axis=0)
        table = np.array(terms.table, np.int64)
        self._weights = [own.counts * table[totals[own.slots]] for own in members]

    def sum(
        self,
        number: int,
        contributions: Iterable[Iterable[PersonVectors]],
        noise: Sequence[Stream],
        *,
        stream: Stream | None = None,
    ) -> npt.NDArray[np.float64]:
        terms = self._terms
        total = np.zeros(terms.numbers, object)
        for counts, weights, groups, drawn in zip(self._counts, self._weights, contributions, noise, strict=True):
            checked = checked_groups(groups, terms.numbers, terms.entry, terms.entry, counts.members.counts)
            for places, vectors in checked:
                for first in range(0, len(places), _MOST_PEOPLE):
                    some = slice(first, first + _MOST_PEOPLE)
                    factors = np.where(counts.counted, weights, 0)[places[some]]
                    high, low = np.divmod(vectors[some], 1 << _LOW_BITS)
                    total += (factors @ high).astype(object) << _LOW_BITS
                    total += (factors @ low).astype(object)
            total += discrete_gaussian(terms.share, terms.numbers, drawn).astype(object)
        return np.array([value / 2**WEIGHT_BITS for value in total]) * self.form.precision
