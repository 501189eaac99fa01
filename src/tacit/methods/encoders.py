"""Every person alone: what somebody sends is protected before it leaves, and nobody need be trusted.

A person is an *encoder*: one of as many places as there are declared subjects, by the hash of its identifier. People in
one place are one encoder, and a place without people reports as the others do, so that who is there changes one report
and nothing else: no batch, no number of messages. An encoder trains on its own records, in whatever silos they are, and
clips every number of the update to ``[-C, C]``. What it then sends by itself costs ``local_epsilon`` an epoch. Encoders
are parted into batches of at least ``batch_subjects`` that take turns: each reports once per epoch.

``ldp-laplace`` and ``ldp-gaussian`` add noise to the whole update; they are what [FLAME] compares with. Its
own protocols, whose reports a shuffler mixes, are in ``shuffle``.

Formal guarantees, one person replaced, one epoch: against a server that sees each, local_epsilon (Laplace), or
(local_epsilon, delta) (Gaussian). Who sees sums only sees them as if they were shuffled (specification 5.2), or with
the noise of everybody. Silos know the noise of their own places (``exchange.people_of``): a person hides among
the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

import jax
import numpy as np
import numpy.typing as npt

from tacit.errors import UserError
from tacit.kernels import Local, ServerStep
from tacit.methods.averaging import like
from tacit.methods.method import Calibrated, Contributions, Count, Divisors, Facts, Positive, ServerState
from tacit.privacy import (
    Event,
    Exposure,
    Gaussian,
    Pure,
    Randomness,
    Relation,
    Repeated,
    ShuffledReports,
    Stream,
    Unit,
    Unprotected,
)
from tacit.privacy.invalid import InvalidArgument
from tacit.privacy.mechanisms.noise_mechanisms import gaussian_sigma, standard_laplace, standard_normal

Floats = npt.NDArray[np.float64]
Vectors = npt.NDArray[np.floating]

OWN_NOISE = "a silo draws the noise of its own subjects, an equal part of the places (enforced on a federation)"
# Who is in which batch is public and the same for ever: a resumed run must not part people in another way.
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


@dataclass(frozen=True)
class Encoder(Calibrated):
    """What all methods share in which a person protects what it sends.

    local_epsilon        eps_l: what one person's reports of one epoch cost by themselves
    value_range          C: every number of an update is clipped to [-C, C]
    batch_subjects       n: at least so many people take part in a round; left out: everybody
    epochs               instead of train.rounds: how often everybody takes part
    local_epochs         passes over a person's records
    local_learning_rate  rate of a person's own steps
    batch_size           records per step; left out: all of a person's
    """

    paper = "[FLAME]"
    units = ("subject", "record")
    clips = "every number of a person's update"
    noise_place = "every person's own"
    noise_key = "local_epsilon"
    works_by = "report"

    local_epsilon: Positive | None = None
    value_range: Positive = 1.0
    batch_subjects: Count | None = None
    epochs: Count | None = None
    local_epochs: Count = 1
    local_learning_rate: Positive = 0.1
    batch_size: Count | None = None

    # -- people and their work

    @property
    def learning(self) -> Local:
        """What everybody does with their records."""
        return Local("training", self.local_epochs, self.local_learning_rate, self.batch_size)

    @property
    def record_losses(self) -> str | None:
        return "batch_size" if self.batch_size is not None else None

    def turns(self, facts: Facts) -> int:
        return max(1, (facts.subjects or 1) // (self.batch_subjects or facts.subjects or 1))

    def crowd(self, facts: Facts) -> tuple[int, int]:
        """How many people the smallest and the largest batch have."""
        people, turns = facts.subjects or 1, self.turns(facts)
        return people // turns, -(-people // turns)

    def hidden_among(self, exposure: Exposure, facts: Facts) -> int:
        """How many people of a batch report with noise that the view does not know, at least."""
        if exposure.reveals == "each" or max(1, facts.silos) <= exposure.colluding:
            return 1
        return fewest_outside(facts.subjects or 1, self.turns(facts), max(1, facts.silos), exposure.colluding)

    def rounds(self, facts: Facts) -> int | None:
        return None if self.epochs is None else self.epochs * self.turns(facts)

    def participations(self, facts: Facts) -> int:
        """How often a person takes part in the planned rounds."""
        return -(-facts.rounds // self.turns(facts))

    def dimensions(self, facts: Facts) -> int:
        if facts.parameters is None:
            raise InvalidArgument("missing", "facts", "how many numbers are learned must be known")
        return facts.parameters

    def people(self, facts: Facts) -> float:
        """How many people take part in a round, on average."""
        return (facts.subjects or 1) / self.turns(facts)

    def contributions(self, facts: Facts) -> Contributions:
        return Contributions(self.people(facts), facts.subjects or 1, "people")

    def bound(self, facts: Facts) -> float:
        return self.value_range * math.sqrt(self.dimensions(facts))

    def clipped(self, vectors: Vectors) -> Floats:
        return np.clip(vectors.astype(np.float64), -self.value_range, self.value_range)

    # -- what is promised

    @property
    def eps_l(self) -> float:
        """The local epsilon, given or solved for."""
        if self.local_epsilon is None:
            raise InvalidArgument("missing", "noise", "the noise of this method is not known yet: a plan solves for it")
        return self.local_epsilon

    def with_noise(self, noise: float) -> Self:
        return replace(self, local_epsilon=1 / noise)

    def needs(self, unit: Unit) -> tuple[str, ...]:
        return ("subjects", "parameters")

    def check_facts(self, facts: Facts) -> None:
        if self.batch_subjects is not None and self.batch_subjects > (facts.subjects or 0):
            problem = f"{self.batch_subjects} are more than all {facts.subjects} people"
            raise UserError("out-of-range", "method.batch_subjects", problem, "lower it, or leave it out")

    def relation(self, unit: Unit) -> Relation:
        return "replace" if unit == "subject" else "zero-out"

    def event(self, exposure: Exposure, facts: Facts) -> Event:
        if exposure.unit == "silo":
            return Unprotected(f"{self.name} bounds what a person contributes, not a silo")
        if exposure.unit == "record" and exposure.replaces:
            return self.two_changed(exposure, facts)
        # one record more or less, or a person without any: a person with other reports
        return self.release(exposure, facts)

    def release(self, exposure: Exposure, facts: Facts) -> Event:
        """What one participation shows to a view."""
        raise NotImplementedError

    def two_changed(self, exposure: Exposure, facts: Facts) -> Event:
        """What one participation of each of two people shows: a record of one is replaced by a record of the other.

        They may be in one batch or in two. In one: part it into halves with one of them in each. A view of each half's
        sum, or of its shuffled reports, sees more than a view of the whole. What it sees is two independent releases in
        half the crowd. In two batches the crowds are whole.
        """
        raise NotImplementedError

    def assumptions(self, exposure: Exposure, facts: Facts) -> tuple[str, ...]:
        one = (
            "a person is one encoder, whatever silos hold its records, by the hash of its identifier; it reports once"
            " per epoch (enforced), and one that is replaced by another keeps its place"
        )
        return (
            one,
            *(
                ("who is in which batch depends neither on records nor on who else takes part",)
                if self.turns(facts) > 1
                else ()
            ),
        )

    def requires_all_silos(self, facts: Facts) -> bool:
        return True  # people hide among all who send

    def reference_numbers(self, step: ServerStep) -> dict[str, Any]:
        return {"batch_size": 64, "local_epochs": 1, "local_learning_rate": 0.1}


@dataclass(frozen=True)
class LocallyNoised(Encoder):
    """Every person adds noise to its whole clipped update; the server adds up what it gets, and sees each."""

    exchanges = ("plain",)

    def noisy(self, vectors: Vectors, stream: Stream, facts: Facts) -> Floats:
        """What people send, ``[people, d]``."""
        raise NotImplementedError

    def divisors(self, facts: Facts) -> Divisors:
        return Divisors(self.people(facts))

    def aggregate(self, step: ServerStep, server: ServerState, total: jax.Array, divisors: Divisors) -> ServerState:
        update = like(total / divisors.total, server.params)
        params, optimizer = step.apply(server.params, server.optimizer, update)
        return ServerState(params, optimizer)

    def among(self, people: int, facts: Facts) -> Event:
        """What a sum with the noise of so many people shows."""
        raise NotImplementedError

    def release(self, exposure: Exposure, facts: Facts) -> Event:
        return self.among(self.hidden_among(exposure, facts), facts)

    def two_changed(self, exposure: Exposure, facts: Facts) -> Event:
        return Repeated(self.among(max(1, self.hidden_among(exposure, facts) // 2), facts), 2)

    def assumptions(self, exposure: Exposure, facts: Facts) -> tuple[str, ...]:
        known = super().assumptions(exposure, facts)
        return (*known, OWN_NOISE) if exposure.colluding else known


@dataclass(frozen=True)
class LdpLaplace(LocallyNoised):
    """Laplace noise on every number: local_epsilon / d each. Who sees sums only sees them as if they were shuffled."""

    name = "ldp-laplace"
    about = "every person adds Laplace noise to its update: nobody is trusted"

    def scale(self, facts: Facts) -> float:
        return 2 * self.value_range * self.dimensions(facts) / self.eps_l

    def deviation(self, facts: Facts) -> float:
        return self.scale(facts) * math.sqrt(2 * self.people(facts))

    def noisy(self, vectors: Vectors, stream: Stream, facts: Facts) -> Floats:
        noise = standard_laplace(vectors.size, stream).reshape(vectors.shape)
        return self.clipped(vectors) + self.scale(facts) * noise

    def among(self, people: int, facts: Facts) -> Event:
        d = self.dimensions(facts)
        if people == 1:
            return Pure(self.eps_l)
        return Repeated(ShuffledReports(self.eps_l / d, people, None, "laplace"), d)


@dataclass(frozen=True)
class LdpGaussian(LocallyNoised):
    """Gaussian noise on every number, (local_epsilon, delta)-private for one person's whole update."""

    name = "ldp-gaussian"
    about = "every person adds Gaussian noise to its update: nobody is trusted"

    def multiplier(self, facts: Facts) -> float:
        """Standard deviation over the l2 sensitivity 2 C sqrt(d)."""
        return gaussian_sigma(self.eps_l, facts.delta)

    def deviation(self, facts: Facts) -> float:
        return 2 * self.bound(facts) * self.multiplier(facts) * math.sqrt(self.people(facts))

    def noisy(self, vectors: Vectors, stream: Stream, facts: Facts) -> Floats:
        noise = standard_normal(vectors.size, stream).reshape(vectors.shape)
        return self.clipped(vectors) + 2 * self.bound(facts) * self.multiplier(facts) * noise

    def among(self, people: int, facts: Facts) -> Event:
        return Gaussian(self.multiplier(facts) * math.sqrt(people))
