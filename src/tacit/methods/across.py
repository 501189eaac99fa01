"""The two roads of [ULDP-FL] that do not look at people one by one: ULDP-NAIVE and ULDP-GROUP.

``uldp-naive`` clips every silo's whole update and adds noise for all silos at once. ``uldp-group`` runs DP-SGD on
records in every silo, on at most ``group_size`` records of a person over all silos.

Formal guarantees (specification 4.1, 4.2), zero-out of one subject:

- naive: a silo's clipped update depends on everybody in it and may turn around, so the sum moves by 2 clip S against
  noise of standard deviation s clip S: G(s / 2, T), for whoever sees the sum or each silo.
- group: k records, each in a batch with rate q, in whatever silos: a mixture of Gaussians over Binom(k, q). Records in
  different silos are dominated by the same number in one silo.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from tacit.kernels import ServerStep, Work, clipped, descend
from tacit.methods.averaging import like, minus
from tacit.methods.local_noise import NoisyBatches
from tacit.methods.method import (
    Contributions,
    Count,
    Divisors,
    Facts,
    LocalResult,
    LocalTraining,
    Private,
    ServerState,
)
from tacit.privacy import AsPublished, Event, Exposure, Gaussian, Noise, Repeated, Unit, Unprotected
from tacit.privacy.proofs import subject_events as subjects


@dataclass(frozen=True)
class UldpNaive(LocalTraining, Private):
    """ULDP-NAIVE: clipped updates of whole silos, with noise relative to ``clip`` times the number of silos."""

    name = "uldp-naive"
    about = "FedAvg with clipped silo updates and noise for all silos at once (ULDP-NAIVE)"
    paper = "[ULDP-FL]"
    units = ("subject", "silo", "record")
    clips = "a silo's whole update"
    noise_place = "shares, one per silo"
    exchanges = ("plain", "masked")

    def needs(self, unit: Unit) -> tuple[str, ...]:
        return ("silos",)

    def contributions(self, facts: Facts) -> Contributions:
        return Contributions(facts.silos, facts.silos, "silos")

    def sum_noise(self, facts: Facts) -> Noise:
        return Noise(self.sigma * self.clip * facts.silos, "shares")

    def local(self, work: Work, broadcast: Any, state: Any) -> LocalResult:
        trained = descend(work, broadcast, self.local_learning_rate)
        update = ravel_pytree(minus(trained, broadcast))[0]
        here = work.records > 0
        return LocalResult(jnp.where(here, clipped(update, self.clip), 0.0), state, here & ~jnp.isfinite(update).all())

    def divisors(self, facts: Facts) -> Divisors:
        return Divisors(facts.silos)

    def aggregate(self, step: ServerStep, server: ServerState, total: jax.Array, divisors: Divisors) -> ServerState:
        params, optimizer = step.apply(server.params, server.optimizer, like(total / divisors.total, server.params))
        return ServerState(params, optimizer)

    def event(self, exposure: Exposure, facts: Facts) -> Event:
        if self.sigma == 0:
            return Unprotected(f"{self.name} with noise_multiplier 0 adds no noise")
        if exposure.colluding >= facts.silos:
            return Unprotected("all silos collude: nobody is left to protect")
        if exposure.unit == "subject":
            return subjects.naive_silos(self.sigma, 1)
        # one silo: against the noise of all (sum), of itself (each), of those that do not collude
        if exposure.reveals == "each":
            noise = self.sigma * math.sqrt(facts.silos)
        else:
            noise = self.sigma * math.sqrt(facts.silos * (facts.silos - exposure.colluding))
        if exposure.unit == "silo":
            return Gaussian(noise / (2.0 if exposure.replaces else 1.0))
        silos = facts.record_silos_moved(exposure.replaces)  # each of which may turn around
        return Gaussian(noise / (2.0 * (math.sqrt(silos) if exposure.reveals == "each" else silos)))

    def as_published(self, exposure: Exposure, delta: float, facts: Facts) -> AsPublished | None:
        from tacit.privacy.accounting.as_published import as_published_rdp

        if exposure.unit != "subject":
            return None
        epsilon = as_published_rdp(1.0, self.sigma, facts.rounds, delta) if self.sigma else math.inf
        return AsPublished(
            epsilon, "no", "a silo's clipped update may turn around: it moves by 2 C, not C (specification 3)"
        )

    def assumptions(self, exposure: Exposure, facts: Facts) -> tuple[str, ...]:
        return ("every silo adds its share of the noise",)


@dataclass(frozen=True)
class UldpGroup(NoisyBatches):
    """ULDP-GROUP-k: DP-SGD on records, of which a person has at most ``group_size`` over all silos.

    group_size  k, public; each silo keeps at most floor(k / m) of a person's records. ``max`` and ``median`` are
                statistics of the data, as in the paper, and leave nothing that could be proved
    """

    name = "uldp-group"
    about = "DP-SGD in every silo on at most k records per person over all silos (ULDP-GROUP)"
    paper = "[ULDP-FL]"
    units = ("subject", "record")
    clips = "a record's gradient"
    adds_over_silos = False

    group_size: Count | Literal["max", "median"] = 8

    def needs(self, unit: Unit) -> tuple[str, ...]:
        return ("silos", "records_per_silo")

    def records_kept(self, facts: Facts) -> int | None:
        if isinstance(self.group_size, str):
            return None
        return self.group_size // facts.silos_of_a_subject

    def event(self, exposure: Exposure, facts: Facts) -> Event:
        if self.sigma == 0:
            return Unprotected(f"{self.name} with noise_multiplier 0 adds no noise")
        if exposure.unit == "silo":
            return Unprotected(f"{self.name} does not bound what one silo contributes")
        rate, steps = max(self.rates(facts)), max(self.batches(facts))
        records = 1 if exposure.unit == "record" else self.group_size
        if isinstance(records, str):
            return Unprotected(f'group_size = "{records}" is a statistic of the private data')
        if exposure.replaces:  # one record: the cap lets another one of each of two subjects take or lose its place
            moved = 4 if exposure.unit == "record" else 2 * records
            return Repeated(Gaussian(self.of_a_record(facts) / moved), steps)
        if exposure.unit == "record":  # the cap lets another one take its place
            return Repeated(subjects.sampled_place(rate, Gaussian(self.of_a_record(facts) / 2)), steps)
        return subjects.grouped_records(rate, records, self.of_a_record(facts), steps)

    def assumptions(self, exposure: Exposure, facts: Facts) -> tuple[str, ...]:
        kept = self.records_kept(facts)
        return (
            f"each silo uses at most {kept} records of a subject, chosen by that subject's records alone (enforced)",
            facts.in_few_silos,
        )

    def as_published(self, exposure: Exposure, delta: float, facts: Facts) -> AsPublished | None:
        from tacit.privacy.accounting.as_published import as_published_uldp_group

        if exposure.unit != "subject" or isinstance(self.group_size, str) or self.sigma == 0:
            return None
        steps = max(self.batches(facts)) * facts.rounds
        k = self.group_size
        epsilon = as_published_uldp_group(k, max(self.rates(facts)), self.effective_sigma, steps, delta)
        if exposure.replaces:
            return AsPublished(epsilon, "no", f"replacing a person changes up to {2 * k} records, not {k}")
        if k.bit_count() == 1:
            return AsPublished(epsilon, "yes", "sound for a public k that is a power of two; the mixture is tighter")
        return AsPublished(epsilon, "no", f"the paper rounds {k} down to a power of two, which is no bound")
