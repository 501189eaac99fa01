"""Batches: the records that a silo uses in each step of one round, shuffled (without privacy) or drawn by coins.

Drawn on the host from a named stream (see ``privacy.randomness``), then handed to compiled kernels as index arrays. A
plan of batches has a fixed capacity and a dynamic number of steps, so that silos of any size share a handful of
compiled shapes, and padding costs no work.

The shape of a silo's shuffled plan follows from its own number of records and from public numbers, never from other
silos (:meth:`Schedule.shape`). A compiler orders the additions of a sum by its length, padding included: were a silo
padded to the largest of several, one record less there would change the last digits of all others' gradients, and where
gradients cancel or training is unstable the last digits decide where a clipped update points.

Poisson batches: every record enters a batch by a secret coin of its own with a public rate. A batch has no fixed size,
is never cut short, and may be empty; what is divided by is the public expectation, never the realised size
(specification 0.4). The batches of one round and silo lie one behind the other in one array, so that a kernel works off
each of them in as many chunks as it really has. Within a batch, entries are assigned to blocks by a secret coin of each
(``averaged``: of each subject), and kernels round block by block. An entry more or less then changes the rounding of
its own block alone, wherever it stands.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tacit.errors import UserError
from tacit.kernels.noise import key_words
from tacit.kernels.training import power_of_two
from tacit.privacy import Stream
from tacit.privacy.invalid import InvalidArgument

# Up to this many keys, silos are padded to the largest and sorted together; beyond, one by one.
DRAWN_AT_ONCE = 50_000
# Smallest capacity of Poisson batches: small silos share one compiled shape from round to round.
SMALLEST_CAPACITY = 256
# Coins per draw: bounds the memory of a large silo with many batches.
COINS = 1 << 22
# Entries of a block on average. A block is summed in single precision and then goes to the grid.
BLOCK = 256


class Batches(NamedTuple):
    """Local work of one silo (or, stacked, of several: one more leading axis).

    records  ``[batches, capacity]`` int32, positions in the record arrays; step t uses batch t modulo their number
    sizes    ``[batches]`` int32, how many leading entries of each batch are real
    steps    ``[]`` int32, how many steps to take
    """

    records: np.ndarray
    sizes: np.ndarray
    steps: np.ndarray


class Rows(NamedTuple):
    """Where a silo's records lie: its number among the silos, its first row and how many it has, and the row at which
    each of its subjects begins (``offsets``, one more than there are subjects)."""

    silo: int
    start: int
    records: int
    offsets: np.ndarray


class Schedule(NamedTuple):
    """How a silo goes through its records in a round, without privacy.

    size    records per batch; None: all of them in one batch
    steps   exact number of batches; None: as ``epochs`` says
    epochs  shuffled passes over the records
    """

    size: int | None = None
    steps: int | None = None
    epochs: int = 1

    def draw(self, silos: Sequence[Rows], streams: Sequence[Stream], width: int) -> Batches:
        """The work of several silos of one shape as one plan for ``width`` of them. What a silo draws does not depend
        on the others; small silos are drawn all at once."""
        shape = (width, *_only({self.shape(rows) for rows in silos}))
        plan = Batches(np.zeros(shape, np.int32), np.zeros(shape[:2], np.int32), np.zeros(width, np.int32))
        filled = np.array([i for i, rows in enumerate(silos) if rows.records], int)  # an empty silo has no step
        if self.size is None:
            for i in filled:
                start, count = silos[i].start, silos[i].records
                plan.records[i] = start
                plan.records[i, 0, :count] = np.arange(start, start + count)
                plan.sizes[i], plan.steps[i] = count, self.epochs if self.steps is None else self.steps
            return plan
        keys = max(rows.records for rows in silos) * len(silos) * (self.epochs + 1)
        for together in [filled] if keys <= DRAWN_AT_ONCE else filled[:, None]:
            if len(together):
                self._shuffle(plan, self.size, together, silos, streams)
        return plan

    def _shuffle(
        self, plan: Batches, size: int, taken: np.ndarray, silos: Sequence[Rows], streams: Sequence[Stream]
    ) -> None:
        """Batches of ``size`` for the silos ``taken``: ``epochs`` shuffled passes over a silo's rows, or exactly
        ``steps`` batches over as many passes as that takes. One sort of 64-bit keys per pass is a uniform permutation;
        keys that a smaller silo lacks are the largest, so they end behind the real ones."""
        starts, counts = (np.array([getattr(silos[i], key) for i in taken]) for key in ("start", "records"))
        largest = int(counts.max())
        per_pass = -(-counts // size)
        totals = self.epochs * per_pass if self.steps is None else np.full(len(taken), self.steps)
        passes = -(-totals // per_pass)
        keys = np.full((len(taken), int(passes.max()), largest), np.iinfo(np.uint64).max, np.uint64)
        for k, i in enumerate(taken):
            words = streams[i].words(int(passes[k] * counts[k]))
            keys[k, : passes[k], : counts[k]] = words.reshape(passes[k], counts[k])
        order = np.argsort(keys, axis=2, kind="stable")
        # step t of a silo is batch `place` of pass `turn`
        t = np.arange(int(totals.max()))
        turn, place = np.minimum(t // per_pass[:, None], passes[:, None] - 1), t % per_pass[:, None]
        columns = place[:, :, None] * size + np.arange(plan.records.shape[2])
        rows = order[np.arange(len(taken))[:, None, None], turn[:, :, None], np.minimum(columns, largest - 1)]
        sizes = np.where(t < totals[:, None], np.minimum(size, counts[:, None] - place * size), 0)
        real = np.arange(rows.shape[2]) < sizes[:, :, None]
        plan.records[taken, : len(t)] = np.where(real, rows + starts[:, None, None], 0)
        plan.sizes[taken, : len(t)] = sizes
        plan.steps[taken] = totals

    def shape(self, silo: Rows) -> tuple[int, int]:
        """Batches (a power of four) and capacity of a silo's plan, by its own records. Only silos of one shape are
        drawn together."""
        count = silo.records
        capacity = power_of_two(count)
        if self.size is None:
            return 1, capacity
        steps = self.epochs * -(-count // self.size) if self.steps is None else self.steps
        # a batch larger than the silo is no reason for padding
        return 1 << (max(0, steps - 1).bit_length() + 1) // 2 * 2, min(self.size, capacity)


def _only(shapes: set[tuple[int, int]]) -> tuple[int, int]:
    if len(shapes) > 1:
        problem = f"silos of shapes {sorted(shapes)} in one plan: the largest would say how others are padded"
        raise InvalidArgument("mismatch", "silos", problem)
    return shapes.pop()


# --- Poisson batches ---


def blocks_for(expected: float) -> int:
    """The number of blocks to which the expected number of entries of a batch are assigned, by a coin each."""
    return max(1, math.ceil(expected / BLOCK))


def most_expected(declared: float) -> float:
    """The largest expected size of a batch for which :func:`rounding` holds where ``declared`` is the public one."""
    return 1.5 * declared + 8 * blocks_for(declared)


class Sampled(NamedTuple):
    """One silo's batches of one round (or, stacked, of several silos: one more leading axis): NumPy arrays where they
    are drawn, JAX arrays inside a kernel.

    records   ``[capacity]`` int32, positions in the record arrays, batch after batch
    weights   ``[capacity]`` float32, a factor for each entry
    blocks    ``[batches, blocks + 1]`` int32, block b of batch t is entries ``blocks[t, b] .. blocks[t, b + 1] - 1``
    noise     ``[batches]`` float32, noise multiplier of each batch
    steps     ``[]`` int32, how many batches there are; 0 for padding
    divisor   ``[]`` float32, the public expected size of a batch
    key       ``[8]`` uint32, from which the noise of this round is drawn
    """

    records: Any
    weights: Any
    blocks: Any
    noise: Any
    steps: Any
    divisor: Any
    key: Any


@dataclass(frozen=True)
class PoissonBatches:
    """How a silo draws its batches in a round.

    rates      for each silo the rate at which a record enters a batch
    batches    for each silo how many batches a round has
    divisors   for each silo the public expected size of a batch
    noise      noise multiplier of a batch; several: by the largest number of records of one subject in it, 0, 1, 2, …
    averaged   each entry is weighted by one over the number of its subject's entries in the batch
    cap        most entries of one subject in a batch; the others are dropped at random
    """

    rates: tuple[float, ...]
    batches: tuple[int, ...]
    divisors: tuple[float, ...]
    noise: tuple[float, ...]
    averaged: bool = False
    cap: int | None = None

    def shape(self, silo: Rows) -> tuple[int, int]:
        """Batches and about how many entries each has: public, and the same for all silos. Padding may follow the
        largest plan here, as kernels go through entries in chunks of one width: no sum is as long as a plan."""
        return power_of_two(max(self.batches)), power_of_two(math.ceil(max(self.divisors)))

    def draw(self, silos: Sequence[Rows], streams: Sequence[Stream], width: int) -> Sampled:
        """The batches of several silos as one plan for ``width`` of them."""
        drawn = [self._silo(rows, stream) for rows, stream in zip(silos, streams, strict=True)]
        capacity = power_of_two(max((len(plan.records) for plan in drawn), default=1))
        capacity = max(capacity, SMALLEST_CAPACITY)
        steps = power_of_two(max((len(plan.noise) for plan in drawn), default=1))
        most = max((plan.blocks.shape[1] for plan in drawn), default=2)
        blocks = np.zeros((width, steps, most), np.int32)
        for i, plan in enumerate(drawn):  # where a silo has fewer blocks, the last ones are empty
            blocks[i, : len(plan.blocks)] = np.pad(plan.blocks, ((0, 0), (0, most - plan.blocks.shape[1])), "edge")
        return Sampled(
            _stacked([plan.records for plan in drawn], (width, capacity), np.int32),
            _stacked([plan.weights for plan in drawn], (width, capacity), np.float32),
            blocks,
            _stacked([plan.noise for plan in drawn], (width, steps), np.float32),
            _stacked([np.atleast_1d(plan.steps) for plan in drawn], (width, 1), np.int32)[:, 0],
            _stacked([np.atleast_1d(plan.divisor) for plan in drawn], (width, 1), np.float32, fill=1)[:, 0],
            _stacked([plan.key for plan in drawn], (width, 8), np.uint32),
        )

    def _silo(self, rows: Rows, stream: Stream) -> Sampled:
        key = key_words(stream)
        batches, expected = self.batches[rows.silo], self.divisors[rows.silo]
        number = blocks_for(expected)
        if self.rates[rows.silo] * rows.records > most_expected(expected):
            problem = "a silo holds more than 1.5 times the records that are declared"
            fix = "declare at least two thirds of what each silo holds"
            raise UserError("mismatch", "data.records_per_silo", problem, fix)
        batch, record = _poisson(self.rates[rows.silo], batches, rows.records, stream)
        # rows of one subject are neighbours: entries of one subject in one batch are a run
        subject = np.searchsorted(rows.offsets - rows.start, record, side="right") if self._by_subject else record
        if self.cap is not None:
            kept = _capped(batch, subject, self.cap, stream)
            batch, record, subject = batch[kept], record[kept], subject[kept]
        runs = _runs(batch, subject)
        weights = 1.0 / runs if self.averaged else np.ones(len(record))
        block = (stream.words(len(record)) % np.uint64(number)).astype(np.int64)
        if self.averaged:  # a subject's entries stay together
            begins = _begins(batch, subject)
            block = np.repeat(block[begins], np.diff(np.append(begins, len(batch))))
        place = batch * number + block
        order = np.argsort(place, kind="stable")
        ends = np.searchsorted(place[order], np.arange(batches * number + 1))
        return Sampled(
            (record[order] + rows.start).astype(np.int32),
            weights[order].astype(np.float32),
            ends[np.arange(batches)[:, None] * number + np.arange(number + 1)].astype(np.int32),
            self._noise(batch, runs, batches),
            np.int32(batches),
            np.float32(self.divisors[rows.silo]),
            key,
        )

    @property
    def _by_subject(self) -> bool:
        return self.averaged or self.cap is not None or len(self.noise) > 1

    def _noise(self, batch: np.ndarray, runs: np.ndarray, batches: int) -> np.ndarray:
        if len(self.noise) == 1:
            return np.full(batches, self.noise[0], np.float32)
        largest = np.zeros(batches, np.int64)
        np.maximum.at(largest, batch, runs)
        return np.array(self.noise, np.float32)[np.minimum(largest, len(self.noise) - 1)]


def _poisson(rate: float, batches: int, count: int, stream: Stream) -> tuple[np.ndarray, np.ndarray]:
    """Batch and position of every record whose coin shows heads, ordered by batch and then position."""
    if count == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    together = max(1, COINS // count)
    found = []
    for first in range(0, batches, together):
        number = min(together, batches - first)
        batch, record = np.nonzero(stream.coins(rate, number * count).reshape(number, count))
        found.append((batch + first, record))
    return np.concatenate([batch for batch, _ in found]), np.concatenate([record for _, record in found])


def _runs(batch: np.ndarray, subject: np.ndarray) -> npt.NDArray[np.int64]:
    """For each entry, how many entries of its batch belong to its subject; entries come ordered by both."""
    lengths = np.diff(np.append(_begins(batch, subject), len(batch)))
    return np.repeat(lengths, lengths)


def _begins(batch: np.ndarray, subject: np.ndarray) -> npt.NDArray[np.int64]:
    """Where another batch or another subject begins."""
    changes = (batch[1:] != batch[:-1]) | (subject[1:] != subject[:-1])
    return np.flatnonzero(np.r_[len(batch) > 0, changes])


def _capped(batch: np.ndarray, subject: np.ndarray, cap: int, stream: Stream) -> np.ndarray:
    """Positions of the entries that are kept: of each subject in each batch a uniform choice of at most ``cap``."""
    lot = np.lexsort((stream.words(len(batch)), subject, batch))
    begins = _begins(batch[lot], subject[lot])
    rank = np.arange(len(lot)) - np.repeat(begins, np.diff(np.append(begins, len(lot))))
    return np.sort(lot[rank < cap])


def _stacked(parts: Sequence[np.ndarray], shape: tuple[int, ...], dtype: type, fill: float = 0) -> np.ndarray:
    """Arrays of one axis as rows of ``shape``; what is missing is ``fill``."""
    result: np.ndarray = np.full(shape, fill, dtype)
    for i, part in enumerate(parts):
        result[i, : part.size] = part
    return result
