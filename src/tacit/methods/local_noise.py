"""Silos that do not trust the server: every batch is clipped and noised before anything leaves [SubjectDP-1,
SubjectDP-2].

Every silo takes steps on Poisson batches of its own records. ``local-record`` clips each record's gradient (federated
DP-SGD), ``higrad`` averages a subject's clipped gradients within a batch, ``local-group`` adds them up (at most
``group_cap`` of them), ``user-ldp`` clips the gradient of the whole batch. Noise is the same in every batch; the server
averages the silos' updates with public, equal weights.

Formal guarantee (specification 1.1, 1.2), for one silo and T batches, noise multiplier s, at most n records of a
subject in a silo, each in a batch with rate q:

    local-record, one record          PG(q, s, T)
    higrad, one subject               PG(1 - (1-q)^n, s, T)
    local-group, one subject          mixture of Gaussians over min(j, Z), j ~ Binom(n, q), T times
    user-ldp, one subject             PG(1 - (1-q)^n, s/2, T)
    user-ldp, one silo (replace)      G(s/2, T)

A server that sees each silo's update sees all batches of all silos that hold the subject: they add up. Who sees only
the sum, and one batch per round, sees a mixture against the noise of all silos.

With an adaptive clip every batch gives, beside its vector, a noisy count of what was below the clip; a silo sends the
sum of its noisy counts along, and the server moves the clip between rounds. Vector and count of a batch are one
Gaussian vector (``AdaptiveClip``). j records of a subject move the count by j times its sensitivity, so for summed
records both shifts grow with j and the mixture keeps its form with a smaller multiplier; for ``higrad`` only the count
grows, and the mixture says so; a clipped batch is a count of one, which changes by at most 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from tacit.errors import UserError
from tacit.kernels import PoissonBatches, ServerStep, Work, noisy_descend
from tacit.kernels.clipped_sum import Rounding
from tacit.kernels.noisy_descent import BatchRule, Counting, clipped_batch, clipped_records
from tacit.methods.averaging import like, minus
from tacit.methods.method import (
    Contributions,
    Count,
    Divisors,
    Facts,
    LocalResult,
    Positive,
    Rate,
    RecordSums,
    ServerState,
)
from tacit.privacy import (
    AsPublished,
    Composed,
    Event,
    Exposure,
    Gaussian,
    GaussianMixture,
    Largest,
    PoissonSampled,
    Relation,
    Repeated,
    Unit,
    Unprotected,
)
from tacit.privacy.proofs import subject_events as subjects


@dataclass(frozen=True)
class NoisyBatches(RecordSums):
    """What all of them share.

    sample_rate          public rate at which a record enters a batch; a number, or one per silo
    local_epochs         each of round(1 / sample_rate) batches
    batches_per_round    instead of local_epochs: exactly so many batches
    local_learning_rate  rate of the silos' own steps
    """

    noise_place = "each batch, in the silo"
    exchanges = ("plain",)
    adds_over_silos = True

    sample_rate: Rate | tuple[Rate, ...] = 0.05
    local_epochs: Count = 1
    batches_per_round: Count | None = None
    local_learning_rate: Positive = 0.1

    # -- what happens

    @property
    def record_losses(self) -> str | None:
        return "name"

    def needs(self, unit: Unit) -> tuple[str, ...]:
        caps = ("max_records",) if unit == "subject" else ()
        return ("silos", "records_per_silo", *caps)

    def check_facts(self, facts: Facts) -> None:
        given = self.sample_rate
        if isinstance(given, tuple) and len(given) != facts.silos:
            where = "one place" if self.pools else f"{facts.silos} silos"
            problem = f"lists {len(given)} rates for {where}"
            raise UserError("mismatch", "method.sample_rate", problem, "give one for each, or one")

    def rates(self, facts: Facts) -> tuple[float, ...]:
        """Each silo's rate."""
        given = self.sample_rate
        return given if isinstance(given, tuple) else (given,) * facts.silos

    def batches(self, facts: Facts) -> tuple[int, ...]:
        """Each silo's number of batches per round."""
        if self.batches_per_round is not None:
            return (self.batches_per_round,) * facts.silos
        return tuple(self.local_epochs * max(1, round(1 / rate)) for rate in self.rates(facts))

    def schedule(self, facts: Facts) -> PoissonBatches:
        return PoissonBatches(
            self.rates(facts),
            self.batches(facts),
            self.batch_sizes(facts),
            self.noise_levels(facts),
            averaged=self.averaged,
            cap=self.cap,
        )

    def batch_sizes(self, facts: Facts) -> tuple[float, ...]:
        """Each silo's expected size of a batch: public, and what its batches are divided by."""
        return tuple(rate * count for rate, count in zip(self.rates(facts), facts.records_per_silo or (), strict=True))

    def contributions(self, facts: Facts) -> Contributions | None:
        if not facts.records_per_silo:
            return None
        size, records, _ = min(
            (rate * count, count, k)
            for k, (rate, count) in enumerate(zip(self.rates(facts), facts.records_per_silo, strict=True))
        )
        return Contributions(size, records, "records of a silo")

    @property
    def cap(self) -> int | None:
        """At most so many records of a subject in a batch."""
        return None

    def noise_levels(self, facts: Facts) -> tuple[float, ...]:
        return (self.sigma,)

    @property
    def rule(self) -> BatchRule:
        """What a batch gives."""
        return clipped_records

    @property
    def radius(self) -> float | None:
        """Every step ends within this distance from zero."""
        return None

    def local(self, work: Work, broadcast: Any, state: Any) -> LocalResult:
        params, clip = broadcast
        adaptive = self.adaptive_clip
        counting = None if adaptive is None else Counting(adaptive.quantile, adaptive.count_noise)
        trained, tally = noisy_descend(work, params, self.local_learning_rate, clip, self.rule, self.radius, counting)
        update = ravel_pytree(minus(trained, params))[0]
        return LocalResult(update if adaptive is None else jnp.append(update, tally.excess), state, tally.not_finite)

    def expected_entries(self, facts: Facts) -> float:
        """How many entries are clipped in a round, over all silos and batches, as far as it is public."""
        return sum(count * size for count, size in zip(self.batches(facts), self.batch_sizes(facts), strict=True))

    def divisors(self, facts: Facts) -> Divisors:
        return Divisors(facts.silos, self.expected_entries(facts))

    def aggregate(self, step: ServerStep, server: ServerState, total: jax.Array, divisors: Divisors) -> ServerState:
        clip, adaptive = server.extra, self.adaptive_clip
        if adaptive is not None:
            total, clip = total[:-1], adaptive.next(clip, total[-1] / divisors.beside)
        params, optimizer = step.apply(server.params, server.optimizer, like(total / divisors.total, server.params))
        return ServerState(params, optimizer, clip)

    def reference_numbers(self, step: ServerStep) -> dict[str, Any]:
        return {"batch_size": 64, "local_epochs": self.local_epochs, "local_learning_rate": self.local_learning_rate}

    # -- what is promised

    def of_a_silo(self, unit: Unit, rate: float, batches: int, facts: Facts) -> Event:
        """What one silo's batches of one round show about one unit that lives in it."""
        raise NotImplementedError

    def in_sum(self, rate: float, facts: Facts) -> Event | None:
        """What the sum over all silos shows about a subject where a round has one batch; None: nothing better."""
        return None

    def whole_sum(self, facts: Facts) -> Event | None:
        """:meth:`in_sum`, where every silo has one batch a round and all are alike: the noise of all silos hides a
        subject, so the sum is released with all of them only. None: each silo's own noise is all that counts."""
        rates = self.rates(facts)
        if set(self.batches(facts)) != {1} or not len(set(rates)) == len(set(facts.records_per_silo or ())) == 1:
            return None
        return self.in_sum(rates[0], facts)

    def requires_all_silos(self, facts: Facts) -> bool:
        return self.sigma > 0 and self.whole_sum(facts) is not None

    def event(self, exposure: Exposure, facts: Facts) -> Event:
        if self.sigma == 0:
            return Unprotected(f"{self.name} with noise_multiplier 0 adds no noise")
        unit = exposure.unit
        if exposure.replaces:
            return self.replaced(unit, facts)
        rates, batches = self.rates(facts), self.batches(facts)
        if unit == "subject" and exposure.reveals == "sum" and exposure.colluding == 0:
            whole = self.whole_sum(facts)
            if whole is not None:
                return whole
        seen = self.moved_up if unit == "record" and facts.moves_up else partial(self.of_a_silo, unit)
        silos = tuple(dict.fromkeys(seen(rate, count, facts) for rate, count in zip(rates, batches, strict=True)))
        worst = silos[0] if len(silos) == 1 else Largest(silos)
        if unit != "subject":
            return worst
        touched = facts.silos_of_a_subject
        if touched == facts.silos and len(silos) > 1:
            return Composed(
                tuple(self.of_a_silo(unit, rate, count, facts) for rate, count in zip(rates, batches, strict=True))
            )
        return Repeated(worst, touched)

    def moved_up(self, rate: float, batches: int, facts: Facts) -> Event:
        """A record goes, and a cap lets another one of its subject and silo take its place."""
        return Repeated(subjects.sampled_place(rate, self.record_replaced(facts)), batches)

    def record_replaced(self, facts: Facts) -> Gaussian:
        """Another record of the same subject in a batch instead: twice the largest sensitivity."""
        moved = 2 if self.displaces(facts) else 1
        return Gaussian(self.noise_over(2.0 * moved, 2 * self.counted * moved, facts))

    def replaced(self, unit: Unit, facts: Facts) -> Event:
        """Another unit's data instead: without amplification, twice the largest sensitivity. Another subject's record
        may come; where a cap moves records up, one of each of the two subjects is then replaced."""
        if unit == "silo":
            return Unprotected(f"{self.name} does not bound what one silo contributes")
        if unit == "record":
            noise = self.record_replaced(facts).noise_multiplier / (2 if facts.moves_up else 1)
            return Repeated(Gaussian(noise), max(self.batches(facts)))
        if not facts.max_records:
            return Unprotected("the number of records of a subject is not bounded")
        moved = 1 if self.averaged else min(facts.max_records, self.cap or facts.max_records)
        shift = self.noise_over(2.0 * moved, 2 * self.counted * facts.max_records, facts)
        return Repeated(Gaussian(shift), max(self.batches(facts)) * facts.silos_of_a_subject)

    def displaces(self, facts: Facts) -> bool:
        """Whether one record more may push another one of its subject out of a batch."""
        return self.cap is not None and (facts.max_records is None or facts.max_records > self.cap)

    def sampling(self, exposure: Exposure) -> str:
        if exposure.replaces or exposure.unit == "silo":
            return "none"
        rates = self.sample_rate if isinstance(self.sample_rate, tuple) else (self.sample_rate,)
        return "poisson records " + " ".join(f"{rate:g}" for rate in sorted(set(rates)))

    def assumptions(self, exposure: Exposure, facts: Facts) -> tuple[str, ...]:
        if exposure.unit != "subject":
            return ()
        return (
            f"at most {facts.max_records} records of a subject in a silo (enforced)",
            facts.in_few_silos,
        )

    def as_published(self, exposure: Exposure, delta: float, facts: Facts) -> AsPublished | None:
        from tacit.privacy.accounting.as_published import as_published_higrad

        if exposure.unit == "silo" and self.name != "user-ldp":
            return None
        steps = max(self.batches(facts)) * facts.rounds
        rate = max(self.rates(facts))
        epsilon = as_published_higrad(rate, self.effective_sigma, steps, delta) if self.sigma else math.inf
        if exposure.replaces and exposure.unit != "silo":
            return AsPublished(epsilon, "no", REPLACED)
        return AsPublished(epsilon, *self.verdict(exposure))

    def verdict(self, exposure: Exposure) -> tuple[Literal["yes", "only-if", "no"], str]:
        """Whether the published number holds for this unit and view, and why."""
        raise NotImplementedError


REPLACED = "it is about adding or removing; replacing moves a sum by twice the clip"
RECORD_RATE = (
    "the paper counts with the record's rate; a subject with several records is in a batch more often"
    " (specification 1.3)"
)


@dataclass(frozen=True)
class LocalRecord(NoisyBatches):
    """Federated DP-SGD: every record's gradient is clipped."""

    name = "local-record"
    about = "DP-SGD in every silo, the server averages (LocalItemDP)"
    paper = "[SubjectDP-2]; [ULDP-FL]"
    units: ClassVar[tuple[Unit, ...]] = ("record", "subject")
    clips = "a record's gradient"

    def of_a_silo(self, unit: Unit, rate: float, batches: int, facts: Facts) -> Event:
        if unit == "record":
            # a record that pushes another one out of the batch moves the sum by two clips, and the count by 1
            noise = self.noise_over(2.0, 1.0, facts) if self.displaces(facts) else self.of_a_record(facts)
            return Repeated(PoissonSampled(rate, Gaussian(noise)), batches)
        if unit == "subject" and facts.max_records:
            return subjects.summed_records(rate, facts.max_records, self.of_a_record(facts), batches, self.cap)
        return Unprotected(f"{self.name} does not bound what one {unit} contributes")

    def in_sum(self, rate: float, facts: Facts) -> Event | None:
        if not facts.max_records or self.cap is not None:
            return None
        parts = facts.silos_of_a_subject * facts.max_records
        return subjects.binomial_mixture(parts, rate, math.sqrt(facts.silos) * self.of_a_record(facts))

    def verdict(self, exposure: Exposure) -> tuple[Literal["yes", "only-if", "no"], str]:
        if exposure.unit == "record":
            return (
                "yes",
                "Renyi accounting of Poisson batches; the proved number is the same mechanism, counted tighter",
            )
        return "no", "it is the epsilon of one record, not of a subject with several"


@dataclass(frozen=True)
class LocalGroup(LocalRecord):
    """LocalGroupDP (LocalSubDP of [SubjectDP-1]), with noise that does not depend on the batch.

    group_cap  at most so many records of one subject in a batch
    noise      ``constant``; or ``as-published``: the paper's noise for the largest group in each batch, which gives
               that group's size away, so that nothing is proved
    """

    name = "local-group"
    about = "DP-SGD whose noise covers all of a subject's records in a batch (LocalGroupDP, LocalSubDP)"
    paper = "[SubjectDP-2]; [SubjectDP-1]"
    units = ("subject", "record")

    group_cap: Count | None = None
    noise: Literal["constant", "as-published"] = "constant"

    def check(self, exchange: str) -> None:
        if self.noise == "as-published" and self.adaptive_clip is not None:
            problem = 'has no published noise to go with noise = "as-published"'
            raise UserError("conflict", "method.adaptive_clip", problem, "drop it")

    @property
    def cap(self) -> int | None:
        return self.group_cap

    def noise_levels(self, facts: Facts) -> tuple[float, ...]:
        """The same for every batch, or the paper's sigma_Z for Z = 0, 1, 2, …; ``noise_multiplier`` is its sigma_1."""
        if self.noise == "constant":
            return super().noise_levels(facts)
        most = min(self.group_cap or facts.max_records or 1, facts.max_records or 1)
        epsilon = self._published(1, facts.delta, facts)
        levels = _published_levels(most, epsilon, facts.delta, max(self.rates(facts)), self._steps(facts))
        if math.inf in levels:
            problem = f"the paper's accounting has no noise for {most} records of a subject at epsilon {epsilon:.3g}"
            fix = "lower it, or group_cap, or the cap on records"
            raise UserError("unreachable", "method.noise_multiplier", problem, fix)
        return levels

    def event(self, exposure: Exposure, facts: Facts) -> Event:
        if self.noise == "as-published":
            return Unprotected("the published noise depends on the private batch: its scale gives group sizes away")
        return super().event(exposure, facts)

    def as_published(self, exposure: Exposure, delta: float, facts: Facts) -> AsPublished | None:
        if exposure.unit != "subject" or not facts.max_records:
            return None
        group = min(self.group_cap or facts.max_records, facts.max_records) if self.noise == "constant" else 1
        return AsPublished(self._published(group, delta, facts), *self.verdict(exposure))

    def _steps(self, facts: Facts) -> int:
        return max(self.batches(facts)) * facts.rounds

    def _published(self, group: int, delta: float, facts: Facts) -> float:
        from tacit.privacy.accounting.as_published import as_published_local_group

        return as_published_local_group(group, self.sigma, delta, max(self.rates(facts)), self._steps(facts))

    def verdict(self, exposure: Exposure) -> tuple[Literal["yes", "only-if", "no"], str]:
        return "no", (
            "the paper converts a record's epsilon to groups of the size seen in a batch, with the record's rate; "
            "a subject's group is in the data set, not in the batch (specification 1.3)"
        )


@lru_cache(maxsize=16)
def _published_levels(most: int, epsilon: float, delta: float, rate: float, steps: int) -> tuple[float, ...]:
    from tacit.privacy.accounting.as_published import as_published_local_group_noise

    levels = [as_published_local_group_noise(z, epsilon, delta, rate, steps) for z in range(1, most + 1)]
    return (levels[0], *levels)


@dataclass(frozen=True)
class HiGrad(NoisyBatches):
    """HiGradAvgDP: a subject's clipped gradients in a batch are averaged, so that it moves the sum by one clip."""

    name = "higrad"
    about = "DP-SGD in every silo, each subject's clipped gradients averaged per batch (HiGradAvgDP)"
    paper = "[SubjectDP-2]"
    units = ("subject", "record")
    clips = "a record's gradient, then averaged over the subject's records in the batch"
    averaged = True

    def of_a_silo(self, unit: Unit, rate: float, batches: int, facts: Facts) -> Event:
        if unit == "subject" and facts.max_records:
            if self.adaptive_clip is None:
                return subjects.averaged_per_subject(rate, facts.max_records, self.of_a_record(facts), batches)
            shifts = (1 / self.noise_over(1.0, self.counted * j, facts) for j in range(1, facts.max_records + 1))
            chances = subjects.binomial(facts.max_records, rate).tolist()
            return Repeated(GaussianMixture(1.0, (0.0, *shifts), tuple(chances)), batches)
        if unit == "record":
            # one record more or less changes its subject's average: by C if it is the only one, else by up to 2 C / j
            return Repeated(PoissonSampled(rate, Gaussian(self.of_a_record(facts))), batches)
        return Unprotected(f"{self.name} does not bound what one {unit} contributes")

    def in_sum(self, rate: float, facts: Facts) -> Event | None:
        if self.adaptive_clip is not None or not facts.max_records:
            return None
        inclusion = subjects.subject_rate(rate, facts.max_records)
        noise = math.sqrt(facts.silos) * self.of_a_record(facts)
        return subjects.binomial_mixture(facts.silos_of_a_subject, inclusion, noise)

    def verdict(self, exposure: Exposure) -> tuple[Literal["yes", "only-if", "no"], str]:
        if exposure.unit == "record":
            return "yes", "with one coin per record, the record's rate is the right one"
        return "no", RECORD_RATE


@dataclass(frozen=True)
class UserLDP(NoisyBatches):
    """UserLDP: the gradient of the whole batch is clipped, so that a silo hides everything it holds."""

    name = "user-ldp"
    about = "local DP of whole silos: each batch's gradient is clipped and noised (UserLDP)"
    paper = "[SubjectDP-2]"
    units = ("silo", "subject", "record")
    clips = "the gradient of a batch"

    @property
    def rule(self) -> BatchRule:
        return clipped_batch

    def rounding(self, facts: Facts) -> Rounding:
        """None: a clipped batch is rounded toward zero."""
        return Rounding(0.0, 0.0)

    @property
    def record_losses(self) -> str | None:
        return None

    def expected_entries(self, facts: Facts) -> float:
        return sum(self.batches(facts))

    def relation(self, unit: Unit) -> Relation:
        return "replace" if unit == "silo" else "zero-out"

    def of_a_silo(self, unit: Unit, rate: float, batches: int, facts: Facts) -> Event:
        if unit == "silo":  # zeroed in every batch
            return Repeated(Gaussian(self.ratio(1.0, 1.0)), batches)
        records = 1 if unit == "record" else facts.max_records
        if not records:
            return Unprotected("the number of records of a subject is not bounded")
        inclusion = subjects.subject_rate(rate, records)
        return Repeated(PoissonSampled(inclusion, Gaussian(self.ratio(2.0, 1.0))), batches)

    def record_replaced(self, facts: Facts) -> Gaussian:
        return Gaussian(self.ratio(2.0, 1.0))

    def replaced(self, unit: Unit, facts: Facts) -> Event:
        """A clipped batch may turn around, whatever of it was replaced; a record may come to another silo."""
        silos = {"subject": facts.silos_moved(True), "record": facts.record_silos_moved(True), "silo": 1}[unit]
        return Repeated(Gaussian(self.ratio(2.0, 1.0)), max(self.batches(facts)) * silos)

    def verdict(self, exposure: Exposure) -> tuple[Literal["yes", "only-if", "no"], str]:
        if exposure.unit == "silo":
            return "no", "replacing a silo changes every batch: no sampling helps, and a clipped gradient moves by 2 C"
        return "no", RECORD_RATE + "; and a clipped batch gradient moves by 2 C"


@dataclass(frozen=True)
class PooledDPSGD(LocalRecord):
    """DP-SGD by a curator who may pool all records: what private federation is compared with.

    projection  after every step, back into the ball of this l2 norm (for convex losses, as in [Slides])
    """

    name = "pooled-dp-sgd"
    about = "DP-SGD by a trusted curator who holds all records: what federation is compared with"
    paper = "Abadi et al. 2016; [Slides]"
    noise_place = "each batch, by the curator"
    trusts = ("server", "server+silos")
    pools = True

    projection: Positive | None = None

    @property
    def radius(self) -> float | None:
        return self.projection

    def event(self, exposure: Exposure, facts: Facts) -> Event:
        if exposure.reveals == "each":
            return Unprotected("the curator holds all records")
        return super().event(exposure, facts)

    def assumptions(self, exposure: Exposure, facts: Facts) -> tuple[str, ...]:
        return ("the curator is trusted with all records", *super().assumptions(exposure, facts))
