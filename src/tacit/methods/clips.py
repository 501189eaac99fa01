"""The bound on a contribution, what one unit moves under it, a bound that follows what it clips, and what rounding adds
where clipped gradients of records are added up that are never formed one by one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp

from tacit.errors import UserError
from tacit.kernels import Counts
from tacit.kernels.clipped_sum import Rounding, rounding
from tacit.kernels.exact_sums import COUNT_MARGIN
from tacit.methods import option_keys as keys
from tacit.methods.base import Facts, part
from tacit.privacy import Relation, Unit


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class AdaptiveClip:
    """The clip follows a quantile of the norms (Andrew et al. 2021), at its own cost.

    quantile     the share that should not be clipped
    rate         how fast the clip follows: clip *= exp(-rate (share below - quantile))
    count_noise  standard deviation of the noise on the number below

    Whatever is clipped counts as ``1 - quantile`` where its norm is below the clip, and as ``-quantile`` where it is
    not: the sum is positive where too many are below, however many take part, and one more or less moves it
    by at most ``sensitivity``, which is 1/2 for the median. The sum and the count leave together as one Gaussian
    vector. Each divided by its own noise, they move by ``moved / sigma`` and by ``counted / count_noise``: the squares
    add up. The next clip is computed from the noisy count alone, and fixed before it is used.
    """

    quantile: keys.Rate = 0.5
    rate: keys.Positive = 0.2
    count_noise: keys.Positive = 10.0

    @property
    def sensitivity(self) -> float:
        return max(self.quantile, 1 - self.quantile)

    def next(self, clip: jax.Array, excess: jax.Array) -> jax.Array:
        """The clip after a round in which the share below was ``excess`` larger than the quantile; where there is
        nothing to clip, it stops before it vanishes."""
        moved = clip * jnp.exp(-self.rate * jnp.clip(excess, -self.quantile, 1 - self.quantile))
        return jnp.clip(moved, *keys.CLIP_RANGE)


class Shift(NamedTuple):
    """What one unit moves: a sum by this many clips, and the count of an adaptive clip by ``counted``."""

    moved: float
    counted: float = 0.0


def _count(clip: Clip) -> float:
    """The largest count in a contribution, in clips; 0 where there is none."""
    return 0.0 if clip.adaptive is None else clip.sigma * clip.adaptive.sensitivity / clip.adaptive.count_noise


@part
class Clip:
    """An l2 bound. Subclasses say what it bounds (``of``), and by how much one unit then moves what is released.

    norm      the bound; where it is adaptive, its start
    sigma     standard deviation of the noise over ``norm``
    adaptive  the bound follows what it clips

    Where the exchange adds the noise, sums travel in units of the planned clip, and the count in units in which its
    noise is that of the sum.
    """

    of: ClassVar[Literal["number", "record", "batch", "subject", "silo", "node"]]

    norm: float
    sigma: float = 0.0
    adaptive: AdaptiveClip | None = None

    def sensitivity(self, unit: Unit, relation: Relation, facts: Facts) -> Shift | None:
        """By how much one unit moves one noised sum at most; None: nothing bounds it."""
        raise NotImplementedError

    @property
    def counted(self) -> float:
        """By how much one more or less moves the count that the clip follows; 0 where there is none."""
        return 0.0 if self.adaptive is None else self.adaptive.sensitivity

    def noise_over(self, shift: Shift) -> float:
        """Noise over shift of everything that leaves together (see :class:`AdaptiveClip`)."""
        moved = shift.moved / self.sigma
        if self.adaptive is not None:
            moved = math.hypot(moved, shift.counted / self.adaptive.count_noise)
        return 1 / moved

    @property
    def effective_sigma(self) -> float:
        """:meth:`noise_over` for one of what is clipped."""
        return self.noise_over(Shift(1.0, self.counted))

    @property
    def largest(self) -> float:
        """The largest entry of a contribution: the norm, or that of a count."""
        return self.norm * self.largest_count

    @property
    def largest_count(self) -> float:
        """The largest entry that a count has in a contribution, in clips: at least 1."""
        return max(1.0, _count(self))

    @property
    def largest_norm(self) -> float:
        """The largest l2 norm of a contribution, the count included."""
        return math.hypot(self.norm, self.norm * _count(self))

    def send(self, total: jax.Array, below: jax.Array, clip: jax.Array) -> jax.Array:
        """A contribution: a ``total`` that was clipped at ``clip``, and whether it was below."""
        total = total * (self.norm / clip)
        if self.adaptive is None:
            return total
        counts = self.counts()
        return jnp.append(total, jnp.where(below, counts.below, counts.above))

    def scale(self, clip: jax.Array, step: float) -> jax.Array:
        """How many steps of that size make 1 in a contribution, of what was clipped at ``clip``."""
        return jnp.float32(self.norm / step) / clip

    def counts(self, step: float | jax.Array = 1.0) -> Counts:
        """What is added to the count by one that is below the clip, and by one that is above, in steps of that size."""
        assert self.adaptive is not None
        scale = (1 - COUNT_MARGIN) * self.sigma * self.norm / (self.adaptive.count_noise * step)
        return Counts(scale * (1 - self.adaptive.quantile), -scale * self.adaptive.quantile)

    def receive(self, clip: jax.Array, total: jax.Array, divisor: float, count: float) -> tuple[jax.Array, jax.Array]:
        """The mean of what was clipped, and the next clip; without noise no count travels, and the clip stays."""
        adaptive = self.adaptive
        if adaptive is None:
            return total / divisor, clip
        excess = total[-1] * adaptive.count_noise / (self.sigma * self.norm) / count
        moved = jnp.where(self.sigma > 0, adaptive.next(clip, excess), clip)
        return total[:-1] * (clip / self.norm) / divisor, moved


@part
class SiloClip(Clip):
    """A silo's whole update is clipped. Without the silo, the sum moves by one clip. Whatever else changes in a silo
    may turn its update around: 2 clips, and 1 in the count, in every silo that changes."""

    of = "silo"

    def sensitivity(self, unit: Unit, relation: Relation, facts: Facts) -> Shift:
        replaces = relation == "replace"
        if unit == "silo" and not replaces:
            return Shift(1.0, self.counted)
        silos = facts.silos_with(unit, replaces)
        return Shift(2.0 * silos, silos)


@part
class BatchClip(Clip):
    """The gradient of a whole batch is clipped: it may turn around, whatever of it changed. A silo that is zeroed out
    sends noise alone. The count of one batch changes by at most 1."""

    of = "batch"

    def sensitivity(self, unit: Unit, relation: Relation, facts: Facts) -> Shift:
        return Shift(1.0 if unit == "silo" and relation == "zero-out" else 2.0, 1.0)


@part
class RecordClip(Clip):
    """Every record's gradient is clipped; the sum of a batch is what is noised.

    most      at most this many records of a subject in a batch: one record more may push another one out
    averaged  a subject's records in a batch are averaged, so that all of them move the sum by one clip
    """

    of = "record"

    most: int | None = None
    averaged: bool = False

    @property
    def largest_count(self) -> float:
        """Rounded up to a power of two: from the grid of a batch to that of a sum, steps are doubled."""
        return float(2.0 ** math.ceil(math.log2(super().largest_count)))

    def displaces(self, facts: Facts) -> bool:
        """Whether one record more may push another one of its subject out of a batch."""
        return self.most is not None and (facts.max_records is None or facts.max_records > self.most)

    def sensitivity(self, unit: Unit, relation: Relation, facts: Facts) -> Shift | None:
        replaces = relation == "replace"
        if unit == "record" and not replaces:
            return Shift(2.0, 1.0) if self.displaces(facts) else Shift(1.0, self.counted)
        if unit == "record":
            moved = 2 if self.displaces(facts) else 1
            return Shift(2.0 * moved, 2 * self.counted * moved)
        if unit == "silo" or not facts.max_records:
            return None
        moved = 1 if self.averaged else min(facts.max_records, self.most or facts.max_records)
        twice = 2 if replaces else 1
        return Shift(float(twice) * moved, twice * self.counted * facts.max_records)


@part
class SubjectClip(Clip):
    """A subject's contribution in every silo is clipped and weighted, its weights over all silos summing to at most 1.

    share      the most that one silo has of a subject's weight
    by_record  by how many clips one record moves the sum; None: by 2 ``share``

    A record that goes or comes may turn its subject's part in one silo around: 2 w clips. One that is replaced goes
    from one subject and comes to another, in any silo: 4 w. Where weights depend on counts in all silos, the subject's
    other parts change as well: ``by_record``, or twice that. An adaptive clip counts a subject in every silo with the
    weight there: at most once over all silos.
    """

    of = "subject"

    share: float = 1.0
    by_record: float | None = None

    def sensitivity(self, unit: Unit, relation: Relation, facts: Facts) -> Shift | None:
        twice = 2.0 if relation == "replace" else 1.0
        if unit == "silo":
            return None
        by_record = 2.0 * self.share if self.by_record is None else self.by_record
        moved = by_record * twice if unit == "record" else twice
        return Shift(moved, moved * self.counted)


# -- rounding ----------------------------------------------------------------------------------------------------------

# Where the plan does not know how many parameters a model has, it counts on no more than this.
MOST_PARAMETERS = 1 << 16
# Rounding that would cost more than this part of the noise is refused.
MOST_ROUNDING = 0.05


@dataclass(frozen=True)
class RoundedBatches:
    """What rounding adds to the shift of a batch's sum (specification 9.6, ``kernels.clipped_sum.rounding``).

    sizes      each silo's expected number of records in a batch: public
    deviation  the standard deviation of the noise
    """

    clip: Clip
    facts: Facts
    sizes: tuple[float, ...]
    deviation: float

    @property
    def rounding(self) -> Rounding:
        """By how many clips a batch moves because it is rounded, at most. None: a batch that is clipped as a whole is
        rounded toward zero."""
        if not isinstance(self.clip, RecordClip):
            return Rounding(0.0, 0.0)
        numbers = self.facts.parameters or MOST_PARAMETERS
        repeated = (self.facts.max_records or 1) if self.clip.averaged else 1
        noise = self.deviation / self.clip.norm
        return max((rounding(size, numbers, noise, repeated) for size in self.sizes), default=Rounding(0.0, 0.0))

    def noise_over(self, shift: Shift) -> float:
        """Noise over shift, with the rounding of the batch."""
        more = self.rounding
        return self.clip.noise_over(Shift(shift.moved * (1 + more.entry) + more.batch, shift.counted))

    def noise_for(self, unit: Unit, relation: Relation) -> float:
        """:meth:`noise_over` for what one unit moves a batch by, which the clip must bound."""
        shift = self.clip.sensitivity(unit, relation, self.facts)
        assert shift is not None
        return self.noise_over(shift)

    @property
    def of_a_record(self) -> float:
        """:meth:`noise_over` for one record."""
        return self.noise_over(Shift(1.0, self.clip.counted))

    def check_size(self, parameters: int | None) -> None:
        """Refuse (UserError) rounding that is not covered."""
        if parameters is not None and parameters > (self.facts.parameters or MOST_PARAMETERS):
            problem = f"the model has {parameters:,} parameters, and the plan does not know it from public facts"
            raise UserError(
                "missing", "data.numeric", problem, f"declare the columns, or use at most {MOST_PARAMETERS:,}"
            )
        most = sum(self.rounding)
        if most > MOST_ROUNDING:
            problem = f"rounding moves a sum by {most:.3f} clips, more than {MOST_ROUNDING:g}"
            fix = "use less noise (larger batches need a smaller multiplier), or a smaller model"
            raise UserError("out-of-range", "method.noise_multiplier", problem, fix)
