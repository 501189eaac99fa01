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
from tacit.families.shuffle import proofs
from tacit.families.shuffle.encoders import (
    COMMON,
    Encoding,
    Floats,
    SubjectReports,
    Vectors,
    clipped,
    no_silo,
    one_encoder,
)
from tacit.methods import option_keys as keys
from tacit.methods.base import Claim, Facts, Method, ReportNumbers, part
from tacit.privacy import AsPublished, Event, Exposure, Pure, Repeated, Stream, Unprotected
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
class Reports(Encoding):
    """How an update becomes reports; this one reports every number. ``epsilon`` is divided among them.

    randomizer  ``laplace``, or ``response`` on levels + 1 levels
    index_rate  the part of the numbers that is reported
    padding     messages that every dimension has when the analyzer gets it; None: one per subject
    """

    randomizer: Kind
    levels: int
    index_rate: float = 1.0
    padding: int | None = None

    @property
    def sent(self) -> int:
        return int(self.index_rate * self.dimensions)

    @property
    def padded(self) -> int:
        """n_p: how many messages every dimension has when the analyzer gets it."""
        return self.crowd.largest if self.padding is None else self.padding

    @property
    def listed(self) -> int | None:
        """How many messages a subject sends; None where that is random."""
        return self.sent

    @property
    def reported(self) -> float:
        """How many subjects report a number, on average."""
        return self.crowd.average

    @property
    def epsilon0(self) -> float:
        """The local epsilon of one message."""
        return self.epsilon / self.sent

    @property
    def law(self) -> Randomizer:
        return randomizer(self.randomizer, self.epsilon0, self.levels)

    @property
    def summed(self) -> tuple[float, float]:
        law = self.law
        # from a sum of ``report - 1/2`` to the estimated mean of updates
        scale = 2 * self.value_range / (law.kept * self.reported)
        # as if all messages were fillings; reports have about the same variance
        return scale * self.reported * math.sqrt(self.padded * law.blanket_variance), 1 / scale

    @property
    def numbers(self) -> ReportNumbers:
        return ReportNumbers(
            self.value_range, (self.dimensions, self.padded, self.crowd.largest, self.law, self.listed)
        )

    def encode(self, vectors: Vectors, stream: Stream) -> Encoded:
        """Reports about ``vectors [people, d]``, with every subject's own randomness from ``stream``."""
        person, index = self.chosen(vectors, stream)
        return Encoded(person, index, self.values(vectors[person, index], stream))

    def chosen(self, vectors: Vectors, stream: Stream) -> tuple[Indices, Indices]:
        """(person, dimension) of every number that is reported."""
        people, d = vectors.shape
        return np.repeat(np.arange(people), d), np.tile(np.arange(d), people)

    def values(self, numbers: Vectors, stream: Stream) -> Floats:
        """What is reported about these numbers."""
        return self.law.report((clipped(numbers, self.value_range) / self.value_range + 1) / 2, stream)

    def send(self, vectors: Vectors, stream: Stream) -> Floats:
        """Reports as a difference from 1/2, 0 where none was sent."""
        sent = np.zeros(vectors.shape)
        person, index, value = self.encode(vectors, stream)
        sent[person, index] = value - 0.5
        return sent


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

    def protocol(self) -> proofs.ShuffledProtocol:
        """What one participation costs; see ``proofs``."""
        return _fixed(self.encoding, self.encoding.padded)

    def local_release(self) -> Event:
        """What a subject's own messages show by themselves."""
        return Pure(self.encoding.epsilon)

    def shuffler_release(self) -> Event:
        """What the shuffler learns, which knows who sent what indices, its own fillings, and what is published."""
        return _fixed(self.encoding, self.encoding.crowd.smallest).released

    @property
    def requires_all_silos(self) -> bool:
        """Fillings take the places of those who send nothing, and hide the others as well, from all but the shuffler:
        it knows its fillings. Where :meth:`shuffler_release` counts those who sent, none may be missing."""
        to_shuffler = self.shuffler_release()
        return not isinstance(to_shuffler, Unprotected) and to_shuffler != self.local_release()

    def event(self, exposure: Exposure) -> Event:
        if exposure.unit == "silo":
            return no_silo(self.info)
        if exposure.unit == "record" and exposure.replaces:
            return Repeated(self.local_release(), 2)
        # one record more or less, or a subject without any: a subject with other reports
        if exposure.reveals == "messages":
            return self.protocol().released
        return self.shuffler_release() if exposure.reveals == "sum" else self.local_release()

    def sampling(self, exposure: Exposure) -> str:
        return "shuffled-reports" if exposure.reveals == "messages" else "none"

    def assumptions(self, exposure: Exposure) -> tuple[str, ...]:
        return one_encoder(self.encoding.crowd)

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
        encoding = self.encoding
        d, n = encoding.dimensions, encoding.crowd.smallest
        if encoding.randomizer == "response":  # by lemma 1, which is about levels
            return proofs.as_published_flame_levels(d, n, encoding.levels, encoding.epsilon0, delta)
        return proofs.as_published_flame_simple(d, n, encoding.epsilon, delta)


def _law(encoding: Reports) -> dict[str, Any]:
    """The randomiser in the accountant's words."""
    return {"randomizer": encoding.randomizer, "levels": encoding.levels + 1}


def _fixed(encoding: Reports, messages: int) -> proofs.ShuffledProtocol:
    return proofs.ss_fixed(encoding.sent, messages, encoding.epsilon0, **_law(encoding))


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
        return self.reporting(Reports, ShuffledClaim, facts, randomizer=self.randomizer, levels=self.levels)


# -- a part of the numbers ---------------------------------------------------------------------------------------------


def partly(options: SSDouble | SSTopk) -> dict[str, Any]:
    """The fields of reports about a part of the numbers."""
    return {name: getattr(options, name) for name in ("randomizer", "levels", "index_rate", "padding")}


def check_index_rate(rate: float, facts: Facts) -> Facts:
    """Refuse (UserError) a part of the numbers that is less than one number."""
    d = facts.parameters
    if d is None or int(rate * d) >= 1:
        return facts
    problem = f"{rate:g} of {d} numbers is less than one"
    raise UserError("out-of-range", "method.index_rate", problem, f"use {1 / d:.2g} or more")


def _published_partly(encoding: Reports, delta: float) -> float:
    """FLAME's epsilon of one epoch, for a part of the numbers."""
    d, n, padded, rate = encoding.dimensions, encoding.crowd.smallest, encoding.padded, encoding.index_rate
    if encoding.randomizer == "response":
        return proofs.as_published_flame_levels(d, n, encoding.levels, encoding.epsilon0, delta, rate, padded)
    return proofs.as_published_flame_double(d, n, encoding.epsilon, rate, padded, delta)


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
        return check_index_rate(self.index_rate, super().resolve(facts))

    def build(self, facts: Facts) -> Method:
        fixed = self.index_sampling == "fixed"
        return self.reporting(RandomReports, DoubleClaim, facts, fixed=fixed, **partly(self))


@part
class RandomReports(Reports):
    """A random part of the numbers."""

    fixed: bool

    @property
    def listed(self) -> int | None:
        return self.sent if self.fixed else None

    @property
    def reported(self) -> float:
        return self.crowd.average * (self.sent / self.dimensions if self.fixed else self.index_rate)

    def chosen(self, vectors: Vectors, stream: Stream) -> tuple[Indices, Indices]:
        if not self.fixed:
            person, index = np.nonzero(stream.coins(self.index_rate, vectors.size).reshape(vectors.shape))
            return person, index
        lot = stream.words(vectors.size).reshape(vectors.shape)
        return _listed(np.sort(_largest(lot, self.sent), axis=1))


@dataclass(frozen=True)
class DoubleClaim(ShuffledClaim):
    verdict = ("no", "its theorem 4 counts the sampling twice: for its rate, and for the number of folds")

    encoding: RandomReports

    def protocol(self) -> proofs.ShuffledProtocol:
        encoding = self.encoding
        if encoding.fixed:
            return super().protocol()
        d, people, padded, rate = encoding.dimensions, encoding.crowd.largest, encoding.padded, encoding.index_rate
        return proofs.ss_double_bernoulli(d, people, padded, encoding.epsilon0, rate, **_law(encoding))

    def event(self, exposure: Exposure) -> Event:
        encoding = self.encoding
        counted = exposure.unit == "subject" or (exposure.unit == "record" and not exposure.replaces)
        overflow = max(1, encoding.crowd.participations(self.facts.rounds)) * self.protocol().extra_delta
        if counted and exposure.reveals == "messages" and overflow > self.facts.delta:
            sent = encoding.index_rate * encoding.crowd.largest
            return Unprotected(
                f"{encoding.padded} places for about {sent:.3g} messages on every number overflow with "
                f"probability {overflow:.2g}, above delta: raise method.padding"
            )
        return super().event(exposure)

    def local_release(self) -> Event:
        """Every message that may be sent: each coin may show heads."""
        encoding = self.encoding
        return Pure((encoding.sent if encoding.fixed else encoding.dimensions) * encoding.epsilon0)

    def shuffler_release(self) -> Event:
        return self.local_release()

    def published(self, delta: float) -> float:
        return _published_partly(self.encoding, delta)


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
        return check_index_rate(self.index_rate, super().resolve(facts))

    def build(self, facts: Facts) -> Method:
        return self.reporting(LargestReports, TopkClaim, facts, index_privacy=self.index_privacy, **partly(self))


@part
class LargestReports(Reports):
    """The largest numbers, among others about which a subject says nothing."""

    index_privacy: float | str | None

    @property
    def listed(self) -> int:
        """l k indices, k of which are the largest (proposition 2)."""
        rate, nu = self.sent / self.dimensions, self.index_privacy
        most = math.ceil(1 / rate)
        if nu is None:
            lists = 1
        elif isinstance(nu, str):
            allowed = proofs.as_published_index_privacy(self.crowd.largest, self.padded, rate)[1]
            lists = max(1, min(allowed, most))
        else:
            lists = min(most, math.ceil(max(1 / (nu * rate), nu / (nu - 1 + rate))))
        return min(lists * self.sent, self.dimensions)

    def encode(self, vectors: Vectors, stream: Stream) -> Encoded:
        people, k = len(vectors), self.sent
        top = _largest(_magnitudes(vectors, stream), k)
        values = self.values(np.take_along_axis(vectors, top, axis=1).ravel(), stream).reshape(people, k)
        more = self.listed - k
        if more:
            lot = stream.words(vectors.size).reshape(vectors.shape) | np.uint64(1)
            np.put_along_axis(lot, top, np.uint64(0), axis=1)
            top = np.concatenate([top, _largest(lot, more)], axis=1)
            others = self.law.blanket(people * more, stream).reshape(people, more)
            values = np.concatenate([values, others], axis=1)
        order = np.argsort(top, axis=1)  # by dimension, so that the order says nothing of which are the largest
        person, index = _listed(np.take_along_axis(top, order, axis=1))
        return Encoded(person, index, np.take_along_axis(values, order, axis=1).ravel())


@dataclass(frozen=True)
class TopkClaim(ShuffledClaim):
    verdict = ("no", "the largest numbers are no random sample, so that nothing is gained by their being few")

    encoding: LargestReports

    def protocol(self) -> proofs.ShuffledProtocol:
        return _among(self, self.encoding.crowd.largest, self.encoding.padded)

    def local_release(self) -> Event:
        encoding = self.encoding
        if encoding.listed != encoding.dimensions:
            return Unprotected("whose messages these are is known, and which numbers are the largest is not hidden")
        # for some i, i numbers change and 2 (k - i) change between a number and the blanket
        half = proofs.half_pair(encoding.epsilon0, **_law(encoding))
        return Pure(encoding.sent * max(encoding.epsilon0, 2 * half))

    def shuffler_release(self) -> Event:
        encoding, crowd = self.encoding, self.encoding.crowd
        if encoding.listed != encoding.dimensions:
            return Unprotected("the shuffler sees which indices a person sends, and those depend on its records")
        if encoding.padded < crowd.largest:  # it knows what it has cut
            return self.local_release()
        return _among(self, crowd.smallest, crowd.smallest).released

    def published(self, delta: float) -> float:
        return _published_partly(self.encoding, delta)


def _among(claim: TopkClaim, people: int, padded: int) -> proofs.ShuffledProtocol:
    """What one participation costs among this many subjects."""
    encoding = claim.encoding
    once = encoding.crowd.participations(claim.facts.rounds) == 1
    hidden = encoding.sent < encoding.listed < encoding.dimensions
    return proofs.ss_topk(encoding.sent, people, padded, encoding.epsilon0, once=once, hidden=hidden, **_law(encoding))


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
