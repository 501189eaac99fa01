"""One record less in the largest silo or node, across a power of two: what every other one computes stays the same to
the last bit, and the release moves by no more than is accounted for.

Gradients cancel here: the features of a silo are huge and sum to zero, and what is left of a gradient is rounding. It
depends on the order of additions, and exceeds the clip. Where the padding of others follows the largest silo, their
clipped contributions turn around.
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.data import Federation
from tacit.engine.kernel import outputs, own_outputs, prepared
from tacit.engine.learner import learner
from tacit.engine.simulate import Simulation
from tacit.exchange import Grid
from tacit.families.gossip import worker
from tacit.families.gossip.kernels import noised
from tacit.kernels import Objective, Schedule
from tacit.kernels.batches import Rows
from tacit.methods.base import ServerRule
from tacit.models import build, task_for
from tacit.planning.plan import Plan
from tacit.privacy import Randomness
from tacit.privacy.invalid import InvalidArgument
from tests.methods.worlds import federation, planned
from tests.neighbours.shifts import allowed
from tests.refusals import refuses

CLIP, NOISE = 1.0, 5.0
# the first loses a record: 33 are padded to 64, and 32 are not
SIZES = (33, *(30,) * 9)
STEP = 2.0**-20


def worlds(people: bool) -> tuple[Federation, Federation]:
    """With and without the first record of the largest silo, each record a person; ``people``: of the largest person,
    each in a silo alone."""
    rng, features = np.random.default_rng(0), []
    for size in SIZES:
        own, half = 1e10 * rng.normal(size=(size, 1)), size // 2
        own[half:] = 0.0
        own[half : 2 * half] = -own[:half]
        features.append(own[rng.permutation(size)])
    owner = np.repeat(np.arange(len(SIZES)), SIZES)
    rows = np.concatenate(features), np.ones(len(owner)), owner if people else np.arange(len(owner)), owner
    whole, less = (federation(*(part[n:] for part in rows), silos=len(SIZES), subjects=200) for n in (0, 1))
    return whole, less


def simulated(method: dict[str, Any], people: bool = False) -> tuple[Plan, Simulation, Simulation]:
    plan = planned(
        {"noise_multiplier": NOISE, "clip": CLIP, **method},
        silos=len(SIZES),
        seed=1,
        data={"task": "real", "subjects": {"column": "person", "count": 200}, "records_per_silo": 40},
        privacy={"max_records_per_subject_and_silo": 40},
        model={"name": "linear"},
    )
    start = learner(plan.experiment.model, worlds(people)[0].labels, (1,), Randomness.from_seed(1))
    whole, less = (Simulation(plan, made, start, Randomness.from_seed(1)) for made in worlds(people))
    return plan, whole, less


def accounted(plan: Plan) -> float:
    """By how much one record may move what is released, over the standard deviation of its noise."""
    return allowed(plan.promise.event("record", plan.promise.views[0]))


def sent(sim: Simulation) -> np.ndarray:
    """What every silo sends, in steps of a fine grid: ``[silos, numbers]``."""
    return integers(sim, sim.work.draw(1))


def integers(sim: Simulation, drawn: Any) -> np.ndarray:
    return sim.work.integers(drawn, sim.given(sim.broadcast), Grid(STEP)).parts


FAR = {"local_learning_rate": 1.0}  # a single step goes beyond the clip
SILO_METHODS: dict[str, dict[str, Any]] = {
    "dp-fedavg": {"name": "dp-fedavg", **FAR},
    "dp-fedavg, large batches": {"name": "dp-fedavg", "batch_size": 64, **FAR},
    "dp-fedsgd": {"name": "dp-fedsgd"},
    "per-fedavg": {"name": "per-fedavg", "inner_learning_rate": 1e-9, **FAR},
    "uldp-naive": {"name": "uldp-naive", **FAR},
}


@pytest.mark.parametrize("name", SILO_METHODS)
def test_no_silo_computes_otherwise_because_another_has_a_record_less(name):
    plan, whole, less = simulated(SILO_METHODS[name])
    one, other = sent(whole), sent(less)
    assert (np.linalg.norm(one[1:], axis=1) * STEP > 0.9 * CLIP).all()  # all of them are clipped
    np.testing.assert_array_equal(one[1:], other[1:])
    noise = plan.method.noise.in_a_round
    assert np.linalg.norm((one - other).sum(axis=0)) * STEP / noise <= accounted(plan) + 1e-5


def test_own_models_do_not_change_because_another_silo_has_a_record_less():
    _, whole, less = simulated({"name": "fine-tune", "personal_epochs": 1})
    for one, other in zip(*(jax.tree.leaves(sim.own_models()) for sim in (whole, less)), strict=True):
        np.testing.assert_array_equal(np.asarray(one)[1:], np.asarray(other)[1:])


@pytest.mark.parametrize("nodes", ["silos", "subjects"])
def test_no_node_computes_otherwise_because_another_has_a_record_less(nodes):
    """What every node adds its noise to, in whole steps."""
    method = {"name": "muffliato-sgd", "nodes": nodes, "topology": "complete", **FAR}
    plan, whole, less = simulated(method, people=nodes == "subjects")
    found: list[tuple[np.ndarray, float]] = []

    def watched(moves: np.ndarray, step: float, *rest: Any) -> Any:
        found.append((moves.copy(), step))
        return noised(moves, step, *rest)

    with patch.object(worker, "noised", watched):
        for sim in (whole, less):
            sim.round(1)
    (one, step), (other, _) = found
    changed = np.flatnonzero((one != other).any(axis=1))
    norms = np.linalg.norm(one, axis=1) * step
    assert (norms > 0.9 * CLIP).sum() == len(SIZES)  # everybody is clipped
    assert len(changed) <= 1
    # the noise of all nodes hides the sum over nodes
    moved = np.linalg.norm((one - other).sum(axis=0)) * step
    assert moved / (np.sqrt(len(one)) * NOISE * CLIP) <= accounted(plan) + 1e-5


@pytest.mark.parametrize(("name", "nodes"), [("random-walk", "silos"), ("local-walk", "subjects")])
def test_no_step_of_a_walk_changes_because_another_node_has_a_record_less(name, nodes):
    method = {"name": name, "nodes": nodes, "walk_steps": 1}
    _, *sims = simulated(method, people=nodes == "subjects")
    held = np.flatnonzero(sims[0].work._counts)
    (largest,) = held[sims[0].work._counts[held] == SIZES[0]]
    assert len(held) == len(SIZES)
    for node in held[held != largest]:
        one, other = (
            np.asarray(sim.work.do((1, np.array([node])), sim.given(sim.broadcast)).totals[0]) for sim in sims
        )
        np.testing.assert_array_equal(one, other)


def test_how_many_silos_share_a_call_does_not_change_a_bit():
    _, sim, _ = simulated({"name": "dp-fedavg"})
    together = sent(sim)
    alone = [[sim.work._group(1, [k])] for k in range(len(SIZES))]
    parts = [integers(sim, [lane]) for lane in alone]
    np.testing.assert_array_equal(together, np.sum(parts, axis=0))


@pytest.mark.parametrize("name", ["local-record", "user-ldp"])
def test_room_for_more_sampled_records_does_not_change_a_bit(name):
    """Padding of Poisson batches follows the largest silo of a call: it is in no sum."""
    _, sim, _ = simulated({"name": name, "sample_rate": 0.5, "batches_per_round": 1})
    group = sim.work.draw(1)[0][0]
    batches = group.batches
    records, weights = (np.pad(part, ((0, 0), (0, 3 * part.shape[1]))) for part in batches[:2])
    wider = group._replace(batches=batches._replace(records=records, weights=weights))
    given = (sim.broadcast, sim.frozen, sim.states, sim.arrays)
    one, other = (sim.kernels.each(*given, of.batches, of.counts, of.used).vector for of in (group, wider))
    assert np.abs(np.asarray(one)).max() > 0
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("schedule", [Schedule(), Schedule(16), Schedule(16, epochs=3), Schedule(64, steps=2)])
def test_silos_share_a_plan_only_if_their_own_records_pad_them_alike(schedule):
    silos = [Rows(k, 0, size, np.array([0, size])) for k, size in enumerate((5, 30, 70))]
    streams = [Randomness.from_seed(1).stream("batches", k) for k in range(3)]
    if len({schedule.shape(silo) for silo in silos}) == 1:
        schedule.draw(silos, streams, 4)
    else:
        with refuses("mismatch", "silos", InvalidArgument):
            schedule.draw(silos, streams, 4)
    for silo, stream in zip(silos, streams, strict=True):
        assert schedule.draw([silo], [stream], 4).records.shape[1:] == schedule.shape(silo)


def test_what_is_computed_of_a_row_does_not_depend_on_how_many_rows_there_are():
    """Features that a model prepares, and outputs that metrics are made of."""
    rng = np.random.default_rng(2)
    task = task_for("multiclass", 10)
    model = build("edges", (12, 12), task.outputs)
    objective = Objective(model.apply, task, model.prepare)
    rows = rng.normal(size=(300, 12, 12)).astype(np.float32)
    params = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), model.init(jax.random.key(0)))
    every, scores = prepared(objective, rows), outputs(objective, params, rows)
    for first, last in ((1, 300), (0, 257), (0, 256), (5, 70), (0, 64), (299, 300)):
        np.testing.assert_array_equal(prepared(objective, rows[first:last]), every[first:last])
        np.testing.assert_array_equal(outputs(objective, params, rows[first:last]), scores[first:last])
    models = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), params)
    silo = np.arange(300) % 7 // 6
    own = own_outputs(objective, models, rows, silo, ServerRule.outputs)
    for first, last in ((1, 300), (0, 43), (0, 8)):
        part = own_outputs(objective, models, rows[first:last], silo[first:last], ServerRule.outputs)
        np.testing.assert_array_equal(part, own[first:last])
