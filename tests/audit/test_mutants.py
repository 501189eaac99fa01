"""Tacit broken on purpose, in every way that this page can think of: each must be found by an audit or refused.

A mutant changes what is run, never what is claimed. Confidence 99.9 %, fixed seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binomtest

from tacit.audit.cases import case
from tacit.audit.mechanism import audit_mechanism, simulation
from tacit.audit.runs import Finding
from tacit.config import Plan
from tacit.engine.people_work import PeopleWork
from tacit.engine.simulate import Simulation
from tacit.exchange import Plain
from tacit.kernels import PoissonBatches, Steps, clipped
from tacit.kernels.clipped_sum import FINEST
from tacit.kernels.noisy_descent import clipped_records
from tacit.methods.central import DPFedSGD
from tacit.methods.local_noise import HiGrad, LocalRecord
from tacit.methods.per_subject import SubjectSGD, UldpAvg
from tacit.privacy import Noise, Randomness, Stream

ONE = {"noise_multiplier": 1.0, "clip": 1.0}
BATCH = {"sample_rate": 1.0, "batches_per_round": 1, "local_learning_rate": 0.1}
RUNS = 800
DOUBLINGS = 10  # so far above a clip nothing is clipped


def as_kind(kind: type) -> Callable[[Plan], Plan]:
    """The plan with its method as a ``kind`` of the same numbers."""

    def broken(plan: Plan) -> Plan:
        method = kind(**{field.name: getattr(plan.method, field.name) for field in fields(plan.method)})  # type: ignore[arg-type]
        return replace(plan, promise=replace(plan.promise, method=method))

    return broken


def through(exchange: Any) -> Callable[[Plan], Plan]:
    return lambda plan: replace(plan, promise=replace(plan.promise, exchange=exchange))


def audit(method: dict, broken: Callable[[Plan], Plan] | None, view: str = "public", **numbers: Any) -> Finding:
    runs, randomness = numbers.pop("runs", RUNS), numbers.pop("randomness", Randomness.from_seed(5))
    return audit_mechanism(case({**ONE, **method}, **numbers), view, runs=runs, randomness=randomness, broken=broken)


# -- noise


class NoNoise(SubjectSGD):
    def sum_noise(self, facts):
        return Noise(0.0, "shares")


class HalfNoise(SubjectSGD):
    def sum_noise(self, facts):
        return Noise(super().sum_noise(facts).std / 2, "shares")


class HalfNoiseByServer(DPFedSGD):
    def sum_noise(self, facts):
        return Noise(super().sum_noise(facts).std / 2, "once")


class NoBatchNoise(HiGrad):
    def noise_levels(self, facts):
        return (0.0,)


class HalfBatchNoise(HiGrad):
    def noise_levels(self, facts):
        return (self.sigma / 2,)


@dataclass(frozen=True)
class OneSiloForgets(Plain):
    """The first silo leaves out its share of the noise."""

    def noised(self, total, step, noise, keys, weights):
        silos = keys.shape[1] - 1
        for k in range(1, silos):
            total = self.share(total, step, noise, silos, keys[:, k], weights)
        return total


@dataclass(frozen=True)
class FirstSiloQuiet(PoissonBatches):
    def draw(self, silos, streams, width):
        drawn = super().draw(silos, streams, width)
        drawn.noise[: len(silos)][[rows.silo == 0 for rows in silos]] = 0.0
        return drawn


class OneSiloForgetsBatches(HiGrad):
    def schedule(self, facts):
        made = super().schedule(facts)
        return FirstSiloQuiet(**{field.name: getattr(made, field.name) for field in fields(made)})


# -- clipping and weighting


class NoClip(SubjectSGD):
    largest_count = 2.0**DOUBLINGS  # room for what is not clipped

    def broadcast(self, server):
        return server.params, server.extra * 2.0**DOUBLINGS

    def scale(self, clip, step):
        return jnp.float32(1 / step)


@dataclass(frozen=True)
class ClipsTheSum(Plain):
    def noised(self, total, step, noise, keys, weights):
        together = clipped(total.numbers(step), 1.0)
        return super().noised(in_steps(together, step), step, noise, keys, weights)


def clip_after_sum(plan: Plan) -> Plan:
    return through(ClipsTheSum())(as_kind(NoClip)(plan))


def in_steps(numbers, step) -> Steps:
    return Steps.zeros(numbers.shape).added(jnp.round(numbers / step).astype(jnp.int32))


def unclipped_records(work, params, t, clip, counts):
    found = clipped_records(work, params, t, clip * 2.0**DOUBLINGS, counts)
    vector = found.vector
    for _ in range(DOUBLINGS):
        vector = vector.plus(vector)
    return found._replace(vector=vector)


def records_clipped_together(work, params, t, clip, counts):
    found = unclipped_records(work, params, t, clip, counts)
    step = FINEST * clip
    return found._replace(vector=in_steps(clipped(found.vector.numbers(step), clip), step))


class NoClipInBatches(LocalRecord):
    @property
    def rule(self):
        return unclipped_records


class ClipBatchesAfterSum(LocalRecord):
    @property
    def rule(self):
        return records_clipped_together


class AddedUp(HiGrad):
    """A person's gradients in a batch are added up, not averaged."""

    averaged = False


class DoubleWeights(UldpAvg):
    def weights_of(self, counts, totals, facts):
        return 2 * super().weights_of(counts, totals, facts)


class DoubleWeightsUnchecked(UldpAvg):
    def scale(self, clip, step):
        return 2 * super().scale(clip, step)


# -- sampling, divisors, seeds


class SameSetAgain(Randomness):
    """Who is in a round is drawn once, for all rounds."""

    def _derive(self, purpose: str, *place: int) -> bytes:
        return super()._derive(purpose, *((0, *place[1:]) if purpose in ("subjects", "batches", "silos") else place))


class SameSeedInAllSilos(Randomness):
    def stream(self, purpose: str, *place: int) -> Stream:
        return super().stream(purpose, *(place[:1] if purpose in ("noise", "batches") else place))


def sampled_twice_as_often(plan: Plan) -> Plan:
    """The engine draws with twice the rate that was promised."""
    method = replace(plan.method, subject_sample_rate=2 * plan.method.subject_sample_rate)  # type: ignore[attr-defined]
    return replace(plan, promise=replace(plan.promise, method=method))


def divided_by_realised_batch(work, params, t, clip, counts):
    found, blocks = clipped_records(work, params, t, clip, counts), work.batches.blocks[t]
    return found._replace(divisor=jnp.maximum(blocks[-1] - blocks[0], 1).astype(jnp.float32))


class RealisedDivisor(LocalRecord):
    @property
    def rule(self):
        return divided_by_realised_batch


SUBJECT = {"name": "subject-sgd"}
HIGRAD = {"name": "higrad", **BATCH}
RECORD = {"name": "local-record", **BATCH}

# what is broken -> method, mutant, and how it is looked at
MUTANTS: dict[str, tuple[dict, Callable[[Plan], Plan] | None, dict]] = {
    "noise off": (SUBJECT, as_kind(NoNoise), {}),
    "noise off, in batches": (HIGRAD, as_kind(NoBatchNoise), {}),
    "half the noise": (SUBJECT, as_kind(HalfNoise), {}),
    "half the noise, by a trusted server": ({"name": "dp-fedsgd"}, as_kind(HalfNoiseByServer), {}),
    "half the noise, in batches": (HIGRAD, as_kind(HalfBatchNoise), {}),
    "one silo's noise missing": (SUBJECT, through(OneSiloForgets()), {"runs": 3000}),
    "one silo's noise missing, in batches": (HIGRAD, as_kind(OneSiloForgetsBatches), {"view": "server"}),
    "clip off": (SUBJECT, as_kind(NoClip), {}),
    "clip off, in batches": (RECORD, as_kind(NoClipInBatches), {}),
    "clip after sum": (SUBJECT, clip_after_sum, {"others": "against"}),
    "clip after sum, in batches": (RECORD, as_kind(ClipBatchesAfterSum), {"others": "against", "view": "server"}),
    "added up instead of averaged": (HIGRAD, as_kind(AddedUp), {}),
    "weights that sum to 2": ({"name": "uldp-avg"}, as_kind(DoubleWeightsUnchecked), {}),
    "divisor by realised batch": (RECORD, as_kind(RealisedDivisor), {"others": "against", "view": "server"}),
    "seed reused across silos": (
        SUBJECT,
        None,
        {"view": "silo", "randomness": SameSeedInAllSilos(bytes(32))},
    ),
    "seed reused across silos, in batches": (
        HIGRAD,
        None,
        {"view": "server", "subject_silos": 1, "randomness": SameSeedInAllSilos(bytes(32))},
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_mutant_is_caught(name):
    method, broken, look = MUTANTS[name]
    assert audit(method, broken, **look).refuted


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_the_same_audit_finds_nothing_where_nothing_is_broken(name):
    """The mutant's twin: the same world, view and number of runs, with the code as it is."""
    method, _, look = MUTANTS[name]
    assert not audit(method, None, **{key: value for key, value in look.items() if key != "randomness"}).refuted


def test_weights_that_sum_to_two_are_refused_before_anything_is_released():
    with pytest.raises(AssertionError) as caught:
        audit({"name": "uldp-avg"}, as_kind(DoubleWeights), runs=1)
    assert caught.traceback[-1].name == "_checked_weights"


def test_a_mutant_differs_from_its_method_in_nothing_that_is_claimed():
    one = case({**ONE, **SUBJECT})
    assert as_kind(HalfNoise)(one.plan).promise.facts == one.plan.promise.facts
    assert np.isclose(as_kind(HalfNoise)(one.plan).method.sigma, 1.0)  # type: ignore[attr-defined]


# -- who takes part: the coins themselves, over many rounds. (Reuse shows in a model only where noise is so rare that
#    millions of rounds would be needed; in the coins it shows at once.)


def coins(sim: Simulation, number: int) -> np.ndarray:
    """All coins of a round in a fixed order: of people, or of every record in every batch of every silo."""
    drawn = sim.work.draw(number)
    if isinstance(sim.work, PeopleWork):
        return np.isin(np.arange(sim.federation.subject_count), sim.work._subject[drawn.entries])
    rows, found = len(sim.federation.train), []
    for group in (group for lane in drawn for group in lane):
        for place, records, blocks, steps in zip(
            group.places, *group.batches[:1], group.batches.blocks, group.batches.steps, strict=True
        ):
            if place < sim.federation.silo_count:
                found += [
                    np.isin(np.arange(rows), records[blocks[t, 0] : blocks[t, -1]])[sim.federation.train.silo == place]
                    for t in range(steps)
                ]
    return np.concatenate(found)


def suspicious(sim: Simulation, rate: float, rounds: int = 300) -> set[str]:
    """What is wrong with the coins, each by an exact test with error probability 1e-6."""
    flips = np.stack([coins(sim, number) for number in range(1, rounds + 1)])
    again = flips[::2] & flips[1::2]  # disjoint pairs of rounds
    side = flips[:, ::2] & flips[:, 1::2] if flips.shape[1] % 2 == 0 else flips[:, :-1:2] & flips[:, 1::2]
    found = {
        "rate": (flips, rate),
        "rounds": (again, rate**2),
        "neighbours": (side, rate**2),
    }
    return {
        name for name, (heads, chance) in found.items() if binomtest(int(heads.sum()), heads.size, chance).pvalue < 1e-6
    }


SAMPLED = {
    "people": ({**SUBJECT, "subject_sample_rate": 0.2}, 0.2),
    "records": ({"name": "higrad", **BATCH, "sample_rate": 0.2, "batches_per_round": 2}, 0.2),
}


@pytest.mark.parametrize("name", SAMPLED)
def test_coins_have_the_public_rate_and_are_independent(name):
    method, rate = SAMPLED[name]
    one = case({**ONE, **method})
    assert not suspicious(simulation(one.plan, one.present, Randomness.from_seed(1)), rate)


@pytest.mark.parametrize("name", SAMPLED)
def test_a_sampled_set_that_is_reused_is_caught(name):
    method, rate = SAMPLED[name]
    one = case({**ONE, **method})
    assert "rounds" in suspicious(simulation(one.plan, one.present, SameSetAgain(bytes(32))), rate)


def test_people_who_are_sampled_twice_as_often_are_caught():
    method, rate = SAMPLED["people"]
    one = case({**ONE, **method})
    assert "rate" in suspicious(
        simulation(sampled_twice_as_often(one.plan), one.present, Randomness.from_seed(1)), rate
    )
