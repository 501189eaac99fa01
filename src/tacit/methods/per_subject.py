"""People, not records: everybody's contribution is computed from that person's records alone, clipped, and weighted.

In every silo each person learns from the global model by themselves; the difference (or the gradient) is clipped to
``clip`` and multiplied by a weight. A person's weights over all silos sum to at most 1, so that everything about a
person moves the sum over all silos by at most ``clip``. Noise is added in shares: every silo adds an equal part of its
variance.

Formal guarantee (privacy.md 1.2b, 2, 4.3), noise multiplier s, S silos, one round, one subject, zero-out:

    who sees only the sum, and not who was sampled       PG(q, s)
    a server that sees each silo's noisy sum             Gaussian, divergence times S max_u sum_s w^2, q = 1
    c silos, which know the coins and their own noise    Gaussian, divergence times S / (S - c), q = 1
    replacement instead of zero-out                      Gaussian, divergence times 4, q = 1
    one record more or less                              as replacement: the person's contribution may turn around
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import numpy as np

from tacit.errors import UserError
from tacit.learning import Local, PeopleSum, ServerStep
from tacit.methods.averaging import like
from tacit.methods.method import Adaptive, Contributions, Count, Divisors, Facts, Positive, Rate, ServerState
from tacit.privacy import AsPublished, Event, Exposure, Gaussian, Noise, PoissonSampled, Unit, Unprotected
from tacit.privacy import subject_events as subjects

Weights = Literal["uniform", "records"]


@dataclass(frozen=True)
class PerSubject(Adaptive):
    """What all methods share whose unit is the subject.

    subject_sample_rate  public Poisson rate at which a subject enters a round, by one coin for all silos

    An adaptive clip counts a person in every silo with the weight there: at most once over all silos.
    """

    units = ("subject", "record")
    clips = "a subject's contribution in a silo"
    noise_place = "shares, one per silo"
    exchanges: ClassVar[tuple[str, ...]] = ("plain", "masked")

    subject_sample_rate: Rate = 1.0

    # -- what happens in a silo

    @property
    def learning(self) -> Local:
        """What everybody does with their records."""
        raise NotImplementedError

    @property
    def most_records(self) -> int | None:
        """At most so many of a subject's records in a silo are used in a round, chosen at random."""
        return None

    def weights_of(self, counts: np.ndarray, totals: np.ndarray, facts: Facts) -> np.ndarray:
        """The weight of a person's part in a silo, from its number of records there and in all silos."""
        raise NotImplementedError

    def vector(self, found: PeopleSum, weight: jax.Array, clip: jax.Array) -> jax.Array:
        """A silo's contribution, of people who have ``weight`` together."""
        return self.sent(found.total, found.below_weight, weight, clip)

    # -- what happens at the server

    def needs(self, unit: Unit) -> tuple[str, ...]:
        return ("silos", "subjects")

    def sum_noise(self, facts: Facts) -> Noise:
        return Noise(self.sigma * self.clip, "shares")

    def contributions(self, facts: Facts) -> Contributions | None:
        if facts.subjects is None:
            return None
        return Contributions(self.people_in_a_round(facts), facts.subjects, "people")

    def people_in_a_round(self, facts: Facts) -> float:
        """How many people a round has on average; nobody's weights sum to more than 1."""
        return self.subject_sample_rate * (facts.subjects or 1)

    def aggregate(self, step: ServerStep, server: ServerState, total: jax.Array, divisors: Divisors) -> ServerState:
        mean, clip = self.received(server, total, divisors)
        direction = 1.0 if self.learning.kind == "training" else -1.0
        update = like(direction * mean, server.params)
        params, optimizer = step.apply(server.params, server.optimizer, update)
        return ServerState(params, optimizer, clip)

    # -- what is promised

    def squared_weights(self, facts: Facts) -> float:
        """The largest sum of a person's squared weights."""
        raise NotImplementedError

    def others_factor(self, exposure: Exposure, facts: Facts) -> float:
        """By what the divergence grows for silos that know their own noise."""
        return subjects.colluding_factor(facts.silos, exposure.colluding)

    def event(self, exposure: Exposure, facts: Facts) -> Event:
        if self.sigma == 0:
            return Unprotected(f"{self.name} with noise_multiplier 0 adds no noise")
        if exposure.unit == "silo":
            return Unprotected(f"{self.name} bounds what a person contributes, not a silo")
        secret = exposure.reveals == "sum" and exposure.colluding == 0
        if exposure.reveals == "each":
            factor = subjects.server_factor(facts.silos, self.squared_weights(facts))
        else:
            factor = 1.0 if secret else self.others_factor(exposure, facts)
        if math.isinf(factor):
            return Unprotected("all silos collude: nobody is left to protect")
        replaces = exposure.replaces or exposure.unit == "record"
        if replaces:
            factor *= subjects.REPLACEMENT_FACTOR
        gaussian = Gaussian(self.effective_sigma / math.sqrt(factor)) if factor else Gaussian(math.inf)
        return PoissonSampled(self.subject_sample_rate, gaussian) if secret and not replaces else gaussian

    def sampling(self, exposure: Exposure) -> str:
        secret = exposure.reveals == "sum" and exposure.colluding == 0
        if self.subject_sample_rate == 1 or not secret or exposure.replaces or exposure.unit == "record":
            return "none"
        return f"poisson subjects {self.subject_sample_rate:g}"

    def assumptions(self, exposure: Exposure, facts: Facts) -> tuple[str, ...]:
        shares = "every silo adds its share of the noise"
        if exposure.colluding or exposure.reveals == "each":
            return (shares,)
        if exposure.view.kind == "server" and self.subject_sample_rate < 1:
            return (shares, "the server does not learn the silos' common sampling coins")
        return (shares,)

    def reference_numbers(self, step: ServerStep) -> dict[str, Any]:
        return {"batch_size": 64, "local_epochs": 1, "local_learning_rate": 0.1}


@dataclass(frozen=True)
class SubjectSGD(PerSubject):
    """Tacit's own: sample people, bound a person's total over all silos, add noise once in shares.

    records_per_subject  at most so many of a sampled person's records per silo, chosen at random
    clip_first           clip every record's gradient and average (True), or average and clip (False)
    local_epochs         instead of a gradient: so many passes of local training on the person's records
    local_learning_rate  its rate

    Silos share a secret seed for the coins; a person is in a round with probability exactly ``subject_sample_rate``,
    however many records there are. Weights are 1 / m for at most m silos per person, so they sum to at most 1.
    """

    name = "subject-sgd"
    about = "sample people with one coin for all silos, bound each person's total, noise once in shares"
    paper = "Tacit"

    records_per_subject: Count | None = None
    clip_first: bool = False
    local_epochs: Count | None = None
    local_learning_rate: Positive = 0.1

    @property
    def learning(self) -> Local:
        if self.local_epochs is not None:
            return Local("training", self.local_epochs, self.local_learning_rate)
        return Local("record-gradients" if self.clip_first else "gradient")

    @property
    def record_losses(self) -> str | None:
        return "clip_first" if self.learning.kind == "record-gradients" else None

    @property
    def most_records(self) -> int | None:
        return self.records_per_subject

    def weights_of(self, counts: np.ndarray, totals: np.ndarray, facts: Facts) -> np.ndarray:
        return np.full(len(counts), 1.0 / facts.silos_of_a_subject)

    def divisors(self, facts: Facts) -> Divisors:
        return Divisors(self.people_in_a_round(facts), self.people_in_a_round(facts))

    def squared_weights(self, facts: Facts) -> float:
        return 1.0 / facts.silos_of_a_subject

    def assumptions(self, exposure: Exposure, facts: Facts) -> tuple[str, ...]:
        most = facts.in_few_silos
        return (*super().assumptions(exposure, facts), most)


@dataclass(frozen=True)
class Uldp(PerSubject):
    """What ULDP-AVG and ULDP-SGD share (paper 002).

    weights          uniform: 1 / |S|; records: n_su / (1 + N_u), for which somebody must learn how many records a
                     person has in all
    disclose_counts  accept that: views that learn the counts then have no guarantee
    """

    paper = "paper 002"
    exchanges = ("plain", "masked", "weighted")

    weights: Weights = "uniform"
    disclose_counts: bool = False

    def check(self, exchange: str) -> None:
        if self.weights == "uniform" and exchange == "weighted":
            raise UserError("method.weights", "the weighted exchange is for record weights", 'use weights = "records"')
        if self.weights == "records" and exchange in ("plain", "masked") and not self.disclose_counts:
            raise UserError(
                "method.weights",
                f"with record weights in the {exchange} exchange, somebody learns how many records a person has",
                "use the weighted exchange, uniform weights, or accept it with disclose_counts = true",
            )

    def weights_of(self, counts: np.ndarray, totals: np.ndarray, facts: Facts) -> np.ndarray:
        if self.weights == "uniform":
            return np.full(len(counts), 1.0 / facts.silos)
        return counts / (1.0 + totals)

    def divisors(self, facts: Facts) -> Divisors:
        return Divisors(self.people_in_a_round(facts) * facts.silos, self.people_in_a_round(facts))

    def squared_weights(self, facts: Facts) -> float:
        return 1.0 / facts.silos if self.weights == "uniform" else 1.0

    def others_factor(self, exposure: Exposure, facts: Facts) -> float:
        return subjects.colluding_factor(facts.silos, exposure.colluding, uniform=self.weights == "uniform")

    def event(self, exposure: Exposure, facts: Facts) -> Event:
        counts_known = exposure.reveals == "each" or (exposure.colluding and not exposure.hides_counts)
        if self.weights == "records" and counts_known:
            return Unprotected("with record weights in this exchange, this view learns how many records people have")
        return super().event(exposure, facts)

    def as_published(self, exposure: Exposure, delta: float, facts: Facts) -> AsPublished | None:
        from tacit.privacy.as_published import as_published_rdp

        if exposure.unit != "subject":
            return None
        rate = self.subject_sample_rate
        epsilon = as_published_rdp(rate, self.effective_sigma, facts.rounds, delta) if self.sigma else math.inf
        if exposure.replaces:
            return AsPublished(epsilon, "no", "replacing a person moves the sum by twice the clip")
        if exposure.reveals == "sum" and not exposure.colluding:
            return AsPublished(epsilon, "yes", "Renyi accounting; the proved number counts the same mechanism tighter")
        if rate < 1:
            return AsPublished(epsilon, "no", "this view knows who was sampled, so that sampling does not help")
        if self.weights == "uniform":
            return AsPublished(epsilon, "yes", "with uniform weights this view learns no more than the public")
        return AsPublished(epsilon, "no", "it is about who sees only the sum")


@dataclass(frozen=True)
class UldpAvg(Uldp):
    """ULDP-AVG: everybody trains locally in every silo; differences are clipped, weighted and added up.

    local_epochs         passes over a person's records
    local_learning_rate  rate of a person's own steps
    batch_size           records per step; left out: all of a person's
    """

    name = "uldp-avg"
    about = "per-person local training in every silo, clipped and weighted (ULDP-AVG)"

    local_epochs: Count = 1
    local_learning_rate: Positive = 0.1
    batch_size: Count | None = None

    @property
    def learning(self) -> Local:
        return Local("training", self.local_epochs, self.local_learning_rate, self.batch_size)

    @property
    def record_losses(self) -> str | None:
        return "batch_size" if self.batch_size is not None else None

    def reference_numbers(self, step: ServerStep) -> dict[str, Any]:
        keys = ("batch_size", "local_epochs", "local_learning_rate")
        return {"batch_size": 64} | {key: getattr(self, key) for key in keys if getattr(self, key) is not None}


@dataclass(frozen=True)
class UldpSGD(Uldp):
    """ULDP-SGD: everybody's gradient in every silo, clipped and weighted; the server takes the step."""

    name = "uldp-sgd"
    about = "per-person gradients in every silo, clipped and weighted (ULDP-SGD)"

    @property
    def learning(self) -> Local:
        return Local("gradient")
