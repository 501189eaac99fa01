"""Batches: the records that a silo uses in each step of one round.

Drawn on the host from a named stream (see ``privacy.randomness``), then handed to compiled kernels as index arrays. A
plan of batches has a fixed capacity and a dynamic number of steps. The capacity is the batch size, or the next power of
two where a batch is a whole silo; loops run only as many steps as there are. So silos of any size share a handful of
compiled shapes, and padding costs no work.

The shape of a silo's plan follows from its own number of records and from public numbers, never from other silos
(:meth:`Schedule.shape`). A compiler orders the additions of a sum by its length, padding included: were a silo padded
to the largest of several, one record less there would change the last digits of all others' gradients, and where
gradients cancel or training is unstable the last digits decide where a clipped update points.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tacit.privacy import Stream
from tacit.privacy.invalid import InvalidArgument

# Up to this many keys, silos are padded to the largest and sorted together; beyond, one by one.
DRAWN_AT_ONCE = 50_000


class Batches(NamedTuple):
    """Local work of one silo (or, stacked, of several: one more leading axis).

    records  ``[batches, capacity]`` int32, positions in the record arrays; step t uses batch t modulo their number
    sizes    ``[batches]`` int32, how many leading entries of each batch are real
    steps    ``[]`` int32, how many steps to take
    """

    records: np.ndarray
    sizes: np.ndarray
    steps: np.ndarray | np.int32


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
        """The work of several silos of one shape as one plan for ``width`` of them. The same as :func:`shuffled` silo
        by silo and :func:`stack`; small silos are drawn all at once."""
        size, steps, epochs = self
        shape = _only({self.shape(rows) for rows in silos})
        counts = [rows.records for rows in silos]
        if size is None or min(counts) == 0 or max(counts) * len(counts) * (epochs + 1) > DRAWN_AT_ONCE:
            plans = [
                shuffled(rows.start, rows.records, size=size, steps=steps, epochs=epochs, stream=stream)
                for rows, stream in zip(silos, streams, strict=True)
            ]
            return stack(plans, (width, *shape))
        starts = np.array([rows.start for rows in silos])
        return _drawn_at_once(self, size, starts, np.array(counts), streams, (width, *shape))

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


def _drawn_at_once(
    schedule: Schedule,
    size: int,
    starts: np.ndarray,
    counts: np.ndarray,
    streams: Sequence[Stream],
    shape: tuple[int, int, int],
) -> Batches:
    """Silos of different sizes in one sort: missing keys are the largest, so they end behind the real ones."""
    silos, largest = len(counts), int(counts.max())
    per_pass = -(-counts // size)
    totals = schedule.epochs * per_pass if schedule.steps is None else np.full(silos, schedule.steps)
    passes = -(-totals // per_pass)
    keys = np.full((silos, int(passes.max()), largest), np.iinfo(np.uint64).max, np.uint64)
    for i, stream in enumerate(streams):
        keys[i, : passes[i], : counts[i]] = stream.words(int(passes[i] * counts[i])).reshape(passes[i], counts[i])
    order = np.argsort(keys, axis=2, kind="stable")
    # step t of a silo is batch `place` of pass `turn`
    t = np.arange(int(totals.max()))
    turn, place = np.minimum(t // per_pass[:, None], passes[:, None] - 1), t % per_pass[:, None]
    columns = place[:, :, None] * size + np.arange(shape[2])
    rows = order[np.arange(silos)[:, None, None], turn[:, :, None], np.minimum(columns, largest - 1)]
    sizes = np.where(t < totals[:, None], np.minimum(size, counts[:, None] - place * size), 0)
    real = np.arange(rows.shape[2]) < sizes[:, :, None]
    records, padded_sizes, steps = _nothing(shape)
    records[:silos, : len(t)] = np.where(real, rows + starts[:, None, None], 0)
    padded_sizes[:silos, : len(t)] = sizes
    steps[:silos] = totals
    return Batches(records, padded_sizes, steps)


def shuffled(start: int, count: int, *, size: int | None, steps: int | None, epochs: int, stream: Stream) -> Batches:
    """Batches of ``size`` from shuffled passes over rows ``start .. start+count-1``: ``epochs`` passes, or exactly
    ``steps`` batches over as many passes as that takes. ``size=None`` is one batch with every row."""
    if count == 0:
        return Batches(np.zeros((1, 1), np.int32), np.zeros(1, np.int32), np.int32(0))
    if size is None:
        every = np.full((1, power_of_two(count)), start, np.int32)
        every[0, :count] = np.arange(start, start + count)
        return Batches(every, np.array([count], np.int32), np.int32(epochs if steps is None else steps))
    size = min(size, power_of_two(count))  # a batch larger than the silo is no reason for padding
    per_pass = -(-count // size)
    total = epochs * per_pass if steps is None else steps
    passes = -(-total // per_pass)
    # one sort of 64-bit keys per pass is a uniform permutation
    order = np.argsort(stream.words(passes * count).reshape(passes, count), axis=1, kind="stable")
    padded = np.zeros((passes, per_pass * size), np.int32)
    padded[:, :count] = order + start
    last = count - (per_pass - 1) * size
    sizes = np.full((passes, per_pass), size, np.int32)
    sizes[:, -1] = last
    return Batches(padded.reshape(-1, size)[:total], sizes.reshape(-1)[:total], np.int32(total))


def stack(plans: Sequence[Batches], shape: tuple[int, int, int]) -> Batches:
    """Plans of several silos as one, padded to ``shape``: silos, batches and capacity."""
    records, sizes, count = _nothing(shape)
    for i, plan in enumerate(plans):
        records[i, : len(plan.records), : plan.records.shape[1]] = plan.records
        sizes[i, : len(plan.sizes)] = plan.sizes
        count[i] = plan.steps
    return Batches(records, sizes, count)


def _nothing(shape: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Room for a plan of that shape: records, sizes and steps."""
    return np.zeros(shape, np.int32), np.zeros(shape[:2], np.int32), np.zeros(shape[0], np.int32)


def _only(shapes: set[tuple[int, int]]) -> tuple[int, int]:
    if len(shapes) > 1:
        problem = f"silos of shapes {sorted(shapes)} in one plan: the largest would say how others are padded"
        raise InvalidArgument("mismatch", "silos", problem)
    return shapes.pop()


def power_of_two(number: int) -> int:
    """The smallest power of two that is not below ``number``."""
    return 1 << max(0, number - 1).bit_length()
