"""Models of one's own: where they meet local and global training, what leaves a silo, and what is said about it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.stats import chi2

import tacit
from tacit.auditing.views import contributions
from tacit.data import Federation
from tacit.engine.kernel import outputs, own_outputs
from tacit.engine.learner import load_tree, save_tree
from tacit.engine.simulate import Simulation
from tacit.families.personal.kernels import (
    component_losses,
    learned_relations,
    meta_gradient,
    mixed_outputs,
    proximal_point,
    responsibilities,
    smoothing,
    towards,
)
from tacit.kernels import Arrays, Objective
from tacit.methods import METHODS
from tacit.methods.central import STAYS
from tacit.models import build, task_for
from tests.methods.worlds import epsilon, federation, planned, random_federation, simulation
from tests.refusals import refuses

NAMES = [name for name, kind in METHODS.items() if (kind.info.personal and kind.info.private)]
# without noise and with a clip that nothing reaches
BARE = {"noise_multiplier": 0, "clip": 1e9}
TRAINING = {"local_learning_rate": 0.05, "batches_per_round": 4, "batch_size": 5}
SILOS = 3


def different_silos(silos: int = SILOS, rows: int = 12, seed: int = 0) -> Federation:
    """Linear regression with another line in every silo."""
    rng = np.random.default_rng(seed)
    silo = np.repeat(np.arange(silos), rows)
    features = rng.normal(size=(silos * rows, 4))
    lines = rng.normal(size=(silos, 4))
    return federation(features, (features * lines[silo]).sum(axis=1), np.arange(silos * rows), silo, silos)


def trained(name: str, rounds: int = 3, made: Federation | None = None, **numbers: Any) -> Simulation:
    bare = BARE if (METHODS[name].info.personal and METHODS[name].info.private) or name == "dp-fedavg" else {}
    sim = simulation(made or different_silos(), {"name": name, **bare, **TRAINING, **numbers})
    for number in range(1, rounds + 1):
        sim.round(number)
    return sim


def rows(stacked: Any) -> np.ndarray:
    """Stacked models as ``[silos, numbers]``."""
    return np.asarray(jax.vmap(lambda own: ravel_pytree(own)[0])(stacked))


def flat(model: Any) -> np.ndarray:
    return np.asarray(ravel_pytree(model)[0])


def close(one: np.ndarray, other: np.ndarray, tolerance: float = 2e-5) -> None:
    np.testing.assert_allclose(one, other, atol=tolerance)


# -- between local and global training ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mean-regularized", "graph-regularized"])
def test_without_a_pull_every_silo_trains_alone(name):
    ours, alone = trained(name, personal_weight=0), trained("silo-only")
    close(rows(ours.own_models()), rows(alone.own_models()))
    assert np.abs(rows(alone.own_models())).max() > 0.1  # it did move


@pytest.mark.parametrize("name", ["mean-regularized", "graph-regularized"])
def test_with_an_endless_pull_everybody_has_the_model_of_federated_averaging(name):
    ours, together = trained(name, personal_weight=1e7), trained("dp-fedavg")
    close(flat(ours.shared_model()), flat(together.model()))
    for own in rows(ours.own_models()):
        close(own, flat(together.model()))


@pytest.mark.parametrize("weight", [0.3, 5.0])
def test_with_all_relations_equal_the_graph_pulls_towards_the_mean(weight):
    equal = [[1 / SILOS] * SILOS] * SILOS
    mean = trained("mean-regularized", personal_weight=weight)
    for relations in ("complete", equal):
        graph = trained("graph-regularized", personal_weight=weight, relations=relations)
        close(rows(graph.own_models()), rows(mean.own_models()))
        close(flat(graph.shared_model()), flat(mean.shared_model()))


def test_a_pull_between_the_two_gives_models_between_the_two():
    def spread(weight: float) -> float:
        return float(rows(trained("mean-regularized", personal_weight=weight).own_models()).std(axis=0).mean())

    found = [spread(weight) for weight in (0, 1, 10, 1e7)]
    assert found == sorted(found, reverse=True)
    assert found[0] > 2 * found[2]


def test_pfedme_without_a_pull_trains_alone_and_leaves_the_global_model_where_it_is():
    ours = trained("pfedme", personal_weight=0, inner_steps=1, inner_learning_rate=0.05)
    alone = trained("silo-only")
    close(rows(ours.states), rows(alone.own_models()))
    assert np.abs(flat(ours.shared_model())).max() == 0


def test_pfedme_with_a_strong_pull_is_federated_averaging():
    # lambda (w - x) is a difference of nearly equal numbers: 1e3 leaves four digits of float32
    ours = trained("pfedme", personal_weight=1e3, inner_steps=5, inner_learning_rate=0.05)
    together = trained("dp-fedavg")
    close(flat(ours.shared_model()), flat(together.model()), 0.03 * np.abs(flat(together.model())).max())
    for own in rows(ours.own_models()):
        close(own, flat(together.model()), 0.03 * np.abs(flat(together.model())).max())


@pytest.mark.parametrize("order", ["first-order", "hessian-vector"])
def test_per_fedavg_without_an_inner_step_is_federated_averaging(order):
    # one batch of everything: the three batches of a step are then the one of dp-fedavg
    numbers = {"batch_size": None, "batches_per_round": 3}
    ours = trained("per-fedavg", inner_learning_rate=0, order=order, **numbers)
    together = trained("dp-fedavg", **numbers)
    close(flat(ours.shared_model()), flat(together.model()))
    for own in rows(ours.own_models()):
        close(own, flat(together.model()))


def test_a_mixture_of_one_is_federated_averaging():
    ours, together = trained("fedem", components=1), trained("dp-fedavg")
    close(flat(ours.shared_model()["components"]), flat(together.model()))
    np.testing.assert_array_equal(ours.states, 1.0)


def test_fine_tuning_starts_at_the_private_model_and_ends_nearer_to_each_silos_own_line():
    ours, together = trained("fine-tune", personal_epochs=20), trained("dp-fedavg")
    close(flat(ours.shared_model()), flat(together.model()))
    scores = ours.evaluate(ours.federation, per_silo=True)
    assert scores.shared is not None
    for name, values in scores.silos.items():
        assert values["rmse"] < scores.shared.silos[name]["rmse"]


@pytest.mark.parametrize("name", NAMES)
def test_own_models_are_better_than_one_for_everybody_where_silos_differ(name):
    numbers = {"inner_learning_rate": 0.2} if name == "per-fedavg" else {"personal_weight": 0.5}
    own_numbers = numbers if name not in ("fedem", "fine-tune") else {}
    scores = trained(name, rounds=8, **own_numbers).evaluate(different_silos(), per_silo=True)
    assert scores.shared is not None
    assert scores.overall["rmse"] < scores.shared.overall["rmse"]


# -- the parts ---------------------------------------------------------------------------------------------------------


def quartic(params: Any) -> jax.Array:
    """A loss whose Hessian changes from place to place."""
    x = params["x"]
    return jnp.sum(x**4) / 4 + jnp.prod(x) + jnp.sum(jnp.sin(x))


def test_the_product_goes_through_batches_in_passes():
    """A batch of more rows than one pass is a loop: its derivative is that of the whole."""
    model = build("logistic", (3,), 1)
    objective = Objective(model.apply, task_for("binary", 2))
    rng = np.random.default_rng(0)
    arrays = Arrays(jnp.asarray(rng.normal(size=(1500, 3)), jnp.float32), jnp.asarray(rng.integers(2, size=1500)))
    params = jax.tree.map(lambda leaf: leaf + 0.3, model.init(jax.random.key(0)))
    vector = jax.tree.map(jnp.ones_like, params)
    index = jnp.asarray(np.arange(2048) % 1500)

    def in_passes(own: Any) -> Any:
        return objective.batch_gradient(own, {}, arrays, index, jnp.int32(1500))

    whole = jax.grad(lambda own: objective.loss(own, {}, *arrays, jnp.ones(1500)))
    for found, expected in (
        (in_passes(params), whole(params)),
        tuple(jax.jvp(gradient, (params,), (vector,))[1] for gradient in (in_passes, whole)),
    ):
        close(flat(found), flat(expected), 1e-5)


def test_the_meta_gradient_is_the_gradient_of_the_loss_after_a_step():
    gradient, rate = jax.grad(quartic), 0.1
    at = {"x": jnp.array([0.3, -0.7, 1.1])}
    after = jax.grad(lambda params: quartic({"x": params["x"] - rate * gradient(params)["x"]}))(at)
    exact = meta_gradient(gradient, gradient, gradient, at, rate, "hessian-vector")
    close(np.asarray(exact["x"]), np.asarray(after["x"]), 1e-5)
    simpler = meta_gradient(gradient, gradient, gradient, at, rate, "first-order")
    assert np.abs(np.asarray(simpler["x"] - after["x"])).max() > 0.01


def test_a_proximal_point_minimises_loss_and_distance():
    centre = {"x": jnp.array([1.0, -1.0])}
    found = proximal_point(lambda p: {"x": 2 * p["x"]}, {"x": jnp.zeros(2)}, centre, 3.0, 0.1, 200)
    # x^2 + 3/2 (x - c)^2 is least at 3 c / 5
    close(np.asarray(found["x"]), np.asarray(centre["x"]) * 0.6, 1e-5)
    close(np.asarray(towards({"x": jnp.zeros(2)}, centre, 1e12)["x"]), np.asarray(centre["x"]), 1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_smoothing_averages_and_solves_its_problem(seed):
    rng = np.random.default_rng(seed)
    relations = rng.random((6, 6)) * (rng.random((6, 6)) < 0.5)
    relations = relations + relations.T
    strength = float(rng.uniform(0.1, 20))
    matrix = np.asarray(smoothing(jnp.asarray(relations), strength), np.float64)
    close(matrix.sum(axis=1), np.ones(6), 1e-5)
    close(matrix, matrix.T, 1e-5)
    assert matrix.min() > -1e-6
    x = rng.normal(size=(6, 2))
    y = matrix @ x
    np.fill_diagonal(relations, 0)
    pulls = strength * (relations.sum(axis=1)[:, None] * y - relations @ y)
    close(y - x + pulls, np.zeros((6, 2)), 1e-3)


def test_learned_relations_find_who_is_alike():
    rng = np.random.default_rng(0)
    groups = np.repeat([0, 1], 3)
    models = jnp.asarray(groups[:, None] * 5.0 + 0.1 * rng.normal(size=(6, 8)))
    found = np.asarray(learned_relations(models, 0.2))
    close(found, found.T, 1e-6)
    close(np.diag(found), np.zeros(6))
    same = groups[:, None] == groups[None]
    assert found[same & ~np.eye(6, dtype=bool)].min() > 20 * found[~same].max()
    assert np.isfinite(np.asarray(learned_relations(jnp.zeros((4, 3)), 0.2))).all()  # where all still are the same


def test_a_graph_learns_relatives_and_serves_them_better_than_a_ring():
    """Silos 0, 2, 4 share a line, and 1, 3, 5 another: on a ring everybody's neighbours are strangers."""
    rng = np.random.default_rng(1)
    silo = np.repeat(np.arange(6), 8)
    features = rng.normal(size=(48, 4))
    lines = np.where(np.arange(6)[:, None] % 2 == 0, 1.0, -1.0) * rng.normal(size=4)
    noise = rng.normal(size=48)
    made = federation(features, (features * lines[silo]).sum(axis=1) + noise, np.arange(48), silo, 6)
    truth = replace(made, test=replace(made.test, labels=(made.test.features * lines[made.test.silo]).sum(axis=1)))

    def error(relations: str) -> float:
        sim = trained("graph-regularized", 12, made, personal_weight=20.0, relations=relations)
        return float(sim.evaluate(truth, per_silo=True).overall["rmse"])

    assert error("learned") < 0.7 * error("ring")


# -- mixtures ----------------------------------------------------------------------------------------------------------


def two_sources(seed: int = 0) -> tuple[Federation, np.ndarray]:
    """Four silos with different shares of two opposite lines; and those shares, as drawn."""
    rng = np.random.default_rng(seed)
    shares, size = np.array([0.95, 0.9, 0.1, 0.05]), 40
    silo = np.repeat(np.arange(4), size)
    features = 2 * rng.normal(size=(4 * size, 4))
    sign = np.where(rng.random(4 * size) < shares[silo], 1.0, -1.0)
    labels = sign * features.sum(axis=1) / 2
    drawn = (sign > 0).reshape(4, size).mean(axis=1)
    return federation(features, labels, np.arange(4 * size), silo, 4), drawn


def likelihood(sim: Simulation) -> float:
    """Of all records under each silo's own mixture."""
    train, components = sim.federation.train, sim.server.params["components"]
    records = (array[: len(train)] for array in sim.arrays)
    losses = component_losses(sim.learner.objective, components, sim.frozen, *records)
    weights = np.asarray(sim.states)[train.silo]
    return float(jax.nn.logsumexp(jnp.log(weights) - losses, axis=1).sum())


def test_the_likelihood_never_falls():
    made, _ = two_sources()
    method = {"name": "fedem", **BARE, "components": 2, "local_learning_rate": 0.02}
    sim = simulation(made, method, rounds=40)
    found = [likelihood(sim)]
    for number in range(1, 41):
        sim.round(number)
        found.append(likelihood(sim))
    rises = np.diff(found)
    assert rises.min() > -1e-3 * abs(found[-1]) / 1000  # float32 sums of 160 records
    assert found[-1] > found[0] + 100


def test_a_mixture_finds_the_sources_and_every_silos_shares():
    made, shares = two_sources()
    sim = simulation(made, {"name": "fedem", **BARE, "components": 2, "local_learning_rate": 0.05}, rounds=40)
    for number in range(1, 41):
        sim.round(number)
    weights = np.asarray(sim.own_models()["mixture"]["weights"])
    close(weights.sum(axis=1), np.ones(4), 1e-5)
    first = weights[:, 0] if weights[0, 0] > 0.5 else weights[:, 1]
    close(first, shares, 0.08)


def test_responsibilities_are_bayes_rule():
    losses, weights = jnp.array([[0.0, 1.0], [2.0, 0.0]]), jnp.array([0.25, 0.75])
    joint = np.array([0.25, 0.75]) * np.exp(-np.asarray(losses))
    close(np.asarray(responsibilities(losses, weights)), joint / joint.sum(axis=1, keepdims=True), 1e-6)


@pytest.mark.parametrize(("kind", "width"), [("binary", 1), ("multiclass", 3), ("real", 1)])
def test_a_mixture_mixes_probabilities(kind, width):
    found = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5, width)) * 3, jnp.float32)
    weights = jnp.array([0.3, 0.7])
    mixed = np.asarray(mixed_outputs(task_for(kind, width), found, weights))
    assert mixed.shape == (5, width)
    of = {"binary": jax.nn.sigmoid, "multiclass": lambda z: jax.nn.softmax(z, axis=-1), "real": lambda z: z}[kind]
    close(np.asarray(of(jnp.asarray(mixed))), np.asarray(0.3 * of(found[0]) + 0.7 * of(found[1])), 1e-5)


# -- what leaves -------------------------------------------------------------------------------------------------------


def private(name: str, made: Federation, **numbers: Any) -> Simulation:
    method = {"name": name, "clip": 0.7, "noise_multiplier": 3.0, "local_learning_rate": 0.3, "batch_size": 4}
    return simulation(made, {**method, "batches_per_round": 3, **numbers})


@pytest.mark.parametrize("name", NAMES)
def test_a_silo_sends_at_most_its_clip_and_its_absence_changes_nobody_else(name):
    """On records of any scale, some of which cannot be computed, and with memories from earlier rounds."""
    for seed in range(2):
        made = random_federation(np.random.default_rng(seed))
        sim = private(name, made)
        sim.round(1)
        sim.round(2)
        sent = contributions(sim, 3).astype(np.float64)
        assert np.isfinite(sent).all()
        assert np.linalg.norm(sent, axis=1).max() <= 0.7
        gone = 1
        without = replace(made, train=made.train.take(made.train.silo != gone))
        other = private(name, without)
        other.server, other.states = sim.server, sim.states
        left = contributions(other, 3)
        np.testing.assert_array_equal(left[gone], 0.0)
        np.testing.assert_allclose(np.delete(left, gone, axis=0), np.delete(sent, gone, axis=0), atol=1e-5)
    assert np.linalg.norm(sent, axis=1).max() > 0.6  # the bound is reached


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_the_noise_has_the_stated_variance_on_every_number_that_is_released(name, rate):
    sim = private(name, different_silos(), silo_sample_rate=rate)
    zero = sim.work.nothing(sim.given(sim.broadcast)).vector
    # what the server makes of a sum of nothing, beside what it makes of it without noise
    bare = private(name, different_silos(), silo_sample_rate=rate, noise_multiplier=0)
    nothing = bare.work.nothing(bare.given(bare.broadcast)).vector
    still = flat(bare.kernels.aggregate(sim.server, (nothing, nothing), bare.keys(1)).params)
    noise = np.concatenate(
        [
            flat(sim.kernels.aggregate(sim.server, (zero, zero), sim.keys(number)).params) - still
            for number in range(1, 101)
        ]
    )
    divisor = 1.0 if name == "graph-regularized" else rate * SILOS
    low, high = chi2.ppf([5e-7, 1 - 5e-7], noise.size)
    assert low < np.square(noise * divisor / (3.0 * 0.7)).sum() < high


def test_what_could_not_be_computed_is_not_kept():
    made = different_silos()
    features = np.where(made.train.silo[:, None] == 1, np.inf, made.train.features).astype(np.float32)
    sim = private("mean-regularized", replace(made, train=replace(made.train, features=features)))
    sim.round(1)
    kept = rows(sim.states)
    assert np.isfinite(kept).all()
    np.testing.assert_array_equal(kept[1], flat(sim.learner.params))
    assert int(sim.not_finite) == 1


# -- what is promised --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_promise_is_that_of_dp_fedavg_and_says_that_own_models_stay(name):
    numbers = {"noise_multiplier": 5.0, "silo_sample_rate": 0.3}
    data = {"numeric": ["a", "b"]}
    plan = planned({"name": name, **numbers}, silos=5, rounds=100, data=data)
    like = planned({"name": "dp-fedavg", **numbers}, silos=5, rounds=100, data=data)
    assert epsilon(plan, "public") == epsilon(like, "public")
    assert 2.53 < epsilon(plan, "public") < 2.532 * 1.01
    assert epsilon(plan, "server") == np.inf
    promised = next(line for line in plan.guarantees() if line.finite)
    assert STAYS in promised.assumptions


def test_a_target_is_solved_for():
    plan = planned({"name": "per-fedavg", "target_epsilon": 4.0}, silos=50, rounds=20, privacy={"against": ["public"]})
    assert 3.9 < epsilon(plan, "public") <= 4.0


@pytest.mark.parametrize(
    ("relations", "code"),
    [([[0.0, 1.0], [1.0, 0.0]], "malformed"), ([[0, 1, 0], [0, 0, 1], [0, 1, 0]], "invalid-value")],
)
def test_relations_that_are_none_are_refused(relations, code):
    with refuses(code, "method.relations"):
        planned({"name": "graph-regularized", "noise_multiplier": 1.0, "relations": relations}, silos=3)


def test_paid_metrics_do_not_cover_own_models(experiment):
    experiment["data"]["silos"]["count"] = 3
    experiment["method"] = {"name": "mean-regularized", "noise_multiplier": 1.0}
    experiment["evaluation"] = {"status": "paid", "noise_multiplier": 10.0}
    with refuses("not-supported", "evaluation.status", names=["private"]):
        tacit.plan(experiment)


def test_cox_has_no_mixture():
    with refuses("not-supported", "method.name"):
        tacit.plan(
            {
                "data": {"source": "tcga-brca"},
                "model": {"name": "cox"},
                "method": {"name": "fedem", "noise_multiplier": 1.0},
            }
        )


# -- in a run ----------------------------------------------------------------------------------------------------------


def test_outputs_of_own_models_together_are_those_one_by_one():
    sim = trained("mean-regularized", made=different_silos(11, 5))
    rng = np.random.default_rng(0)
    silo = rng.integers(11, size=70)
    silo[silo == 4] = 3  # one without rows
    features = rng.normal(size=(70, 4)).astype(np.float32)
    models, objective = sim.own_models(), sim.learner.objective
    together = own_outputs(objective, models, features, silo, sim.method.server.outputs)
    for k in np.unique(silo):
        own = jax.tree.map(lambda leaf, k=k: leaf[k], models)
        close(together[silo == k], outputs(objective, own, features[silo == k]), 1e-5)


@pytest.fixture
def personal(experiment) -> dict[str, Any]:
    experiment["data"]["silos"]["count"] = 3
    experiment["method"] = {"name": "mean-regularized", "clip": 1.0, "noise_multiplier": 1.0, "batch_size": 16}
    return experiment


def test_a_run_keeps_what_is_released_apart_from_what_stays(personal, visits, tmp_path):
    run = tacit.run(personal, frame=visits, out=tmp_path / "run")
    assert (run.path / "model.safetensors").is_file()
    assert (run.path / "personal.safetensors").is_file()
    shared = run.result["shared"]
    assert shared["metrics"].keys() == run.metrics.keys()
    assert set(shared["silos"]) == {"north", "south", "west"} == set(run.result["silos"])
    page = run.report.read_text()
    assert "Own models or one shared model" in page
    assert "Worst silo" in page
    assert "keeps its own model to itself" in page
    rows_ = visits.head(20)
    everybody, north, south = (run.predict(rows_, silo=silo)["probability"] for silo in (None, "north", "south"))
    assert not np.allclose(north, south)
    assert not np.allclose(north, everybody)
    with refuses("unknown-name", "silo"):
        run.predict(rows_, silo="east")


@pytest.mark.parametrize("name", ["fedem", "graph-regularized"])
def test_methods_with_several_models_predict_as_they_were_tested(personal, visits, tmp_path, name):
    personal["method"]["name"] = name
    run = tacit.run(personal, frame=visits, out=tmp_path / "run")
    everybody, own = run.predict(visits), run.predict(visits, silo="north")
    assert everybody["probability"].between(0, 1).all()
    assert not np.allclose(everybody["probability"], own["probability"])


@pytest.mark.parametrize("name", ["pfedme", "fedem", "graph-regularized"])
def test_a_checkpoint_holds_all_that_own_models_come_from(name, tmp_path):
    whole, begun = (trained(name, rounds=count) for count in (3, 2))
    save_tree(tmp_path / "state.safetensors", begun.state)
    again = trained(name, rounds=0)
    again.state, _ = load_tree(tmp_path / "state.safetensors", again.state, "test")
    again.round(3)
    for one, other in zip(*(jax.tree.leaves(sim.own_models()) for sim in (whole, again)), strict=True):
        np.testing.assert_array_equal(one, other)
