"""Local work silo by silo: groups of silos in one compiled call each, in two lanes.

All silos of a run, or those that are ``here``: on a federation, one. What a silo draws depends on its own randomness
and its number among all silos, never on who else is here. Nor does what it computes, to the last digit: silos share a
call only if their plans have the same shape by their own records (``batches.py``), and how many there are in a call is
no part of what is compiled.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tacit.data import Federation
from tacit.engine.kernel import LANES, Lanes, Summed, Worked
from tacit.engine.worker import Contributed, Given, Worker, WorkTally
from tacit.exchange import Grid
from tacit.kernels import Rows, power_of_two
from tacit.methods.base import Drawing
from tacit.models import Params
from tacit.privacy.randomness import chosen

if TYPE_CHECKING:
    from tacit.engine.simulate import LocalSilos

# Silos per compiled call: enough to make the cost of a call small …
GROUP = 8
# … and few enough to keep index arrays small: so many positions of records.
POSITIONS = 1 << 19


class Group(NamedTuple):
    """Silos of one compiled call: their ``places [group]`` among those that are here, their ``counts [group]`` of
    records, their batches. The leading ``used`` are real."""

    places: np.ndarray
    counts: np.ndarray
    batches: Any
    used: np.int32


class SiloWork(Worker):
    """Who takes part in a round, what they look at, and the sums of their contributions."""

    works_by = "silo"
    is_shared = True

    def __init__(
        self,
        site: LocalSilos,
        federation: Federation | None = None,
        most_at_once: int = GROUP,
        marks: np.ndarray | None = None,
    ) -> None:
        """``federation``: other silos than those of the site. ``marks [silos]``: by which draws are named where silos
        have no numbers of their own; people's keys, where each of them is one. How many people there are is not public,
        so that a call has room for ``most_at_once``."""
        self.method, facts = site.method, site.facts
        self.federation = federation = site.federation if federation is None else federation
        self.kernels, self.randomness = site.kernels, site.randomness
        self.schedule = self.method.work.schedule(facts)
        self._own_schedule = self.method.work.own_schedule(facts)
        self._here = np.arange(federation.silo_count) if site.here is None else np.asarray(site.here, int)
        self._marks = marks
        self._first_state = self.method.work.state(site.learner.params)
        most = most_at_once if marks is not None else power_of_two(-(-len(self._here) // LANES))
        self.group = min(most_at_once, most)
        self._rows = [Rows(k, silo.start, len(silo), silo.offsets) for k, silo in enumerate(federation.silos)]
        self._zeros: Summed | None = None
        self._own_groups: list[Group] = []
        self._lanes, self.processes = Lanes(), site.processes
        # integers add up to the same in any number of lanes; numbers only in the order of one process
        self._on_grid = site.grid is not None
        self._lane_count = LANES * (self.processes.count if self._on_grid else 1)

    def draw(self, number: int) -> list[list[Group]]:
        """Who takes part in a round and which records they look at: a list of groups for each lane."""
        lanes = self._own(self._dealt(self._participants(number)), self._on_grid)
        return [[self._group(number, part) for part in self._calls(lane, self.schedule)] for lane in lanes]

    def own(self, given: Given) -> Params:
        """The own models of the silos that are here, stacked ``[silos, …]``. They stay: nothing here is a release.

        What a silo looks at is drawn once, so that the same state gives the same models.
        """
        if not self._own_groups:
            parts = self._calls(self._here.tolist(), self._own_schedule)
            self._own_groups = [self._drawn(part, "own", (), self._own_schedule) for part in parts]
        found = [self.kernels.own(*inputs(given, group)) for group in self._own_groups]
        # where in these every silo that is here stands
        rows = np.argsort(np.concatenate([group.places for group in self._own_groups]), kind="stable")
        return jax.tree.map(lambda *parts: jnp.concatenate(parts)[rows[: len(self._here)]], *found)

    def participants(self, drawn: list[list[Group]]) -> int:
        """How many silos with records take part. Of private methods their expected number: the coins are secret."""
        if self.method.private:
            return round(self.method.work.rate * self.federation.silo_count)
        return sum(int((group.counts > 0).sum()) for lane in drawn for group in lane)

    def do(self, drawn: list[list[Group]], given: Given) -> Worked:
        """The lanes' sums, and what the silos keep."""
        drawn = self._own(drawn, not self._on_grid)
        done = self._lanes.run(partial(self._work, given, self.nothing(given)), drawn)
        groups = [group for lane in drawn for group in lane]
        kept = [new for _, lane in done for new in lane]
        totals, not_finite = zip(*self._of_all([summed for summed, _ in done], given), strict=True)
        return Worked(totals, _put_back(given.states, groups, kept), not_finite)

    def _own(self, lanes: list[Any], is_due: bool) -> list[Any]:
        """Of lanes of all processes those of this one, where that ``is_due``: who takes part is counted over all lanes
        where it is public, and not drawn for others where sums are on a grid."""
        return self.processes.shared(lanes) if is_due else lanes

    def _of_all(self, own: list[Summed], given: Given) -> list[Summed]:
        """The sums of the lanes of all processes, in the order of the lanes."""
        rows = -(-self._lane_count // self.processes.count)
        rows_of_all = self.processes.gathered(own + [self.nothing(given)] * (rows - len(own)))
        return [summed for row in zip(*rows_of_all, strict=True) for summed in row][: self._lane_count]

    def numbers(self, given: Given) -> int:
        return self.nothing(given).vector.size

    def integers(self, drawn: list[list[Group]], given: Given, form: Grid) -> Contributed:
        """The contribution of every silo that is here, ``[silos, numbers]``, zero for silos that take no part.

        Rounding toward zero leaves every silo within the bound that its method clips to.
        """
        groups, kept, not_finite = [group for lane in drawn for group in lane], [], 0
        bound = self.method.clip.norm
        vectors = np.zeros((len(self._here), self.numbers(given)), np.int64)
        for group in groups:
            found = self.kernels.each(*inputs(given, group))
            kept.append(found.state)
            not_finite += int(np.sum(found.not_finite))
            for place, vector in zip(group.places, np.asarray(found.vector), strict=True):
                if place < len(vectors):
                    vectors[place] = form.bounded(vector, bound)
        return Contributed(vectors, _put_back(given.states, groups, kept), WorkTally(not_finite))

    def nothing(self, given: Given) -> Summed:
        """The sum before any silo contributed: zeros, the same in every round."""
        if self._zeros is None:
            silo = Rows(0, 0, 0, np.zeros(1, int))
            drawn = self.schedule.draw([silo], [self.randomness.stream("nobody")], 1)
            empty = jax.tree.map(lambda leaf: leaf[0], drawn)
            self._zeros = self.kernels.zeros(given.broadcast, given.frozen, self._first_state, given.arrays, empty)
        return self._zeros

    def _work(self, given: Given, total: Summed, lane: list[Group]) -> tuple[Summed, list[Any]]:
        """``total`` and the sum over one lane's silos, and what they keep, group by group."""
        kept = []
        for group in lane:
            total, own = self.kernels.work(*inputs(given, group), total)
            kept.append(own)
        return total, kept

    def _dealt(self, silos: np.ndarray) -> list[list[int]]:
        """Silos dealt to the lanes, largest first, each to the lane with the fewest records so far."""
        lanes: list[list[int]] = [[] for _ in range(self._lane_count)]
        load = [0] * self._lane_count
        for k in sorted(silos.tolist(), key=lambda k: -self._rows[k].records):
            lane = load.index(min(load))
            lanes[lane].append(k)
            load[lane] += self._rows[k].records
        return lanes

    def _calls(self, silos: list[int], schedule: Drawing) -> list[list[int]]:
        """Silos in parts that are one call each: of one shape, in the order in which they come."""
        alike: dict[tuple[int, int], list[int]] = {}
        for k in silos:
            alike.setdefault(schedule.shape(self._rows[k]), []).append(k)
        return [
            own[i : i + size]
            for shape, own in alike.items()
            for size in [self._width(shape)]
            for i in range(0, len(own), size)
        ]

    def _width(self, shape: tuple[int, int]) -> int:
        """How many silos with plans of that shape a call has room for."""
        return max(1, min(self.group, POSITIONS // math.prod(shape)))

    def _participants(self, number: int) -> np.ndarray:
        """Poisson sampling with the method's public rate, of those that are here; the coins are secret."""
        count, rate = self.federation.silo_count, self.method.work.rate
        if rate >= 1:
            return self._here
        if self._marks is not None:
            return self._here[chosen(self.randomness.lots(self._marks, "silos", number), rate)]
        return self._here[self.randomness.stream("silos", number).coins(rate, count)[self._here]]

    def _group(self, number: int, members: list[int]) -> Group:
        return self._drawn(members, "batches", (number,), self.schedule)

    def _drawn(self, members: list[int], purpose: str, numbers: tuple[int, ...], schedule: Drawing) -> Group:
        """The work of silos of one shape, as many as fit into a call; the rest is padding, in a place beyond the last
        silo."""
        rows = [self._rows[k] for k in members]
        width = self._width(schedule.shape(rows[0]))
        marks = members if self._marks is None else self._marks[members].tolist()
        streams = [self.randomness.stream(purpose, *numbers, mark) for mark in marks]
        places = np.full(width, len(self._here))
        places[: len(members)] = np.searchsorted(self._here, members)
        counts = np.zeros(width, np.float32)
        counts[: len(rows)] = [silo.records for silo in rows]
        return Group(places, counts, schedule.draw(rows, streams, width), np.int32(len(members)))


def inputs(given: Given, group: Group) -> tuple[Any, ...]:
    """What the compiled functions of silos (``Kernels``) take for one group."""
    own = jax.tree.map(lambda leaf: leaf.at[group.places].get(mode="clip"), given.states)
    return given.broadcast, given.frozen, own, given.arrays, group.batches, group.counts, group.used


def _put_back(states: Any, groups: list[Group], kept: list[Any]) -> Any:
    """The silos' new states in their places, in one write; what lies beyond the last silo is padding."""
    if not groups or not jax.tree.leaves(states):
        return states
    places = np.concatenate([group.places for group in groups])
    return jax.tree.map(lambda leaf, *new: leaf.at[places].set(jnp.concatenate(new), mode="drop"), states, *kept)
