"""Local work of people who protect what they send (``encoders``): each person learns alone, and reports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from tacit.engine.kernel import LANES, Lanes, Worked
from tacit.engine.worker import Contributed, Given, Worker, WorkTally
from tacit.exchange import people_of
from tacit.families.shuffle.encoders import batches_of
from tacit.families.shuffle.protocol import Collected
from tacit.kernels import Lane, arrange, each_person
from tacit.privacy import Stream

if TYPE_CHECKING:
    from tacit.engine.simulate import LocalSilos

# Most numbers of people without records that are encoded at once.
_NUMBERS = 1 << 18


class Batch(NamedTuple):
    """The people of a round: ``present [people]`` have records and are arranged in lanes, ``without [people]`` have
    none, and report as the others do."""

    number: int
    lanes: tuple[Lane, ...]
    present: np.ndarray
    without: np.ndarray


class EncoderWork(Worker):
    """Who takes part in a round, and what they report."""

    def __init__(self, site: LocalSilos) -> None:
        """In ``site`` all records of a person are in one silo, and subjects are places (``exchange.places_of``), of
        which silos have those of :func:`people_of`."""
        method: Any = site.method
        facts, federation, learner = site.facts, site.federation, site.learner
        self.method, self.facts, self.objective, self.randomness = method, facts, learner.objective, site.randomness
        self.people = facts.subjects or 1
        self._layout = method.work.learning.layout(learner.objective, learner.params, site.arrays)
        if self._layout.parameters != facts.parameters:
            raise AssertionError(f"{facts.parameters} numbers are planned, the model has another number")
        subjects = np.concatenate([silo.subjects for silo in federation.silos])
        self._starts = np.concatenate([silo.offsets[:-1] for silo in federation.silos])
        self._counts = np.concatenate([np.diff(silo.offsets) for silo in federation.silos])
        self._members = [np.arange(self.people)]
        if site.here is not None:
            self._members = [people_of(k, self.people, facts.silos) for k in site.here]
        everyone = np.concatenate([np.zeros(0, int), *self._members])
        batches = method.turns
        batch = batches_of(self.people, batches)
        self._entries = [np.flatnonzero(batch[subjects] == b) for b in range(batches)]
        self._present = [subjects[entries] for entries in self._entries]
        self._without = [np.setdiff1d(everyone[batch[everyone] == b], self._present[b]) for b in range(batches)]
        self._lanes: dict[int, tuple[Lane, ...]] = {}
        self._in_lanes = Lanes()

    def draw(self, number: int) -> Batch:
        """The people of a round: batches take turns."""
        turn = (number - 1) % len(self._entries)
        if turn not in self._lanes:
            entries = self._entries[turn]
            starts, counts = self._starts[entries], self._counts[entries]
            self._lanes[turn] = arrange(starts, counts, np.ones(len(entries)), self._layout, lanes=LANES)
        return Batch(number, self._lanes[turn], self._present[turn], self._without[turn])

    def participants(self, drawn: Batch) -> int:
        """All people are in one place here."""
        return 1

    def do(self, drawn: Batch, given: Given) -> Worked:
        """The sum of what people send who add noise themselves."""
        method = self.method

        def add(total: np.ndarray, people: np.ndarray, vectors: np.ndarray, stream: Stream) -> None:
            total += method.work.encoding.send(vectors, stream).sum(axis=0)

        zeros = partial(np.zeros, self._layout.parameters)
        sums, not_finite = self._everyone(drawn, given, zeros, add)
        return Worked((jnp.asarray(np.sum(sums, axis=0), jnp.float32),), given.states, (not_finite,))

    def numbers(self, given: Given) -> int:
        return self._layout.parameters

    def members(self) -> list[list[int]]:
        """The numbers of the people of each silo."""
        return [own.tolist() for own in self._members]

    def messages(self, drawn: Batch, given: Given) -> np.ndarray:
        """What every person of a round sends, ``[people, numbers]``: noisy numbers, or reports as a difference from
        1/2 and nothing where none was sent. For views that see every message."""
        method, people = self.method, np.sort(np.concatenate([drawn.present, drawn.without]))
        sent = np.zeros((len(people), self._layout.parameters))

        def add(_: None, some: np.ndarray, vectors: np.ndarray, stream: Stream) -> None:
            sent[np.searchsorted(people, some)] = method.work.encoding.send(vectors, stream)

        self._everyone(drawn, given, lambda: None, add)
        return sent

    def reports(self, drawn: Batch, given: Given, form: Callable[[], Collected]) -> Contributed:
        """What people report; those who learned what is not finite report zeros. All of them are in one silo."""
        method = self.method

        def add(collected: Collected, people: np.ndarray, vectors: np.ndarray, stream: Stream) -> None:
            person, index, value = method.work.encoding.encode(vectors, stream)
            collected.add(people[person], index, value)

        found, not_finite = self._everyone(drawn, given, form, add)
        return Contributed([found], given.states, WorkTally(not_finite))

    def _everyone(
        self,
        drawn: Batch,
        given: Given,
        begin: Callable[[], Any],
        add: Callable[[Any, np.ndarray, np.ndarray, Stream], None],
    ) -> tuple[list[Any], int]:
        """``add`` of (what ``begin`` gave, people, their updates ``[people, d]``, their randomness), a few people at a
        time; what came of it, lane by lane, and of those without records; and how much was not finite."""

        def lane_work(lane: Lane) -> tuple[Any, int]:
            result, not_finite = begin(), 0
            learning = self.method.work.learning
            work = each_person(self.objective, given.frozen, given.arrays, given.broadcast, lane, learning, jnp.inf)
            for found in work:
                people = drawn.present[found.places]
                add(result, people, found.vectors, self._stream(drawn, people))
                not_finite += found.not_finite
            return result, not_finite

        rest = begin()
        for people in self._pieces(drawn.without):
            zeros = np.zeros((len(people), self._layout.parameters), np.float32)
            add(rest, people, zeros, self._stream(drawn, people))
        done = self._in_lanes.run(lane_work, drawn.lanes)
        return [*(result for result, _ in done), rest], sum(lost for _, lost in done)

    def _stream(self, drawn: Batch, people: np.ndarray) -> Stream:
        """The randomness of some people of a round, of whom the first is in no other such piece."""
        return self.randomness.stream("reports", drawn.number, int(people[0]))

    def _pieces(self, people: np.ndarray) -> Iterator[np.ndarray]:
        size = max(1, _NUMBERS // self._layout.parameters)
        for first in range(0, len(people), size):
            yield people[first : first + size]
