"""A trusted server adds the noise: DP-FedAvg and DP-FedSGD, which protect whole silos, and CentralSubDP.

Every silo clips its whole upload to ``clip``; the server adds the uploads and one draw of noise, and divides by a
public constant: ``silo_sample_rate`` times the number of silos, never by how many really took part.

Formal guarantee (privacy.md, section 6, S17): with Poisson sampling of silos, one round is a Poisson-sampled Gaussian
with multiplier ``noise_multiplier`` for whoever sees only the models. The server sees the uploads: nothing is promised.
A subject with records in m silos moves up to m uploads by 2 ``clip`` each; how many of them are sampled is binomial.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from tacit.learning import PoissonBatches, ServerStep, Work, clipped, descend
from tacit.learning.noisy_descent import clipped_records
from tacit.methods.averaging import like, minus
from tacit.methods.method import Contributions, Facts, LocalTraining, Private, Rate, SampledSilos, ServerState
from tacit.privacy import AsPublished, Event, Exposure, Gaussian, Noise, PoissonSampled, Unit, Unprotected
from tacit.privacy.subject_events import binomial_mixture


@dataclass(frozen=True)
class CentralSilo(SampledSilos, Private):
    """What DP-FedAvg and DP-FedSGD share: clipped uploads, noise once, a constant divisor."""

    units = ("silo", "subject", "record")
    clips = "a silo's whole update"
    noise_place = "once, by the server"
    trusts = ("server", "server+silos")

    def needs(self, unit: Unit) -> tuple[str, ...]:
        return ("silos",)

    def sum_noise(self, facts: Facts) -> Noise:
        return Noise(self.sigma * self.clip, "once")

    def contributions(self, facts: Facts) -> Contributions:
        return Contributions(self.silo_sample_rate * facts.silos, facts.silos, "silos")

    def upload(self, work: Work, broadcast: Any) -> jax.Array:
        """The silo's update, before it is clipped."""
        raise NotImplementedError

    def local(self, work: Work, broadcast: Any, state: Any) -> tuple[jax.Array, Any]:
        update = clipped(self.upload(work, broadcast), self.clip)
        return jnp.where(work.records > 0, update, 0.0), state

    def aggregate(self, step: ServerStep, server: ServerState, total: jax.Array, facts: Facts) -> ServerState:
        update = like(total / (self.silo_sample_rate * facts.silos), server.params)
        params, optimizer = step.apply(server.params, server.optimizer, update)
        return ServerState(params, optimizer)

    def event(self, exposure: Exposure, facts: Facts) -> Event:
        if exposure.reveals == "each":
            return Unprotected("the server adds the noise, so it sees every silo's update without any")
        if self.sigma == 0:
            return Unprotected(f"{self.name} with noise_multiplier 0 adds no noise")
        rate = self.silo_sample_rate
        if exposure.replaces:
            # under replacement a sampled unit's two worlds differ on both sides: no amplification is claimed
            moved = 2.0 * (facts.silos_of_a_subject if exposure.unit == "subject" else 1)
            return Gaussian(self.sigma / moved)
        if exposure.unit == "subject":
            return binomial_mixture(facts.silos_of_a_subject, rate, self.sigma, step=2.0)
        return PoissonSampled(rate, Gaussian(self.sigma if exposure.unit == "silo" else self.sigma / 2))

    def sampling(self, exposure: Exposure) -> str:
        return "none" if exposure.replaces or self.silo_sample_rate == 1 else f"poisson silos {self.silo_sample_rate:g}"

    def assumptions(self, exposure: Exposure, facts: Facts) -> tuple[str, ...]:
        return ("the server is trusted: it adds the noise and keeps the silos' updates to itself",)


@dataclass(frozen=True)
class DPFedAvg(LocalTraining, CentralSilo):
    """FedAvg whose silos are protected by a trusted server."""

    name = "dp-fedavg"
    about = "FedAvg with clipped updates and noise added by a trusted server"
    paper = "McMahan et al. 2018"

    def upload(self, work: Work, broadcast: Any) -> jax.Array:
        trained = descend(work, broadcast, self.local_learning_rate)
        return ravel_pytree(minus(trained, broadcast))[0]


@dataclass(frozen=True)
class DPFedSGD(CentralSilo):
    """FedSGD whose silos are protected by a trusted server."""

    name = "dp-fedsgd"
    about = "FedSGD with clipped gradients and noise added by a trusted server"
    paper = "McMahan et al. 2018; slides 001"

    def upload(self, work: Work, broadcast: Any) -> jax.Array:
        stepped = descend(work, broadcast, 1.0)
        return ravel_pytree(minus(stepped, broadcast))[0]


@dataclass(frozen=True)
class CentralGroup(Private):
    """CentralSubDP of paper 000 with noise that does not depend on the batch.

    Every silo sends the sum of one Poisson batch's clipped record gradients; the server adds noise to each, and steps
    along their sum over the public expected number of records.

    Formal guarantee (privacy.md 1.2b): each of a subject's at most m n records is in its silo's batch by a coin of its
    own, against the noise of all silos: a mixture over Binom(m n, q) with standard deviation sqrt(silos) sigma.
    """

    name = "central-group"
    about = "silos send sums of clipped record gradients, a trusted server adds the noise (CentralSubDP)"
    paper = "paper 000"
    units = ("subject", "record")
    clips = "a record's gradient"
    noise_place = "once, by the server"
    trusts = ("server", "server+silos")

    sample_rate: Rate = 0.05

    def needs(self, unit: Unit) -> tuple[str, ...]:
        return ("silos", "records_per_silo", *(("max_records",) if unit == "subject" else ()))

    def schedule(self, facts: Facts) -> PoissonBatches:
        divisors = tuple(self.sample_rate * count for count in facts.records_per_silo or ())
        return PoissonBatches((self.sample_rate,) * facts.silos, (1,) * facts.silos, divisors, noise=(0.0,))

    def contributions(self, facts: Facts) -> Contributions | None:
        records = sum(facts.records_per_silo or ())
        return Contributions(self.sample_rate * records, records, "records") if records else None

    def sum_noise(self, facts: Facts) -> Noise:
        return Noise(math.sqrt(facts.silos) * self.sigma * self.clip, "once")

    def local(self, work: Work, broadcast: Any, state: Any) -> tuple[jax.Array, Any]:
        offsets = work.batches.offsets
        found = clipped_records(work, broadcast, offsets[0], offsets[1], self.clip)
        return jnp.where(work.batches.steps > 0, found.vector, 0.0), state

    def aggregate(self, step: ServerStep, server: ServerState, total: jax.Array, facts: Facts) -> ServerState:
        expected = self.sample_rate * sum(facts.records_per_silo or ())
        params, optimizer = step.apply(server.params, server.optimizer, like(-total / expected, server.params))
        return ServerState(params, optimizer)

    def event(self, exposure: Exposure, facts: Facts) -> Event:
        if exposure.reveals == "each":
            return Unprotected("the server adds the noise, so it sees every silo's sum without any")
        if self.sigma == 0:
            return Unprotected(f"{self.name} with noise_multiplier 0 adds no noise")
        noise = math.sqrt(facts.silos) * self.sigma
        records = 1 if exposure.unit == "record" else facts.silos_of_a_subject * (facts.max_records or 0)
        if exposure.unit == "silo" or records == 0:
            return Unprotected(f"{self.name} does not bound what one {exposure.unit} contributes")
        if exposure.replaces:
            return Gaussian(noise / (2 * records))
        return binomial_mixture(records, self.sample_rate, noise)

    def sampling(self, exposure: Exposure) -> str:
        return "none" if exposure.replaces else f"poisson records {self.sample_rate:g}"

    def assumptions(self, exposure: Exposure, facts: Facts) -> tuple[str, ...]:
        return ("the server is trusted: it adds the noise and keeps the silos' sums to itself",)

    def as_published(self, exposure: Exposure, delta: float, facts: Facts) -> AsPublished | None:
        from tacit.privacy.as_published import as_published_higrad

        steps = facts.silos * facts.rounds
        epsilon = as_published_higrad(self.sample_rate, self.sigma, steps, delta) if self.sigma else math.inf
        return AsPublished(
            epsilon,
            "no",
            "the paper scales noise by the largest group in a batch and counts with the record's rate (privacy.md 1.3)",
        )

    def reference_numbers(self, step: ServerStep) -> dict[str, Any]:
        return {"batch_size": 64, "batches_per_round": 1, "local_learning_rate": step.rate}
