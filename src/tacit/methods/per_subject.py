"""Subjects, not records: a subject's contribution is computed from its records alone, clipped, and weighted.

In every silo each subject learns from the global model alone; the difference (or the gradient) is clipped to ``clip``
and multiplied by a weight. A subject's weights over all silos sum to at most 1, so that everything about a subject
moves the sum over all silos by at most ``clip``. Noise is added in shares: every silo adds an equal part of its
variance.

A new method of this kind is an options class with another ``computes``; or its ``build`` gives another
``SubjectWork`` or ``ServerRule`` to :func:`per_subject`. The guarantee stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from tacit.errors import UserError
from tacit.kernels import Computation, Direction, Gradient, LocalTraining, RecordGradients
from tacit.methods import option_keys as keys
from tacit.methods.base import (
    Carrier,
    Claim,
    ContributionCount,
    Divisors,
    Facts,
    Info,
    LocalWork,
    Method,
    Options,
    RecordWeighting,
    ServerRule,
    TrainRule,
    part,
)
from tacit.methods.clips import AdaptiveClip, SubjectClip
from tacit.privacy import AsPublished, Event, Exposure, Gaussian, Noise, PoissonSampled, Unit, Unprotected
from tacit.privacy.proofs import subject_events as subjects
from tacit.privacy.proofs.weight_shifts import slot_record_shift, slot_shift
from tacit.privacy.proofs.weight_tables import RECORD_WEIGHTS, WeightTable

# What is declared about all of them, apart from names.
COMMON = Info(
    "",
    "",
    "",
    units=("subject", "record"),
    clips="a subject's contribution in a silo",
    adds="shares, one per silo",
    place="shares",
    sends=("sum", "integers", "subjects"),
)


@dataclass(frozen=True)
class PerSubject(Options):
    """Keys of all methods whose unit is the subject.

    adaptive_clip  let the clip follow a quantile of the norms; ``clip`` is where it starts

    ``computes`` is what a subject computes, where a method does not say more in a ``build`` of its own.
    """

    noise_key = "noise_multiplier"
    computes: ClassVar[Computation] = Gradient()

    target_epsilon: keys.Target = None
    clip: keys.ClipKey | None = 1.0
    noise_multiplier: keys.Multiplier = None
    adaptive_clip: AdaptiveClip | None = None
    subject_sample_rate: keys.SubjectRate = 1.0
    weights: keys.WeightsKey = "capped"
    weight_cap: keys.WeightCap = None
    disclose_counts: keys.DiscloseCounts = False

    def needs(self, unit: Unit) -> tuple[str, ...]:
        """The facts that weights need: N_max = silos times the most records of a subject in a silo."""
        return ("silos", "subjects", *(("max_records",) if self.weights == "records-sqrt" else ()))

    def check(self, exchange: Carrier) -> None:
        """Refuse weights that do not go with the exchange.

        Uniform weights let a subject's single record in one silo count as much as a hundred in another. Record weights
        correct that and need counts from elsewhere. Capped weights go half the way with what every silo knows by
        itself: each is at most 1 / m, so that they sum to at most 1 whatever the other silos hold.
        """
        field, weights, carried = "method.weights", self.weights, exchange.weights
        if carried is not None and weights not in carried:
            known = ", ".join(f'"{name}"' for name in carried)
            problem = f'"{weights}" is not supported by the {exchange.name} exchange'
            raise UserError("not-supported", field, problem, f"use {known}")
        if weights == "records-capped" and self.weight_cap is None:
            problem = f'is missing: "{weights}" needs it'
            raise UserError("missing", "method.weight_cap", problem, "add it, for example 10")
        if weights not in ("capped", "records-capped") and self.weight_cap is not None:
            problem = f'has no effect with weights = "{weights}"'
            fix = 'leave it out, or use "capped" or "records-capped"'
            raise UserError("no-effect", "method.weight_cap", problem, fix)
        if weights in RECORD_WEIGHTS and carried is None and not self.disclose_counts:
            problem = f"in the {exchange.name} exchange, record weights show another party the counts of subjects"
            fix = "use the weighted exchange, uniform weights, or accept it with disclose_counts = true"
            raise UserError("not-supported", field, problem, fix)

    def build(self, facts: Facts) -> Method:
        return per_subject(self, SubjectWork(kind=self.computes, **people_of(self)), facts)


def per_subject(
    options: PerSubject,
    work: SubjectWork,
    facts: Facts,
    *,
    server: ServerRule | None = None,
    per_silo: bool = False,
    published: bool = False,
    claim: Callable[..., Claim] | None = None,
) -> Method:
    """A sum over subjects with noise in shares.

    per_silo   the sum is divided by the number of silos as well: weights are 1 / silos
    published  the method's paper has an accounting of its own
    claim      makes the claim, in place of :class:`SubjectClaim`
    """
    clip = SubjectClip(
        norm=1.0 if options.clip is None else options.clip,
        sigma=options.noise_value,
        adaptive=options.adaptive_clip,
        share=largest_weight(work, facts),
        by_record=record_shift(work, facts),
    )
    people = options.subject_sample_rate / work.groups * (facts.subjects or 1)
    return Method(
        options.info,
        work,
        server or ServerRule(clip=clip, descends=work.learning.descends),
        (claim or SubjectClaim)(options.info, facts, clip, work, published),
        clip,
        Noise(clip.sigma * clip.norm, "shares"),
        Divisors(people * facts.silos if per_silo else people, people),
        clip.norm,
        None if facts.subjects is None else ContributionCount(people, facts.subjects, "people"),
    )


@part
class SubjectWork(LocalWork):
    """What a subject's records give in one silo. ``rate``: at which a subject enters a round.

    kind           what is computed: a ``kernels.Computation``, or the name of one of Tacit's
    epochs         training: passes over a subject's records
    learning_rate  training: of a subject's own steps
    batch_size     training: records per step
    most_records   at most this many of a subject's records in a silo are used in a round, chosen at random
    weights        of a subject's part in a silo (``keys.WeightsKey``); ``capped`` without a cap is 1 / m
    groups         subjects take turns in this many groups, by their keys: round t is that of group (t - 1) mod groups
    """

    worker = "tacit.engine.people_work:PeopleWork"

    kind: Computation | Literal["gradient", "record-gradients", "training"] = "gradient"
    epochs: int = 1
    learning_rate: float = 1.0
    batch_size: int | None = None
    most_records: int | None = None
    weights: keys.Weights = "uniform"
    weight_cap: int | None = None
    groups: int = 1

    @property
    def record_weights(self) -> RecordWeighting | None:
        if self.weights == "uniform" or self.weights == "capped":
            return None
        return RecordWeighting(self.weights, self.weight_cap)

    @property
    def learning(self) -> Computation:
        """What every subject does with its records."""
        if self.kind == "training":
            return LocalTraining(self.epochs, self.learning_rate, self.batch_size)
        if isinstance(self.kind, str):
            return Gradient() if self.kind == "gradient" else RecordGradients()
        return self.kind

    def weights_of(self, counts: np.ndarray, totals: np.ndarray, facts: Facts) -> np.ndarray:
        """The weight of a subject's part in a silo, from its number of records there and in all silos."""
        if self.record_weights is not None:
            kind, cap = self.record_weights
            table = self.record_weights.table(facts) or WeightTable(kind, int(totals.max(initial=1)), cap)
            return np.asarray(counts * table.at(totals))
        largest = np.full(len(counts), largest_weight(self, facts))
        return largest if self.weight_cap is None else largest * np.minimum(counts, self.weight_cap) / self.weight_cap


def largest_weight(work: SubjectWork, facts: Facts) -> float:
    """The most that one silo has of a subject's weight. Weights sum to at most 1: their squares to at most this."""
    if work.weights == "uniform":
        return 1.0 / facts.silos
    if work.weights == "capped":
        return 1.0 / facts.silos_of_a_subject
    assert work.record_weights is not None
    table, most = work.record_weights.table(facts), facts.max_records
    # n f(N) <= n f(n) <= R f(R), and 1 where nothing is known about R
    return 1.0 if table is None or most is None else most * float(table.at(most))


def record_shift(work: SubjectWork, facts: Facts, bits: int | None = None) -> float:
    """By how many clips one record of a subject moves the sum. It may turn the subject's part in one silo around: 2 w.
    Where weights depend on all records of the subject, its other parts change, too."""
    table = None if work.record_weights is None else work.record_weights.table(facts, bits)
    if table is None or facts.max_records is None:
        return 2.0 * largest_weight(work, facts)
    return slot_record_shift(table, facts.silos, facts.max_records)


@dataclass(frozen=True)
class SubjectClaim(Claim):
    """Formal guarantee (specification 1.2b, 2, 4.3), noise multiplier s, S silos, one round, one subject, zero-out:

        a view of only the sum, and not of who was sampled   PG(q, s)
        a server that sees each silo's noisy sum             Gaussian, divergence times S max_u sum_s w^2, q = 1
        c silos, which know the coins and their own noise    Gaussian, divergence times h^2 S / (S - c), q = 1; h is
                                                             the most that the others hold of a subject's weight
        replacement instead of zero-out                      divergence times 4; coins as for a place that is drawn
        one record more or less                              the subject's part in one silo may turn around: 2 w_s
                                                             clips, divergence times (2 w_s)^2, or 4 S w_s^2 seen by
                                                             the server

    With secret coins and replacement, or one record, the subject is sampled in both worlds: (1 - q) P0 + q P1 against
    (1 - q) P0 + q P1'. P0 is up to one clip away from P1 and P1', which are 2 clips, or 2 w_s, apart. This is a place
    that is drawn (``subject_events.sampled_place``) with the largest of the three distances; or the coin is taken to be
    known, q = 1, where that costs less (specification 9.1: the sampled Gaussian of 2 w_s < 1 would be too small).

    These hold where a part's weight does not depend on what other silos hold. Weights n f(N) do
    (``privacy.proofs.weight_tables``). Without the whole subject the sum moves by N f(N) <= 1 clips, as with all
    weights. One record also changes the weights of its subject's other parts, and in the exchange ``weighted`` subjects
    may share a slot: there the shift is that of ``privacy.proofs.weight_shifts``, and coins hide nothing.
    """

    clip: SubjectClip
    work: SubjectWork
    published: bool = False

    @property
    def noise_over_shift(self) -> float:
        """Noise over what one subject moves, for a view of the sum: in one round, or in all of them (``joint``)."""
        return self.clip.effective_sigma

    def moved(self, exposure: Exposure) -> float:
        """By how many clips one unit moves what a view sees: the sum, or the parts of all silos in the l2 norm."""
        facts, clip = self.facts, self.clip
        twice = 2.0 if exposure.replaces else 1.0
        if exposure.unit == "record":
            return twice * record_shift(self.work, facts, exposure.weight_bits)
        if self._shares_slots(exposure):
            weights = self.work.record_weights
            assert weights is not None
            table = weights.table(facts, exposure.weight_bits)
            assert table is not None
            assert facts.max_records is not None
            return twice * slot_shift(table, facts.silos, facts.max_records, exposure.colluding)
        found = clip.sensitivity(exposure.unit, exposure.relation, facts)
        assert found is not None
        if exposure.reveals == "each":
            return found.moved * math.sqrt(clip.share)
        return found.moved * min(1.0, (facts.silos - exposure.colluding) * clip.share)

    def _shares_slots(self, exposure: Exposure) -> bool:
        """Whether weights depend on the records of a slot, which several subjects may share."""
        return self.work.record_weights is not None and exposure.index == "slots"

    def hides_coins(self, exposure: Exposure) -> bool:
        """Whether a subject who is not sampled changes nothing that the view sees, and it does not know who is. Counts
        are those of all rounds: who is not sampled changes the weights of others in the same slot."""
        return exposure.reveals == "sum" and exposure.colluding == 0 and not self._shares_slots(exposure)

    def event(self, exposure: Exposure) -> Event:
        facts = self.facts
        if self.work.record_weights is not None:
            # silos tell each other the counts, and the server carries them
            if exposure.reveals == "each" or (exposure.index is None and exposure.view.kind != "public"):
                reason = "with record weights in this exchange, this view learns how many records people have"
                return Unprotected(reason)
            if exposure.colluding and exposure.index == "list":
                return Unprotected('with index = "list" silos know who is on the list of all subjects')
            if exposure.index == "slots" and facts.max_records is None:
                return Unprotected("nothing bounds the records of a subject in a silo")
        if self.clip.sigma == 0:
            return Unprotected(f"{self.info.name} with noise_multiplier 0 adds no noise")
        if exposure.unit == "silo":
            return Unprotected(f"{self.info.name} bounds what a person contributes, not a silo")
        if exposure.colluding >= facts.silos:
            return Unprotected("all silos collude: no subject of another silo is left to protect")
        seen = facts.silos if exposure.reveals == "each" else subjects.colluding_factor(facts.silos, exposure.colluding)
        noise, shift = self.noise_over_shift / math.sqrt(seen), self.moved(exposure)
        rate = self.work.rate if self.hides_coins(exposure) else 1.0
        if exposure.unit == "subject" and not exposure.replaces:
            return PoissonSampled(rate, Gaussian(noise / shift)) if rate < 1 else Gaussian(noise / shift)
        # Subjects are sampled in both worlds: their whole parts, of up to one clip each, are what the coins hide. A
        # replaced record changes two subjects, each with a coin of its own.
        two = exposure.unit == "record" and exposure.replaces
        rate, place = (subjects.subject_rate(rate, 2), max(2.0, shift)) if two else (rate, max(1.0, shift))
        if rate * place < shift:
            return subjects.sampled_place(rate, Gaussian(noise / place))
        return Gaussian(noise / shift)

    def sampling(self, exposure: Exposure) -> str:
        if self.work.rate == 1 or not self.hides_coins(exposure):
            return "none"
        return f"poisson subjects {self.work.rate:g}"

    def assumptions(self, exposure: Exposure) -> tuple[str, ...]:
        known = ["every silo adds its share of the noise"]
        hidden = not exposure.colluding and exposure.reveals != "each"
        if hidden and exposure.view.kind == "server" and self.work.rate < 1:
            known.append("the server does not learn the silos' common sampling coins")
        if self.work.weights == "capped":
            known.append(self.facts.in_few_silos)
        return tuple(known)

    def as_published(self, exposure: Exposure, delta: float) -> AsPublished | None:
        from tacit.privacy.accounting.as_published import as_published_rdp

        if not self.published or exposure.unit != "subject":
            return None
        rate, clip = self.work.rate, self.clip
        epsilon = as_published_rdp(rate, clip.effective_sigma, self.facts.rounds, delta) if clip.sigma else math.inf
        if exposure.replaces:
            return AsPublished(epsilon, "no", "replacing a person moves the sum by twice the clip")
        if self._shares_slots(exposure):
            return AsPublished(epsilon, "no", "it does not count people who share a slot: their weights change, too")
        if exposure.reveals == "sum" and not exposure.colluding:
            return AsPublished(epsilon, "yes", "Renyi accounting; the proved number counts the same mechanism tighter")
        if rate < 1:
            return AsPublished(epsilon, "no", "this view knows who was sampled, so that sampling does not help")
        if self.work.weights == "uniform":
            return AsPublished(epsilon, "yes", "with uniform weights this view learns no more than the public")
        return AsPublished(epsilon, "no", "it is about who sees only the sum")


# Gradients are scaled to length 1 where nothing is said about how they are clipped. One rule for these directions, on
# all data sets that it was tried on: a step of 3 along their mean, momentum .9, 40 rounds (docs/training.md).
# Directions turn around within the error of a fit, which is small where numbers are predicted well: a step of .1 there.
# The direction of a subject with one record does not say how wrong the model is about it: its step never ends. In
# little noise the length of a gradient is worth more than the signal that a clip takes.
DIRECTIONS = TrainRule(
    ("clip", "adaptive_clip", "local_epochs", "clip_first"),
    rounds=40,
    optimizer="momentum",
    rate=3.0,
    number_rate=0.1,
    clip=0.5,
    clip_rate=10.0,
    little_noise=0.01,
)


@dataclass(frozen=True)
class SubjectSGD(PerSubject):
    """Tacit's own: sample subjects, bound a subject's total over all silos, add noise once in shares.

    records_per_subject  at most this many of a sampled subject's records per silo, chosen at random
    clip_first           clip every record's gradient and average (True), or average and clip (False)
    local_epochs         instead of a gradient: this many passes of local training on the subject's records

    Silos share a secret seed for the coins; a subject is in a round with probability exactly ``subject_sample_rate``,
    however many records there are. Weights are 1 / m for at most m silos per subject, so they sum to at most 1.
    """

    info = replace(
        COMMON,
        name="subject-sgd",
        summary="sample people with one coin for all silos, bound each person's total, noise once in shares",
        reference="Tacit",
    )
    train_rule = DIRECTIONS

    clip: keys.ClipOrDirection = None
    records_per_subject: keys.Count | None = None
    clip_first: bool = False
    local_epochs: keys.Count | None = None
    local_learning_rate: keys.LearningRate = 0.1

    @property
    def record_losses(self) -> str | None:
        return "clip_first" if self.clip_first and self.local_epochs is None else None

    def build(self, facts: Facts) -> Method:
        common: dict[str, Any] = {**people_of(self), "most_records": self.records_per_subject}
        if self.local_epochs is not None:
            numbers: dict[str, Any] = {"epochs": self.local_epochs, "learning_rate": self.local_learning_rate}
            return per_subject(self, SubjectWork(kind="training", **numbers, **common), facts)
        kind = Direction() if DIRECTIONS.applies(self) else RecordGradients() if self.clip_first else Gradient()
        return per_subject(self, SubjectWork(kind=kind, **common), facts)


def people_of(options: PerSubject) -> dict[str, Any]:
    """The fields of a subject's work that sampling and weights decide."""
    return {"rate": options.subject_sample_rate, "weights": options.weights, "weight_cap": options.weight_cap}
