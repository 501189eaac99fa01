"""People, not records: everybody's contribution is computed from that person's records alone, clipped, and weighted.

In every silo each person learns from the global model by themselves; the difference (or the gradient) is clipped to
``clip`` and multiplied by a weight. A person's weights over all silos sum to at most 1, so that everything about a
person moves the sum over all silos by at most ``clip``. Noise is added in shares: every silo adds an equal part of its
variance.

Formal guarantee (specification 1.2b, 2, 4.3), noise multiplier s, S silos, one round, one subject, zero-out:

    who sees only the sum, and not who was sampled       PG(q, s)
    a server that sees each silo's noisy sum             Gaussian, divergence times S max_u sum_s w^2, q = 1
    c silos, which know the coins and their own noise    Gaussian, divergence times h^2 S / (S - c), q = 1; h is the
                                                         most that the others hold of a person's weight
    replacement instead of zero-out                      divergence times 4; coins as for a place that is drawn (below)
    one record more or less                              the person's part in one silo may turn around: 2 w_s clips,
                                                         divergence times (2 w_s)^2, or 4 S w_s^2 seen by the server

With secret coins and replacement, or one record, the subject is sampled in both worlds: (1 - q) P0 + q P1 against
(1 - q) P0 + q P1'. P0 is up to one clip away from P1 and P1', which are 2 clips, or 2 w_s, apart. This is a place that
is drawn (``subject_events.sampled_place``) with the largest of the three distances; or the coin is taken to be known,
q = 1, where that costs less (specification 9.1: the sampled Gaussian of 2 w_s < 1 would be too small).

These hold where a part's weight does not depend on what other silos hold. Weights n f(N) of the exchange ``weighted``
do: there the shift is that of ``proofs.weight_shifts``, and where people may share a slot, coins hide nothing.

Where noise is correlated over rounds, these hold for all rounds together, with the sensitivity of the whole training
in place of one clip: a person's part in silo s is w_s times something of norm at most clip in every round of their
turn, so each factor above bounds the squared shift of the strategy's rows as it bounds that of a single round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal

import jax
import numpy as np

from tacit.errors import UserError
from tacit.kernels import Local, ServerStep
from tacit.methods.averaging import like
from tacit.methods.method import Adaptive, Contributions, Count, Divisors, Facts, Positive, Rate, ServerState
from tacit.privacy import AsPublished, Event, Exposure, Gaussian, Noise, PoissonSampled, Unit, Unprotected
from tacit.privacy.proofs import correlated_noise as correlated
from tacit.privacy.proofs import subject_events as subjects
from tacit.privacy.proofs.weight_shifts import slot_record_shift, slot_shift

Weights = Literal["uniform", "records", "capped"]


@dataclass(frozen=True)
class PerSubject(Adaptive):
    """What all methods share whose unit is the subject.

    subject_sample_rate  public Poisson rate at which a subject enters a round, by one coin for all silos

    An adaptive clip counts a person in every silo with the weight there: at most once over all silos.
    """

    units = ("subject", "record")
    clips = "a subject's contribution in a silo"
    noise_place = "shares, one per silo"
    works_by = "subject"
    exchanges: ClassVar[tuple[str, ...]] = ("plain", "masked")

    subject_sample_rate: Rate = 1.0

    # -- what happens in a silo

    @property
    def groups(self) -> int:
        """People take turns in so many groups, by their keys: round t is that of group (t - 1) mod groups."""
        return 1

    @property
    def present(self) -> float:
        """The public share of people in a round, on average."""
        return self.subject_sample_rate / self.groups

    @property
    def learning(self) -> Local:
        """What everybody does with their records."""
        raise NotImplementedError

    @property
    def most_records(self) -> int | None:
        """At most so many of a subject's records in a silo are used in a round, chosen at random."""
        return None

    def weights_of(self, counts: np.ndarray, totals: np.ndarray, facts: Facts) -> np.ndarray:
        """The weight of a person's part in a silo, from its number of records there and in all silos."""
        raise NotImplementedError

    # -- what happens at the server

    def needs(self, unit: Unit) -> tuple[str, ...]:
        return ("silos", "subjects")

    def sum_noise(self, facts: Facts) -> Noise:
        return Noise(self.sigma * self.clip, "shares")

    def contributions(self, facts: Facts) -> Contributions | None:
        if facts.subjects is None:
            return None
        return Contributions(self.people_in_a_round(facts), facts.subjects, "people")

    def people_in_a_round(self, facts: Facts) -> float:
        """How many people a round has on average; nobody's weights sum to more than 1."""
        return self.present * (facts.subjects or 1)

    def aggregate(self, step: ServerStep, server: ServerState, total: jax.Array, divisors: Divisors) -> ServerState:
        mean, clip = self.received(server, total, divisors)
        direction = 1.0 if self.learning.kind == "training" else -1.0
        update = like(direction * mean, server.params)
        params, optimizer = step.apply(server.params, server.optimizer, update)
        return ServerState(params, optimizer, clip)

    # -- what is promised

    def largest_weight(self, facts: Facts) -> float:
        """The most that one silo has of a person's weight. Weights sum to at most 1: their squares to at most this."""
        raise NotImplementedError

    def moved(self, exposure: Exposure, facts: Facts) -> float:
        """By how many clips one unit moves what a view sees: the sum, or the parts of all silos in the l2 norm.

        A record that goes or comes may turn its subject's part in one silo around: 2 w clips. One that is replaced goes
        from one subject and comes to another, in any silo: 4 w.
        """
        weight = self.largest_weight(facts)
        if exposure.unit == "record":
            return 4.0 * weight if exposure.replaces else 2.0 * weight
        if exposure.reveals == "each":
            shift = math.sqrt(weight)
        else:
            shift = min(1.0, (facts.silos - exposure.colluding) * weight)
        return 2.0 * shift if exposure.replaces else shift

    def noise_over_shift(self, facts: Facts) -> float:
        """Noise over what one person moves, for who sees the sum: in one round, or in all of them (``joint``)."""
        return self.effective_sigma

    def event(self, exposure: Exposure, facts: Facts) -> Event:
        if self.sigma == 0:
            return Unprotected(f"{self.name} with noise_multiplier 0 adds no noise")
        if exposure.unit == "silo":
            return Unprotected(f"{self.name} bounds what a person contributes, not a silo")
        if exposure.colluding >= facts.silos:
            return Unprotected("all silos collude: no subject of another silo is left to protect")
        seen = facts.silos if exposure.reveals == "each" else subjects.colluding_factor(facts.silos, exposure.colluding)
        noise, shift = self.noise_over_shift(facts) / math.sqrt(seen), self.moved(exposure, facts)
        rate = self.subject_sample_rate if self.hides_coins(exposure) else 1.0
        if exposure.unit == "subject" and not exposure.replaces:
            return PoissonSampled(rate, Gaussian(noise / shift)) if rate < 1 else Gaussian(noise / shift)
        # Subjects are sampled in both worlds: their whole parts, of up to one clip each, are what the coins hide. A
        # replaced record changes two subjects, each with a coin of its own.
        two = exposure.unit == "record" and exposure.replaces
        rate, place = (subjects.subject_rate(rate, 2), max(2.0, shift)) if two else (rate, max(1.0, shift))
        if rate * place < shift:
            return subjects.sampled_place(rate, Gaussian(noise / place))
        return Gaussian(noise / shift)

    def hides_coins(self, exposure: Exposure) -> bool:
        """Whether a subject who is not sampled changes nothing that the view sees, and it does not know who is."""
        return exposure.reveals == "sum" and exposure.colluding == 0

    def sampling(self, exposure: Exposure) -> str:
        if self.subject_sample_rate == 1 or not self.hides_coins(exposure):
            return "none"
        return f"poisson subjects {self.subject_sample_rate:g}"

    def assumptions(self, exposure: Exposure, facts: Facts) -> tuple[str, ...]:
        shares = "every silo adds its share of the noise"
        if exposure.colluding or exposure.reveals == "each":
            return (shares,)
        if exposure.view.kind == "server" and self.subject_sample_rate < 1:
            return (shares, "the server does not learn the silos' common sampling coins")
        return (shares,)

    def reference_numbers(self, step: ServerStep) -> dict[str, Any]:
        return {"batch_size": 64, "local_epochs": 1, "local_learning_rate": 0.1}


@dataclass(frozen=True)
class SubjectSGD(PerSubject):
    """Tacit's own: sample people, bound a person's total over all silos, add noise once in shares.

    records_per_subject  at most so many of a sampled person's records per silo, chosen at random
    clip_first           clip every record's gradient and average (True), or average and clip (False)
    local_epochs         instead of a gradient: so many passes of local training on the person's records
    local_learning_rate  its rate

    Silos share a secret seed for the coins; a person is in a round with probability exactly ``subject_sample_rate``,
    however many records there are. Weights are 1 / m for at most m silos per person, so they sum to at most 1.
    """

    name = "subject-sgd"
    about = "sample people with one coin for all silos, bound each person's total, noise once in shares"
    paper = "Tacit"

    records_per_subject: Count | None = None
    clip_first: bool = False
    local_epochs: Count | None = None
    local_learning_rate: Positive = 0.1

    @property
    def learning(self) -> Local:
        if self.local_epochs is not None:
            return Local("training", self.local_epochs, self.local_learning_rate)
        return Local("record-gradients" if self.clip_first else "gradient")

    @property
    def record_losses(self) -> str | None:
        return "clip_first" if self.learning.kind == "record-gradients" else None

    @property
    def most_records(self) -> int | None:
        return self.records_per_subject

    def weights_of(self, counts: np.ndarray, totals: np.ndarray, facts: Facts) -> np.ndarray:
        return np.full(len(counts), 1.0 / facts.silos_of_a_subject)

    def divisors(self, facts: Facts) -> Divisors:
        return Divisors(self.people_in_a_round(facts), self.people_in_a_round(facts))

    def largest_weight(self, facts: Facts) -> float:
        return 1.0 / facts.silos_of_a_subject

    def assumptions(self, exposure: Exposure, facts: Facts) -> tuple[str, ...]:
        most = facts.in_few_silos
        return (*super().assumptions(exposure, facts), most)


@dataclass(frozen=True)
class Uldp(PerSubject):
    """What ULDP-AVG and ULDP-SGD share ([ULDP-FL]).

    weights          uniform: 1 / |S|; records: n_su / (1 + N_u), for which somebody must learn how many records a
                     person has in all; capped (Tacit's own): min(n_su, weight_cap) / (weight_cap m), m being the most
                     silos of a person, for which nobody must learn anything
    weight_cap       capped: so many records of a person in a silo count in full; public
    disclose_counts  records: accept that somebody learns; views that do then have no guarantee

    Uniform weights let a person's single record in one silo count as much as a hundred in another. Record weights mend
    that and need counts from elsewhere. Capped weights go half the way with what every silo knows by itself: each is at
    most 1 / m, so that they sum to at most 1 whatever the other silos hold.
    """

    paper = "[ULDP-FL]"
    exchanges = ("plain", "masked", "weighted")

    weights: Weights = "uniform"
    weight_cap: Count | None = None
    disclose_counts: bool = False

    def check(self, exchange: str) -> None:
        if self.weights != "records" and exchange == "weighted":
            problem = "the weighted exchange is for record weights"
            raise UserError("not-supported", "method.weights", problem, 'use weights = "records"')
        if self.weights == "capped" and self.weight_cap is None:
            problem = "is missing: capped weights need it"
            raise UserError("missing", "method.weight_cap", problem, "add it, for example 10")
        if self.weights != "capped" and self.weight_cap is not None:
            problem = "is for capped weights"
            raise UserError("no-effect", "method.weight_cap", problem, 'leave it out, or use weights = "capped"')
        if self.weights == "records" and exchange in ("plain", "masked") and not self.disclose_counts:
            problem = f"with record weights in the {exchange} exchange, somebody learns how many records a person has"
            fix = "use the weighted exchange, uniform weights, or accept it with disclose_counts = true"
            raise UserError("not-supported", "method.weights", problem, fix)

    def weights_of(self, counts: np.ndarray, totals: np.ndarray, facts: Facts) -> np.ndarray:
        if self.weights == "records":
            return counts / (1.0 + totals)
        largest = np.full(len(counts), self.largest_weight(facts))
        return largest if self.weight_cap is None else largest * np.minimum(counts, self.weight_cap) / self.weight_cap

    def largest_weight(self, facts: Facts) -> float:
        return {"uniform": 1.0 / facts.silos, "capped": 1.0 / facts.silos_of_a_subject, "records": 1.0}[self.weights]

    def divisors(self, facts: Facts) -> Divisors:
        return Divisors(self.people_in_a_round(facts) * facts.silos, self.people_in_a_round(facts))

    def shares_slots(self, exposure: Exposure) -> bool:
        """Whether weights depend on the records of a slot, which several people may share."""
        return self.weights == "records" and exposure.index == "slots"

    def moved(self, exposure: Exposure, facts: Facts) -> float:
        if not self.shares_slots(exposure):
            return super().moved(exposure, facts)
        assert facts.max_records is not None
        if exposure.unit == "record":
            shift = slot_record_shift(facts.silos, facts.max_records)
        else:
            shift = slot_shift(facts.silos, facts.max_records, exposure.colluding)
        return 2.0 * shift if exposure.replaces else shift

    def hides_coins(self, exposure: Exposure) -> bool:
        # counts are those of all rounds: who is not sampled changes the weights of others in the same slot
        return super().hides_coins(exposure) and not self.shares_slots(exposure)

    def assumptions(self, exposure: Exposure, facts: Facts) -> tuple[str, ...]:
        known = super().assumptions(exposure, facts)
        return (*known, facts.in_few_silos) if self.weights == "capped" else known

    def event(self, exposure: Exposure, facts: Facts) -> Event:
        if self.weights == "records":
            # silos tell each other the counts, and the server carries them
            if exposure.reveals == "each" or (exposure.index is None and exposure.view.kind != "public"):
                reason = "with record weights in this exchange, this view learns how many records people have"
                return Unprotected(reason)
            if exposure.colluding and exposure.index == "list":
                return Unprotected('with index = "list" silos know who is on the list of all subjects')
            if exposure.index == "slots" and facts.max_records is None:
                return Unprotected("nothing bounds the records of a subject in a silo")
        return super().event(exposure, facts)

    def as_published(self, exposure: Exposure, delta: float, facts: Facts) -> AsPublished | None:
        from tacit.privacy.accounting.as_published import as_published_rdp

        if exposure.unit != "subject":
            return None
        rate = self.subject_sample_rate
        epsilon = as_published_rdp(rate, self.effective_sigma, facts.rounds, delta) if self.sigma else math.inf
        if exposure.replaces:
            return AsPublished(epsilon, "no", "replacing a person moves the sum by twice the clip")
        if self.shares_slots(exposure):
            return AsPublished(epsilon, "no", "it does not count people who share a slot: their weights change, too")
        if exposure.reveals == "sum" and not exposure.colluding:
            return AsPublished(epsilon, "yes", "Renyi accounting; the proved number counts the same mechanism tighter")
        if rate < 1:
            return AsPublished(epsilon, "no", "this view knows who was sampled, so that sampling does not help")
        if self.weights == "uniform":
            return AsPublished(epsilon, "yes", "with uniform weights this view learns no more than the public")
        return AsPublished(epsilon, "no", "it is about who sees only the sum")


@jax.tree_util.register_static
@dataclass(frozen=True)
class CorrelatedNoise:
    """Noise that is correlated over rounds and partly cancels in their sum (``proofs.correlated_noise``).

    groups  people take turns in so many groups, by their keys: everybody takes part in every ``groups``-th round
    bands   the noise of a round reaches back over so many rounds, this one included; 1: independent noise

    The whole training is one Gaussian mechanism: its cost is that of all planned rounds from the first round on. Noise
    has a lower error at equal epsilon where people take turns; where everybody is in every round, one band is best.
    """

    groups: Count = 8
    bands: Count = 8

    def sensitivity(self, rounds: int) -> float:
        """By how many clips somebody moves what noise is added to, over all rounds."""
        return _sensitivity(self.bands, self.groups, rounds)


# asked for again in every step of a search for noise
_sensitivity = lru_cache(maxsize=256)(correlated.sensitivity)


@dataclass(frozen=True)
class UldpAvg(Uldp):
    """ULDP-AVG: everybody trains locally in every silo; differences are clipped, weighted and added up.

    local_epochs         passes over a person's records
    local_learning_rate  rate of a person's own steps
    batch_size           records per step; left out: all of a person's
    correlated_noise     people take turns, and noise partly cancels over rounds (Tacit's own)
    """

    name = "uldp-avg"
    about = "per-person local training in every silo, clipped and weighted (ULDP-AVG)"

    local_epochs: Count = 1
    local_learning_rate: Positive = 0.1
    batch_size: Count | None = None
    correlated_noise: CorrelatedNoise | None = None

    def check(self, exchange: str) -> None:
        super().check(exchange)
        if self.correlated_noise is None:
            return
        field = "method.correlated_noise"
        if exchange != "plain":
            problem = f"the {exchange} exchange draws the noise of every round by itself"
            raise UserError("not-supported", field, problem, 'leave it out, or use exchange.name = "plain"')
        if self.subject_sample_rate < 1:
            problem = "people take turns by their keys: nothing is gained from coins as well"
            raise UserError("conflict", field, problem, "leave out either this or subject_sample_rate")
        if self.adaptive_clip is not None:
            problem = "noise that follows an adaptive clip would not cancel over rounds"
            raise UserError("conflict", field, problem, "leave out either this or adaptive_clip")

    @property
    def joint(self) -> bool:
        return self.correlated_noise is not None

    @property
    def groups(self) -> int:
        return 1 if self.correlated_noise is None else self.correlated_noise.groups

    def sum_noise(self, facts: Facts) -> Noise:
        noise = super().sum_noise(facts)
        return noise if self.correlated_noise is None else replace(noise, weights=self._noise_weights)

    @property
    def _noise_weights(self) -> tuple[float, ...]:
        assert self.correlated_noise is not None
        return correlated.noise_weights(self.correlated_noise.bands)

    def noise_over_shift(self, facts: Facts) -> float:
        alone = super().noise_over_shift(facts)
        return alone if self.correlated_noise is None else alone / self.correlated_noise.sensitivity(facts.rounds)

    def assumptions(self, exposure: Exposure, facts: Facts) -> tuple[str, ...]:
        known = super().assumptions(exposure, facts)
        if self.correlated_noise is None:
            return known
        turns = (
            f"people take turns in {self.groups} groups, one a round, by the hash of their identifiers alone (enforced)"
        )
        return (*known, turns, "silos draw the noise of earlier rounds again from their own keys")

    def as_published(self, exposure: Exposure, delta: float, facts: Facts) -> AsPublished | None:
        return None if self.correlated_noise is not None else super().as_published(exposure, delta, facts)

    @property
    def learning(self) -> Local:
        return Local("training", self.local_epochs, self.local_learning_rate, self.batch_size)

    @property
    def record_losses(self) -> str | None:
        return "batch_size" if self.batch_size is not None else None

    def reference_numbers(self, step: ServerStep) -> dict[str, Any]:
        keys = ("batch_size", "local_epochs", "local_learning_rate")
        return {"batch_size": 64} | {key: getattr(self, key) for key in keys if getattr(self, key) is not None}


@dataclass(frozen=True)
class UldpSGD(Uldp):
    """ULDP-SGD: everybody's gradient in every silo, clipped and weighted; the server takes the step."""

    name = "uldp-sgd"
    about = "per-person gradients in every silo, clipped and weighted (ULDP-SGD)"

    @property
    def learning(self) -> Local:
        return Local("gradient")
