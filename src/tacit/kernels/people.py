"""Per-person work: start at the global model, train on one person's records, clip, weight, add; for every person.

The inner loop of ULDP-AVG and ULDP-SGD ([ULDP-FL], algorithm 3) and of every method whose unit is the subject:

    x_u   = x;  x_u <- x_u - rate * gradient of person u's mean loss at x_u,  repeated
    total = sum_u  trunc(w_u * clip(x_u - x) / step)

One compiled function per shape of ``lane_schedule`` goes through chunks of people and adds to one total. A person's
model exists only while it is worked on, so memory does not depend on the number of people.

Formal guarantees, for any records, rates and weights:

- a person adds at most ``w_u * clip`` to the total in l2 norm, after rounding: weighted vectors are rounded toward
  zero one by one, and their sum is one of integers (``exact_sums``). So a person less changes the total by exactly
  what this person adds alone, and lanes, chunks and their order change nothing;
- a person whose work is not finite adds zero, and is counted;
- what a person adds depends on that person's records alone. Padding repeats the person's own records, never others':
  a masked record cannot move a mean, but an overflow in it can still turn a product with 0 into NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from tacit.kernels.exact_sums import Counts, Steps, bounded, toward_zero
from tacit.kernels.lane_schedule import Lane, Layout, People, Shape
from tacit.kernels.stored import forget, is_on_disk
from tacit.kernels.training import Arrays, Objective, power_of_two
from tacit.models import Params, parameter_count

# Integers that are added up exactly: people of up to 2^20 steps each in single precision (a product with ones is as
# fast as the plain weighted sum), and counts in 32 bits.
TOGETHER = 16
COUNTS_TOGETHER = 256
# Room for at least so many records of a call, where they are read from a file.
FEWEST_ROWS = 1 << 12


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class Computation:
    """What is computed from one person's records before it is clipped.

    The result is clipped, weighted, rounded, and replaced by zero where it is not finite, whatever it is. So the
    guarantee does not depend on :meth:`vector`, which is traced: it must not branch on a number.

    A subclass is a frozen dataclass and a tree to JAX: its fields are numbers, which are data, unless they are marked
    as static.

    descends    the result points uphill, as a gradient does: the server steps against it
    batch_size  records per step, in the order in which they are arranged; None: all of a person's
    apart       every record has a vector of its own

    Cox has no loss per record: all records of a person are one batch, ``apart`` and ``batch_size`` are refused, and
    who has fewer than two records has an empty comparison and contributes exactly zero.
    """

    descends: ClassVar[bool] = True
    apart: ClassVar[bool] = False

    @property
    def batch_size(self) -> int | None:
        return None

    def __init_subclass__(cls) -> None:
        """Structure names the class: JAX takes two classes with the same fields for equal structures."""
        made: Any = dataclass(frozen=True)(cls)
        numbers = [one.name for one in fields(made) if not one.metadata.get("static")]
        static = [one.name for one in fields(made) if one.metadata.get("static")]

        def flattened(one: Any) -> tuple[list[Any], tuple[Any, ...]]:
            return [getattr(one, name) for name in numbers], (cls, *(getattr(one, name) for name in static))

        def restored(structure: tuple[Any, ...], values: Sequence[Any]) -> Any:
            one = object.__new__(made)
            for name, value in (*zip(numbers, values, strict=True), *zip(static, structure[1:], strict=True)):
                object.__setattr__(one, name, value)
            return one

        jax.tree_util.register_pytree_node(made, flattened, restored)

    def vector(self, person: Person) -> jax.Array:
        """``[parameters]``, in the order of ``ravel_pytree``."""
        raise NotImplementedError

    def counted(self, person: Person) -> tuple[jax.Array, jax.Array]:
        """The vector, and how many of the records counted as zero because they were not finite."""
        return self.vector(person), jnp.int32(0)

    def layout(self, objective: Objective, params: Params, arrays: Arrays) -> Layout:
        """The layout with which people have to be arranged for this work."""
        return Layout.of(objective, params, arrays, batch_size=self.batch_size, apart=self.apart)


class Gradient(Computation):
    """The gradient of the person's mean loss at the global model."""

    def vector(self, person: Person) -> jax.Array:
        return person.gradient()


class Direction(Computation):
    """The gradient of the person's mean loss at the global model, scaled to length 1; zero where it is zero."""

    def vector(self, person: Person) -> jax.Array:
        gradient = person.gradient()
        return gradient / jnp.maximum(jnp.linalg.norm(gradient), 1e-30)


class RecordGradients(Computation):
    """The mean of the person's record gradients, each clipped on its own; one that is not finite counts as zero."""

    apart = True

    def counted(self, person: Person) -> tuple[jax.Array, jax.Array]:
        mean, share_lost = person.mean(person.clipped_records, person.params)
        return mean, jnp.round(share_lost * person.count).astype(jnp.int32)


class LocalTraining(Computation):
    """``x_u - x`` after local training.

    epochs  passes over a person's records
    rate    the step's size

    Side by side, each person's training stops after its own last step. A further step on nothing would be no step
    only where nothing overflows, and would make what a person adds depend on how many records the others have.
    """

    descends = False

    epochs: int = 1
    rate: float = 1.0
    batch_size: int | None = field(default=None, metadata={"static": True})

    def vector(self, person: Person) -> jax.Array:
        gradient: Callable[[jax.Array, Params], Params]
        steps: jax.Array | int = self.epochs
        if person.is_whole:
            everything = person.batch(jnp.int32(0), person.count)

            def gradient(t: jax.Array, params: Params) -> Params:
                return person.batch_gradient(params, everything)
        elif self.batch_size is None:

            def gradient(t: jax.Array, params: Params) -> Params:
                return person.gradient_at(params)
        else:
            size = self.batch_size
            batches = jnp.maximum(1, -(-person.count // size))
            steps = self.epochs * batches

            def gradient(t: jax.Array, params: Params) -> Params:
                first = t % batches * size
                return person.gradient_at(params, first, jnp.minimum(size, person.count - first))

        def step(t: jax.Array, params: Params) -> Params:
            return jax.tree.map(lambda p, g: p - self.rate * g, params, gradient(t, params))

        trained = jax.lax.fori_loop(0, steps, step, person.params)
        return ravel_pytree(jax.tree.map(jnp.subtract, trained, person.params))[0]


class PeopleSum(NamedTuple):
    """What one lane adds up to.

    total       ``[parameters]`` steps, in the order of ``ravel_pytree``
    people      ``[]`` int32, who took part (with records and a weight)
    not_finite  ``[]`` int32, people whose work, and clipped records whose gradient, was not finite: they are zero
    below       ``[]`` int32, who was not clipped: norms within the clip (to ``exact_sums.MARGIN``)
    counted     ``[1]`` steps, what they and the others count for (``Counts``); 0 where nothing is counted
    """

    total: Steps
    people: jax.Array
    not_finite: jax.Array
    below: jax.Array
    counted: Steps

    def plus(self, other: PeopleSum) -> PeopleSum:
        """Two lanes as one."""
        people, not_finite, below = (mine + theirs for mine, theirs in zip(self[1:4], other[1:4], strict=True))
        return PeopleSum(self.total.plus(other.total), people, not_finite, below, self.counted.plus(other.counted))


class ClippedVectors(NamedTuple):
    """Clipped vectors of single people, not weighted: ``vectors [n, parameters]``, the people's ``places [n]`` in what
    ``arrange`` was given; ``below [n]`` (bool) and ``not_finite`` as in ``PeopleSum``."""

    places: np.ndarray
    vectors: np.ndarray
    below: np.ndarray
    not_finite: int


def people_sum(
    objective: Objective,
    frozen: Params,
    arrays: Arrays,
    params: Params,
    lane: Lane,
    computes: Computation,
    clip: float | jax.Array,
    scale: float | jax.Array,
    counts: Counts | None = None,
) -> PeopleSum:
    """The weighted sum over one lane's people; lanes may run in threads of their own.

    ``lane`` comes from ``arrange(…, computes.layout(…))``. ``scale`` is the number of steps that make 1: vectors times
    weight and scale have to be at most 2^20, and so has a count. Clip, scale and the numbers of
    ``computes`` are data: changing them compiles nothing.
    """
    work = _Work.of(objective, frozen, arrays, params, lane, computes, clip, scale, counts)
    total = _nothing(parameter_count(params))
    for people in lane.people:
        total = _add_people(*work.in_memory(people), total)
    return total


def each_person(
    objective: Objective,
    frozen: Params,
    arrays: Arrays,
    params: Params,
    lane: Lane,
    computes: Computation,
    clip: float | jax.Array,
) -> Iterator[ClippedVectors]:
    """The clipped vectors themselves, a chunk at a time: for exchanges that encrypt or shuffle what a person adds.

    Not weighted (weights only say who takes part). Whose work is not finite appears with zeros.
    """
    work = _Work.of(objective, frozen, arrays, params, lane, computes, clip)
    for arranged in lane.people:
        index = np.asarray(arranged.index)
        here, people = work.in_memory(arranged)
        for chunk in range(int(people.used)):
            vectors, not_finite, below = _chunk_vectors(here, people, np.int32(chunk))
            real = index[chunk] >= 0
            lost = int(np.asarray(not_finite)[real].sum())
            yield ClippedVectors(index[chunk][real], np.asarray(vectors)[real], np.asarray(below)[real], lost)


@partial(jax.jit, static_argnums=0)
def _nothing(parameters: int) -> PeopleSum:
    zero = jnp.int32(0)
    return PeopleSum(Steps.zeros((parameters,)), zero, zero, zero, Steps.zeros((1,)))


@jax.jit
def _add_people(work: _Work, people: People, total: PeopleSum) -> PeopleSum:
    """``total`` and the people of one call."""
    work = replace(work, shape=people.shape)

    def add_chunk(i: jax.Array, total: PeopleSum) -> PeopleSum:
        counts, weights = people.counts[i], people.weights[i]
        vectors, not_finite, below = work.chunk(people.starts[i], counts)
        real = counts > 0
        within = real & below
        vector, counted = total.total, total.counted
        vector = vector.added(steps_of_chunk(weights * work.scale, vectors))
        if work.counts is not None:
            count = toward_zero(jnp.where(below, *work.counts), weights)
            for first in range(0, len(weights), COUNTS_TOGETHER):
                counted = counted.added(count[first : first + COUNTS_TOGETHER].sum(dtype=jnp.int32)[None])
        return PeopleSum(
            vector,
            total.people + real.sum(dtype=jnp.int32),
            total.not_finite + jnp.where(real, not_finite, 0).sum(dtype=jnp.int32),
            total.below + within.sum(dtype=jnp.int32),
            counted,
        )

    return jax.lax.fori_loop(0, people.used, add_chunk, total)


def steps_of_chunk(factors: jax.Array, vectors: jax.Array) -> jax.Array:
    """The sum over people of ``trunc(factor * vector)``, of at most 2^20 each: ``factors [width]``,
    ``vectors [width, parameters] -> int32 [parameters]``."""
    steps = jnp.trunc(factors[:, None] * vectors)
    width = len(factors)
    few = np.arange(width) // TOGETHER == np.arange(-(-width // TOGETHER))[:, None]
    sums = jnp.dot(few.astype(np.float32), steps, precision="highest").astype(jnp.int32)
    return sums.sum(0, dtype=jnp.int32)  # of at most 128, by the widest chunk


@jax.jit
def _chunk_vectors(work: _Work, people: People, chunk: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    return replace(work, shape=people.shape).chunk(people.starts[chunk], people.counts[chunk])


class _Batch(NamedTuple):
    """Rows with a mask of 0 and 1: ``features [rows, …]``, ``labels [rows, …]``, ``mask [rows]``."""

    features: jax.Array
    labels: jax.Array
    mask: jax.Array


# what is averaged over records: something of any form
Piece = Callable[[Params, _Batch], Any]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Work:
    """Everything that the work of one call needs. Static fields are compiled in; the numbers are data."""

    objective: Objective = field(metadata={"static": True})
    frozen: Params
    arrays: Arrays
    params: Params
    rows: jax.Array | None
    computes: Computation
    clip: jax.Array
    scale: jax.Array
    counts: Counts | None
    shape: Shape = field(default=Shape(1, 1, True), metadata={"static": True})  # that of the call's people

    @classmethod
    def of(
        cls,
        objective: Objective,
        frozen: Params,
        arrays: Arrays,
        params: Params,
        lane: Lane,
        computes: Computation,
        clip: float | jax.Array,
        scale: float | jax.Array = 1.0,
        counts: Counts | None = None,
    ) -> _Work:
        floats = jax.tree.map(lambda number: jnp.asarray(number, jnp.float32), (clip, scale, counts))
        numbers = jax.tree.map(lambda n: np.int32(n) if isinstance(n, int) else np.float32(n), computes)
        return cls(objective, frozen, arrays, params, lane.rows, numbers, *floats)

    def in_memory(self, people: People) -> tuple[_Work, People]:
        """The work and the people of one call; where features are in a file, with the records of these people alone."""
        if not is_on_disk(self.arrays.features):
            return self, people
        starts, counts = (np.asarray(places).ravel() for places in (people.starts, people.counts))
        first = np.cumsum(counts) - counts
        place = np.repeat(starts - first, counts) + np.arange(counts.sum())
        row = place if self.rows is None else np.asarray(self.rows)[place]
        stored: Any = self.arrays  # of numpy
        arrays = Arrays(*(jnp.asarray(_filled_up(array[row])) for array in stored))
        forget(self.arrays.features)
        moved = replace(people, starts=first.astype(np.int32).reshape(people.starts.shape))
        return replace(self, arrays=arrays, rows=None), moved

    def chunk(self, starts: jax.Array, counts: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """People side by side, ``[width]`` each: clipped vectors ``[width, parameters]``, how much was not finite, and
        who is below.

        One person alone is not batched: products with single models are faster than batches of them.
        """

        def person(start: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
            found, records_lost = self.computes.counted(Person(self, start, count))
            vector, finite, below = bounded(found, self.clip)
            return vector, records_lost + ~finite, below

        if self.shape.width > 1:
            return jax.vmap(person)(starts, counts)
        vector, not_finite, below = person(starts[0], counts[0])
        return vector[None], not_finite[None], below[None]


def _filled_up(rows: np.ndarray) -> np.ndarray:
    """``rows``, and zeros up to a power of two of them: few shapes are compiled."""
    filled = np.zeros((power_of_two(max(len(rows), FEWEST_ROWS)), *rows.shape[1:]), rows.dtype)
    filled[: len(rows)] = rows
    return filled


@dataclass(frozen=True)
class Person:
    """One person's records, as a :class:`Computation` sees them; ``count`` is their number, which is traced."""

    work: _Work
    start: jax.Array
    count: jax.Array

    @property
    def params(self) -> Params:
        """The global model."""
        return self.work.params

    @property
    def is_whole(self) -> bool:
        """Whether one batch holds all of the records."""
        return self.work.shape.whole

    def gradient(self) -> jax.Array:
        """``[parameters]``, the gradient of the mean loss over the records, at the global model."""
        return ravel_pytree(self.gradient_at(self.params))[0]

    def gradient_at(self, params: Params, first: jax.Array | None = None, taken: jax.Array | None = None) -> Params:
        """The same at other ``params``, as a tree; of the ``taken`` records from ``first`` on (default: all)."""
        return self.mean(self.batch_gradient, params, first, taken)

    def mean(self, piece: Piece, params: Params, first: jax.Array | None = None, taken: jax.Array | None = None) -> Any:
        """The mean of ``piece`` over the ``taken`` records from the person's ``first`` (default: all), in passes."""
        first = jnp.zeros_like(self.count) if first is None else first
        taken = self.count if taken is None else taken
        batch_size, rows = self.work.computes.batch_size, self.work.shape.rows
        if self.is_whole or (batch_size is not None and batch_size <= rows):
            return piece(params, self.batch(first, taken))

        def add(i: jax.Array, total: Any) -> Any:
            size = jnp.minimum(rows, taken - i * rows)
            part = piece(params, self.batch(first + i * rows, size))
            share = size / taken
            return jax.tree.map(lambda t, p: t + share * p, total, part)

        shapes = jax.eval_shape(piece, params, self.batch(first, taken))
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return jax.lax.fori_loop(0, (taken + rows - 1) // rows, add, zeros)

    def batch(self, first: jax.Array, taken: jax.Array) -> _Batch:
        """``taken`` of the records from ``first`` on; padding repeats the person's own."""
        work, nth = self.work, jnp.arange(self.work.shape.rows)
        place = self.start + jnp.minimum(first + nth, jnp.maximum(self.count - 1, 0))
        row = place if work.rows is None else work.rows.at[place].get(mode="clip")
        features, labels = (array.at[row].get(mode="clip") for array in work.arrays)
        return _Batch(features, labels, (nth < taken).astype(jnp.float32))

    def batch_gradient(self, params: Params, batch: _Batch) -> Params:
        return jax.grad(self.work.objective.loss)(params, self.work.frozen, *batch)

    def clipped_records(self, params: Params, batch: _Batch) -> tuple[jax.Array, jax.Array]:
        """The mean over the batch of each record's clipped gradient: ``[parameters]``; and the share of those that are
        not finite."""

        def record(features: jax.Array, labels: jax.Array, mask: jax.Array) -> tuple[jax.Array, jax.Array]:
            gradient = self.batch_gradient(params, _Batch(features[None], labels[None], mask[None]))
            vector, finite, _ = bounded(ravel_pytree(gradient)[0], self.work.clip)
            return vector, mask * ~finite

        vectors, lost = jax.vmap(record)(*batch)  # of a masked record: zeros
        records = jnp.maximum(batch.mask.sum(), 1.0)
        return vectors.sum(0) / records, lost.sum() / records
