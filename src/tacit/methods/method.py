"""What a method is: a frozen dataclass of public numbers with a few pure functions.

Private data only ever enters as call arguments. The functions below work on one silo and take arrays, so an engine may
vectorise them over silos, and the same code runs in the simulator and on a federation:

    server = method.init(step, params, facts)
    broadcast = method.broadcast(server)
    vector, silo_state, _ = method.local(work, broadcast, silo_state)   in every participating silo
    server = method.aggregate(step, server, total, divisors)            sees a sum of vectors, never a silo
    own = method.own(work, broadcast, silo_state)                       of a personal method, and stays in the silo

A silo's contribution is one flat vector; whatever must be added up (an update times its weight, the weight itself, a
control variate) is a part of it. The exchange owns the step from contributions to their total, and adds the noise that
``method.sum_noise`` asks for. ``method.event`` says what one round (of a ``joint`` method: all rounds together)
releases to somebody, in the accountant's terms.

A method is a tree of arrays to JAX: its numbers (clip, noise, rates) are leaves, all else is structure. ``local`` and
``aggregate`` run inside compiled functions in which every number may be traced, so another clip or another noise
compiles nothing anew; they must not branch on a number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp
from pydantic import Field

from tacit.errors import UserError
from tacit.kernels import Counts, Objective, Rows, Schedule, ServerStep, Steps, Work
from tacit.kernels.clipped_sum import Rounding, rounding
from tacit.kernels.grid_integers import COUNT_MARGIN
from tacit.models import Convexity, Params
from tacit.privacy import AsPublished, Event, Exposure, Noise, Relation, Stream, Unit, Unprotected
from tacit.privacy.invalid import InvalidArgument

Positive = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=1)]
Rate = Annotated[float, Field(strict=True, gt=0, le=1)]

# Within these a clip may be, and follow what it clips: far from where float32 loses squares and quotients.
CLIP_RANGE = (1e-9, 1e9)
Clip = Annotated[float, Field(strict=True, ge=CLIP_RANGE[0], le=CLIP_RANGE[1])]


@dataclass(frozen=True)
class Facts:
    """What is public about a run, apart from the method's own numbers: declared, never counted from private records.

    silos             how many silos there are
    rounds            how many rounds are planned
    subjects          how many people there are, or places for people, at most
    records_per_silo  for every silo the declared number of records: divisor of batches
    max_records       at most so many records of one subject in one silo
    max_silos         at most so many silos hold records of one subject
    delta             the delta of the run's guarantees
    parameters        how many numbers are learned, where the shape of a record is known without looking at any
    convex            how steep and how curved the loss is, where it is convex in the parameters and bounded so
    records           training records in all; counted, and so only for methods that promise nothing
    moves_up          a cap on a subject's records lets another one of the same silo take the place of one that goes
    moves_over        records beyond a cap on a subject's silos are dropped, so that others take the place of one that
                      goes; False where the cap is a promise about the data
    """

    silos: int
    rounds: int = 1
    subjects: int | None = None
    records_per_silo: tuple[int, ...] | None = None
    max_records: int | None = None
    max_silos: int | None = None
    delta: float = 1e-5
    parameters: int | None = None
    convex: Convexity | None = None
    records: int = 0
    moves_up: bool = False
    moves_over: bool = False

    @property
    def silos_of_a_subject(self) -> int:
        return self.silos if self.max_silos is None else min(self.max_silos, self.silos)

    def silos_moved(self, replaces: bool) -> int:
        """In how many silos something changes with one subject: under replacement the other may be elsewhere."""
        return min(self.silos, 2 * self.silos_of_a_subject) if replaces else self.silos_of_a_subject

    def record_silos_moved(self, replaces: bool) -> int:
        """The same for one record."""
        return min(self.silos, 2) if replaces else 1

    @property
    def in_few_silos(self) -> str:
        """The promise about a subject's silos, in words."""
        most = self.silos_of_a_subject
        return f"at most {most} silo{'' if most == 1 else 's'} with records of one subject"

    def pooled(self) -> Facts:
        """The same with all records in one place."""
        records = None if self.records_per_silo is None else (sum(self.records_per_silo),)
        most = None if self.max_records is None else self.max_records * self.silos_of_a_subject
        return replace(self, silos=1, records_per_silo=records, max_records=most, max_silos=1)


# A fact of ``Facts`` that a method needs -> the key of the experiment file that declares it.
FACT_KEYS = {
    "silos": "data.silos.count",
    "subjects": "data.subjects.count",
    "records_per_silo": "data.records_per_silo",
    "max_records": "privacy.max_records_per_subject_and_silo",
    "parameters": "data.numeric",
}


class Drawing(Protocol):
    """How silos draw what they look at in a round.

    shape  how large a silo's plan is: a function of the silo's own records and of public numbers
    draw   the work of several silos of one shape as one plan for ``width`` of them
    """

    def shape(self, silo: Rows) -> tuple[int, int]: ...

    def draw(self, silos: Sequence[Rows], streams: Sequence[Stream], width: int) -> Any: ...


class Contributions(NamedTuple):
    """How many clipped contributions one noised sum has on average, ``of`` how many, and what they are."""

    number: float
    of: int
    what: str

    @property
    def words(self) -> str:
        if self.number == self.of:
            return f"{self.of:,} {self.what}"
        return f"{self.number:,.4g} of {self.of:,} {self.what} on average"


class LocalResult(NamedTuple):
    """What one silo's local work gave.

    vector      ``[numbers]``, the silo's contribution: what the exchange takes. Of a method whose sums get noise it is
                clipped, and is rounded toward zero on the grid of the sum; or it is on that grid already (``Steps``)
    state       what the silo keeps
    not_finite  ``[]`` int32, how many of what is clipped were not finite and counted as zero. A fact about private
                records: it stays with those who hold them
    """

    vector: jax.Array | Steps
    state: Any
    not_finite: jax.Array | int = 0


class Divisors(NamedTuple):
    """The public constants that the server divides by, never a realised number.

    total   divides the sum of contributions
    beside  divides what travels beside it: who was below an adaptive clip, or control variates
    """

    total: float = 1.0
    beside: float = 1.0


class ServerState(NamedTuple):
    """The server's memory: trainable parameters, the optimiser's memory, and what else a method keeps."""

    params: Params
    optimizer: Any
    extra: Any = ()


WorksBy = Literal["silo", "subject", "report", "node", "walk"]


@dataclass(frozen=True)
class Method:
    """Base of every method that a server orchestrates; the fields of a method are the keys of ``[method]``."""

    name: ClassVar[str]
    about: ClassVar[str]
    paper: ClassVar[str]
    units: ClassVar[tuple[Unit, ...]] = ("subject", "record", "silo")
    clips: ClassVar[str] = "nothing"
    noise_place: ClassVar[str] = "none"
    exchanges: ClassVar[tuple[str, ...]] = ("plain",)
    works_by: ClassVar[WorksBy] = "silo"  # by whom local work is done: which worker of the engine does it
    trusts: ClassVar[tuple[str, ...]] = ()  # views that see what is not yet protected, by the method's own account
    personal: ClassVar[bool] = False  # each silo keeps and uses a model of its own
    pools: ClassVar[bool] = False  # all records are moved to one place first: a reference, not federated learning
    serverless: ClassVar[bool] = False  # nodes talk to each other, nobody aggregates
    releases_last: ClassVar[bool] = False  # a run counts on that no model but the last one is seen
    adds_over_silos: ClassVar[bool] = False  # every silo that holds a subject's records adds to what is lost

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        jax.tree_util.register_pytree_node(cls, _numbers, partial(_with_numbers, cls))

    @property
    def participation(self) -> float:
        """The public rate at which a silo takes part in a round, by a coin of its own."""
        return 1.0

    @property
    def first_unit(self) -> Unit:
        """Whom the method protects unless the experiment says otherwise."""
        return self.units[0]

    @property
    def splits_by_subject(self) -> bool:
        """Whether people take the place of silos, each with all records, wherever they are held."""
        return False

    def check(self, exchange: str) -> None:
        """Refuse (UserError) what the method's numbers and the exchange cannot do together."""

    def check_facts(self, facts: Facts) -> None:
        """Refuse (UserError) what the method's numbers and the public facts cannot do together."""

    def check_rounding(self, facts: Facts, parameters: int | None = None) -> None:
        """Refuse (UserError) sums whose rounding is not covered by what is accounted for: for so many ``parameters``,
        as soon as they are known."""

    def rounds(self, facts: Facts) -> int | None:
        """How many rounds the method's own numbers ask for; None where ``train.rounds`` says it."""
        return None

    def turns(self, facts: Facts) -> int:
        """People are parted, whatever their records say, into so many batches that take turns: round after round, of
        which each is about the people of one batch only. 1: every round is about everybody."""
        return 1

    def records_kept(self, facts: Facts) -> int | None:
        """At most so many records of a subject in a silo, where the method itself asks for a cap."""
        return None

    # -- what happens in a silo

    def silo_state(self, params: Params) -> Any:
        """What a silo keeps between rounds, at the start (nothing, unless a method says otherwise)."""
        return ()

    def silo_states(self, params: Params, silos: int) -> Any:
        """What all silos keep at the start, stacked: every leaf ``[silos, …]``."""
        one = self.silo_state(params)
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (silos, *jnp.shape(leaf))), one)

    def schedule(self, facts: Facts) -> Drawing:
        """How a silo draws what it looks at in a round."""
        raise NotImplementedError

    def local(self, work: Work, broadcast: Any, state: Any) -> LocalResult:
        """One silo's local work."""
        raise NotImplementedError

    # -- models: one for everybody, and of a personal method one in every silo

    def shared(self, server: ServerState) -> Params | None:
        """The model for everybody, as far as there is one."""
        return server.params

    def own_schedule(self, facts: Facts) -> Drawing:
        """How a silo draws what it looks at when it makes its own model: all its records at once."""
        return Schedule()

    def own(self, work: Work, broadcast: Any, state: Any) -> Params:
        """The model that a silo uses itself, made from what it was sent, what it kept and its own records; a tree like
        that of ``shared``. Nothing of it leaves the silo."""
        raise NotImplementedError

    @staticmethod
    def outputs(objective: Objective, model: Params, features: jax.Array) -> jax.Array:
        """What a model says, ``[records, outputs]``; ``model`` is ``shared`` or ``own`` with the frozen layers."""
        return objective.apply(model, features)

    # -- what happens at the server

    def init(self, step: ServerStep, params: Params, facts: Facts) -> ServerState:
        return ServerState(params, step.init(params))

    def broadcast(self, server: ServerState) -> Any:
        """What every participating silo is sent."""
        return server.params

    def divisors(self, facts: Facts) -> Divisors:
        """What the server divides by."""
        return Divisors()

    def aggregate(self, step: ServerStep, server: ServerState, total: jax.Array, divisors: Divisors) -> ServerState:
        """The next server state, from the sum of contributions alone."""
        raise NotImplementedError

    # -- what is promised

    @property
    def private(self) -> bool:
        """Whether the method adds noise that could protect somebody."""
        return False

    @property
    def record_losses(self) -> str | None:
        """The key of ``[method]`` that asks for the loss of single records, which Cox does not have; None: no key."""
        return None

    def needs(self, unit: Unit) -> tuple[str, ...]:
        """Names of the public facts without which no guarantee for ``unit`` can be given."""
        return ()

    def relation(self, unit: Unit) -> Relation:
        """The change that a guarantee for ``unit`` is about, unless the experiment asks for another."""
        return "zero-out"

    def sent_numbers(self, parameters: int, facts: Facts) -> int:
        """How many numbers a contribution has for a model of so many."""
        return parameters

    def sum_noise(self, facts: Facts) -> Noise | None:
        """The noise that the exchange has to add to the sum of contributions; None where it adds none."""
        return None

    def requires_all_silos(self, facts: Facts) -> bool:
        """Whether a guarantee counts the noise (or the reports) of several silos together: a round is then released
        with all of them or not at all. Exchanges that allow for missing silos have rules of their own."""
        noise = self.sum_noise(facts)
        return noise is not None and noise.place == "shares"

    @property
    def joint(self) -> bool:
        """Whether rounds do not add up, because their noise is correlated: :meth:`event` is then what *all* rounds
        release together, charged whole with the first."""
        return False

    def event(self, exposure: Exposure, facts: Facts) -> Event:
        """What one round releases to a view, in the accountant's terms; unprotected unless a method proves better."""
        return Unprotected(f"{self.name} adds no noise: nothing bounds what a model reveals")

    def sampling(self, exposure: Exposure) -> str:
        """Whose secret coin the guarantee counts on, in words."""
        return "none"

    def assumptions(self, exposure: Exposure, facts: Facts) -> tuple[str, ...]:
        """What must be true for the guarantee to hold, beyond what all guarantees need."""
        return ()

    def as_published(self, exposure: Exposure, delta: float, facts: Facts) -> AsPublished | None:
        """What the paper's own accounting gives for the whole run."""
        return None

    def reference_numbers(self, step: ServerStep) -> dict[str, Any]:
        """Keys of ``[method]`` under which a reference does comparable local work."""
        raise NotImplementedError


def _numbers(method: Method) -> tuple[list[Any], tuple[tuple[str, ...], tuple[tuple[str, Any], ...]]]:
    """A method's numbers, and its structure: the names of the numbers, and every other field with its value.

    Counts, words, switches and what is left out are structure; everything else is a number, a list or a group of them.
    """
    values = {field.name: getattr(method, field.name) for field in fields(method)}
    structure = tuple((name, value) for name, value in values.items() if value is None or isinstance(value, int | str))
    names = tuple(name for name in values if name not in dict(structure))
    return [values[name] for name in names], (names, structure)


def _with_numbers(
    kind: type[Method], structure: tuple[tuple[str, ...], tuple[tuple[str, Any], ...]], numbers: Sequence[Any]
) -> Method:
    """A method with other numbers, traced ones perhaps: nothing is checked."""
    names, others = structure
    method = object.__new__(kind)
    for name, value in (*zip(names, numbers, strict=True), *others):
        object.__setattr__(method, name, value)
    return method


@dataclass(frozen=True)
class SampledSilos(Method):
    """Methods of which a part of the silos takes part in a round.

    batch_size        records per local batch; left out: all of a silo's records in one batch
    silo_sample_rate  public Poisson rate at which a silo enters a round
    """

    batch_size: Count | None = None
    silo_sample_rate: Rate = 1.0

    @property
    def participation(self) -> float:
        return self.silo_sample_rate

    def schedule(self, facts: Facts) -> Drawing:
        """One batch."""
        return Schedule(self.batch_size, steps=1)

    def reference_numbers(self, step: ServerStep) -> dict[str, Any]:
        return {"batch_size": self.batch_size, "batches_per_round": 1, "local_learning_rate": step.rate}


@dataclass(frozen=True)
class LocalTraining(SampledSilos):
    """Methods whose silos take several steps between two exchanges.

    local_epochs         shuffled passes over a silo's records
    batches_per_round    instead of local_epochs: exactly so many batches
    local_learning_rate  rate of the silos' own steps
    """

    local_epochs: Count = 1
    batches_per_round: Count | None = None
    local_learning_rate: Positive = 0.1

    def schedule(self, facts: Facts) -> Drawing:
        return Schedule(self.batch_size, self.batches_per_round, self.local_epochs)

    def reference_numbers(self, step: ServerStep) -> dict[str, Any]:
        keys = ("batch_size", "local_epochs", "batches_per_round", "local_learning_rate")
        return {key: getattr(self, key) for key in keys}


@dataclass(frozen=True)
class Calibrated(Method):
    """Methods that add noise, given or solved for.

    target_epsilon  instead of the method's own number (``noise_key``): the plan solves for the noise
    """

    noise_key: ClassVar[str]  # the key of ``[method]`` that says how much noise there is

    target_epsilon: Positive | None = None

    @property
    def private(self) -> bool:
        return True

    @property
    def noise_given(self) -> bool:
        return getattr(self, self.noise_key) is not None

    def with_noise(self, noise: float) -> Self:
        """The same method with so much noise: any measure of it under which more noise costs less epsilon."""
        raise NotImplementedError

    def contributions(self, facts: Facts) -> Contributions | None:
        """What the noise hides, as far as it is public."""
        return None

    def bound(self, facts: Facts) -> float:
        """The largest l2 norm of one contribution."""
        raise NotImplementedError

    def deviation(self, facts: Facts) -> float:
        """The standard deviation of the noise on every number of a sum of contributions."""
        raise NotImplementedError


@dataclass(frozen=True)
class Private(Calibrated):
    """Methods that clip and add noise to a sum.

    clip              l2 bound on what is clipped (``clips`` says what that is)
    noise_multiplier  standard deviation of the noise on the sum, over ``clip``
    """

    noise_key = "noise_multiplier"

    clip: Clip = 1.0
    noise_multiplier: NotNegative | None = None

    def with_noise(self, noise: float) -> Self:
        return replace(self, noise_multiplier=noise)

    def bound(self, facts: Facts) -> float:
        return self.clip

    def deviation(self, facts: Facts) -> float:
        noise = self.sum_noise(facts)
        return self.sigma * self.clip if noise is None else noise.in_a_round

    @property
    def sigma(self) -> float:
        """The noise multiplier, given or solved for."""
        if self.noise_multiplier is None:
            raise InvalidArgument("missing", "noise", "the noise of this method is not known yet: a plan solves for it")
        return self.noise_multiplier


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class AdaptiveClip:
    """The clip follows a quantile of the norms (Andrew et al. 2021), at its own cost.

    quantile     the share that should not be clipped
    rate         how fast the clip follows: clip *= exp(-rate (share below - quantile))
    count_noise  standard deviation of the noise on the number below

    Whatever is clipped counts as ``1 - quantile`` where its norm is below the clip, and as ``-quantile`` where it is
    not: the sum is positive where too many are below, whoever and however many take part, and one more or less moves it
    by at most ``sensitivity``, which is 1/2 for the median. The sum and the count leave together as one Gaussian
    vector. Each divided by its own noise, they move by ``moved / sigma`` and by ``counted / count_noise``: the squares
    add up. The next clip is computed from the noisy count alone, and fixed before it is used.
    """

    quantile: Rate = 0.5
    rate: Positive = 0.2
    count_noise: Positive = 10.0

    @property
    def sensitivity(self) -> float:
        return max(self.quantile, 1 - self.quantile)

    def next(self, clip: jax.Array, excess: jax.Array) -> jax.Array:
        """The clip after a round in which the share below was ``excess`` larger than the quantile; where there is
        nothing to clip, it stops before it vanishes."""
        moved = clip * jnp.exp(-self.rate * jnp.clip(excess, -self.quantile, 1 - self.quantile))
        return jnp.clip(moved, *CLIP_RANGE)


@dataclass(frozen=True)
class Adaptive(Private):
    """Private methods whose clip may follow what it clips; the server keeps the clip and sends it with the model.

    adaptive_clip  let the clip follow a quantile of the norms; ``clip`` is where it starts
    """

    adaptive_clip: AdaptiveClip | None = None

    def init(self, step: ServerStep, params: Params, facts: Facts) -> ServerState:
        return ServerState(params, step.init(params), extra=jnp.float32(self.clip))

    def broadcast(self, server: ServerState) -> Any:
        return server.params, server.extra

    @property
    def counted(self) -> float:
        """By how much one more or less moves the count that the clip follows; 0 where there is none."""
        return 0.0 if self.adaptive_clip is None else self.adaptive_clip.sensitivity

    def ratio(self, moved: float, counted: float) -> float:
        """Noise over shift of everything that leaves together: a sum that moves by ``moved`` clips and, with an
        adaptive clip, a count that moves by ``counted`` (see :class:`AdaptiveClip`)."""
        shift = moved / self.sigma
        if self.adaptive_clip is not None:
            shift = math.hypot(shift, counted / self.adaptive_clip.count_noise)
        return 1 / shift

    @property
    def largest_count(self) -> float:
        """The largest entry that a count has in a contribution, in clips: at least 1."""
        adaptive = self.adaptive_clip
        return 1.0 if adaptive is None else max(1.0, self.sigma * adaptive.sensitivity / adaptive.count_noise)

    @property
    def effective_sigma(self) -> float:
        """:meth:`ratio` for one of what is clipped."""
        return self.ratio(1.0, self.counted)

    # -- where the exchange adds the noise: the sum in units of the planned clip, the count in units in which its noise
    #    is that of the sum

    def sent(self, total: jax.Array, below: jax.Array, clip: jax.Array) -> jax.Array:
        """A contribution: a ``total`` that was clipped at ``clip``, and whether it was below."""
        total = total * (self.clip / clip)
        if self.adaptive_clip is None:
            return total
        counts = self.counts(self.adaptive_clip)
        return jnp.append(total, jnp.where(below, counts.below, counts.above))

    def scale(self, clip: jax.Array, step: float) -> jax.Array:
        """How many steps of that size make 1 in a contribution, of what was clipped at ``clip``."""
        return jnp.float32(self.clip / step) / clip

    def counts(self, adaptive: AdaptiveClip, step: float | jax.Array = 1.0) -> Counts:
        """What is added to the count by one that is below the clip, and by one that is above, in steps of that size."""
        scale = (1 - COUNT_MARGIN) * self.sigma * self.clip / (adaptive.count_noise * step)
        return Counts(scale * (1 - adaptive.quantile), -scale * adaptive.quantile)

    def received(self, server: ServerState, total: jax.Array, divisors: Divisors) -> tuple[jax.Array, jax.Array]:
        """The mean of what was clipped, and the next clip; without noise no count travels, and the clip stays."""
        clip, adaptive = server.extra, self.adaptive_clip
        if adaptive is None:
            return total / divisors.total, clip
        excess = total[-1] * adaptive.count_noise / (self.sigma * self.clip) / divisors.beside
        moved = jnp.where(self.sigma > 0, adaptive.next(clip, excess), clip)
        return total[:-1] * (clip / self.clip) / divisors.total, moved


# Where the plan does not know how many parameters a model has, it counts on no more than this.
MOST_PARAMETERS = 1 << 16
# Rounding that would cost more than this part of the noise is refused.
MOST_ROUNDING = 0.05


@dataclass(frozen=True)
class RecordSums(Adaptive):
    """Private methods that add up clipped gradients of records which are never formed: a batch's sum is rounded, and
    its rounding is part of the sensitivity (:func:`tacit.kernels.clipped_sum.rounding`, specification 9.6)."""

    averaged: ClassVar[bool] = False  # a subject's entries of a batch share one weight

    @property
    def largest_count(self) -> float:
        """Rounded up to a power of two: from the grid of a batch to that of a sum, steps are doubled."""
        return float(2.0 ** math.ceil(math.log2(super().largest_count)))

    def batch_sizes(self, facts: Facts) -> tuple[float, ...]:
        """Each silo's expected size of a batch: public."""
        raise NotImplementedError

    def rounding(self, facts: Facts) -> Rounding:
        """By how many clips a batch moves because it is rounded, at most."""
        numbers = facts.parameters or MOST_PARAMETERS
        repeated = (facts.max_records or 1) if self.averaged else 1
        noise, sizes = self.deviation(facts) / self.clip, self.batch_sizes(facts)
        return max((rounding(size, numbers, noise, repeated) for size in sizes), default=Rounding(0.0, 0.0))

    def noise_over(self, moved: float, counted: float, facts: Facts) -> float:
        """:meth:`ratio` for so many clips that a batch moves by, and its rounding."""
        more = self.rounding(facts)
        return self.ratio(moved * (1 + more.entry) + more.batch, counted)

    def of_a_record(self, facts: Facts) -> float:
        """:meth:`noise_over` for one record."""
        return self.noise_over(1.0, self.counted, facts)

    def check_rounding(self, facts: Facts, parameters: int | None = None) -> None:
        if parameters is not None and parameters > (facts.parameters or MOST_PARAMETERS):
            problem = f"the model has {parameters:,} parameters, and the plan does not know it from public facts"
            fix = f"declare the columns, or use at most {MOST_PARAMETERS:,}"
            raise UserError("missing", "data.numeric", problem, fix)
        most = sum(self.rounding(facts))
        if most > MOST_ROUNDING:
            problem = f"rounding moves a sum by {most:.3f} clips, more than {MOST_ROUNDING:g}"
            fix = "use less noise (larger batches need a smaller multiplier), or a smaller model"
            raise UserError("out-of-range", "method.noise_multiplier", problem, fix)
