"""Silos that do not trust the server: every batch is clipped and noised before anything leaves.

Every silo takes steps on Poisson batches of its own records, with the same noise in every batch; the server averages
the silos' updates with public, equal weights. ``local-record`` clips each record's gradient (federated DP-SGD);
``families.subject_dp`` has the methods that bound a subject or a silo.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from tacit.errors import UserError
from tacit.kernels import PoissonBatches, ServerStep, Work, noisy_descend
from tacit.kernels.noisy_descent import BatchRule, Counting, clipped_batch, clipped_records
from tacit.methods import option_keys as keys
from tacit.methods.base import (
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
    ServerState,
    difference,
    part,
)
from tacit.methods.clips import AdaptiveClip, BatchClip, RecordClip, RoundedBatches
from tacit.privacy import (
    AsPublished,
    Composed,
    Event,
    Exposure,
    Gaussian,
    Largest,
    Noise,
    PoissonSampled,
    Repeated,
    Unit,
    Unprotected,
)
from tacit.privacy.proofs import subject_events as subjects

Verdict = tuple[Literal["yes", "only-if", "no"], str]
REPLACED = "it is about adding or removing; replacing moves a sum by twice the clip"
# What is declared about all of them, apart from names, units and what is clipped.
COMMON = Info("", "", "", adds="each batch, in the silo", place="inside", sums_up=True)


@dataclass(frozen=True)
class NoisyBatches(Options):
    """Keys that all of them have.

    adaptive_clip  let the clip follow a quantile of the norms; ``clip`` is where it starts
    local_epochs   each of round(1 / sample_rate) batches
    """

    noise_key = "noise_multiplier"

    target_epsilon: keys.Target = None
    clip: keys.ClipKey = 1.0
    noise_multiplier: keys.Multiplier = None
    adaptive_clip: AdaptiveClip | None = None
    sample_rate: keys.SampleRates = 0.05
    local_epochs: keys.LocalEpochs = 1
    batches_per_round: keys.BatchesPerRound = None
    local_learning_rate: keys.LearningRate = 0.1

    @property
    def record_losses(self) -> str | None:
        return "name"

    def needs(self, unit: Unit) -> tuple[str, ...]:
        caps = ("max_records",) if unit == "subject" else ()
        return ("silos", "records_per_silo", *caps)

    def resolve(self, facts: Facts) -> Facts:
        given = self.sample_rate
        if isinstance(given, tuple) and len(given) != facts.silos:
            where = "one place" if self.info.pools else f"{facts.silos} silos"
            raise UserError(
                "mismatch", "method.sample_rate", f"lists {len(given)} rates for {where}", "give one for each, or one"
            )
        return facts

    def reference_numbers(self, step: ServerStep) -> dict[str, Any]:
        return {"batch_size": 64, "local_epochs": self.local_epochs, "local_learning_rate": self.local_learning_rate}

    def work(self, clip: RecordClip | BatchClip, kind: type[NoisySteps] | None = None, **more: Any) -> NoisySteps:
        """The steps on noisy batches that these keys ask for."""
        return (kind or NoisySteps)(
            clip=clip,
            sample_rate=self.sample_rate,
            epochs=self.local_epochs,
            batches=self.batches_per_round,
            learning_rate=self.local_learning_rate,
            **more,
        )

    def record_clip(self, **more: Any) -> RecordClip:
        return RecordClip(norm=self.clip, sigma=self.noise_value, adaptive=self.adaptive_clip, **more)


def noisy_batches(info: Info, work: NoisySteps, claim: type[NoisyBatchesClaim], facts: Facts, **more: Any) -> Method:
    """Noise in every batch; the server averages the silos' updates with equal weights."""
    clip, noise = work.clip, Noise(work.clip.sigma * work.clip.norm, "inside")
    sizes, counts = work.batch_sizes(facts), work.batch_counts(facts)
    entries = sum(counts) if clip.of == "batch" else sum(n * size for n, size in zip(counts, sizes, strict=False))
    fewest = min(zip(sizes, facts.records_per_silo or (), strict=True), default=None)
    return Method(
        info,
        work,
        NoisyMean(clip=clip),
        claim(info, facts, work, clip, RoundedBatches(clip, facts, sizes, noise.in_a_round), **more),
        clip,
        noise,
        Divisors(facts.silos, entries),
        clip.norm,
        None if fewest is None else ContributionCount(*fewest, "records of a silo"),
    )


@part
class NoisySteps(LocalWork):
    """Steps of a silo on Poisson batches, each clipped and noised.

    rules   what a batch gives, by what is clipped
    radius  every step ends within this distance from zero
    """

    rules: ClassVar[Mapping[str, BatchRule]] = {"record": clipped_records, "batch": clipped_batch}

    clip: RecordClip | BatchClip
    sample_rate: float | tuple[float, ...]
    epochs: int = 1
    batches: int | None = None
    learning_rate: float
    radius: float | None = None

    def rates(self, facts: Facts) -> tuple[float, ...]:
        """Each silo's rate."""
        given = self.sample_rate
        return given if isinstance(given, tuple) else (given,) * facts.silos

    def batch_counts(self, facts: Facts) -> tuple[int, ...]:
        """Each silo's number of batches per round."""
        if self.batches is not None:
            return (self.batches,) * facts.silos
        return tuple(self.epochs * max(1, round(1 / rate)) for rate in self.rates(facts))

    def batch_sizes(self, facts: Facts) -> tuple[float, ...]:
        """Each silo's expected size of a batch: public, and what its batches are divided by."""
        if not facts.records_per_silo:
            return ()
        return tuple(rate * count for rate, count in zip(self.rates(facts), facts.records_per_silo, strict=True))

    def noise_levels(self, facts: Facts) -> tuple[float, ...]:
        """The noise multiplier of a batch, by the size of the largest group in it; one for all."""
        return (self.clip.sigma,)

    def schedule(self, facts: Facts) -> PoissonBatches:
        sizes, counts, levels = self.batch_sizes(facts), self.batch_counts(facts), self.noise_levels(facts)
        if not isinstance(self.clip, RecordClip):
            return PoissonBatches(self.rates(facts), counts, sizes, levels)
        averaged, cap = self.clip.averaged, self.clip.most
        return PoissonBatches(self.rates(facts), counts, sizes, levels, averaged=averaged, cap=cap)

    def local(self, work: Work, broadcast: Any, state: Any) -> LocalResult:
        params, clip = broadcast
        adaptive = self.clip.adaptive
        counting = None if adaptive is None else Counting(adaptive.quantile, adaptive.count_noise)
        rule = self.rules[self.clip.of]
        trained, tally = noisy_descend(work, params, self.learning_rate, clip, rule, self.radius, counting)
        update = difference(trained, params)
        return LocalResult(update if adaptive is None else jnp.append(update, tally.excess), state, tally.not_finite)


@part
class NoisyMean(ServerRule):
    """The server steps along the mean of the silos' noisy updates; their noisy counts move the clip."""

    def update(self, step: ServerStep, server: ServerState, total: jax.Array, divisors: Divisors) -> ServerState:
        assert self.clip is not None
        clip, adaptive = server.extra, self.clip.adaptive
        if adaptive is not None:
            total, clip = total[:-1], adaptive.next(clip, total[-1] / divisors.extra)
        return self.stepped(step, server, total / divisors.total, clip)


@dataclass(frozen=True)
class NoisyBatchesClaim(Claim):
    """Formal guarantee (specification 1.1, 1.2), for one silo and T batches, noise multiplier s, at most n records of a
    subject in a silo, each in a batch with rate q:

        local-record, one record          PG(q, s, T)
        higrad, one subject               PG(1 - (1-q)^n, s, T)
        local-group, one subject          mixture of Gaussians over min(j, Z), j ~ Binom(n, q), T times
        user-ldp, one subject             PG(1 - (1-q)^n, s/2, T)
        user-ldp, one silo (replace)      G(s/2, T)

    A server that sees each silo's update sees all batches of all silos that hold the subject: they add up. A view that
    sees only the sum, and one batch per round, sees a mixture against the noise of all silos.

    With an adaptive clip every batch gives, in addition to its vector, a noisy count of what was below the clip; a silo
    sends the sum of its noisy counts along, and the server moves the clip between rounds. Vector and count of a batch
    are one Gaussian vector (``AdaptiveClip``). j records of a subject move the count by j times its sensitivity, so for
    summed records both shifts grow with j and the mixture keeps its form with a smaller multiplier; for ``higrad`` only
    the count grows, and the mixture says so; a clipped batch is a count of one, which changes by at most 1.

    This class is about summed records: ``local-record``, ``local-group``, ``pooled-dp-sgd``.
    """

    # whether the published number holds for a unit, and why
    verdicts: ClassVar[dict[Unit, Verdict]] = {
        "record": (
            "yes",
            "Renyi accounting of Poisson batches; the proved number is the same mechanism, counted tighter",
        ),
        "subject": ("no", "it is the epsilon of one record, not of a subject with several"),
    }

    work: NoisySteps
    clip: RecordClip | BatchClip
    batches: RoundedBatches

    def of_a_silo(self, unit: Unit, rate: float, batches: int) -> Event:
        """What one silo's batches of one round show about one unit that lives in it."""
        facts, clip = self.facts, self.clip
        assert isinstance(clip, RecordClip)
        if unit == "record":
            # a record that pushes another one out of the batch moves the sum by two clips, and the count by 1
            noise = self.batches.noise_for("record", "zero-out")
            return Repeated(PoissonSampled(rate, Gaussian(noise)), batches)
        if unit == "subject" and facts.max_records:
            return subjects.summed_records(rate, facts.max_records, self.batches.of_a_record, batches, clip.most)
        return Unprotected(f"{self.info.name} does not bound what one {unit} contributes")

    def in_sum(self, rate: float) -> Event | None:
        """What the sum over all silos shows about a subject where a round has one batch; None: nothing better."""
        facts = self.facts
        assert isinstance(self.clip, RecordClip)
        if not facts.max_records or self.clip.most is not None:
            return None
        parts = facts.silos_of_a_subject * facts.max_records
        return subjects.binomial_mixture(parts, rate, math.sqrt(facts.silos) * self.batches.of_a_record)

    @property
    def whole_sum(self) -> Event | None:
        """:meth:`in_sum`, where every silo has one batch a round and all are alike: the noise of all silos hides a
        subject, so the sum is released with all of them only. None: each silo's own noise is all that counts."""
        facts, rates = self.facts, self.work.rates(self.facts)
        if set(self.work.batch_counts(facts)) != {1}:
            return None
        if not len(set(rates)) == len(set(facts.records_per_silo or ())) == 1:
            return None
        return self.in_sum(rates[0])

    @property
    def requires_all_silos(self) -> bool:
        return self.clip.sigma > 0 and self.whole_sum is not None

    def event(self, exposure: Exposure) -> Event:
        facts, unit = self.facts, exposure.unit
        if self.info.pools and exposure.reveals == "each":
            return Unprotected("the curator holds all records")
        if self.clip.sigma == 0:
            return Unprotected(f"{self.info.name} with noise_multiplier 0 adds no noise")
        if exposure.replaces:
            return self.replaced(unit)
        rates, batches = self.work.rates(facts), self.work.batch_counts(facts)
        if unit == "subject" and exposure.reveals == "sum" and exposure.colluding == 0:
            whole = self.whole_sum
            if whole is not None:
                return whole
        if unit == "record" and facts.moves_up:
            # a record goes, and a cap lets another one of its subject and silo take its place
            place = Gaussian(self.batches.noise_for("record", "replace"))
            found: list[Event] = [
                Repeated(subjects.sampled_place(q, place), n) for q, n in zip(rates, batches, strict=True)
            ]
        else:
            found = [self.of_a_silo(unit, rate, count) for rate, count in zip(rates, batches, strict=True)]
        silos = tuple(dict.fromkeys(found))
        worst = silos[0] if len(silos) == 1 else Largest(silos)
        if unit != "subject":
            return worst
        touched = facts.silos_of_a_subject
        if touched == facts.silos and len(silos) > 1:
            return Composed(tuple(found))
        return Repeated(worst, touched)

    def replaced(self, unit: Unit) -> Event:
        """Another unit's data instead: without amplification, twice the largest sensitivity. Another subject's record
        may come; where a cap moves records up, one of each of the two subjects is then replaced."""
        facts, batches = self.facts, max(self.work.batch_counts(self.facts))
        if unit == "silo":
            return Unprotected(f"{self.info.name} does not bound what one silo contributes")
        if unit == "subject" and not facts.max_records:
            return Unprotected("the number of records of a subject is not bounded")
        noise = self.batches.noise_for(unit, "replace")
        if unit == "record":
            return Repeated(Gaussian(noise / (2 if facts.moves_up else 1)), batches)
        return Repeated(Gaussian(noise), batches * facts.silos_of_a_subject)

    def sampling(self, exposure: Exposure) -> str:
        if exposure.replaces or exposure.unit == "silo":
            return "none"
        given = self.work.sample_rate
        rates = given if isinstance(given, tuple) else (given,)
        return "poisson records " + " ".join(f"{rate:g}" for rate in sorted(set(rates)))

    def assumptions(self, exposure: Exposure) -> tuple[str, ...]:
        curator = ("the curator is trusted with all records",) if self.info.pools else ()
        if exposure.unit != "subject":
            return curator
        most = f"at most {self.facts.max_records} records of a subject in a silo (enforced)"
        return (*curator, most, self.facts.in_few_silos)

    def as_published(self, exposure: Exposure, delta: float) -> AsPublished | None:
        from tacit.privacy.accounting.as_published import as_published_higrad

        if exposure.unit not in self.info.units:
            return None
        steps = max(self.work.batch_counts(self.facts)) * self.facts.rounds
        rate, clip = max(self.work.rates(self.facts)), self.clip
        epsilon = as_published_higrad(rate, clip.effective_sigma, steps, delta) if clip.sigma else math.inf
        if exposure.replaces and exposure.unit != "silo":
            return AsPublished(epsilon, "no", REPLACED)
        return AsPublished(epsilon, *self.verdicts[exposure.unit])

    def check_size(self, parameters: int | None) -> None:
        self.batches.check_size(parameters)


@dataclass(frozen=True)
class LocalRecord(NoisyBatches):
    """Federated DP-SGD: every record's gradient is clipped."""

    info = replace(
        COMMON,
        name="local-record",
        summary="DP-SGD in every silo, the server averages (LocalItemDP)",
        reference="[SubjectDP-2]; [ULDP-FL]",
        units=("record", "subject"),
        clips="a record's gradient",
    )

    def build(self, facts: Facts) -> Method:
        return noisy_batches(self.info, self.work(self.record_clip()), NoisyBatchesClaim, facts)


@dataclass(frozen=True)
class PooledDPSGD(NoisyBatches):
    """DP-SGD by a curator who may pool all records: what private federation is compared with.

    projection  after every step, back into the ball of this l2 norm (for convex losses, as in [Slides])
    """

    info = replace(
        COMMON,
        name="pooled-dp-sgd",
        summary="DP-SGD by a trusted curator who holds all records: what federation is compared with",
        reference="Abadi et al. 2016; [Slides]",
        units=("record", "subject"),
        clips="a record's gradient",
        adds="each batch, by the curator",
        trusts=("server", "server+silos"),
        gathers="all",
    )

    projection: keys.Positive | None = None

    def build(self, facts: Facts) -> Method:
        work = self.work(self.record_clip(), radius=self.projection)
        return noisy_batches(self.info, work, NoisyBatchesClaim, facts)
