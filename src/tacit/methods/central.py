"""A trusted server adds the noise: DP-FedAvg and DP-FedSGD, which protect whole silos, and CentralSubDP.

Every silo clips its whole upload to ``clip``; the server adds the uploads and one draw of noise, and divides by a
public constant: ``silo_sample_rate`` times the number of silos, never by how many really took part.

Formal guarantee (specification 6, row S17): with Poisson sampling of silos, one round is a Poisson-sampled Gaussian
with multiplier ``noise_multiplier`` for whoever sees only the models. The server sees the uploads: nothing is promised.
A subject with records in m silos moves up to m uploads by 2 ``clip`` each. Its silos take part with and without it, so
the two worlds differ as under replacement: rate 1 - (1-q)^m and multiplier s / (2 m), accounted for as sampling under
replacement is (specification 0.4: no single sampled pair dominates it). Wang, Balle, Kasiviswanathan 2019 ask that the
sums with the subject, without it, and without its silos are pairwise within the sensitivity: 2 m, m and m clips.

In the pairwise exchange silos add the noise, and nobody is trusted. A silo moves what a view sees of all messages by
``Exposure.pairwise`` times what it moves a sum with the planned noise by; a subject in m silos by at most the sum of
what m silos do, which is what the formula above counts.

With an adaptive clip every upload counts as below or above it; a silo moves the count by its sensitivity, a subject by
at most 1 in each of its silos.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from tacit.errors import UserError
from tacit.kernels import PoissonBatches, ServerStep, Work, bounded, descend
from tacit.kernels.clipped_sum import FINEST
from tacit.kernels.noisy_descent import clipped_records
from tacit.methods.averaging import like, minus
from tacit.methods.method import (
    Adaptive,
    Contributions,
    Divisors,
    Facts,
    LocalResult,
    LocalTraining,
    Rate,
    RecordSums,
    SampledSilos,
    ServerState,
)
from tacit.models import Params
from tacit.privacy import (
    AsPublished,
    Event,
    Exposure,
    Gaussian,
    Noise,
    PoissonSampled,
    Unit,
    Unprotected,
)
from tacit.privacy.proofs.subject_events import binomial_mixture, sampled_place, subject_rate


@dataclass(frozen=True)
class CentralSilo(SampledSilos, Adaptive):
    """What DP-FedAvg and DP-FedSGD share: clipped uploads, noise once, a constant divisor."""

    units = ("silo", "subject", "record")
    clips = "a silo's whole update"
    noise_place = "once, by the server"
    trusts = ("server", "server+silos")
    exchanges = ("plain", "pairwise")

    def check(self, exchange: str) -> None:
        if exchange == "pairwise" and self.silo_sample_rate < 1:
            problem = "silos whose noise cancels in pairs must all take part"
            fix = "leave it out, or use the plain exchange"
            raise UserError("not-supported", "method.silo_sample_rate", problem, fix)
        if exchange == "pairwise" and self.adaptive_clip is not None:
            problem = "the count that an adaptive clip follows has no place in sums with pairwise noise"
            raise UserError("not-supported", "method.adaptive_clip", problem, "leave it out, or use the plain exchange")

    def needs(self, unit: Unit) -> tuple[str, ...]:
        return ("silos",)

    def sum_noise(self, facts: Facts) -> Noise:
        return Noise(self.sigma * self.clip, "once")

    def contributions(self, facts: Facts) -> Contributions:
        return Contributions(self.silo_sample_rate * facts.silos, facts.silos, "silos")

    def upload(self, work: Work, shared: Any, state: Any) -> tuple[jax.Array, Any]:
        """The silo's whole update, before it is clipped, from what the server ``shared``; and what the silo keeps."""
        raise NotImplementedError

    def local(self, work: Work, broadcast: Any, state: Any) -> LocalResult:
        shared, clip = broadcast
        update, kept = self.upload(work, shared, state)
        clipped, finite, below = bounded(update, clip)
        # what could not be computed is neither sent nor kept
        kept = jax.tree.map(lambda new, old: jnp.where(finite, new, old), kept, state)
        vector = self.sent(clipped, below, clip)
        here = work.records > 0
        return LocalResult(jnp.where(here, vector, 0.0), kept, here & ~finite)

    def divisors(self, facts: Facts) -> Divisors:
        expected = self.silo_sample_rate * facts.silos
        return Divisors(expected, expected)

    def aggregate(self, step: ServerStep, server: ServerState, total: jax.Array, divisors: Divisors) -> ServerState:
        mean, clip = self.received(server, total, divisors)
        params, optimizer = step.apply(server.params, server.optimizer, like(mean, server.params))
        return ServerState(params, optimizer, clip)

    def event(self, exposure: Exposure, facts: Facts) -> Event:
        if exposure.reveals == "each":
            return Unprotected("the server adds the noise, so it sees every silo's update without any")
        if self.sigma == 0:
            return Unprotected(f"{self.name} with noise_multiplier 0 adds no noise")
        more = 1.0 if exposure.pairwise is None else exposure.pairwise
        if math.isinf(more):
            return Unprotected("coalitions of this size leave nobody, or are too many to be looked at one by one")
        if exposure.unit == "silo" and not exposure.replaces:
            return PoissonSampled(self.silo_sample_rate, Gaussian(self.effective_sigma / more))
        moved = {"subject": facts.silos_moved, "record": facts.record_silos_moved, "silo": lambda _: 1}
        silos = moved[exposure.unit](exposure.replaces)
        gaussian = Gaussian(self.ratio(2.0 * silos, silos) / more)
        rate = subject_rate(self.silo_sample_rate, silos)
        return sampled_place(rate, gaussian)

    def sampling(self, exposure: Exposure) -> str:
        return "none" if self.silo_sample_rate == 1 else f"poisson silos {self.silo_sample_rate:g}"

    def assumptions(self, exposure: Exposure, facts: Facts) -> tuple[str, ...]:
        if exposure.pairwise is not None:
            return ("every silo adds its own noise and that of its pairs before anything leaves it",)
        return ("the server is trusted: it adds the noise and keeps the silos' updates to itself",)


@dataclass(frozen=True)
class DPFedAvg(LocalTraining, CentralSilo):
    """FedAvg whose silos are protected by a trusted server."""

    name = "dp-fedavg"
    about = "FedAvg with clipped updates and noise added by a trusted server"
    paper = "McMahan et al. 2018"

    def upload(self, work: Work, shared: Params, state: Any) -> tuple[jax.Array, Any]:
        return ravel_pytree(minus(descend(work, shared, self.local_learning_rate), shared))[0], state


@dataclass(frozen=True)
class DPFedSGD(CentralSilo):
    """FedSGD whose silos are protected by a trusted server."""

    name = "dp-fedsgd"
    about = "FedSGD with clipped gradients and noise added by a trusted server"
    paper = "McMahan et al. 2018; [Slides]"

    def upload(self, work: Work, shared: Params, state: Any) -> tuple[jax.Array, Any]:
        return ravel_pytree(minus(descend(work, shared, 1.0), shared))[0], state


@dataclass(frozen=True)
class CentralGroup(RecordSums):
    """CentralSubDP of [SubjectDP-1] with noise that does not depend on the batch.

    Every silo sends the sum of one Poisson batch's clipped record gradients; the server adds noise to each, and steps
    along their sum over the public expected number of records.

    Formal guarantee (specification 1.2b): each of a subject's at most m n records is in its silo's batch by a coin of
    its own, against the noise of all silos: a mixture over Binom(m n, q) with standard deviation sqrt(silos) sigma. An
    adaptive clip counts records, with noise of sqrt(silos) count_noise: j records move it by j times its sensitivity.
    """

    name = "central-group"
    about = "silos send sums of clipped record gradients, a trusted server adds the noise (CentralSubDP)"
    paper = "[SubjectDP-1]"
    units = ("subject", "record")
    clips = "a record's gradient"
    noise_place = "once, by the server"
    trusts = ("server", "server+silos")

    sample_rate: Rate = 0.05

    @property
    def record_losses(self) -> str | None:
        return "name"

    def needs(self, unit: Unit) -> tuple[str, ...]:
        return ("silos", "records_per_silo", *(("max_records",) if unit == "subject" else ()))

    def schedule(self, facts: Facts) -> PoissonBatches:
        sizes = self.batch_sizes(facts)
        return PoissonBatches((self.sample_rate,) * facts.silos, (1,) * facts.silos, sizes, noise=(0.0,))

    def batch_sizes(self, facts: Facts) -> tuple[float, ...]:
        return tuple(self.sample_rate * count for count in facts.records_per_silo or ())

    def contributions(self, facts: Facts) -> Contributions | None:
        records = sum(facts.records_per_silo or ())
        return Contributions(self.sample_rate * records, records, "records") if records else None

    def sum_noise(self, facts: Facts) -> Noise:
        return Noise(math.sqrt(facts.silos) * self.sigma * self.clip, "once")

    def local(self, work: Work, broadcast: Any, state: Any) -> LocalResult:
        params, clip = broadcast
        adaptive, step = self.adaptive_clip, work.step
        if step is None:  # without noise: nothing is promised, and no count travels
            found = clipped_records(work, params, 0, clip)
            numbers = found.vector.numbers(FINEST * self.clip)
            return LocalResult(numbers if adaptive is None else jnp.append(numbers, 0.0), state, found.not_finite)
        counts = None if adaptive is None else self.counts(adaptive, step)
        found = clipped_records(work, params, 0, clip, counts)
        # from steps of FINEST clips to those of the sum, which are 2^n as large, in units of the planned clip
        vector = found.vector.coarser(jnp.round(jnp.log2(step / (FINEST * self.clip))))
        return LocalResult(vector if adaptive is None else vector.followed_by(found.counted), state, found.not_finite)

    def divisors(self, facts: Facts) -> Divisors:
        expected = self.sample_rate * sum(facts.records_per_silo or ())
        return Divisors(expected, expected)

    def aggregate(self, step: ServerStep, server: ServerState, total: jax.Array, divisors: Divisors) -> ServerState:
        mean, clip = self.received(server, total, divisors)
        params, optimizer = step.apply(server.params, server.optimizer, like(-mean, server.params))
        return ServerState(params, optimizer, clip)

    def event(self, exposure: Exposure, facts: Facts) -> Event:
        if exposure.reveals == "each":
            return Unprotected("the server adds the noise, so it sees every silo's sum without any")
        if self.sigma == 0:
            return Unprotected(f"{self.name} with noise_multiplier 0 adds no noise")
        noise = math.sqrt(facts.silos) * self.of_a_record(facts)
        records = 1 if exposure.unit == "record" else facts.silos_of_a_subject * (facts.max_records or 0)
        if exposure.unit == "silo" or records == 0:
            return Unprotected(f"{self.name} does not bound what one {exposure.unit} contributes")
        if exposure.replaces:  # a cap lets another record of each of two subjects take or lose its place
            swapped = 2 if exposure.unit == "record" and facts.moves_up else 1
            return Gaussian(noise / (2 * records * swapped))
        if exposure.unit == "record" and facts.moves_up:
            return sampled_place(self.sample_rate, Gaussian(noise / 2))
        return binomial_mixture(records, self.sample_rate, noise)

    def sampling(self, exposure: Exposure) -> str:
        return "none" if exposure.replaces else f"poisson records {self.sample_rate:g}"

    def assumptions(self, exposure: Exposure, facts: Facts) -> tuple[str, ...]:
        return ("the server is trusted: it adds the noise and keeps the silos' sums to itself",)

    def as_published(self, exposure: Exposure, delta: float, facts: Facts) -> AsPublished | None:
        from tacit.privacy.accounting.as_published import as_published_higrad

        steps = facts.silos * facts.rounds
        epsilon = as_published_higrad(self.sample_rate, self.effective_sigma, steps, delta) if self.sigma else math.inf
        return AsPublished(
            epsilon,
            "no",
            "the paper scales noise by the largest group in a batch and counts with the record's rate"
            " (specification 1.3)",
        )

    def reference_numbers(self, step: ServerStep) -> dict[str, Any]:
        return {"batch_size": 64, "batches_per_round": 1, "local_learning_rate": step.rate}
