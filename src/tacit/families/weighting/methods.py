"""The methods of [ULDP-FL].

``uldp-naive`` clips every silo's whole update and adds noise for all silos at once. ``uldp-group`` runs DP-SGD on
records in every silo, on at most ``group_size`` records of a subject over all silos. ``uldp-avg`` and ``uldp-sgd`` look
at subjects one by one (``per_subject``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, Literal

import jax
import jax.numpy as jnp

from tacit.errors import UserError
from tacit.kernels import ServerStep, Work, clipped, descend
from tacit.methods import option_keys as keys
from tacit.methods.averaging import Training, training, training_numbers
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
from tacit.methods.clips import SiloClip
from tacit.methods.local_noise import COMMON as BATCHES
from tacit.methods.local_noise import NoisyBatches, NoisyBatchesClaim, noisy_batches
from tacit.methods.per_subject import COMMON as SUBJECTS
from tacit.methods.per_subject import PerSubject, SubjectClaim, SubjectWork, people_of, per_subject
from tacit.privacy import AsPublished, Event, Exposure, Gaussian, Noise, Repeated, Unit, Unprotected
from tacit.privacy.proofs import correlated_noise as correlated
from tacit.privacy.proofs import subject_events as subjects


@dataclass(frozen=True)
class UldpNaive(Options):
    """ULDP-NAIVE: clipped updates of whole silos, with noise relative to ``clip`` times the number of silos."""

    info = Info(
        "uldp-naive",
        "FedAvg with clipped silo updates and noise for all silos at once (ULDP-NAIVE)",
        "[ULDP-FL]",
        units=("subject", "silo", "record"),
        clips="a silo's whole update",
        adds="shares, one per silo",
        place="shares",
        sends=("sum", "integers"),
    )
    noise_key = "noise_multiplier"

    target_epsilon: keys.Target = None
    clip: keys.ClipKey = 1.0
    noise_multiplier: keys.Multiplier = None
    batch_size: keys.BatchSize = None
    silo_sample_rate: keys.SiloRate = 1.0
    local_epochs: keys.LocalEpochs = 1
    batches_per_round: keys.BatchesPerRound = None
    local_learning_rate: keys.LearningRate = 0.1

    def needs(self, unit: Unit) -> tuple[str, ...]:
        return ("silos",)

    def reference_numbers(self, step: ServerStep) -> dict[str, Any]:
        return training_numbers(self)

    def build(self, facts: Facts) -> Method:
        clip = SiloClip(norm=self.clip, sigma=self.noise_value)
        return Method(
            self.info,
            ClippedUpdate(rate=self.silo_sample_rate, clip=clip, training=training(self)),
            ServerRule(),
            NaiveClaim(self.info, facts, clip),
            clip,
            Noise(clip.sigma * clip.norm * facts.silos, "shares"),
            Divisors(facts.silos),
            clip.norm,
            ContributionCount(facts.silos, facts.silos, "silos"),
        )


@part
class ClippedUpdate(LocalWork):
    """A silo's whole update, clipped to a constant."""

    clip: SiloClip
    training: Training

    def schedule(self, facts: Facts) -> Drawing:
        return self.training.schedule

    def local(self, work: Work, broadcast: Any, state: Any) -> LocalResult:
        update = difference(descend(work, broadcast, self.training.learning_rate), broadcast)
        here = work.records > 0
        vector = jnp.where(here, clipped(update, self.clip.norm), 0.0)
        return LocalResult(vector, state, here & ~jnp.isfinite(update).all())


@dataclass(frozen=True)
class NaiveClaim(Claim):
    """Formal guarantee (specification 4.1), zero-out of one subject: a silo's clipped update depends on all subjects in
    it and may turn around, so the sum moves by 2 clip S against noise of standard deviation s clip S: G(s / 2, T), for
    a view of the sum or of each silo. All silos are charged, not only those with records of the subject."""

    clip: SiloClip

    def event(self, exposure: Exposure) -> Event:
        sigma, silos = self.clip.sigma, self.facts.silos
        if sigma == 0:
            return Unprotected(f"{self.info.name} with noise_multiplier 0 adds no noise")
        if exposure.colluding >= silos:
            return Unprotected("all silos collude: no silo is left to protect")
        if exposure.unit == "subject":
            return subjects.naive_silos(sigma, 1)
        # one silo: against the noise of all (sum), of itself (each), of those that do not collude
        if exposure.reveals == "each":
            noise = sigma * math.sqrt(silos)
        else:
            noise = sigma * math.sqrt(silos * (silos - exposure.colluding))
        if exposure.unit == "silo":
            return Gaussian(noise / self.clip.sensitivity("silo", exposure.relation, self.facts).moved)
        changed = self.facts.record_silos_moved(exposure.replaces)  # each of which may turn around
        return Gaussian(noise / (2.0 * (math.sqrt(changed) if exposure.reveals == "each" else changed)))

    def assumptions(self, exposure: Exposure) -> tuple[str, ...]:
        return ("every silo adds its share of the noise",)

    def as_published(self, exposure: Exposure, delta: float) -> AsPublished | None:
        from tacit.privacy.accounting.as_published import as_published_rdp

        if exposure.unit != "subject":
            return None
        sigma = self.clip.sigma
        epsilon = as_published_rdp(1.0, sigma, self.facts.rounds, delta) if sigma else math.inf
        return AsPublished(
            epsilon, "no", "a silo's clipped update may turn around: it moves by 2 C, not C (specification 3)"
        )


@dataclass(frozen=True)
class UldpGroup(NoisyBatches):
    """ULDP-GROUP-k: DP-SGD on records, of which a subject has at most ``group_size`` over all silos.

    group_size  k, public; each silo keeps at most floor(k / m) of a subject's records. ``max`` and ``median`` are
                statistics of the data, as in the paper, and leave nothing that could be proved
    """

    info = replace(
        BATCHES,
        name="uldp-group",
        summary="DP-SGD in every silo on at most k records per person over all silos (ULDP-GROUP)",
        reference="[ULDP-FL]",
        units=("subject", "record"),
        clips="a record's gradient",
        sums_up=False,
    )

    group_size: keys.Count | Literal["max", "median"] = 8

    def needs(self, unit: Unit) -> tuple[str, ...]:
        return ("silos", "records_per_silo")

    def resolve(self, facts: Facts) -> Facts:
        facts = super().resolve(facts)
        if isinstance(self.group_size, str):
            return facts
        kept = self.group_size // facts.silos_of_a_subject
        return replace(facts, records_kept=kept if facts.records_kept is None else min(kept, facts.records_kept))

    def build(self, facts: Facts) -> Method:
        work = self.work(self.record_clip())
        return noisy_batches(self.info, work, UldpGroupClaim, facts, group_size=self.group_size)


@dataclass(frozen=True)
class UldpGroupClaim(NoisyBatchesClaim):
    """Formal guarantee (specification 4.2), zero-out of one subject: k records, each in a batch with rate q, in
    whatever silos: a mixture of Gaussians over Binom(k, q). Records in different silos are dominated by the same number
    in one silo."""

    group_size: int | str = 0

    def in_sum(self, rate: float) -> Event | None:
        return None

    def event(self, exposure: Exposure) -> Event:
        facts, group = self.facts, self.group_size
        if self.clip.sigma == 0:
            return Unprotected(f"{self.info.name} with noise_multiplier 0 adds no noise")
        if exposure.unit == "silo":
            return Unprotected(f"{self.info.name} does not bound what one silo contributes")
        rate, steps = max(self.work.rates(facts)), max(self.work.batch_counts(facts))
        records = 1 if exposure.unit == "record" else group
        if isinstance(records, str):
            return Unprotected(f'group_size = "{records}" is a statistic of the private data')
        noise = self.batches.of_a_record
        if exposure.replaces:  # one record: the cap lets another one of each of two subjects take or lose its place
            moved = 4 if exposure.unit == "record" else 2 * records
            return Repeated(Gaussian(noise / moved), steps)
        if exposure.unit == "record":  # the cap lets another one take its place
            return Repeated(subjects.sampled_place(rate, Gaussian(noise / 2)), steps)
        return subjects.summed_records(rate, records, noise, steps)

    def assumptions(self, exposure: Exposure) -> tuple[str, ...]:
        group, m = self.group_size, self.facts.silos_of_a_subject
        kept = None if isinstance(group, str) else group // m
        return (
            f"each silo uses at most {kept} records of a subject, chosen by that subject's records alone (enforced)",
            self.facts.in_few_silos,
        )

    def as_published(self, exposure: Exposure, delta: float) -> AsPublished | None:
        from tacit.privacy.accounting.as_published import as_published_uldp_group

        k, clip, facts = self.group_size, self.clip, self.facts
        if exposure.unit != "subject" or isinstance(k, str) or clip.sigma == 0:
            return None
        steps = max(self.work.batch_counts(facts)) * facts.rounds
        epsilon = as_published_uldp_group(k, max(self.work.rates(facts)), clip.effective_sigma, steps, delta)
        if exposure.replaces:
            return AsPublished(epsilon, "no", f"replacing a person changes up to {2 * k} records, not {k}")
        if k.bit_count() == 1:
            return AsPublished(epsilon, "yes", "sound for a public k that is a power of two; the mixture is tighter")
        return AsPublished(epsilon, "no", f"the paper rounds {k} down to a power of two, which is no bound")


# -- noise that is correlated over rounds ------------------------------------------------------------------------------


@jax.tree_util.register_static
@dataclass(frozen=True)
class CorrelatedNoise:
    """Noise that is correlated over rounds and partly cancels in their sum; ``privacy.proofs.correlated_noise`` holds
    the proof.

    groups  subjects take turns in this many groups, by their keys: each takes part in every ``groups``-th round
    bands   the noise of a round reaches back over this many rounds, this one included; 1: independent noise

    The whole training is one Gaussian mechanism: its cost is that of all planned rounds from the first round on. Noise
    has a lower error at equal epsilon where subjects take turns; where all are in every round, one band is best.
    """

    groups: keys.Count = 8
    bands: keys.Count = 8

    def sensitivity(self, rounds: int) -> float:
        """By how many clips a subject moves what noise is added to, over all rounds."""
        return _sensitivity(self.bands, self.groups, rounds)


# asked for again in every step of a search for noise
_sensitivity = lru_cache(maxsize=256)(correlated.sensitivity)


@dataclass(frozen=True)
class CorrelatedClaim(SubjectClaim):
    """Formal guarantee: the bounds of :class:`SubjectClaim` hold for all rounds together, with the sensitivity of the
    whole training in place of one clip: a subject's part in silo s is w_s times something of norm at most clip in every
    round of its turn, so each factor bounds the squared shift of the strategy's rows as it bounds that of a single
    round."""

    correlated: CorrelatedNoise = CorrelatedNoise()

    @property
    def joint(self) -> bool:
        return True

    @property
    def noise_over_shift(self) -> float:
        return super().noise_over_shift / self.correlated.sensitivity(self.facts.rounds)

    def assumptions(self, exposure: Exposure) -> tuple[str, ...]:
        turns = f"people take turns in {self.work.groups} groups, one a round, by the hash of their identifiers alone"
        again = "silos draw the noise of earlier rounds again from their own keys"
        return (*super().assumptions(exposure), f"{turns} (enforced)", again)


# -- subjects one by one: ULDP-AVG and ULDP-SGD -----------------------------------------------------------------------

ULDP = replace(SUBJECTS, reference="[ULDP-FL]")


@dataclass(frozen=True)
class UldpSGD(PerSubject):
    """ULDP-SGD: every subject's gradient in every silo, clipped and weighted; the server takes the step."""

    info = replace(ULDP, name="uldp-sgd", summary="per-person gradients in every silo, clipped and weighted (ULDP-SGD)")

    weights: keys.WeightsKey = "uniform"
    divisor: keys.Divisor = "paper"

    def build(self, facts: Facts) -> Method:
        work = SubjectWork(**people_of(self))
        return per_subject(self, work, facts, per_silo=self.divisor == "paper", published=True)


@dataclass(frozen=True)
class UldpAvg(PerSubject):
    """ULDP-AVG: every subject trains locally in every silo; differences are clipped, weighted and added up.

    correlated_noise  subjects take turns, and noise partly cancels over rounds (Tacit's own)
    """

    info = replace(
        ULDP, name="uldp-avg", summary="per-person local training in every silo, clipped and weighted (ULDP-AVG)"
    )

    weights: keys.WeightsKey = "uniform"
    divisor: keys.Divisor = "paper"
    local_epochs: keys.LocalEpochs = 1
    local_learning_rate: keys.LearningRate = 0.1
    batch_size: keys.BatchSize = None
    correlated_noise: CorrelatedNoise | None = None

    @property
    def record_losses(self) -> str | None:
        return "batch_size" if self.batch_size is not None else None

    def check(self, exchange: Carrier) -> None:
        super().check(exchange)
        if self.correlated_noise is None:
            return
        field = "method.correlated_noise"
        if not exchange.compiled:
            problem = f"the {exchange.name} exchange draws the noise of every round by itself"
            raise UserError("not-supported", field, problem, 'leave it out, or use exchange.name = "plain"')
        if self.subject_sample_rate < 1:
            problem = "people take turns by their keys: nothing is gained from coins as well"
            raise UserError("conflict", field, problem, "leave out either this or subject_sample_rate")
        if self.adaptive_clip is not None:
            problem = "noise that follows an adaptive clip would not cancel over rounds"
            raise UserError("conflict", field, problem, "leave out either this or adaptive_clip")

    def reference_numbers(self, step: ServerStep) -> dict[str, Any]:
        keys = ("batch_size", "local_epochs", "local_learning_rate")
        return {"batch_size": 64} | {key: getattr(self, key) for key in keys if getattr(self, key) is not None}

    def build(self, facts: Facts) -> Method:
        work = SubjectWork(
            kind="training",
            epochs=self.local_epochs,
            learning_rate=self.local_learning_rate,
            batch_size=self.batch_size,
            groups=1 if self.correlated_noise is None else self.correlated_noise.groups,
            **people_of(self),
        )
        common, per_silo = self.correlated_noise, self.divisor == "paper"
        if common is None:
            return per_subject(self, work, facts, per_silo=per_silo, published=True)
        method = per_subject(self, work, facts, per_silo=per_silo, claim=partial(CorrelatedClaim, correlated=common))
        assert method.noise is not None
        return replace(method, noise=replace(method.noise, weights=correlated.noise_weights(common.bands)))
