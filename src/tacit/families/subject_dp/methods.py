"""Methods whose records are clipped one by one or batch by batch, for subjects and silos [SubjectDP-1, SubjectDP-2].

``central-group`` adds noise at a trusted server. The others add it in the silo, to every batch
(``methods.local_noise``): ``local-group`` adds up a subject's clipped gradients (at most ``group_cap`` of them),
``higrad`` averages them, ``user-ldp`` clips the gradient of the whole batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal

import jax.numpy as jnp

from tacit.errors import UserError
from tacit.kernels import PoissonBatches, ServerStep, Work
from tacit.kernels.clipped_sum import FINEST
from tacit.kernels.noisy_descent import clipped_records
from tacit.methods import option_keys as keys
from tacit.methods.base import (
    Carrier,
    Claim,
    ContributionCount,
    Divisors,
    Facts,
    Info,
    LocalResult,
    LocalWork,
    Method,
    Options,
    ServerRule,
    part,
)
from tacit.methods.central import TRUSTS
from tacit.methods.clips import AdaptiveClip, BatchClip, RecordClip, RoundedBatches, Shift
from tacit.methods.local_noise import COMMON, NoisyBatches, NoisyBatchesClaim, NoisySteps, Verdict, noisy_batches
from tacit.privacy import (
    AsPublished,
    Event,
    Exposure,
    Gaussian,
    GaussianMixture,
    Noise,
    PoissonSampled,
    Repeated,
    Unit,
    Unprotected,
)
from tacit.privacy.proofs import subject_events as subjects
from tacit.privacy.proofs.subject_events import binomial_mixture, sampled_place

RECORD_RATE = (
    "the paper counts with the record's rate; a subject with several records is in a batch more often"
    " (specification 1.3)"
)
GROUPS = (
    "the paper converts a record's epsilon to groups of the size seen in a batch, with the record's rate; "
    "a subject's group is in the data set, not in the batch (specification 1.3)"
)


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


@dataclass(frozen=True)
class LocalGroup(NoisyBatches):
    """LocalGroupDP (LocalSubDP of [SubjectDP-1]), with noise that does not depend on the batch.

    group_cap  at most this many records of one subject in a batch
    noise      ``constant``; or ``as-published``: the paper's noise for the largest group in each batch, which gives
               that group's size away, so that nothing is proved
    """

    info = replace(
        COMMON,
        name="local-group",
        summary="DP-SGD whose noise covers all of a subject's records in a batch (LocalGroupDP, LocalSubDP)",
        reference="[SubjectDP-2]; [SubjectDP-1]",
        units=("subject", "record"),
        clips="a record's gradient",
    )

    group_cap: keys.Count | None = None
    noise: Literal["constant", "as-published"] = "constant"

    @property
    def publishes(self) -> bool:
        return self.noise == "as-published"

    def check(self, exchange: Carrier) -> None:
        if self.noise == "as-published" and self.adaptive_clip is not None:
            problem = 'has no published noise to go with noise = "as-published"'
            raise UserError("conflict", "method.adaptive_clip", problem, "drop it")

    def build(self, facts: Facts) -> Method:
        work = self.work(self.record_clip(most=self.group_cap), GroupSteps, published=self.publishes)
        return noisy_batches(self.info, work, GroupClaim, facts)


@part
class GroupSteps(NoisySteps):
    """Steps whose noise may depend on the largest group in a batch, as published."""

    clip: RecordClip
    published: bool = False

    def noise_levels(self, facts: Facts) -> tuple[float, ...]:
        """The same for every batch, or the paper's sigma_Z for Z = 0, 1, 2, …; ``noise_multiplier`` is its sigma_1."""
        if not self.published:
            return (self.clip.sigma,)
        most = min(self.clip.most or facts.max_records or 1, facts.max_records or 1)
        epsilon = published_epsilon(self, 1, facts.delta, facts)
        steps = max(self.batch_counts(facts)) * facts.rounds
        levels = _published_levels(most, epsilon, facts.delta, max(self.rates(facts)), steps)
        if math.inf in levels:
            problem = f"the paper's accounting has no noise for {most} records of a subject at epsilon {epsilon:.3g}"
            raise UserError(
                "unreachable", "method.noise_multiplier", problem, "lower it, or group_cap, or the cap on records"
            )
        return levels


def published_epsilon(work: GroupSteps, group: int, delta: float, facts: Facts) -> float:
    """The paper's epsilon of this many records."""
    from tacit.families.subject_dp.published_noise import as_published_local_group

    steps = max(work.batch_counts(facts)) * facts.rounds
    return as_published_local_group(group, work.clip.sigma, delta, max(work.rates(facts)), steps)


@lru_cache(maxsize=16)
def _published_levels(most: int, epsilon: float, delta: float, rate: float, steps: int) -> tuple[float, ...]:
    from tacit.families.subject_dp.published_noise import as_published_local_group_noise

    levels = [as_published_local_group_noise(z, epsilon, delta, rate, steps) for z in range(1, most + 1)]
    return (levels[0], *levels)


@dataclass(frozen=True)
class GroupClaim(NoisyBatchesClaim):
    work: GroupSteps
    clip: RecordClip

    def event(self, exposure: Exposure) -> Event:
        if self.work.published:
            return Unprotected("the published noise depends on the private batch: its scale gives group sizes away")
        return super().event(exposure)

    def as_published(self, exposure: Exposure, delta: float) -> AsPublished | None:
        facts = self.facts
        if exposure.unit != "subject" or not facts.max_records:
            return None
        group = 1 if self.work.published else min(self.clip.most or facts.max_records, facts.max_records)
        return AsPublished(published_epsilon(self.work, group, delta, facts), "no", GROUPS)


@dataclass(frozen=True)
class HiGrad(NoisyBatches):
    """HiGradAvgDP: a subject's clipped gradients in a batch are averaged, so that it moves the sum by one clip."""

    info = replace(
        COMMON,
        name="higrad",
        summary="DP-SGD in every silo, each subject's clipped gradients averaged per batch (HiGradAvgDP)",
        reference="[SubjectDP-2]",
        units=("subject", "record"),
        clips="a record's gradient, then averaged over the subject's records in the batch",
    )

    def build(self, facts: Facts) -> Method:
        return noisy_batches(self.info, self.work(self.record_clip(averaged=True)), HiGradClaim, facts)


@dataclass(frozen=True)
class HiGradClaim(NoisyBatchesClaim):
    """One record more or less changes its subject's average: by C if it is the only one, else by up to 2 C / j."""

    verdicts: ClassVar[dict[Unit, Verdict]] = {
        "record": ("yes", "with one coin per record, the record's rate is the right one"),
        "subject": ("no", RECORD_RATE),
    }

    def of_a_silo(self, unit: Unit, rate: float, batches: int) -> Event:
        most = self.facts.max_records
        if unit != "subject" or not most:
            return super().of_a_silo(unit, rate, batches)
        if self.clip.adaptive is None:
            return subjects.averaged_per_subject(rate, most, self.batches.of_a_record, batches)
        shifts = (1 / self.batches.noise_over(Shift(1.0, self.clip.counted * j)) for j in range(1, most + 1))
        chances = subjects.binomial(most, rate).tolist()
        return Repeated(GaussianMixture(1.0, (0.0, *shifts), tuple(chances)), batches)

    def in_sum(self, rate: float) -> Event | None:
        facts = self.facts
        if self.clip.adaptive is not None or not facts.max_records:
            return None
        inclusion = subjects.subject_rate(rate, facts.max_records)
        noise = math.sqrt(facts.silos) * self.batches.of_a_record
        return subjects.binomial_mixture(facts.silos_of_a_subject, inclusion, noise)


@dataclass(frozen=True)
class UserLDP(NoisyBatches):
    """UserLDP: the gradient of the whole batch is clipped, so that a silo hides everything it holds."""

    info = replace(
        COMMON,
        name="user-ldp",
        summary="local DP of whole silos: each batch's gradient is clipped and noised (UserLDP)",
        reference="[SubjectDP-2]",
        units=("silo", "subject", "record"),
        clips="the gradient of a batch",
        replaced=("silo",),
    )

    @property
    def record_losses(self) -> str | None:
        return None

    def build(self, facts: Facts) -> Method:
        clip = BatchClip(norm=self.clip, sigma=self.noise_value, adaptive=self.adaptive_clip)
        return noisy_batches(self.info, self.work(clip), UserLDPClaim, facts)


@dataclass(frozen=True)
class UserLDPClaim(NoisyBatchesClaim):
    """A silo that is zeroed out is zero in every batch. Otherwise a clipped batch may turn around, whatever of it was
    replaced; a record may come to another silo."""

    verdicts: ClassVar[dict[Unit, Verdict]] = {
        "silo": ("no", "replacing a silo changes every batch: no sampling helps, and a clipped gradient moves by 2 C"),
        "subject": ("no", RECORD_RATE + "; and a clipped batch gradient moves by 2 C"),
        "record": ("no", RECORD_RATE + "; and a clipped batch gradient moves by 2 C"),
    }

    def of_a_silo(self, unit: Unit, rate: float, batches: int) -> Event:
        gaussian = Gaussian(self.batches.noise_for(unit, "zero-out"))
        if unit == "silo":
            return Repeated(gaussian, batches)
        records = 1 if unit == "record" else self.facts.max_records
        if not records:
            return Unprotected("the number of records of a subject is not bounded")
        return Repeated(PoissonSampled(subjects.subject_rate(rate, records), gaussian), batches)

    def in_sum(self, rate: float) -> Event | None:
        return None

    def replaced(self, unit: Unit) -> Event:
        gaussian = Gaussian(self.batches.noise_for(unit, "replace"))
        silos = self.facts.silos_with(unit, True)
        return Repeated(gaussian, max(self.work.batch_counts(self.facts)) * silos)
