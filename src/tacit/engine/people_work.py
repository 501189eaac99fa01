"""Local work subject by subject: each one in each silo learns alone, is clipped, weighted and added up.

A person is known by a key, the same in all silos. Who is in a round is drawn from that key under a secret that all
silos have in common; which of a person's records are used, under a secret of the silo that holds them. So a silo by
itself, on a federation, does what it does next to the others in the simulator, and no person changes what is drawn for
another.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial, reduce
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from tacit.engine.kernel import LANES, Lanes, Worked
from tacit.engine.worker import Contributed, Given, Worker, WorkTally
from tacit.exchange import Grid, Members, PersonVectors
from tacit.kernels import ClippedVectors, Lane, PeopleSum, arrange, each_person, on_device, people_sum
from tacit.kernels import drawn as draw_records
from tacit.kernels.exact_sums import FINEST
from tacit.kernels.lane_schedule import CHUNK_NUMBERS
from tacit.methods import Facts
from tacit.privacy.randomness import chosen, shares

if TYPE_CHECKING:
    from tacit.engine.simulate import LocalSilos


# Most numbers in the groups of subjects that are computed at once, one for each lane; a group has at least one chunk.
GROUP_NUMBERS = 1 << 24


class Arranged(NamedTuple):
    """People that are arranged together: lanes of work; of each subject in a silo (an entry), the number of the entry
    and its weight."""

    lanes: tuple[Lane, ...]
    entries: np.ndarray
    weights: np.ndarray


class Drawn(NamedTuple):
    """A round's people: all together, or silo by silo where an exchange carries what each of them adds."""

    parts: tuple[Arranged, ...]

    @property
    def entries(self) -> np.ndarray:
        return np.concatenate([part.entries for part in self.parts])


class PeopleWork(Worker):
    """Who is in a round and with which records, and the weighted sums of what they contribute."""

    works_by = "subject"
    is_shared = True
    from_disk = True

    def __init__(self, site: LocalSilos) -> None:
        method, facts, federation = site.method, site.facts, site.federation
        self.method, self.objective, self.randomness = method, site.learner.objective, site.randomness
        self._common = site.randomness if site.common is None else site.common
        self._step = site.grid
        silos = federation.silos
        self._subject = np.concatenate([silo.subjects for silo in silos])
        self._starts = np.concatenate([silo.offsets[:-1] for silo in silos])
        self._counts = np.concatenate([np.diff(silo.offsets) for silo in silos])
        self._silo = np.repeat(np.arange(len(silos)), [len(silo.subjects) for silo in silos])
        self._silos = len(silos)
        # all people of a slot are in a round or none is: weights depend on all of them, and must not show whom a coin
        # leaves out
        self._slot = site.exchange.slots_of(self._subject, site.sum_facts().people)
        self._coin = self._slot if self._slot is not None and site.exchange.index == "slots" else self._subject
        self._here = np.arange(len(silos)) if site.here is None else np.asarray(site.here, int)
        self._home = np.searchsorted(self._here, self._silo)
        self._weights = self._checked_weights(facts, site.totals)
        self._layout = self.method.work.learning.layout(site.learner.objective, site.learner.params, site.arrays)
        self._arrangements: dict[int, Drawn] = {}  # of all whose turn it is, by group
        self._draws_all = site.exchange.hidden_sampling  # no silo knows who is left out
        self._apart = site.exchange.carries == "subjects"
        self._lanes, self.processes = Lanes(), site.processes

    def _checked_weights(self, facts: Facts, totals: np.ndarray | None = None) -> np.ndarray:
        """The weights, which must sum to at most 1 over the silos of every person."""
        _, who = np.unique(self._subject, return_inverse=True)
        here = np.bincount(who, self._counts)
        totals = here if totals is None else np.maximum(totals, here)
        weights = self.method.work.weights_of(self._counts, totals[who], facts)
        if (np.bincount(who, weights) > 1 + 1e-9).any():
            raise AssertionError("a person's weights over all silos sum to more than 1")
        return weights

    @property
    def draws_all_always(self) -> bool:
        """Whether every round has the same people with the same records."""
        return (self.method.work.rate == 1 or self._draws_all) and self.method.work.most_records is None

    def draw(self, number: int) -> Drawn:
        """The people of a round: all whose turn it is, by one coin, whatever the number of silos and records."""
        method = self.method
        if self.draws_all_always:
            turn = (number - 1) % method.work.groups
            if turn not in self._arrangements:
                entries = np.flatnonzero(shares(self._subject, method.work.groups) == turn)
                self._arrangements[turn] = self._arranged(self._starts[entries], self._counts[entries], entries)
            return self._arrangements[turn]
        present = np.ones(len(self._subject), bool)
        if method.work.rate < 1:
            present = chosen(self._common.lots(self._coin, "subjects", number), method.work.rate)
        entries = np.flatnonzero(present)
        starts, counts = self._starts[entries], self._counts[entries]
        if method.work.most_records is None:
            return self._arranged(starts, counts, entries)
        rows, starts, counts = self._chosen(number, entries, method.work.most_records)
        return self._arranged(starts, counts, entries, rows)

    def _chosen(self, number: int, entries: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """At most ``most`` records of each subject, chosen by each silo for itself (see ``kernels.drawn``)."""
        bounds = np.searchsorted(self._silo[entries], np.arange(self._silos + 1))
        nothing = np.zeros(0, np.int64)
        parts, drawn = [(nothing, nothing, nothing)], 0
        for k in np.flatnonzero(np.diff(bounds)):
            own = entries[bounds[k] : bounds[k + 1]]
            every = self._counts[own]
            nth = np.arange(every.sum()) - np.repeat(np.cumsum(every) - every, every)
            lots = self.randomness.lots(np.repeat(self._subject[own], every), "records", number, int(k), nth=nth)
            rows, starts, counts = draw_records(self._starts[own], every, lots, most)
            parts.append((rows, starts + drawn, counts))
            drawn += len(rows)
        rows, starts, counts = (np.concatenate(column) for column in zip(*parts, strict=True))
        return rows, starts, counts

    def _arranged(
        self, starts: np.ndarray, counts: np.ndarray, entries: np.ndarray, rows: np.ndarray | None = None
    ) -> Drawn:
        weights, shared = self._weights[entries], None if rows is None else on_device(rows)
        # entries are in the order of silos
        inner = np.searchsorted(self._home[entries], np.arange(1, len(self._here) if self._apart else 1))
        parts = zip(*(np.split(column, inner) for column in (starts, counts, entries, weights)), strict=True)
        lanes = LANES * self.processes.count
        here = self.processes.shared(list(range(lanes)))
        return Drawn(
            tuple(
                Arranged(arrange(first, count, weight, self._layout, rows=shared, lanes=lanes, here=here), own, weight)
                for first, count, own, weight in parts
            )
        )

    def participants(self, drawn: Drawn) -> int:
        """Every silo takes part, if only with its share of the noise; how many people did is not public."""
        return self._silos

    def do(self, drawn: Drawn, given: Given) -> Worked:
        """The sum of all contributions; people keep nothing."""
        (params, clip), frozen, arrays, states = given
        method, grid = self.method, self._step
        step = method.clip.largest * FINEST if grid is None else grid
        local, scale = method.work.learning, method.clip.scale(clip, step)
        counts = None if method.clip.adaptive is None else method.clip.counts(step)

        def lane_sum(lane: Lane) -> PeopleSum:
            return people_sum(self.objective, frozen, arrays, params, lane, local, clip, scale, counts)

        total = _added(tuple(sums for part in drawn.parts for sums in self._lanes.run(lane_sum, part.lanes, "sum")))
        total = _added(self.processes.gathered(total))
        vector = total.total if method.clip.adaptive is None else total.total.followed_by(total.counted)
        return Worked((vector if grid is not None else vector.numbers(step),), states, (total.not_finite,))

    def integers(self, drawn: Drawn, given: Given, form: Grid) -> Contributed:
        """The contribution of every silo that is here, ``[silos, numbers]``: sums of what people add, each of them
        rounded toward zero after it is weighted, so that no subject moves the sum over silos by more than the clip."""
        sums, tally = np.zeros((len(self._here), self._numbers), np.int64), WorkTally()
        for part in drawn.parts:
            for found, not_finite in self._lanes.run(partial(self._lane_sums, part, given, form), part.lanes, "each"):
                sums += found
                tally.not_finite += not_finite
        return Contributed(sums, given.states, tally)

    def _lane_sums(self, part: Arranged, given: Given, form: Grid, lane: Lane) -> tuple[np.ndarray, int]:
        """The sums of every silo over the people of a lane, ``[silos, numbers]``, and how much was not finite."""
        sums, not_finite = np.zeros((len(self._here), self._numbers), np.int64), 0
        for found in self._each(given, lane):
            integers = self._integers(found, part.weights[found.places], float(given.broadcast[1]), form)
            home = self._home[part.entries[found.places]]
            for k in np.unique(home):
                sums[k] += integers[home == k].sum(axis=0)
            not_finite += found.not_finite
        return sums, not_finite

    def subjects(self, drawn: Drawn, given: Given, form: Grid) -> Contributed:
        """For every silo that is here, what each of its people adds: clipped, rounded toward zero, not weighted. A
        stream of groups of people: only the next group of each lane is computed, when it is asked for."""
        assert len(drawn.parts) == len(self._here), "people of several silos are arranged together"
        silos, tally = enumerate(drawn.parts), WorkTally()
        return Contributed([self._groups(k, part, given, form, tally) for k, part in silos], given.states, tally)

    def _groups(self, k: int, part: Arranged, given: Given, form: Grid, tally: WorkTally) -> Iterator[PersonVectors]:
        """What the people of the ``k``-th silo that is here add. Lanes make their next groups side by side."""
        chunks = [self._chunks(k, part, given, form, lane) for lane in part.lanes]
        while True:
            start = time.perf_counter()
            found = self._lanes.run(self._group, chunks, f"subjects {k}")
            tally.seconds += time.perf_counter() - start
            tally.not_finite += sum(not_finite for _, not_finite in found)
            groups = [group for group, _ in found if len(group.places)]
            if not groups:
                return
            del found  # a group that has been used is not kept
            while groups:
                yield groups.pop(0)

    def _chunks(
        self, k: int, part: Arranged, given: Given, form: Grid, lane: Lane
    ) -> Iterator[tuple[PersonVectors, int]]:
        """The people of a lane, as many at a time as are computed at once, and how much was not finite."""
        first = np.searchsorted(self._home, k)
        for found in self._each(given, lane):
            integers = self._integers(found, np.ones(len(found.places)), float(given.broadcast[1]), form)
            yield PersonVectors(part.entries[found.places] - first, integers), found.not_finite

    def _group(self, chunks: Iterator[tuple[PersonVectors, int]]) -> tuple[PersonVectors, int]:
        """The next people of a lane as one group; an empty one after the last."""
        most = max(1, GROUP_NUMBERS // (LANES * max(CHUNK_NUMBERS, self._numbers)))
        taken = list(islice(chunks, most))
        return PersonVectors.joined([people for people, _ in taken], self._numbers), sum(lost for _, lost in taken)

    def _each(self, given: Given, lane: Lane) -> Iterator[ClippedVectors]:
        (params, clip), frozen, arrays, _ = given
        return each_person(self.objective, frozen, arrays, params, lane, self.method.work.learning, clip)

    def members(self) -> list[Members]:
        """The people of every silo that is here, with their slots and numbers of records; nothing without slots."""
        if self._slot is None:
            return []
        own = [self._home == k for k in range(len(self._here))]
        return [Members(self._slot[mine], self._counts[mine]) for mine in own]

    def numbers(self, given: Given) -> int:
        return self._numbers

    @property
    def _numbers(self) -> int:
        return self._layout.parameters + (self.method.clip.adaptive is not None)

    def _integers(self, found: ClippedVectors, weights: np.ndarray, clip: float, grid: Grid) -> np.ndarray:
        """What people add, ``[people, numbers]``: see ``Clip.send``."""
        method, vectors = self.method, found.vectors.astype(np.float64)
        integers = grid.truncated(vectors, weights * (method.clip.norm / clip))
        if method.clip.adaptive is None:
            return integers
        counts = method.clip.counts()
        counted = grid.truncated(np.where(found.below, counts.below, counts.above)[:, None], weights)
        return np.concatenate([integers, counted], axis=1)


@jax.jit
def _added(found: tuple[PeopleSum, ...]) -> PeopleSum:
    return reduce(PeopleSum.plus, found)
