"""Reports of single numbers that a shuffler mixes: the protocols of [FLAME], repaired.

Every person (``encoders``) reports numbers x of its clipped update as (x + C) / (2 C), through a local randomiser that
spends its share of ``local_epsilon``:

    ss-simple     every one of the d numbers, each with local_epsilon / d
    ss-double     a random part of them: exactly k = int(index_rate d) ("fixed"), or each by a coin ("bernoulli")
    ss-topk       the k largest, beside k (l - 1) others about which it says nothing, so that the shuffler sees l k

A shuffler fills every dimension up to ``padding`` messages with reports about nobody, cuts those that have more, and
mixes.

Formal guarantees (specification 5.2), one person replaced, one epoch, eps0 = local_epsilon / k (or / d):

    analyzer, public     simple: d shuffled reports; double, fixed: k; double, bernoulli: d that are mostly blanket;
                         topk: k, or 2 k where dimensions may be cut. ``proofs.shuffled_protocols`` holds the proofs
    shuffler             knows its own fillings, and what is published: simple: as the analyzer, among those who sent;
                         double: the local promise; topk: nothing, unless every index is sent
    both together        the local promise: (messages sent) eps0; topk: nothing, unless every index is sent
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import numpy as np
import numpy.typing as npt
from pydantic import Field

from tacit.errors import UserError
from tacit.kernels import ServerStep
from tacit.methods.averaging import like
from tacit.methods.encoders import Encoder, Floats, Vectors
from tacit.methods.method import Count, Divisors, Facts, Rate, ServerState
from tacit.privacy import AsPublished, Event, Exposure, Pure, Repeated, Stream, Unprotected
from tacit.privacy.mechanisms.randomizers import Kind, Randomizer, randomizer
from tacit.privacy.proofs import shuffled_protocols as protocols

Indices = npt.NDArray[np.int64]
AtLeastOne = Annotated[float, Field(strict=True, ge=1, allow_inf_nan=False)]


class Encoded(NamedTuple):
    """Reports of several people, message by message: ``person [messages]`` (a row of what was encoded), ``dimension
    [messages]`` and ``value [messages]``. Those of one person lie together, by rising dimension."""

    person: Indices
    dimension: Indices
    value: Floats


@dataclass(frozen=True)
class Shuffled(Encoder):
    """What the protocols of FLAME share.

    randomizer  ``laplace``, or ``response`` on levels + 1 levels
    levels      b: the number of steps between levels
    """

    exchanges = ("shuffled",)
    trusts = ("shuffler", "shuffler+analyzer")
    claim: ClassVar[tuple[Literal["yes", "only-if", "no"], str]]  # whether the paper's number holds, and why

    randomizer: Kind = "laplace"
    levels: Count = 2

    # -- messages

    def sent(self, facts: Facts) -> int:
        """How many numbers of a person are reported, on average: local_epsilon is divided among them."""
        raise NotImplementedError

    def padded(self, facts: Facts) -> int:
        """n_p: how many messages every dimension has when the analyzer gets it."""
        return self.crowd(facts)[1]

    def listed(self, facts: Facts) -> int | None:
        """How many messages a person sends; None where that is random."""
        return self.sent(facts)

    def epsilon0(self, facts: Facts) -> float:
        """The local epsilon of one message."""
        return self.eps_l / self.sent(facts)

    def randomizing(self, facts: Facts) -> Randomizer:
        return randomizer(self.randomizer, self.epsilon0(facts), self.levels)

    def encode(self, vectors: Vectors, stream: Stream, facts: Facts) -> Encoded:
        """Reports about ``vectors [people, d]``, with everybody's own randomness from ``stream``."""
        person, index = self.chosen(vectors, stream, facts)
        return Encoded(person, index, self._reports(vectors[person, index], stream, facts))

    def chosen(self, vectors: Vectors, stream: Stream, facts: Facts) -> tuple[Indices, Indices]:
        """(person, dimension) of every number that is reported."""
        raise NotImplementedError

    def _reports(self, numbers: Vectors, stream: Stream, facts: Facts) -> Floats:
        return self.randomizing(facts).report((self.clipped(numbers) / self.value_range + 1) / 2, stream)

    # -- what the analyzer makes of them

    def divisor(self, facts: Facts) -> float:
        """By what a sum over people is divided, so that it estimates their mean without bias."""
        return self.people(facts)

    def scale(self, facts: Facts) -> float:
        """From a sum of ``report - 1/2`` to the estimated mean of updates."""
        return 2 * self.value_range / (self.randomizing(facts).kept * self.divisor(facts))

    def bound(self, facts: Facts) -> float:
        return self.value_range * math.sqrt(self.sent(facts))

    def deviation(self, facts: Facts) -> float:
        """As if all messages were fillings; reports have about the same variance."""
        summed = math.sqrt(self.padded(facts) * self.randomizing(facts).blanket_variance)
        return self.scale(facts) * self.divisor(facts) * summed

    def divisors(self, facts: Facts) -> Divisors:
        return Divisors(1 / self.scale(facts))

    def aggregate(self, step: ServerStep, server: ServerState, total: jax.Array, divisors: Divisors) -> ServerState:
        update = like(total / divisors.total, server.params)
        params, optimizer = step.apply(server.params, server.optimizer, update)
        return ServerState(params, optimizer)

    # -- what is promised

    def protocol(self, facts: Facts) -> protocols.ShuffledProtocol:
        """What one participation costs; see ``proofs.shuffled_protocols``."""
        raise NotImplementedError

    def local_release(self, facts: Facts) -> Event:
        """What a person's own messages show by themselves."""
        return Pure(self.eps_l)

    def shuffler_release(self, facts: Facts) -> Event:
        """What the shuffler learns, which knows who sent what indices, its own fillings, and what is published."""
        return self.local_release(facts)

    def requires_all_silos(self, facts: Facts) -> bool:
        """Fillings take the places of those who send nothing, and hide the others as well, from all but the shuffler:
        it knows its fillings. Where :meth:`shuffler_release` counts those who sent, none may be missing."""
        to_shuffler = self.shuffler_release(facts)
        return not isinstance(to_shuffler, Unprotected) and to_shuffler != self.local_release(facts)

    def release(self, exposure: Exposure, facts: Facts) -> Event:
        if exposure.reveals == "messages":
            return self.protocol(facts).released
        return self.shuffler_release(facts) if exposure.reveals == "sum" else self.local_release(facts)

    def two_changed(self, exposure: Exposure, facts: Facts) -> Event:
        """Fillings and cuts are about whole batches: both people's local promises are what is counted."""
        return Repeated(self.local_release(facts), 2)

    def sampling(self, exposure: Exposure) -> str:
        return "shuffled-reports" if exposure.reveals == "messages" else "none"

    @property
    def _law(self) -> dict[str, Any]:
        """The randomiser in the accountant's words."""
        return {"randomizer": self.randomizer, "levels": self.levels + 1}

    def as_published(self, exposure: Exposure, delta: float, facts: Facts) -> AsPublished | None:
        """The paper's number is about one epoch; it does not add epochs up."""
        if exposure.unit != "subject" or exposure.view.kind == "shuffler":
            return None
        if exposure.view.kind == "shuffler+analyzer":
            alone = self.local_release(facts)
            if isinstance(alone, Pure) and alone.epsilon <= self.eps_l * (1 + 1e-9):
                return AsPublished(self.eps_l, "yes", "per epoch; both together: local privacy")
            return AsPublished(self.eps_l, "no", "per epoch; which and how many numbers are sent is not hidden")
        valid, reason = self.claim
        if exposure.reveals == "each":
            valid, reason = "no", "messages that are linked hide in no crowd, only their local privacy is left"
        return AsPublished(self.published(delta, facts), valid, f"per epoch; {reason}")

    def published(self, delta: float, facts: Facts) -> float:
        """FLAME's epsilon of one epoch."""
        raise NotImplementedError

    def _published_levels(self, delta: float, facts: Facts, rate: float, padded: int | None) -> float:
        """By lemma 1, which is about levels."""
        d, n, epsilon = self.dimensions(facts), self.crowd(facts)[0], self.epsilon0(facts)
        return protocols.as_published_flame_levels(d, n, self.levels, epsilon, delta, rate, padded)


@dataclass(frozen=True)
class SSSimple(Shuffled):
    """Every number of everybody, in messages of its own."""

    name = "ss-simple"
    about = "every number of a person's update in a message of its own, shuffled (SS-Simple)"
    claim = ("only-if", "sound if every number is a message of its own, as here; FLAME's bound is loose")

    def sent(self, facts: Facts) -> int:
        return self.dimensions(facts)

    def chosen(self, vectors: Vectors, stream: Stream, facts: Facts) -> tuple[Indices, Indices]:
        people, d = vectors.shape
        return np.repeat(np.arange(people), d), np.tile(np.arange(d), people)

    def protocol(self, facts: Facts) -> protocols.ShuffledProtocol:
        return protocols.ss_simple(self.dimensions(facts), self.padded(facts), self.epsilon0(facts), **self._law)

    def shuffler_release(self, facts: Facts) -> Event:
        # everybody sends every index; what is published is a sum, whose order says nothing
        sent = self.crowd(facts)[0]
        return protocols.ss_simple(self.dimensions(facts), sent, self.epsilon0(facts), **self._law).released

    def published(self, delta: float, facts: Facts) -> float:
        if self.randomizer == "response":
            return self._published_levels(delta, facts, 1.0, None)
        return protocols.as_published_flame_simple(self.dimensions(facts), self.crowd(facts)[0], self.eps_l, delta)


@dataclass(frozen=True)
class Sparse(Shuffled):
    """A part of the numbers.

    index_rate  beta: k = int(beta d) numbers are reported
    padding     n_p: so many messages per dimension; left out: as many as there are people in a round
    """

    index_rate: Rate = 0.02
    padding: Count | None = None

    def sent(self, facts: Facts) -> int:
        return int(self.index_rate * self.dimensions(facts))

    def padded(self, facts: Facts) -> int:
        return super().padded(facts) if self.padding is None else self.padding

    def check_facts(self, facts: Facts) -> None:
        super().check_facts(facts)
        if self.sent(facts) < 1:
            problem = f"{self.index_rate:g} of {self.dimensions(facts)} numbers is less than one"
            fix = f"use {1 / self.dimensions(facts):.2g} or more"
            raise UserError("out-of-range", "method.index_rate", problem, fix)

    def published(self, delta: float, facts: Facts) -> float:
        if self.randomizer == "response":
            return self._published_levels(delta, facts, self.index_rate, self.padded(facts))
        d, n = self.dimensions(facts), self.crowd(facts)[0]
        return protocols.as_published_flame_double(d, n, self.eps_l, self.index_rate, self.padded(facts), delta)


@dataclass(frozen=True)
class SSDouble(Sparse):
    """A random part of the numbers, whatever they are.

    index_sampling  fixed: exactly k, as printed; bernoulli: each number by a coin of rate index_rate. The coins are
                    secret, and hide who sent anything about a dimension: what is proved is much stronger
    """

    name = "ss-double"
    about = "a random part of a person's update, padded and shuffled (SS-Double)"
    claim = ("no", "its theorem 4 counts the sampling twice: for its rate, and for the number of folds")

    index_sampling: Literal["fixed", "bernoulli"] = "bernoulli"

    def listed(self, facts: Facts) -> int | None:
        return self.sent(facts) if self.index_sampling == "fixed" else None

    def chosen(self, vectors: Vectors, stream: Stream, facts: Facts) -> tuple[Indices, Indices]:
        if self.index_sampling == "bernoulli":
            person, index = np.nonzero(stream.coins(self.index_rate, vectors.size).reshape(vectors.shape))
            return person, index
        lot = stream.words(vectors.size).reshape(vectors.shape)
        return _listed(np.sort(_largest(lot, self.sent(facts)), axis=1))

    def divisor(self, facts: Facts) -> float:
        fixed = self.sent(facts) / self.dimensions(facts)
        return super().divisor(facts) * (fixed if self.index_sampling == "fixed" else self.index_rate)

    def protocol(self, facts: Facts) -> protocols.ShuffledProtocol:
        padded, epsilon = self.padded(facts), self.epsilon0(facts)
        if self.index_sampling == "fixed":
            return protocols.ss_double_fixed(self.sent(facts), padded, epsilon, **self._law)
        d, people = self.dimensions(facts), self.crowd(facts)[1]
        return protocols.ss_double_bernoulli(d, people, padded, epsilon, self.index_rate, **self._law)

    def release(self, exposure: Exposure, facts: Facts) -> Event:
        overflow = max(1, self.participations(facts)) * self.protocol(facts).extra_delta
        if exposure.reveals == "messages" and overflow > facts.delta:
            sent = self.index_rate * self.crowd(facts)[1]
            return Unprotected(
                f"{self.padded(facts)} places for about {sent:.3g} messages on every number overflow with probability "
                f"{overflow:.2g}, above delta: raise method.padding"
            )
        return super().release(exposure, facts)

    def local_release(self, facts: Facts) -> Event:
        return Pure(self.protocol(facts).local_epsilon)


@dataclass(frozen=True)
class SSTopk(Sparse):
    """The largest numbers. Which they are says something about a person: to the shuffler, unless all indices are sent.

    index_privacy  nu: among the indices that the shuffler sees, those that are really the largest are hidden by
                   others, so that each is one of them with nu times the probability of any index. ``strongest``: as
                   far as the padding allows (theorem 5); left out: no others. It assumes that all indices are equally
                   likely, and is no differential privacy
    """

    name = "ss-topk"
    about = "the largest numbers of a person's update, padded and shuffled (SS-Topk)"
    claim = ("no", "the largest numbers are no random sample, so that nothing is gained by their being few")

    index_privacy: AtLeastOne | Literal["strongest"] | None = None

    def lists(self, facts: Facts) -> int:
        """l: a person sends l k indices, k of which are the largest (proposition 2)."""
        rate = self.sent(facts) / self.dimensions(facts)
        most = math.ceil(1 / rate)
        if self.index_privacy is None:
            return 1
        if self.index_privacy == "strongest":
            allowed = protocols.as_published_index_privacy(self.crowd(facts)[1], self.padded(facts), rate)[1]
            return max(1, min(allowed, most))
        nu = self.index_privacy
        return min(most, math.ceil(max(1 / (nu * rate), nu / (nu - 1 + rate))))

    def listed(self, facts: Facts) -> int:
        return min(self.lists(facts) * self.sent(facts), self.dimensions(facts))

    def encode(self, vectors: Vectors, stream: Stream, facts: Facts) -> Encoded:
        people, k = len(vectors), self.sent(facts)
        top = _largest(_magnitudes(vectors, stream), k)
        values = self._reports(np.take_along_axis(vectors, top, axis=1).ravel(), stream, facts).reshape(people, k)
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

    def protocol(self, facts: Facts) -> protocols.ShuffledProtocol:
        return self._among(self.crowd(facts)[1], self.padded(facts), facts)

    def _among(self, people: int, padded: int, facts: Facts) -> protocols.ShuffledProtocol:
        k, once = self.sent(facts), self.participations(facts) == 1
        hidden = k < self.listed(facts) < self.dimensions(facts)
        return protocols.ss_topk(k, people, padded, self.epsilon0(facts), once=once, hidden=hidden, **self._law)

    def _sends_every_index(self, facts: Facts) -> bool:
        return self.listed(facts) == self.dimensions(facts)

    def local_release(self, facts: Facts) -> Event:
        if not self._sends_every_index(facts):
            return Unprotected("whose messages these are is known, and which numbers are the largest is not hidden")
        # for some i, i numbers change and 2 (k - i) change between a number and the blanket
        epsilon = self.epsilon0(facts)
        half = protocols.half_pair(epsilon, self.randomizer, self.levels + 1)
        return Pure(self.sent(facts) * max(epsilon, 2 * half))

    def shuffler_release(self, facts: Facts) -> Event:
        if not self._sends_every_index(facts):
            return Unprotected("the shuffler sees which indices a person sends, and those depend on its records")
        if self.padded(facts) < self.crowd(facts)[1]:  # it knows what it has cut
            return self.local_release(facts)
        fewest = self.crowd(facts)[0]
        return self._among(fewest, fewest, facts).released


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
