"""A trusted server adds the noise: DP-FedAvg and DP-FedSGD, which protect whole silos.

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
from tacit.kernels import ServerStep, Work, bounded, descend
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
from tacit.methods.clips import AdaptiveClip, SiloClip
from tacit.privacy import Event, Exposure, Gaussian, Noise, PoissonSampled, Unit, Unprotected
from tacit.privacy.proofs.subject_events import sampled_place, subject_rate

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
        check_pairs(self, exchange)

    def needs(self, unit: Unit) -> tuple[str, ...]:
        return ("silos",)

    def reference_numbers(self, step: ServerStep) -> dict[str, Any]:
        return training_numbers(self)

    @property
    def common(self) -> dict[str, Any]:
        """The fields that every upload has."""
        return {"rate": self.silo_sample_rate, "clip": silo_clip(self), "training": training(self)}


def check_pairs(options: Any, exchange: Carrier) -> None:
    """Refuse what does not go with noise that silos add in the server's place: all of them have to take part, and their
    messages have no room for the count of an adaptive clip."""
    for key, is_set in (("silo_sample_rate", options.silo_sample_rate < 1), ("adaptive_clip", options.adaptive_clip)):
        if exchange.noise_from_silos_only and is_set:
            problem = f"does not go with the {exchange.name} exchange, in which silos add the noise"
            raise UserError("not-supported", f"method.{key}", problem, "leave it out, or use the plain exchange")


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
            return Unprotected("coalitions of this size leave no silo, or are too many to be checked one by one")
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
        check_pairs(self, exchange)

    def needs(self, unit: Unit) -> tuple[str, ...]:
        return ("silos",)

    def reference_numbers(self, step: ServerStep) -> dict[str, Any]:
        return one_batch_numbers(self, step)

    def build(self, facts: Facts) -> Method:
        work = Upload(rate=self.silo_sample_rate, clip=silo_clip(self), training=one_batch(self.batch_size))
        return central(self.info, work, facts)
