"""What a method is: options plus parts.

``Options`` are the keys of ``[method]``. ``Options.build`` makes a :class:`Method` of parts from them and from the
public facts of a run. Engines, exchanges, accountants and reports read the parts:

    work      what a silo (or subject, or node) computes                      LocalWork
    server    what the server keeps, sends and does with a sum                ServerRule
    claim     what is guaranteed, with the proof in its docstring             Claim
    clip      the bound on a contribution, and what one unit moves            Clip
    noise     its standard deviation and who adds it                          privacy.Noise
    divisors  public constants that the server divides by                     Divisors

    server = method.server.init(step, params, silos)
    broadcast = method.server.broadcast(server)
    vector, silo_state, _ = method.work.local(work, broadcast, silo_state)    in every participating silo
    server = method.server.update(step, server, total, divisors)              sees a sum of vectors, never a silo
    own = method.work.own(work, broadcast, silo_state)                        of a personal method; stays in the silo

A silo's contribution is one flat vector; what must be added up (an update times its weight, the weight itself, a
control variate) is a part of it. The exchange takes the sum and adds the noise of ``method.added_noise``.

A part is a tree of arrays to JAX: its numbers (clip, noise, rates) are leaves, the rest is structure. ``local``,
``update`` and ``own`` run inside compiled functions in which every number may be traced: another clip or noise compiles
nothing again. They must not branch on a number, and parts hold no function and no array. Private data are call
arguments only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, Self, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from tacit.kernels import Objective, Rows, Schedule, ServerStep, Steps, Work
from tacit.models import Convexity, Params
from tacit.privacy import AsPublished, Event, Exposure, Noise, Relation, Stream, Unit, Unprotected
from tacit.privacy.mechanisms.noise_mechanisms import Randomizer
from tacit.privacy.proofs.weight_tables import RecordWeights, WeightTable

if TYPE_CHECKING:
    from tacit.methods.clips import Clip

T = TypeVar("T")

# What a contribution can travel as: a sum in floating point or on the grid of the plain exchange; integers of a bounded
# contribution; one vector per subject; reports of single numbers; messages to other nodes.
Carried = Literal["sum", "integers", "subjects", "reports", "neighbours"]
# Who adds the noise: the work itself; every silo a share; the server once.
Place = Literal["inside", "shares", "once"]
# What is moved together before the work: nothing; all records; a subject's records, each subject in a place of its own;
# all records, with subjects named by their places.
Gathers = Literal["nothing", "all", "subjects", "places"]


@dataclass(frozen=True)
class Info:
    """What is declared about a method, whatever its options.

    units          the units that it can protect; the first is the default
    clips, adds    what is clipped and who adds noise, in words
    place          who adds the noise; None: there is none
    sends          as what a contribution can travel
    trusts         views that see what is not yet protected, by the method's own account
    replaced       units for which the default guarantee is about replacement, not zero-out
    gathers        which records are moved together first
    personal       each silo keeps and uses a model of its own
    releases_last  the guarantee requires that only the last model is released
    sums_up        every silo that holds a subject's records adds to the subject's loss
    """

    name: str
    summary: str
    reference: str
    units: tuple[Unit, ...] = ("subject", "record", "silo")
    clips: str = "nothing"
    adds: str = "none"
    place: Place | None = None
    sends: tuple[Carried, ...] = ("sum",)
    trusts: tuple[str, ...] = ()
    replaced: tuple[Unit, ...] = ()
    gathers: Gathers = "nothing"
    personal: bool = False
    releases_last: bool = False
    sums_up: bool = False

    @property
    def private(self) -> bool:
        """Whether the method adds noise that could protect a unit."""
        return self.place is not None

    @property
    def pools(self) -> bool:
        """Whether all records are moved to one place first: a reference, not federated learning."""
        return self.gathers == "all"

    @property
    def serverless(self) -> bool:
        """Whether nodes talk to each other, without a server."""
        return "neighbours" in self.sends

    def relation(self, unit: Unit) -> Relation:
        """The change that a guarantee for ``unit`` is about, unless the experiment asks for another."""
        return "replace" if unit in self.replaced else "zero-out"


@dataclass(frozen=True)
class Facts:
    """What is public about a run, apart from the method's own numbers: declared, never counted from private records.

    silos             how many silos there are
    rounds            how many rounds are planned
    subjects          how many subjects there are, or places for subjects, at most
    records_per_silo  for every silo the declared number of records: divisor of batches
    max_records       at most this many records of one subject in one silo
    max_silos         at most this many silos hold records of one subject
    records_kept      at most this many records of one subject in one silo are used; None: there is no cap. The smaller
                      of ``max_records`` and of what the method sets itself
    delta             the delta of the run's guarantees
    parameters        how many numbers are learned, where the shape of a record is known without looking at any
    convex            how steep and how curved the loss is, where it is convex in the parameters and bounded so
    records           training records in all; counted, and so only for methods that guarantee nothing
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
    records_kept: int | None = None

    @property
    def silos_of_a_subject(self) -> int:
        return self.silos if self.max_silos is None else min(self.max_silos, self.silos)

    def silos_moved(self, replaces: bool) -> int:
        """In how many silos something changes with one subject: under replacement the other may be elsewhere."""
        return min(self.silos, 2 * self.silos_of_a_subject) if replaces else self.silos_of_a_subject

    def record_silos_moved(self, replaces: bool) -> int:
        """The same for one record."""
        return min(self.silos, 2) if replaces else 1

    def silos_with(self, unit: Unit, replaces: bool) -> int:
        """In how many silos something changes with one unit."""
        if unit == "silo":
            return 1
        return self.silos_moved(replaces) if unit == "subject" else self.record_silos_moved(replaces)

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


class Carrier(Protocol):
    """What options ask of an exchange (``exchange.base.Exchange``)."""

    name: ClassVar[str]
    carries: ClassVar[Carried]
    noise_from_silos_only: ClassVar[bool]

    @property
    def compiled(self) -> bool: ...

    @property
    def weights(self) -> tuple[str, ...] | None: ...


@dataclass(frozen=True)
class TrainRule:
    """Values of ``[train]`` for options that set none of the keys ``without``.

    rate, number_rate  the server's rate for classes, and for numbers as labels
    clip, clip_rate    for classes: a clip, and the server's rate with it, where noise over signal is below
                       ``little_noise`` and no rate is given
    """

    without: tuple[str, ...]
    rounds: int
    optimizer: str
    rate: float
    number_rate: float
    clip: float
    clip_rate: float
    little_noise: float

    def applies(self, options: Options) -> bool:
        return not any(getattr(options, key) for key in self.without)

    def values(self, options: Options, labels: str) -> dict[str, Any]:
        if not self.applies(options):
            return {}
        rate = self.number_rate if labels == "real" else self.rate
        return {"rounds": self.rounds, "server_optimizer": self.optimizer, "server_learning_rate": rate}


@dataclass(frozen=True)
class Options:
    """Base of the keys of every ``[method]``.

    noise_key   the key that says how much noise there is; None: the method adds none
    train_rule  the keys of ``[train]`` where an experiment leaves them out; None: the defaults of the section
    """

    info: ClassVar[Info]
    noise_key: ClassVar[str | None] = None
    train_rule: ClassVar[TrainRule | None] = None

    @property
    def noise_value(self) -> float:
        """The value of ``noise_key``, given or solved for."""
        value = None if self.noise_key is None else getattr(self, self.noise_key)
        if value is None:
            raise ValueError("the noise of this method is not known yet: a plan solves for it")
        return float(value)

    @property
    def declared(self) -> Info:
        """What is declared about the method with these options."""
        return self.info

    @property
    def record_losses(self) -> str | None:
        """The key of ``[method]`` that needs the loss of single records, which Cox does not have; None: no key."""
        return None

    @property
    def publishes(self) -> bool:
        """Whether the noise is the paper's own: a target epsilon is then the paper's own number."""
        return False

    def needs(self, unit: Unit) -> tuple[str, ...]:
        """Names of the public facts without which no guarantee for ``unit`` can be given."""
        return ()

    def check(self, exchange: Carrier) -> None:
        """Refuse (UserError) what the options and the exchange cannot do together."""

    def resolve(self, facts: Facts) -> Facts:
        """The facts with what follows from the options; refuses (UserError) contradictions."""
        return facts

    def with_noise(self, noise: float) -> Self:
        """The same with this much noise: any measure under which more noise costs less epsilon."""
        return replace(self, **{str(self.noise_key): noise})

    def reference_numbers(self, step: ServerStep) -> dict[str, Any]:
        """Keys of ``[method]`` under which a reference does comparable local work."""
        return {"batch_size": 64, "local_epochs": 1, "local_learning_rate": 0.1}

    def build(self, facts: Facts) -> Method:
        """The parts. Pure and cheap: the search for a noise calls it often."""
        raise NotImplementedError


# -- parts -------------------------------------------------------------------------------------------------------------


@dataclass_transform(frozen_default=True, kw_only_default=True)
def part(kind: type[T]) -> type[T]:
    """A frozen dataclass that is a tree to JAX: counts, words, switches and None are structure, the rest are leaves."""
    made = dataclass(frozen=True, kw_only=True)(kind)
    jax.tree_util.register_pytree_node(made, _numbers, partial(_with_numbers, made))
    return made


def _numbers(one: Any) -> tuple[list[Any], tuple[tuple[str, ...], tuple[tuple[str, Any], ...]]]:
    values = {field.name: getattr(one, field.name) for field in fields(one)}
    structure = tuple((name, value) for name, value in values.items() if value is None or isinstance(value, int | str))
    names = tuple(name for name in values if name not in dict(structure))
    return [values[name] for name in names], (names, structure)


def _with_numbers(
    kind: type[Any], structure: tuple[tuple[str, ...], tuple[tuple[str, Any], ...]], numbers: Sequence[Any]
) -> Any:
    """A part with other numbers, which may be traced: nothing is checked."""
    names, others = structure
    made = object.__new__(kind)
    for name, value in (*zip(names, numbers, strict=True), *others):
        object.__setattr__(made, name, value)
    return made


class Drawing(Protocol):
    """How silos draw what they look at in a round.

    shape  how large a silo's plan is: a function of the silo's own records and of public numbers
    draw   the work of several silos of one shape as one plan for ``width`` of them
    """

    def shape(self, silo: Rows) -> tuple[int, int]: ...

    def draw(self, silos: Sequence[Rows], streams: Sequence[Stream], width: int) -> Any: ...


class LocalResult(NamedTuple):
    """What one silo's local work gave.

    vector      ``[numbers]``, the silo's contribution: what the exchange takes. Of a method whose sums get noise it is
                clipped, and is rounded toward zero on the grid of the sum; or it is on that grid already (``Steps``)
    state       what the silo keeps
    not_finite  ``[]`` int32, how many of what is clipped were not finite and counted as zero. A fact about private
                records: it stays with the party that holds them
    """

    vector: jax.Array | Steps
    state: Any
    not_finite: jax.Array | int = 0


class ReportNumbers(NamedTuple):
    """What is public about reports of single numbers.

    value_range  the largest number that is reported
    numbers      dimensions, messages per dimension, subjects in a round at most, the randomiser, and how many messages
                 a subject sends (None: random)
    """

    value_range: float
    numbers: tuple[int, int, int, Randomizer, int | None]


class RecordWeighting(NamedTuple):
    """Weights by a subject's records in all silos: the kind of table, and its cap where it has one."""

    kind: RecordWeights
    cap: int | None

    def table(self, facts: Facts, bits: int | None = None) -> WeightTable | None:
        """The public table, rounded down to ``bits``; None where nothing bounds a subject's records."""
        most = facts.max_records
        return None if most is None else WeightTable(self.kind, facts.silos * most, self.cap, bits)


@part
class LocalWork:
    """What a silo computes; the base works silo by silo.

    worker  who does it in an engine, as ``module:name``: a subclass of ``engine.worker.Worker``
    rate    public rate at which a silo (or subject) takes part in a round, by a coin of its own
    """

    worker: ClassVar[str] = "tacit.engine.silo_work:SiloWork"

    rate: float = 1.0

    @property
    def record_weights(self) -> RecordWeighting | None:
        """Weights by a subject's records in all silos; None where weights do not depend on them."""
        return None

    def schedule(self, facts: Facts) -> Drawing:
        """How a silo draws what it looks at in a round."""
        raise NotImplementedError

    def state(self, params: Params) -> Any:
        """What a silo keeps between rounds, at the start."""
        return ()

    def states(self, params: Params, silos: int) -> Any:
        """What all silos keep at the start, stacked: every leaf ``[silos, …]``."""
        one = self.state(params)
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (silos, *jnp.shape(leaf))), one)

    def local(self, work: Work, broadcast: Any, state: Any) -> LocalResult:
        """One silo's local work."""
        raise NotImplementedError

    def own_schedule(self, facts: Facts) -> Drawing:
        """How a silo draws what it looks at when it makes its own model: all its records at once."""
        return Schedule()

    def own(self, work: Work, broadcast: Any, state: Any) -> Params:
        """The model that a silo of a personal method uses itself, made from what it was sent, what it kept and its own
        records; a tree like that of ``ServerRule.shared``. Nothing of it leaves the silo."""
        raise NotImplementedError

    def batch_sizes(self, facts: Facts) -> tuple[float, ...]:
        """Each silo's expected number of records in a batch, where batches are sampled: public."""
        return ()

    def reports(self, facts: Facts) -> ReportNumbers | None:
        """What is public about reports of single numbers; None where a subject makes none."""
        return None


class Divisors(NamedTuple):
    """The public constants that the server divides by, never a realised number.

    total   divides the sum of contributions
    extra   divides what travels with it: who was below an adaptive clip, or control variates
    """

    total: float = 1.0
    extra: float = 1.0


NO_DIVISORS = Divisors()


class ServerState(NamedTuple):
    """The server's memory: trainable parameters, the optimiser's memory, and what else a method keeps."""

    params: Params
    optimizer: Any
    extra: Any = ()


@part
class ServerRule:
    """What the server does: a step of the server's optimiser along the mean of what is sent.

    clip      where the server keeps a clip, which may be adaptive, and sends it with the model
    descends  contributions are gradients, which point uphill
    """

    clip: Clip | None = None
    descends: bool = False

    def init(self, step: ServerStep, params: Params, silos: int) -> ServerState:
        extra = () if self.clip is None else jnp.float32(self.clip.norm)
        return ServerState(params, step.init(params), extra)

    def broadcast(self, server: ServerState) -> Any:
        """What every participating silo is sent."""
        return server.params if self.clip is None else (server.params, server.extra)

    def update(self, step: ServerStep, server: ServerState, total: jax.Array, divisors: Divisors) -> ServerState:
        """The next server state, from the sum of contributions alone."""
        mean, extra = total / divisors.total, server.extra
        if self.clip is not None:
            mean, extra = self.clip.receive(extra, total, divisors.total, divisors.extra)
        return self.stepped(step, server, -mean if self.descends else mean, extra)

    def stepped(self, step: ServerStep, server: ServerState, mean: jax.Array, extra: Any = ()) -> ServerState:
        """The server's step along ``mean``."""
        params, optimizer = step.apply(server.params, server.optimizer, like(mean, server.params))
        return ServerState(params, optimizer, extra)

    def shared(self, server: ServerState) -> Params | None:
        """The model for all, as far as there is one."""
        return server.params

    @staticmethod
    def outputs(objective: Objective, model: Params, features: jax.Array) -> jax.Array:
        """What a model says, ``[records, outputs]``; ``model`` is ``shared`` or ``own`` with the frozen layers."""
        return objective.apply(model, features)


@dataclass(frozen=True)
class Claim:
    """What is guaranteed, from public facts; this one guarantees nothing. A subclass holds the parts that it is about
    and, in its docstring or its module's, the proof. It is always built with the *planned* facts."""

    info: Info
    facts: Facts

    @property
    def joint(self) -> bool:
        """Whether the noise of rounds is correlated, so that rounds do not add up: :meth:`event` is then what *all*
        rounds release together, charged whole with the first."""
        return False

    @property
    def requires_all_silos(self) -> bool:
        """Whether a guarantee counts the noise (or the reports) of several silos together: a round is then released
        with all of them or not at all. Exchanges that allow for missing silos have rules of their own."""
        return self.info.place == "shares"

    def event(self, exposure: Exposure) -> Event:
        """What one round releases to a view, in the accountant's terms."""
        return Unprotected(f"{self.info.name} adds no noise: nothing bounds what a model reveals")

    def sampling(self, exposure: Exposure) -> str:
        """Whose secret coin the guarantee counts on, in words."""
        return "none"

    def assumptions(self, exposure: Exposure) -> tuple[str, ...]:
        """What must be true for the guarantee to hold, beyond what all guarantees need."""
        return ()

    def as_published(self, exposure: Exposure, delta: float) -> AsPublished | None:
        """What the paper's own accounting gives for the whole run."""
        return None

    def check_size(self, parameters: int | None) -> None:
        """Refuse (UserError) sums whose rounding is not covered: for this many ``parameters``, once they are known."""


class ContributionCount(NamedTuple):
    """How many clipped contributions one noised sum has on average, ``of`` how many, and what they are."""

    number: float
    of: int
    what: str

    @property
    def words(self) -> str:
        if self.number == self.of:
            return f"{self.of:,} {self.what}"
        return f"{self.number:,.4g} of {self.of:,} {self.what} on average"


@dataclass(frozen=True)
class Method:
    """The parts of a method.

    noise          on every number of a sum of contributions; None: there is none
    bound          the largest l2 norm of one contribution; 0 where nothing is clipped
    contributions  what the noise hides, as far as it is public
    turns          subjects are divided, independently of their records, into this many batches that take turns round
                   by round, each round about one batch only; 1: every round is about all subjects
    copies         how many models of the given shape one contribution holds
    """

    info: Info
    work: LocalWork
    server: ServerRule
    claim: Claim
    clip: Clip | None = None
    noise: Noise | None = None
    divisors: Divisors = NO_DIVISORS
    bound: float = 0.0
    contributions: ContributionCount | None = None
    turns: int = 1
    copies: int = 1

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def private(self) -> bool:
        return self.info.private

    @property
    def added_noise(self) -> Noise | None:
        """The noise that the exchange has to add to the sum of contributions; None where it adds none."""
        return self.noise if self.info.place in ("shares", "once") else None


# -- vectors and trees -------------------------------------------------------------------------------------------------


def minus(left: Params, right: Params) -> Params:
    return jax.tree.map(jnp.subtract, left, right)


def difference(after: Params, before: Params) -> jax.Array:
    """``after - before`` as one vector."""
    return ravel_pytree(minus(after, before))[0]


def like(vector: jax.Array, tree: Params) -> Params:
    """``vector`` cut into the shapes of ``tree``."""
    return ravel_pytree(tree)[1](vector)
