"""Reports of single numbers that a shuffler mixes: the protocols of [FLAME], repaired.

Every subject (``encoders``) reports numbers x of its clipped update as (x + C) / (2 C), through a local randomiser that
spends its share of ``local_epsilon``:

    ss-simple     every one of the d numbers, each with local_epsilon / d
    ss-double     a random part of them: exactly k = int(index_rate d) ("fixed"), or each by a coin ("bernoulli")
    ss-topk       the k largest, with k (l - 1) others about which it says nothing, so that the shuffler sees l k

A shuffler fills every dimension up to ``padding`` messages with reports about no subject, cuts those that have more,
and mixes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tacit.errors import UserError
from tacit.families.randomizers import Kind, randomizer
from tacit.families.shuffle import proofs as protocols
from tacit.families.shuffle.encoders import (
    COMMON,
    Crowd,
    Floats,
    NumberClip,
    SubjectReports,
    Vectors,
    clipped,
    crowd_of,
    dimensions,
    one_encoder,
)
from tacit.methods import option_keys as keys
from tacit.methods.base import Claim, ContributionCount, Divisors, Facts, Method, ReportNumbers, ServerRule, part
from tacit.privacy import AsPublished, Event, Exposure, Noise, Pure, Repeated, Stream, Unprotected
from tacit.privacy.mechanisms.noise_mechanisms import Randomizer

Indices = npt.NDArray[np.int64]

SHUFFLED = replace(COMMON, sends=("reports",), trusts=("shuffler", "shuffler+analyzer"))


class Encoded(NamedTuple):
    """Reports of several subjects, message by message: ``person [messages]`` (a row of what was encoded), ``dimension
    [messages]`` and ``value [messages]``. Those of one subject lie together, by rising dimension."""

    person: Indices
    dimension: Indices
    value: Floats


@part
class Reports:
    """How an update becomes reports; this one reports every number. ``epsilon`` is divided among them.

    randomizer      ``laplace``, or ``response`` on levels + 1 levels
    batch_subjects  at least this many subjects take part in a round
    """

    epsilon: float
    value_range: float
    randomizer: Kind
    levels: int
    batch_subjects: int | None = None

    def crowd(self, facts: Facts) -> Crowd:
        return crowd_of(facts, self.batch_subjects)

    def sent(self, facts: Facts) -> int:
        """How many numbers of a subject are reported, on average."""
        return dimensions(facts)

    def padded(self, facts: Facts) -> int:
        """n_p: how many messages every dimension has when the analyzer gets it."""
        return self.crowd(facts).largest

    def listed(self, facts: Facts) -> int | None:
        """How many messages a subject sends; None where that is random."""
        return self.sent(facts)

    def epsilon0(self, facts: Facts) -> float:
        """The local epsilon of one message."""
        return self.epsilon / self.sent(facts)

    def randomizing(self, facts: Facts) -> Randomizer:
        return randomizer(self.randomizer, self.epsilon0(facts), self.levels)

    def encode(self, vectors: Vectors, stream: Stream, facts: Facts) -> Encoded:
        """Reports about ``vectors [people, d]``, with every subject's own randomness from ``stream``."""
        person, index = self.chosen(vectors, stream, facts)
        return Encoded(person, index, self.values(vectors[person, index], stream, facts))

    def chosen(self, vectors: Vectors, stream: Stream, facts: Facts) -> tuple[Indices, Indices]:
        """(person, dimension) of every number that is reported."""
        people, d = vectors.shape
        return np.repeat(np.arange(people), d), np.tile(np.arange(d), people)

    def values(self, numbers: Vectors, stream: Stream, facts: Facts) -> Floats:
        """What is reported about these numbers."""
        return self.randomizing(facts).report((clipped(numbers, self.value_range) / self.value_range + 1) / 2, stream)

    def send(self, vectors: Vectors, stream: Stream, facts: Facts) -> Floats:
        """What subjects send, ``[people, d]``: reports as a difference from 1/2, 0 where none was sent."""
        sent = np.zeros(vectors.shape)
        person, index, value = self.encode(vectors, stream, facts)
        sent[person, index] = value - 0.5
        return sent

    def numbers(self, facts: Facts) -> ReportNumbers:
        crowd, law = self.crowd(facts).largest, self.randomizing(facts)
        return ReportNumbers(self.value_range, (dimensions(facts), self.padded(facts), crowd, law, self.listed(facts)))

    def divisor(self, facts: Facts) -> float:
        """By what a sum over subjects is divided, so that it estimates their mean without bias."""
        return self.crowd(facts).average


def shuffled(
    options: SSSimple | SSDouble | SSTopk, encoding: Reports, claim: type[ShuffledClaim], facts: Facts
) -> Method:
    """Reports that a shuffler mixes and an analyzer adds up."""
    crowd, law = encoding.crowd(facts), encoding.randomizing(facts)
    # from a sum of ``report - 1/2`` to the estimated mean of updates
    scale = 2 * encoding.value_range / (law.kept * encoding.divisor(facts))
    # as if all messages were fillings; reports have about the same variance
    deviation = scale * encoding.divisor(facts) * math.sqrt(encoding.padded(facts) * law.blanket_variance)
    clip = NumberClip(norm=options.value_range)
    return Method(
        options.info,
        options.work(encoding),
        ServerRule(),
        claim(options.info, facts, encoding),
        clip,
        Noise(deviation, "inside"),
        Divisors(1 / scale),
        clip.norm * math.sqrt(encoding.sent(facts)),
        ContributionCount(crowd.average, facts.subjects or 1, "people"),
        crowd.turns,
    )


@dataclass(frozen=True)
class ShuffledClaim(Claim):
    """Formal guarantees (specification 5.2), one subject replaced, one epoch, eps0 = local_epsilon / k (or / d):

        analyzer, public     simple: d shuffled reports; double, fixed: k; double, bernoulli: d that are mostly blanket;
                             topk: k, or 2 k where dimensions may be cut. ``proofs`` holds the proofs
        shuffler             knows its own fillings, and what is published: simple: as the analyzer, among those who
                             sent; double: the local guarantee; topk: nothing, unless every index is sent
        both together        the local guarantee: (messages sent) eps0; topk: nothing, unless every index is sent

    A record of one subject that is replaced by a record of another changes two: fillings and cuts are about whole
    batches, so that both subjects' local guarantees are counted.

    This class is about ``ss-simple``: every subject sends every index; what is published is a sum, whose order says
    nothing.
    """

    verdict: ClassVar[tuple[Literal["yes", "only-if", "no"], str]] = (
        "only-if",
        "sound if every number is a message of its own, as here; FLAME's bound is loose",
    )

    encoding: Reports

    def protocol(self) -> protocols.ShuffledProtocol:
        """What one participation costs; see ``proofs``."""
        return _simple(self.encoding, self.encoding.padded(self.facts), self.facts)

    def local_release(self) -> Event:
        """What a subject's own messages show by themselves."""
        return Pure(self.encoding.epsilon)

    def shuffler_release(self) -> Event:
        """What the shuffler learns, which knows who sent what indices, its own fillings, and what is published."""
        return _simple(self.encoding, self.encoding.crowd(self.facts).smallest, self.facts).released

    @property
    def requires_all_silos(self) -> bool:
        """Fillings take the places of those who send nothing, and hide the others as well, from all but the shuffler:
        it knows its fillings. Where :meth:`shuffler_release` counts those who sent, none may be missing."""
        to_shuffler = self.shuffler_release()
        return not isinstance(to_shuffler, Unprotected) and to_shuffler != self.local_release()

    def event(self, exposure: Exposure) -> Event:
        if exposure.unit == "silo":
            return Unprotected(f"{self.info.name} bounds what a person contributes, not a silo")
        if exposure.unit == "record" and exposure.replaces:
            return Repeated(self.local_release(), 2)
        # one record more or less, or a subject without any: a subject with other reports
        if exposure.reveals == "messages":
            return self.protocol().released
        return self.shuffler_release() if exposure.reveals == "sum" else self.local_release()

    def sampling(self, exposure: Exposure) -> str:
        return "shuffled-reports" if exposure.reveals == "messages" else "none"

    def assumptions(self, exposure: Exposure) -> tuple[str, ...]:
        return one_encoder(self.encoding.crowd(self.facts))

    def as_published(self, exposure: Exposure, delta: float) -> AsPublished | None:
        """The paper's number is about one epoch; it does not add epochs up."""
        epsilon = self.encoding.epsilon
        if exposure.unit != "subject" or exposure.view.kind == "shuffler":
            return None
        if exposure.view.kind == "shuffler+analyzer":
            alone = self.local_release()
            if isinstance(alone, Pure) and alone.epsilon <= epsilon * (1 + 1e-9):
                return AsPublished(epsilon, "yes", "per epoch; both together: local privacy")
            return AsPublished(epsilon, "no", "per epoch; which and how many numbers are sent is not hidden")
        valid, reason = self.verdict
        if exposure.reveals == "each":
            valid, reason = "no", "messages that are linked hide in no crowd, only their local privacy is left"
        return AsPublished(self.published(delta), valid, f"per epoch; {reason}")

    def published(self, delta: float) -> float:
        """FLAME's epsilon of one epoch."""
        facts, encoding = self.facts, self.encoding
        if encoding.randomizer == "response":
            return _published_levels(encoding, delta, facts, 1.0, None)
        smallest = encoding.crowd(facts).smallest
        return protocols.as_published_flame_simple(dimensions(facts), smallest, encoding.epsilon, delta)


def _law(encoding: Reports) -> dict[str, Any]:
    """The randomiser in the accountant's words."""
    return {"randomizer": encoding.randomizer, "levels": encoding.levels + 1}


def _simple(encoding: Reports, messages: int, facts: Facts) -> protocols.ShuffledProtocol:
    return protocols.ss_simple(dimensions(facts), messages, encoding.epsilon0(facts), **_law(encoding))


def _published_levels(encoding: Reports, delta: float, facts: Facts, rate: float, padded: int | None) -> float:
    """By lemma 1, which is about levels."""
    d, n, epsilon = dimensions(facts), encoding.crowd(facts).smallest, encoding.epsilon0(facts)
    return protocols.as_published_flame_levels(d, n, encoding.levels, epsilon, delta, rate, padded)


@dataclass(frozen=True)
class SSSimple(SubjectReports):
    """Every number of every subject, in messages of its own.

    randomizer  ``laplace``, or ``response`` on levels + 1 levels
    """

    info = replace(
        SHUFFLED,
        name="ss-simple",
        summary="every number of a person's update in a message of its own, shuffled (SS-Simple)",
    )

    randomizer: Kind = "laplace"
    levels: keys.Levels = 2

    def build(self, facts: Facts) -> Method:
        return shuffled(self, Reports(**reporting(self)), ShuffledClaim, facts)


def reporting(options: SSSimple | SSDouble | SSTopk) -> dict[str, Any]:
    """The fields that all reports have."""
    return {
        "epsilon": options.noise_value,
        "value_range": options.value_range,
        "randomizer": options.randomizer,
        "levels": options.levels,
        "batch_subjects": options.batch_subjects,
    }


# -- a part of the numbers ---------------------------------------------------------------------------------------------


def check_index_rate(rate: float, facts: Facts) -> None:
    """Refuse (UserError) a part of the numbers that is less than one number."""
    if int(rate * dimensions(facts)) < 1:
        problem = f"{rate:g} of {dimensions(facts)} numbers is less than one"
        raise UserError("out-of-range", "method.index_rate", problem, f"use {1 / dimensions(facts):.2g} or more")


def _published_part(encoding: RandomReports | LargestReports, delta: float, facts: Facts) -> float:
    """FLAME's epsilon of one epoch, for a part of the numbers."""
    padded, rate = encoding.padded(facts), encoding.index_rate
    if encoding.randomizer == "response":
        return _published_levels(encoding, delta, facts, rate, padded)
    d, n = dimensions(facts), encoding.crowd(facts).smallest
    return protocols.as_published_flame_double(d, n, encoding.epsilon, rate, padded, delta)


@dataclass(frozen=True)
class SSDouble(SubjectReports):
    """A random part of the numbers, whatever they are.

    randomizer      ``laplace``, or ``response`` on levels + 1 levels
    index_sampling  fixed: exactly k, as printed; bernoulli: each number by a coin of rate index_rate. The coins are
                    secret, and hide who sent anything about a dimension: what is proved is much stronger
    """

    info = replace(
        SHUFFLED, name="ss-double", summary="a random part of a person's update, padded and shuffled (SS-Double)"
    )

    randomizer: Kind = "laplace"
    levels: keys.Levels = 2
    index_rate: keys.IndexRate = 0.02
    padding: keys.Padding = None
    index_sampling: Literal["fixed", "bernoulli"] = "bernoulli"

    def resolve(self, facts: Facts) -> Facts:
        facts = super().resolve(facts)
        check_index_rate(self.index_rate, facts)
        return facts

    def build(self, facts: Facts) -> Method:
        encoding = RandomReports(
            index_rate=self.index_rate, padding=self.padding, fixed=self.index_sampling == "fixed", **reporting(self)
        )
        return shuffled(self, encoding, DoubleClaim, facts)


@part
class RandomReports(Reports):
    """A random part of the numbers."""

    index_rate: float
    padding: int | None
    fixed: bool

    def sent(self, facts: Facts) -> int:
        return int(self.index_rate * dimensions(facts))

    def padded(self, facts: Facts) -> int:
        return super().padded(facts) if self.padding is None else self.padding

    def listed(self, facts: Facts) -> int | None:
        return self.sent(facts) if self.fixed else None

    def chosen(self, vectors: Vectors, stream: Stream, facts: Facts) -> tuple[Indices, Indices]:
        if not self.fixed:
            person, index = np.nonzero(stream.coins(self.index_rate, vectors.size).reshape(vectors.shape))
            return person, index
        lot = stream.words(vectors.size).reshape(vectors.shape)
        return _listed(np.sort(_largest(lot, self.sent(facts)), axis=1))

    def divisor(self, facts: Facts) -> float:
        rate = self.sent(facts) / dimensions(facts) if self.fixed else self.index_rate
        return super().divisor(facts) * rate


@dataclass(frozen=True)
class DoubleClaim(ShuffledClaim):
    verdict = ("no", "its theorem 4 counts the sampling twice: for its rate, and for the number of folds")

    encoding: RandomReports

    def protocol(self) -> protocols.ShuffledProtocol:
        facts, encoding = self.facts, self.encoding
        padded, epsilon, law = encoding.padded(facts), encoding.epsilon0(facts), _law(encoding)
        if encoding.fixed:
            return protocols.ss_double_fixed(encoding.sent(facts), padded, epsilon, **law)
        d, people = dimensions(facts), encoding.crowd(facts).largest
        return protocols.ss_double_bernoulli(d, people, padded, epsilon, encoding.index_rate, **law)

    def event(self, exposure: Exposure) -> Event:
        facts, encoding = self.facts, self.encoding
        crowd = encoding.crowd(facts)
        counted = exposure.unit == "subject" or (exposure.unit == "record" and not exposure.replaces)
        overflow = max(1, crowd.participations(facts.rounds)) * self.protocol().extra_delta
        if counted and exposure.reveals == "messages" and overflow > facts.delta:
            sent = encoding.index_rate * crowd.largest
            return Unprotected(
                f"{encoding.padded(facts)} places for about {sent:.3g} messages on every number overflow with "
                f"probability {overflow:.2g}, above delta: raise method.padding"
            )
        return super().event(exposure)

    def local_release(self) -> Event:
        return Pure(self.protocol().local_epsilon)

    def shuffler_release(self) -> Event:
        return self.local_release()

    def published(self, delta: float) -> float:
        return _published_part(self.encoding, delta, self.facts)


@dataclass(frozen=True)
class SSTopk(SubjectReports):
    """The largest numbers. Which they are says something about a subject: to the shuffler, unless all indices are sent.

    randomizer     ``laplace``, or ``response`` on levels + 1 levels
    index_privacy  nu: among the indices that the shuffler sees, those that are really the largest are hidden by
                   others, so that each is one of them with nu times the probability of any index. ``strongest``: as
                   far as the padding allows (theorem 5); left out: no others. It assumes that all indices are equally
                   likely, and is no differential privacy
    """

    info = replace(
        SHUFFLED, name="ss-topk", summary="the largest numbers of a person's update, padded and shuffled (SS-Topk)"
    )

    randomizer: Kind = "laplace"
    levels: keys.Levels = 2
    index_rate: keys.IndexRate = 0.02
    padding: keys.Padding = None
    index_privacy: keys.AtLeastOne | Literal["strongest"] | None = None

    def resolve(self, facts: Facts) -> Facts:
        facts = super().resolve(facts)
        check_index_rate(self.index_rate, facts)
        return facts

    def build(self, facts: Facts) -> Method:
        encoding = LargestReports(
            index_rate=self.index_rate, padding=self.padding, index_privacy=self.index_privacy, **reporting(self)
        )
        return shuffled(self, encoding, TopkClaim, facts)


@part
class LargestReports(Reports):
    """The largest numbers, among others about which a subject says nothing."""

    index_rate: float
    padding: int | None
    index_privacy: float | str | None

    def sent(self, facts: Facts) -> int:
        return int(self.index_rate * dimensions(facts))

    def padded(self, facts: Facts) -> int:
        return super().padded(facts) if self.padding is None else self.padding

    def listed(self, facts: Facts) -> int:
        """l k indices, k of which are the largest (proposition 2)."""
        return min(_lists(self, facts) * self.sent(facts), dimensions(facts))

    def encode(self, vectors: Vectors, stream: Stream, facts: Facts) -> Encoded:
        people, k = len(vectors), self.sent(facts)
        top = _largest(_magnitudes(vectors, stream), k)
        values = self.values(np.take_along_axis(vectors, top, axis=1).ravel(), stream, facts).reshape(people, k)
        more = self.listed(facts) - k
        if more:
            lot = stream.words(vectors.size).reshape(vectors.shape) | np.uint64(1)
            np.put_along_axis(lot, top, np.uint64(0), axis=1)
            top = np.concatenate([top, _largest(lot, more)], axis=1)
            others = self.randomizing(facts).blanket(people * more, stream).reshape(people, more)
            values = np.concatenate([values, others], axis=1)
        order = np.argsort(top, axis=1)  # by dimension, so that the order says nothing of which are the largest
        person, index = _listed(np.take_along_axis(top, order, axis=1))
        return Encoded(person, index, np.take_along_axis(values, order, axis=1).ravel())


def _lists(encoding: LargestReports, facts: Facts) -> int:
    """l: a subject sends l k indices."""
    rate, nu = encoding.sent(facts) / dimensions(facts), encoding.index_privacy
    most = math.ceil(1 / rate)
    if nu is None:
        return 1
    if isinstance(nu, str):
        crowd = encoding.crowd(facts).largest
        allowed = protocols.as_published_index_privacy(crowd, encoding.padded(facts), rate)[1]
        return max(1, min(allowed, most))
    return min(most, math.ceil(max(1 / (nu * rate), nu / (nu - 1 + rate))))


@dataclass(frozen=True)
class TopkClaim(ShuffledClaim):
    verdict = ("no", "the largest numbers are no random sample, so that nothing is gained by their being few")

    encoding: LargestReports

    def protocol(self) -> protocols.ShuffledProtocol:
        return _largest_among(self, self.encoding.crowd(self.facts).largest, self.encoding.padded(self.facts))

    def local_release(self) -> Event:
        facts, encoding = self.facts, self.encoding
        if encoding.listed(facts) != dimensions(facts):
            return Unprotected("whose messages these are is known, and which numbers are the largest is not hidden")
        # for some i, i numbers change and 2 (k - i) change between a number and the blanket
        epsilon = encoding.epsilon0(facts)
        half = protocols.half_pair(epsilon, encoding.randomizer, encoding.levels + 1)
        return Pure(encoding.sent(facts) * max(epsilon, 2 * half))

    def shuffler_release(self) -> Event:
        facts, encoding = self.facts, self.encoding
        if encoding.listed(facts) != dimensions(facts):
            return Unprotected("the shuffler sees which indices a person sends, and those depend on its records")
        crowd = encoding.crowd(facts)
        if encoding.padded(facts) < crowd.largest:  # it knows what it has cut
            return self.local_release()
        return _largest_among(self, crowd.smallest, crowd.smallest).released

    def published(self, delta: float) -> float:
        return _published_part(self.encoding, delta, self.facts)


def _largest_among(claim: TopkClaim, people: int, padded: int) -> protocols.ShuffledProtocol:
    """What one participation costs among this many subjects."""
    facts, encoding = claim.facts, claim.encoding
    k, once = encoding.sent(facts), encoding.crowd(facts).participations(facts.rounds) == 1
    hidden, law = k < encoding.listed(facts) < dimensions(facts), _law(encoding)
    return protocols.ss_topk(k, people, padded, encoding.epsilon0(facts), once=once, hidden=hidden, **law)


# --- which numbers ---------------------------------------------------------------------------------------------------


def _magnitudes(vectors: Vectors, stream: Stream) -> npt.NDArray[np.uint64]:
    """Keys that order numbers of each row by magnitude, and equal ones by lot."""
    size = np.abs(vectors).astype(np.float32).view(np.uint32).astype(np.uint64) << np.uint64(32)
    lot = stream.words(-(-vectors.size // 2)).view(np.uint32)[: vectors.size].reshape(vectors.shape)
    return size | lot


def _largest(keys: npt.NDArray[np.uint64], count: int) -> Indices:
    """The places ``[rows, count]`` of the largest keys of every row, in no particular order."""
    least = keys.shape[1] - count
    return np.argpartition(keys, least, axis=1)[:, least:]


def _listed(index: Indices) -> tuple[Indices, Indices]:
    """Places ``[people, count]`` as (person, place)."""
    people, count = index.shape
    return np.repeat(np.arange(people), count), index.ravel()
