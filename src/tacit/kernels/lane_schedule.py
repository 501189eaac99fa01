"""Schedule of per-person work: people with very different numbers of records, arranged for ``people.py``.

People are sorted into a handful of sizes, so that no person is padded to the largest one and few shapes are compiled.
People of one size are cut into chunks that the kernel takes at once, and chunks are assigned to lanes of equal cost:
every core is busy even where one silo holds most of the people. All of it on the host, in whole arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace
from math import prod

import jax
import numpy as np

from tacit.kernels.training import Arrays, Objective, power_of_two
from tacit.models import Params, parameter_count
from tacit.privacy.invalid import InvalidArgument

# Chunks per compiled call. Their real number is data, not shape, so that rounds of sampled people compile nothing new.
CALL_CHUNKS = 64
# A pass over this many numbers of input stays in the cache (26k CNN: 16 images, as fast as 64 and less padding) …
PASS_NUMBERS = 1 << 14
# … with at least and at most this many rows.
PASS_ROWS = 16, 256
# People side by side in a chunk: the most rows and the most numbers of models in all (measured for MLP and CNN).
CHUNK_ROWS = 512
CHUNK_NUMBERS = 1 << 15
# Gradients of single records are as large as models.
RECORD_NUMBERS = 1 << 20
# The work that does not depend on a person's records (copy, clip, add), in rows.
PERSON_COST = 2
# Up to this many chunks per lane are assigned one by one to the lane with the least work.
DEALT_SINGLY = 64


@dataclass(frozen=True)
class Shape:
    """What a compiled call looks like.

    rows    how many of a person's records are seen at once
    width   people side by side in a chunk
    whole   everything that a person has fits into ``rows``; otherwise they are gone through in batches or passes
    """

    rows: int
    width: int
    whole: bool


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class People:
    """People for one compiled call. The leading ``used`` chunks are real; padding has 0 records and weight 0.

    starts   ``[chunks, width]`` int32, a person's first place in the lane's rows
    counts   ``[chunks, width]`` int32, how many records follow
    weights  ``[chunks, width]`` float32
    index    ``[chunks, width]`` int32, the person's place in what :func:`arrange` was given; -1 for padding
    used     ``[]`` int32
    """

    starts: jax.Array | np.ndarray
    counts: jax.Array | np.ndarray
    weights: jax.Array | np.ndarray
    index: jax.Array | np.ndarray
    used: jax.Array | np.int32
    shape: Shape = field(metadata={"static": True})


@dataclass(frozen=True)
class Lane:
    """The work of one thread: ``people`` call by call.

    rows  ``[places]`` int32, positions in the record arrays; None where places are positions
    """

    people: tuple[People, ...]
    rows: jax.Array | None


@dataclass(frozen=True)
class Layout:
    """The shapes that suit a model and its records: what :func:`arrange` needs to know about the work.

    parameters  numbers of the model
    pass_rows   most rows to look at in one go
    batch_size  records per local step; None: all of a person's
    together    a person's records are one batch, never in pieces (Cox)
    apart       every record's gradient is clipped on its own, and takes as much space as a model
    """

    parameters: int
    pass_rows: int
    batch_size: int | None = None
    together: bool = False
    apart: bool = False

    @classmethod
    def of(
        cls,
        objective: Objective,
        params: Params,
        arrays: Arrays,
        *,
        batch_size: int | None = None,
        apart: bool = False,
    ) -> Layout:
        """The layout for an objective with trainable ``params`` on ``arrays``; see ``people.Local.layout``."""
        together = objective.task.losses is None
        if together and (batch_size is not None or apart):
            problem = f"{objective.task.name}: a person's records are one batch, without parts"
            raise InvalidArgument("not-supported", "task", problem)
        if batch_size is not None and batch_size < 1:
            raise InvalidArgument("out-of-range", "batch_size", f"a batch of {batch_size} records")
        parameters = parameter_count(params)
        numbers = RECORD_NUMBERS // parameters if apart else PASS_NUMBERS // prod(arrays.features.shape[1:])
        low, high = (1, PASS_ROWS[1]) if apart else PASS_ROWS
        return cls(parameters, _floor_power(min(max(numbers, low), high)), batch_size, together, apart)

    @property
    def smallest(self) -> int:
        """The smallest size: below it, the model costs more than the padding."""
        return max(1, self.pass_rows // 32)

    def shapes(self, counts: np.ndarray) -> tuple[list[Shape], np.ndarray]:
        """The shapes that people with ``counts [people]`` records need, and each one's place in that list."""
        sizes, cap = self._sizes_for(counts), self._cap
        place = np.searchsorted(sizes, counts)  # len(sizes): more than can be seen at once
        found = np.unique(place)
        shapes = [
            Shape(int(sizes[i]), self._width(int(sizes[i])), True) if i < len(sizes) else self._partly(cap)
            for i in found
        ]
        return shapes, np.searchsorted(found, place)

    @property
    def _cap(self) -> int:
        """Most rows that are ever looked at in one go, unless they must all be."""
        return self.pass_rows if self.batch_size is None else min(self.batch_size, self.pass_rows)

    def _sizes_for(self, counts: np.ndarray) -> np.ndarray:
        largest = max(int(counts.max(initial=1)), self.smallest) if self.together else self._cap
        # powers of two up to the largest, with one size between two of them as far as a pass reaches
        powers = self.smallest * 2 ** np.arange(max(0, power_of_two(largest) // self.smallest).bit_length())
        between = powers[(powers >= 2) & (powers < self.pass_rows)] * 3 // 2
        sizes = np.union1d(powers, between)
        return sizes if self.together else np.union1d(sizes[sizes < largest], largest)

    def _partly(self, cap: int) -> Shape:
        """For people with more records than fit: batches side by side, or passes one after the other."""
        stepped = self.batch_size is not None and self.batch_size <= self.pass_rows
        return Shape(cap, self._width(cap) if stepped else 1, False)

    def _width(self, rows: int) -> int:
        most = min(CHUNK_ROWS // rows, CHUNK_NUMBERS // self.parameters)
        if self.apart:
            most = min(most, RECORD_NUMBERS // (self.parameters * rows))
        return _floor_power(max(1, most))

    def costs(self, shape: Shape, counts: np.ndarray) -> np.ndarray:
        """The work of chunks with ``counts [chunks, width]`` records, in rows: ``[chunks]``."""
        rows = shape.rows * -(-counts.max(axis=1, initial=0) // shape.rows)
        costs: np.ndarray = shape.width * (rows + PERSON_COST)
        return costs


def arrange(
    starts: np.ndarray,
    counts: np.ndarray,
    weights: np.ndarray,
    layout: Layout,
    *,
    rows: np.ndarray | jax.Array | None = None,
    lanes: int = 2,
    here: Sequence[int] | None = None,
) -> tuple[Lane, ...]:
    """Arrange people for the kernel, in ``lanes`` of equal cost; only those that are ``here`` are made, where that is
    given. Which people share a chunk does not depend on the number of lanes.

    Person i has the places ``starts[i] .. starts[i] + counts[i] - 1``: positions in the record arrays, or in ``rows``
    where that is given (see :func:`drawn`; several arrangements can share one :func:`on_device`). A person with records
    in three silos is three entries. A person without records or with weight 0 is left out and costs nothing.
    """
    starts, counts, weights = np.asarray(starts), np.asarray(counts), np.asarray(weights, np.float32)
    if not starts.shape == counts.shape == weights.shape or starts.ndim != 1:
        problem = f"starts {starts.shape}, counts {counts.shape} and weights {weights.shape} differ"
        raise InvalidArgument("wrong-length", "starts", problem)
    if not (np.isfinite(weights).all() and (weights >= 0).all() and (counts >= 0).all() and (starts >= 0).all()):
        raise InvalidArgument("out-of-range", "starts", "starts, counts and weights are finite and not negative")
    here = range(lanes) if here is None else here
    present = np.flatnonzero((counts > 0) & (weights > 0))
    if not len(present):
        return tuple(Lane((), None) for _ in here)
    shapes, place = layout.shapes(counts[present])
    # alike people side by side: a chunk takes as long as its longest
    order = np.lexsort((-counts[present], place))
    bounds = np.searchsorted(place[order], np.arange(len(shapes) + 1))
    members = np.split(present[order], bounds[1:-1])
    chunked = [_chunked(own, shape.width) for own, shape in zip(members, shapes, strict=True)]
    padded = np.append(counts, 0)  # index -1 is padding
    costs = [layout.costs(shape, padded[index]) for shape, index in zip(shapes, chunked, strict=True)]
    lane_of = np.split(_dealt(np.concatenate(costs), lanes), np.cumsum([len(own) for own in costs])[:-1])
    fields = np.append(starts, 0).astype(np.int32), padded.astype(np.int32), np.append(weights, np.float32(0))
    shared = on_device(rows) if isinstance(rows, np.ndarray) else rows
    result = []
    for lane in here:
        own = [index[of == lane] for index, of in zip(chunked, lane_of, strict=True)]
        people = [p for shape, index in zip(shapes, own, strict=True) for p in _calls(shape, index, *fields)]
        # lanes start at different ends, so that at first they compile different shapes
        result.append(Lane(tuple(people if lane % 2 == 0 else reversed(people)), shared))
    return tuple(result)


def drawn(
    starts: np.ndarray, counts: np.ndarray, lots: np.ndarray, most: int | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each person's records in the order of their ``lots [records]``, at most ``most`` of them: ``(rows, starts,
    counts)`` for :func:`arrange`. A uniform subset of each person's own records, independent of all others."""
    starts, counts = np.asarray(starts), np.asarray(counts)
    owner = np.repeat(np.arange(len(counts)), counts)
    first = np.cumsum(counts) - counts
    nth = np.arange(len(owner)) - first[owner]
    order = np.lexsort((lots, owner))
    rows = (starts[owner] + nth)[order]
    if most is None:
        return rows, first, counts
    kept = np.minimum(counts, most)
    return rows[nth < most], np.cumsum(kept) - kept, kept


def on_device(rows: np.ndarray) -> jax.Array:
    """``rows`` for :func:`arrange`, filled up to a power of two, so that random numbers of them share shapes."""
    padding = np.zeros(power_of_two(len(rows)) - len(rows), np.int32)
    return jax.device_put(np.concatenate([np.asarray(rows, np.int32), padding]))


def _chunked(people: np.ndarray, width: int) -> np.ndarray:
    """``people`` in rows of ``width``, the last one filled up with -1: ``[chunks, width]``."""
    chunks = -(-len(people) // width)
    index = np.full(chunks * width, -1)
    index[: len(people)] = people
    return index.reshape(chunks, width)


def _calls(
    shape: Shape, index: np.ndarray, starts: np.ndarray, counts: np.ndarray, weights: np.ndarray
) -> Iterator[People]:
    """Chunks ``index [chunks, width]`` cut into calls of CALL_CHUNKS."""
    for first in range(0, len(index), CALL_CHUNKS):
        part = index[first : first + CALL_CHUNKS]
        filled = np.full((CALL_CHUNKS, shape.width), -1, np.int32)
        filled[: len(part)] = part
        people = People(starts[filled], counts[filled], weights[filled], filled, np.int32(len(part)), shape)
        yield jax.device_put(people)


def _dealt(costs: np.ndarray, lanes: int) -> np.ndarray:
    """A lane for each chunk, such that the lanes' sums of ``costs [chunks]`` differ by little.

    The largest chunks go one by one to the lane with the least work. The others, each a small part of the whole, are
    assigned in proportion to what is missing, and evenly along their order: estimates of cost need not be exact.
    """
    order = np.argsort(-costs, kind="stable")
    lane_of = np.zeros(len(costs), int)
    single = order[: DEALT_SINGLY * lanes]
    loads = [(0, lane) for lane in range(lanes)]
    heapify(loads)
    for chunk in single:
        load, lane = loads[0]
        lane_of[chunk] = lane
        heapreplace(loads, (load + int(costs[chunk]), lane))
    rest = order[len(single) :]
    if len(rest):
        taken = np.array([load for load, _ in sorted(loads, key=lambda pair: pair[1])])
        missing = np.maximum(costs.sum() / lanes - taken, 0)
        share = np.maximum(missing / missing.sum(), 1e-9)
        # lane l takes its k-th chunk at time (k + 1/2) / share
        turns = [(np.arange(int(np.ceil(s * len(rest))) + 1) + 0.5) / s for s in share]
        takes = np.repeat(np.arange(lanes), [len(t) for t in turns])
        lane_of[rest] = takes[np.argsort(np.concatenate(turns), kind="stable")][: len(rest)]
    return lane_of


def _floor_power(number: int) -> int:
    """The largest power of two that is not above ``number``, which is at least 1."""
    return 1 << (number.bit_length() - 1)
