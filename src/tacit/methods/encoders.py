"""Every person alone: what somebody sends is protected before it leaves, and nobody need be trusted.

A person is an *encoder*: one of as many places as there are declared subjects, by the hash of its identifier. People in
one place are one encoder, and a place without people reports as the others do, so that who is there changes one report
and nothing else: no batch, no number of messages. An encoder trains on its own records, in whatever silos they are, and
clips every number of the update to ``[-C, C]``. What it then sends by itself costs ``local_epsilon`` an epoch. Encoders
are parted into batches of at least ``batch_subjects`` that take turns: each reports once per epoch.

``ldp-laplace`` and ``ldp-gaussian`` add noise to the whole update; they are what FLAME (paper 003) compares with. Its
own protocols, whose reports a shuffler mixes, are in ``shuffle``.

Formal guarantees, one person replaced, one epoch: against a server that sees each, local_epsilon (Laplace), or
(local_epsilon, delta) (Gaussian). Who sees sums only sees them as if they were shuffled (privacy.md 5.2), or with the
noise of everybody.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Self

import jax
import numpy as np
import numpy.typing as npt

from tacit.errors import UserError
from tacit.learning import Local, ServerStep
from tacit.methods.averaging import like
from tacit.methods.method import Calibrated, Contributions, Count, Divisors, Facts, Positive, ServerState
from tacit.privacy import (
    Event,
    Exposure,
    Gaussian,
    Pure,
    Relation,
    Repeated,
    ShuffledReports,
    Stream,
    Unit,
    Unprotected,
)
from tacit.privacy.mechanisms import gaussian_sigma, standard_laplace, standard_normal

Floats = npt.NDArray[np.float64]
Vectors = npt.NDArray[np.floating]


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

    paper = "paper 003"
    units = ("subject", "record")
    clips = "every number of a person's update"
    noise_place = "every person's own"
    noise_key = "local_epsilon"

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

    def rounds(self, facts: Facts) -> int | None:
        return None if self.epochs is None else self.epochs * self.turns(facts)

    def participations(self, facts: Facts) -> int:
        """How often a person takes part in the planned rounds."""
        return -(-facts.rounds // self.turns(facts))

    def dimensions(self, facts: Facts) -> int:
        if facts.parameters is None:
            raise ValueError("how many numbers are learned must be known")
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
            raise ValueError("the noise of this method is not known yet: a plan solves for it")
        return self.local_epsilon

    def with_noise(self, noise: float) -> Self:
        return replace(self, local_epsilon=1 / noise)

    def needs(self, unit: Unit) -> tuple[str, ...]:
        return ("subjects", "parameters")

    def check_facts(self, facts: Facts) -> None:
        if self.batch_subjects is not None and self.batch_subjects > (facts.subjects or 0):
            problem = f"{self.batch_subjects} are more than all {facts.subjects} people"
            raise UserError("method.batch_subjects", problem, "lower it, or leave it out")

    def relation(self, unit: Unit) -> Relation:
        return "replace"

    def event(self, exposure: Exposure, facts: Facts) -> Event:
        if exposure.unit == "silo":
            return Unprotected(f"{self.name} bounds what a person contributes, not a silo")
        # one record more or less, or a person without any: a person with other reports
        return self.release(exposure, facts)

    def release(self, exposure: Exposure, facts: Facts) -> Event:
        """What one participation shows to a view."""
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

    def release(self, exposure: Exposure, facts: Facts) -> Event:
        if exposure.reveals == "each":
            return Pure(self.eps_l)
        d = self.dimensions(facts)
        return Repeated(ShuffledReports(self.eps_l / d, self.crowd(facts)[0], None, "laplace"), d)


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

    def release(self, exposure: Exposure, facts: Facts) -> Event:
        others = 1 if exposure.reveals == "each" else self.crowd(facts)[0]
        return Gaussian(self.multiplier(facts) * math.sqrt(others))
