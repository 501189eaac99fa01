"""A trusted server adds the noise: DP-FedAvg and DP-FedSGD, which protect whole silos.

Every silo clips its whole upload to ``clip``; the server adds the uploads and one draw of noise, and divides by a
public constant: ``silo_sample_rate`` times the number of silos, never by how many really took part.

Formal guarantee (privacy.md, section 6, S17): with Poisson sampling of silos, one round is a Poisson-sampled Gaussian
with multiplier ``noise_multiplier`` for whoever sees only the models. The server sees the uploads: nothing is promised.
A subject with records in m silos moves up to m uploads by 2 ``clip`` each; how many of them are sampled is binomial.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from tacit.learning import ServerStep, Work, clipped, descend
from tacit.methods.averaging import like, minus
from tacit.methods.method import Facts, LocalTraining, Private, ServerState
from tacit.privacy import Event, Exposure, Gaussian, Noise, PoissonSampled, Unit, Unprotected
from tacit.privacy.subject_events import binomial_mixture


@dataclass(frozen=True)
class CentralSilo(Private):
    """What DP-FedAvg and DP-FedSGD share: clipped uploads, noise once, a constant divisor."""

    units = ("silo", "subject", "record")
    clips = "a silo's whole update"
    noise_place = "once, by the server"
    trusts = ("server", "server+silos")

    def needs(self, unit: Unit) -> tuple[str, ...]:
        return ("silos",)

    def noise(self, facts: Facts) -> Noise:
        return Noise(self.sigma * self.clip, "once")

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
