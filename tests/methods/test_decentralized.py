"""Methods without a server: what they compute, what they promise, and that the two belong together."""

from __future__ import annotations

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import tacit
from tacit.data import Federation, Labels, Records
from tacit.engine.charges import check_goes_on
from tacit.engine.learner import learner
from tacit.engine.simulate import Simulation, by_subject
from tacit.families.gossip import worker
from tacit.families.gossip.graphs import GraphChoice, mixing
from tacit.families.gossip.kernels import contracting_weights, node_step, noised
from tacit.kernels import Arrays, key_words
from tacit.models import convexity
from tacit.models.images import edges
from tacit.planning import preview as planner
from tacit.privacy import Gaussian, Randomness, RandomWalk, Repeated, View, account
from tacit.privacy.accounting.gaussian import gaussian_epsilon
from tests.made import experiment as made_experiment
from tests.made import visits
from tests.refusals import refuses

FEATURES = 3


def made_federation(sizes: list[int], seed: int = 0) -> Federation:
    """Silos of the given sizes, two records to a person, three features and a binary label."""
    rng = np.random.default_rng(seed)
    silo = np.repeat(np.arange(len(sizes)), sizes).astype(np.int32)
    features = (rng.normal(size=(len(silo), FEATURES)) + 0.3 * silo[:, None]).astype(np.float32)
    labels = (features @ rng.normal(size=FEATURES) + rng.normal(size=len(silo)) > 0).astype(np.int32)
    subject = (np.arange(len(silo)) // 2).astype(np.int32)
    records = Records(features, labels, subject, silo).grouped()
    names = tuple(f"silo {k + 1}" for k in range(len(sizes)))
    return Federation(records, records, Labels("binary", ("0", "1")), names, len(silo) // 2, ("a", "b", "c"), "records")


def planned(method: dict, *, silos: int = 6, subjects: int = 60, rounds: int = 5, **sections):
    data = {
        "silos": {"column": "silo", "count": silos},
        "subjects": {"column": "person", "count": subjects},
        "task": "binary",
        "numeric": ["a", "b", "c"],
    }
    content = {"seed": 1, "data": data, "method": method, "train": {"rounds": rounds, **sections.pop("train", {})}}
    return tacit.plan({**content, "model": {"name": "logistic"}, **sections})


def simulated(federation: Federation, method: dict, **sections) -> Simulation:
    plan = planned(method, silos=federation.silo_count, subjects=federation.subject_count, **sections)
    randomness = Randomness.from_seed(1)
    start = learner(plan.experiment.model, federation.labels, (FEATURES,), randomness)
    return Simulation(plan, federation, start, randomness)


def weights(simulation: Simulation) -> np.ndarray:
    return np.asarray(ravel_pytree(simulation.model())[0])


# -- gossip


@pytest.mark.parametrize("local", [{"local_epochs": 3}, {"batch_size": 4, "local_epochs": 2}])
def test_gossip_on_the_complete_graph_is_fedavg(local):
    federation = made_federation([12] * 6)
    ours = simulated(federation, {"name": "gossip-sgd", "topology": "complete", **local})
    theirs = simulated(federation, {"name": "fedavg", **local})
    for number in (1, 2, 3):
        ours.round(number)
        theirs.round(number)
        np.testing.assert_allclose(weights(ours), weights(theirs), atol=1e-6)
    assert np.abs(weights(ours)).max() > 0.05


def test_a_round_of_gossip_is_local_training_and_a_product_with_the_weights():
    federation = made_federation([8, 20, 12, 6, 30])
    numbers = {"local_epochs": 2, "local_learning_rate": 0.3}
    ours = simulated(federation, {"name": "gossip-sgd", "topology": "ring", "gossip_steps": 2, **numbers})
    alone = simulated(federation, {"name": "silo-only", **numbers})
    ours.round(1)
    alone.round(1)
    trained = np.asarray(jax.vmap(lambda tree: ravel_pytree(tree)[0])(alone.model()))
    network_ = mixing(GraphChoice("ring", 5)).weights.toarray()
    np.testing.assert_allclose(np.asarray(ours.states), network_ @ network_ @ trained, atol=1e-6)
    np.testing.assert_allclose(weights(ours), trained.mean(axis=0), atol=1e-6)


@pytest.mark.parametrize(
    "graph",
    [{"topology": "torus"}, {"topology": "ring", "changing": True}, {"topology": "ring", "acceleration": "chebyshev"}],
)
def test_nodes_come_to_agree_and_to_learn(graph):
    federation = made_federation([10] * 9)
    sim = simulated(federation, {"name": "gossip-sgd", "gossip_steps": 8, "local_epochs": 5, **graph}, rounds=20)
    for number in range(1, 21):
        sim.round(number)
    spread = np.abs(np.asarray(sim.states) - weights(sim)).max()
    assert spread < 0.2 * np.abs(weights(sim)).max()
    assert sim.evaluate(federation, False).overall["accuracy"] > 0.75


def test_people_are_nodes_with_all_their_records():
    federation = made_federation([10] * 4)
    split = by_subject(federation, 25)
    assert split.silo_count == 25
    assert [len(silo) for silo in split.silos] == [2] * 20 + [0] * 5
    sim = simulated(federation, {"name": "gossip-sgd", "nodes": "subjects", "topology": "ring"})
    sim.round(1)
    assert sim.states.shape == (20, FEATURES + 1)
    assert np.isfinite(weights(sim)).all()
    crowded = by_subject(federation, 10)  # two people in every place
    assert [len(silo) for silo in crowded.silos] == [4] * 10


def test_people_who_share_a_place_are_clipped_apart():
    """Two people pull a node in opposite directions, one of them harder: both move it by their clip."""
    features, labels = np.array([[1.0, 0, 0], [50.0, 0, 0]], np.float32), np.array([1, 0], np.int32)
    rows = Records(features, labels, subject=np.array([0, 5]), silo=np.zeros(2, np.int32))
    made = Federation(rows, rows, Labels("binary", ("0", "1")), ("one", "two"), 5, ("a", "b", "c"), "records")
    method = {"name": "muffliato-sgd", "nodes": "subjects", "noise_multiplier": 0.0, "clip": 0.01}
    states = []
    for kept in (slice(0, 2), slice(0, 1), slice(1, 2)):
        sim = simulated(replace(made, train=rows.take(kept)), method | {"local_learning_rate": 5.0}, rounds=1)
        sim.round(1)
        states.append(np.asarray(sim.states))
    both, first, second = states
    assert both.shape == (5, FEATURES + 1)
    np.testing.assert_allclose(both, first + second, atol=1e-6)
    for alone in (first, second):
        assert 0.001 < np.linalg.norm(both - alone) <= 0.01 * (1 + 1e-5)


# -- private gossip


def test_every_node_adds_its_own_noise_of_the_planned_size():
    key = key_words(Randomness.from_seed(3).stream("noise"))
    drawn = noised(np.zeros((50, 4000), np.int64), node_step(1.0, 2.0), 2.0, key)
    # 200,000 normals: each of these fails with probability below 1e-6
    assert abs(drawn.std() - 2.0) < 0.02
    assert np.abs(np.corrcoef(drawn) - np.eye(50)).max() < 0.1
    again = noised(np.zeros((50, 4000), np.int64), node_step(1.0, 2.0), 2.0, key)
    np.testing.assert_array_equal(drawn, again)


def test_private_averaging_has_the_noise_of_a_trusted_server_once_nodes_agree():
    network_ = mixing(GraphChoice("hypercube", 16))
    values = np.tile(np.arange(16)[:, None], (1, 20000))
    key = key_words(Randomness.from_seed(4).stream("noise"))
    after = network_.gossip(noised(values * 1024, 1 / 1024, 3.0, key).astype(np.float32), 40, "none")
    assert np.abs(after - after[0]).max() < 1e-3
    assert after.mean() == pytest.approx(7.5, abs=0.05)
    assert after[0].std() == pytest.approx(3.0 / 4, rel=0.05)


def test_a_nodes_update_is_clipped_before_noise_is_added():
    federation = made_federation([10] * 5)
    method = {"name": "muffliato-sgd", "noise_multiplier": 0.0, "clip": 0.01, "local_learning_rate": 5.0}
    sim = simulated(federation, {**method, "topology": "complete"})
    sim.round(1)
    assert np.linalg.norm(weights(sim)) <= 0.01
    noisy = simulated(federation, {**method, "noise_multiplier": 2.0, "topology": "complete"})
    noisy.round(1)
    assert np.linalg.norm(weights(noisy)) > 0.01
    key = key_words(Randomness.from_seed(1).stream("noise", 1))
    drawn = noised(np.zeros(noisy.states.shape, np.int64), node_step(0.01, 0.02), 0.02, key)
    np.testing.assert_allclose(weights(noisy) - weights(sim), drawn.mean(axis=0), atol=1e-7)


@pytest.mark.parametrize("nodes", ["silos", "subjects"])
def test_a_model_does_not_round_an_update_before_the_noise(nodes, monkeypatch):
    """A clip of 1e-6 beside weights of about 1, which have steps of 6e-8: a node zeroed out moves by one clip."""
    clip, sent = 1e-6, []
    federation = made_federation([10] * 5)
    silent = replace(federation, train=replace(federation.train, features=federation.train.features.copy()))
    silent.train.features[federation.train.silo == 0] = np.inf
    monkeypatch.setattr(worker, "noised", lambda *moves: sent.append(noised(*moves)) or sent[-1])
    method = {"name": "muffliato-sgd", "noise_multiplier": 5.0, "clip": clip, "topology": "complete", "nodes": nodes}
    for made in (federation, silent):
        sim = simulated(made, method)
        sim.states = jnp.ones_like(sim.states)
        sim.round(1)
    moved = np.linalg.norm(sent[0] - sent[1], axis=1) / clip
    assert 0.99 < moved.max() <= 1.0


def test_all_take_over_one_nodes_value_where_they_adopt_it():
    federation = made_federation([10] * 6)
    method = {"name": "muffliato-sgd", "noise_multiplier": 0.5, "adopt": True, "gossip_steps": 2}
    sim = simulated(federation, method)
    sim.round(1)
    states = np.asarray(sim.states)
    np.testing.assert_array_equal(states, np.broadcast_to(states[0], states.shape))
    np.testing.assert_array_equal(states[0], weights(sim))


def epsilons(plan) -> dict[str, float]:
    return {str(guarantee.view): guarantee.epsilon for guarantee in plan.guarantees()}


def test_hidden_states_leave_local_privacy_against_everybody():
    plan = planned({"name": "muffliato-sgd", "noise_multiplier": 4.0, "topology": "complete"})
    local = gaussian_epsilon(math.sqrt(5) / 4, 1e-5)
    assert epsilons(plan) == pytest.approx({"public": local, "neighbour": local})


def test_with_a_public_state_the_public_sees_one_row_and_a_neighbour_everything():
    method = {"name": "muffliato-sgd", "noise_multiplier": 4.0, "topology": "ring", "adopt": True, "gossip_steps": 3}
    plan = planned(method, silos=8)
    row = mixing(GraphChoice("ring", 8)).row(0, 3)
    share = (row**2).max() / (row**2).sum()
    found = epsilons(plan)
    assert found["neighbour"] == pytest.approx(gaussian_epsilon(math.sqrt(5) / 4, 1e-5))
    assert found["public"] == pytest.approx(gaussian_epsilon(math.sqrt(5 * share) / 4, 1e-5))
    uniform = epsilons(planned({**method, "topology": "complete"}, silos=8))["public"]
    assert uniform == pytest.approx(gaussian_epsilon(math.sqrt(5 / 8) / 4, 1e-5))


def test_those_further_away_learn_less_and_coalitions_more():
    method = {"name": "muffliato-sgd", "noise_multiplier": 4.0, "topology": "ring", "gossip_steps": 3, "adopt": True}
    views = ["neighbour", "neighbour:5", "neighbour:7", "coalition:[0]", "coalition:[0,6]"]
    found = epsilons(planned(method, silos=16, privacy={"against": views}))
    assert found["neighbour"] == found["coalition:[0]"] == found["coalition:[0,6]"]
    assert found["neighbour"] > found["neighbour:5"] > found["neighbour:7"] > 0
    far = planned(method, silos=16, privacy={"against": ["neighbour:9"]}).guarantees()[0]
    assert not far.finite  # nobody is so far away


@pytest.mark.parametrize(("adopt", "why"), [(True, "the value that all adopt"), (False, "states are hidden")])
def test_the_published_sum_is_printed_with_what_it_leaves_out(adopt, why):
    method = {"name": "muffliato-sgd", "noise_multiplier": 4.0, "topology": "ring", "gossip_steps": 3, "adopt": adopt}
    published = planned(method, silos=8).guarantees()[1].as_published
    assert published is not None
    assert published.valid == "no"
    assert why in published.reason


def test_a_round_alone_is_exact_without_a_public_state():
    method = {"name": "muffliato-sgd", "noise_multiplier": 4.0, "topology": "ring", "gossip_steps": 3}
    once = epsilons(planned(method, silos=12, rounds=1, privacy={"against": ["neighbour:5"]}))
    assert once["neighbour:5"] < epsilons(planned(method, silos=12, rounds=1))["neighbour"]
    twice = epsilons(planned(method, silos=12, rounds=2, privacy={"against": ["neighbour:5"]}))
    assert twice["neighbour:5"] == pytest.approx(gaussian_epsilon(math.sqrt(2) / 4, 1e-5))


def test_units_and_relations():
    base = {"name": "muffliato-sgd", "noise_multiplier": 4.0}
    mu = math.sqrt(5) / 4

    def public(unit: str, relation: str | None = None, **method) -> float:
        privacy = {"unit": unit, "against": ["public"], "max_silos_per_subject": 2}
        privacy |= {} if relation is None else {"relation": relation}
        return planned({**base, **method}, privacy=privacy).guarantees()[0].epsilon

    assert public("silo") == pytest.approx(gaussian_epsilon(mu, 1e-5))
    assert public("silo", "replace") == pytest.approx(gaussian_epsilon(2 * mu, 1e-5))
    assert public("subject") == pytest.approx(gaussian_epsilon(2 * math.sqrt(2) * mu, 1e-5))
    assert public("subject", nodes="subjects") == pytest.approx(gaussian_epsilon(mu, 1e-5))
    assert public("silo", nodes="subjects") == math.inf
    assert planned({**base, "nodes": "subjects"}).promise.unit == "subject"


def test_the_network_of_a_plan_lists_every_pair_and_agrees_with_its_guarantees():
    method = {"name": "muffliato-sgd", "noise_multiplier": 4.0, "topology": "torus", "gossip_steps": 2, "adopt": True}
    plan = planned(method, silos=9, privacy={"against": ["neighbour", "neighbour:2"]})
    found = planner.outlook(plan).parts["network"]
    assert found is not None
    assert len(found.edges) == 18
    largest = {at.distance: at.largest for at in found.by_distance}
    guaranteed = epsilons(plan)
    assert largest[1] == pytest.approx(guaranteed["neighbour"], rel=2e-3)
    assert largest[2] == pytest.approx(guaranteed["neighbour:2"], rel=2e-3)
    assert all(found.epsilons[k][k] == math.inf for k in range(9))
    assert planner.outlook(planned({"name": "fedavg"})).parts == {}


# -- a walk


def test_the_walk_is_amplified_only_where_every_step_contracts():
    walk = {"name": "random-walk", "noise_multiplier": 8.0, "walk_steps": 50, "nodes": "subjects"}
    convex = planned(walk, subjects=100)
    event = convex.promise.event("subject", View.parse("neighbour"))
    assert event == RandomWalk(100, 250, 4.0, contracts=True)
    together = convex.promise.event("subject", View.parse("coalition:[3,4]"))
    assert together == RandomWalk(100, 250, 4.0, contracts=False)
    assert convexity("edges", "multiclass") == convexity("logistic", "multiclass")  # linear in its parameters, too
    deep = planned(walk, subjects=100, model={"name": "mlp", "hidden": [4]})
    assert deep.promise.event("subject", View.parse("neighbour")) == together
    local = planned({**walk, "name": "local-walk"}, subjects=100)
    assert local.promise.event("subject", View.parse("public")) == together
    assert epsilons(convex)["neighbour"] < epsilons(deep)["neighbour"] == epsilons(local)["neighbour"]


def test_a_subject_of_several_silos_is_visited_more_often():
    plan = planned({"name": "random-walk", "noise_multiplier": 8.0, "walk_steps": 50}, silos=10)
    privacy = {"unit": "subject", "max_silos_per_subject": 3, "relation": "zero-out"}
    some = planned({"name": "random-walk", "noise_multiplier": 8.0, "walk_steps": 50}, silos=10, privacy=privacy)
    assert plan.promise.event("silo", View.parse("public")) == RandomWalk(10, 250, 4.0)
    assert some.promise.event("subject", View.parse("public")) == RandomWalk(3, 250, 4.0, contracts=False)
    everywhere = planned({"name": "random-walk", "noise_multiplier": 8.0}, silos=3, privacy={"unit": "subject"})
    assert everywhere.promise.event("subject", View.parse("public")) == Repeated(Gaussian(4.0), 500)


@pytest.mark.parametrize("kind", ["binary", "multiclass"])
def test_weighted_losses_have_short_gradients_and_contracting_steps(kind):
    """At random models and records of all sizes: gradients within the clip, and no two models further apart."""
    rng = np.random.default_rng(5)
    outputs = 1 if kind == "binary" else 4
    features = rng.normal(size=(40, 6)) * 10.0 ** rng.uniform(-2, 2, size=(40, 1))
    labels = rng.integers(max(2, outputs), size=40)
    found = convexity("logistic", kind)
    assert found is not None
    clip, rate = 0.7, 3.0
    arrays = Arrays(jnp.asarray(features, jnp.float32), jnp.asarray(labels))
    scale = np.asarray(contracting_weights(arrays, found, clip, rate), np.float64)
    rows = np.concatenate([features, np.ones((40, 1))], axis=1)

    def gradients(theta: np.ndarray) -> np.ndarray:
        """[records, outputs, features + 1], weighted."""
        logits = rows @ theta.T
        if kind == "binary":
            error = (1 + np.tanh(logits / 2)) / 2 - labels[:, None]
        else:
            power = np.exp(logits - logits.max(axis=1, keepdims=True))
            error = power / power.sum(axis=1, keepdims=True) - np.eye(outputs)[labels]
        return scale[:, None, None] * error[:, :, None] * rows[:, None, :]

    for _ in range(30):
        near = rng.normal(size=(outputs, 7)) * 10.0 ** rng.uniform(-2, 1)
        far = near + rng.normal(size=near.shape) * 10.0 ** rng.uniform(-3, 1)
        assert np.linalg.norm(gradients(near), axis=(1, 2)).max() <= clip * (1 + 1e-6)
        apart = near - far - rate * (gradients(near) - gradients(far))
        assert np.linalg.norm(apart, axis=(1, 2)).max() <= np.linalg.norm(near - far) * (1 + 1e-6)


def test_a_walk_without_noise_takes_clipped_steps_at_the_nodes_it_visits():
    federation = made_federation([10] * 5)
    method = {"name": "random-walk", "noise_multiplier": 0.0, "clip": 0.5, "walk_steps": 7, "local_learning_rate": 0.4}
    sim = simulated(federation, method)
    sim.round(1)
    path = Randomness.from_seed(1).stream("walk", 1).integers(5, 7)
    train, theta = federation.train, np.zeros(FEATURES + 1)
    rows = np.concatenate([np.ones((50, 1)), train.features], axis=1)  # b before w
    size = (rows**2).sum(axis=1)
    scale = np.minimum(1, np.minimum(0.5 / np.sqrt(size), 2 / (0.4 * 0.25 * size)))
    for node in path:
        own = train.silo == node
        error = 1 / (1 + np.exp(-rows[own] @ theta)) - train.labels[own]
        theta = theta - 0.4 * (scale[own] * error) @ rows[own] / own.sum()
    np.testing.assert_allclose(weights(sim), theta, atol=1e-6)


def test_a_walk_over_images_weighs_them_by_what_its_model_makes_of_them():
    """``edges`` is linear in features of its own; raw pixels are larger, and would weigh too little."""
    rng = np.random.default_rng(2)
    images, labels = rng.normal(size=(8, 28, 28)).astype(np.float32), np.arange(8, dtype=np.int32)
    silo = np.repeat(np.arange(2), 4).astype(np.int32)
    records = Records(images, labels, np.arange(8, dtype=np.int32), silo)
    digits = Labels("multiclass", tuple(map(str, range(10))))
    columns = tuple(f"p{i}" for i in range(28 * 28))
    federation = Federation(records, records, digits, ("a", "b"), 8, columns, "records")
    clip, rate = 0.5, 0.3
    walk = {"name": "random-walk", "noise_multiplier": 0.0, "clip": clip, "walk_steps": 1, "local_learning_rate": rate}
    data = {"source": "mnist", "silos": {"assign": "uniform", "count": 2}}
    plan = tacit.plan({"seed": 1, "data": data, "model": {"name": "edges"}, "method": walk, "train": {"rounds": 1}})
    randomness = Randomness.from_seed(1)
    start = learner(plan.experiment.model, digits, (28, 28), randomness)
    sim = Simulation(plan, federation, start, randomness)
    sim.round(1)
    own = silo == int(Randomness.from_seed(1).stream("walk", 1).integers(2, 1)[0])
    made = np.asarray(edges((28, 28), 10).prepare(jnp.asarray(images)))[own]
    size = 1 + (made**2).sum(axis=1)
    scale = np.minimum(1, np.minimum(clip / np.sqrt(2 * size), 2 / (rate * 0.5 * size)))
    error = scale[:, None] * (0.1 - np.eye(10)[labels[own]])  # [records, outputs]
    expected = np.concatenate([error.mean(axis=0), (error.T @ made / 4).ravel()])  # b before w
    np.testing.assert_allclose(weights(sim), -rate * expected, atol=1e-6)


def test_the_noise_of_a_walk_has_the_planned_size_in_every_step():
    federation = made_federation([4] * 5)
    method = {"name": "random-walk", "noise_multiplier": 100.0, "clip": 1e-6, "walk_steps": 200}
    sim = simulated(federation, {**method, "local_learning_rate": 1.0})
    found = []
    for number in range(1, 61):
        before = weights(sim)
        sim.round(number)
        found.append(weights(sim) - before)
    # 240 normals of deviation 1e-4 sqrt(200), beside which 200 gradients of 1e-6 are small: five standard errors
    assert np.std(found) == pytest.approx(1e-4 * math.sqrt(200), rel=0.25)


def test_walks_reach_every_node_and_learn():
    federation = made_federation([6] * 30)
    method = {"name": "random-walk", "noise_multiplier": 0.2, "clip": 1.0, "walk_steps": 200, "nodes": "subjects"}
    sim = simulated(federation, method, rounds=10)
    for number in range(1, 11):
        sim.round(number)
    assert sim.evaluate(federation, False).overall["accuracy"] > 0.7


# -- plans and runs


def test_what_needs_a_server_is_refused():
    for train in ({"server_learning_rate": 2.0}, {"server_optimizer": "adam"}):
        with refuses("no-effect", f"train.{next(iter(train))}"):
            planned({"name": "gossip-sgd"}, train=train)
    with refuses("not-supported", "exchange.name", names=["masked"]):
        planned({"name": "gossip-sgd"}, exchange={"name": "masked"})
    with refuses("unknown-name", "privacy.against", names=["server"]):
        planned({"name": "gossip-sgd"}, privacy={"against": ["server"]})
    with refuses("not-supported", "exchange.name"):
        planned({"name": "fedavg"}, exchange={"name": "direct"})


def test_a_graph_that_does_not_exist_is_refused_before_any_record_is_read():
    with refuses("invalid-value", "method.topology"):
        planned({"name": "gossip-sgd", "topology": "hypercube"}, silos=6)


def test_a_walk_that_was_stopped_does_not_go_on():
    """The model at which it stopped is another release. Of a local walk every step is public."""
    stopped, public = (
        planned({"name": name, "noise_multiplier": 8.0}, silos=10, seed=7) for name in ("random-walk", "local-walk")
    )
    with refuses("cannot-resume", "--resume"):
        check_goes_on(stopped)
    check_goes_on(public)


@pytest.mark.parametrize(("name", "evaluated"), [("random-walk", [0, 4]), ("local-walk", [0, 1, 2, 3, 4])])
def test_a_walk_that_releases_its_last_model_evaluates_no_other(name, evaluated, tmp_path):
    experiment = made_experiment() | {"method": {"name": name, "noise_multiplier": 8.0}}
    experiment["data"]["silos"] |= {"count": 3}
    run = tacit.run(experiment, frame=visits(), out=tmp_path / "run")
    assert run.history()["round"].tolist() == evaluated


@pytest.mark.parametrize("name", ["gossip-sgd", "muffliato-sgd", "random-walk"])
def test_a_node_alone_is_told_to_find_others(name):
    with refuses("too-few", "method.nodes"):
        planned({"name": name} | ({} if name == "gossip-sgd" else {"noise_multiplier": 1.0}), silos=1)


def test_a_guarantee_among_nodes_counts_on_their_number():
    plan = planned({"name": "random-walk", "noise_multiplier": 1.0}, silos=7)
    federation = made_federation([10] * 5)
    start = learner(plan.experiment.model, federation.labels, (FEATURES,), Randomness.from_seed(1))
    with refuses("mismatch", "data.silos.count"):
        Simulation(plan, federation, start, Randomness.from_seed(1))


@pytest.mark.parametrize(
    "method",
    [
        {"name": "gossip-sgd", "topology": "complete"},
        {"name": "muffliato-sgd", "target_epsilon": 8.0, "adopt": True, "gossip_steps": 4, "acceleration": "chebyshev"},
        {"name": "random-walk", "target_epsilon": 8.0, "walk_steps": 60},
    ],
    ids=lambda method: method["name"],
)
def test_a_run_leaves_a_report_and_a_ledger(method, tmp_path):
    experiment = {
        "seed": 3,
        "data": {"source": "randhie"},
        "model": {"name": "logistic"},
        "method": method,
        "train": {"rounds": 3},
    }
    run = tacit.run(tacit.plan(experiment), out=tmp_path / "run")
    assert run.metrics["accuracy"] > 0.4
    page = (run.path / "report.html").read_text()
    assert ("The network" in page) == (method["name"] != "random-walk")
    found = {g["view"]: g["epsilon"] for g in run.result["guarantees"]}
    assert set(found) == {"public", "neighbour"}
    if "target_epsilon" in method:
        assert 7.9 < max(found.values()) <= 8.0
        lines = (run.path / "ledger.jsonl").read_text().splitlines()
        assert len(lines) == 3


def test_the_walk_of_a_plan_costs_what_the_recursion_says():
    plan = planned(
        {"name": "random-walk", "noise_multiplier": 4.0, "walk_steps": 400, "nodes": "subjects"}, subjects=200
    )
    found = epsilons(plan)["neighbour"]
    assert found == pytest.approx(account(RandomWalk(200, 2000, 2.0), 1e-5).epsilon)
