"""Tacit broken on purpose, in every way that this page can think of: each must be found by an audit or refused.

A mutant changes what is run, never what is claimed. Confidence 99.9 %, fixed seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binomtest

from tacit.auditing.cases import case
from tacit.auditing.mechanism import Finding, audit_mechanism, simulation
from tacit.engine.people_work import PeopleWork
from tacit.engine.simulate import Simulation
from tacit.exchange import Plain
from tacit.kernels import PoissonBatches, Steps, clipped
from tacit.kernels.exact_sums import FINEST
from tacit.kernels.noisy_descent import clipped_records
from tacit.methods import Facts, Method
from tacit.methods.base import ServerRule, part
from tacit.methods.clips import SubjectClip
from tacit.methods.local_noise import NoisySteps
from tacit.methods.per_subject import SubjectWork
from tacit.planning.plan import Plan
from tacit.privacy import Randomness, Stream

ONE = {"noise_multiplier": 1.0, "clip": 1.0}
BATCH = {"sample_rate": 1.0, "batches_per_round": 1, "local_learning_rate": 0.1}
RUNS = 800
DOUBLINGS = 10  # so far above a clip nothing is clipped


def with_parts(change: Callable[[Method], Method]) -> Callable[[Plan], Plan]:
    """The plan with a method of the same options whose parts are changed, apart from its claim."""

    def broken(plan: Plan) -> Plan:
        kind = type(plan.options)

        class Broken(kind):  # type: ignore[misc, valid-type]
            def build(self, facts: Facts) -> Method:
                whole = super().build(facts)
                return replace(change(whole), claim=whole.claim)

        options = Broken(**{field.name: getattr(plan.options, field.name) for field in fields(plan.options)})
        return replace(plan, promise=replace(plan.promise, options=options))

    return broken


def as_kind(kind: type, name: str = "work") -> Callable[[Plan], Plan]:
    """The plan with one part of its method as a ``kind`` of the same numbers."""
    return with_parts(lambda method: replace(method, **{name: recast(getattr(method, name), kind)}))


def recast(one: Any, kind: type) -> Any:
    return kind(**{field.name: getattr(one, field.name) for field in fields(one)})


def noise_times(factor: float) -> Callable[[Plan], Plan]:
    return with_parts(lambda method: replace(method, noise=replace(method.noise, std=method.noise.std * factor)))


def through(exchange: Any) -> Callable[[Plan], Plan]:
    return lambda plan: replace(plan, promise=replace(plan.promise, exchange=exchange))


def audit(method: dict, broken: Callable[[Plan], Plan] | None, view: str = "public", **numbers: Any) -> Finding:
    runs, randomness = numbers.pop("runs", RUNS), numbers.pop("randomness", Randomness.from_seed(5))
    return audit_mechanism(case({**ONE, **method}, **numbers), view, runs=runs, randomness=randomness, broken=broken)


# -- noise


@part
class NoBatchNoise(NoisySteps):
    def noise_levels(self, facts):
        return (0.0,)


@part
class HalfBatchNoise(NoisySteps):
    def noise_levels(self, facts):
        return (self.clip.sigma / 2,)


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


@part
class OneSiloForgetsBatches(NoisySteps):
    def schedule(self, facts):
        made = super().schedule(facts)
        return FirstSiloQuiet(**{field.name: getattr(made, field.name) for field in fields(made)})


# -- clipping and weighting


@part
class NoClip(SubjectClip):
    largest_count = 2.0**DOUBLINGS  # room for what is not clipped

    def scale(self, clip, step):
        return jnp.float32(1 / step)


@part
class WideClip(ServerRule):
    def broadcast(self, server):
        return server.params, server.extra * 2.0**DOUBLINGS


def not_clipped(method: Method) -> Method:
    return replace(method, clip=recast(method.clip, NoClip), server=recast(method.server, WideClip))


@dataclass(frozen=True)
class ClipsTheSum(Plain):
    def noised(self, total, step, noise, keys, weights):
        together = clipped(total.numbers(step), 1.0)
        return super().noised(in_steps(together, step), step, noise, keys, weights)


def clip_after_sum(plan: Plan) -> Plan:
    return through(ClipsTheSum())(with_parts(not_clipped)(plan))


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


@part
class NoClipInBatches(NoisySteps):
    rules: ClassVar[Any] = {"record": unclipped_records}


@part
class ClipBatchesAfterSum(NoisySteps):
    rules: ClassVar[Any] = {"record": records_clipped_together}


def added_up(method: Method) -> Method:
    """A person's gradients in a batch are added up, not averaged."""
    return replace(method, work=replace(method.work, clip=replace(method.work.clip, averaged=False)))


@part
class DoubleWeights(SubjectWork):
    def weights_of(self, counts, totals, facts):
        return 2 * super().weights_of(counts, totals, facts)


@part
class DoubleWeightsUnchecked(SubjectClip):
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
    return with_parts(lambda method: replace(method, work=replace(method.work, rate=2 * method.work.rate)))(plan)


def divided_by_realised_batch(work, params, t, clip, counts):
    found, blocks = clipped_records(work, params, t, clip, counts), work.batches.blocks[t]
    return found._replace(divisor=jnp.maximum(blocks[-1] - blocks[0], 1).astype(jnp.float32))


@part
class RealisedDivisor(NoisySteps):
    rules: ClassVar[Any] = {"record": divided_by_realised_batch}


SUBJECT = {"name": "subject-sgd"}
HIGRAD = {"name": "higrad", **BATCH}
RECORD = {"name": "local-record", **BATCH}

# what is broken -> method, mutant, and how it is looked at
MUTANTS: dict[str, tuple[dict, Callable[[Plan], Plan] | None, dict]] = {
    "noise off": (SUBJECT, noise_times(0.0), {}),
    "noise off, in batches": (HIGRAD, as_kind(NoBatchNoise), {}),
    "half the noise": (SUBJECT, noise_times(0.5), {}),
    "half the noise, by a trusted server": ({"name": "dp-fedsgd"}, noise_times(0.5), {}),
    "half the noise, in batches": (HIGRAD, as_kind(HalfBatchNoise), {}),
    "one silo's noise missing": (SUBJECT, through(OneSiloForgets()), {"runs": 3000}),
    "one silo's noise missing, in batches": (HIGRAD, as_kind(OneSiloForgetsBatches), {"view": "server"}),
    "clip off": (SUBJECT, with_parts(not_clipped), {}),
    "clip off, in batches": (RECORD, as_kind(NoClipInBatches), {}),
    "clip after sum": (SUBJECT, clip_after_sum, {"others": "against"}),
    "clip after sum, in batches": (RECORD, as_kind(ClipBatchesAfterSum), {"others": "against", "view": "server"}),
    "added up instead of averaged": (HIGRAD, with_parts(added_up), {}),
    "weights that sum to 2": ({"name": "uldp-avg"}, as_kind(DoubleWeightsUnchecked, "clip"), {}),
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
    assert noise_times(0.5)(one.plan).promise.facts == one.plan.promise.facts
    assert noise_times(0.5)(one.plan).options.noise_value == 1.0
    assert noise_times(0.5)(one.plan).method.claim == one.plan.method.claim


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
