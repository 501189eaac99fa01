"""A trusted server adds the noise: DP-FedAvg and DP-FedSGD, which protect whole silos, and CentralSubDP.

Every silo clips its whole upload to ``clip``; the server adds the uploads and one draw of noise, and divides by a
public constant: ``silo_sample_rate`` times the number of silos, never by how many really took part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from tacit.errors import UserError
from tacit.kernels import PoissonBatches, ServerStep, Work, bounded, descend
from tacit.kernels.exact_sums import FINEST
from tacit.kernels.noisy_descent import clipped_records
from tacit.methods import option_keys as keys
from tacit.methods.averaging import Training, one_batch, one_batch_numbers, training, training_numbers
from tacit.methods.base import (
    Carrier,
    Claim,
    ContributionCount,
    Divisors,
    Drawing,
    Facts,
    Info,
    LocalResult,
    LocalWork,
    Method,
    Options,
    ServerRule,
    difference,
    part,
)
from tacit.methods.clips import AdaptiveClip, RecordClip, RoundedBatches, SiloClip
from tacit.privacy import AsPublished, Event, Exposure, Gaussian, Noise, PoissonSampled, Unit, Unprotected
from tacit.privacy.proofs.subject_events import binomial_mixture, sampled_place, subject_rate

TRUSTS = ("server", "server+silos")
STAYS = "every silo keeps its own model to itself: it is made from that silo's records without noise"


def silo_info(name: str, summary: str, reference: str, personal: bool = False) -> Info:
    """What is declared about methods that clip a silo's whole update."""
    return Info(
        name,
        summary,
        reference,
        units=("silo", "subject", "record"),
        clips="a silo's whole update",
        adds="once, by the server",
        place="once",
        sends=("sum", "integers"),
        trusts=TRUSTS,
        personal=personal,
    )


@dataclass(frozen=True)
class CentralTraining(Options):
    """Keys of methods whose silos train locally and whose uploads are clipped as a whole.

    adaptive_clip  let the clip follow a quantile of the norms; ``clip`` is where it starts
    """

    noise_key = "noise_multiplier"

    target_epsilon: keys.Target = None
    clip: keys.ClipKey = 1.0
    noise_multiplier: keys.Multiplier = None
    adaptive_clip: AdaptiveClip | None = None
    batch_size: keys.BatchSize = None
    silo_sample_rate: keys.SiloRate = 1.0
    local_epochs: keys.LocalEpochs = 1
    batches_per_round: keys.BatchesPerRound = None
    local_learning_rate: keys.LearningRate = 0.1

    def check(self, exchange: Carrier) -> None:
        check_pairs(self, exchange.name)

    def needs(self, unit: Unit) -> tuple[str, ...]:
        return ("silos",)

    def reference_numbers(self, step: ServerStep) -> dict[str, Any]:
        return training_numbers(self)

    @property
    def common(self) -> dict[str, Any]:
        """The fields that every upload has."""
        return {"rate": self.silo_sample_rate, "clip": silo_clip(self), "training": training(self)}


def check_pairs(options: Any, exchange: str) -> None:
    """Refuse what does not go with noise that cancels in pairs."""
    if exchange == "pairwise" and options.silo_sample_rate < 1:
        problem = "silos whose noise cancels in pairs must all take part"
        raise UserError("not-supported", "method.silo_sample_rate", problem, "leave it out, or use the plain exchange")
    if exchange == "pairwise" and options.adaptive_clip is not None:
        problem = "the count that an adaptive clip follows has no place in sums with pairwise noise"
        raise UserError("not-supported", "method.adaptive_clip", problem, "leave it out, or use the plain exchange")


def silo_clip(options: Any) -> SiloClip:
    return SiloClip(norm=options.clip, sigma=options.noise_value, adaptive=options.adaptive_clip)


def central(
    info: Info,
    work: Upload,
    facts: Facts,
    server: ServerRule | None = None,
    divisors: Divisors | None = None,
    contributions: ContributionCount | None = None,
    copies: int = 1,
) -> Method:
    """Clipped uploads of silos, noise once by the server, a constant divisor."""
    expected = work.rate * facts.silos
    return Method(
        info,
        work,
        server or ServerRule(clip=work.clip),
        CentralClaim(info, facts, work.clip, work.rate),
        work.clip,
        Noise(work.clip.sigma * work.clip.norm, "once"),
        divisors or Divisors(expected, expected),
        work.clip.norm,
        contributions or ContributionCount(expected, facts.silos, "silos"),
        copies=copies,
    )


@part
class Upload(LocalWork):
    """A silo's whole update, clipped; this one trains from the global model."""

    clip: SiloClip
    training: Training

    def schedule(self, facts: Facts) -> Drawing:
        return self.training.schedule

    def upload(self, work: Work, shared: Any, state: Any) -> tuple[jax.Array, Any]:
        """The silo's whole update, before it is clipped, from what the server ``shared``; and what the silo keeps."""
        return difference(descend(work, shared, self.training.learning_rate), shared), state

    def local(self, work: Work, broadcast: Any, state: Any) -> LocalResult:
        shared, clip = broadcast
        update, kept = self.upload(work, shared, state)
        clipped, finite, below = bounded(update, clip)
        # what could not be computed is neither sent nor kept
        kept = jax.tree.map(lambda new, old: jnp.where(finite, new, old), kept, state)
        vector = self.clip.send(clipped, below, clip)
        here = work.records > 0
        return LocalResult(jnp.where(here, vector, 0.0), kept, here & ~finite)


@dataclass(frozen=True)
class CentralClaim(Claim):
    """Formal guarantee (specification 6, row S17): with Poisson sampling of silos, one round is a Poisson-sampled
    Gaussian with multiplier ``noise_multiplier`` for a view that sees only the models. The server sees the uploads:
    nothing is guaranteed. A subject with records in m silos moves up to m uploads by 2 ``clip`` each. Its silos take
    part with and without it, so the two worlds differ as under replacement: rate 1 - (1-q)^m and multiplier s / (2 m),
    accounted for as sampling under replacement is (specification 0.4: no single sampled pair dominates it). Wang,
    Balle, Kasiviswanathan 2019 ask that the sums with the subject, without it, and without its silos are pairwise
    within the sensitivity: 2 m, m and m clips.

    In the pairwise exchange silos add the noise, and no party is trusted. A silo moves what a view sees of all messages
    by ``Exposure.pairwise`` times what it moves a sum with the planned noise by; a subject in m silos by at most the
    sum of what m silos do, which is what the formula above counts.

    With an adaptive clip every upload counts as below or above it; a silo moves the count by its sensitivity, a subject
    by at most 1 in each of its silos.
    """

    clip: SiloClip
    rate: float

    def event(self, exposure: Exposure) -> Event:
        if exposure.reveals == "each":
            return Unprotected("the server adds the noise, so it sees every silo's update without any")
        if self.clip.sigma == 0:
            return Unprotected(f"{self.info.name} with noise_multiplier 0 adds no noise")
        more = 1.0 if exposure.pairwise is None else exposure.pairwise
        if math.isinf(more):
            return Unprotected("coalitions of this size leave nobody, or are too many to be looked at one by one")
        shift = self.clip.sensitivity(exposure.unit, exposure.relation, self.facts)
        gaussian = Gaussian(self.clip.noise_over(shift) / more)
        if exposure.unit == "silo" and not exposure.replaces:
            return PoissonSampled(self.rate, gaussian)
        silos = self.facts.silos_with(exposure.unit, exposure.replaces)
        return sampled_place(subject_rate(self.rate, silos), gaussian)

    def sampling(self, exposure: Exposure) -> str:
        return "none" if self.rate == 1 else f"poisson silos {self.rate:g}"

    def assumptions(self, exposure: Exposure) -> tuple[str, ...]:
        stays = (STAYS,) if self.info.personal else ()
        if exposure.pairwise is not None:
            return ("every silo adds its own noise and that of its pairs before anything leaves it", *stays)
        return ("the server is trusted: it adds the noise and keeps the silos' updates to itself", *stays)


@dataclass(frozen=True)
class DPFedAvg(CentralTraining):
    """FedAvg whose silos are protected by a trusted server."""

    info = silo_info(
        "dp-fedavg", "FedAvg with clipped updates and noise added by a trusted server", "McMahan et al. 2018"
    )

    def build(self, facts: Facts) -> Method:
        return central(self.info, Upload(**self.common), facts)


@dataclass(frozen=True)
class DPFedSGD(Options):
    """FedSGD whose silos are protected by a trusted server.

    adaptive_clip  let the clip follow a quantile of the norms; ``clip`` is where it starts
    """

    info = silo_info(
        "dp-fedsgd",
        "FedSGD with clipped gradients and noise added by a trusted server",
        "McMahan et al. 2018; [Slides]",
    )
    noise_key = "noise_multiplier"

    target_epsilon: keys.Target = None
    clip: keys.ClipKey = 1.0
    noise_multiplier: keys.Multiplier = None
    adaptive_clip: AdaptiveClip | None = None
    batch_size: keys.BatchSize = None
    silo_sample_rate: keys.SiloRate = 1.0

    def check(self, exchange: Carrier) -> None:
        check_pairs(self, exchange.name)

    def needs(self, unit: Unit) -> tuple[str, ...]:
        return ("silos",)

    def reference_numbers(self, step: ServerStep) -> dict[str, Any]:
        return one_batch_numbers(self, step)

    def build(self, facts: Facts) -> Method:
        work = Upload(rate=self.silo_sample_rate, clip=silo_clip(self), training=one_batch(self.batch_size))
        return central(self.info, work, facts)


# -- CentralSubDP ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CentralGroup(Options):
    """CentralSubDP of [SubjectDP-1] with noise that does not depend on the batch.

    Every silo sends the sum of one Poisson batch's clipped record gradients; the server adds noise to each, and steps
    along their sum over the public expected number of records.

    sample_rate    public rate at which a record enters a batch
    adaptive_clip  let the clip follow a quantile of the norms; ``clip`` is where it starts
    """

    info = Info(
        "central-group",
        "silos send sums of clipped record gradients, a trusted server adds the noise (CentralSubDP)",
        "[SubjectDP-1]",
        units=("subject", "record"),
        clips="a record's gradient",
        adds="once, by the server",
        place="once",
        trusts=TRUSTS,
    )
    noise_key = "noise_multiplier"

    target_epsilon: keys.Target = None
    clip: keys.ClipKey = 1.0
    noise_multiplier: keys.Multiplier = None
    adaptive_clip: AdaptiveClip | None = None
    sample_rate: keys.Rate = 0.05

    @property
    def record_losses(self) -> str | None:
        return "name"

    def needs(self, unit: Unit) -> tuple[str, ...]:
        return ("silos", "records_per_silo", *(("max_records",) if unit == "subject" else ()))

    def reference_numbers(self, step: ServerStep) -> dict[str, Any]:
        return {"batch_size": 64, "batches_per_round": 1, "local_learning_rate": step.rate}

    def build(self, facts: Facts) -> Method:
        clip = RecordClip(norm=self.clip, sigma=self.noise_value, adaptive=self.adaptive_clip)
        work = BatchSum(clip=clip, sample_rate=self.sample_rate)
        noise = Noise(math.sqrt(facts.silos) * clip.sigma * clip.norm, "once")
        records = sum(facts.records_per_silo or ())
        expected = self.sample_rate * records
        rounded = RoundedBatches(clip, facts, work.batch_sizes(facts), noise.in_a_round)
        return Method(
            self.info,
            work,
            ServerRule(clip=clip, descends=True),
            CentralGroupClaim(self.info, facts, rounded, self.sample_rate),
            clip,
            noise,
            Divisors(expected, expected),
            clip.norm,
            ContributionCount(expected, records, "records") if records else None,
        )


@part
class BatchSum(LocalWork):
    """The sum of one Poisson batch's clipped record gradients."""

    clip: RecordClip
    sample_rate: float

    def schedule(self, facts: Facts) -> PoissonBatches:
        sizes = self.batch_sizes(facts)
        return PoissonBatches((self.sample_rate,) * facts.silos, (1,) * facts.silos, sizes, noise=(0.0,))

    def batch_sizes(self, facts: Facts) -> tuple[float, ...]:
        return tuple(self.sample_rate * count for count in facts.records_per_silo or ())

    def local(self, work: Work, broadcast: Any, state: Any) -> LocalResult:
        params, clip = broadcast
        adaptive, step = self.clip.adaptive, work.step
        if step is None:  # without noise: nothing is guaranteed, and no count travels
            found = clipped_records(work, params, 0, clip)
            numbers = found.vector.numbers(FINEST * self.clip.norm)
            return LocalResult(numbers if adaptive is None else jnp.append(numbers, 0.0), state, found.not_finite)
        counts = None if adaptive is None else self.clip.counts(step)
        found = clipped_records(work, params, 0, clip, counts)
        # from steps of FINEST clips to those of the sum, which are 2^n as large, in units of the planned clip
        vector = found.vector.coarser(jnp.round(jnp.log2(step / (FINEST * self.clip.norm))))
        return LocalResult(vector if adaptive is None else vector.followed_by(found.counted), state, found.not_finite)


@dataclass(frozen=True)
class CentralGroupClaim(Claim):
    """Formal guarantee (specification 1.2b): each of a subject's at most m n records is in its silo's batch by a coin
    of its own, against the noise of all silos: a mixture over Binom(m n, q) with standard deviation sqrt(silos) sigma.
    An adaptive clip counts records, with noise of sqrt(silos) count_noise: j records move it by j times its
    sensitivity.
    """

    batches: RoundedBatches
    sample_rate: float

    def event(self, exposure: Exposure) -> Event:
        facts, clip = self.facts, self.batches.clip
        if exposure.reveals == "each":
            return Unprotected("the server adds the noise, so it sees every silo's sum without any")
        if clip.sigma == 0:
            return Unprotected(f"{self.info.name} with noise_multiplier 0 adds no noise")
        noise = math.sqrt(facts.silos) * self.batches.of_a_record
        records = 1 if exposure.unit == "record" else facts.silos_of_a_subject * (facts.max_records or 0)
        if exposure.unit == "silo" or records == 0:
            return Unprotected(f"{self.info.name} does not bound what one {exposure.unit} contributes")
        if exposure.replaces:  # a cap lets another record of each of two subjects take or lose its place
            swapped = 2 if exposure.unit == "record" and facts.moves_up else 1
            return Gaussian(noise / (2 * records * swapped))
        if exposure.unit == "record" and facts.moves_up:
            return sampled_place(self.sample_rate, Gaussian(noise / 2))
        return binomial_mixture(records, self.sample_rate, noise)

    def sampling(self, exposure: Exposure) -> str:
        return "none" if exposure.replaces else f"poisson records {self.sample_rate:g}"

    def assumptions(self, exposure: Exposure) -> tuple[str, ...]:
        return ("the server is trusted: it adds the noise and keeps the silos' sums to itself",)

    def as_published(self, exposure: Exposure, delta: float) -> AsPublished | None:
        from tacit.privacy.accounting.as_published import as_published_higrad

        clip, steps = self.batches.clip, self.facts.silos * self.facts.rounds
        epsilon = as_published_higrad(self.sample_rate, clip.effective_sigma, steps, delta) if clip.sigma else math.inf
        return AsPublished(
            epsilon,
            "no",
            "the paper scales noise by the largest group in a batch and counts with the record's rate"
            " (specification 1.3)",
        )

    def check_size(self, parameters: int | None) -> None:
        self.batches.check_size(parameters)
