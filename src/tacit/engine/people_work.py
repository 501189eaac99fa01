"""Local work subject by subject: each one in each silo learns alone, is clipped, weighted and added up.

A person is known by a key, the same in all silos. Who is in a round is drawn from that key under a secret that all
silos have in common; which of a person's records are used, under a secret of the silo that holds them. So a silo by
itself, on a federation, does what it does next to the others in the simulator, and no person changes what is drawn for
another.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from tacit.engine.kernel import LANES, Lanes, Worked
from tacit.engine.worker import Contributed, Given, Worker
from tacit.exchange import Grid, Members, PersonVectors
from tacit.kernels import ClippedVectors, Lane, PeopleSum, arrange, each_person, people_sum
from tacit.kernels import drawn as draw_records
from tacit.kernels.exact_sums import FINEST
from tacit.methods import Facts
from tacit.privacy.randomness import chosen, shares

if TYPE_CHECKING:
    from tacit.engine.simulate import LocalSilos


class Drawn(NamedTuple):
    """A round's people: lanes of work; of each subject in a silo (an entry), the number of the entry and its weight."""

    lanes: tuple[Lane, ...]
    entries: np.ndarray
    weights: np.ndarray


class PeopleWork(Worker):
    """Who is in a round and with which records, and the weighted sums of what they contribute."""

    works_by = "subject"

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
        self._lanes = Lanes()

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
        weights = self._weights[entries]
        lanes = arrange(starts, counts, weights, self._layout, rows=rows, lanes=LANES)
        return Drawn(lanes, entries, weights)

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

        total = _added(tuple(self._lanes.run(lane_sum, drawn.lanes, "sum")))
        vector = total.total if method.clip.adaptive is None else total.total.followed_by(total.counted)
        return Worked((vector if grid is not None else vector.numbers(step),), states, (total.not_finite,))

    def integers(self, drawn: Drawn, given: Given, form: Grid) -> Contributed:
        """The contribution of every silo that is here, ``[silos, numbers]``: sums of what people add, each of them
        rounded toward zero after it is weighted, so that no subject moves the sum over silos by more than the clip."""
        (params, clip), frozen, arrays, states = given

        def lane_sums(lane: Lane) -> tuple[np.ndarray, int]:
            sums, not_finite = np.zeros((len(self._here), self._numbers), np.int64), 0
            for found in each_person(self.objective, frozen, arrays, params, lane, self.method.work.learning, clip):
                integers = self._integers(found, drawn.weights[found.places], float(clip), form)
                home = self._home[drawn.entries[found.places]]
                for k in np.unique(home):
                    sums[k] += integers[home == k].sum(axis=0)
                not_finite += found.not_finite
            return sums, not_finite

        sums, not_finite = zip(*self._lanes.run(lane_sums, drawn.lanes, "each"), strict=True)
        return Contributed(np.sum(sums, axis=0), states, sum(not_finite))

    def subjects(self, drawn: Drawn, given: Given, form: Grid) -> Contributed:
        """For every silo that is here, what each of its people adds: clipped, rounded toward zero, not weighted."""
        (params, clip), frozen, arrays, states = given

        def lane_people(lane: Lane) -> list[tuple[np.ndarray, np.ndarray, int]]:
            chunks = each_person(self.objective, frozen, arrays, params, lane, self.method.work.learning, clip)
            return [
                (
                    drawn.entries[found.places],
                    self._integers(found, np.ones(len(found.places)), float(clip), form),
                    found.not_finite,
                )
                for found in chunks
            ]

        chunks = [chunk for lane in self._lanes.run(lane_people, drawn.lanes, "people") for chunk in lane]
        entries = np.concatenate([np.zeros(0, int), *(own for own, _, _ in chunks)])
        vectors = np.concatenate([np.zeros((0, self._numbers), np.int64), *(found for _, found, _ in chunks)])
        home, first = self._home[entries], np.searchsorted(self._home, np.arange(len(self._here)))
        people = [PersonVectors(entries[home == k] - first[k], vectors[home == k]) for k in range(len(self._here))]
        return Contributed(people, states, sum(not_finite for _, _, not_finite in chunks))

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
