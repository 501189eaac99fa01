"""Every subject alone: what a subject sends is protected before it leaves, and no party has to be trusted.

A subject is an *encoder*: one of as many places as there are declared subjects, by the hash of its identifier. Subjects
in one place are one encoder, and a place without subjects reports as the others do, so that who is there changes one
report and nothing else: no batch, no number of messages. An encoder trains on its own records, in whatever silos they
are, and clips every number of the update to ``[-C, C]``. What it then sends by itself costs ``local_epsilon`` an epoch.
Encoders are divided into batches of at least ``batch_subjects`` that take turns: each reports once per epoch.

``ldp-laplace`` and ``ldp-gaussian`` add noise to the whole update; they are what [FLAME] compares with. Its own
protocols, whose reports a shuffler mixes, are in ``methods``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from tacit.errors import UserError
from tacit.families.randomizers import standard_laplace
from tacit.kernels import LocalTraining
from tacit.methods import option_keys as keys
from tacit.methods.base import (
    Claim,
    ContributionCount,
    Divisors,
    Facts,
    Info,
    LocalWork,
    Method,
    Options,
    ReportNumbers,
    ServerRule,
    part,
)
from tacit.methods.clips import Clip, Shift
from tacit.privacy import (
    Event,
    Exposure,
    Gaussian,
    Noise,
    Pure,
    Randomness,
    Relation,
    Repeated,
    ShuffledReports,
    Stream,
    Unit,
    Unprotected,
)
from tacit.privacy.mechanisms.noise_mechanisms import gaussian_sigma, standard_normal

Floats = npt.NDArray[np.float64]
Vectors = npt.NDArray[np.floating]

OWN_NOISE = "a silo draws the noise of its own subjects, an equal part of the places (enforced on a federation)"
# Who is in which batch is public and the same for ever: a resumed run must not divide subjects in another way.
_PUBLIC = Randomness(b"tacit: people in batches".ljust(32))


def batches_of(people: int, batches: int) -> np.ndarray:
    """The batch of every place, ``[people]``."""
    batch = np.empty(people, np.int64)
    batch[_PUBLIC.stream("batches").permutation(people)] = np.arange(people) % batches
    return batch


@lru_cache(maxsize=256)
def fewest_outside(people: int, batches: int, silos: int, colluding: int) -> int:
    """How many places of a batch are outside ``colluding`` silos, which know the noise of their own places: the fewest
    over all batches and all choices of silos, and at least the one that is protected."""
    held = np.zeros((batches, silos), np.int64)
    np.add.at(held, (batches_of(people, batches), np.arange(people) % silos), 1)
    return max(1, int(np.sort(held, axis=1)[:, : silos - colluding].sum(axis=1).min()))


@part
class Crowd:
    """Places for subjects, in batches that take turns."""

    places: int
    turns: int

    @property
    def smallest(self) -> int:
        """How many places the smallest batch has."""
        return self.places // self.turns

    @property
    def largest(self) -> int:
        return -(-self.places // self.turns)

    @property
    def average(self) -> float:
        return self.places / self.turns

    def participations(self, rounds: int) -> int:
        """How often a subject takes part in the planned rounds."""
        return -(-rounds // self.turns)

    def hidden_among(self, exposure: Exposure, silos: int) -> int:
        """How many places of a batch report with noise that the view does not know, at least."""
        if exposure.reveals == "each" or max(1, silos) <= exposure.colluding:
            return 1
        return fewest_outside(self.places, self.turns, max(1, silos), exposure.colluding)


def crowd_of(facts: Facts, batch_subjects: int | None) -> Crowd:
    places = facts.subjects or 1
    return Crowd(places=places, turns=max(1, places // (batch_subjects or places)))


def turned_around(dimensions: int) -> float:
    """The l2 distance between two updates of numbers up to 1, all of which differ in sign."""
    return 2 * math.sqrt(dimensions)


@part
class NumberClip(Clip):
    """Every number of an update is clipped: a subject whose records change may turn all of them around."""

    of = "number"

    def sensitivity(self, unit: Unit, relation: Relation, facts: Facts) -> Shift | None:
        return None if unit == "silo" else Shift(turned_around(facts.parameters or 0))


@part
class Encoding:
    """How a subject protects its update.

    epsilon      of all that a subject sends in an epoch, by itself
    value_range  every number is clipped to [-value_range, value_range]
    dimensions   how many numbers an update has
    numbers      what is public about reports of single numbers; None where there are none
    """

    epsilon: float
    value_range: float
    dimensions: int
    crowd: Crowd

    @property
    def sent(self) -> int:
        """How many numbers of a subject are sent, on average."""
        return self.dimensions

    @property
    def summed(self) -> tuple[float, float]:
        """The standard deviation of the noise on a sum over subjects, and what the sum is divided by, so that it
        estimates their mean without bias."""
        raise NotImplementedError

    @property
    def numbers(self) -> ReportNumbers | None:
        return None

    def send(self, vectors: Vectors, stream: Stream) -> Floats:
        """What subjects send, ``[people, d]``, about updates ``vectors [people, d]``."""
        raise NotImplementedError


def clipped(vectors: Vectors, value_range: float) -> Floats:
    return np.clip(vectors.astype(np.float64), -value_range, value_range)


COMMON = Info(
    "",
    "",
    "[FLAME]",
    units=("subject", "record"),
    clips="every number of a person's update",
    adds="every person's own",
    place="inside",
    replaced=("subject",),
    gathers="places",
)


@dataclass(frozen=True)
class SubjectReports(Options):
    """Keys of all methods in which a subject protects what it sends."""

    noise_key = "local_epsilon"

    target_epsilon: keys.Target = None
    local_epsilon: keys.LocalEpsilon = None
    value_range: keys.ValueRange = 1.0
    batch_subjects: keys.BatchSubjects = None
    epochs: keys.Epochs = None
    local_epochs: keys.LocalEpochs = 1
    local_learning_rate: keys.LearningRate = 0.1
    batch_size: keys.BatchSize = None

    @property
    def record_losses(self) -> str | None:
        return "batch_size" if self.batch_size is not None else None

    def needs(self, unit: Unit) -> tuple[str, ...]:
        return ("subjects", "parameters")

    def with_noise(self, noise: float) -> Self:
        return replace(self, local_epsilon=1 / noise)

    def resolve(self, facts: Facts) -> Facts:
        if self.batch_subjects is not None and self.batch_subjects > (facts.subjects or 0):
            problem = f"{self.batch_subjects} are more than all {facts.subjects} people"
            raise UserError("out-of-range", "method.batch_subjects", problem, "lower it, or leave it out")
        if self.epochs is None:
            return facts
        return replace(facts, rounds=self.epochs * crowd_of(facts, self.batch_subjects).turns)

    def reporting(self, encoding: type[Encoding], claim: Any, facts: Facts, **numbers: Any) -> Method:
        """Subjects encode their clipped updates, and a sum of what they send is divided by a constant.

        ``numbers`` are the fields of ``encoding`` that not every encoding has.
        """
        if facts.parameters is None:
            raise ValueError("how many numbers are learned must be known")
        crowd, clip = crowd_of(facts, self.batch_subjects), NumberClip(norm=self.value_range)
        made = encoding(
            epsilon=self.noise_value, value_range=clip.norm, dimensions=facts.parameters, crowd=crowd, **numbers
        )
        work = ReportWork(
            epochs=self.local_epochs,
            learning_rate=self.local_learning_rate,
            batch_size=self.batch_size,
            encoding=made,
        )
        deviation, divisor = made.summed
        return Method(
            self.info,
            work,
            ServerRule(),
            claim(self.info, facts, made),
            clip,
            Noise(deviation, "inside"),
            Divisors(divisor),
            clip.norm * math.sqrt(made.sent),
            ContributionCount(crowd.average, facts.subjects or 1, "people"),
            crowd.turns,
        )


@part
class ReportWork(LocalWork):
    """A subject trains on its own records and encodes the update."""

    worker = "tacit.families.shuffle.worker:EncoderWork"

    epochs: int
    learning_rate: float
    batch_size: int | None = None
    encoding: Encoding

    def reports(self, facts: Facts) -> ReportNumbers | None:
        return self.encoding.numbers

    @property
    def learning(self) -> LocalTraining:
        """What every subject does with its records."""
        return LocalTraining(self.epochs, self.learning_rate, self.batch_size)


def one_encoder(crowd: Crowd) -> tuple[str, ...]:
    """What must be true about encoders."""
    one = (
        "a person is one encoder, whatever silos hold its records, by the hash of its identifier; it reports once"
        " per epoch (enforced), and one that is replaced by another keeps its place"
    )
    apart = "who is in which batch depends neither on records nor on who else takes part"
    return (one, apart) if crowd.turns > 1 else (one,)


def no_silo(info: Info) -> Event:
    return Unprotected(f"{info.name} bounds what a person contributes, not a silo")


# -- noise on whole updates --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LocallyNoisedClaim(Claim):
    """Formal guarantees, one subject replaced, one epoch: against a server that sees each, local_epsilon (Laplace), or
    (local_epsilon, delta) (Gaussian). A view of sums sees them as if they were shuffled (specification 5.2), or with
    the noise of all subjects. Silos know the noise of their own places (``exchange.people_of``): a subject hides among
    the others.

    A record of one subject that is replaced by a record of another changes two. They may be in one batch or in two. In
    one: divide it into halves with one of them in each. A view of each half's sum, or of its shuffled reports, sees
    more than a view of the whole. What it sees is two independent releases in half the crowd. In two batches the crowds
    are whole.
    """

    encoding: LaplaceNumbers | GaussianNumbers

    @property
    def requires_all_silos(self) -> bool:
        return True  # subjects hide among all who send

    def event(self, exposure: Exposure) -> Event:
        if exposure.unit == "silo":
            return no_silo(self.info)
        among = self.encoding.crowd.hidden_among(exposure, self.facts.silos)
        if exposure.unit == "record" and exposure.replaces:
            return Repeated(self.encoding.among(max(1, among // 2)), 2)
        # one record more or less, or a subject without any: a subject with another report
        return self.encoding.among(among)

    def assumptions(self, exposure: Exposure) -> tuple[str, ...]:
        known = one_encoder(self.encoding.crowd)
        return (*known, OWN_NOISE) if exposure.colluding else known


@part
class LaplaceNumbers(Encoding):
    """Laplace noise on every number: epsilon / d each. The server adds up what it gets, and sees each; a view of sums
    sees them as if they were shuffled."""

    @property
    def scale(self) -> float:
        """Of the noise on one number of one subject."""
        return 2 * self.value_range * self.dimensions / self.epsilon

    @property
    def summed(self) -> tuple[float, float]:
        return self.scale * math.sqrt(2 * self.crowd.average), self.crowd.average

    def send(self, vectors: Vectors, stream: Stream) -> Floats:
        noise = standard_laplace(vectors.size, stream).reshape(vectors.shape)
        return clipped(vectors, self.value_range) + self.scale * noise

    def among(self, people: int) -> Event:
        """What a sum with the noise of this many subjects shows."""
        if people == 1:
            return Pure(self.epsilon)
        return Repeated(ShuffledReports(self.epsilon / self.dimensions, people, None, "laplace"), self.dimensions)


@part
class GaussianNumbers(Encoding):
    """Gaussian noise on every number, (epsilon, delta)-private for one subject's whole update: the standard deviation
    is ``gaussian_sigma`` times the l2 sensitivity 2 C sqrt(d)."""

    delta: float

    @property
    def multiplier(self) -> float:
        return gaussian_sigma(self.epsilon, self.delta)

    @property
    def scale(self) -> float:
        return turned_around(self.dimensions) * self.value_range * self.multiplier

    @property
    def summed(self) -> tuple[float, float]:
        return self.scale * math.sqrt(self.crowd.average), self.crowd.average

    def send(self, vectors: Vectors, stream: Stream) -> Floats:
        noise = standard_normal(vectors.size, stream).reshape(vectors.shape)
        return clipped(vectors, self.value_range) + self.scale * noise

    def among(self, people: int) -> Event:
        return Gaussian(self.multiplier * math.sqrt(people))


@dataclass(frozen=True)
class LdpLaplace(SubjectReports):
    """Laplace noise on every number."""

    info = replace(
        COMMON, name="ldp-laplace", summary="every person adds Laplace noise to its update: no party is trusted"
    )

    def build(self, facts: Facts) -> Method:
        return self.reporting(LaplaceNumbers, LocallyNoisedClaim, facts)


@dataclass(frozen=True)
class LdpGaussian(SubjectReports):
    """Gaussian noise on every number."""

    info = replace(
        COMMON, name="ldp-gaussian", summary="every person adds Gaussian noise to its update: no party is trusted"
    )

    def build(self, facts: Facts) -> Method:
        return self.reporting(GaussianNumbers, LocallyNoisedClaim, facts, delta=facts.delta)
